"""How much the filesystem of a pool holds, asked in microseconds: that it did not grow says that no fork there did."""

from __future__ import annotations

import os

from hostfork.storage.filesystem import filesystem_of

_AT_ONCE = ("ext2", "ext3", "ext4", "xfs", "tmpfs")
"""Those whose statvfs(2) counts at once what was written to memory alone (delayed allocation)."""
_BTRFS = "/sys/fs/btrfs/{}/allocation"


class Level:
    """The level of one pool's filesystem, in bytes; only differences mean something. Not for threads."""

    def __init__(self, pool: str) -> None:
        self.kind = filesystem_of(pool).kind
        self._pool = os.open(pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._files = _counters(self._pool) if self.kind == "btrfs" else []

    def now(self) -> int | None:
        """What is used, what waits in memory for its place included; None where this filesystem does not tell."""
        if self.kind in _AT_ONCE:
            found = os.fstatvfs(self._pool)
            return (found.f_blocks - found.f_bfree) * found.f_frsize
        return sum(int(os.pread(file, 30, 0)) for file in self._files) if self._files else None

    def close(self) -> None:
        """Give up its descriptors."""
        for descriptor in (self._pool, *self._files):
            os.close(descriptor)
        self._files = []


def _counters(pool: int) -> list[int]:
    """Btrfs tells statvfs(2) of data once it is written out, up to half a minute later; its own counters know before.

    Those of metadata hold what is set aside for the worst case too, which comes and goes: that one is left out.
    """
    from hostfork.storage.ioctls import filesystem_id

    opened: list[int] = []
    try:
        number = filesystem_id(pool).hex()
        uuid = "-".join((number[:8], number[8:12], number[12:16], number[16:20], number[20:]))
        folder = _BTRFS.format(uuid)
        for group in ("data", "metadata", "mixed"):
            for name in ("bytes_used", "bytes_reserved", "bytes_may_use"):
                path = f"{folder}/{group}/{name}"
                if (group, name) != ("metadata", "bytes_may_use") and os.path.exists(path):
                    opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:  # /sys is not there, or another one's
        for descriptor in opened:
            os.close(descriptor)
        return []
    return opened
