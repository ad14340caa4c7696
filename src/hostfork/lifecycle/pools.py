"""The pools that this user's forks lie in: that of the state folder, and those that were named, which are remembered.

    STATE/pools/DEVICE-INODE        a symlink to a named pool
    POOL/.state-DEVICE-INODE        in a named pool, a symlink to each state folder whose forks may lie there

So recovery finds what a killed run left in a named pool, and does not take for nobody's what is a fork's of another
state folder. Both are made before anything else is made in the pool. One that is empty and was not named for a while
is forgotten; the next run there remembers it again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from hostfork.lifecycle.record import Reclaiming
from hostfork.lifecycle.store import Store, as_fork_error
from hostfork.vocabulary import StorageKind

_MARK = ".state-"
_WHILE = 3600.0


def remember(store: Store, pool: str) -> None:
    """Remember a pool that was named. Raises ForkError `fork.state`."""
    if pool == store.pool:
        return
    folder = _folder(store)
    with as_fork_error("the pool cannot be remembered", folder):
        os.makedirs(folder, 0o700, exist_ok=True)
        _link(os.path.join(folder, _name(pool)), pool)
    with contextlib.suppress(OSError):  # a full disk; without the mark nothing there is taken for nobody's
        _link(os.path.join(pool, _MARK + _name(store.root)), store.root)


def pools(store: Store) -> tuple[str, ...]:
    """The pool of the state folder and every named one that is remembered, whether it is there now or not."""
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
    """Forget named pools that hold nothing of ours, unless they were named of late. Nothing is raised."""
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
