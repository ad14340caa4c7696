"""Walking, measuring, pruning and removing trees by folder descriptor, never through a symlink, at any depth."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from itertools import islice

from hostfork.helper.shapes import NamedTuple
from hostfork.storage.entry import FOLDER, open_quietly
from hostfork.storage.pace import CHUNK, STEADY, Pace

_KEPT = 50
"""Descriptors that one descent keeps open; processes have 1024 by default."""
_ASIDE = ".hostfork-deep-"


class FolderMovedError(OSError):
    """A folder was moved while we were below it."""


class Descent:
    """The way from a root folder down to the present one. Far up, descriptors are closed and found again by `..`.

    Owns every descriptor but the root's. `opener` opens a folder of a name in an open folder.
    """

    def __init__(self, root: int, opener: Callable[[str, int], int]) -> None:
        found = os.fstat(root)
        self._way: list[tuple[int, int, int]] = [(root, found.st_dev, found.st_ino)]
        self._opener = opener

    @property
    def folder(self) -> int:
        return self._way[-1][0]

    @property
    def depth(self) -> int:
        return len(self._way) - 1

    def enter(self, name: str, found: os.stat_result | None = None) -> int:
        """Go down into `name` and return its descriptor; `found`: its stat, where it is known. Raises OSError, and
        stays."""
        folder = self._opener(name, self._way[-1][0])
        found = found or os.fstat(folder)
        self._way.append((folder, found.st_dev, found.st_ino))
        far = len(self._way) - 1 - _KEPT
        if far > 0 and self._way[far][0] >= 0:
            os.close(self._way[far][0])
            self._way[far] = (-1, *self._way[far][1:])
        return folder

    def leave(self) -> None:
        """Go up again. Raises FolderMovedError where `..` is not the folder we came through."""
        os.close(self.rise())

    def rise(self) -> int:
        """Go up and return the folder that was left, still open: the caller's to finish and close."""
        child = self._way.pop()[0]
        try:
            folder, device, inode = self._way[-1]
            if folder < 0:
                folder = self._opener("..", child)
                self._way[-1] = (folder, device, inode)
                found = os.fstat(folder)
                if (found.st_dev, found.st_ino) != (device, inode):
                    raise FolderMovedError(errno.ESTALE, "a folder was moved during a walk")
        except BaseException:
            os.close(child)
            raise
        return child

    def close(self) -> None:
        """Give up all descriptors but the root's."""
        while len(self._way) > 1:
            folder = self._way.pop()[0]
            if folder >= 0:
                os.close(folder)


def open_source(name: str, folder: int) -> int:
    """A host folder, its access time left alone."""
    return open_quietly(name, FOLDER, folder)


def open_own(name: str, folder: int) -> int:
    """A folder of private storage, which belongs to us; a mode in the way is no obstacle and is changed."""
    try:
        opened = os.open(name, FOLDER, dir_fd=folder)
    except PermissionError:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        finally:
            os.close(handle)
        opened = os.open(name, FOLDER, dir_fd=folder)
    return opened


class Entry(NamedTuple):
    """One entry of a walk: the open folder that holds it, its name there, its path below the root, its stat."""

    folder: int
    name: str
    relative: str
    found: os.stat_result


def walk(
    root: int,
    opener: Callable[[str, int], int],
    omit: Collection[str] = (),
    skip_closed: bool = False,
    closed: list[str] | None = None,
) -> Iterator[Entry]:
    """Every entry below the open folder `root`, folders before their content; `omit` are left out with all below.

    A folder that cannot be opened raises PermissionError after it was yielded, unless `skip_closed`. So does an entry
    that cannot be seen, which is not yielded. With a list `closed` it takes the paths of both.
    """
    descent, skip = Descent(root, opener), [] if skip_closed and closed is None else closed
    try:
        pending = [_listed(root, "", omit, skip)]
        while pending:
            if not pending[-1]:
                pending.pop()
                if pending:
                    descent.leave()
                continue
            name, relative, found = pending[-1].pop()
            yield Entry(descent.folder, name, relative, found)
            if stat.S_ISDIR(found.st_mode):
                try:
                    folder = descent.enter(name)
                except FileNotFoundError:
                    continue
                except PermissionError:
                    if skip is None:
                        raise
                    skip.append(relative)
                    continue
                pending.append(_listed(folder, relative + "/", omit, skip))
    finally:
        descent.close()


def _listed(
    folder: int, prefix: str, omit: Collection[str], skip: list[str] | None
) -> list[tuple[str, str, os.stat_result]]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            relative = prefix + entry.name
            if relative in omit:
                continue
            try:
                found.append((entry.name, relative, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
            except PermissionError:
                if skip is None:
                    raise
                skip.append(relative)
    return found


def remove_tree(name: str, folder: int, pace: Pace = STEADY) -> None:
    """Remove `name`, whatever it is, from the open `folder`; private storage only. It may be gone already.

    A folder of mode 0000 gets its bits first; root's immutable flags are taken away; depth does not matter. An OSError
    names the path below `name`. Raises OutOfTime as `pace` says.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return _unlink(name, folder)
        tries = 0
        # What lies too deep is moved to the root's own level and removed in the next round.
        while (left := _emptied(name, folder, pace)) is not _Left.NOTHING:
            tries += left is _Left.NEW
            if tries > 20:
                raise OSError(errno.ENOTEMPTY, "something keeps making new entries", name)
    except FileNotFoundError:
        return None
    return _remove_folder(name, folder)


class _Left(Enum):
    """Why one round did not empty a folder."""

    NOTHING = 0
    DEEP = 1
    NEW = 2


def _emptied(name: str, folder: int, pace: Pace) -> _Left:
    # Opened anew for each round: on Btrfs a descriptor lists only what was there when it was opened.
    root = open_own(name, folder)
    try:
        return _empty(root, pace)
    finally:
        os.close(root)


def _empty(root: int, pace: Pace) -> _Left:
    left, aside, descent = _Left.NOTHING, 0, Descent(root, open_own)
    way, levels = [""], []
    try:
        levels.append(_unlinked(root, pace))
        while True:
            folders = levels[-1]
            if folders:
                inner = folders.pop()
                if descent.depth < _KEPT:
                    descent.enter(inner)
                    way.append(inner)
                    levels.append(_unlinked(descent.folder, pace))
                else:
                    aside, left = _put_aside(inner, descent.folder, root, aside), _Left.DEEP
                continue
            levels.pop()
            if not levels:
                return left
            descent.leave()
            name = way.pop()
            try:
                _remove_folder(name, descent.folder)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                # A worker that outlives its killed owner finishes the file that it was at.
                left = _Left.NEW
                time.sleep(0.01)
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = os.path.join(*way, error.filename)
        raise
    finally:
        descent.close()


def _unlinked(folder: int, pace: Pace) -> list[str]:
    """Unlink all but the folders in the open `folder` and return those."""
    folders = []
    with os.scandir(folder) as entries:
        while chunk := list(islice(entries, CHUNK)):
            for entry in chunk:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                    continue
                if pace.looks:
                    _look(entry, pace)
                _unlink(entry.name, folder)
            pace.went(len(chunk))
    return folders


def _look(entry: os.DirEntry[str], pace: Pace) -> None:
    try:
        pace.file(entry.stat(follow_symlinks=False))
    except (FileNotFoundError, PermissionError):
        return  # a folder that its owner closed: the removal opens it


def _unlink(name: str, folder: int) -> None:
    _forced(os.unlink, name, folder)


def _remove_folder(name: str, folder: int) -> None:
    _forced(os.rmdir, name, folder)


def _forced(remove: Callable[..., None], name: str, folder: int) -> None:
    """unlink or rmdir; where the folder's mode or a flag is in the way, that is changed and it is tried once more."""
    try:
        remove(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except PermissionError as error:
        if error.errno == errno.EPERM:
            _unlock(name, folder)
        try:
            os.fchmod(folder, 0o700)
        except PermissionError:  # another owner's
            raise error from None
        remove(name, dir_fd=folder)


def _unlock(name: str, folder: int) -> None:
    """Take away the immutable and append-only flags of a folder and of an entry in it; only root could set them."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    _unflag(folder)
    try:
        entry = os.open(name, flags, dir_fd=folder)
    except OSError:
        return  # no file or folder: such entries have no flags
    try:
        _unflag(entry)
    finally:
        os.close(entry)


def _unflag(opened: int) -> int:
    """Take away what locks an open file or folder, and return that."""
    from hostfork.storage import flags

    there = flags.read(opened)
    if there & flags.LOCKED:
        try:
            flags.write(opened, there & ~flags.LOCKED)
        except OSError as error:
            if error.errno != errno.EPERM:  # a user's: the removal says so
                raise
    return there & flags.LOCKED


def _lock(opened: int, locked: int) -> None:
    from hostfork.storage import flags

    flags.write(opened, flags.read(opened) | locked)


def _put_aside(name: str, folder: int, root: int, number: int) -> int:
    """Move a folder that lies deep to the root under a new name; returns the next number to use."""
    os.close(open_own(name, folder))  # a rename into another folder changes its `..` and needs its write bit
    while True:
        try:
            os.rename(name, f"{_ASIDE}{number}", src_dir_fd=folder, dst_dir_fd=root)
            return number + 1
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                os.fchmod(folder, 0o700)
                moved = os.open(name, FOLDER, dir_fd=folder)
                os.fchmod(moved, 0o700)
                os.close(moved)
                os.rename(name, f"{_ASIDE}{number}", src_dir_fd=folder, dst_dir_fd=root)
                return number + 1
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            number += 1


def prune(root: int, keep: Collection[str]) -> None:
    """Remove what is below the open private folder `root`, but for the paths in `keep` and the folders above them.

    Folders that stay keep their modes, times and flags.
    """
    stay = {path[:end] for path in keep for end in _ends(path)}
    descent = Descent(root, open_own)
    levels = [("", os.fstat(root), _unflag(root), _pruned(root, "", stay))]
    try:
        while levels:
            relative, _, _, folders = levels[-1]
            if folders:
                name, found = folders.pop()
                below = f"{relative}/{name}" if relative else name
                folder = descent.enter(name)
                levels.append((below, found, _unflag(folder), _pruned(folder, below, stay)))
                continue
            _, found, locked, _ = levels.pop()
            # Up first, since the mode that is put back may forbid the way.
            folder = descent.rise() if levels else os.dup(root)
            try:
                os.fchmod(folder, stat.S_IMODE(found.st_mode))
                os.utime(folder, ns=(found.st_atime_ns, found.st_mtime_ns))
                if locked:
                    _lock(folder, locked)
            finally:
                os.close(folder)
    finally:
        descent.close()


def _ends(path: str) -> Iterator[int]:
    """Where each folder above `path`, and `path` itself, ends."""
    yield len(path)
    end = path.rfind("/")
    while end > 0:
        yield end
        end = path.rfind("/", 0, end)


def _pruned(folder: int, relative: str, stay: Collection[str]) -> list[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    folders = []
    for name in names:
        if (f"{relative}/{name}" if relative else name) not in stay:
            remove_tree(name, folder)
            continue
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            folders.append((name, found))
    return folders
