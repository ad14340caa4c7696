"""The pools that this user's forks lie in: that of the state folder, and others, named or made, which are remembered.

    MOUNT/.hostfork-UID             a pool at the root of a disk on which the state folder is not
    STATE/pools/DEVICE-INODE        a symlink to such a pool, or to a named one
    POOL/.state-DEVICE-INODE        in such a pool, a symlink to each state folder whose forks may lie there

So recovery finds what a killed run left in one, and does not take for nobody's what is a fork's of another
state folder. Both are made before anything else is made in the pool. One that is empty and was not taken for a while
is forgotten; the next run there remembers it again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence

from hostfork.errors import StorageError
from hostfork.lifecycle.record import Reclaiming
from hostfork.lifecycle.store import Store, as_fork_error
from hostfork.storage.pool import open_pool
from hostfork.vocabulary import StorageKind

_MARK = ".state-"
_WHILE = 3600.0
_DISKS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs"})
"""Where a pool serves better than one elsewhere: they keep modes and owners, and an upper folder of an overlay."""
_AGED = ("/tmp", "/var/tmp")
"""What some systems clear of what is old."""


def nearest(store: Store, pool: str, sources: Sequence[str]) -> str:
    """The pool for forks of these paths if none was named; `pool` is that of the state folder.

    That one, if it is on the filesystem of one of them. Else, where all are on one other disk, a folder of the user's
    at the root of their mount, if it is there or can be made. Never in a private path: that is the user's own tree.
    Raises ForkError `fork.state`.
    """
    found = _disk_of(pool, sources)
    if found is None:
        return pool
    place = os.path.join(found, f".hostfork-{os.geteuid()}")
    try:
        above = os.stat(found)
        others_write = above.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not above.st_mode & stat.S_ISVTX
        if others_write or above.st_uid not in (0, os.geteuid()):
            return pool
        if open_pool(place) != place:
            return pool  # a symlink of somebody's
    except (OSError, StorageError):
        return pool
    remember(store, place)
    return place


def _disk_of(pool: str, sources: Sequence[str]) -> str | None:
    """The mount point of the one disk on which all the sources are, and the pool is not."""
    from hostfork.storage.filesystem import filesystem_of

    own, found = filesystem_of(pool).number, dict[str, str]()
    for source in sources:
        try:
            path = os.path.realpath(source, strict=True)
            mount = filesystem_of(path)
        except OSError:
            continue  # not there: refused later, or left out
        if mount.number == own or mount.kind not in _DISKS or mount.point in (path, *_AGED):
            return None
        found.setdefault(mount.number, mount.point)
    return next(iter(found.values())) if len(found) == 1 else None


def remember(store: Store, pool: str) -> None:
    """Remember a pool that is not the state folder's. Raises ForkError `fork.state`."""
    if pool == store.pool:
        return
    folder = _folder(store)
    with as_fork_error("the pool cannot be remembered", folder):
        os.makedirs(folder, 0o700, exist_ok=True)
        _link(os.path.join(folder, _name(pool)), pool)
    with contextlib.suppress(OSError):  # a full disk; without the mark nothing there is taken for nobody's
        _link(os.path.join(pool, _MARK + _name(store.root)), store.root)


def pools(store: Store) -> tuple[str, ...]:
    """The pool of the state folder and every other that is remembered, whether it is there now or not."""
    return (store.pool, *sorted(set(_remembered(store).values()) - {store.pool}))


def is_foreign(store: Store, pool: str, name: str) -> bool:
    """Whether storage in a pool belongs, or may belong, to a fork of that name in another state folder.

    To be asked after the storage was seen: a fork's folder is there before and after its storage.
    """
    if pool == store.pool:
        return False
    known = False
    for root in _states(pool):
        known = known or root == store.root
        forks = os.path.join(root, "forks")
        if root != store.root and (not os.path.isdir(forks) or os.path.lexists(os.path.join(forks, name))):
            return True
    return not known


def mark_of(pool: str) -> str:
    """What tells the forks of this pool from those of others that have the same names, in a mount table."""
    from binascii import crc32

    return f"@{crc32(os.fsencode(pool)):08x}"


def within_filesystem(pool: str) -> str:
    """The pool's path as mount tables tell it for a bind: from the root of its filesystem. Raises OSError."""
    from hostfork.storage.filesystem import filesystem_of

    mount = filesystem_of(pool)
    path = os.path.normpath(os.path.join(mount.root, os.path.relpath(pool, mount.point)))
    for byte, code in (("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")):
        path = path.replace(byte, code)
    return path


def is_ours_alone(store: Store, pool: str) -> bool:
    """Whether no other state folder's forks may lie in a pool. Raises OSError."""
    return pool == store.pool or all(root == store.root for root in _states(pool))


def reclaiming(store: Store) -> tuple[Reclaiming, ...]:
    """What is set aside in all pools and not erased yet."""
    from hostfork.storage.reclaim import asides, is_active

    found = []
    for pool in pools(store):
        waiting = asides(pool)
        active = bool(waiting) and is_active(pool)
        for one in waiting:
            name = one.key.rpartition(".")[0]
            found.append(Reclaiming(name, pool, one.path, active and one.number is None, one.number, one.problem))
    return tuple(found)


def forget(store: Store) -> None:
    """Forget other pools that hold nothing of ours, unless they were taken of late. Nothing is raised."""
    for link, pool in _remembered(store).items():
        try:
            of_late = time.time() - os.lstat(link).st_mtime < _WHILE
            if of_late or any(os.listdir(path) for path in _kinds(pool)):
                continue
            os.unlink(link)
        except OSError:
            continue


def _kinds(pool: str) -> Iterator[str]:
    for kind in StorageKind:
        path = os.path.join(pool, kind.value)
        if os.path.isdir(path):
            yield path


def _remembered(store: Store) -> dict[str, str]:
    """The pools by the symlinks that name them."""
    folder, found = _folder(store), {}
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    for name in names:
        try:
            link = os.path.join(folder, name)
            found[link] = os.readlink(link)
        except OSError:
            continue
    return found


def _states(pool: str) -> Iterator[str]:
    for name in os.listdir(pool):
        if name.startswith(_MARK):
            yield os.readlink(os.path.join(pool, name))


def _folder(store: Store) -> str:
    return os.path.join(store.root, "pools")


def _name(path: str) -> str:
    found = os.stat(path)
    return f"{found.st_dev:x}-{found.st_ino:x}"


def _link(path: str, text: str) -> None:
    """Make the symlink say that; one that says it already stays. Two at once do not disturb each other."""
    try:
        if os.readlink(path) == text:
            return
    except FileNotFoundError:
        pass
    fresh = f"{path}.{os.getpid()}-{time.monotonic_ns()}"
    os.symlink(text, fresh)
    os.rename(fresh, path)
