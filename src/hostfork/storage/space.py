"""What private storage takes, told apart: what only it holds, and what others hold too.

A file that is still the base's own is not looked at: only what a fork wrote is the fork's. Where the filesystem can
share blocks, its own map of each file tells which are shared; where it cannot, all are the file's own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

from hostfork.storage.contract import Content, FullTree, Layer
from hostfork.storage.entry import FOLDER, READ
from hostfork.storage.extents import Extents, extents
from hostfork.storage.filesystem import filesystem_of
from hostfork.storage.measure import is_first, is_unchanged
from hostfork.storage.tree import Entry, open_source, walk
from hostfork.values import frozen

_NEVER_SHARE = frozenset({"ext2", "ext3", "ext4", "f2fs", "tmpfs", "ramfs"})


@frozen
class Space:
    """Bytes. `apparent`: the sizes of the files as programs see them. `exclusive`: on the disk, nobody else's.

    `shared`: on the disk, and held by others too: the source, the base, other forks, or a second file of the same one.
    `upper_bound`: `exclusive` is at most that. `lower_bound`: it is at least that, since files of it share blocks with
    each other, and whether anybody else has those too is not told. `base_beside`: a frozen base lies beneath, which may
    keep blocks that the host has given up since; they are in none of the numbers.
    """

    apparent: int = 0
    exclusive: int = 0
    shared: int = 0
    inodes: int = 0
    upper_bound: bool = False
    base_beside: bool = False
    lower_bound: bool = False

    def __add__(self, other: Space) -> Space:
        return Space(
            self.apparent + other.apparent,
            self.exclusive + other.exclusive,
            self.shared + other.shared,
            self.inodes + other.inodes,
            self.upper_bound or other.upper_bound,
            self.base_beside or other.base_beside,
            self.lower_bound or other.lower_bound,
        )


def space_of(content: Content, touched: Collection[bytes] | None = None, *, over_snapshot: bool = False) -> Space:
    """What lies at a key's content. `touched`: what alone may differ from the kept base, if that is known.

    `over_snapshot`: a layer's lower folder is a snapshot of the fork's, or shared by some that are over it.
    What is made or removed meanwhile is counted or not. Raises OSError where the content is not there.
    """
    base = content.base if isinstance(content, FullTree) else None
    # A tree of its own counts with the folder that holds it, as in `Storage.usage`.
    tree = content.upper if isinstance(content, Layer) else content.tree
    found = _Measured(tree if base is not None or isinstance(content, Layer) else os.path.dirname(tree))
    if base is not None and touched is not None:
        found.names(touched)
    else:
        found.walk(base)
    return found.space(over_snapshot or base is not None)


def space_of_tree(tree: str) -> Space:
    """What lies at a path, all of it. Raises OSError."""
    found = _Measured(tree)
    found.walk(None)
    return found.space(False)


def space_of_trees(trees: Collection[str]) -> Space:
    """What lies at several paths, all of it; blocks that they share among them count once. Raises OSError."""
    total, seen = Space(), set[tuple[int, int]]()
    for tree in trees:
        found = _Measured(tree, seen)
        found.walk(None)
        total += found.space(False)
    return total


class _Measured:
    """One tree's numbers while they are added up. `seen`: shared extents that were counted with others."""

    def __init__(self, tree: str, seen: set[tuple[int, int]] | None = None) -> None:
        self._tree = tree
        self._seen = set[tuple[int, int]]() if seen is None else seen
        self._shares = filesystem_of(tree).kind not in _NEVER_SHARE
        self._apparent = self._exclusive = self._shared = self._inodes = 0
        self._exact, self._again = True, False

    def space(self, base_beside: bool) -> Space:
        return Space(
            self._apparent, self._exclusive, self._shared, self._inodes, not self._exact, base_beside, self._again
        )

    def walk(self, base: str | None) -> None:
        """Count all of the tree, or what is not at the same path in `base`, the snapshot that it began as."""
        found = os.lstat(self._tree)
        if base is None or not stat.S_ISDIR(found.st_mode):
            if base is None or not is_unchanged(found, base, None):
                self._add(found, None, self._tree)
            if not stat.S_ISDIR(found.st_mode):
                return
        root = os.open(self._tree, FOLDER)
        beside = None if base is None else os.open(base, FOLDER)
        try:
            seen: set[tuple[int, int]] = set()
            for entry in walk(root, open_source, skip_closed=True):
                if (beside is None or not is_unchanged(entry.found, entry.relative, beside)) and is_first(entry, seen):
                    self._add(entry.found, entry.folder, entry.name)
        finally:
            os.close(root)
            if beside is not None:
                os.close(beside)

    def names(self, names: Collection[bytes]) -> None:
        """Count these relative paths alone, each file once, not the tree's root."""
        seen: set[tuple[int, int]] = set()
        for name in names:
            path = os.fsdecode(os.path.join(os.fsencode(self._tree), name)) if name else self._tree
            try:
                found = os.lstat(path)
            except OSError:
                continue  # it went meanwhile, or lies too deep for its path
            if (name or not stat.S_ISDIR(found.st_mode)) and is_first(Entry(-1, path, path, found), seen):
                self._add(found, None, path)

    def _add(self, found: os.stat_result, folder: int | None, name: str) -> None:
        self._inodes += 1
        blocks = found.st_blocks * 512
        if not stat.S_ISREG(found.st_mode):
            self._exclusive += blocks
            return
        self._apparent += found.st_size
        if not blocks or not self._shares:
            self._exclusive += blocks
            return
        told = _told(name, folder, self._seen)
        if told is None:
            self._exact = False
            self._exclusive += blocks
        else:
            self._exact = self._exact and told.exact
            self._again = self._again or told.again
            self._exclusive += told.exclusive
            self._shared += told.shared


def _told(name: str, folder: int | None, seen: set[tuple[int, int]]) -> Extents | None:
    """What the filesystem tells of a file's blocks; None where it cannot, or the file is closed to us."""
    try:
        opened = os.open(name, READ, dir_fd=folder)
    except OSError:
        return None
    try:
        return extents(opened, seen)
    except OSError:
        return None
    finally:
        os.close(opened)
