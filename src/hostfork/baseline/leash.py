"""The program that runs another one which ends with its caller: `leash.py PID PROGRAM ARGUMENT…`.

SIGKILL of hostfork would else leave a git that goes on writing into what `recover` removes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1


def run(
    command: Sequence[str], folder: str, environment: Mapping[str, str], given: bytes = b""
) -> tuple[int, bytes, str]:
    """Run a program in a folder; gives its status, what it wrote, and what it said. Raises OSError.

    The thread that calls is the one with which it ends.
    """
    leashed = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *command]
    done = subprocess.run(leashed, check=False, cwd=folder, env=environment, input=given, capture_output=True)
    return done.returncode, done.stdout, os.fsdecode(done.stderr)


def main(arguments: list[str]) -> None:
    """Become the program."""
    from hostfork.helper.syscalls import prctl

    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(arguments[0]):
        os._exit(1)  # the caller went before that
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(sys.argv[1:])
