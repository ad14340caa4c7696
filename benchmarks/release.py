"""How long giving a fork back takes, by mechanism, size and user: `python benchmarks/release.py` as root.

For each a fork is made through the API, in a warm process, and released. Printed are, from the release's begin: until
it is off the list, until the release returns (it erases for about 5 ms, and starts who does the rest), and until all of
it is erased; then from the command's end until the run returns, which includes looking for changes; and a `discard` of
a kept fork. The disks are in files, mounted for this run alone. Status 1 where a fork is not off the list in time.
"""

import argparse
import os
import pwd
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hostfork import api
from hostfork.lifecycle import live
from hostfork.lifecycle.events import EndedCommand
from hostfork.lifecycle.store import ForkFolder, Store, state_folder
from hostfork.storage import reclaim

FORKS = {"copy": "ext4", "live": "ext4", "reflink": "xfs", "btrfs": "btrfs", "overlay": "btrfs"}
"""What is asked for, and the disk that it is measured on; `overlay` is over a frozen snapshot."""
MAKERS = {
    "ext4": ("mkfs.ext4", "-q", "-N", "500000"),
    "xfs": ("mkfs.xfs", "-q", "-m", "reflink=1"),
    "btrfs": ("mkfs.btrfs", "-q"),
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--forks", nargs="+", default=list(FORKS), choices=list(FORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--where", default="/var/tmp", help="where the disks' files are made")
    parser.add_argument("--limit", type=float, default=0.010, help="seconds until a fork is off the list")
    asked = parser.parse_args()
    print("milliseconds, best of the rounds")
    print(
        f"{'fork':9}{'user':7}{'files':>8}{'off list':>10}{'returns':>10}{'erased':>10}{'run ends':>10}{'discard':>10}"
    )
    held = True
    for kind in dict.fromkeys(FORKS[fork] for fork in asked.forks):
        with disk(kind, asked.where) as place:
            for uid in (0, pwd.getpwnam("nobody").pw_uid):
                for files in asked.files:
                    forks = [fork for fork in asked.forks if FORKS[fork] == kind]
                    held = measured(place, uid, files, forks, asked.rounds, asked.limit) and held
    return 0 if held else 1


@contextmanager
def disk(kind: str, where: str) -> Iterator[str]:
    """A fresh filesystem of 2 GB in a file."""
    with tempfile.TemporaryDirectory(prefix="hf-release-", dir=where) as folder:
        os.chmod(folder, 0o755)
        place = f"{folder}/disk"
        os.mkdir(place)
        with open(f"{folder}/image", "wb") as image:
            image.truncate(2 << 30)
        subprocess.run([*MAKERS[kind], image.name], check=True, capture_output=True)
        subprocess.run(["mount", "-t", kind, "-o", "loop,noatime", image.name, place], check=True)
        try:
            os.chmod(place, 0o1777)
            yield place
        finally:
            # What the last forks held may still be erased in the background.
            while subprocess.run(["umount", place], capture_output=True, check=False).returncode:
                time.sleep(0.2)


def measured(place: str, uid: int, files: int, forks: list[str], rounds: int, limit: float) -> bool:
    """All forks of one source, in a child that is that user; whether the limit held."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(uid and 65534)
            os.setuid(uid)
            home = f"{place}/{uid}-{files}"
            os.mkdir(home, 0o700)
            os.environ.update(HOME=home, XDG_STATE_HOME=f"{home}/state")
            source = make_source(home, files)
            held = [one_fork(fork, source, uid, files, rounds, limit) for fork in forks]
            status = 0 if all(held) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def make_source(home: str, files: int) -> str:
    """A folder, on Btrfs a subvolume, with that many small files, twenty in each folder."""
    source = f"{home}/source"
    if subprocess.run(["btrfs", "subvolume", "create", source], capture_output=True, check=False).returncode:
        os.mkdir(source)
    for folder in range(files // 20):
        os.mkdir(f"{source}/d{folder}")
        for file in range(20):
            with open(f"{source}/d{folder}/f{file}", "wb") as content:
                content.write(b"hostfork\n")
    os.sync()
    return source


def one_fork(fork: str, source: str, uid: int, files: int, rounds: int, limit: float) -> bool:
    """Best of several rounds, each told apart; whether the limit held."""
    found = [one_round(fork, source) for _ in range(rounds)]
    best = [min(times) * 1000 for times in zip(*found, strict=True)]
    name = "root" if uid == 0 else "user"
    print(f"{fork:9}{name:7}{files:8,}" + "".join(f"{value:10.2f}" for value in best), flush=True)
    return best[0] <= limit * 1000


def one_round(fork: str, source: str) -> tuple[float, ...]:
    """Seconds: off the list, returned, erased, from the command's end to that of the run, a discard."""
    moments: dict[str, float] = {}
    release, erased, remove = live.release, live.erased, ForkFolder.remove

    def timed_release(*arguments: Any) -> Any:
        moments["begin"] = time.perf_counter()
        return release(*arguments)

    def timed_erased(*arguments: Any) -> Any:
        left = erased(*arguments)
        moments["returned"] = time.perf_counter()
        return left

    def timed_remove(folder: ForkFolder) -> None:
        remove(folder)
        moments["off"] = time.perf_counter()

    live.release, live.erased, ForkFolder.remove = timed_release, timed_erased, timed_remove
    try:
        outcome = run(fork, source, api.Keep.NEVER, moments)
        moments["over"] = time.perf_counter()
    finally:
        live.release, live.erased, ForkFolder.remove = release, erased, remove
    assert outcome.released, outcome
    assert outcome.leftovers == (), outcome
    moments["erased"] = wait_until_erased()
    kept = api.Fork.open(run(fork, source, api.Keep.ALWAYS, {}).fork)
    before = time.perf_counter()
    assert kept.discard() == ()
    discard = time.perf_counter() - before
    wait_until_erased()
    released = (moments[name] - moments["begin"] for name in ("off", "returned", "erased"))
    return (*released, moments["over"] - moments["ended"], discard)


def run(fork: str, source: str, keep: api.Keep, moments: dict[str, float]) -> api.Outcome:
    """A run that changes nothing; notes when its command ended."""

    def note(event: object) -> None:
        if isinstance(event, EndedCommand):
            moments["ended"] = time.perf_counter()

    rules = api.RuleOptions(private=(f"{source}:{fork}",))
    return api.run(api.Request(("true",), rules=rules, cwd=source, keep=keep), on_event=note)


def wait_until_erased() -> float:
    """The moment when nothing waits any more."""
    pool = Store(state_folder()).pool
    while reclaim.asides(pool):
        time.sleep(0.001)
    return time.perf_counter()


if __name__ == "__main__":
    raise SystemExit(main())
