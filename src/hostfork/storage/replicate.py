"""Taking a whole tree into a folder of the pool: the walk, hard links, workers for large trees, the witness.

How a file's content is taken, by reading it or by sharing its blocks, is the copier's.

The walk goes down one folder at a time. A folder's files are copied at once, here or by a worker; its own metadata is
set when all of its entries are made, since making them changes its times. Files with several names are copied once,
into `links` beside the tree, and linked from there; the last name takes the file by rename, so that the copy has as
many links as the original and a filesystem's limit is enough.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from hostfork.helper.shapes import NamedTuple
from hostfork.storage.contract import Progress, Source, Witness
from hostfork.storage.crew import BATCH, FOLDERS, Crew, Part, PartError
from hostfork.storage.entry import FOLDER, Copier, Extra, Outcome, Taken, Wanted, read_extra
from hostfork.storage.tree import Descent

_CREW_FROM = 1000
"""Files after which workers are started, if a processor is idle, and looked for again: below, the copy is over
before they would be ready."""
_TELL = 256
_FULL = 1000
"""Unreadable or unstable paths after which a copy gives up."""


class Refused(Exception):
    """Enough is wrong with the tree; the lists of the replica say what."""


class _Level:
    """A folder that is being copied."""

    def __init__(self, relative: str, found: os.stat_result, wanted: Wanted, extra: Extra, folders: list[str]) -> None:
        self.relative = relative
        self.found = found
        self.wanted = wanted
        self.extra = extra
        self.folders = folders
        self.given = 0
        self.left = False


class _Link(NamedTuple):
    """A file with several names: its copy in `links`, and the names that it has in the tree so far."""

    name: str
    source: os.stat_result
    taken: Taken
    names: list[str]


class Replica:
    """One copy of one tree. The counts and lists are final when `folder` or `single` returns."""

    def __init__(
        self,
        source: Source,
        links: int,
        witness: Witness | None = None,
        progress: Progress | None = None,
        copier: Copier | None = None,
    ) -> None:
        self.files = 0
        self.bytes = 0
        self.unwritable: list[str] = []
        self.lost: list[tuple[str, tuple[str, ...]]] = []
        self.unreadable: list[str] = []
        self.skipped: list[str] = []
        self.unstable: list[str] = []
        self.at = ""
        """The relative path that is being copied, for an error."""
        self._omit: dict[str, set[str]] = {}
        for path in source.omit:
            above, _, name = path.rpartition("/")
            self._omit.setdefault(above, set()).add(name)
        self._skip = source.skip_unreadable
        self._links_folder = links
        self._links: dict[tuple[int, int], _Link] = {}
        self._witness = witness
        self._progress = progress
        self._copier = copier or Copier()
        self._crew = Crew(self._copier.kind)
        self._parts: list[Part] = []
        self._own = (-1, -1)
        self._seen = 0
        self._copies = 0

    def single(self, source: int, name: str, target: int, as_name: str) -> None:
        """Copy one entry that is no folder; other names of a file do not matter."""
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode):
            taken = self._copier.file(source, name, target, as_name, links=True)
        else:
            taken = self._copier.node(source, name, target, as_name)
        if taken.outcome is Outcome.GONE:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self._note("", taken)

    def folder_as(self, source: int, room: int, name: str) -> None:
        """The same into a new folder of that name in an open one."""
        os.mkdir(name, 0o700, dir_fd=room)
        target = os.open(name, FOLDER, dir_fd=room)
        try:
            self.folder(source, target)
        finally:
            os.close(target)

    def folder(self, source: int, target: int) -> None:
        """Copy what the open folder `source` holds into the open, empty folder `target`, and its own metadata."""
        sources, targets = Descent(source, self._copier.opener), Descent(target, _open_target)
        levels = [self._level("", source)]
        found = os.fstat(target)
        self._own = found.st_dev, found.st_ino
        try:
            self._entries(levels[0], source, target)
            while levels:
                if levels[-1].folders:
                    self._enter(levels, sources, targets)
                    continue
                level = levels.pop()
                level.left = True
                if levels:
                    sources.leave()
                # Up first: the mode that the copy gets may forbid the way.
                folder = targets.rise() if levels else os.dup(target)
                try:
                    if not level.given:
                        self._finish(level, folder)
                finally:
                    os.close(folder)
            self._collect_all()
            self._finish_links()
        finally:
            self._crew.end()
            for part in self._parts:
                part.close()
            sources.close()
            targets.close()

    def _level(self, relative: str, folder: int) -> _Level:
        found = os.fstat(folder)
        return _Level(relative, found, self._copier.wanted(found, folder, "."), read_extra(folder), [])

    def _enter(self, levels: list[_Level], sources: Descent, targets: Descent) -> None:
        """Go into the next folder of the present level and copy its entries."""
        name = levels[-1].folders.pop()
        relative = self.at = _below(levels[-1].relative, name)
        try:
            sources.enter(name)
        except FileNotFoundError:
            return
        except PermissionError:
            self._closed(relative, True, sources.folder, name, targets.folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            self._bad(self.unstable, relative)
            return
        level = self._level(relative, sources.folder)
        if (level.found.st_dev, level.found.st_ino) == self._own:
            sources.leave()  # the copy itself, in a pool below the source
            return
        mode = level.wanted.mode & 0o777
        os.mkdir(name, mode if mode & 0o700 == 0o700 else 0o700, dir_fd=targets.folder)
        targets.enter(name)
        levels.append(level)
        self._entries(level, sources.folder, targets.folder)

    def _entries(self, level: _Level, source: int, target: int) -> None:
        """Copy all entries of one folder but its folders, which are noted."""
        files, nodes = [], []
        omitted = self._omit.get(level.relative, ())
        with os.scandir(source) as entries:
            for entry in entries:
                if entry.name in omitted:
                    self._stand_in(source, entry.name, entry.is_dir(follow_symlinks=False), target)
                elif entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    level.folders.append(entry.name)
                else:
                    nodes.append(entry.name)
        for name in nodes:
            self.at = _below(level.relative, name)
            self._took(self.at, self._copier.node(source, name, target, name), source, name, target)
        for start in range(0, len(files), BATCH):
            self._files(level, source, target, files[start : start + BATCH])

    def _files(self, level: _Level, source: int, target: int, names: list[str]) -> None:
        """Copy some files of one folder, or give them away."""
        before, self._seen = self._seen, self._seen + len(names)
        if self._seen >= _CREW_FROM:
            if before // _CREW_FROM != self._seen // _CREW_FROM:
                self._crew.start()
            self._collect()
            # Once something cannot be read the copy will be refused: then files are only looked at, here.
            if names and self._crew.free() is not None and not self.unreadable:
                self._parts.append(Part(level, os.dup(source), os.dup(target), names))
                level.given += 1
                if len(self._parts) >= FOLDERS or sum(len(part.names) for part in self._parts) >= BATCH:
                    self._give()
                return
        self._copy_files(level.relative, source, target, names)

    def _give(self) -> None:
        """Give the parts that wait to a worker; there is one that has room."""
        worker = self._crew.free()
        if worker is not None:
            worker.give(self._parts)
            self._parts = []

    def _copy_files(self, above: str, source: int, target: int, names: list[str]) -> None:
        for name in names:
            self.at = _below(above, name)
            taken = self._copier.file(source, name, target, name, look=bool(self.unreadable))
            self._took(self.at, taken, source, name, target)

    def _collect(self) -> None:
        """Take what workers have finished."""
        for part, outcomes in self._finished():
            self._close_part(part, outcomes)

    def _collect_all(self) -> None:
        """Do what still waits here and take all that was given away."""
        while self._parts:
            part = self._parts.pop()
            self._copy_files(part.level.relative, part.source, part.target, part.names)
            self._close_part(part, [])
        for part, outcomes in self._finished(wait=True):
            self._close_part(part, outcomes)

    def _finished(self, wait: bool = False) -> Iterator[tuple[Part, list[Taken]]]:
        try:
            yield from self._crew.finished(wait)
        except PartError as error:
            self.at = _below(error.part.level.relative, error.name)
            raise

    def _close_part(self, part: Part, outcomes: list[Taken]) -> None:
        level: _Level = part.level
        try:
            for name, given in zip(part.names, outcomes, strict=False):
                taken = given
                if taken.outcome is Outcome.UNREADABLE:  # not to us, perhaps
                    taken = self._copier.file(part.source, name, part.target, name)
                self._took(_below(level.relative, name), taken, part.source, name, part.target)
            level.given -= 1
            if level.left and not level.given:
                self._finish(level, part.target)
        finally:
            part.close()

    def _took(self, relative: str, taken: Taken, source: int, name: str, target: int) -> None:
        if taken.copy is None and taken.source is not None:  # LINKED
            self._linked(relative, taken.source, source, name, target)
        elif taken.outcome is Outcome.UNREADABLE:
            self._closed(relative, False, source, name, target)
        else:
            self._note(relative, taken)

    def _note(self, relative: str, taken: Taken) -> None:
        """Count one outcome and tell the witness."""
        if taken.source is None or taken.copy is None:
            return self._missed(relative, taken.outcome)
        self.files += 1
        self.bytes += taken.bytes
        if taken.unwritable:
            self.unwritable.append(relative)
        if taken.lost:
            self.lost.append((relative, taken.lost))
        if self._witness is not None:
            self._witness(os.fsencode(relative), taken.source, taken.copy)
        if self._progress is not None and self.files % _TELL == 0:
            self._progress(self.files, self.bytes)
        return None

    def _missed(self, relative: str, outcome: Outcome) -> None:
        if outcome is Outcome.UNREADABLE:
            self._bad(self.unreadable, relative)
        elif outcome is Outcome.UNSTABLE:
            self._bad(self.unstable, relative)

    def _closed(self, relative: str, folder: bool, source: int, name: str, target: int) -> None:
        """What this user cannot read: refused with the others, or an empty stand-in that is as closed."""
        if not self._skip:
            return self._bad(self.unreadable, relative)
        self._stand_in(source, name, folder, target, closed=True)
        return self.skipped.append(relative)

    def _bad(self, paths: list[str], relative: str) -> None:
        paths.append(relative)
        if len(paths) >= _FULL:
            raise Refused

    def _finish(self, level: _Level, target: int) -> None:
        self.at = level.relative
        self._note(level.relative, self._copier.folder(target, level.found, level.wanted, level.extra))

    def _linked(self, relative: str, found: os.stat_result, source: int, name: str, target: int) -> None:
        """One name of a file that has several."""
        identity = found.st_dev, found.st_ino
        link = self._links.get(identity) or self._first_name(relative, source, name)
        if link is None:
            return None
        link.names.append(relative)
        if len(link.names) < link.source.st_nlink:
            os.link(link.name, name, src_dir_fd=self._links_folder, dst_dir_fd=target, follow_symlinks=False)
            return None
        os.rename(link.name, name, src_dir_fd=self._links_folder, dst_dir_fd=target)
        del self._links[link.source.st_dev, link.source.st_ino]
        return self._tell_link(link, os.stat(name, dir_fd=target, follow_symlinks=False))

    def _first_name(self, relative: str, source: int, name: str) -> _Link | None:
        """Copy the file into `links`; None where it could not be taken, which is noted."""
        self._copies += 1
        staged = str(self._copies)
        taken = self._copier.file(source, name, self._links_folder, staged, links=True, look=bool(self.unreadable))
        if taken.source is None:
            self._note(relative, taken)
            return None
        self.bytes += taken.bytes
        identity = taken.source.st_dev, taken.source.st_ino
        if identity in self._links:  # the name was replaced by one of a file that we have
            os.unlink(staged, dir_fd=self._links_folder)
        else:
            self._links[identity] = _Link(staged, taken.source, taken, [])
        return self._links[identity]

    def _finish_links(self) -> None:
        """Files with names outside of the tree: their copy's name in `links` goes."""
        for link in self._links.values():
            handle = os.open(link.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._links_folder)
            try:
                os.unlink(link.name, dir_fd=self._links_folder)
                self._tell_link(link, os.fstat(handle))
            finally:
                os.close(handle)
        self._links.clear()

    def _tell_link(self, link: _Link, copy: os.stat_result) -> None:
        for relative in link.names:
            self._note(relative, link.taken._replace(copy=copy, bytes=0))

    def _stand_in(self, source: int, name: str, folder: bool, target: int, closed: bool = False) -> None:
        """An empty folder or file with the original's owner and mode, where something else will be mounted.

        `closed`: nothing will be, and it can be opened no more than the original.
        """
        if folder:
            os.mkdir(name, 0o700, dir_fd=target)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target))
        try:
            found = os.stat(name, dir_fd=source, follow_symlinks=False)
        except PermissionError:
            if closed:
                os.chmod(name, 0, dir_fd=target)
            return  # a FUSE mount of another user's shows nothing, not even to root
        wanted = self._copier.wanted(found, source, name)
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=target)
        try:
            os.fchown(opened, wanted.uid, wanted.gid)
            os.fchmod(opened, (wanted.mode if folder else wanted.mode & 0o777) & (~0o444 if closed else -1))
            os.utime(opened, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(opened)


def _below(above: str, name: str) -> str:
    return f"{above}/{name}" if above else name


def _open_target(name: str, folder: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
