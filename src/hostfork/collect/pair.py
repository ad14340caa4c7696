"""Changes of a private tree whose base is kept as a second snapshot with the same inode numbers and stamps.

Two ways to find what may differ. Where the filesystem names the touched paths, only those are looked at; else one stat
walk. The kernel stamps the ctime of an inode with every write, rename, link and attribute, and that of a folder with
every name that comes or goes, so an entry whose ctime is before the fork's stamp is what it was, and a folder like
that has the names that it had. What that rules out costs no look at the base; the rest is compared with it.

An inode number says nothing where a folder or a nested subvolume was put in another's place, and a stamp says nothing
where the clock was set back: there every entry is compared with the base's entry of the same path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from stat import S_ISDIR

from hostfork.collect.beside import BesideBase
from hostfork.collect.depth import with_room
from hostfork.collect.difference import below, created, joined
from hostfork.collect.reader import TreeReader
from hostfork.collect.stack import BaseFolder, base_folder
from hostfork.collect.walk import FOLDER, Place, facts, opened_folder
from hostfork.vocabulary import EntryKind

_FORMAT, _FOLDER, _OWNER, _SEARCH = 0o170000, 0o040000, 0o500, 0o100


class PairScan(BesideBase):
    """One scan, by `walk`, `every` or `touched`.

    `since`: nanoseconds, a stamp of the tree's own filesystem from before the fork's first write; 0 is no stamp.
    """

    def __init__(self, base: TreeReader, at: str, omit: tuple[str, ...], since: int = 0) -> None:
        super().__init__(at, omit)
        self._base = base
        self._since = since
        self._user = os.geteuid()
        self._omitted: dict[str, set[str]] = {}
        for path in omit:
            folder, _, name = path.rpartition("/")
            self._omitted.setdefault(folder, set()).add(name)

    def walk(self, tree: Place) -> None:
        """Find what was stamped since."""
        self._root(tree, by_stamp=True)

    def every(self, tree: Place) -> None:
        """Compare the stat of every entry with the base's, and what lies behind it where that differs."""
        self._root(tree, by_stamp=False)

    def touched(self, tree: TreeReader, paths: Iterable[str]) -> None:
        """Look at these paths alone, "" is the root. A folder stands for its names too, not for what they hold.

        Of what was only read, which sets the time of access, no more than the stat is looked at.
        """
        done = set(self._omit)
        for path in sorted(set(paths), key=os.fsencode):
            now = tree.place(path)
            if now is not None and now.stat().st_ctime_ns < self._since:
                continue
            if not _is_below(path, done):
                self._path(path, now, done)

    def _root(self, tree: Place, by_stamp: bool) -> None:
        found, base = tree.stat(), self._base.place("")
        if base is None:
            raise FileNotFoundError(2, "is missing")
        self._pair("", tree, found, base, by_stamp and found.st_ino == base.stat().st_ino)

    def _name(self, relative: str, tree: Place, found: os.stat_result, base: Place | None, kin: bool) -> None:
        if base is None:
            self._new(relative, tree, found)
        else:
            self._pair(relative, tree, found, base, kin)

    def _pair(self, relative: str, tree: Place, found: os.stat_result, base: Place, kin: bool) -> None:
        """One name that both have, with all below it. `kin`: folders of one inode, whose stamps and names tell."""
        after, before = facts(tree, found), facts(base, base.stat())
        self._compare(relative, tree, base, after, before)
        if after.kind is not EntryKind.FOLDER:
            if before.kind is EntryKind.FOLDER:
                self._gone_below(relative, base)
        elif before.kind is not EntryKind.FOLDER:
            self._new_below(relative, tree)
        elif kin:
            with _ours(tree) as folder, base_folder(base) as bottom:
                if folder is not None:
                    self._listed(folder, relative, bottom)
        else:
            self._both(relative, tree, base)

    def _new(self, relative: str, place: Place, found: os.stat_result) -> None:
        after = facts(place, found)
        self.changes.append(created(joined(self._at, relative), after))
        if after.kind is EntryKind.FOLDER:
            self._new_below(relative, place)

    def _new_below(self, relative: str, place: Place) -> None:
        with opened_folder(place, ours=True) as folder:
            for name in os.listdir(folder):
                inner = Place(folder, name)
                if below(relative, name) not in self._omit:
                    self._new(below(relative, name), inner, inner.stat())

    # --- by stamps -------------------------------------------------------------------------------------------------

    def _folder(self, folder: int, relative: str) -> None:
        """A folder that has the names of the base."""
        since = self._since
        changed, folders = [], []
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if found.st_ctime_ns >= since:
                    changed.append((entry.name, found))
                elif found.st_mode & _FORMAT == _FOLDER:
                    folders.append((entry.name, found))
        omitted = self._omitted.get(relative, ())
        for name, found in changed:
            if name not in omitted:
                inner = below(relative, name)
                self._name(inner, Place(folder, name), found, self._base.place(inner), kin=True)
        self._descend(folder, relative, folders)

    def _listed(self, folder: int, relative: str, base: BaseFolder) -> None:
        """A folder of one inode whose names may differ. A base that cannot be listed was not seen by the fork."""
        numbers = _numbers(base.folder)
        folders = []
        for name, found in _stats(folder):
            inner, number = below(relative, name), found.st_ino
            before = found.st_ctime_ns < self._since
            if base.folder >= 0:
                number = numbers.pop(name, -1)
            if inner in self._omit:
                continue
            if before and number == found.st_ino:
                if S_ISDIR(found.st_mode):
                    folders.append((name, found))
                continue
            # A nested subvolume's number in its folder is never that of its own root: it is compared as a stranger.
            was = base.place(name) if number >= 0 else None
            self._name(inner, Place(folder, name), found, was, kin=number == found.st_ino)
        for name in numbers:
            self._gone(below(relative, name), Place(base.folder, name))
        self._descend(folder, relative, folders)

    def _descend(self, folder: int, relative: str, folders: list[tuple[str, os.stat_result]]) -> None:
        omitted = self._omitted.get(relative, ())
        for name, found in folders:
            foreign = self._user and found.st_uid != self._user
            if name in omitted or (self._user and not foreign and not found.st_mode & _SEARCH):
                continue  # with its old stamp it was closed all the time, and nobody wrote in it
            if found.st_mode & _OWNER != _OWNER or foreign:
                with _ours(Place(folder, name)) as opened:
                    if opened is not None:
                        self._folder(opened, below(relative, name))
                continue
            inner = with_room(os.open(name, FOLDER, dir_fd=folder))
            try:
                self._folder(inner, below(relative, name))
            finally:
                os.close(inner)

    # --- entry by entry --------------------------------------------------------------------------------------------

    def _both(self, relative: str, tree: Place, base: Place) -> None:
        """Two folders whose inode numbers and stamps tell nothing about each other."""
        with base_folder(base) as bottom, ExitStack() as stack:
            if bottom.folder < 0 and self._is_same(tree.stat(), base.stat()):
                return  # closed to the fork too
            folder = stack.enter_context(_ours(tree))
            if folder is None:
                return
            known = _stats_of_base(bottom.folder)
            for name, found in _stats(folder):
                inner, place, before = below(relative, name), Place(folder, name), known.pop(name, None)
                if inner in self._omit:
                    continue
                was = None if before is None else Place(bottom.folder, name)
                if was is None or before is None or not self._is_same(found, before):
                    self._name(inner, place, found, was, kin=False)
                elif S_ISDIR(found.st_mode):
                    self._both(inner, place, was)
            for name in known:
                self._gone(below(relative, name), Place(bottom.folder, name))

    def _is_same(self, found: os.stat_result, before: os.stat_result) -> bool:
        """Whether the stats prove that nothing was done to this entry itself."""
        if self._since and found.st_ctime_ns >= self._since:
            return False
        return _identity(found) == _identity(before)

    # --- by path ---------------------------------------------------------------------------------------------------

    def _path(self, relative: str, now: Place | None, done: set[str]) -> None:
        """One touched path. Into `done` goes what was compared with all that is below it."""
        was = self._base.place(relative)
        if now is None or was is None:
            done.add(relative)
            if now is not None:
                self._new(relative, now, now.stat())
            elif was is not None:
                self._gone(relative, was)
            return
        found, before = now.stat(), was.stat()
        if self._is_same(found, before):
            return
        if found.st_ino == before.st_ino and S_ISDIR(found.st_mode) and S_ISDIR(before.st_mode):
            self._compare(relative, now, was, facts(now, found), facts(was, before))
            self._name_lists(relative, now, was, done)
        else:
            done.add(relative)
            self._pair(relative, now, found, was, kin=False)

    def _name_lists(self, relative: str, tree: Place, base: Place, done: set[str]) -> None:
        with opened_folder(tree, ours=True) as folder, base_folder(base) as bottom:
            known = _numbers(bottom.folder)
            for name, number in _numbers(folder).items():
                inner, place = below(relative, name), Place(folder, name)
                if known.pop(name, -1) != number and inner not in self._omit:
                    done.add(inner)
                    self._name(inner, place, place.stat(), bottom.place(name), kin=False)
            for name in known:
                done.add(below(relative, name))
                self._gone(below(relative, name), Place(bottom.folder, name))


@contextmanager
def _ours(place: Place) -> Iterator[int | None]:
    """The open folder; None where it is another's and closed to this user, and so was to the fork."""
    with ExitStack() as stack:
        folder = None
        try:
            opened = stack.enter_context(opened_folder(place, ours=True))
            os.stat(".", dir_fd=opened)  # EACCES where names can be listed and not looked up
            folder = opened
        except PermissionError:
            if place.stat().st_uid == os.geteuid():
                raise
        yield folder


def _stats(folder: int) -> list[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]


def _stats_of_base(folder: int) -> dict[str, os.stat_result]:
    """By name; none for no folder, and for one that lists its names only: the fork could not look them up either."""
    try:
        return dict(_stats(folder)) if folder >= 0 else {}
    except PermissionError:
        return {}


def _numbers(folder: int) -> dict[str, int]:
    """The names in a folder with their inode numbers; none for none."""
    if folder < 0:
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _identity(found: os.stat_result) -> tuple[int, ...]:
    times = found.st_mtime_ns, found.st_ctime_ns
    return (found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_rdev, *times)


def _is_below(path: str, done: set[str]) -> bool:
    """Whether a path or a folder above it is in the set."""
    while path not in done:
        if not path:
            return False
        path = path.rpartition("/")[0]
    return True
