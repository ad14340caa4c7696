"""How long a branch of a fork takes, by mechanism and size of its changes.

    python benchmarks/branch.py [FOLDER]

The fork is idle, of a project with 10,000 files, and has changed as many as the row says. The bar of an overlay and of
Btrfs: 10 ms, whatever it changed. In the process of a program that uses the API, as an exec beside it would pay the
start of Python.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time

from hostfork import api

_FILES, _ROUNDS = 10_000, 7


def main(folder: str) -> None:
    """Measure in a fresh folder there."""
    place = tempfile.mkdtemp(prefix="hostfork-branch-", dir=folder)
    os.environ["XDG_STATE_HOME"] = f"{place}/state"
    try:
        _project(f"{place}/project")
        for changed in (0, 20, 2000):
            for mechanism in ("overlay", "live", "btrfs", "reflink"):
                _measure(f"{place}/project", mechanism, changed)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _project(path: str) -> None:
    for number in range(_FILES):
        os.makedirs(f"{path}/{number // 100}", exist_ok=True)
        with open(f"{path}/{number // 100}/{number}", "wb") as file:
            file.write(b"x" * 4096)


def _measure(project: str, mechanism: str, changed: int) -> None:
    name = f"{mechanism}-{changed}"
    rules = api.RuleOptions(private=(f"{project}:{mechanism}",))
    try:
        api.create(api.Request((), name=name, rules=rules, cwd=project))
    except Exception as error:
        return print(f"{mechanism:8} {changed:6} changes  not here: {error}")
    script = f"find . -type f | head -n {changed} | xargs -r touch -d @1"
    command = api.Request(("sh", "-c", script), cwd=project)
    try:
        api.enter(name, command)
        idle = [_timed(name, f"{name}-{number}") for number in range(_ROUNDS)]
        first, others = idle[0], idle[1:]
        median = statistics.median(others)
        print(
            f"{mechanism:8} {changed:6} changes  first branch {first * 1e3:7.1f} ms  later ones {median * 1e3:7.1f} ms"
        )
    finally:
        for fork in api.Fork.all():
            fork.discard()
    return None


def _timed(name: str, new: str) -> float:
    start = time.monotonic()
    api.branch(name, new)
    return time.monotonic() - start


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "/var/tmp")
