"""Reading files to their digests, here or by several processes: one interpreter runs one thread at a time.

A process gets open folders and names, and answers with what it found. Started from the file `hasher.py`.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
import socket
import stat
import struct
from collections import deque
from collections.abc import Callable

from hostfork.baseline import opener
from hostfork.baseline.opener import Opener
from hostfork.baseline.sums import NOTHING, Sum, summed
from hostfork.collect.digest import Digester
from hostfork.collect.walk import Place, attributes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Taken = Callable[[bytes, Sum | int], None]
    """Told of each file by its path: its sum, or the kernel's number where it cannot be read."""

FOLDERS = 32
"""Folders in one message at most; each is a descriptor until it is sent."""
_BATCH = 128
"""Files in one message, about."""
_WINDOW = 2
"""Messages that one process has at a time: the socket never fills, so that nobody waits for each other."""
_LARGEST = 1 << 20
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Hasher:
    """Reads files. `threads`: large ones by a thread for each processor."""

    def __init__(self, threads: bool) -> None:
        self._digester = Digester(threads)
        self.text = self._digester.text
        self.opener = Opener()

    def file(self, folder: int, name: str) -> Sum | int:
        """The sum of a regular file, or the kernel's number where it cannot be read."""
        try:
            file = self.opener.open(name, _FILE, folder)
        except OSError as error:
            return error.errno or errno.EIO
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                return errno.ESTALE
            return summed(found, self._digester.content(file, found.st_size), self.attributes(file))
        except OSError as error:
            return error.errno or errno.EIO
        finally:
            os.close(file)

    def attributes(self, opened: int) -> bytes:
        """The digest of the extended attributes of an open file or folder."""
        try:
            if not os.listxattr(opened):
                return NOTHING
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            return NOTHING
        found = attributes(Place(opened, ""))
        if not found:
            return NOTHING
        parts = [b"%s\0%d\0%s" % (os.fsencode(name), len(found[name]), found[name]) for name in sorted(found)]
        return self.text(b"".join(parts))


class Alone:
    """Files read by this process, one after the other."""

    def __init__(self, taken: Taken) -> None:
        self.hasher, self._taken = Hasher(threads=False), taken

    def give(self, folder: int, prefix: bytes, names: list[str]) -> None:
        """Read these files of an open folder. `prefix`: its path, with a slash behind it."""
        for name in names:
            self._taken(prefix + os.fsencode(name), self.hasher.file(folder, name))

    def finish(self) -> None:
        """All have been read when this returns."""

    def end(self) -> None:
        """Give everything up."""
        self.hasher.opener.end()


class _Process:
    def __init__(self) -> None:
        self.batches: deque[list[tuple[bytes, list[str]]]] = deque()
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hasher.py")
            self.pid = opener.spawn(program, theirs.fileno())
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()

    def end(self) -> None:
        self.socket.close()
        opener.end(self.pid)


class Several:
    """Files read by several processes, which are started for more than one message; few files are read here.

    The same calls as `Alone`; they raise OSError where a process dies.
    """

    def __init__(self, taken: Taken, number: int) -> None:
        self.hasher, self._taken, self._number = Hasher(threads=True), taken, number
        self._parts: list[tuple[int, bytes, list[str]]] = []
        self._files = 0
        self._processes: list[_Process] = []

    def give(self, folder: int, prefix: bytes, names: list[str]) -> None:
        """Have these files of an open folder read, sooner or later."""
        for start in range(0, len(names), _BATCH):
            part = names[start : start + _BATCH]
            self._parts.append((os.dup(folder), prefix, part))
            self._files += len(part)
            if self._files >= _BATCH or len(self._parts) >= FOLDERS:
                self._send()

    def finish(self) -> None:
        """All have been read when this returns."""
        if self._parts and not self._processes:
            for folder, prefix, names in self._parts:
                for name in names:
                    self._taken(prefix + os.fsencode(name), self.hasher.file(folder, name))
        elif self._parts:
            self._send()
        while any(process.batches for process in self._processes):
            self._receive()

    def end(self) -> None:
        """End the processes, whatever they do."""
        self.hasher.opener.end()
        for folder, _, _ in self._parts:
            os.close(folder)
        self._parts.clear()
        while self._processes:
            self._processes.pop().end()

    def _send(self) -> None:
        while len(self._processes) < self._number:
            self._processes.append(_Process())
        while True:
            process = min(self._processes, key=lambda one: len(one.batches))
            if len(process.batches) < _WINDOW:
                break
            self._receive()
        folders = [folder for folder, _, _ in self._parts]
        message = marshal.dumps([names for _, _, names in self._parts])
        socket.send_fds(process.socket, [message], folders, socket.MSG_NOSIGNAL)
        process.batches.append([(prefix, names) for _, prefix, names in self._parts])
        self._parts.clear()
        self._files = 0
        for folder in folders:
            os.close(folder)

    def _receive(self) -> None:
        """Wait for an answer, and take all that are there."""
        waited = {process.socket.fileno(): process for process in self._processes if process.batches}
        poll = select.poll()  # select(2) takes no descriptor above 1023
        for descriptor in waited:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll():
            process = waited[descriptor]
            answer = process.socket.recv(_LARGEST)
            if not answer:
                raise OSError(errno.ECHILD, "a process that reads files died")
            found: list[list[Any]] = marshal.loads(answer)
            for (prefix, names), rows in zip(process.batches.popleft(), found, strict=True):
                for name, row in zip(names, rows, strict=True):
                    self._taken(prefix + os.fsencode(name), row if isinstance(row, int) else Sum(*row))


def serve(channel: socket.socket) -> None:
    """Read what is asked for until the owner closes the socket."""
    hasher, size = Hasher(threads=True), struct.calcsize("i")
    while True:
        message, control, _, _ = channel.recvmsg(_LARGEST, socket.CMSG_SPACE(FOLDERS * size))
        if not message:
            return
        folders = struct.unpack(f"{len(control[0][2]) // size}i", control[0][2])
        answer: list[list[Any]] = []
        for folder, names in zip(folders, marshal.loads(message), strict=True):
            rows = [hasher.file(folder, name) for name in names]
            answer.append([row if isinstance(row, int) else tuple(row) for row in rows])
            os.close(folder)
        try:
            channel.send(marshal.dumps(answer))
        except (BrokenPipeError, ConnectionResetError):
            return
