"""The state folder: one folder per fork with its lock, its record and its journal.

    $XDG_STATE_HOME/hostfork/forks/NAME/record.json     written aside, renamed; fsynced where it is evidence
                                        journal.jsonl   append-only: what happened, in order
                                        base.N          stat manifest of private path N's base
                                        changes         the changeset, once it is known
    $XDG_STATE_HOME/hostfork/pool/                      private storage, unless another pool is named

The lock is a flock on the fork's folder, held by the owner. It only serialises; who lives is judged by identity.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from hostfork.errors import Code, ForkError
from hostfork.lifecycle.names import check_name, fresh_name
from hostfork.lifecycle.record import ACTIVITY_AFTER, SCHEMA, Record
from hostfork.vocabulary import Activity

_REMOVED = "rm-"


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

    def __enter__(self) -> "ForkFolder":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lock."""
        for descriptor in (self._descriptor, self._journal):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._journal = -1

    def lock(self, *, wait: bool = False) -> bool:
        """Take the lock. False where somebody else has it, or where the folder went away meanwhile."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return os.fstat(self._descriptor).st_nlink > 0

    def file(self, name: str) -> str:
        """The path of one of the fork's own files."""
        return os.path.join(self.path, name)

    def save(self, record: Record, *, durable: bool = False) -> Record:
        """Replace the record in one step. `durable`: it is on disk when this returns."""
        content = json.dumps(plain(record), separators=(",", ":")).encode("ascii")
        with _as_fork_error("the record of a fork cannot be written", self.path):
            descriptor = os.open("record.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600,
                                 dir_fd=self._descriptor)  # fmt: skip
            try:
                os.write(descriptor, content)
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
        import msgspec

        try:
            with open(self.file("record.json"), "rb") as file:
                record = msgspec.convert(json.load(file), type=Record)
        except (OSError, ValueError) as error:
            raise _corrupt(self.name, self.file("record.json"), error) from error
        if record.schema != SCHEMA:
            raise _corrupt(self.name, self.file("record.json"), f"schema {record.schema}, not {SCHEMA}")
        return record

    def advance(self, record: Record, activity: Activity, *, durable: bool = False, **changes: Any) -> Record:
        """Save the record with another activity; only the transitions of the table exist."""
        if activity is not record.activity and activity not in ACTIVITY_AFTER[record.activity]:
            raise ValueError(f"a fork cannot go from {record.activity.value} to {activity.value}")
        return self.save(replace(record, activity=activity, **changes), durable=durable)

    def journal(self) -> int:
        """The journal as a descriptor for appending; the keeper writes there too when the owner is gone."""
        if self._journal < 0:
            self._journal = os.open(
                "journal.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=self._descriptor
            )
        return self._journal

    def note(self, event: str, **facts: Any) -> None:
        """Append one line to the journal."""
        os.write(self.journal(), json.dumps({"at": time.time(), "event": event, **facts}).encode("ascii") + b"\n")

    def read_journal(self) -> list[dict[str, Any]]:
        """Every whole line of the journal; a torn last line is left out."""
        lines = []
        with contextlib.suppress(FileNotFoundError), open(self.file("journal.jsonl"), "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(line))
        return lines

    def remove(self) -> None:
        """Take the fork off the list and remove its folder. The lock must be held."""
        aside = os.path.join(os.path.dirname(self.path), f"{_REMOVED}{self.name}-{os.getpid()}-{time.monotonic_ns()}")
        os.rename(self.path, aside)
        _remove_folder(aside)


class Store:
    """All forks of one user."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.forks = os.path.join(root, "forks")

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
            folder = ForkFolder(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            if folder.lock():
                return folder
            folder.close()  # a recovery saw it empty and took it away

    def open(self, name: str) -> ForkFolder:
        """The fork's folder, not locked. Raises ForkError `fork.not-found`."""
        path = os.path.join(self.forks, name)
        try:
            return ForkFolder(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            raise ForkError(Code.FORK_NOT_FOUND, f"there is no fork called {name}", hint="hostfork list") from error

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
        """Every fork's name, in order."""
        try:
            found = os.listdir(self.forks)
        except OSError:
            return ()
        return tuple(sorted(name for name in found if not name.startswith(_REMOVED)))

    def sweep(self) -> None:
        """Remove folders of forks that are off the list already."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.forks):
                if name.startswith(_REMOVED):
                    _remove_folder(os.path.join(self.forks, name))

    def make_folders(self) -> None:
        """Make the state folder, mode 0700. Raises ForkError `fork.state`."""
        try:
            os.makedirs(os.path.dirname(self.root), exist_ok=True)
            for folder in (self.root, self.forks):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700)
        except OSError as error:
            raise _state_error(self.root, error) from error


def plain(value: Any) -> Any:
    """Dataclasses, enums and tuples as what JSON knows."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _remove_folder(path: str) -> None:
    """A fork's folder holds plain files only."""
    for name in os.listdir(path):
        os.unlink(os.path.join(path, name))
    os.rmdir(path)


@contextlib.contextmanager
def _as_fork_error(message: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ForkError(
            Code.FORK_STATE, message, path=path, errno=error.errno, details=(error.strerror or str(error),),
            hint="XDG_STATE_HOME=DIR names another state folder",
        ) from error  # fmt: skip


def _state_error(path: str, error: OSError) -> ForkError:
    return ForkError(
        Code.FORK_STATE,
        f"{path} cannot be made",
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
        details=(str(error),),
        hint=f"hostfork discard {name} removes the fork and its storage",
    )
