"""What the command starts with: descriptors, working directory, umask, signals, and the exec itself.

Everything is the caller's again, except that SIGPIPE and SIGXFSZ, which Python ignores, are at their defaults.
"""

from __future__ import annotations

import errno
import os

from hostfork.helper import syscalls
from hostfork.helper.lean import signal
from hostfork.helper.protocol import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SIGNALS = range(1, 65)
_CANNOT_CHANGE = frozenset({9, 19})
# The C library's own: it leaves them ignored in what posix_spawn starts, and its sigaction refuses them (nptl(7)).
_LIBRARYS = frozenset({32, 33})
_PYTHON_IGNORES = frozenset({13, 25})  # SIGPIPE, SIGXFSZ


def occupy_standard_descriptors() -> None:
    """Where 0, 1 or 2 is closed, put something there that is closed again at exec, so that nothing else lands there."""
    descriptor = os.open("/dev/null", os.O_PATH | os.O_CLOEXEC)
    while descriptor <= 2:
        descriptor = os.open("/dev/null", os.O_PATH | os.O_CLOEXEC)
    os.close(descriptor)


def enter(cwd: str) -> None:
    """Enter the working directory by its path: the inherited one is still the host's folder, not the view's."""
    os.chdir(cwd)


def start(context: Context, report: int, gate: int) -> NoReturn:
    """Become the command, in the current working directory. If that cannot be, write the errno to `report`.

    All signals are blocked. At `gate` comes a zero byte once the keeper has left the terminal's process group, and with
    it the numbers of what the terminal had sent until then.
    """
    try:
        os.umask(context.umask)
        _close_all_but((*context.descriptors, report, gate))
        _restore_dispositions(context)
        _pass(gate)
        signal.pthread_sigmask(signal.SIG_SETMASK, context.blocked)
        number = _exec(context)
    except OSError as error:
        number = error.errno or errno.EPROTO
    os.write(report, str(number).encode())
    os._exit(127 if number == errno.ENOENT else 126)


def _close_all_but(kept: tuple[int, ...]) -> None:
    """Close every descriptor above 2 that was not named."""
    start = 3
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = max(start, descriptor + 1)
    os.closerange(start, 1 << 20)


def _restore_dispositions(context: Context) -> None:
    for number in _SIGNALS:
        if number in _CANNOT_CHANGE:
            continue
        ignored = number in context.ignored and number not in _PYTHON_IGNORES
        if number in _LIBRARYS:
            syscalls.set_ignored(number, ignored)
        else:
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)


def _pass(gate: int) -> None:
    """What came after the fork waits here as well as in the keeper, and is to come once; the rest came before it."""
    came = os.read(gate, 100)
    os.close(gate)
    if not came:
        raise ConnectionResetError  # the keeper is dead: no command
    waiting = signal.sigpending()
    for number in came[1:]:
        if number not in waiting:
            os.kill(os.getpid(), number)


def _exec(context: Context) -> int:
    """execvp(3): the search path is the command's own; a script without `#!` goes to /bin/sh. Returns the errno."""
    argv = [os.fsencode(word) for word in context.argv]
    environment = {os.fsencode(name): os.fsencode(value) for name, value in context.environment}
    denied = 0
    for program in _candidates(argv[0], environment.get(b"PATH")):
        try:
            os.execve(program, argv, environment)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                return _exec_by_shell(program, argv, environment)
            if error.errno == errno.EACCES:
                denied = errno.EACCES
            elif error.errno not in (errno.ENOENT, errno.ENOTDIR):
                return error.errno or errno.EPROTO
    return denied or errno.ENOENT


def _exec_by_shell(program: bytes, argv: list[bytes], environment: dict[bytes, bytes]) -> int:
    try:
        os.execve(b"/bin/sh", [b"/bin/sh", program, *argv[1:]], environment)
    except OSError as error:
        return error.errno or errno.ENOEXEC


def _candidates(name: bytes, path: bytes | None) -> list[bytes]:
    if b"/" in name:
        return [name]
    folders = (path if path is not None else b"/bin:/usr/bin").split(b":")
    return [os.path.join(folder or b".", name) for folder in folders]
