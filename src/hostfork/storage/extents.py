"""Which blocks of a file no other file has: by the kernel's map of its extents (ioctl_fiemap(2), FS_IOC_FIEMAP)."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator

from hostfork.helper.shapes import NamedTuple

_FIEMAP = 0xC020660B
_HEAD = struct.Struct("=QQLLLL")
_EXTENT = struct.Struct("=QQQQQLLLL")
_COUNT = 512
_LAST, _ENCODED, _SHARED = 0x1, 0x8, 0x2000
_SYNC = 0x1
_END = 2**64 - 1


class Extents(NamedTuple):
    """Bytes of a file's extents, as they count in the file. `exact`: on the disk they take just as much.

    `again`: it shares blocks with what was looked at before.
    """

    exclusive: int
    shared: int
    exact: bool
    again: bool


class Extent(NamedTuple):
    """One range of a file and where it begins on the disk. `exact`: there it takes just as much.

    `shared` is what the filesystem knows to have a second reference, be it in the same file.
    """

    logical: int
    physical: int
    length: int
    shared: bool
    exact: bool


def extents(opened: int, seen: set[tuple[int, int]] | None = None) -> Extents:
    """Look at an open regular file. Nothing is written out for it. Raises OSError: not every filesystem can tell.

    `seen`: shared extents that were counted with other files, by place on the disk and in the file; added to.
    """
    exclusive = shared = 0
    exact, again = True, False
    for one in mapped(opened):
        exact = exact and one.exact
        if one.shared:
            place = one.physical, one.logical
            counted = seen is not None and place in seen
            again = again or counted
            shared += 0 if counted else one.length
            if seen is not None:
                seen.add(place)
        else:
            exclusive += one.length
    return Extents(exclusive, shared, exact, again)


def mapped(opened: int, sync: bool = False) -> Iterator[Extent]:
    """The extents of an open regular file; `sync`: its content is written out first. Raises OSError."""
    buffer = bytearray(_HEAD.size + _COUNT * _EXTENT.size)
    start, flags = 0, 0
    while not flags & _LAST:
        _HEAD.pack_into(buffer, 0, start, _END - start, _SYNC if sync else 0, 0, _COUNT, 0)
        fcntl.ioctl(opened, _FIEMAP, buffer)
        flags = _LAST
        for index in range(_HEAD.unpack_from(buffer)[3]):
            logical, physical, length, _, _, flags, *_ = _EXTENT.unpack_from(buffer, _HEAD.size + index * _EXTENT.size)
            start = logical + length
            # compressed: it takes less
            yield Extent(logical, physical, length, bool(flags & _SHARED), not flags & _ENCODED)
