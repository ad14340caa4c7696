"""The state folder: one folder per fork with its lock, its record and its journal.

    $XDG_STATE_HOME/hostfork/forks/NAME/record.json     written aside, renamed; fsynced where it is evidence
                                        journal.jsonl   append-only: what happened, in order
                                        base.N          stat manifest of private path N's base
                                        changes         the changeset, once it is known
                                        use, pinned     see `uses`
    $XDG_STATE_HOME/hostfork/expiry/                    its time is when expiry in the background began last
    $XDG_STATE_HOME/hostfork/pool/                      private storage, unless another pool is named

The lock is a flock on the fork's folder, held by the owner. It only serialises; who lives is judged by identity.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from enum import Enum

from hostfork.errors import Code, ForkError
from hostfork.helper.lean import dumps
from hostfork.lifecycle.names import check_name, fresh_name
from hostfork.lifecycle.record import ACTIVITY_AFTER, SCHEMA, Record, check_decision
from hostfork.values import replace
from hostfork.vocabulary import Activity, Disposition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_REMOVED = "rm-"
_HOUR = 3600.0


def state_folder() -> str:
    """hostfork's state folder: absolute, symlinks resolved. XDG base directories; works with HOME unset."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(home_folder(), ".local/state")
    return os.path.realpath(os.path.join(base, "hostfork"))


def home_folder() -> str:
    """The caller's home: HOME, else the account's."""
    home = os.environ.get("HOME", "")
    if home.startswith("/"):
        return home
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


def now() -> str:
    """The time as records and JSON carry it: ISO-8601, UTC, seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class ForkFolder:
    """One fork on disk. With `lock` held nobody else changes it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self._descriptor = descriptor
        self._journal = -1
        self._locked = False

    def __enter__(self) -> ForkFolder:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lock."""
        if self._locked:
            # Said, not left to the close: a process that the caller forked meanwhile holds the same open folder.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        for descriptor in (self._descriptor, self._journal):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._journal = -1
        self._locked = False

    @property
    def descriptor(self) -> int:
        """The open folder; a lock that was taken is this open file's."""
        return self._descriptor

    def hand_over(self) -> None:
        """Somebody else has the lock by a copy of the descriptor: closing ours does not give it up."""
        self._locked = False

    def lock(self, *, wait: bool = False) -> bool:
        """Take the lock. False where somebody else has it, or where the folder went away meanwhile."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        self._locked = True
        return self.exists()

    def exists(self) -> bool:
        """Whether the folder is still there, or on its way out."""
        return os.fstat(self._descriptor).st_nlink > 0

    def file(self, name: str) -> str:
        """The path of one of the fork's own files."""
        return os.path.join(self.path, name)

    def save(self, record: Record, *, durable: bool = False) -> Record:
        """Replace the record in one step. `durable`: it is on disk when this returns."""
        content = dumps(plain(record)).encode("ascii")
        with as_fork_error("the record of a fork cannot be written", self.path):
            descriptor = os.open("record.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600,
                                 dir_fd=self._descriptor)  # fmt: skip
            try:
                _write_all(descriptor, content)
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename("record.new", "record.json", src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
            if durable:
                os.fsync(self._descriptor)
        return record

    def load(self) -> Record:
        """The record. Raises ForkError `fork.corrupt`."""
        import json

        import msgspec

        try:
            with open(self.file("record.json"), "rb") as file:
                content = json.load(file)
            if isinstance(content, dict) and content.get("schema") != SCHEMA:
                raise ValueError(f"schema {content.get('schema')!r}; this version of hostfork reads {SCHEMA}")
            record = msgspec.convert(content, type=Record)
            if record.name != self.name or any(_number_of(path.key, self.name) is None for path in record.paths):
                raise ValueError(f"it is of the fork {record.name!r}")
        except (OSError, ValueError, RecursionError) as error:
            raise _corrupt(self.name, self.file("record.json"), error) from error
        return record

    def advance(self, record: Record, activity: Activity, *, durable: bool = False, **changes: Any) -> Record:
        """Save the record with another activity; only the transitions of the table exist."""
        if activity is not record.activity and activity not in ACTIVITY_AFTER[record.activity]:
            raise ValueError(f"a fork cannot go from {record.activity.value} to {activity.value}")
        return self.save(replace(record, activity=activity, **changes), durable=durable)

    def decide(self, record: Record, disposition: Disposition, **changes: Any) -> Record:
        """Save the record, on disk when this returns, with another disposition; only those of the table follow.

        Raises ForkError `fork.decided`.
        """
        check_decision(record, disposition)
        return self.save(replace(record, disposition=disposition, **changes), durable=True)

    def journal(self) -> int:
        """The journal as a descriptor for appending; the keeper writes there too when the owner is gone."""
        if self._journal < 0:
            with as_fork_error("the journal of a fork cannot be written", self.path):
                self._journal = os.open("journal.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600,
                                        dir_fd=self._descriptor)  # fmt: skip
        return self._journal

    def note(self, event: str, **facts: Any) -> None:
        """Append one line to the journal."""
        line = dumps({"at": time.time(), "event": event, **facts}).encode("ascii") + b"\n"
        with as_fork_error("the journal of a fork cannot be written", self.path):
            _write_all(self.journal(), line)

    def read_journal(self) -> list[dict[str, Any]]:
        """Every whole line of the journal; a torn last line is left out."""
        import json

        lines = []
        with contextlib.suppress(FileNotFoundError), open(self.file("journal.jsonl"), "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(line))
        return [line for line in lines if isinstance(line, dict)]

    def drop_lists(self) -> None:
        """Remove what tells of bases, changes and later commands: of no use to a fork on its way out."""
        with as_fork_error("the folder of a fork cannot be read", self.path):
            for name in os.listdir(self._descriptor):
                if name.startswith("base.") or name in ("changes", "terms"):
                    os.unlink(name, dir_fd=self._descriptor)

    def remove(self) -> None:
        """Take the fork off the list and remove its folder. The lock must be held."""
        aside = os.path.join(os.path.dirname(self.path), f"{_REMOVED}{self.name}-{os.getpid()}-{time.monotonic_ns()}")
        with as_fork_error("a fork cannot be taken off the list", self.path):
            os.rename(self.path, aside)
            _remove_folder(aside)


class Store:
    """All forks of one user."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.forks = os.path.join(root, "forks")
        self.pool = os.path.join(root, "pool")
        self.expiry = os.path.join(root, "expiry")

    def create(self, name: str | None) -> ForkFolder:
        """A new, locked fork folder. Raises ForkError `fork.name-taken`, `fork.bad-name`, `fork.state`."""
        self.make_folders()
        candidate = fresh_name() if name is None else check_name(name)
        attempt = 0
        while True:
            path = os.path.join(self.forks, candidate)
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                if name is not None:
                    raise ForkError(
                        Code.FORK_NAME_TAKEN,
                        f"another fork is called {name}",
                        place="--name",
                        hint=f"hostfork show {name} · another --name",
                    ) from None
                attempt += 1
                candidate = fresh_name() if attempt < 20 else f"{fresh_name()}-{attempt}"
                continue
            except OSError as error:
                raise _state_error(path, error) from error
            except BaseException:  # Ctrl-C
                _unmake(path)
                raise
            try:
                with contextlib.suppress(FileNotFoundError):  # a recovery saw it empty and took it away
                    folder = ForkFolder(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                    if folder.lock(wait=True):
                        return folder
                    folder.close()
            except BaseException:
                _unmake(path)
                raise

    def open(self, name: str) -> ForkFolder:
        """The fork's folder, not locked. Raises ForkError `fork.not-found`."""
        path = os.path.join(self.forks, name)
        try:
            return ForkFolder(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            raise ForkError(Code.FORK_NOT_FOUND, f"there is no fork called {name}", hint="hostfork list") from error

    def being_made(self, name: str) -> bool:
        """Whether the fork has an owner and no record yet, or is gone by now."""
        try:
            with self.open(name) as folder:
                return not os.path.exists(folder.file("record.json")) and not folder.lock()
        except ForkError:
            return True

    def find(self, beginning: str) -> ForkFolder:
        """The fork of that name, or the only one whose name begins like that."""
        names = self.names()
        if beginning in names:
            return self.open(beginning)
        matching = [name for name in names if beginning and name.startswith(beginning)]
        if len(matching) > 1:
            raise ForkError(
                Code.FORK_AMBIGUOUS, f"{beginning} could be {', '.join(matching)}", hint="type more of the name"
            )
        return self.open(matching[0] if matching else beginning)

    def names(self) -> tuple[str, ...]:
        """Every fork's name, in order. Raises ForkError `fork.state`."""
        try:
            found = os.listdir(self.forks)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _state_error(self.forks, error, "cannot be read") from error
        return tuple(sorted(name for name in found if not name.startswith(_REMOVED)))

    @contextlib.contextmanager
    def settling(self) -> Iterator[None]:
        """One at a time puts forks right or discards them; runs are not held up."""
        self.make_folders()
        with as_fork_error("the state folder cannot be read", self.forks):
            folder = os.open(self.forks, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)
            os.close(folder)

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Hold a name that no fork has, so that none is made of it meanwhile; False where one has it."""
        path = os.path.join(self.forks, name)
        try:
            os.mkdir(path, 0o700)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            os.rmdir(path)

    def sweep(self) -> None:
        """Remove folders of forks that are off the list already."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.forks):
                if name.startswith(_REMOVED):
                    _remove_folder(os.path.join(self.forks, name))

    def expiry_is_due(self) -> bool:
        """Whether expiry in the background began more than an hour ago; then it counts as begun now.

        Never where nothing was kept yet. One stat, and nothing is raised.
        """
        with contextlib.suppress(OSError):
            if 0 <= time.time() - os.stat(self.expiry).st_mtime < _HOUR:
                return False
            os.utime(self.expiry)
            return True
        return False

    def make_folders(self) -> None:
        """Make the state folder, mode 0700. Raises ForkError `fork.state`.

        On Btrfs it is a subvolume: what is written there is no change of the one that holds the sources.
        """
        try:
            os.makedirs(os.path.dirname(self.root), exist_ok=True)
            if not os.path.isdir(self.root):
                from hostfork.storage.pool import make_own

                make_own(self.root)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.forks, 0o700)
        except OSError as error:
            raise _state_error(self.root, error) from error


def plain(value: Any) -> Any:
    """Values, enums and tuples as what JSON knows."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "__match_args__"):
        return {name: plain(getattr(value, name)) for name in value.__match_args__}
    return value


def _number_of(key: str, name: str) -> int | None:
    """The N of a storage key NAME.N of the fork."""
    before, _dot, number = key.rpartition(".")
    return int(number) if before == name and number.isascii() and number.isdigit() else None


def _write_all(descriptor: int, content: bytes) -> None:
    """A nearly full disk takes a part, and says so only to the next write."""
    while content:
        content = content[os.write(descriptor, content) :]


def _remove_folder(path: str) -> None:
    """A fork's folder holds plain files only. Two that remove it at once do not disturb each other."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, name))
        os.rmdir(path)


@contextlib.contextmanager
def as_fork_error(message: str, path: str) -> Iterator[None]:
    """What the kernel refuses in the state folder, as ForkError `fork.state`."""
    try:
        yield
    except OSError as error:
        raise ForkError(
            Code.FORK_STATE, message, path=path, errno=error.errno, details=(error.strerror or str(error),),
            hint="XDG_STATE_HOME=DIR names another state folder",
        ) from error  # fmt: skip


def _unmake(path: str) -> None:
    """Remove a fork's folder that has nothing in it yet. Its owner, if that is another, makes it again."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _state_error(path: str, error: OSError, what: str = "cannot be made") -> ForkError:
    return ForkError(
        Code.FORK_STATE,
        f"{path} {what}",
        path=path,
        errno=error.errno,
        details=(error.strerror or str(error),),
        hint="XDG_STATE_HOME=DIR names another state folder",
    )


def _corrupt(name: str, path: str, error: object) -> ForkError:
    return ForkError(
        Code.FORK_CORRUPT,
        f"the record of {name} cannot be read",
        path=path,
        details=(str(error) if isinstance(error, OSError) else f"{path}: {error}",),
        hint=f"hostfork discard {name} removes the fork and its storage",
    )
