"""The BLAKE3 digest of what an open file holds."""

from __future__ import annotations

import os

_BUFFER, _SMALL = 1 << 20, 1 << 18
"""Bytes read at once: by several threads, by one."""
_MANY_THREADS = 8 << 20
"""Bytes of a file from which several threads hash it: one BLAKE3 cannot be made by several processes."""


class Digester:
    """Reads files, one at a time. `threads`: large ones by a thread for each processor."""

    def __init__(self, threads: bool) -> None:
        from blake3 import blake3

        self._blake3, self._threads = blake3, threads
        self._buffer = bytearray(_BUFFER)

    def content(self, file: int, size: int) -> bytes:
        """The digest of all from the file's present position to its end, which lies about `size` bytes on."""
        several = self._threads and size >= _MANY_THREADS
        view = memoryview(self._buffer)[: _BUFFER if several else _SMALL]
        count = os.readv(file, [view])
        if count == size and count < len(view):
            return self._blake3(view[:count]).digest()
        state = self._blake3(max_threads=self._blake3.AUTO if several else 1)
        while count:
            state.update(view[:count])
            count = os.readv(file, [view])
        return state.digest()

    def text(self, content: bytes) -> bytes:
        """The digest of bytes."""
        return self._blake3(content).digest()
