"""A private copy of a large tree against `cp -a`, in turn, in one run: `python benchmarks/copy_tree.py [--files N]`.

Ten files of 20 KB in each folder. Every round copies the same warm source with both and removes the copies; before
each copy the disk is synced, so that no one waits for the other's writes. Prints medians, the ratio and its spread.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from hostfork.storage.contract import Source
from hostfork.storage.copy import Copy
from hostfork.storage.pool import open_pool

PER_FOLDER = 10
COPY = Copy()


def main() -> int:
    """Measure and print; status 1 where the ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=20_000, help="bytes of one file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--where", default="/var/tmp", help="a folder with room for two copies")
    parser.add_argument("--limit", type=float, default=1.1)
    options = parser.parse_args()
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
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(options.rounds):
        both = [(ours, lambda: copy(source, pool)), (theirs, lambda: cp(source, os.path.join(folder, "cp")))]
        for times, run in both if number % 2 else reversed(both):
            times.append(timed(run))
        print(f"round {number + 1}: hostfork {ours[-1]:.2f} s, cp -a {theirs[-1]:.2f} s", flush=True)
    ratio = statistics.median(ours) / statistics.median(theirs)
    pairs = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    print(f"{options.files} files of {options.size} bytes, median of {options.rounds} rounds")
    print(f"hostfork {statistics.median(ours):.2f} s   cp -a {statistics.median(theirs):.2f} s   ratio {ratio:.2f}")
    print(f"ratio of single rounds {pairs[0]:.2f} to {pairs[-1]:.2f}   limit {options.limit}")
    return int(ratio > options.limit)


def make_tree(source: str, files: int, size: int) -> None:
    """A project-like tree: folders of ten files, a hundred folders in each upper one."""
    block = os.urandom(size)
    for folder in range((files + PER_FOLDER - 1) // PER_FOLDER):
        path = os.path.join(source, str(folder // 100), str(folder))
        os.makedirs(path)
        for number in range(min(PER_FOLDER, files - folder * PER_FOLDER)):
            with open(os.path.join(path, f"file-{number}"), "wb") as file:
                file.write(number.to_bytes(4, "big") + block[4:])


def timed(run: Callable[[], Callable[[], None]]) -> float:
    """Seconds of one copy; its removal is not counted."""
    os.sync()
    start = time.monotonic()
    undo = run()
    seconds = time.monotonic() - start
    undo()
    return seconds


def copy(source: str, pool: str) -> Callable[[], None]:
    """A private copy, with a witness as every run has one."""
    seen = []
    COPY.prepare("bench", Source(source), pool, lambda relative, *_: seen.append(relative))
    return lambda: void(COPY.remove("bench", pool))


def cp(source: str, target: str) -> Callable[[], None]:
    """`cp -a`."""
    subprocess.run(["cp", "-a", source, target], check=True)
    return lambda: shutil.rmtree(target)


def void(_: object) -> None:
    """For lambdas that return nothing."""


if __name__ == "__main__":
    sys.exit(main())
