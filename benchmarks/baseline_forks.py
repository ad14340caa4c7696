"""The start of a fork of a baseline: equal for 1,000 and 100,000 files, by an overlay and by a writable snapshot.

    python benchmarks/baseline_forks.py [--rounds 15]

Run as root. On an ext4, an XFS and a Btrfs in files, mounted for this run alone, a tree of each size is made (on Btrfs
a subvolume), and a baseline of it. Runs of `true` alternate; medians of what making the private storage took, and of
the whole command. The bar is 20 ms for the storage, the aim 5, and the shortest of each size are to be equal.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

SIZES, SIZE = (1_000, 100_000), 1_000
DISKS = {
    "ext4": ("mkfs.ext4", "-q", "-N", "500000"),
    "xfs": ("mkfs.xfs", "-q", "-m", "reflink=1"),
    "btrfs": ("mkfs.btrfs", "-q"),
}
BAR, EQUAL = 20.0, 1.5
HOSTFORK = os.path.join(os.path.dirname(sys.executable), "hostfork")


def make(root: str, files: int) -> None:
    """Ten small files to a folder."""
    for number in range(files // 10):
        folder = f"{root}/{number // 100}/{number % 100}"
        os.makedirs(folder)
        for name in range(10):
            with open(f"{folder}/{name}", "wb") as file:
                file.write(os.urandom(SIZE))


@contextlib.contextmanager
def disk(kind: str, scratch: str) -> Iterator[str]:
    """A filesystem in a file."""
    image, place = f"{scratch}/{kind}.image", f"{scratch}/{kind}"
    with open(image, "wb") as file:
        file.truncate(4 << 30)
    os.mkdir(place)
    subprocess.run([*DISKS[kind], image], check=True, capture_output=True)
    subprocess.run(["mount", "-t", kind, "-o", "loop,noatime", image, place], check=True)
    try:
        yield place
    finally:
        while subprocess.run(["umount", place], capture_output=True, check=False).returncode:
            time.sleep(0.2)  # what is made in the background ends first


class Place:
    """A folder on one filesystem: trees, a pool, and a baseline of each tree."""

    def __init__(self, kind: str, folder: str) -> None:
        self.kind, self.pool = kind, f"{folder}/pool"
        self.prefers = ("memory", "native") if kind == "btrfs" else ("memory",)
        self.made: dict[int, tuple[float, str]] = {}
        for files in SIZES:
            tree = f"{folder}/{files}"
            if self.kind == "btrfs":
                subprocess.run(["btrfs", "subvolume", "create", tree], check=True, stdout=subprocess.DEVNULL)
            else:
                os.mkdir(tree)
            make(tree, files)
            name = f"{self.kind}-{files}"
            command = [HOSTFORK, "baseline", "create", name, "--from", tree, "--pool", self.pool, "--json"]
            done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            self.made[files] = done["seconds"], done["baseline"]["trees"][0]["stored"]

    def fork(self, files: int, prefer: str, result: str) -> tuple[float, float]:
        """Milliseconds: making the storage, and the whole command."""
        command = [HOSTFORK, "run", "--base", f"{self.kind}-{files}", "--pool", self.pool, "--prefer", prefer, "--rm",
                   "--result", result, "--", "true"]  # fmt: skip
        start = time.perf_counter()
        subprocess.run(command, check=True)
        whole = (time.perf_counter() - start) * 1000
        with open(result, encoding="utf-8") as file:
            found = json.load(file)
        wanted = "btrfs" if prefer == "native" else "overlay"
        if found["paths"][0]["mechanism"] != wanted:
            raise SystemExit(f"{command}: {found['paths'][0]['mechanism']}")
        return found["timings"]["prepare"] * 1000, whole

    def settled(self) -> None:
        """Wait until nothing is done in the background any more with what was made, and all of it is on disk."""
        while any(self.pool.encode() in command for command in commands()):
            time.sleep(0.1)
        subprocess.run(["sync", "-f", self.pool], check=True)


def commands() -> Iterator[bytes]:
    """The command lines of all processes."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            yield file.read()


def median(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of each column."""
    return statistics.median(one for one, _ in found), statistics.median(other for _, other in found)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; status 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--where", default="/dev/shm", help="where the disks' files lie")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(dir=options.where, prefix="hostfork-bench-") as scratch,
        contextlib.ExitStack() as disks,
    ):
        os.environ["XDG_STATE_HOME"] = f"{scratch}/state"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        places = [Place(kind, disks.enter_context(disk(kind, scratch))) for kind in DISKS]
        for place in places:
            place.settled()
        times: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
        for number in range(options.rounds + 1):  # the first of each makes what all later ones have
            for place in places:
                for prefer in place.prefers:
                    for files in SIZES:
                        found = place.fork(files, prefer, f"{scratch}/result.json")
                        if number:
                            times.setdefault((place.kind, prefer, files), []).append(found)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, {options.rounds} rounds; files of {SIZE} bytes")
    for place in places:
        made = ", ".join(f"{files:,} files {taken:.2f} s by {how}" for files, (taken, how) in place.made.items())
        print(f"{place.kind:<6} baselines made: {made}")
    good = True
    for place in places:
        for prefer in place.prefers:
            small, large = (median(times[place.kind, prefer, files]) for files in SIZES)
            least = [min(times[place.kind, prefer, files])[0] for files in SIZES]
            good = good and max(small[0], large[0]) <= BAR and least[1] / least[0] <= EQUAL
            print(
                f"{place.kind:<6} {prefer:<7} prepare {small[0]:5.1f}, {large[0]:5.1f} ms, "
                f"least {least[0]:4.1f}, {least[1]:4.1f}     whole {small[1]:4.0f}, {large[1]:4.0f} ms     "
                f"bar {BAR:.0f} ms, {EQUAL} x"
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
