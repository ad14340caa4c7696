"""The folders of one kind of storage in a pool: `KEY` is whole, `new-KEY` half made, `rm-KEY` set aside to be erased.

A key is made by renaming `new-KEY` and removed by renaming it to `rm-KEY` first, or to `rm-KEY~NUMBER` where that is
not gone yet, so that a crash at any moment leaves a name that tells what it is, and a key can be made again at once.
What a key's folder holds is removed by `_erase`, which a kind of storage may do its own way.

Who erases holds a flock on the folder that was set aside; what it cannot erase is written down there in `failed`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator

from hostfork.errors import Code, HostforkError, StorageError
from hostfork.storage.contract import Held, KeyStage, KeyState, Removal, Usage
from hostfork.storage.failures import failed, is_full
from hostfork.storage.pace import OutOfTime, Pace
from hostfork.storage.tree import remove_tree
from hostfork.vocabulary import Mechanism

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.storage.moment import Moments

_NEW, _REMOVE = "new-", "rm-"
_AGAIN = "~"
"""Between a key and what makes the name of what was set aside unique. No fork's name holds it."""
FAILED = "failed"


class Keys:
    """The keys of one kind (`copy`, `overlay`, …) in one pool. Holds no state."""

    def __init__(self, pool: str, kind: str) -> None:
        self.folder = os.path.join(pool, kind)

    def path(self, key: str) -> str:
        """The folder of a whole key."""
        return os.path.join(self.folder, key)

    def new(self, key: str) -> str:
        """The folder of a key that is being made."""
        return os.path.join(self.folder, _NEW + key)

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
        """Make `new-KEY` and return its path. Raises StorageError `storage.exists` where it is whole or half made."""
        if not key or "/" in key or _AGAIN in key or key in (".", "..") or key.startswith((_NEW, _REMOVE)):
            raise ValueError(f"not a key: {key!r}")
        new = os.path.join(self.folder, _NEW + key)
        try:
            self._make_folder()
            if os.path.lexists(os.path.join(self.folder, key)):
                raise FileExistsError(errno.EEXIST, "exists", key)
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

    @contextlib.contextmanager
    def making(self, key: str, typed: Callable[[OSError], StorageError]) -> Iterator[str]:
        """A new key: its folder, to be filled inside, is whole at the end. Nothing stays when that fails.

        What the kernel refuses becomes what `typed` makes of it. Raises StorageError.
        """
        new = self.begin(key)
        try:
            yield new
            self.commit(key)
        except HostforkError as error:
            error.details += self.undo(key)
            raise
        except OSError as error:
            left = self.undo(key)
            failure = typed(error)
            failure.details += left
            raise failure from error
        except BaseException as error:
            for line in self.undo(key):
                error.add_note(line)
            raise

    def undo(self, key: str) -> tuple[str, ...]:
        """Remove what a failed `prepare` left; sentences about what could not be."""
        try:
            self.remove(key)
        except StorageError as error:
            return (f"what was made could not be removed: {error.message} ({error.reason()})",)
        return ()

    def set_aside(self, key: str) -> tuple[str, ...]:
        """Rename all stages of the key: it can be made again at once. The new names. Raises StorageError."""
        try:
            folder = self._open()
        except FileNotFoundError:
            return ()
        try:
            return tuple(_moved(name, key, folder) for name in (key, _NEW + key) if _there(name, folder))
        except OSError as error:
            if is_full(error):
                return self._erased_in_place(key, folder)
            raise failed(f"private storage {key} could not be set aside", self.path(key), error, "remove") from error
        finally:
            os.close(folder)

    def _erased_in_place(self, key: str, folder: int) -> tuple[str, ...]:
        """On a Btrfs that is full to the last block a rename has no room, where a removal has the kernel's reserve."""
        for name in (key, _NEW + key):
            try:
                self._erase(name, folder, Pace())
            except OSError as error:
                raise _not_erased(os.path.join(self.folder, name), key, error) from error
        return ()

    def erase(self, name: str, pace: Pace | None = None) -> Removal:
        """Erase what was set aside under `name`. Waits for another process that is at it, if `pace` has the time.

        RECLAIMING where `pace` stopped it. Raises StorageError `storage.busy` or `.failed`.
        """
        try:
            folder = self._open()
        except FileNotFoundError:
            return Removal.GONE
        try:
            pace = pace or Pace()
            with _Claimed(name, folder, pace.waits):
                return self._erase(name, folder, pace)
        except FileNotFoundError:
            return Removal.GONE
        except OutOfTime:
            return Removal.RECLAIMING
        except OSError as error:
            _write_down(error, name, folder)
            raise _not_erased(os.path.join(self.folder, name), key_of(name), error) from error
        finally:
            os.close(folder)

    def remove(self, key: str) -> Removal:
        """Remove all stages of the key. Idempotent. Raises StorageError `storage.busy` or `.failed`."""
        self.set_aside(key)
        removed = {self.erase(name) for name in self.asides() if key_of(name) == key}
        return Removal.RECLAIMING if Removal.RECLAIMING in removed else Removal.GONE

    def asides(self) -> tuple[str, ...]:
        """The names of what is set aside."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return ()
        return tuple(sorted(name for name in names if name.startswith(_REMOVE)))

    def _open(self) -> int:
        try:
            return os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failed(f"{self.folder} cannot be opened", self.folder, error, "remove") from error

    def _make_folder(self) -> None:
        """Make the folder of this kind, if it is not there. Raises OSError."""
        os.makedirs(self.folder, 0o700, exist_ok=True)

    def _erase(self, name: str, folder: int, pace: Pace) -> Removal:
        """Remove what was set aside, if it is there, from the open folder of this kind. Raises OSError, OutOfTime."""
        close_left(name, folder)
        remove_tree(name, folder, pace)
        return Removal.GONE

    def states(self) -> tuple[KeyState, ...]:
        """Every key, in any stage, in the order of names. One key can have two."""
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return ()
        return tuple(_state(name) for name in names)


def close_left(name: str, folder: int) -> None:
    """Close again what a killed copy of another key left open for it (see `own`). Raises OSError."""
    try:
        room = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        notes = [noted for noted in os.listdir(room) if noted.startswith("opened-")]
        if notes:
            from hostfork.storage.own import close_again

            close_again(room, notes)
    finally:
        os.close(room)


def _state(name: str) -> KeyState:
    if name.startswith(_REMOVE):
        return KeyState(key_of(name), KeyStage.HALF_REMOVED)
    if name.startswith(_NEW):
        return KeyState(name.removeprefix(_NEW), KeyStage.HALF_MADE)
    return KeyState(name, KeyStage.LIVE)


def is_aside(name: str) -> bool:
    """Whether that is the name of something that was set aside."""
    return name.startswith(_REMOVE)


def aside_name(key: str) -> str:
    """A name under which something of a key is set aside, which nothing else has."""
    return f"{_REMOVE}{key}{_AGAIN}{time.time_ns()}-{os.getpid()}"


def key_of(aside: str) -> str:
    """The key that was set aside under this name."""
    return aside.removeprefix(_REMOVE).partition(_AGAIN)[0]


def _moved(name: str, key: str, folder: int) -> str:
    """Set aside one stage of a key in the open folder; an empty folder of that name is replaced."""
    aside = _REMOVE + key
    try:
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        aside = aside_name(key)
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    return aside


class _Claimed:
    """One process at a time erases a thing that was set aside. Raises OutOfTime where one is and this may not wait."""

    def __init__(self, name: str, folder: int, wait: bool) -> None:
        import fcntl

        self._opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            fcntl.flock(self._opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(self._opened)
            raise OutOfTime from None
        except BaseException:
            os.close(self._opened)
            raise

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        import fcntl

        # Said, not left to the close: a process that the caller forked meanwhile holds the same open folder.
        fcntl.flock(self._opened, fcntl.LOCK_UN)
        os.close(self._opened)


def _write_down(error: OSError, name: str, folder: int) -> None:
    """So that others can say why it is still there. A full disk is no reason to fail."""
    at = error.filename if isinstance(error.filename, str) else ""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        opened = os.open(f"{name}/{FAILED}", flags, 0o600, dir_fd=folder)
        try:
            os.write(opened, b"%d\n%s" % (error.errno or errno.EIO, os.fsencode(at)))
        finally:
            os.close(opened)
    except OSError:
        return


def _not_erased(path: str, key: str, error: OSError) -> StorageError:
    busy = error.errno == errno.EBUSY
    return StorageError(
        Code.STORAGE_BUSY if busy else Code.STORAGE_FAILED,
        f"private storage {key} {'is in use' if busy else 'could not be removed'}",
        step="remove",
        path=path,
        errno=error.errno,
        details=() if error.filename is None else (f"at {os.fsdecode(error.filename)}",),
        hint="end what uses it and try again" if busy else None,
    )


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

    def thaw(self, key: str, pool: str) -> None:
        """Nothing: a branch leaves it as it was."""

    def tidy(self, key: str, pool: str) -> None:
        """Nothing: a branch leaves nothing beside it."""

    def held(self, key: str, pool: str) -> tuple[Held, ...]:
        """Nothing: no other key uses its trees."""
        return ()

    def touched(self, key: str, pool: str) -> tuple[bytes, ...] | None:
        """None: only a comparison with the base tells what changed."""
        return None

    def moments(self, key: str, pool: str) -> Moments | None:
        """None: it holds no moments to which it can go back."""
        return None

    def usage(self, key: str, pool: str) -> Usage:
        """Space, by a walk. Raises StorageError where the key is not whole."""
        from hostfork.storage.measure import usage

        path = os.path.join(self.keys_of(pool).whole(key), self.counted)
        try:
            return usage(path)
        except OSError as error:
            raise failed(f"private storage {key} could not be measured", path, error, "usage") from error

    def set_aside(self, key: str, pool: str) -> tuple[str, ...]:
        """Take the key out of the way, and say under which names it waits to be erased."""
        return self.keys_of(pool).set_aside(key)

    def erase(self, name: str, pool: str, pace: Pace | None = None) -> Removal:
        """Erase what was set aside under that name."""
        return self.keys_of(pool).erase(name, pace)

    def remove(self, key: str, pool: str) -> Removal:
        """Remove all stages of the key."""
        return self.keys_of(pool).remove(key)

    def keys(self, pool: str) -> tuple[KeyState, ...]:
        """All keys of this mechanism in the pool."""
        return self.keys_of(pool).states()
