"""What the mechanisms over Btrfs snapshots do alike: what rules one out, taking one, removing what holds some."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable

from hostfork.errors import Code, StorageError
from hostfork.storage import flags, ioctls, subvolume
from hostfork.storage.contract import Removal, Source
from hostfork.storage.entry import FOLDER, open_quietly
from hostfork.storage.failures import failed, is_full, no_space
from hostfork.storage.filesystem import Filesystem, all_mounts, filesystem_of
from hostfork.storage.keys import Keys
from hostfork.storage.pace import Pace
from hostfork.storage.pool import make_own
from hostfork.storage.subvolume import Nested, Obstacle, Place
from hostfork.storage.tree import Descent, FolderMovedError, open_source, remove_tree
from hostfork.values import frozen

INSIDE = "inside"
_REMOVABLE = "user_subvol_rm_allowed"
_LOOK = 0.25
"""Seconds that the look for folders of other owners may take."""
_LONGEST = 4095
_FOREIGN = "belongs to another user"


@frozen
class Found:
    """What a snapshot of a path takes: where it lies, and the subvolumes below it that need snapshots of their own."""

    place: Place
    nested: tuple[Nested, ...]


def find(source: Source, mount: Filesystem) -> Found:
    """Look up what a snapshot takes. Raises Obstacle, OSError."""
    place = subvolume.containing(source.path, mount)
    root = subvolume.open_root(place)
    try:
        return Found(place, subvolume.nested_below(root, place.inside, _omitted(place, source)))
    finally:
        os.close(root)


def examine(source: Source, pool: str) -> Found:
    """Whether a snapshot of the source can be taken into the pool, and be removed again. Raises Obstacle, OSError.

    Leaves nothing.
    """
    mount = filesystem_of(source.path)
    if mount.kind != "btrfs":
        raise Obstacle(f"{source.path} is on {mount}, not on Btrfs")
    if os.lstat(source.path).st_ino == ioctls.STUB_INODE:
        raise Obstacle(f"{source.path} is the empty stand-in of a subvolume")
    _check_pool(source, pool)
    found = find(source, mount)
    _check_swap(found.place)
    if len(os.fsencode(os.path.join(pool, "btrfs", "k" * 100, "tree", found.place.inside))) > _LONGEST:
        raise Obstacle(f"the path of {source.path} below the pool {pool} would be too long", errno.ENAMETOOLONG)
    if os.geteuid() != 0:
        _check_owners(found)
        if _REMOVABLE not in mount.options:
            _check_removable(found, mount)
    _try(pool)
    return found


def take(found: Found, source: Source, name: str, room: int, read_only: bool) -> None:
    """Make a snapshot of the source's subvolume as `name` in the open folder, what is nested below it included.

    Raises Obstacle, OSError.
    """
    root = subvolume.open_root(found.place)
    try:
        omit = _omitted(found.place, source)
        ioctls.snapshot(root, name, room, read_only and not found.nested and not omit)
        if found.nested or omit:
            _completed(found, omit, root, name, room, read_only)
        if subvolume.nested_below(root, found.place.inside, omit) != found.nested:
            raise Obstacle("a Btrfs subvolume came or went beneath it meanwhile; try again")
    finally:
        os.close(root)


def _completed(found: Found, omit: tuple[str, ...], root: int, name: str, room: int, read_only: bool) -> None:
    made = os.open(name, FOLDER, dir_fd=room)
    try:
        subvolume.snapshot_nested(root, made, found.nested)
        subvolume.blank(root, made, found.place.inside, omit)
        if read_only:
            subvolume.seal(made, found.nested)
    finally:
        os.close(made)


def again(nested: tuple[Nested, ...], name: str, room: int, other: str) -> None:
    """Make a read-only snapshot `other` of the private snapshot `name`, what is nested in it included."""
    root = os.open(name, FOLDER, dir_fd=room)
    try:
        again_from(root, nested, room, other)
    finally:
        os.close(root)


def again_from(root: int, nested: tuple[Nested, ...], room: int, name: str) -> None:
    """Make a read-only snapshot `name`, in an open folder, of an open private snapshot and what is nested in it."""
    ioctls.snapshot(root, name, room, not nested)
    if not nested:
        return
    made = os.open(name, FOLDER, dir_fd=room)
    try:
        subvolume.snapshot_nested(root, made, nested)
        subvolume.seal(made, nested)
    finally:
        os.close(made)


def made_under(
    keys: Keys, key: str, source: Source, pool: str, make: Callable[[Found, int], None], found: Found | None = None
) -> None:
    """Let `make` fill the folder of a new key, whose descriptor it gets. Nothing stays when that fails.

    `found`: what is to be taken, where that is not the source. Raises StorageError.
    """
    found = found or _found(source)
    with keys.making(key, lambda error: _typed(source, pool, error)) as new:
        room = os.open(new, FOLDER)
        try:
            # A symlink's target is part of the transaction, as the snapshots are; what a file holds may come later.
            os.symlink(found.place.inside, INSIDE, dir_fd=room)
            make(found, room)
        except Obstacle as obstacle:
            raise _typed(source, pool, obstacle) from obstacle
        finally:
            os.close(room)


def inside(path: str, name: str, key: str) -> str:
    """Where in the snapshot `name` of a whole key the wanted folder or file lies."""
    try:
        return os.path.normpath(os.path.join(path, name, os.readlink(os.path.join(path, INSIDE))))
    except OSError as error:
        raise failed(
            f"where private storage {key} lies in its snapshot cannot be read", path, error, "mounts"
        ) from error


class SnapshotKeys(Keys):
    """Keys whose folders hold subvolumes. Their own folder is one too where the pool is none, as an older one.

    So a snapshot of what the pool lies in holds no fork.
    """

    def _make_folder(self) -> None:
        if os.stat(os.path.dirname(self.folder)).st_ino == ioctls.ROOT_INODE:
            super()._make_folder()
        elif not os.path.isdir(self.folder):
            make_own(self.folder)

    def _erase(self, name: str, folder: int, pace: Pace) -> Removal:
        try:
            opened = os.open(name, FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return Removal.GONE
        try:
            # First: what holds only a part of its snapshots is no whole key.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(INSIDE, dir_fd=opened)
            removed = self._emptied(opened, folder, pace)
        finally:
            os.close(opened)
        remove_tree(name, folder, pace)
        return removed

    def _emptied(self, key: int, folder: int, pace: Pace) -> Removal:
        """Erase the snapshots of a key whose folder is open, in the open folder of this kind."""
        removed = Removal.GONE
        for inner in os.listdir(key):
            try:
                if subvolume.is_root(inner, key) and subvolume.erase(inner, key, pace) is Removal.RECLAIMING:
                    removed = Removal.RECLAIMING
            except OSError as error:
                if isinstance(error.filename, str):
                    error.filename = os.path.join(inner, error.filename)
                raise
        return removed


def _omitted(place: Place, source: Source) -> tuple[str, ...]:
    return tuple(place.below(path) for path in source.omit)


def _found(source: Source) -> Found:
    try:
        return find(source, filesystem_of(source.path))
    except (Obstacle, OSError) as error:
        raise _source_error(source, error) from error


def _source_error(source: Source, error: Obstacle | OSError) -> StorageError:
    reason, number = (error.reason, error.number) if isinstance(error, Obstacle) else ("it cannot be read", error.errno)
    return StorageError(
        Code.STORAGE_SOURCE,
        f"no snapshot of {source.path} can be taken: {reason}",
        step="prepare",
        path=source.path,
        errno=number,
    )


_WORDS = {
    errno.EPERM: "its Btrfs subvolume belongs to another user",
    errno.ETXTBSY: "a swap file in its Btrfs subvolume is in use",
    errno.EXDEV: "the pool is on another filesystem",
    errno.EROFS: "the pool's filesystem is read-only",
    errno.EMLINK: "the kernel's limit of snapshots is reached",
}


def _typed(source: Source, pool: str, error: Obstacle | OSError) -> StorageError:
    if isinstance(error, Obstacle):
        return _source_error(source, error)
    if is_full(error):
        return no_space(source.path, pool, None, error.errno or 0)
    reason = _WORDS.get(error.errno or 0)
    sentence = f"no snapshot of {source.path} could be taken" + (f": {reason}" if reason else "")
    return failed(sentence, source.path, error, "prepare")


# --- what rules it out ------------------------------------------------------------------------------------------------


def _check_pool(source: Source, pool: str) -> None:
    """A snapshot lies on the filesystem of what it is of."""
    if filesystem_of(pool).kind == "btrfs":
        here, there = (open_quietly(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) for path in (source.path, pool))
        try:
            if ioctls.filesystem_id(here) == ioctls.filesystem_id(there):
                return
        finally:
            os.close(here)
            os.close(there)
    raise Obstacle(
        f"the pool {pool} is on {filesystem_of(pool)}, and a snapshot lies on the Btrfs of {source.path}; "
        "--pool DIR names one there",
        errno.EXDEV,
    )


def _check_swap(place: Place) -> None:
    """The kernel answers ETXTBSY to a snapshot of a subvolume with a swap file in use."""
    device = os.stat(place.root).st_dev
    with open("/proc/swaps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file.read().splitlines()[1:]:
            path, kind = line.split()[:2]
            path = path.encode("utf-8", "surrogateescape").decode("unicode_escape")
            if kind == "file" and os.path.exists(path) and os.stat(path).st_dev == device:
                raise Obstacle(f"the swap file {path} in its Btrfs subvolume is in use", errno.ETXTBSY)


def _check_owners(found: Found) -> None:
    """A user may take snapshots of their own subvolumes alone, and put them into folders that they can write."""
    uid, root = os.geteuid(), found.place.root
    owner = os.stat(root).st_uid
    if owner != uid:
        reason = (
            f"the Btrfs subvolume {root} belongs to user {owner}: only its owner and root can take a snapshot of it"
        )
        raise Obstacle(reason, errno.EPERM)
    for one in found.nested:
        path = os.path.join(root, one.path)
        above = os.stat(os.path.dirname(path))
        if os.stat(path).st_uid != uid:
            raise Obstacle(f"the Btrfs subvolume {path} beneath it belongs to another user", errno.EPERM)
        if above.st_uid != uid:
            raise Obstacle(f"the folder of the Btrfs subvolume {path} belongs to another user", errno.EACCES)


def _check_removable(found: Found, mount: Filesystem) -> None:
    """Without the mount option a user has to empty a snapshot, which a foreign folder with content makes impossible.

    So does a locked one, and a locked file; that would need a look at every file.
    """
    remedy = f"mounted with {_REMOVABLE} it could be had"
    root = found.place.root.rstrip("/") + "/"
    for other in all_mounts():
        if other.point.startswith(root) and other.mount != mount.mount:
            raise Obstacle(f"what lies under the mount {other.point} may be of others, and this user could not remove "
                           f"it from a snapshot; {remedy}", errno.EPERM)  # fmt: skip
    opened = subvolume.open_root(found.place)
    try:
        end = time.monotonic() + _LOOK
        stuck = _stuck(opened, end)
        for one in found.nested:
            if stuck is None:
                inner = subvolume.open_nested(opened, one)
                try:
                    stuck = _stuck(inner, end)
                finally:
                    os.close(inner)
                stuck = None if stuck is None else (os.path.join(one.path, stuck[0]), stuck[1])
    except TimeoutError:
        raise Obstacle(f"{root} holds too many folders to see at once whether others own some, which this user could "
                       f"not remove from a snapshot; {remedy}", errno.EPERM) from None  # fmt: skip
    finally:
        os.close(opened)
    if stuck is not None:
        raise Obstacle(f"the folder {root}{stuck[0]} {stuck[1]}, and this user could not remove it from a "
                       f"snapshot; {remedy}", errno.EPERM)  # fmt: skip


def _stuck(root: int, end: float) -> tuple[str, str] | None:
    """A folder in the open subvolume that this user could not empty, and why. Raises TimeoutError."""
    uid, device = os.geteuid(), os.fstat(root).st_dev
    descent = Descent(root, open_source)
    levels: list[tuple[str, list[str]]] = [("", _folders(root))]
    try:
        while levels:
            path, folders = levels[-1]
            if not folders:
                levels.pop()
                if levels:
                    descent.leave()
                continue
            name = folders.pop()
            if time.monotonic() > end:
                raise TimeoutError
            below = f"{path}/{name}" if path else name
            try:
                folder = descent.enter(name)
            except FileNotFoundError:
                continue
            except PermissionError:
                return below, _FOREIGN
            found = os.fstat(folder)
            if found.st_dev != device:  # a nested subvolume, of which the snapshot has an empty folder
                descent.leave()
                continue
            if found.st_uid != uid:
                return below, _FOREIGN
            if flags.read(folder) & flags.LOCKED:
                return below, "is immutable or append-only"
            levels.append((below, _folders(folder)))
    except FolderMovedError as error:
        raise Obstacle("folders were moved while their owners were looked up", error.errno) from error
    finally:
        descent.close()
    return None


def _folders(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _try(pool: str) -> None:
    """Make a subvolume in the pool and take it away again."""
    name = f".probe-{os.getpid()}-{time.monotonic_ns()}"
    folder = os.open(pool, FOLDER)
    try:
        try:
            ioctls.create(name, folder)
        except OSError as error:
            raise Obstacle(f"no subvolume can be made in the pool {pool}", error.errno) from error
        os.rmdir(name, dir_fd=folder)
    finally:
        os.close(folder)
