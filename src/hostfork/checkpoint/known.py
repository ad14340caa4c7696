"""What is known about files without reading them again: a digest for each file, told by its identity.

    STATE/forks/NAME/seen    rows of inode, size, mtime and ctime in nanoseconds, digest

Every change of a file's content moves its ctime, but for one: what a program writes through a mapping of a page that
is dirty already. So a file counts only if its ctime is older than the moment before everything dirty was written out;
after that the first write to each page moves it. It is a cache: damaged or lost, everything is read once more.
"""

from __future__ import annotations

import contextlib
import os
import struct

TICK = 20_000_000
"""Nanoseconds: two of the timer's ticks at their coarsest. What was changed later may be changed again unseen."""
_MAGIC = b"hostfork seen 1\n"
_ROW = struct.Struct("<QQqq32s")

Identity = tuple[int, int, int, int]


def identity(found: os.stat_result) -> Identity:
    """Which file it is, in one state of its content."""
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Known:
    """Digests by identity. `before`: the moment, in nanoseconds, since which nothing counts."""

    def __init__(self, before: int, digests: dict[Identity, bytes] | None = None) -> None:
        self.before = before - TICK
        self._old = digests or {}
        self.found: dict[Identity, bytes] = {}
        """Those that this look met; the others are of no use any more."""

    def digest(self, found: os.stat_result) -> bytes | None:
        """The digest of a file, if it is known."""
        one = identity(found)
        digest = self.found.get(one) or self._old.get(one)
        if digest is not None:
            self.found[one] = digest
        return digest

    def learn(self, found: os.stat_result, digest: bytes) -> None:
        """What was read of a file; forgotten again where it is too young."""
        if found.st_ctime_ns < self.before:
            self.found[identity(found)] = digest


def read(path: str) -> dict[Identity, bytes]:
    """What `write` wrote; nothing where that cannot be read."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return {}
    if not content.startswith(_MAGIC) or (len(content) - len(_MAGIC)) % _ROW.size:
        return {}
    return {row[:4]: row[4] for row in _ROW.iter_unpack(memoryview(content)[len(_MAGIC) :])}


def write(path: str, known: dict[Identity, bytes]) -> None:
    """For the next checkpoint. A full disk is no reason to fail."""
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "wb") as file:
            file.write(_MAGIC)
            file.writelines(_ROW.pack(*one, digest) for one, digest in known.items())
        os.rename(f"{path}.new", path)
