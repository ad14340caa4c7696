"""When a kept fork was last used, what it takes, whether it is pinned: beside its record, which is its owner's alone.

    forks/NAME/use       its time is the last use; in it, the bytes that the fork takes, as last measured
    forks/NAME/pinned    the fork never expires

Whoever uses a fork's content holds a shared flock of `use`, expiry an exclusive one: nothing goes while it is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from hostfork.errors import Code, ForkError
from hostfork.lifecycle.record import Record
from hostfork.lifecycle.store import Store, as_fork_error

_USE, _PINNED = "use", "pinned"
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


def begin(folder: str, size: int | None = None) -> None:
    """The fork in that folder is kept from now on; `size`: and takes that many bytes. A full disk is no reason to fail.

    From the first one on expiry has something to do.
    """
    with contextlib.suppress(OSError):  # it is there
        os.mkdir(os.path.join(os.path.dirname(os.path.dirname(folder)), "expiry"), 0o700)
    with contextlib.suppress(OSError):
        opened = os.open(os.path.join(folder, _USE), os.O_WRONLY | os.O_CREAT | _FLAGS, 0o600)
        try:
            if size is not None:
                os.pwrite(opened, b"%-20d" % size, 0)
            os.utime(opened)
        finally:
            os.close(opened)


def remember_size(folder: str, record: Record, size: int) -> None:
    """What the fork takes, as measured later; the last use stays. Nothing where it is used just now."""
    with contextlib.suppress(OSError), claimed(folder, record) as free:
        if free:
            path = os.path.join(folder, _USE)
            found = os.stat(path)
            with open(path, "r+b", buffering=0) as file:
                file.write(b"%-20d" % size)
                os.utime(file.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def known_size(folder: str) -> int | None:
    """The bytes that the fork took when it was last measured; None where it never was."""
    try:
        opened = os.open(os.path.join(folder, _USE), os.O_RDONLY | _FLAGS)
    except OSError:
        return None
    try:
        return int(os.read(opened, 20))
    except (OSError, ValueError):
        return None
    finally:
        os.close(opened)


def total_known(store: Store) -> tuple[int, int]:
    """Forks whose size is known, and their bytes. No record is read and no tree is walked."""
    sizes = [size for name in store.names() if (size := known_size(os.path.join(store.forks, name))) is not None]
    return len(sizes), sum(sizes)


def last_use(folder: str, record: Record) -> float:
    """When the fork was last used: seconds of the clock. Before anybody did, when its command ended."""
    try:
        return os.stat(os.path.join(folder, _USE)).st_mtime
    except OSError:
        return moment(record.ended or record.created)


def moment(text: str) -> float:
    """A time as records carry it, in seconds of the clock."""
    from calendar import timegm  # whose imports a run need not pay for

    return float(timegm(time.strptime(text, _MOMENT)))


def in_words(seconds: float) -> str:
    """Seconds of the clock as records carry them."""
    return time.strftime(_MOMENT, time.gmtime(seconds))


@contextlib.contextmanager
def using(folder: str) -> Iterator[None]:
    """Use the fork's content: it cannot expire meanwhile, and its time begins anew.

    Raises ForkError `fork.not-found` where it went just now. In a state folder that this user cannot write it is only
    read: nothing expires there.
    """
    path = os.path.join(folder, _USE)
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    except FileNotFoundError:
        raise _gone(folder) from None
    except OSError:
        yield
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_SH)
        # Who had the exclusive lock may have removed the fork, and its name may be another's by now.
        if not _is_at(opened, path):
            raise _gone(folder)
        os.utime(opened)
        yield
    finally:
        # Said, not left to the close: a process that the caller forked meanwhile holds the same open file.
        fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


@contextlib.contextmanager
def claimed(folder: str, record: Record) -> Iterator[bool]:
    """Keep everybody from using the fork; False where somebody does, or it is gone. The last use stays what it is."""
    path = os.path.join(folder, _USE)
    before = last_use(folder, record)
    fresh = True
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
    except FileExistsError:
        opened, fresh = os.open(path, os.O_RDWR | _FLAGS), False
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        if fresh:
            os.utime(opened, (before, before))
        yield _is_at(opened, path)
    finally:
        fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


def is_pinned(folder: str) -> bool:
    """Whether the fork never expires."""
    return os.path.exists(os.path.join(folder, _PINNED))


def pin(folder: str, wanted: bool) -> bool:
    """Pin the fork or take the pin away, on disk when this returns; says whether that was a change."""
    path = os.path.join(folder, _PINNED)
    with as_fork_error("the fork cannot be pinned" if wanted else "the pin cannot be taken away", path):
        try:
            if wanted:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600))
            else:
                os.unlink(path)
        except (FileExistsError, FileNotFoundError):
            if not os.path.isdir(folder):
                raise _gone(folder) from None
            return False
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    return True


def _is_at(opened: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), os.lstat(path))
    except FileNotFoundError:
        return False


def _gone(folder: str) -> ForkError:
    name = os.path.basename(folder)
    return ForkError(
        Code.FORK_NOT_FOUND,
        f"there is no fork called {name} any more",
        hint="hostfork list --expired says if it expired",
    )
