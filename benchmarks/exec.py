"""A command in a kept fork against a run of its own: `exec` into a view that stands, and into one that must be built.

    python benchmarks/exec.py [--rounds 25] [--project FOLDER]

Commands alternate; medians and ratios. The bar: `exec` into a running fork takes at most 1.3 x `run --private P:live`
from cold. Installed without bytecode, Python compiles every module at every start: measure an installation that has it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from cold_start import make_project, measure

BAR = 1.3


def hostfork(*words: str) -> list[str]:
    """A command line of this installation."""
    return [os.path.join(os.path.dirname(sys.executable), "hostfork"), *words]


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table; status 1 where `exec` into a running fork takes longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--project", help="the private folder; 100 files of 20 KiB are made where it is not given")
    options = parser.parse_args(arguments)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="hostfork-bench-") as scratch:
        project = options.project or os.path.join(scratch, "project")
        if options.project is None:
            make_project(project)
        os.environ["XDG_STATE_HOME"] = os.path.join(scratch, "state")
        for name in ("running", "idle"):
            subprocess.run(hostfork("create", name, "--private", f"{project}:live"), check=True, capture_output=True)
        held = subprocess.Popen(hostfork("exec", "running", "--", "sh", "-c", "echo up; exec sleep 3600"),
                                stdout=subprocess.PIPE)  # fmt: skip
        try:
            assert held.stdout is not None
            held.stdout.readline()
            medians = measure(
                {
                    "hostfork run --private P:live": hostfork("run", "--private", f"{project}:live", "--", "true"),
                    "hostfork exec, the fork runs": hostfork("exec", "running", "--", "true"),
                    "hostfork exec, it does not": hostfork("exec", "idle", "--", "true"),
                },
                options.rounds,
            )
        finally:
            held.terminate()
            held.wait()
            subprocess.run(hostfork("discard", "--all", "--yes"), check=False, capture_output=True)
    cold, warm = medians["hostfork run --private P:live"], medians["hostfork exec, the fork runs"]
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, {options.rounds} rounds")
    for name, median in medians.items():
        print(f"{name:34} {median:8.1f} ms   {median / cold:5.2f} x run")
    return 0 if warm <= BAR * cold else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
