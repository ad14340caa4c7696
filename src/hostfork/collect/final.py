"""A walk over the final visible content of a fork: the base with the changes applied, or a whole private tree.

Names come from folders that are open, one level at a time, so that none holds a slash and no symlink is followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

from hostfork.collect.changeset import Change, Changeset
from hostfork.collect.difference import below, relative_to
from hostfork.collect.manifest import StatManifest
from hostfork.collect.stack import Base, BaseFolder, base_root, open_base_folder
from hostfork.collect.walk import Place, opened_folder, root_place
from hostfork.errors import Code, CollectError
from hostfork.helper.shapes import NamedTuple
from hostfork.vocabulary import ChangeKind, EntryKind


class Entry(NamedTuple):
    """One entry of the final content. `changed`: it lies in the fork's storage. Folders come before what they hold.

    `mode` (whole), `uid`, `gid` and `mtime_ns` are what counts; the place's own may differ for a copied base.
    """

    relative: str
    place: Place
    stat: os.stat_result
    changed: bool
    mode: int
    uid: int
    gid: int
    mtime_ns: int


class _Level(NamedTuple):
    """A folder that is open, of the base, of the fork's storage or of both, and what of it is still to come."""

    opened: ExitStack
    waiting: list[tuple[str, Place | None, Place | None]]


class FinalWalk:
    """Entries in the order of their names, folder by folder.

    `whole`: all content is in `delta`. Otherwise what is not in `changes` comes from `base`; with a `manifest` only
    what that knows, and files that are no longer what was copied are collected in `gone`. `unreadable`: folders of
    the base that this user cannot list, or only in part. `skip`: device and inode of a folder that is written at the
    same time.
    """

    def __init__(
        self,
        base: Base,
        delta: str,
        changes: Changeset,
        at: str,
        omit: tuple[str, ...],
        whole: bool,
        manifest: StatManifest | None,
        skip: tuple[int, int] | None = None,
    ) -> None:
        self.gone: list[str] = []
        self.unreadable: list[str] = []
        self._base, self._delta, self._at, self._whole = base, delta, at, whole
        self._omit, self._manifest, self._skip = frozenset(omit), manifest, skip
        self._changes: dict[str, Change] = {}
        self._names: dict[str, set[str]] = {}
        for change in () if whole else changes.changes:
            relative = relative_to(at, change.path)
            self._changes[relative] = change
            while relative and change.change is not ChangeKind.DELETED:
                folder, _, name = relative.rpartition("/")
                self._names.setdefault(folder, set()).add(name)
                relative = folder

    def __iter__(self) -> Iterator[Entry]:
        with ExitStack() as roots:
            base = None if self._whole else roots.enter_context(base_root(self._base))
            yield from self._walk("", base, roots.enter_context(root_place(self._delta)))

    def _walk(self, relative: str, base: Place | None, delta: Place | None) -> Iterator[Entry]:
        levels: list[_Level] = []
        try:
            while True:
                entry = self._entry_at(relative, base, delta)
                if entry is not None:
                    yield entry
                    if entry.mode & 0o170000 == 0o040000:
                        levels.append(self._folder(relative, base, delta))
                    elif not entry.changed and relative in self._names:
                        self.gone.append(relative)  # it was a folder, and the fork changed something in it
                while levels and not levels[-1].waiting:
                    levels.pop().opened.close()
                if not levels:
                    return
                relative, base, delta = levels[-1].waiting.pop()
        finally:
            for level in reversed(levels):
                level.opened.close()

    def _entry_at(self, relative: str, base: Place | None, delta: Place | None) -> Entry | None:
        change = self._changes.get(relative)
        if relative in self._omit or (change is not None and change.change is ChangeKind.DELETED):
            return None
        changed = self._whole or change is not None
        place = delta if changed else base
        found = None if place is None else _stat(place)
        if place is None or found is None:
            self._lost(relative, changed)
            return None
        if (found.st_dev, found.st_ino) == self._skip:
            return None
        return self._entry(relative, place, found, changed)

    def _folder(self, relative: str, base: Place | None, delta: Place | None) -> _Level:
        change = self._changes.get(relative)
        if change is not None and change.was is not EntryKind.FOLDER:
            base = None
        if delta is not None and _stat(delta) is None:
            delta = None
        with ExitStack() as opened:
            bottom = self._base_folder(relative, base, opened)
            top = (
                opened.enter_context(opened_folder(delta, ours=True))
                if delta is not None and _is_folder(delta)
                else None
            )
            places = {} if bottom is None else self._places(relative, bottom)
            names = self._names.get(relative, set()) if not self._whole else () if top is None else os.listdir(top)
            waiting: list[tuple[str, Place | None, Place | None]] = []
            for name in sorted({*places, *names}, key=os.fsencode, reverse=True):
                # One that the base should have and has not is missed when it is looked up.
                place = places.get(name) or (None if bottom is None else bottom.inner(name))
                waiting.append((below(relative, name), place, None if top is None else Place(top, name)))
            return _Level(opened.pop_all(), waiting)

    def _base_folder(self, relative: str, base: Place | None, opened: ExitStack) -> BaseFolder | None:
        if base is None or not _is_folder(base):
            return None
        try:
            folder = opened.enter_context(open_base_folder(base))
        except PermissionError:
            self.unreadable.append(relative)
            return None
        if folder.closed:
            self.unreadable.append(relative)
        return folder

    def _places(self, relative: str, base: BaseFolder) -> dict[str, Place]:
        if self._manifest is None:
            return {place.name: place for place in base.all()}
        return {name: base.inner(name) for name in self._manifest.names(relative)}

    def _entry(self, relative: str, place: Place, found: os.stat_result, changed: bool) -> Entry | None:
        if changed or self._manifest is None:
            kept = (found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns)
            return Entry(relative, place, found, changed, *kept)
        known = self._manifest.find(os.fsencode(relative))
        same_kind = known is not None and known.mode & 0o170000 == found.st_mode & 0o170000
        if known is None or not same_kind or not (known.kind is EntryKind.FOLDER or known.is_source(found)):
            self.gone.append(relative)
            return None
        return Entry(
            relative, place, found, changed, known.copy_mode, known.copy_uid, known.copy_gid, known.copy_mtime_ns
        )

    def _lost(self, relative: str, changed: bool) -> None:
        """An entry that should be there: a base that went is reported at the end, the fork's own storage at once."""
        if not changed:
            self.gone.append(relative)
            return
        raise CollectError(
            Code.COLLECT_FAILED,
            f"{below(self._at, relative)} is missing in the fork's storage",
            step="export",
            path=below(self._at, relative),
        )

    def raise_if_gone(self) -> None:
        """Raise CollectError `base.gone` with the paths, if any was met."""
        if not self.gone:
            return
        shown = tuple(below(self._at.rstrip("/"), path) for path in self.gone[:10])
        more = (f"and {len(self.gone) - 10} more",) if len(self.gone) > 10 else ()
        raise CollectError(
            Code.COLLECT_BASE_GONE,
            f"the host changed {_files(len(self.gone))} of {self._at} that the fork left alone",
            step="export",
            path=shown[0],
            details=shown + more,
            hint="hostfork export FORK DEST --changes-only writes what the fork changed",
        )


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


def _stat(place: Place) -> os.stat_result | None:
    try:
        return place.stat()
    except FileNotFoundError:
        return None


def _is_folder(place: Place) -> bool:
    return place.stat().st_mode & 0o170000 == 0o040000
