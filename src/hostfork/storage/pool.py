"""The pool: the folder that holds private storage. Made with mode 0700, and refused where others could get at it."""

from __future__ import annotations

import errno
import os
import stat

from hostfork.errors import Code, StorageError
from hostfork.storage.failures import failed
from hostfork.storage.filesystem import filesystem_of

_MEMORY = ("tmpfs", "ramfs")


def open_pool(path: str, asked: bool = False) -> str:
    """Make the folder if it is not there, check it, and return its resolved path.

    On Btrfs it becomes a subvolume of its own, so that a snapshot of what it lies in holds no older forks.
    `asked`: the user named it, so that memory (tmpfs) will do. Raises StorageError `storage.pool`.
    """
    try:
        if not os.path.isdir(path):
            make_own(path)
        resolved = os.path.realpath(path, strict=True)
        found = os.lstat(resolved)
    except OSError as error:
        raise _refused(path, "cannot be made", error) from error
    if found.st_uid != os.geteuid():
        raise _refused(path, f"belongs to user {found.st_uid}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise _refused(path, f"is open to others (mode {stat.S_IMODE(found.st_mode):04o})", hint=f"chmod 700 {path}")
    _check_writable(path, resolved)
    kind = filesystem_of(resolved)
    if kind.kind in _MEMORY and not asked:
        raise _refused(path, f"lies in memory ({kind} on {kind.point})")
    return resolved


def make_own(path: str) -> None:
    """Make a folder, on Btrfs a subvolume, and those above it, mode 0700. Somebody may be quicker. Raises OSError."""
    from hostfork.storage import ioctls

    above, name = os.path.split(os.path.abspath(path))
    os.makedirs(above, 0o700, exist_ok=True)
    folder = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            ioctls.create(name, folder)
            os.chmod(path, 0o700)
        except FileExistsError:
            raise
        except OSError:  # not Btrfs, or shut off there: a plain folder serves too, and says best why it cannot be made
            os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    finally:
        os.close(folder)


def sweep_probes(pool: str) -> int:
    """Remove what trials of a killed process left in the pool; says how many."""
    number = 0
    for name in os.listdir(pool) if os.path.isdir(pool) else ():
        kind, _, maker = name.removeprefix(".").partition("-")
        pid = maker.partition("-")[0]
        if kind == "probe" and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _remove(name, pool)
            number += 1
    return number


def _remove(name: str, pool: str) -> None:
    from hostfork.storage.tree import remove_tree

    folder = os.open(pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(name, folder)
    except OSError as error:
        path = os.path.join(pool, name)
        raise failed(f"{path} could not be removed", path, error, "remove") from error
    finally:
        os.close(folder)


def _check_writable(path: str, resolved: str) -> None:
    if os.statvfs(resolved).f_flag & os.ST_RDONLY:
        raise _refused(path, "is on a read-only filesystem", OSError(errno.EROFS, ""))
    if not os.access(resolved, os.W_OK | os.X_OK, effective_ids=True):
        raise _refused(path, "cannot be written", OSError(errno.EACCES, ""))


def _refused(
    path: str, what: str, error: OSError | None = None, hint: str = "name another folder with --pool DIR"
) -> StorageError:
    number = None if error is None else error.errno
    return StorageError(Code.STORAGE_POOL, f"the pool {path} {what}", step="pool", path=path, errno=number, hint=hint)
