"""File flags (ioctl_iflags(2), chattr(1)): which of them a copy keeps, and how they are read and set.

The module imports the standard library only: worker programs load it too.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct

_GET, _SET = 0x80086601, 0x40086602
_INT = struct.Struct("I4x")
"""The numbers say long, the kernel reads and writes an int."""

NOCOW = 0x00800000
"""FS_NOCOW_FL: Btrfs overwrites such a file's blocks in place and keeps no checksums of them."""
LOCKED = 0x10 | 0x20
"""FS_IMMUTABLE_FL and FS_APPEND_FL: root's, and in the way of every change and of removal, so a copy has neither."""
EARLY = 0x4 | 0x400 | NOCOW
"""FS_COMPR_FL, FS_NOCOMP_FL and FS_NOCOW_FL are for what is written later: they are set while a file is empty."""
_KEPT = EARLY | 0x8 | 0x40 | 0x80 | 0x10000
_WORDS = {
    0x4: "compressed",
    0x8: "synchronous",
    0x10: "immutable",
    0x20: "append-only",
    0x40: "no-dump",
    0x80: "no-atime",
    0x400: "not-compressed",
    0x800: "encrypted",
    0x10000: "synchronous-folder",
    0x100000: "verity",
    NOCOW: "no-copy-on-write",
    0x40000000: "case-folded",
}
WATCHED = sum(_WORDS)
"""The flags that a copy is to have, or of which it is said that it has not. The others tell how a file is laid out."""


def read(opened: int) -> int:
    """The flags of an open file or folder; 0 where its filesystem has none."""
    try:
        value: int = _INT.unpack(fcntl.ioctl(opened, _GET, bytes(_INT.size)))[0]
    except OSError:
        return 0
    return value


def write(opened: int, value: int) -> None:
    """Set the flags. Raises OSError where this filesystem or this user cannot."""
    fcntl.ioctl(opened, _SET, _INT.pack(value))


def give(opened: int, wanted: int) -> int:
    """Give a copy these flags of its original, as far as they are kept; those that it does not have then."""
    for flag in _WORDS:
        if flag & wanted & _KEPT & ~read(opened):
            try:
                write(opened, read(opened) | flag)
            except OSError:
                continue  # another filesystem than the original's, most likely
    return wanted & ~read(opened)


def clear(opened: int) -> None:
    """Take from a new, empty folder the flags that it inherited, so that what is made in it inherits none."""
    found = read(opened)
    if found & _KEPT:
        with contextlib.suppress(OSError):  # not this user's to take away
            write(opened, found & ~_KEPT)


def words(value: int) -> tuple[str, ...]:
    """Flags as chattr(1) has them, in words."""
    return tuple(word for flag, word in _WORDS.items() if flag & value)
