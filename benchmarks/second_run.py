"""A later `--private` run over a baseline, against a bare walk and a cold start: with nothing changed, and 200 files.

    python benchmarks/second_run.py [--rounds 9] [--tree FOLDER]

FOLDER: 100,000 files of 20,480 bytes in 10,000 folders, made beside the state folder where it is not given; ext4 is
what this is for. Commands alternate; medians and ratios. The bar is 1.3 x the walk and the start, the aim 1.1.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from changeset import bare_walk

FOLDERS, FILES, SIZE, CHANGED = 10_000, 10, 20_480, 200
BAR = 1.3
SETTLING = 5.0
HOSTFORK = os.path.join(os.path.dirname(sys.executable), "hostfork")


def make(root: str) -> None:
    """Many small files."""
    for number in range(FOLDERS):
        folder = f"{root}/{number // 100}/{number % 100}"
        os.makedirs(folder)
        for name in range(FILES):
            with open(f"{folder}/{name}", "wb") as file:
                file.write(os.urandom(SIZE))


def seconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def run(*arguments: str) -> None:
    """One whole run of `true`."""
    subprocess.run([HOSTFORK, "run", *arguments, "--", "true"], check=True, stdout=subprocess.DEVNULL)


def walk(tree: str) -> None:
    """A bare walk over the tree."""
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        bare_walk(root)
    finally:
        os.close(root)


def some_files(tree: str) -> list[str]:
    """The files that are changed, from all over the tree."""
    folders = [folder for folder, _, files in os.walk(tree) if files]
    step = max(1, len(folders) // CHANGED)
    return [os.path.join(folder, sorted(os.listdir(folder))[0]) for folder in folders[::step][:CHANGED]]


def rewrite(paths: Sequence[str]) -> None:
    """Write each anew."""
    for path in paths:
        with open(path, "wb") as file:
            file.write(os.urandom(SIZE))


def copy(tree: str, paths: Sequence[str], target: str) -> None:
    """Copy them, by cp, with the folders in which they are."""
    os.mkdir(target)
    names = [os.path.relpath(path, tree) for path in paths]
    subprocess.run(["cp", "-a", "--parents", "-t", target, *names], cwd=tree, check=True)
    shutil.rmtree(target)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; status 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tree")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="hostfork-bench-", ignore_cleanup_errors=True) as scratch:
        tree, small = options.tree or f"{scratch}/tree", f"{scratch}/small"
        os.mkdir(small)
        if options.tree is None:
            make(tree)
        os.environ["XDG_STATE_HOME"] = f"{scratch}/state"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        first = seconds(lambda: run("--private", tree))
        paths = some_files(tree)
        times: dict[str, list[float]] = {"walk": [], "start": [], "same": [], "cp": [], "changed": []}
        run("--private", tree)
        for _ in range(options.rounds):
            times["walk"].append(seconds(lambda: walk(tree)))
            times["start"].append(seconds(lambda: run("--private", f"{small}:live")))
            times["same"].append(seconds(lambda: run("--private", tree)))
            rewrite(paths)
            times["cp"].append(seconds(lambda: copy(tree, paths, f"{scratch}/copied")))
            times["changed"].append(seconds(lambda: run("--private", tree)))
        time.sleep(SETTLING)  # what was started in the background writes there
    middle = {name: statistics.median(found) for name, found in times.items()}
    bare = middle["walk"] + middle["start"]
    same, changed = middle["same"] / bare, middle["changed"] / (bare + middle["cp"])
    print(
        f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, {options.rounds} rounds; first run {first:.1f} s"
    )
    print(
        f"walk {middle['walk']:.3f} s, cold start {middle['start']:.3f} s, cp of {CHANGED} files {middle['cp']:.3f} s"
    )
    print(f"nothing changed   {middle['same']:.3f} s   {same:.2f} x walk and start        bar {BAR}")
    print(f"{CHANGED} files changed {middle['changed']:.3f} s   {changed:.2f} x walk, start and cp    bar {BAR}")
    return 0 if max(same, changed) <= BAR else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
