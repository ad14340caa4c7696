"""The folders of the host in which an apply works: open by descriptor, no symlink followed, known by device and inode.

What cannot be replaced there is found here, before the first write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections import OrderedDict
from collections.abc import Sequence

from hostfork.apply.steps import Target
from hostfork.collect.walk import Place
from hostfork.errors import ApplyError, Code
from hostfork.helper import syscalls

_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_MOST_OPEN = 128
_LONG = 3000
"""Bytes of a path; the kernel takes up to 4095."""
_FIXED = 0x10 | 0x20
"""STATX_ATTR_IMMUTABLE and _APPEND (linux/stat.h)."""
_MOUNT_ROOT = 0x2000
_GETFSXATTR = 0x801C581F
_PROJECT = 0x200
"""FS_XFLAG_PROJINHERIT: what comes from elsewhere belongs to another project, and a rename is EXDEV."""


class Targets:
    """The target folders, open while this lasts."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self._roots: list[int] = []
        self._open: OrderedDict[tuple[int, str], int] = OrderedDict()

    def __enter__(self) -> Targets:
        try:
            for target in self.targets:
                self._roots.append(open_root(target.path))
                found = os.fstat(self._roots[-1])
                if (found.st_dev, found.st_ino) != (target.device, target.inode):
                    raise FileNotFoundError(errno.ESTALE, "is another folder now", target.path)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self.forget()
        while self._roots:
            os.close(self._roots.pop())

    def forget(self) -> None:
        """Open the folders below the targets anew when they are needed."""
        while self._open:
            os.close(self._open.popitem()[1])

    def folder(self, target: int, name: str) -> int:
        """A folder below a target, open until others are asked for. Raises OSError, ELOOP at a symlink."""
        if not name:
            return self._roots[target]
        key = (target, name)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        while len(self._open) >= _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        self._open[key] = _open_below(self._roots[target], name)
        return self._open[key]

    def place(self, target: int, name: str) -> Place:
        """A name below a target; "" is the target itself."""
        above, _, last = name.rpartition("/")
        return Place(self.folder(target, above), last)


def target_of(path: str) -> Target:
    """The folder at a path as it is now. Raises OSError."""
    folder = open_root(path)
    try:
        found = os.fstat(folder)
        return Target(path, found.st_dev, found.st_ino)
    finally:
        os.close(folder)


def open_root(path: str) -> int:
    """An absolute path without symlinks in it, as the plan resolved it."""
    if len(os.fsencode(path)) <= _LONG:
        return syscalls.openat2(syscalls.AT_FDCWD, path, _FOLDER, resolve=syscalls.RESOLVE_NO_SYMLINKS)
    root = os.open("/", _FOLDER | os.O_CLOEXEC)
    try:
        return _open_below(root, path.lstrip("/"), syscalls.RESOLVE_NO_SYMLINKS)
    finally:
        os.close(root)


def _open_below(folder: int, name: str, resolve: int = _RESOLVE) -> int:
    above = -1
    while True:
        part = name
        if len(os.fsencode(name)) > _LONG:
            end = name.rindex("/", 0, _LONG // 4)
            part, name = name[:end], name[end + 1 :]
        else:
            name = ""
        try:
            opened = _open_folder(folder, part, resolve)
        finally:
            if above >= 0:
                os.close(above)
        if not name:
            return opened
        folder = above = opened


def _open_folder(folder: int, name: str, resolve: int) -> int:
    try:
        return syscalls.openat2(folder, name, _FOLDER, resolve=resolve)
    except PermissionError:
        return syscalls.openat2(folder, name, _PATH, resolve=resolve)  # names can be changed without reading


def why_closed(folder: int) -> str:
    """Why the kernel will not let names in this folder be replaced, added or removed, or nothing."""
    found = os.fstat(folder)
    if syscalls.statx_attributes(folder, "") & _FIXED:
        return "its folder is immutable or append-only"
    if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
        return "its filesystem is read-only"
    if may_change(folder, found):
        return ""
    return f"its folder belongs to user {found.st_uid}, and you may not write it"


def why_fixed(place: Place) -> str:
    """Why the kernel will not let what is there be replaced, removed or changed, or nothing."""
    attributes = syscalls.statx_attributes(place.folder, place.name)
    if attributes & _MOUNT_ROOT and place.name:
        return "something is mounted on it"
    if attributes & _FIXED:
        return "it is immutable or append-only"
    return ""


def why_held(place: Place, found: os.stat_result, above: os.stat_result) -> str:
    """Why this user may not take what is there out of its folder, which it may write."""
    user = os.geteuid()
    if above.st_mode & stat.S_ISVTX and user not in (0, above.st_uid, found.st_uid):
        return "its folder is sticky, and it belongs to somebody else"
    if stat.S_ISDIR(found.st_mode) and user not in (0, found.st_uid) and not _access(place.folder, place.name):
        return "the folder belongs to somebody else, and you may not write it"
    return ""


def may_change(folder: int, found: os.stat_result) -> bool:
    """Whether names in this folder can be changed, after its owner has lent itself the bits where they are missing."""
    return found.st_uid == os.geteuid() or _access(folder, ".")


def must_lend(folder: int, found: os.stat_result) -> bool:
    """Whether its owner lacks the bits."""
    return found.st_uid == os.geteuid() and not _access(folder, ".")


def _access(folder: int, name: str) -> bool:
    return os.access(name, os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True)


def renames_into(stage: int, folder: int) -> bool:
    """Whether a rename from one folder into the other works, as far as that can be known without making a name there.

    The kernel looks whether both lie on one mount before it sees that `.` is there already; the device tells Btrfs's
    subvolumes apart, and a flag of the folder projects of quotas.
    """
    if os.fstat(stage).st_dev != os.fstat(folder).st_dev or _has_project(folder):
        return False
    try:
        syscalls.renameat2("trial", ".", syscalls.RENAME_NOREPLACE, old_folder=stage, new_folder=folder)
    except FileExistsError:
        return True
    except OSError:
        return False
    return False


def _has_project(folder: int) -> bool:
    found = bytearray(28)
    try:
        fcntl.ioctl(folder, _GETFSXATTR, found)
    except OSError:
        return False
    return bool(int.from_bytes(found[:4], "little") & _PROJECT)


def blocked(reasons: Sequence[tuple[str, str]]) -> ApplyError:
    """What cannot be replaced, path by path with the reason."""
    number = len(reasons)
    shown = tuple(f"{path}: {why}" for path, why in reasons[:10])
    more = (f"and {number - 10} more",) if number > 10 else ()
    return ApplyError(
        Code.APPLY_BLOCKED,
        f"{'1 path' if number == 1 else f'{number} paths'} of the host cannot be replaced; nothing was applied",
        step="check", path=reasons[0][0], details=shown + more,
        hint="put right what is named, or name the paths that are to be applied: hostfork apply FORK PATH",
    )  # fmt: skip
