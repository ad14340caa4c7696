"""The keeper without a command: holds the view of a kept fork and the fork's lock, and lets commands in.

Each command that enters has a keeper of its own, which comes into the view by its namespaces. They are opened while
this process may still be looked into, and handed out to the same user alone. The lock is a flock of the fork's folder:
it lasts until nobody has that descriptor any more, so that an upper folder is never mounted a second time beside a
command that still uses it, whoever was killed before. With the last client this process ends, and with it the view.
"""

from __future__ import annotations

import os
import select
import time

from hostfork.helper.keeper import ProcessTree, start_time_of
from hostfork.helper.lean import dumps
from hostfork.helper.protocol import Channel, Finish, Held, Leave, Left


def detach() -> None:
    """Go on as an orphan in a session of its own: who started the holder need not be there when it ends.

    Nothing of the caller's is held: a pipe would not end before the last command did.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)


def hold(first: Channel, listener: int, handed: tuple[int, ...], tree: ProcessTree | None, journal: int) -> None:
    """Let clients in until the last has left; if it cannot say so, end what is left of the fork and write it down."""
    held = Held(os.getpid(), start_time_of(os.getpid()), os.stat("/proc/self/ns/mnt").st_ino)
    if _Holder(held, handed, listener).serve(first):
        return
    if tree is not None:
        tree.end()
    os.write(journal, dumps({"at": time.time(), "event": "left-without-owner"}).encode() + b"\n")


class _Holder:
    def __init__(self, held: Held, handed: tuple[int, ...], listener: int) -> None:
        import _socket

        self._held = held
        self._handed = handed
        self._listener = _socket.socket(fileno=listener)
        self._clients: dict[int, Channel] = {}
        self._waiting = select.poll()
        self._waiting.register(listener, select.POLLIN)

    def serve(self, first: Channel) -> bool:
        """Until nobody is left; whether the last one took leave and put away what there was."""
        self._admit(first)
        while self._clients:
            ready = [descriptor for descriptor, _events in self._waiting.poll()]
            if self._listener.fileno() in ready:
                ready.remove(self._listener.fileno())
                self._accept()
            for descriptor in ready:
                if self._hear(self._clients[descriptor]):
                    return True
        return False

    def _accept(self) -> None:
        import _socket

        # typeshed leaves out what `socket.socket.accept` calls; the helper has no `socket`.
        descriptor, _address = self._listener._accept()  # type: ignore[attr-defined]
        peer = _socket.socket(fileno=descriptor)
        credentials = peer.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        uid = int.from_bytes(credentials[4:8], "little")
        peer.detach()
        channel = Channel(descriptor)
        if uid == os.geteuid():
            self._admit(channel)
        else:
            channel.close()

    def _admit(self, client: Channel) -> None:
        try:
            client.send(self._held, self._handed)
        except OSError:
            client.close()  # it went away again
            return
        self._clients[client.fileno()] = client
        self._waiting.register(client.fileno(), select.POLLIN)

    def _hear(self, client: Channel) -> bool:
        """What a client says; True where all is done."""
        try:
            there = client.read()
            message = client.next()
            while message is not None:
                if isinstance(message, Finish):
                    return True
                if isinstance(message, Leave):
                    there = self._take_leave(client)
                message = client.next()
        except (OSError, ValueError):
            there = False
        if not there:
            self._waiting.unregister(client.fileno())
            del self._clients[client.fileno()]
            client.close()
        return False

    def _take_leave(self, client: Channel) -> bool:
        """Whether the client stays: the last one has something to put away. Nobody comes in meanwhile."""
        last = len(self._clients) == 1
        if last:
            self._waiting.unregister(self._listener.fileno())
            self._listener.close()
        client.send(Left(last))
        return last
