"""Which blocks of a file no other file has: by the kernel's map of its extents (ioctl_fiemap(2), FS_IOC_FIEMAP)."""

from __future__ import annotations

import fcntl
import struct

from hostfork.helper.shapes import NamedTuple

_FIEMAP = 0xC020660B
_HEAD = struct.Struct("=QQLLLL")
_EXTENT = struct.Struct("=QQQQQLLLL")
_COUNT = 512
_LAST, _ENCODED, _SHARED = 0x1, 0x8, 0x2000
_END = 2**64 - 1


class Extents(NamedTuple):
    """Bytes of a file's extents, as they count in the file. `exact`: on the disk they take just as much."""

    exclusive: int
    shared: int
    exact: bool


def extents(opened: int) -> Extents:
    """Look at an open regular file. Nothing is written out for it. Raises OSError: not every filesystem can tell.

    Shared is what the filesystem knows to have a second reference, be it in the same file.
    """
    exclusive = shared = start = 0
    exact = True
    buffer = bytearray(_HEAD.size + _COUNT * _EXTENT.size)
    while True:
        _HEAD.pack_into(buffer, 0, start, _END - start, 0, 0, _COUNT, 0)
        fcntl.ioctl(opened, _FIEMAP, buffer)
        found = _HEAD.unpack_from(buffer)[3]
        flags = _LAST
        for index in range(found):
            logical, _, length, _, _, flags, *_ = _EXTENT.unpack_from(buffer, _HEAD.size + index * _EXTENT.size)
            exact = exact and not flags & _ENCODED  # compressed: it takes less
            if flags & _SHARED:
                shared += length
            else:
                exclusive += length
            start = logical + length
        if flags & _LAST:
            return Extents(exclusive, shared, exact)
