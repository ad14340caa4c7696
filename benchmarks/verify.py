"""Verifying a baseline beside `b3sum` over the same files, in turn, in one run: `python benchmarks/verify.py`.

100,000 files of 20,480 bytes in 10,000 folders, then one file of 1 GiB, each as the tree of a baseline that is on disk
and has its sums. Both read from the page cache. Prints medians, the ratio and its spread. `--b3sum` names the program;
without one the peer is the blake3 package's own way to hash files, which reads each by several threads.
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

from copy_tree import make_tree

from hostfork.baseline import settler, summing
from hostfork.baseline.current import current
from hostfork.storage.contract import Source
from hostfork.storage.lines import Generation
from hostfork.storage.pool import open_pool

LARGE = 1 << 30


def main() -> int:
    """Measure and print; status 1 where a ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--where", default="/var/tmp", help="a folder with room for two copies of each")
    parser.add_argument("--b3sum", default=shutil.which("b3sum"), help="the program to compare with")
    parser.add_argument("--limit", type=float, default=1.3)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, peer {options.b3sum or 'the blake3 package'}")
    held = True
    for name, make in (("many-small", many_small), ("one file of 1 GiB", one_large)):
        folder = tempfile.mkdtemp(prefix="hostfork-bench-", dir=options.where)
        try:
            source = os.path.join(folder, "source")
            make(source, options.files)
            held = measure(name, folder, source, options) and held
        finally:
            shutil.rmtree(folder)
    return int(not held)


def many_small(source: str, files: int) -> None:
    """Ten files of 20 KiB in each folder."""
    make_tree(source, files, 20_480)


def one_large(source: str, _files: int) -> None:
    """One file, nothing of it sparse."""
    os.mkdir(source)
    block = os.urandom(1 << 20)
    with open(os.path.join(source, "large"), "wb") as file:
        for number in range(LARGE >> 20):
            file.write(number.to_bytes(4, "big") + block[4:])


def measure(name: str, folder: str, source: str, options: argparse.Namespace) -> bool:
    """All rounds over one tree."""
    pool = open_pool(os.path.join(folder, "pool"), asked=True)
    with current(Source(source), pool) as ready:
        settler.settle(ready.generation.path)
    summing.record_all(pool)
    shutil.rmtree(source)
    tree = ready.generation.lowers[0]
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(options.rounds):
        both = [(ours, lambda: verify(ready.generation)), (theirs, lambda: peer(tree, options.b3sum))]
        for times, run in both if number % 2 else reversed(both):
            times.append(timed(run))
    ratio = statistics.median(ours) / statistics.median(theirs)
    pairs = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    print(f"{name}: hostfork {statistics.median(ours):.2f} s   peer {statistics.median(theirs):.2f} s   "
          f"ratio {ratio:.2f} ({pairs[0]:.2f} to {pairs[-1]:.2f})   limit {options.limit}", flush=True)  # fmt: skip
    return ratio <= float(options.limit)


def timed(run: Callable[[], None]) -> float:
    """Seconds."""
    start = time.monotonic()
    run()
    return time.monotonic() - start


def verify(generation: Generation) -> None:
    """Read all, and compare it with the sums."""
    done = summing.check(generation, None, len(os.sched_getaffinity(0)))
    assert (done.recorded, done.damage) == (False, ()), done


def peer(tree: str, b3sum: str | None) -> None:
    """The program over the files as `find` lists them; or the package over each file."""
    if b3sum:
        command = f'find "$1" -type f -print0 | xargs -0 {b3sum}'
        subprocess.run(["sh", "-c", command, "sh", tree], check=True, stdout=subprocess.DEVNULL)
        return
    from blake3 import blake3

    for place, _, names in os.walk(tree):
        for name in names:
            blake3(max_threads=blake3.AUTO).update_mmap(os.path.join(place, name)).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
