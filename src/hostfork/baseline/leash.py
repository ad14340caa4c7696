"""The program that runs another one which ends with its caller: `leash.py PID PROGRAM ARGUMENT…`.

SIGKILL of hostfork would else leave a git that goes on writing into what `recover` removes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_TICK = 0.2


def run(
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    given: bytes = b"",
    ticking: Callable[[], None] | None = None,
) -> tuple[int, bytes, str]:
    """Run a program in a folder; gives its status, what it wrote, and what it said. Raises OSError.

    The thread that calls is the one with which it ends. `ticking` is called some times a second meanwhile.
    """
    leashed = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(leashed, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            wrote, said = _heard(process, given, ticking)
        except BaseException:
            process.kill()
            raise
    return process.returncode, wrote, os.fsdecode(said)


def _heard(process: subprocess.Popen[bytes], given: bytes, ticking: Callable[[], None] | None) -> tuple[bytes, bytes]:
    while True:
        try:
            return process.communicate(given, None if ticking is None else _TICK)
        except subprocess.TimeoutExpired:
            assert ticking is not None
            ticking()


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
