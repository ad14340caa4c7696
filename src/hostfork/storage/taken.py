"""How much space a running fork takes in its pool: what its storage limit is held against.

Counted is what `du` counts, each file once: of a tree that was copied all of it, else what was made or changed since
the fork began (by ctime, which no program can set). That is quick, and more than what is taken where files share blocks
with what they were taken from, or where a filesystem sets blocks aside for a file that grows. So what is above the
limit is looked at once more, file by file.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Iterable

from hostfork.helper.shapes import NamedTuple
from hostfork.storage.entry import FOLDER, READ, open_quietly
from hostfork.storage.extents import Extent, mapped
from hostfork.storage.tree import open_source, walk

_GET_FLAGS = 0x801C581F  # FS_IOC_FSGETXATTR
_SET_ASIDE_BY_USER = 0x2  # FS_XFLAG_PREALLOC


class Place(NamedTuple):
    """One tree of a fork, or a single file. `since`: the ctime, in ns, from which on an entry is the command's.

    `copied`: what is older takes space too, else it is shared with what it was taken from.
    """

    tree: str
    since: int
    copied: bool


class Taken(NamedTuple):
    """`whole` is false where files went or moved while they were counted: to be counted again."""

    bytes: int
    whole: bool


class _File(NamedTuple):
    path: str
    bytes: int


def taken(places: Iterable[Place], limit: int, grown: int, kind: str, last: bool = False) -> Taken:
    """The bytes that are taken, at most; exact where that is above `limit`.

    `grown`: by how much the filesystem, of that `kind`, grew since the fork began. `last`: nothing writes any more.
    What lies in a folder that its owner closed to itself is not counted. Raises OSError where a tree is not there.
    """
    total, whole = 0, True
    files: list[_File] = []
    seen: set[tuple[int, int]] = set()
    for place in places:
        found = os.lstat(place.tree)
        total += _count(found, place, place.tree, files, seen)
        if not stat.S_ISDIR(found.st_mode):
            continue
        root = os.open(place.tree, FOLDER)
        try:
            for entry in walk(root, open_source, skip_closed=True):
                total += _count(entry.found, place, f"{place.tree}/{entry.relative}", files, seen)
        except OSError:  # a folder was moved, or is none any more
            whole = False
        finally:
            os.close(root)
    above = total + sum(file.bytes for file in files)
    if above <= limit:
        return Taken(above, whole)
    exact = _exact(files, grown, kind, last)
    return Taken(total + exact.bytes, whole and exact.whole)


def _count(found: os.stat_result, place: Place, path: str, files: list[_File], seen: set[tuple[int, int]]) -> int:
    """The bytes of one entry; a file of the command's goes to `files` instead."""
    space = found.st_blocks * 512
    old = found.st_ctime_ns < place.since
    if not space or (old and not place.copied):
        return 0
    if stat.S_ISDIR(found.st_mode):
        return space
    if found.st_nlink > 1:
        identity = found.st_dev, found.st_ino
        if identity in seen:
            return 0
        seen.add(identity)
    if old:
        return space
    files.append(_File(path, space))
    return 0


def _exact(files: list[_File], grown: int, kind: str, last: bool) -> Taken:
    """Look again, at once: what went meanwhile was never there together with what came."""
    total, whole = 0, True
    shared: list[tuple[int, int]] = []
    for file in files:
        try:
            found = os.lstat(file.path)
            total += _own(file.path, found, kind, shared, last)
        except (FileNotFoundError, NotADirectoryError):
            whole = False
        except OSError:  # its path is too long, or it cannot be opened
            total += file.bytes
    # What two files of the fork share is shared with each other, or with what they were taken from too. No more of it
    # can be the fork's than the filesystem grew.
    return Taken(total + min(_twice(shared), max(0, grown)), whole)


def _own(path: str, found: os.stat_result, kind: str, shared: list[tuple[int, int]], last: bool) -> int:
    """The bytes of one file that nothing else has; the ranges that something has go to `shared`."""
    if not stat.S_ISREG(found.st_mode) or not found.st_blocks:
        return found.st_blocks * 512
    opened = open_quietly(path, READ)
    try:
        extents = list(mapped(opened))
        # Btrfs tells of what was written over shared blocks only once that is written out.
        if any(one.shared for one in extents) and (last or kind == "btrfs"):
            extents = list(mapped(opened, sync=True))
            found = os.fstat(opened)
        beyond = _set_aside(opened, found, extents) if kind == "xfs" else 0
    except OSError:  # not every filesystem can tell; then none shares blocks either
        return found.st_blocks * 512
    finally:
        os.close(opened)
    ranges = [(one.physical, one.physical + one.length) for one in extents if one.shared]
    shared += ranges
    return max(0, found.st_blocks * 512 - beyond - sum(end - start for start, end in ranges))


def _set_aside(opened: int, found: os.stat_result, extents: list[Extent]) -> int:
    """XFS sets aside as much again for a file that grows, and takes it back later; what a program asked for stays."""
    end = found.st_size + -found.st_size % found.st_blksize
    beyond = sum(max(0, one.logical + one.length - max(one.logical, end)) for one in extents)
    if not beyond:
        return 0
    answer = bytearray(28)
    fcntl.ioctl(opened, _GET_FLAGS, answer)
    return 0 if struct.unpack_from("=L", answer)[0] & _SET_ASIDE_BY_USER else beyond


def _twice(ranges: list[tuple[int, int]]) -> int:
    """How many bytes lie in two of the ranges, or in more."""
    total, deep, since = 0, 0, 0
    for at, step in sorted([(start, 1) for start, _ in ranges] + [(end, -1) for _, end in ranges]):
        if deep >= 2:
            total += at - since
        deep, since = deep + step, at
    return total
