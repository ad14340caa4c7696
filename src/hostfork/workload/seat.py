"""A place in the running view of a kept fork: the connection to its holder, and what the holder hands out."""

from __future__ import annotations

import os
import select
from contextlib import suppress

from hostfork.helper.protocol import Channel, Finish, Held, Leave, Left

_SOCKET = "enter"
_PATIENCE = 10.0
"""Seconds that a holder may take to answer."""


class Seat:
    """One client's place. The view and the fork's lock last while anybody has the connection, keepers too."""

    def __init__(self, held: Held, channel: Channel, handed: tuple[int, ...]) -> None:
        self.held = held
        self.lock, *namespaces = handed
        """The fork's locked folder: the same open file for all that are in the fork."""
        self._namespaces = tuple(namespaces)
        self._channel = channel

    def entry(self) -> tuple[int, ...]:
        """The descriptors that a helper needs to enter, and those that its keeper holds on to."""
        return (*self._namespaces, self.lock, self._channel.fileno())

    def leave(self) -> bool | None:
        """Say that nothing is left of this client; whether it was the last one, None where the holder is dead.

        The last one stays until `finish`, and nobody comes in meanwhile.
        """
        try:
            self._channel.send(Leave())
            message = self._channel.receive()
        except OSError:
            return None
        return message.last if isinstance(message, Left) else None

    def finish(self) -> None:
        """Let the holder end, and with it the view; returns when it did."""
        with suppress(OSError):
            self._channel.send(Finish())
            while self._channel.read():
                pass

    def close(self) -> None:
        """Give up what is open, but for the lock's descriptor, whose taker closes it."""
        self._channel.close()
        for descriptor in self._namespaces:
            os.close(descriptor)
        self._namespaces = ()


def listen(folder: int) -> int:
    """The socket of a fork's holder, in the fork's open, locked folder; what an older one left there goes."""
    import _socket

    with suppress(FileNotFoundError):
        os.unlink(_SOCKET, dir_fd=folder)
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        # A name below the descriptor: the folder's own path may be longer than an address can be (unix(7)).
        listener.bind(f"/proc/self/fd/{folder}/{_SOCKET}")
        os.chmod(_SOCKET, 0o700, dir_fd=folder)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener.detach()


def connect(folder: int) -> Seat | None:
    """A place in the view that the holder of the fork in this open folder has. None where there is no holder.

    Raises TimeoutError where it does not answer.
    """
    import _socket

    socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        socket.connect(f"/proc/self/fd/{folder}/{_SOCKET}")
    except (FileNotFoundError, ConnectionRefusedError):
        socket.close()
        return None
    channel = Channel(socket.detach())
    waiting = select.poll()
    waiting.register(channel.fileno(), select.POLLIN)
    try:
        if not waiting.poll(_PATIENCE * 1000):
            raise TimeoutError
        held = channel.receive()
    except BaseException:
        channel.close()
        raise
    if not isinstance(held, Held):
        channel.close()  # it was about to go
        return None
    return Seat(held, channel, tuple(channel.descriptors))
