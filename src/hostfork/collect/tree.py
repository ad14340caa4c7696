"""Changes of a copied tree: one stat walk against the manifest that was stored when the copy was made.

What the stat proves unchanged costs a look-up. Only the rest is compared with the source, while that is still what was
copied; where it is not, the base's content is gone and the path counts as modified.
"""

from __future__ import annotations

import os
from stat import S_IMODE, S_ISDIR

from hostfork.collect.changeset import Change
from hostfork.collect.depth import with_room
from hostfork.collect.difference import below, between, created, deleted, joined
from hostfork.collect.manifest import StatManifest
from hostfork.collect.reader import TreeReader
from hostfork.collect.walk import (
    FOLDER,
    Facts,
    Place,
    attribute_fields,
    attributes,
    facts,
    opened_folder,
    same_content,
)
from hostfork.vocabulary import EntryKind

_FORMAT, _FOLDER, _OWNER = 0o170000, 0o040000, 0o500

_WITH_CONTENT = (EntryKind.FILE, EntryKind.SYMLINK, EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE)
"""Kinds that hold something besides mode, owner and attributes."""


class TreeScan:
    """One scan. `changes` fills up while `root` runs."""

    def __init__(self, manifest: StatManifest, base: TreeReader, at: str, omit: tuple[str, ...]) -> None:
        self.changes: list[Change] = []
        self._manifest = manifest
        self._base = base
        self._at = at
        self._omit: dict[str, set[str]] = {}
        for path in omit:
            folder, _, name = path.rpartition("/")
            self._omit.setdefault(folder, set()).add(name)
        self._columns = manifest.signature()

    def root(self, tree: Place) -> None:
        """Scan a whole tree, a folder or a single file."""
        found = tree.stat()
        self._compare("", tree, self._manifest.root, found)
        if S_ISDIR(found.st_mode):
            self._enter(tree, "")

    def _folder(self, folder: int, relative: str) -> None:
        known = self._manifest.names(relative)
        omitted = self._omit.get(relative, ())
        changed, folders, closed = self._touched(folder, known, omitted)
        for name, index, found in changed:
            if name not in omitted:
                self._changed(below(relative, name), Place(folder, name), index, found)
        for name, index in known.items():
            if name not in omitted:
                self._gone(below(relative, name), index)
        for name in folders:
            inner = with_room(os.open(name, FOLDER, dir_fd=folder))
            try:
                self._folder(inner, below(relative, name))
            finally:
                os.close(inner)
        for name in closed:
            self._enter(Place(folder, name), below(relative, name))

    def _touched(
        self, folder: int, known: dict[str, int], omitted: set[str] | tuple[()]
    ) -> tuple[list[tuple[str, int, os.stat_result]], list[str], list[str]]:
        """The names whose stat proves nothing, the folders to enter, and those that their owner has closed.

        `known` keeps the names that are gone.
        """
        ctime, mtime, inode, size, mode = self._columns
        changed: list[tuple[str, int, os.stat_result]] = []
        folders: list[str] = []
        closed: list[str] = []
        pop = known.pop
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                name = entry.name
                index = pop(name, -1)
                if (
                    index < 0
                    or ctime[index] != found.st_ctime_ns
                    or mtime[index] != found.st_mtime_ns
                    or inode[index] != found.st_ino
                    or size[index] != found.st_size
                    or mode[index] != found.st_mode
                ):
                    changed.append((name, index, found))
                if index >= 0 and found.st_mode & _FORMAT == _FOLDER and name not in omitted:
                    (folders if found.st_mode & _OWNER == _OWNER else closed).append(name)
        return changed, folders, closed

    def _enter(self, place: Place, relative: str) -> None:
        with opened_folder(place, ours=True) as folder:
            self._folder(folder, relative)

    def _changed(self, relative: str, place: Place, index: int, found: os.stat_result) -> None:
        if index >= 0:
            self._compare(relative, place, index, found)
            return
        after = facts(place, found)
        self.changes.append(created(joined(self._at, relative), after))
        if after.kind is EntryKind.FOLDER:
            self._enter(place, relative)

    def _compare(self, relative: str, place: Place, index: int, found: os.stat_result) -> None:
        """One name that the base had too, and whose stat proves nothing."""
        after, source = facts(place, found), self._base.place(relative)
        before, gone = self._before(index, relative, source)
        if gone and self._manifest.entry(index, b"").is_copy(found):
            return  # only the last tick spoke against it, and there is nothing left to compare with
        path = joined(self._at, relative)
        fields: tuple[str, ...] = ()
        same = not gone
        if before.kind is after.kind:
            if not gone and after.kind is EntryKind.FILE:
                same = before.size == after.size and source is not None and same_content(place, source, ours=True)
            if source is not None and (not gone or after.kind not in _WITH_CONTENT):
                fields = attribute_fields(attributes(source), attributes(place, ours=True))
        change = between(path, before, after, same, fields, base_gone=gone)
        if change is not None:
            self.changes.append(change)
        if before.kind is EntryKind.FOLDER is not after.kind:
            self._gone_below(relative)

    def _before(self, index: int, relative: str, source: Place | None) -> tuple[Facts, bool]:
        """What the copy was at first, and whether the base's content of this path is gone."""
        entry = self._manifest.entry(index, os.fsencode(relative))
        kind, intact = entry.kind, source is not None and entry.is_source(source.stat())
        size = entry.copy_size if kind in (EntryKind.FILE, EntryKind.SYMLINK) else None
        plain = Facts(kind, S_IMODE(entry.copy_mode), entry.copy_uid, entry.copy_gid, size, 0, None)
        if kind not in _WITH_CONTENT:
            return plain, False
        if source is None or not intact:
            return plain._replace(target=b""), True
        taken = facts(source, source.stat())
        return plain._replace(rdev=taken.rdev, target=taken.target), False

    def _gone(self, relative: str, index: int) -> None:
        """A name of the base that is not there any more, with everything that was in it."""
        folder, _, name = relative.rpartition("/")
        if name in self._omit.get(folder, ()):
            return
        before, lost = self._before(index, relative, self._base.place(relative))
        self.changes.append(deleted(joined(self._at, relative), before, lost))
        if before.kind is EntryKind.FOLDER:
            self._gone_below(relative)

    def _gone_below(self, relative: str) -> None:
        for name, index in self._manifest.names(relative).items():
            self._gone(below(relative, name), index)
