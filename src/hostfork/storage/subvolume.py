"""Btrfs subvolumes: the one that holds a path, those nested below a path, snapshots of all of them, and removal.

Nothing here walks a tree but the removal by a user whom the kernel does not let delete a subvolume.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator

from hostfork.storage import ioctls
from hostfork.storage.contract import Removal
from hostfork.storage.entry import FOLDER, open_quietly
from hostfork.storage.filesystem import Filesystem, all_mounts, mount_id
from hostfork.storage.pace import Pace
from hostfork.storage.tree import open_own, remove_tree
from hostfork.values import frozen

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Obstacle(Exception):
    """Why no snapshot can be had, as a clause, with the kernel's number where it said so."""

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.number = number


@frozen
class Place:
    """Where a path lies: the path of its subvolume's root, its own path relative to that (`.` for the root itself)."""

    root: str
    inside: str
    number: int

    def below(self, relative: str) -> str:
        """A path relative to the place as one relative to the root."""
        return relative if self.inside == "." else f"{self.inside}/{relative}"


@frozen
class Nested:
    """A subvolume below a place: its path relative to the containing subvolume's root, and its number."""

    path: str
    number: int


def containing(path: str, mount: Filesystem) -> Place:
    """The subvolume that holds a path, which lies on this mount. Raises Obstacle, OSError."""
    found = os.lstat(path)
    place = _climbed(path, stat.S_ISDIR(found.st_mode))
    if place is None:
        # The mount shows only a part of the subvolume: another one may show its root.
        relative = path[len(mount.point.rstrip("/")) :]
        whole = mount.root.rstrip("/") + relative
        place = next(
            filter(None, (_through(other, whole, found) for other in all_mounts() if _same(other, mount))), None
        )
    if place is None:
        raise Obstacle(f"the root of the Btrfs subvolume that holds {path} is reached through no mount")
    return place


def _same(one: Filesystem, other: Filesystem) -> bool:
    return one.number == other.number and one.mount != other.mount


def _through(mount: Filesystem, whole: str, found: os.stat_result) -> Place | None:
    """The place by another mount of the same filesystem, if it shows that path and nothing lies over it."""
    root = mount.root.rstrip("/")
    if not (whole + "/").startswith(root + "/"):
        return None
    path = mount.point.rstrip("/") + whole[len(root) :]
    try:
        there = os.lstat(path)
        if (there.st_dev, there.st_ino) != (found.st_dev, found.st_ino):
            return None
        return _climbed(path, stat.S_ISDIR(found.st_mode))
    except OSError:
        return None


def _climbed(path: str, is_folder: bool) -> Place | None:
    """Up to the subvolume's root; None where a mount's edge comes first."""
    folder = path if is_folder else os.path.dirname(path)
    opened = os.open(folder, _PATH)
    try:
        mount, above = mount_id(opened), folder
        while os.fstat(opened).st_ino != ioctls.ROOT_INODE:
            if above == "/":
                return None
            above = os.path.dirname(above)
            upper = os.open("..", _PATH, dir_fd=opened)
            os.close(opened)
            opened = upper
        # Through a mount inside the subvolume the way down would not be the way up.
        if mount_id(opened) != mount:
            return None
        return Place(above, os.path.relpath(path, above), _number_of(above))
    finally:
        os.close(opened)


def _number_of(root: str) -> int:
    opened = os.open(root, FOLDER)
    try:
        return ioctls.subvolume(opened).number
    finally:
        os.close(opened)


def open_root(place: Place) -> int:
    """The root of the place's subvolume. Raises Obstacle where another one is there now."""
    opened = open_quietly(place.root, FOLDER)
    if ioctls.subvolume(opened).number != place.number or os.fstat(opened).st_ino != ioctls.ROOT_INODE:
        os.close(opened)
        raise Obstacle(f"another subvolume came to {place.root} meanwhile")
    return opened


def nested_below(root: int, inside: str, omit: Collection[str] = ()) -> tuple[Nested, ...]:
    """Every subvolume below `inside` of the open subvolume, outer first, but for those at or below a path of `omit`.

    Paths are relative to the open root. Raises Obstacle where this user cannot know.
    """
    found: list[Nested] = []
    for path, number in _direct(root):
        if _within(path, inside) and path != inside and not any(_within(path, other) for other in omit):
            found.append(Nested(path, number))
            found += _deeper(root, path, number, omit)
    return tuple(sorted(found, key=lambda one: one.path.count("/")))


def _direct(root: int) -> Iterator[tuple[str, int]]:
    for reference in ioctls.nested(root):
        try:
            yield ioctls.place_of(reference, root), reference.number
        except FileNotFoundError:
            continue  # it went away meanwhile
        except PermissionError as error:
            reason = f"a subvolume in it ({reference.number}) lies where this user may not look"
            raise Obstacle(reason, error.errno) from error
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise Obstacle(f"a subvolume in it ({reference.number}) lies too deep", error.errno) from error


def _deeper(root: int, path: str, number: int, omit: Collection[str]) -> list[Nested]:
    """What is nested in a nested subvolume, relative to the outer root."""
    opened = open_nested(root, Nested(path, number))
    try:
        inner = [other[len(path) + 1 :] for other in omit if _within(other, path)]
        return [Nested(f"{path}/{one.path}", one.number) for one in nested_below(opened, ".", inner)]
    finally:
        os.close(opened)


def open_nested(root: int, one: Nested) -> int:
    """A nested subvolume. Raises Obstacle where something else lies over it."""
    try:
        opened = _open_below(one.path, root)
    except PermissionError as error:
        raise Obstacle(f"the subvolume {one.path} beneath it cannot be read by this user", error.errno) from error
    try:
        same = ioctls.subvolume(opened).number == one.number
    except OSError:
        same = False
    if not same:
        os.close(opened)
        raise Obstacle(f"a mount lies over the subvolume {one.path} beneath it")
    return opened


def _within(path: str, folder: str) -> bool:
    return folder == "." or path == folder or path.startswith(folder + "/")


def snapshot_nested(source: int, target: int, nested: Collection[Nested]) -> None:
    """Put snapshots of the nested subvolumes of `source` in the place of their stubs in its snapshot `target`.

    Both are open roots. The folders that hold them keep their times.
    """
    for one in nested:
        opened = _open_below(one.path, source)
        try:
            with _Held(target, one.path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
                ioctls.snapshot(opened, name, folder)
        finally:
            os.close(opened)


def blank(source: int, target: int, inside: str, omit: Collection[str]) -> None:
    """In a snapshot: an omitted file becomes empty, an omitted folder an empty one like the original.

    What such a folder held is moved out of `inside` and not removed, which takes time. Where `inside` is the whole
    subvolume or this user may not move it, it stays: a mount covers it in the view.
    """
    for path in omit:
        try:
            found = _stat(path, target)
            if stat.S_ISREG(found.st_mode) and found.st_size:
                _replace(target, path, found, os.unlink)
            elif found.st_ino == ioctls.STUB_INODE:
                _replace(target, path, _stat(path, source), os.rmdir)
            elif stat.S_ISDIR(found.st_mode) and inside != ".":
                _replace(target, path, found, _out_of(target))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EXDEV):
                raise


def _out_of(target: int) -> Callable[..., None]:
    """Moves an entry to the top of the snapshot, under a name that nothing has."""

    def move(name: str, *, dir_fd: int) -> None:
        number = 0
        while True:
            aside = f".hostfork-omitted-{number}"
            try:
                os.stat(aside, dir_fd=target, follow_symlinks=False)
            except FileNotFoundError:
                return os.rename(name, aside, src_dir_fd=dir_fd, dst_dir_fd=target)
            number += 1

    return move


def _stat(path: str, root: int) -> os.stat_result:
    with _Held(root, path, leave=True) as (folder, name):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _replace(target: int, path: str, like: os.stat_result, clear: Callable[..., None]) -> None:
    with _Held(target, path) as (folder, name):
        clear(name, dir_fd=folder)
        if stat.S_ISDIR(like.st_mode):
            os.mkdir(name, 0o700, dir_fd=folder)
            opened = os.open(name, FOLDER, dir_fd=folder)
        else:
            opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            if os.geteuid() == 0:
                os.fchown(opened, like.st_uid, like.st_gid)
            os.fchmod(opened, stat.S_IMODE(like.st_mode))
        finally:
            os.close(opened)


def _open_below(path: str, root: int) -> int:
    """A folder below an open one. A symlink on the way, which could lead to the host's, is ELOOP."""
    from hostfork.helper import syscalls  # with it comes ctypes, which takes milliseconds

    return syscalls.openat2(root, path or ".", FOLDER, resolve=syscalls.RESOLVE_NO_SYMLINKS)


class _Held:
    """The open folder that holds a path, and the name in it; its times and mode are put back, unless they are left."""

    def __init__(self, root: int, path: str, leave: bool = False) -> None:
        self._above, self._name = os.path.split(path)
        self._root, self._leave = root, leave

    def __enter__(self) -> tuple[int, str]:
        self._folder = _open_below(self._above, self._root)
        self._found = os.fstat(self._folder)
        if not self._leave and self._found.st_uid == os.geteuid() and not self._found.st_mode & stat.S_IWUSR:
            os.fchmod(self._folder, self._found.st_mode | stat.S_IWUSR)
        return self._folder, self._name

    def __exit__(self, *_: object) -> None:
        try:
            if not self._leave and os.geteuid() in (0, self._found.st_uid):
                os.fchmod(self._folder, stat.S_IMODE(self._found.st_mode))
                os.utime(self._folder, ns=(self._found.st_atime_ns, self._found.st_mtime_ns))
        finally:
            os.close(self._folder)


def seal(root: int, nested: Collection[Nested]) -> None:
    """Make a snapshot read-only, and what is nested in it."""
    for one in nested:
        opened = _open_below(one.path, root)
        try:
            ioctls.set_read_only(opened, True)
        finally:
            os.close(opened)
    ioctls.set_read_only(root, True)


def is_root(name: str, folder: int) -> bool:
    """Whether `name` in the open folder is the root of a subvolume."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return found.st_ino == ioctls.ROOT_INODE and stat.S_ISDIR(found.st_mode) and found.st_dev != os.fstat(folder).st_dev


def erase(name: str, folder: int, pace: Pace) -> Removal:
    """Remove a subvolume of private storage with all that is nested in it. Raises OSError, OutOfTime.

    RECLAIMING where the kernel took it off the list; GONE where it had to be emptied, as by a user without
    `user_subvol_rm_allowed`.
    """
    if _destroyed(name, folder):
        return Removal.RECLAIMING
    root = open_own(name, folder)
    try:
        for path in reversed(_writable(root)):
            above = _open_below(os.path.dirname(path), root)
            try:
                ioctls.destroy(os.path.basename(path), above)
            finally:
                os.close(above)
    except (PermissionError, Obstacle):
        pass  # the kernel wants it empty then
    finally:
        os.close(root)
    if _destroyed(name, folder):
        return Removal.RECLAIMING
    remove_tree(name, folder, pace)
    return Removal.GONE


def _destroyed(name: str, folder: int) -> bool:
    """Try the ioctl. It wants no other subvolume inside, and of a user write access and the mount option."""
    try:
        ioctls.destroy(name, folder)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOTEMPTY):
            raise
        return False
    return True


def _writable(root: int) -> list[str]:
    """Take the read-only flag from a subvolume and all nested ones; their paths, outer first."""
    if ioctls.is_read_only(root):
        ioctls.set_read_only(root, False)
    found = []
    for path, _ in _direct(root):
        opened = _open_below(path, root)
        try:
            found += [path, *(f"{path}/{inner}" for inner in _writable(opened))]
        finally:
            os.close(opened)
    return sorted(found, key=lambda one: one.count("/"))


def quota_groups(path: str) -> bool:
    """Whether the Btrfs of a path counts quota groups; simple quotas cost nothing. Raises OSError."""
    opened = os.open(path, FOLDER)
    try:
        number = ioctls.filesystem_id(opened).hex()
    finally:
        os.close(opened)
    parts = (number[:8], number[8:12], number[12:16], number[16:20], number[20:])
    folder = f"/sys/fs/btrfs/{'-'.join(parts)}/qgroups"
    if not os.path.isdir(folder):
        return False
    try:
        with open(f"{folder}/mode", encoding="ascii") as file:
            return file.read().strip() != "squota"
    except FileNotFoundError:  # before 6.7 there were no simple ones
        return True
