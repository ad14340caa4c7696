"""The folders of one kind of storage in a pool: `KEY` is whole, `new-KEY` half made, `rm-KEY` half removed.

A key is made by renaming `new-KEY` and removed by renaming it to `rm-KEY` first, so that a crash at any moment leaves
a name that tells what it is. What a key's folder holds is removed by `_erase`, which a kind of storage may do its own
way.
"""

import errno
import os
import stat

from hostfork.errors import Code, StorageError
from hostfork.storage.contract import KeyStage, KeyState, Removal, Usage
from hostfork.storage.failures import failed
from hostfork.storage.tree import remove_tree
from hostfork.vocabulary import Mechanism

_NEW, _REMOVE = "new-", "rm-"


class Keys:
    """The keys of one kind (`copy`, `overlay`, …) in one pool. Holds no state."""

    def __init__(self, pool: str, kind: str) -> None:
        self.folder = os.path.join(pool, kind)

    def path(self, key: str) -> str:
        """The folder of a whole key."""
        return os.path.join(self.folder, key)

    def whole(self, key: str) -> str:
        """The folder of a key that is there. Raises StorageError where it is not, or not whole."""
        path = self.path(key)
        if not os.path.isdir(path):
            raise StorageError(
                Code.STORAGE_FAILED,
                f"there is no whole private storage {key} in {self.folder}",
                step="storage",
                path=path,
                errno=errno.ENOENT,
                hint="hostfork recover",
            )
        return path

    def begin(self, key: str) -> str:
        """Make `new-KEY` and return its path. Raises StorageError `storage.exists` where any stage is there."""
        if not key or "/" in key or key in (".", "..") or key.startswith((_NEW, _REMOVE)):
            raise ValueError(f"not a key: {key!r}")
        new = os.path.join(self.folder, _NEW + key)
        try:
            self._make_folder()
            for name in (key, _REMOVE + key):
                if os.path.lexists(os.path.join(self.folder, name)):
                    raise FileExistsError(errno.EEXIST, "exists", name)
            os.mkdir(new, 0o700)
        except FileExistsError as error:
            raise StorageError(
                Code.STORAGE_EXISTS,
                f"private storage {key} is already there in {self.folder}",
                step="prepare",
                path=self.path(key),
                errno=errno.EEXIST,
                hint="hostfork recover removes what an interrupted run left",
            ) from error
        except OSError as error:
            raise failed(f"{new} cannot be made", new, error, "prepare") from error
        try:
            # What is made in a folder inherits its default ACL and set-gid bit: the pool's must not reach the copy.
            os.removexattr(new, "system.posix_acl_default")
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise failed(f"{new} cannot be made", new, error, "prepare") from error
        os.chmod(new, 0o700)
        return new

    def commit(self, key: str) -> None:
        """Turn `new-KEY` into `KEY`."""
        os.rename(os.path.join(self.folder, _NEW + key), self.path(key))

    def undo(self, key: str) -> tuple[str, ...]:
        """Remove what a failed `prepare` left; sentences about what could not be."""
        try:
            self.remove(key)
        except StorageError as error:
            return (f"what was made could not be removed: {error.message} ({error.reason()})",)
        return ()

    def remove(self, key: str) -> Removal:
        """Remove all stages of the key. Idempotent. Raises StorageError `storage.busy` or `.failed`."""
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return Removal.GONE
        except OSError as error:
            raise failed(f"{self.folder} cannot be opened", self.folder, error, "remove") from error
        try:
            removed = self._erase(_REMOVE + key, folder)
            for name in (key, _NEW + key):
                if _there(name, folder):
                    os.rename(name, _REMOVE + key, src_dir_fd=folder, dst_dir_fd=folder)
                    erased = self._erase(_REMOVE + key, folder)
                    removed = erased if removed is Removal.GONE else removed
        except OSError as error:
            busy = error.errno == errno.EBUSY
            raise StorageError(
                Code.STORAGE_BUSY if busy else Code.STORAGE_FAILED,
                f"private storage {key} {'is in use' if busy else 'could not be removed'}",
                step="remove",
                path=self.path(key),
                errno=error.errno,
                details=() if error.filename is None else (f"at {os.fsdecode(error.filename)}",),
                hint="end what uses it and try again" if busy else None,
            ) from error
        finally:
            os.close(folder)
        return removed

    def _make_folder(self) -> None:
        """Make the folder of this kind, if it is not there. Raises OSError."""
        os.makedirs(self.folder, 0o700, exist_ok=True)

    def _erase(self, name: str, folder: int) -> Removal:
        """Remove what was moved aside, if it is there, from the open folder of this kind. Raises OSError."""
        remove_tree(name, folder)
        return Removal.GONE

    def states(self) -> tuple[KeyState, ...]:
        """Every key, in any stage, in the order of names. One key can have two."""
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return ()
        return tuple(_state(name) for name in names)


def _state(name: str) -> KeyState:
    for prefix, stage in ((_NEW, KeyStage.HALF_MADE), (_REMOVE, KeyStage.HALF_REMOVED)):
        if name.startswith(prefix):
            return KeyState(name.removeprefix(prefix), stage)
    return KeyState(name, KeyStage.LIVE)


def _there(name: str, folder: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


class Keyed:
    """What every mechanism does alike with the keys of its kind."""

    mechanism: Mechanism
    counted = ""
    """Where below a key's folder the space that counts lies."""

    def keys_of(self, pool: str) -> Keys:
        """The keys of its kind; the folder is called as the mechanism where nothing else is said."""
        return Keys(pool, self.mechanism.value)

    def touched(self, key: str, pool: str) -> tuple[bytes, ...] | None:
        """None: only a comparison with the base tells what changed."""
        return None

    def usage(self, key: str, pool: str) -> Usage:
        """Space, by a walk. Raises StorageError where the key is not whole."""
        from hostfork.storage.measure import usage

        path = os.path.join(self.keys_of(pool).whole(key), self.counted)
        try:
            return usage(path)
        except OSError as error:
            raise failed(f"private storage {key} could not be measured", path, error, "usage") from error

    def remove(self, key: str, pool: str) -> Removal:
        """Remove all stages of the key."""
        return self.keys_of(pool).remove(key)

    def keys(self, pool: str) -> tuple[KeyState, ...]:
        """All keys of this mechanism in the pool."""
        return self.keys_of(pool).states()
