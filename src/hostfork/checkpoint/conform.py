"""Making a tree what the rows of a checkpoint say: into an empty place, or over what is there, of which what is equal
stays untouched. Doing it again after it was ended at any moment completes it.

In the upper folder of an overlay a deleted entry of the base is a 0:0 device, and an opaque folder is marked.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Sequence

from hostfork.checkpoint import boundary
from hostfork.checkpoint.boundary import Boundary
from hostfork.checkpoint.known import Known
from hostfork.checkpoint.objects import Objects
from hostfork.checkpoint.tree import Row
from hostfork.collect.copying import Metadata, new_copy, parent_of, remove_tree, set_metadata
from hostfork.collect.depth import at_any_depth, with_room
from hostfork.collect.difference import below
from hostfork.collect.digest import Digester
from hostfork.collect.stack import OPAQUE, is_whiteout
from hostfork.collect.walk import FOLDER, Place, attributes, mark, open_file, open_folder
from hostfork.helper.shapes import NamedTuple
from hostfork.values import frozen

_FRESH = ".hostfork-restored-"


@frozen
class Conformed:
    """What was done. `incomplete`: relative paths that could not get all their metadata or could not be made."""

    written: int = 0
    removed: int = 0
    incomplete: tuple[str, ...] = ()


class _Level(NamedTuple):
    row: Row
    folder: int
    mode: int


@at_any_depth
def conform(
    parent: int, name: str, rows: Sequence[Row], objects: Objects, known: Known, omit: Collection[str] = (),
    layer: bool = False,
) -> Conformed:  # fmt: skip
    """Make the entry `name` of the open folder what `rows` say; it may be missing, and is removed without any rows.

    `omit`: relative paths that are left alone. Raises OSError, CheckpointError `checkpoint.damaged`.
    """
    work = _Conforming(parent, name, rows, objects, known, omit, layer)
    try:
        work.all()
    finally:
        work.close()
    return Conformed(work.written, work.removed, tuple(work.incomplete))


class _Conforming:
    def __init__(
        self, parent: int, name: str, rows: Sequence[Row], objects: Objects, known: Known, omit: Collection[str],
        layer: bool,
    ) -> None:  # fmt: skip
        self._parent, self._name, self._rows, self._layer = parent, name, rows, layer
        self._objects, self._known, self._digester = objects, known, Digester(threads=True)
        self._omit = frozenset(omit)
        self._above = {path[:end] for path in omit for end, letter in enumerate(path) if letter == "/"} | {""}
        self._firsts = {row.linked for row in rows if row.linked is not None}
        self._names: dict[str, set[str]] = {}
        self._open: list[_Level] = []
        self.written = self.removed = 0
        self.incomplete: list[str] = []
        kinds = {row.path: row.kind for row in rows}
        opaque = {row.path for row in rows if row.opaque}
        self._stays = []
        for row in rows:
            folder, _, inner = row.path.rpartition("/")
            if row.path and row.mode == 0 and (
                not layer or folder in opaque or not stat.S_ISDIR(kinds.get(folder, 0))
            ):  # fmt: skip
                continue
            self._stays.append(row)
            if row.path:
                self._names.setdefault(folder, set()).add(inner)

    def all(self) -> None:
        if not self._stays or self._stays[0].mode == 0:
            self._remove(Place(self._parent, self._name), "")
            return
        for row in self._stays:
            self._leave(row.path)
            parent = self._open[-1].folder if self._open else self._parent
            place = Place(parent, row.path.rpartition("/")[2] if row.path else self._name)
            if row.kind == stat.S_IFDIR:
                self._enter(row, place)
            else:
                self._single(row, place)
        self._leave(None)

    def close(self) -> None:
        while self._open:
            level = self._open.pop()
            os.close(level.folder)

    def _enter(self, row: Row, place: Place) -> None:
        found = _found(place)
        if found is None or not stat.S_ISDIR(found.st_mode):
            self._remove(place, row.path)
            os.mkdir(place.name, 0o700, dir_fd=place.folder)
            self.written += 1
        folder = with_room(open_folder(place, ours=True))
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        self._open.append(_Level(row, folder, mode))
        if mode & 0o700 != 0o700:
            os.fchmod(folder, mode | 0o700)
        wanted = self._names.get(row.path, set())
        for name in os.listdir(folder):
            if name not in wanted:
                self._remove(Place(folder, name), below(row.path, name))

    def _remove(self, place: Place, relative: str) -> None:
        """Remove an entry, but for what was left out."""
        found = _found(place)
        if found is None or relative in self._omit:
            return
        if relative in self._above and relative and stat.S_ISDIR(found.st_mode):
            folder = with_room(os.open(place.name, FOLDER, dir_fd=place.folder))
            try:
                for name in os.listdir(folder):
                    self._remove(Place(folder, name), below(relative, name))
            finally:
                os.close(folder)
            return
        remove_tree(place.folder, place.name)
        self.removed += 1
        boundary.passed(Boundary.ENTRY_REMOVED)

    def _leave(self, relative: str | None) -> None:
        while self._open and not _holds(self._open[-1].row.path, relative):
            level = self._open.pop()
            try:
                if self._layer:
                    self._mark(level)
                if not self._dressed(Place(level.folder, ""), level.row, level.mode):
                    self.incomplete.append(level.row.path)
            finally:
                os.close(level.folder)

    def _mark(self, level: _Level) -> None:
        is_marked = mark(Place(level.folder, ""), OPAQUE) == b"y"
        if level.row.opaque and not is_marked:
            os.setxattr(level.folder, OPAQUE, b"y")
        elif is_marked and not level.row.opaque:
            os.removexattr(level.folder, OPAQUE)

    def _single(self, row: Row, place: Place) -> None:
        found = _found(place)
        if row.linked is not None:
            self._link(row, place, found)
        elif found is None or not self._equals(row, place, found):
            self._write(row, place, found)
        elif row.mode and not self._dressed(place, row, None):
            self.incomplete.append(row.path)

    def _equals(self, row: Row, place: Place, found: os.stat_result) -> bool:
        """Whether what is there has the content of the row, and no name outside of the row's group."""
        if row.mode == 0:
            return is_whiteout(found)
        if stat.S_IFMT(found.st_mode) != row.kind or (found.st_nlink > 1 and row.path not in self._firsts):
            return False
        if row.kind == stat.S_IFLNK:
            return place.link_target() == row.target
        if row.kind != stat.S_IFREG:
            return found.st_rdev == row.rdev
        if found.st_size != row.size:
            return False
        digest = self._known.digest(found)
        return (digest or self._read(place)) == row.digest

    def _read(self, place: Place) -> bytes:
        file = open_file(place, ours=True)
        try:
            found = os.fstat(file)
            digest = self._digester.content(file, found.st_size)
            self._known.learn(found, digest)
            return digest
        finally:
            os.close(file)

    def _link(self, row: Row, place: Place, found: os.stat_result | None) -> None:
        assert row.linked is not None
        fresh = f"{_FRESH}{os.getpid()}"
        try:
            with parent_of(self._open[0].folder, row.linked) as (folder, name):
                first = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if found is not None and (found.st_dev, found.st_ino) == (first.st_dev, first.st_ino):
                    return
                os.link(name, fresh, src_dir_fd=folder, dst_dir_fd=place.folder, follow_symlinks=False)
        except PermissionError:
            # The first one lies in a folder that is finished and closed to its owner: a copy of its own.
            first_row = next(one for one in self._stays if one.path == row.linked)
            self._write(first_row._replace(path=row.path), place, found)
            return
        self._put(fresh, place, found)

    def _write(self, row: Row, place: Place, found: os.stat_result | None) -> None:
        fresh = Place(place.folder, f"{_FRESH}{os.getpid()}")
        if _found(fresh) is not None:
            remove_tree(fresh.folder, fresh.name)
        try:
            self._make(row, fresh)
        except PermissionError as error:
            if error.errno != errno.EPERM or row.kind not in (stat.S_IFCHR, stat.S_IFBLK):
                raise
            self.incomplete.append(row.path)  # devices are root's
            return
        if row.mode and not self._dressed(fresh, row, None):
            self.incomplete.append(row.path)
        self._put(fresh.name, place, found)
        if row.digest is not None:
            self._known.learn(place.stat(), row.digest)

    def _make(self, row: Row, fresh: Place) -> None:
        if row.kind == stat.S_IFREG:
            assert row.digest is not None
            source = self._objects.open(row.digest)
            try:
                new_copy(source, fresh)
            finally:
                os.close(source)
        elif row.kind == stat.S_IFLNK:
            os.symlink(row.target, os.fsencode(fresh.name), dir_fd=fresh.folder)
        elif row.kind == stat.S_IFIFO:
            os.mkfifo(fresh.name, 0o600, dir_fd=fresh.folder)
        else:
            os.mknod(fresh.name, (row.kind or stat.S_IFCHR) | 0o600, row.rdev, dir_fd=fresh.folder)

    def _put(self, fresh: str, place: Place, found: os.stat_result | None) -> None:
        """Give the new entry its name, in one step where that is possible."""
        if found is not None and stat.S_ISDIR(found.st_mode):
            remove_tree(place.folder, place.name)
        os.rename(fresh, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        self.written += 1
        boundary.passed(Boundary.ENTRY_WRITTEN)

    def _dressed(self, place: Place, row: Row, mode: int | None) -> bool:
        """Give an entry the row's metadata where it has another. `mode`: what it had before it was opened up."""
        found, has = place.stat(), attributes(place, ours=True) or {}
        wanted = dict(row.attributes)
        now = stat.S_IMODE(found.st_mode) if mode is None else mode
        same_mode = now == stat.S_IMODE(row.mode) and stat.S_IMODE(found.st_mode) == now
        same = (found.st_uid, found.st_gid, found.st_mtime_ns) == (row.uid, row.gid, row.mtime_ns)
        if same and (same_mode or row.kind == stat.S_IFLNK) and has == wanted:
            return True
        if place.name and has != wanted and row.kind != stat.S_IFLNK:
            os.chmod(place.name, 0o600, dir_fd=place.folder)  # a mode without `w` is an obstacle to its owner too
        for name in has.keys() - wanted.keys():
            os.removexattr(place.path(), name, follow_symlinks=not place.name)
        times = (found.st_atime_ns, row.mtime_ns)
        return set_metadata(place, Metadata(row.mode, row.uid, row.gid, times, wanted), special=True)


def _found(place: Place) -> os.stat_result | None:
    try:
        return place.stat()
    except FileNotFoundError:
        return None


def _holds(folder: str, relative: str | None) -> bool:
    if relative is None:
        return False
    return not folder or relative.startswith(folder + "/")
