"""The ioctls of Btrfs (btrfs-ioctl(2), linux/btrfs.h): descriptors and names in, small frozen values out.

An ordinary user may make, snapshot, ask and flag what is theirs (4.18), SNAP_DESTROY only with the mount option
`user_subvol_rm_allowed`, and never search a tree. All raise OSError; where it is not Btrfs that is ENOTTY.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator

from hostfork.helper.shapes import NamedTuple

ROOT_INODE = 256
"""The inode number of every subvolume's root, and of nothing else on Btrfs (BTRFS_FIRST_FREE_OBJECTID)."""
STUB_INODE = 2
"""The inode number of the empty folder that stands for a nested subvolume in a snapshot."""
INODE_ITEM, INODE_REF, INODE_EXTREF = 1, 12, 13
_LAST_INODE = 2**64 - 257
_LAST = 2**64 - 1

_READ_ONLY = 1 << 1
_NAMES = struct.Struct("<qQQ32x4040s")
_INFO = struct.Struct("<Q256sQQQQ16s16s16sQQQQ64x64x")
_ROOTREFS = 255
_LOOKUP = struct.Struct("<QQ256s3824s")
_SEARCH = struct.Struct("<7Q4I4QQ")
_ITEM = struct.Struct("<QQQII")
_LARGEST = (1 << 16) + 32
"""No item is larger than a node of a tree, which has 64 KiB at most; with its key."""

# The numbers hold the direction, the size of the argument and Btrfs's magic (asm-generic/ioctl.h, as on x86 and ARM).
_SYNC = 0x9408
_TREE_SEARCH = 0xC0709411
_SNAP_CREATE = 0x50009417
_SUBVOL_CREATE = 0x50009418
_GET_FLAGS = 0x80089419
_SET_FLAGS = 0x4008941A
_FS_INFO = 0x8400941F
_GET_INFO = 0x81F8943C
_GET_ROOTREF = 0xD000943D
_LOOKUP_USER = 0xD000943E
_SNAP_DESTROY = 0x5000943F


class Subvolume(NamedTuple):
    """What the kernel says about a subvolume, with numbers of transactions.

    `made`: the one in which it was made. `changed`: that of the last change of anything in it, at once, but for what is
    dirty in memory and what a replay of the log changed (ctransid). `written`: the last committed one that wrote to its
    tree, be it only to take a snapshot (generation).
    """

    number: int
    made: int
    uuid: bytes
    parent_uuid: bytes
    changed: int
    written: int


class Reference(NamedTuple):
    """A subvolume directly inside another one: its number, and the inode of the folder that holds its name."""

    number: int
    folder: int


class Item(NamedTuple):
    """One item of a tree: its key and where its content lies in `buffer`."""

    inode: int
    kind: int
    offset: int
    buffer: bytearray
    start: int
    end: int


def create(name: str, folder: int) -> None:
    """Make an empty subvolume `name` in the open folder."""
    _named(_SUBVOL_CREATE, folder, name)


def snapshot(source: int, name: str, folder: int, read_only: bool = False) -> None:
    """Make a snapshot of the subvolume whose root is open as `source`. Its dirty data is written out first."""
    _named(_SNAP_CREATE, folder, name, source, _READ_ONLY if read_only else 0)


def destroy(name: str, folder: int) -> None:
    """Take a subvolume that holds no other one off the list; the kernel gives its space back later."""
    _named(_SNAP_DESTROY, folder, name)


def is_read_only(root: int) -> bool:
    """Whether the subvolume is read-only."""
    flags = bytearray(8)
    fcntl.ioctl(root, _GET_FLAGS, flags)
    return bool(int.from_bytes(flags, "little") & _READ_ONLY)


def set_read_only(root: int, wanted: bool) -> None:
    """Make the subvolume whose root is open read-only or writable; its owner may."""
    fcntl.ioctl(root, _SET_FLAGS, (_READ_ONLY if wanted else 0).to_bytes(8, "little"))


def subvolume(opened: int) -> Subvolume:
    """The subvolume that an open file or folder belongs to."""
    answer = bytearray(_INFO.size)
    fcntl.ioctl(opened, _GET_INFO, answer)
    number, _, _, _, written, _, uuid, parent, _, changed, made, _, _ = _INFO.unpack(answer)
    return Subvolume(number, made, uuid, parent, changed, written)


def nested(opened: int) -> tuple[Reference, ...]:
    """The subvolumes directly inside the one that an open file or folder belongs to."""
    import errno

    found: list[Reference] = []
    least = 0
    while True:
        answer = bytearray(least.to_bytes(8, "little") + bytes(4088))
        more = False
        try:
            fcntl.ioctl(opened, _GET_ROOTREF, answer)
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            more = True  # the buffer is full, and filled
        count = answer[8 + 16 * _ROOTREFS]
        found += (Reference(*struct.unpack_from("<QQ", answer, 8 + 16 * index)) for index in range(count))
        if not more:
            return tuple(found)
        least = found[-1].number + 1


def place_of(reference: Reference, root: int) -> str:
    """Where a nested subvolume lies, relative to the open root of the one that holds it.

    Raises PermissionError where this user may not look at a folder on the way.
    """
    answer = bytearray(_LOOKUP.pack(reference.folder, reference.number, b"", b""))
    fcntl.ioctl(root, _LOOKUP_USER, answer)
    _, _, name, path = _LOOKUP.unpack(answer)
    return os.fsdecode(path.partition(b"\0")[0] + name.partition(b"\0")[0])


def filesystem_id(opened: int) -> bytes:
    """The identity of the Btrfs that an open file or folder is on, the same on all its mounts."""
    answer = bytearray(1024)
    fcntl.ioctl(opened, _FS_INFO, answer)
    return bytes(answer[16:32])


def sync(opened: int) -> None:
    """Write out everything dirty on the filesystem and commit; wakes what frees deleted subvolumes.

    Of two in a row the first commits a deletion and the second what was freed by it. It cannot be interrupted and takes
    as long as all that anybody has dirty there. START_SYNC, which should wait for nothing, was seen to hang for minutes
    (6.18, in btrfs_commit_transaction_async).
    """
    fcntl.ioctl(opened, _SYNC)


def changed_items(opened: int, since: int) -> Iterator[Item]:
    """Root: the items of the subvolume of an open folder that lie in leaves written in transaction `since` or later.

    A leaf holds items that did not change too. Valid until the next one is asked for.
    """
    return _search(opened, (ROOT_INODE, 0, 0), (_LAST_INODE, 255, _LAST), since, 1 << 18)


def names_of(opened: int, inode: int) -> Iterator[Item]:
    """Root: the items that hold the names of one inode."""
    return _search(opened, (inode, INODE_REF, 0), (inode, INODE_EXTREF, _LAST), 0, 1 << 17)


def _search(
    opened: int, least: tuple[int, int, int], most: tuple[int, int, int], since: int, size: int
) -> Iterator[Item]:
    buffer = bytearray(_SEARCH.size + size)
    unpack = _ITEM.unpack_from
    while True:
        objects, offsets, kinds = (least[0], most[0]), (least[2], most[2]), (least[1], most[1])
        # Tree 0 is that of the open folder; as many items as there is room for.
        _SEARCH.pack_into(buffer, 0, 0, *objects, *offsets, since, _LAST, *kinds, 2**32 - 1, 0, 0, 0, 0, 0, size)
        fcntl.ioctl(opened, _TREE_SEARCH, buffer)
        (count,) = struct.unpack_from("<I", buffer, 64)
        position = _SEARCH.size
        for _ in range(count):
            _, inode, offset, kind, length = unpack(buffer, position)
            start = position + 32
            position = start + length
            yield Item(inode, kind, offset, buffer, start, position)
        if len(buffer) - position >= _LARGEST:
            return
        least = _after(inode, kind, offset)


def _after(inode: int, kind: int, offset: int) -> tuple[int, int, int]:
    """The next possible key."""
    if offset < _LAST:
        return inode, kind, offset + 1
    return (inode, kind + 1, 0) if kind < 255 else (inode + 1, 0, 0)


def _named(number: int, folder: int, name: str, source: int = 0, flags: int = 0) -> None:
    encoded = os.fsencode(name)
    try:
        fcntl.ioctl(folder, number, bytearray(_NAMES.pack(source, 0, flags, encoded)))
    except OSError as error:
        raise OSError(error.errno, error.strerror, encoded) from None
