"""What applying 1,000 changed files takes beside `rsync -a` of the same files: `python benchmarks/apply.py` as root.

Whole commands, alternating, on fresh disks in files. An apply compares three sides, writes everything to disk, keeps
what it displaced and can be undone; rsync does none of that. Printed are medians in milliseconds and their ratio, and
rsync with a `sync -f` after it. Status 1 where an apply takes more than `--bar` times as long as rsync alone.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

from release import disk

PROGRAM = os.path.join(os.path.dirname(sys.executable), "hostfork")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--size", type=int, default=4096, help="bytes of each file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--disks", nargs="+", default=["ext4", "xfs", "btrfs"])
    parser.add_argument("--where", default="/var/tmp", help="where the disks' files are made")
    parser.add_argument("--bar", type=float, default=2.0)
    asked = parser.parse_args()
    if shutil.which("rsync") is None:
        sys.exit("there is no rsync to compare with")
    print(f"{'disk':8}{'apply':>9}{'undo':>9}{'rsync':>9}{'+ sync':>9}{'ratio':>8}")
    held = True
    for kind in asked.disks:
        with disk(kind, asked.where) as place:
            held = measured(kind, place, asked) and held
    return 0 if held else 1


def measured(kind: str, place: str, asked: argparse.Namespace) -> bool:
    """All rounds on one disk; whether the bar held."""
    os.environ.update(HOME=f"{place}/home", XDG_STATE_HOME=f"{place}/home/state", XDG_CONFIG_HOME=f"{place}/home/conf")
    os.makedirs(f"{place}/home")
    project, plain, changed = f"{place}/project", f"{place}/plain", f"{place}/changed"
    for root, letter in ((project, b"a"), (plain, b"a"), (changed, b"b")):
        write(root, letter, asked)
    script = f"for f in */*; do head -c {asked.size} /dev/zero | tr '\\\\0' b > $f; done"
    run = [PROGRAM, "run", "-q", "--name", "f", "--private", project, "--", "sh", "-c", script]
    subprocess.run(run, check=True, cwd=project)
    times: dict[str, list[float]] = {"apply": [], "undo": [], "rsync": [], "sync": []}
    for _ in range(asked.rounds):
        os.sync()
        times["apply"].append(timed([PROGRAM, "apply", "f", "--yes"]))
        os.sync()
        times["undo"].append(timed([PROGRAM, "undo", "f", "--yes"]))
        write(plain, b"a", asked)
        os.sync()
        times["rsync"].append(timed(["rsync", "-a", f"{changed}/", f"{plain}/"]))
        times["sync"].append(times["rsync"][-1] + timed(["sync", "-f", plain]))
    middle = {name: statistics.median(found) * 1000 for name, found in times.items()}
    ratio = middle["apply"] / middle["rsync"]
    print(f"{kind:8}" + "".join(f"{middle[name]:9.0f}" for name in times) + f"{ratio:8.2f}", flush=True)
    return bool(ratio <= asked.bar)


def write(root: str, letter: bytes, asked: argparse.Namespace) -> None:
    """The files, fifty in each folder, each new, with times of long ago."""
    shutil.rmtree(root, ignore_errors=True)
    for number in range(asked.files):
        os.makedirs(f"{root}/d{number // 50}", exist_ok=True)
        path = f"{root}/d{number // 50}/f{number}"
        with open(path, "wb") as file:
            file.write(letter * asked.size)
        if letter == b"a":
            os.utime(path, (1_600_000_000, 1_600_000_000))


def timed(command: list[str]) -> float:
    """Seconds that a command takes."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
