"""Scratch: an empty private folder (or file) in the pool, with the original's mode and owner. Never collected.

POOL/scratch/KEY/tree
"""

from __future__ import annotations

import os
import stat

from hostfork.errors import Code, StorageError
from hostfork.helper.protocol import Bind
from hostfork.storage.contract import KeyState, Removal
from hostfork.storage.failures import unmade
from hostfork.storage.keys import Keys
from hostfork.storage.pace import Pace

_KIND, _TREE = "scratch", "tree"


def prepare(key: str, path: str, pool: str) -> Bind:
    """Make scratch for the host's `path`. An ordinary user may always write it. Raises StorageError."""
    try:
        found = os.lstat(path)
    except OSError as error:
        raise StorageError(
            Code.STORAGE_SOURCE, f"{path} cannot be read", step="prepare", path=path, errno=error.errno
        ) from error
    with Keys(pool, _KIND).making(key, unmade(f"no scratch for {path} could be made", path, path, pool)) as new:
        _make(os.path.join(new, _TREE), found)
    return mounts(key, pool)


def mounts(key: str, pool: str) -> Bind:
    """What the helper mounts. Raises StorageError where the key is not whole."""
    return Bind(os.path.join(Keys(pool, _KIND).whole(key), _TREE))


def set_aside(key: str, pool: str) -> tuple[str, ...]:
    """Take the key out of the way, and say under which names it waits to be erased."""
    return Keys(pool, _KIND).set_aside(key)


def erase(name: str, pool: str, pace: Pace | None = None) -> Removal:
    """Erase what was set aside under that name."""
    return Keys(pool, _KIND).erase(name, pace)


def remove(key: str, pool: str) -> Removal:
    """Remove all stages of the key. Idempotent."""
    return Keys(pool, _KIND).remove(key)


def keys(pool: str) -> tuple[KeyState, ...]:
    """All keys of scratch in the pool."""
    return Keys(pool, _KIND).states()


def _make(tree: str, found: os.stat_result) -> None:
    folder = stat.S_ISDIR(found.st_mode)
    if folder:
        os.mkdir(tree, 0o700)
    else:
        os.close(os.open(tree, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    mode = stat.S_IMODE(found.st_mode)
    if os.geteuid() == 0:
        os.chown(tree, found.st_uid, found.st_gid)
    else:
        mode = mode & 0o1777 | (0o700 if folder else 0o600)
    os.chmod(tree, mode)
