"""Starts the helper process: the first thing that a run does, so this imports next to nothing.

`signal` and `socket` would bring `enum` along, 3 ms in which the helper could be getting ready on another processor.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed knows only `signal`
import _socket
import fcntl
import os
import sys

_LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")


def helper_path() -> str:
    """The executable file that a security profile names."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.join(package, "helper", "hostfork-helper")


def spawn() -> tuple[int, int]:
    """Start the helper with an explicit environment; its pid and our end of the channel. Raises OSError.

    All signals are blocked in it, so that a Ctrl-C cannot end it half way.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    # Never 0, 1 or 2: a caller may have closed them, and the command is to find them closed.
    descriptor = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    theirs.close()
    channel = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    ours.close()
    path = helper_path()
    try:
        pid = os.posix_spawn(
            path,
            [path, sys.executable, str(sys.flags.utf8_mode), str(descriptor)],
            {name: os.environ[name] for name in _LOCALE if name in os.environ},
            # Onto itself: that takes the close-on-exec flag away in the child alone.
            file_actions=[(os.POSIX_SPAWN_DUP2, descriptor, descriptor)],
            setsigmask=_signal.valid_signals(),
        )
    except OSError:
        os.close(channel)
        raise
    finally:
        os.close(descriptor)
    return pid, channel
