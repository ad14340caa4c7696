"""As much of D-Bus as one call to a systemd manager needs, over the manager's own socket (D-Bus Specification).

No bus is in between, so there is no Hello, and signals come without being asked for.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterable

from hostfork.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Order = Literal["little", "big"]

METHOD_CALL, ERROR, SIGNAL = 1, 3, 4
_FIELDS = {"path": (1, "o"), "interface": (2, "s"), "member": (3, "s"), "signature": (8, "g")}
_MEMBER = 3
_LONGEST = 1 << 20
"""More than any message of a manager."""

Put = Callable[[bytearray], None]
"""Writes one value behind those that are there; alignment counts from the beginning."""


@frozen
class Message:
    """One message; its body is read in order."""

    kind: int
    member: str
    body: Reader


class Connection:
    """To a manager of this user's. `patience`: seconds for all that is done with it. Errors are OSError.

    `late` is called once, when nothing has come for so long that a person would ask why.
    """

    def __init__(self, path: str, patience: float, soon: float) -> None:
        """Connect; what has not come after `soon` seconds is late.

        Raises OSError, PermissionError with a clause where the other side is not this user's.
        """
        self._deadline = time.monotonic() + patience
        self._soon = time.monotonic() + soon
        self.late: Callable[[], None] | None = None
        self.peer = 0
        self._buffer = b""
        self._accepted = False
        first = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        # Never 0, 1 or 2: a caller may have closed them, and what is printed must not go here.
        self._socket = _socket.socket(fileno=fcntl.fcntl(first.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
        first.close()
        try:
            self._socket.settimeout(patience)
            self._socket.connect(path)
            self._check_peer()
        except OSError:
            self.close()
            raise

    def call(self, body: Iterable[Put], **fields: str) -> None:
        """Say who this is and make a method call, without waiting for an answer to either."""
        hello = b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\nBEGIN\r\n"
        content = _joined(body)
        message = bytearray((ord("l"), METHOD_CALL, 0, 1))
        for put in (number(len(content)), number(1), array(8, (_field(*field) for field in fields.items()))):
            put(message)
        _align(message, 8)
        self._socket.sendall(hello + message + content, _socket.MSG_NOSIGNAL)

    def receive(self) -> Message:
        """The next message, whatever it is about."""
        if not self._accepted:
            self._accepted = True
            if not self._line().startswith(b"OK "):
                raise PermissionError(None, "it does not accept this user")
        start = self._take(16)
        head = Reader(start, "big" if start[:1] == b"B" else "little", 4)
        content, _serial, fields = head.number(), head.number(), head.number()
        if max(content, fields) > _LONGEST:
            raise ConnectionResetError(None, "its answer is no message")
        reader = Reader(self._take(fields + -fields % 8), head.order)
        member = ""
        while reader.place < fields:
            reader.align(8)
            code, value = reader.byte(), reader.variant()
            if code == _MEMBER:
                member = value
        return Message(start[1], member, Reader(self._take(content), head.order))

    def close(self) -> None:
        """What was asked for goes on."""
        self._socket.close()

    def _check_peer(self) -> None:
        credentials = self._socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        pid, uid = (int.from_bytes(credentials[at : at + 4], sys.byteorder) for at in (0, 4))
        if pid == 0:  # our pids are others' there
            raise PermissionError(None, "it is in another PID namespace")
        if uid != os.geteuid():
            raise PermissionError(None, f"it is that of user {uid}")
        self.peer = pid

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._more()
        line, _end, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _more(self) -> None:
        try:
            more = self._receive(self._deadline if self.late is None else min(self._soon, self._deadline))
        except TimeoutError:
            if self.late is None or time.monotonic() >= self._deadline:
                raise
            late, self.late = self.late, None
            late()
            return
        if not more:
            raise ConnectionResetError(None, "it closed the connection")
        self._buffer += more

    def _receive(self, until: float) -> bytes:
        self._socket.settimeout(max(0.001, until - time.monotonic()))
        return self._socket.recv(65536)


class Reader:
    """Reads values from the beginning of a message's part on. What is cut short reads as zeroes and short strings."""

    def __init__(self, content: bytes, order: Order, place: int = 0) -> None:
        self.order = order
        self.place = place
        self._content = content

    def align(self, size: int) -> None:
        """Skip the padding in front of a value that is aligned so."""
        self.place += -self.place % size

    def byte(self) -> int:
        """A byte."""
        return int.from_bytes(self._next(1), self.order)

    def number(self) -> int:
        """A uint32."""
        self.align(4)
        return int.from_bytes(self._next(4), self.order)

    def string(self) -> str:
        """A string or an object path."""
        return self._text(self.number())

    def variant(self) -> str:
        """A string, path, signature or number, as text; a header holds no others."""
        kind = self._text(self.byte())
        if kind == "u":
            return str(self.number())
        return self._text(self.byte() if kind == "g" else self.number())

    def _text(self, size: int) -> str:
        return self._next(size + 1)[:size].decode("utf-8", "replace")

    def _next(self, size: int) -> bytes:
        self.place += size
        return self._content[self.place - size : self.place]


def number(value: int) -> Put:
    """A uint32, or a boolean."""

    def put(data: bytearray) -> None:
        _align(data, 4)
        data += value.to_bytes(4, "little")

    return put


def string(text: str) -> Put:
    """A string or an object path."""
    content = text.encode()

    def put(data: bytearray) -> None:
        number(len(content))(data)
        data += content + b"\0"

    return put


def array(alignment: int, items: Iterable[Put]) -> Put:
    """An array; its length leaves out the padding before its first item."""

    def put(data: bytearray) -> None:
        number(0)(data)
        length = len(data)
        _align(data, alignment)
        start = len(data)
        for item in items:
            item(data)
        data[length - 4 : length] = (len(data) - start).to_bytes(4, "little")

    return put


def named(name: str, signature: str, value: Put) -> Put:
    """A struct of a name and a variant."""

    def put(data: bytearray) -> None:
        _align(data, 8)
        string(name)(data)
        _signature(signature)(data)
        value(data)

    return put


def _field(name: str, text: str) -> Put:
    code, kind = _FIELDS[name]

    def put(data: bytearray) -> None:
        _align(data, 8)
        data.append(code)
        _signature(kind)(data)
        (_signature if kind == "g" else string)(text)(data)

    return put


def _signature(text: str) -> Put:
    def put(data: bytearray) -> None:
        data += bytes((len(text),)) + text.encode() + b"\0"

    return put


def _joined(values: Iterable[Put]) -> bytearray:
    data = bytearray()
    for put in values:
        put(data)
    return data


def _align(data: bytearray, size: int) -> None:
    data += bytes(-len(data) % size)
