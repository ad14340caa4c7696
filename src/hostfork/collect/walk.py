"""Reading a tree by folder descriptors, never through a symlink: stat, link targets, attributes, content.

A `Place` is one name in an open folder. Whatever is done with it reaches that entry itself, also when somebody plants
a symlink in the tree at the same moment.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from hostfork.collect.depth import with_room
from hostfork.errors import Code, CollectError
from hostfork.helper.shapes import NamedTuple
from hostfork.vocabulary import EntryKind

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 18
_ACL = {"system.posix_acl_access", "system.posix_acl_default"}
_NOT_OURS = ("trusted.overlay.", "trusted.SGI_ACL_")
"""Overlayfs's marks, and the names by which XFS shows root each ACL once more."""


class Place(NamedTuple):
    """`name` in the folder `folder`; with an empty name, what the descriptor `folder` itself is open on.

    `under`: of a base that is a stack, the folders below `folder` in which entries of the same name may be merged into
    this one (see `stack`). Everything but listing is about the entry itself.
    """

    folder: int
    name: str
    under: tuple[int, ...] = ()

    def stat(self) -> os.stat_result:
        if not self.name:
            return os.fstat(self.folder)
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def path(self) -> str:
        """A path that the kernel resolves through the descriptor. Only for calls that do not follow its last part."""
        return f"/proc/self/fd/{self.folder}/{self.name}" if self.name else f"/proc/self/fd/{self.folder}"

    def link_target(self) -> bytes:
        return os.readlink(os.fsencode(self.name), dir_fd=self.folder)


class Facts(NamedTuple):
    """What can differ between two entries besides content and extended attributes. `mode` without the kind."""

    kind: EntryKind
    mode: int
    uid: int
    gid: int
    size: int | None
    rdev: int
    target: bytes | None


def facts(place: Place, found: os.stat_result) -> Facts:
    """The facts of one entry whose stat is known."""
    kind = EntryKind.of(found.st_mode)
    target = place.link_target() if kind is EntryKind.SYMLINK else None
    size = found.st_size if kind in (EntryKind.FILE, EntryKind.SYMLINK) else None
    device = kind in (EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE)
    rdev = found.st_rdev if device else 0
    return Facts(kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, size, rdev, target)


def failure(sentence: str, path: str, error: OSError, step: str = "scan") -> CollectError:
    """The typed error of a kernel error met while reading."""
    return CollectError(Code.COLLECT_FAILED, sentence, step=step, path=path, errno=error.errno)


@contextmanager
def root_place(path: str) -> Iterator[Place]:
    """The root of a tree, a folder or a single entry. The path itself is followed: the caller chose it."""
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise failure(f"{path} cannot be opened", path, error) from error
    try:
        yield Place(handle, "")
    finally:
        os.close(handle)


def open_folder(place: Place, ours: bool = False) -> int:
    """A descriptor of the folder at `place`. `ours`: a private tree, where a mode without `r` is no obstacle."""
    try:
        return with_room(_open(place, FOLDER, ours))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise CollectError(
            Code.COLLECT_FAILED,
            f"the folder {place.name} lies deeper than this process can have files open",
            step="scan",
            path=place.name,
            errno=error.errno,
            hint="move or remove that folder inside the fork",
        ) from error


@contextmanager
def opened_folder(place: Place, ours: bool = False) -> Iterator[int]:
    """The same while this lasts; in a private tree names can be looked up too, whatever the folder's mode says."""
    folder = open_folder(place, ours)
    try:
        with _searchable(folder) if ours else nullcontext():
            yield folder
    finally:
        os.close(folder)


@contextmanager
def _searchable(folder: int) -> Iterator[None]:
    """While this lasts the owner may look up names in its own folder, whatever the folder's mode says."""
    found = os.fstat(folder)
    mode = stat.S_IMODE(found.st_mode)
    user = os.geteuid()
    if mode & 0o500 == 0o500 or user == 0 or user != found.st_uid:
        yield
        return
    os.fchmod(folder, mode | 0o500)
    try:
        yield
    finally:
        os.fchmod(folder, mode)


def open_file(place: Place, ours: bool = False) -> int:
    """A descriptor to read the regular file at `place`; OSError if it is not one (any more)."""
    file = _open(place, _FILE, ours)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.ESTALE, "is no longer a regular file")


def _open(place: Place, flags: int, ours: bool) -> int:
    try:
        if not place.name:
            return os.open(place.path(), flags & ~os.O_NOFOLLOW)
        return os.open(place.name, flags, dir_fd=place.folder)
    except PermissionError:
        if not ours:
            raise
    with _opened_up(place) as path:
        return os.open(path, flags & ~os.O_NOFOLLOW)


@contextmanager
def _opened_up(place: Place) -> Iterator[str]:
    """A path to an entry of a private tree from which its owner has taken the permission to read, given back while
    this lasts. Descriptors that are opened meanwhile stay valid."""
    if place.name:
        handle = os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
    else:
        handle = os.dup(place.folder)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        os.chmod(f"/proc/self/fd/{handle}", mode | 0o500)
        try:
            yield f"/proc/self/fd/{handle}"
        finally:
            os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


def same_content(one: Place, other: Place, ours: bool = False) -> bool:
    """Whether two regular files hold the same bytes. `ours` is about the first one."""
    first = open_file(one, ours)
    try:
        second = open_file(other)
        try:
            return _same_bytes(first, second)
        finally:
            os.close(second)
    finally:
        os.close(first)


def _same_bytes(first: int, second: int) -> bool:
    place = 0
    while True:
        chunk = os.pread(first, _CHUNK, place)
        if chunk != os.pread(second, _CHUNK, place):
            return False
        if len(chunk) < _CHUNK:
            # A short read is the end for a regular file; one more read on the other side tells whether it goes on.
            return os.pread(first, 1, place + len(chunk)) == os.pread(second, 1, place + len(chunk)) == b""
        place += _CHUNK


def attributes(place: Place, ours: bool = False) -> dict[str, bytes] | None:
    """The extended attributes and ACLs that belong to the content; None where this user may not read them.

    Never overlayfs's own marks nor the labels of security modules. `ours`: a private tree.
    """
    try:
        return _read_attributes(place.path(), follow=not place.name)
    except PermissionError:
        if not ours:
            return None
    with _opened_up(place) as path:
        return _read_attributes(path, follow=True)


def _read_attributes(path: str, follow: bool) -> dict[str, bytes]:
    try:
        names = os.listxattr(path, follow_symlinks=follow)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return {}
    return {name: os.getxattr(path, name, follow_symlinks=follow) for name in names if _counts(name)}


def mark(folder: Place, name: str) -> bytes | None:
    """One of overlayfs's marks on a folder of a private layer, or None."""
    try:
        return _read_mark(folder.path(), name, follow=not folder.name)
    except PermissionError:
        with _opened_up(folder) as path:
            return _read_mark(path, name, follow=True)


def _read_mark(path: str, name: str, follow: bool) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=follow)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
        return None


def _counts(name: str) -> bool:
    if name.startswith("user."):
        return not name.startswith("user.overlay.")
    if name in _ACL:
        return True
    # Only real root can copy these, so only root compares them; labels of security modules follow the path.
    return os.geteuid() == 0 and (
        name == "security.capability" or (name.startswith("trusted.") and not name.startswith(_NOT_OURS))
    )


def attribute_fields(before: dict[str, bytes] | None, after: dict[str, bytes] | None) -> tuple[str, ...]:
    """`xattrs` and `acl`, as far as they differ. What could not be read does not differ."""
    if before is None or after is None or before == after:
        return ()
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return (("xattrs",) if names - _ACL else ()) + (("acl",) if names & _ACL else ())
