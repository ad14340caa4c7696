"""Taking a file's content by sharing its blocks (ioctl_ficlonerange(2)): all of the file at one instant, or an error.

The module imports the standard library and `entry` only: worker programs load it too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from hostfork.storage.entry import Copier

FICLONE = 0x40049409
_FLAGS_GET, _FLAGS_SET = 0x80086601, 0x40086602
_NOCOW = 0x00800000
"""FS_NOCOW_FL (ioctl_iflags(2)): Btrfs overwrites such a file's blocks in place and keeps no checksums of them."""
_LONG = struct.Struct("l")


class Cloner(Copier):
    """Copies entries as `Copier` does, but shares the blocks of files. No byte is ever read."""

    kind = "clone"

    def _content(self, file: int, out: int, found: os.stat_result) -> int:
        if found.st_size:
            clone(file, out)
        return 0


def clone(file: int, out: int) -> None:
    """Make the open empty file `out` share all blocks of `file`. Raises OSError where the kernel cannot."""
    try:
        fcntl.ioctl(out, FICLONE, file)
    except OSError as error:
        # Btrfs shares no blocks between files with and without checksums; an empty file can still become the other.
        if error.errno != errno.EINVAL or not _made_alike(file, out):
            raise
        fcntl.ioctl(out, FICLONE, file)


def _made_alike(file: int, out: int) -> bool:
    """Give `out` the NOCOW flag of `file`; False where that is no difference."""
    try:
        wanted, there = _flags(file), _flags(out)
        if not (wanted ^ there) & _NOCOW:
            return False
        fcntl.ioctl(out, _FLAGS_SET, _LONG.pack(there ^ _NOCOW))
    except OSError:
        return False  # no flags here: the first error tells more
    return True


def _flags(opened: int) -> int:
    value: int = _LONG.unpack(fcntl.ioctl(opened, _FLAGS_GET, bytes(_LONG.size)))[0]
    return value
