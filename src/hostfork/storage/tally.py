"""Counts a source beside the copy that is made of it, so that people see how far that is: a process of its own.

The short look before a copy does not come to the end of a large tree. On another processor, and nicer than the copy,
the whole walk costs the copy nothing. As a program: `tally.py OWNER PATH OMIT…`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)


class Tally:
    """One count under way. Nothing is raised: where it cannot be had there is none."""

    def __init__(self, path: str, omit: tuple[str, ...]) -> None:
        self._found: tuple[int, int] | None = None
        self._pid = -1
        self._pipe, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tally.py")
        try:
            # Its own process group: a Ctrl-C is the owner's, which then ends it.
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", program, str(os.getpid()), path, *omit],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, writer, 1)],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE,),
            )
        except OSError:
            pass
        finally:
            os.close(writer)

    def found(self) -> tuple[int, int] | None:
        """Entries and bytes, once they are known."""
        if self._found is None and self._pipe >= 0:
            with contextlib.suppress(OSError, ValueError):
                files, total = os.read(self._pipe, 100).split()
                self._found = int(files), int(total)
        return self._found

    def end(self) -> None:
        """End it, wherever it is."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1
        if self._pid > 0:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # our own child, not waited for yet: the pid is still its own
                os.waitpid(self._pid, 0)
        self._pid = -1


def main(owner: int, path: str, omit: tuple[str, ...]) -> None:
    """Count, and say it in one line."""
    from hostfork.helper import syscalls
    from hostfork.storage.measure import tally

    syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:
        return
    os.nice(10)
    with contextlib.suppress(OSError):  # without a count there is no total
        os.write(1, b"%d %d\n" % tally(path, omit))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(int(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:]))
