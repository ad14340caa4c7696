"""A reflink of a large tree against `cp -a --reflink=always`, in turn, in one run: `python benchmarks/reflink_tree.py`.

Ten files of 20 KB in each folder, on a filesystem that shares blocks (`--where`). Every round clones the same source
with both and removes the clones; before each the disk is synced. Prints medians of the wall and of the processor time,
the ratios and their spread. `--twice` also measures the fewest calls that make one clone, and two: what keeping the
base as a second clone would cost at least.
"""

import argparse
import fcntl
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from copy_tree import make_tree, void

from hostfork.storage import crew
from hostfork.storage.clone import FICLONE
from hostfork.storage.contract import Refusal, Source
from hostfork.storage.pool import open_pool
from hostfork.storage.reflink import Reflink

REFLINK = Reflink()
Undo = Callable[[], None]


def main() -> int:
    """Measure and print; status 1 where the ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=20_480, help="bytes of one file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--where", default="/var/tmp", help="a folder on Btrfs, or on XFS with reflink")
    parser.add_argument("--limit", type=float, default=1.0)
    parser.add_argument("--workers", type=int, help="instead of one for each idle processor")
    parser.add_argument("--twice", action="store_true", help="also measure bare clones, one and two")
    options = parser.parse_args()
    if options.workers is not None:
        crew.idle_processors = lambda: options.workers
    folder = tempfile.mkdtemp(prefix="hostfork-bench-", dir=options.where)
    try:
        return measure(folder, options)
    finally:
        shutil.rmtree(folder)


def measure(folder: str, options: argparse.Namespace) -> int:
    """All rounds in `folder`."""
    source = os.path.join(folder, "source")
    make_tree(source, options.files, options.size)
    pool = open_pool(os.path.join(folder, "pool"), asked=True)
    answer = REFLINK.probe(Source(source), pool)
    if isinstance(answer, Refusal):
        print(f"no reflink here: {answer.reason}", file=sys.stderr)
        return 2
    target = os.path.join(folder, "other")
    ways: dict[str, Callable[[], Undo]] = {
        "hostfork": lambda: reflink(source, pool),
        "cp -a --reflink=always": lambda: cp(source, target),
    }
    if options.twice:
        ways["bare, one clone"] = lambda: bare(source, target, 1)
        ways["bare, two clones"] = lambda: bare(source, target, 2)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(options.rounds):
        for name in ways if number % 2 else reversed(ways):
            times[name].append(timed(ways[name]))
        texts = (f"{name} {times[name][-1][0]:.2f} s ({times[name][-1][1]:.2f} of processor)" for name in ways)
        print(f"round {number + 1}: {', '.join(texts)}", flush=True)
    print(f"{options.files} files of {options.size} bytes, median of {options.rounds} rounds")
    ratio = 0.0
    for name, other in ((name, "cp -a --reflink=always") for name in ways):
        told = report(name, times[name], times[other])
        ratio = told if name == "hostfork" else ratio
    return int(ratio > options.limit)


def report(name: str, ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> float:
    """Print one line; the ratio of wall times."""
    wall, used = (statistics.median(one[index] for one in ours) for index in (0, 1))
    ratio = wall / statistics.median(one[0] for one in theirs)
    pairs = sorted(one[0] / other[0] for one, other in zip(ours, theirs, strict=True))
    print(f"{name:24} {wall:6.2f} s  processor {used:6.2f} s  ratio {ratio:.2f} ({pairs[0]:.2f} to {pairs[-1]:.2f})")
    return ratio


def timed(run: Callable[[], Undo]) -> tuple[float, float]:
    """Wall and processor seconds of one clone; its removal is not counted."""
    os.sync()
    start, before = time.monotonic(), os.times()
    undo = run()
    seconds, after = time.monotonic() - start, os.times()
    undo()
    return seconds, sum(after[:4]) - sum(before[:4])


def reflink(source: str, pool: str) -> Undo:
    """A private tree, with a witness as every run has one."""
    seen = []
    REFLINK.prepare("bench", Source(source), pool, lambda relative, *_: seen.append(relative))
    return lambda: void(REFLINK.remove("bench", pool))


def cp(source: str, target: str) -> Undo:
    """`cp -a --reflink=always`."""
    subprocess.run(["cp", "-a", "--reflink=always", source, target], check=True)
    return lambda: shutil.rmtree(target)


def bare(source: str, target: str, clones: int) -> Undo:
    """Open, create, clone, close in two processes, and no more; of the first clone the times too."""
    folders = sorted(os.path.relpath(path, source) for path, _, _ in os.walk(source))
    for number in range(clones):
        os.makedirs(f"{target}/{number}")
        for folder in folders[1:]:
            os.mkdir(f"{target}/{number}/{folder}")
    pids = []
    for half in (folders[::2], folders[1::2]):
        pid = os.fork()
        if pid == 0:
            for folder in half:
                clone_files(f"{source}/{folder}", [f"{target}/{number}/{folder}" for number in range(clones)])
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return lambda: shutil.rmtree(target)


def clone_files(source: str, targets: list[str]) -> None:
    """The files of one folder, each opened once."""
    handle = os.open(source, os.O_RDONLY)
    outs = [os.open(target, os.O_RDONLY) for target in targets]
    for entry in os.scandir(handle):
        if entry.is_file():
            file = os.open(entry.name, os.O_RDONLY | os.O_NOATIME, dir_fd=handle)
            found = os.fstat(file)
            for number, out in enumerate(outs):
                made = os.open(entry.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=out)
                fcntl.ioctl(made, FICLONE, file)
                if number == 0:
                    os.utime(made, ns=(found.st_atime_ns, found.st_mtime_ns))
                os.close(made)
            os.close(file)
    for opened in (handle, *outs):
        os.close(opened)


if __name__ == "__main__":
    sys.exit(main())
