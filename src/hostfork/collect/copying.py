"""Copying entries into a folder that is being made, with all metadata; what may not or cannot be made is noted."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hostfork.collect.depth import with_room
from hostfork.collect.final import Entry
from hostfork.collect.walk import FOLDER, Place, attributes, open_file
from hostfork.helper.shapes import NamedTuple

_FICLONE = 0x40049409
_LINUX_COPY = 1 << 30
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_CAPABILITY = "security.capability"
_FOLDER_MODE = 0o700
_LONG = 4000
"""Bytes of a path: the kernel takes no longer one than PATH_MAX, 4095."""


class TreeCopy:
    """Writes the entries of a walk below the folder descriptor `root`, which is empty and nobody else's yet.

    `special`: devices, sockets, set-uid and set-gid bits and file capabilities are made too. `left_out` holds the
    relative paths of what was not made as it was.
    """

    def __init__(self, root: int, special: bool) -> None:
        self.left_out: list[str] = []
        self._root = root
        self._special = special
        self._links: dict[tuple[int, int], str] = {}
        self._open: list[tuple[str, int, Entry, dict[str, bytes]]] = []

    def add(self, entry: Entry) -> None:
        """Write one entry. Folders come before what they hold; their metadata is set when they are complete."""
        self._leave(entry.relative)
        parent = self._open[-1][1] if self._open else self._root
        place = Place(parent, entry.relative.rpartition("/")[2])
        kind = stat.S_IFMT(entry.mode)
        if kind == stat.S_IFDIR:
            self._enter(entry, place)
        elif not self._linked(entry, place):
            maker = {stat.S_IFREG: self._file, stat.S_IFLNK: self._symlink, stat.S_IFIFO: self._fifo}
            if maker.get(kind, self._node)(entry, place):
                self._metadata(place, entry, self._attributes(entry))
                if entry.stat.st_nlink > 1:
                    self._links[entry.stat.st_dev, entry.stat.st_ino] = entry.relative

    def finish(self) -> None:
        """Set the metadata of the folders that are still open."""
        self._leave(None)

    def abandon(self) -> None:
        """Close what is open, after a failure."""
        while self._open:
            folder = self._open.pop()
            if folder[1] != self._root:
                os.close(folder[1])

    def _attributes(self, entry: Entry) -> dict[str, bytes]:
        """What the entry made gets of extended attributes and ACLs."""
        return attributes(entry.place, entry.changed) or {}

    def _enter(self, entry: Entry, place: Place) -> None:
        folder = self._root
        if entry.relative:
            os.mkdir(place.name, _FOLDER_MODE, dir_fd=place.folder)
            folder = with_room(os.open(place.name, FOLDER, dir_fd=place.folder))
        self._open.append((entry.relative, folder, entry, self._attributes(entry)))

    def _leave(self, relative: str | None) -> None:
        while self._open and not _holds(self._open[-1][0], relative):
            path, folder, entry, found = self._open.pop()
            try:
                self._metadata(Place(folder, ""), entry, found)
            finally:
                if path:
                    os.close(folder)

    def _linked(self, entry: Entry, place: Place) -> bool:
        first = self._links.get((entry.stat.st_dev, entry.stat.st_ino))
        if first is None:
            return False
        try:
            with parent_of(self._root, first) as (folder, name):
                os.link(name, place.name, src_dir_fd=folder, dst_dir_fd=place.folder, follow_symlinks=False)
        except PermissionError:
            return False  # the first one lies in a folder that is finished and closed: a copy of its own
        return True

    def _file(self, entry: Entry, place: Place) -> bool:
        try:
            source = open_file(entry.place, ours=entry.changed)
        except PermissionError:
            self.left_out.append(entry.relative)  # the base's, and the fork could not read it either
            return False
        try:
            new_copy(source, place)
        finally:
            os.close(source)
        return True

    def _symlink(self, entry: Entry, place: Place) -> bool:
        os.symlink(entry.place.link_target(), os.fsencode(place.name), dir_fd=place.folder)
        return True

    def _fifo(self, entry: Entry, place: Place) -> bool:
        os.mkfifo(place.name, 0o600, dir_fd=place.folder)
        return True

    def _node(self, entry: Entry, place: Place) -> bool:
        if self._special:
            try:
                os.mknod(place.name, stat.S_IFMT(entry.mode) | 0o600, entry.stat.st_rdev, dir_fd=place.folder)
                return True
            except PermissionError:
                pass  # devices are root's
        self.left_out.append(entry.relative)
        return False

    def _metadata(self, place: Place, entry: Entry, found: dict[str, bytes]) -> None:
        wanted = Metadata(entry.mode, entry.uid, entry.gid, (entry.stat.st_atime_ns, entry.mtime_ns), found)
        if not set_metadata(place, wanted, self._special):
            self.left_out.append(entry.relative)


class Metadata(NamedTuple):
    """What an entry is besides its content. `mode` with the kind, `times` access and modification in nanoseconds."""

    mode: int
    uid: int
    gid: int
    times: tuple[int, int]
    attributes: dict[str, bytes]


def set_metadata(place: Place, wanted: Metadata, special: bool) -> bool:
    """Give an entry of a folder that nobody else writes in its metadata; False where a part of it could not be given.

    Owner first: chown takes set-uid bits and capabilities away. Times last.
    """
    symlink = stat.S_ISLNK(wanted.mode)
    complete = _own(place, wanted)
    for name, value in wanted.attributes.items():
        may = special or name != _CAPABILITY
        complete = may and _set_attribute(place, name, value) and complete
    mode = stat.S_IMODE(wanted.mode)
    if not symlink and not stat.S_ISDIR(wanted.mode) and mode & _SPECIAL_BITS and not special:
        mode &= ~_SPECIAL_BITS
        complete = False
    if not place.name:
        os.fchmod(place.folder, mode)
        os.utime(place.folder, ns=wanted.times)
    else:
        if not symlink:
            # The name is ours and new: nobody else writes in a folder of mode 0700.
            os.chmod(place.name, mode, dir_fd=place.folder)
        os.utime(place.name, ns=wanted.times, dir_fd=place.folder, follow_symlinks=False)
    return complete


def _own(place: Place, wanted: Metadata) -> bool:
    now = place.stat()
    if (now.st_uid, now.st_gid) == (wanted.uid, wanted.gid):
        return True
    try:
        if place.name:
            os.chown(place.name, wanted.uid, wanted.gid, dir_fd=place.folder, follow_symlinks=False)
        else:
            os.fchown(place.folder, wanted.uid, wanted.gid)
        return True
    except PermissionError:
        return False


@contextmanager
def parent_of(root: int, relative: str) -> Iterator[tuple[int, str]]:
    """An open folder from which the rest of the path is short enough for the kernel, and that rest."""
    with ExitStack() as opened:
        folder = root
        while len(os.fsencode(relative)) > _LONG:
            end = relative.rindex("/", 0, _LONG // 4)  # a letter has up to four bytes, a name up to 255 of them
            folder = os.open(relative[:end], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
            opened.callback(os.close, folder)
            relative = relative[end + 1 :]
        yield folder, relative


def _holds(folder: str, relative: str | None) -> bool:
    if relative is None:
        return False
    return not folder or relative.startswith(folder + "/")


def _set_attribute(place: Place, name: str, value: bytes) -> bool:
    try:
        os.setxattr(place.path(), name, value, follow_symlinks=not place.name)
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EPERM, errno.EINVAL):
            raise
        return False


def new_copy(source: int, place: Place) -> None:
    """Make a new file with the content of an open one. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(place.name, flags, 0o600, dir_fd=place.folder)
    try:
        copy_content(source, target)
    finally:
        os.close(target)


def copy_content(source: int, target: int) -> None:
    """Share the blocks where the filesystem can, else copy within the kernel; holes stay holes."""
    import fcntl

    size = os.fstat(source).st_size
    if not size:
        return
    try:
        fcntl.ioctl(target, _FICLONE, source)
        return
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
    place = 0
    while place < size:
        start, end = _data(source, place, size)
        _copy_range(source, target, start, end)
        place = end
    os.ftruncate(target, size)


def _data(source: int, place: int, size: int) -> tuple[int, int]:
    """The next region that is no hole; empty at the end of the file."""
    try:
        start = os.lseek(source, place, os.SEEK_DATA)
        return start, os.lseek(source, start, os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size, size


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        try:
            done = os.copy_file_range(source, target, min(end - start, _LINUX_COPY), start, start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            done = os.pwrite(target, os.pread(source, min(end - start, 1 << 20), start), start)
        if not done:
            return  # the file became shorter
        start += done


def remove_tree(parent: int, name: str) -> None:
    """Remove an entry that hostfork made, with everything in it, through folders it has closed to itself too."""
    try:
        os.unlink(name, dir_fd=parent)
        return
    except (IsADirectoryError, PermissionError):
        pass  # unlink(2) of a folder: EISDIR on Linux, EPERM elsewhere
    folder = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{folder}", _FOLDER_MODE)
        opened = with_room(os.open(".", FOLDER, dir_fd=folder))
        try:
            for inner in os.listdir(opened):
                remove_tree(opened, inner)
        finally:
            os.close(opened)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)
