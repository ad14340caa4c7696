"""Times of checkpoints: 20 changes in a tree of 100,000 files, against the time of the changeset alone; restoring.

benchmarks/checkpoint.py FOLDER [FILES]     FOLDER on the filesystem that is to be measured; mechanisms that it has
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time

HOSTFORK = os.path.join(sys.prefix, "bin", "hostfork")
CHANGES, ROUNDS = 20, 5


def main(folder: str, files: int) -> None:
    """Measure every mechanism that the filesystem has."""
    work = os.path.join(os.path.abspath(folder), f"checkpoint-{os.getpid()}")
    os.mkdir(work)
    os.environ["XDG_STATE_HOME"] = f"{work}/state"
    try:
        source = _tree(work, files)
        for mechanism in ("btrfs", "overlay", "reflink", "copy"):
            _measure(source, mechanism)
    finally:
        subprocess.run([HOSTFORK, "discard", "bench", "--yes"], capture_output=True, check=False)
        shutil.rmtree(work, ignore_errors=True)


def _tree(work: str, files: int) -> str:
    source = f"{work}/source"
    if subprocess.run(["btrfs", "subvolume", "create", source], capture_output=True, check=False).returncode:
        os.mkdir(source)
    for number in range(files):
        at = f"{source}/{number // 1000}/{number // 100 % 10}"
        os.makedirs(at, exist_ok=True)
        with open(f"{at}/{number}", "w") as file:
            file.write(f"{number}\n" * 20)
    return source


def _measure(source: str, mechanism: str) -> None:
    from hostfork import api
    from hostfork.lifecycle import changes
    from hostfork.lifecycle.store import Store, state_folder

    made = subprocess.run(
        [HOSTFORK, "create", "bench", "--private", f"{source}:{mechanism}"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        print(f"{mechanism:<8} cannot be had here: {made.stderr.splitlines()[0]}")
        return
    start = time.perf_counter()
    first = api.checkpoint("bench").checkpoint
    first_time = time.perf_counter() - start
    scans, takes, restores, nothing = [], [], [], []
    for number in range(ROUNDS):
        script = f"for n in $(seq {CHANGES}); do echo {number} >{source}/$n/0/new$n; done"
        subprocess.run([HOSTFORK, "exec", "bench", "--", "sh", "-c", script], check=True)
        with Store(state_folder()).open("bench") as fork:
            start = time.perf_counter()
            changes.collect(fork, fork.load(), lambda _path: None)
            scans.append(time.perf_counter() - start)
        start = time.perf_counter()
        api.checkpoint("bench")
        takes.append(time.perf_counter() - start)
        start = time.perf_counter()
        api.checkpoint("bench")
        nothing.append(time.perf_counter() - start)
        restores.append(api.restore("bench", first.id).seconds)
    subprocess.run([HOSTFORK, "discard", "bench", "--yes"], capture_output=True, check=True)
    shown = [f"{name} {statistics.median(times) * 1000:.1f} ms" for name, times in (
        ("changeset", scans), ("checkpoint", takes), ("nothing changed", nothing), ("restore", restores))]  # fmt: skip
    print(f"{mechanism:<8} first {first_time * 1000:.0f} ms  {'  '.join(shown)}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
