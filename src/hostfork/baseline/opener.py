"""Opening what its owner has closed to itself, in a retained tree: nothing there is changed for that, not for a moment.

A process in a user namespace in which its own user and group are mapped may read what belongs to both, whatever the
mode says (user_namespaces(7)). The program opens names in folders that it is sent, and sends back the descriptors. A
program of its own since nobody else's rights may change.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys

_LARGEST = 1 << 12
"""Bytes of a message: a name has 255 at most."""


class Opener:
    """Opens for its owner; the program is started when it is first needed."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._pid = 0

    def open(self, name: str, flags: int, folder: int) -> int:
        """As open(2), without regard to the mode of what is this user's own. Raises OSError."""
        try:
            return os.open(name, flags | os.O_NOATIME, dir_fd=folder)
        except PermissionError:
            pass
        try:
            return os.open(name, flags, dir_fd=folder)  # of another owner, whose access times are not ours to keep
        except PermissionError:
            if os.geteuid() == 0 or not sys.executable:
                raise
        return self._opened(name, flags, folder)

    def _opened(self, name: str, flags: int, folder: int) -> int:
        channel = self._socket or self._start()
        socket.send_fds(channel, [b"%d " % flags + os.fsencode(name)], [folder], socket.MSG_NOSIGNAL)
        answer, descriptors, _, _ = socket.recv_fds(channel, _LARGEST, 1)
        if descriptors:
            os.set_inheritable(descriptors[0], False)
            return descriptors[0]
        number = int(answer or errno.EACCES)
        raise OSError(number, os.strerror(number), name)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._pid = spawn(os.path.abspath(__file__), theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        return ours

    def end(self) -> None:
        """End the program, if it was started."""
        if self._socket is not None:
            self._socket.close()
            end(self._pid)
            self._socket = None


def spawn(program: str, channel: int) -> int:
    """Start a program beside us whose standard input is that socket; it ends with us. Raises OSError."""
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", program, str(os.getpid())],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, channel, 0)],
        setpgroup=0,  # Ctrl-C is the owner's, which then ends it
        setsigmask=(),
        setsigdef=(signal.SIGPIPE,),
    )


def end(pid: int) -> None:
    """End a program that was started so, and wait for that."""
    try:
        os.kill(pid, signal.SIGKILL)  # our own child, not waited for yet: the pid is still its own
        os.waitpid(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        pass  # a caller that ignores SIGCHLD or waits for every child of the process


def main(owner: int) -> None:
    """Open what is asked for until the owner closes the socket or dies."""
    from hostfork.helper import syscalls

    if not ends_with(owner):
        return
    uid, gid = os.geteuid(), os.getegid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        for file_name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{file_name}", "w", encoding="ascii") as file:
                file.write(text)
    except OSError:
        pass  # no namespace for this user here: what is closed stays closed, which the owner tells
    channel = socket.socket(fileno=0)
    while True:
        message, folders, _, _ = socket.recv_fds(channel, _LARGEST, 1)
        if not message:
            return
        flags, _, name = message.partition(b" ")
        try:
            opened = os.open(name, int(flags), dir_fd=folders[0])
        except OSError as error:
            channel.send(b"%d" % (error.errno or errno.EIO))
        else:
            socket.send_fds(channel, [b"0"], [opened])
            os.close(opened)
        finally:
            os.close(folders[0])


def ends_with(owner: int) -> bool:
    """Let the kernel end us with our owner; says whether it is still there."""
    from hostfork.helper import syscalls

    syscalls.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    return os.getppid() == owner


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(int(sys.argv[1]))
