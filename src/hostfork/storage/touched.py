"""Root: which paths of a Btrfs snapshot may differ from the base, from the filesystem's own trees (TREE_SEARCH_V2).

Every change of an entry writes its inode's item anew, with the number of the transaction: content, attributes, links;
and every name that comes or goes, that of its folder. The kernel passes over the parts of a tree that are older than
the base, so that this takes the time of the changes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct

from hostfork.storage import ioctls, subvolume
from hostfork.storage.entry import FOLDER
from hostfork.storage.subvolume import Nested, Obstacle

_TREE, _BASE, _NOW = "tree", "base", "now-"
_MOST = 20_000
"""Inodes of one subvolume. Reading a file or folder may write the time of it too (relatime), so these can be all."""
_INODE = struct.Struct("<8xQ24xIIII")
_REF = struct.Struct("<QH")
_EXTREF = struct.Struct("<QQH")


def touched(path: str, inside: str, name: str = _TREE) -> tuple[bytes, ...] | None:
    """The paths below `inside` (`.` for all) of the snapshot `name` in the key's folder `path`, relative to `inside`.

    None where the kernel does not tell, or tells of so much that a walk is quicker. Raises OSError.
    """
    if os.geteuid() != 0:
        return None
    room = os.open(path, FOLDER)
    try:
        tree, base = os.open(name, FOLDER, dir_fd=room), os.open(_BASE, FOLDER, dir_fd=room)
        try:
            wanted = os.fsencode(inside)
            found = {
                relative for one in _all(room, tree, base, inside) if (relative := _below(one, wanted)) is not None
            }
            return tuple(sorted(found))
        finally:
            os.close(tree)
            os.close(base)
    except (Obstacle, PermissionError):
        return None  # root without its capabilities
    finally:
        os.close(room)


def _all(room: int, tree: int, base: int, inside: str) -> set[bytes]:
    """Of the snapshot and of those nested below the wanted folder, relative to the outermost root."""
    found = _of_one(room, tree, ioctls.subvolume(base).made)
    for one in subvolume.nested_below(tree, inside):
        opened = subvolume.open_nested(tree, one)
        try:
            made = _base_of(base, one, opened)
            if made is None:
                continue
            above = os.fsencode(one.path)
            found |= {above + b"/" + name if name else above for name in _of_one(room, opened, made)}
        finally:
            os.close(opened)
    return found


def _base_of(base: int, one: Nested, opened: int) -> int | None:
    """When the base of a nested subvolume was made; None where there is nothing at its path in the base.

    Raises Obstacle where something else is there: then only a comparison tells.
    """
    try:
        beside = os.open(one.path, FOLDER, dir_fd=base)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise Obstacle("a subvolume took the place of a file") from None
    try:
        there = ioctls.subvolume(beside)
        if os.fstat(beside).st_ino != ioctls.ROOT_INODE or there.parent_uuid != ioctls.subvolume(opened).uuid:
            raise Obstacle("a subvolume took the place of something else")
        return there.made
    finally:
        os.close(beside)


def _of_one(room: int, root: int, made: int) -> set[bytes]:
    """The touched paths of one subvolume, relative to its root: written after the transaction `made`."""
    _sweep(room)
    now = f"{_NOW}{os.getpid()}"
    # A snapshot writes out what is dirty in this subvolume alone, and commits: then all is in the tree.
    ioctls.snapshot(root, now, room, read_only=True)
    try:
        return _Names(root).paths(made + 1)
    finally:
        ioctls.destroy(now, room)


def _sweep(room: int) -> None:
    """Destroy the snapshots of those that were killed meanwhile, and an own one of the same process number."""
    for name in os.listdir(room):
        maker = name.removeprefix(_NOW)
        if name.startswith(_NOW) and (maker == str(os.getpid()) or not os.path.exists(f"/proc/{maker}")):
            with contextlib.suppress(FileNotFoundError):
                ioctls.destroy(name, room)


class _Names:
    """The names of the inodes of one subvolume, as its tree tells them."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._names: dict[int, list[tuple[int, bytes]]] = {}
        self._folders: dict[int, bytes | None] = {ioctls.ROOT_INODE: b""}

    def paths(self, since: int) -> set[bytes]:
        """Every path of every inode that was written in the transaction `since` or later."""
        links = self._scan(since)
        found: set[bytes] = set()
        for inode, number in links.items():
            if inode == ioctls.ROOT_INODE:
                found.add(b"")
                continue
            # A leaf that is not new can hold some of the names.
            known = self._names.get(inode, ())
            for folder, name in known if len(known) >= number else self._look_up(inode):
                above = self._path(folder)
                if above is not None:
                    found.add(above + b"/" + name if above else name)
        return found

    def _scan(self, since: int) -> dict[int, int]:
        """The number of names of each inode that was written since; deleted ones that are still open have none."""
        links: dict[int, int] = {}
        for inode, kind, offset, buffer, start, end in ioctls.changed_items(self._root, since):
            if kind == ioctls.INODE_ITEM:
                when, number, _, _, mode = _INODE.unpack_from(buffer, start)
                if when >= since and number:
                    links[inode] = 1 if stat.S_ISDIR(mode) else number
                    if len(links) > _MOST:
                        raise Obstacle("so much was written that a walk is quicker")
            elif inode in links and kind in (ioctls.INODE_REF, ioctls.INODE_EXTREF):
                self._keep(inode, kind, offset, bytes(buffer[start:end]))
        return links

    def _look_up(self, inode: int) -> list[tuple[int, bytes]]:
        self._names.pop(inode, None)
        for item in ioctls.names_of(self._root, inode):
            self._keep(item.inode, item.kind, item.offset, bytes(item.buffer[item.start : item.end]))
        return self._names.get(inode, [])

    def _keep(self, inode: int, kind: int, offset: int, content: bytes) -> None:
        """Names in one item: of one folder, or of several whose names have the same hash."""
        names, position = self._names.setdefault(inode, []), 0
        while position < len(content):
            if kind == ioctls.INODE_REF:
                folder = offset
                _, length = _REF.unpack_from(content, position)
                position += _REF.size
            else:
                folder, _, length = _EXTREF.unpack_from(content, position)
                position += _EXTREF.size
            names.append((folder, content[position : position + length]))
            position += length

    def _path(self, folder: int) -> bytes | None:
        """The path of a folder; None for one that has no name any more."""
        way: list[int] = []
        while folder not in self._folders:
            way.append(folder)
            names = self._names.get(folder) or self._look_up(folder)
            if not names:
                self._folders[folder] = None
                break
            folder = names[0][0]
        for inode in reversed(way):
            if inode in self._folders:
                continue
            above, name = self._names[inode][0]
            path = self._folders[above]
            self._folders[inode] = None if path is None else (path + b"/" + name if path else name)
        return self._folders[way[0] if way else folder]


def _below(path: bytes, wanted: bytes) -> bytes | None:
    """A path relative to the wanted folder; None where it is not in it."""
    if wanted == b"." or path == wanted:
        return path if wanted == b"." else b""
    return path[len(wanted) + 1 :] if path.startswith(wanted + b"/") else None
