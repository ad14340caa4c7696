"""Applies on disk: what each did to the host, step by step, so that it can be finished, put back and undone.

    STATE/applies/ID/apply.json     of which fork, when, which of its changes
                     plan.json      every step: what stood and what stands at each name
                     journal.jsonl  how far it is; on disk before what it tells is done
                     open           it is not finished: whoever comes next settles it
    POOL/applies/ID/N               what step N displaced; while it is made ready, what step N brings

One at a time applies or undoes; whoever holds the lock and finds an `open` one knows that its owner is dead.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator

from hostfork.apply.steps import Plan
from hostfork.apply.values import ApplyState
from hostfork.errors import ApplyError, Code, ForkError
from hostfork.lifecycle.store import Store, as_fork_error, now
from hostfork.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SCHEMA = 1
_OPEN = "open"
_DAY = 86400.0
_DURABLE = frozenset({"stage", "ready", "committed", "undoing", "undone", "redone", "back"})
_STATES = {
    "committed": ApplyState.APPLIED, "undoing": ApplyState.UNDOING, "undone": ApplyState.UNDONE,
    "redone": ApplyState.APPLIED, "uncommitted": ApplyState.STARTED,
}  # fmt: skip


@frozen
class Header:
    """One apply: of the fork with this name and id. `paths`: every change that was looked at; `written`: how many
    names of the host it replaced; `complete`: nothing of the fork was left for a later apply."""

    id: str
    fork: str
    fork_id: str
    created: str
    moment: float
    pool: str
    paths: tuple[str, ...] = ()
    counts: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    complete: bool = False


class ApplyFolder:
    """One apply on disk."""

    def __init__(self, path: str, header: Header) -> None:
        self.path = path
        self.header = header
        self._journal = -1
        self._is_named = False

    @property
    def stage(self) -> str:
        """Its folder in the pool."""
        return os.path.join(self.header.pool, "applies", self.header.id)

    def file(self, name: str) -> str:
        """The path of one of its files."""
        return os.path.join(self.path, name)

    def note(self, event: str, **facts: Any) -> None:
        """Append one line to the journal. Raises OSError."""
        if self._journal < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._journal = os.open(self.file("journal.jsonl"), flags, 0o600)
        line = json.dumps({"at": time.time(), "event": event, **facts}).encode("ascii") + b"\n"
        written = os.write(self._journal, line)
        if written != len(line):
            os.ftruncate(
                self._journal, os.fstat(self._journal).st_size - written
            )  # half a line would spoil the next one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.file("journal.jsonl"))
        if event in _DURABLE:
            os.fsync(self._journal)
            if not self._is_named:  # the journal's own name, and that of `open`
                _fsync(self.path)
                self._is_named = True

    def close(self) -> None:
        """Close the journal."""
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1

    def events(self) -> list[dict[str, Any]]:
        """Every whole line of the journal."""
        lines = []
        with contextlib.suppress(FileNotFoundError), open(self.file("journal.jsonl"), "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(line))
        return lines

    def state(self) -> ApplyState:
        """How far it is."""
        state = ApplyState.STARTED
        for line in self.events():
            state = _STATES.get(line.get("event", ""), state)
        return state

    @property
    def is_open(self) -> bool:
        """Whether it is not finished."""
        return os.path.exists(self.file(_OPEN))

    def reopen(self) -> None:
        """It is not finished from now on: on disk with the next record that is."""
        os.close(os.open(self.file(_OPEN), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def finish(self) -> None:
        """It is finished."""
        self.note("done")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file(_OPEN))

    def save(self, header: Header) -> None:
        """Replace the header, on disk when this returns."""
        self.header = header
        content = {"schema": _SCHEMA, **header.__dict__}
        _write(self.path, "apply.json", json.dumps(content).encode("ascii"))

    def write_plan(self, plan: Plan) -> None:
        """Replace the steps, on disk when this returns."""
        _write(self.path, "plan.json", json.dumps(plan.to_json(), separators=(",", ":")).encode("ascii"))

    def plan(self) -> Plan | None:
        """The steps, if it came as far as having some. Raises ApplyError `apply.stuck` where they cannot be read."""
        try:
            with open(self.file("plan.json"), "rb") as file:
                return Plan.from_json(json.load(file))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
            raise ApplyError(
                Code.APPLY_STUCK, f"the steps of the apply {self.header.id} cannot be read",
                path=self.file("plan.json"), details=(str(error), f"what it displaced is in {self.stage}"),
                hint="hostfork recover, when that file is whole again",
            ) from error  # fmt: skip

    def remove(self) -> None:
        """Take it off the list, with what it displaced."""
        from hostfork.storage.tree import remove_tree

        self.close()
        pool = os.path.dirname(self.stage)
        with contextlib.suppress(FileNotFoundError):
            folder = os.open(pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if os.path.lexists(self.stage):
                    remove_tree(self.header.id, folder)
            finally:
                os.close(folder)
        for name in sorted(os.listdir(self.path), key="apply.json".__eq__):  # the header last: it names the pool
            os.unlink(self.file(name))
        os.rmdir(self.path)


class Applies:
    """All applies of one user."""

    def __init__(self, store: Store) -> None:
        self.root = os.path.join(store.root, "applies")
        self._store = store

    @contextlib.contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold off every other apply and undo of this user; False where one is at work and this does not wait."""
        self._store.make_folders()
        with as_fork_error("the state folder cannot be used for applies", self.root):
            os.makedirs(self.root, 0o700, exist_ok=True)
            folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)
            os.close(folder)

    def create(self, fork: str, fork_id: str, pool: str) -> ApplyFolder:
        """A new one, open, on disk when this returns. Raises ForkError `fork.state`."""
        number = os.urandom(6).hex()
        path = os.path.join(self.root, number)
        with as_fork_error("an apply cannot be written down", path):
            os.mkdir(path, 0o700)
            folder = ApplyFolder(path, Header(number, fork, fork_id, now(), time.time(), pool))
            folder.reopen()
            folder.save(folder.header)
            _fsync(self.root)
            folder.note("started")
        return folder

    def all(self) -> list[ApplyFolder]:
        """Every one whose header can be read, the oldest first."""
        found = []
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        for name in names:
            folder = self._load(os.path.join(self.root, name))
            if folder is not None:
                found.append(folder)
        return sorted(found, key=lambda one: one.header.moment)

    def is_any_open(self) -> bool:
        """Whether one is not finished: it is at work, or its owner is dead. Nothing is read."""
        try:
            names = os.listdir(self.root)
        except OSError:
            return False
        return any(os.path.exists(os.path.join(self.root, name, _OPEN)) for name in names)

    def of_fork(self, name: str, fork_id: str | None = None) -> list[ApplyFolder]:
        """What stands of a fork's applies, the oldest first."""
        return [
            one
            for one in self.all()
            if one.header.fork == name and fork_id in (None, one.header.fork_id) and one.state() is ApplyState.APPLIED
        ]

    def remove_headless(self) -> None:
        """Remove what was killed before it had a header. The lock must be held."""
        for name in os.listdir(self.root):
            path = os.path.join(self.root, name)
            if not os.path.exists(os.path.join(path, "apply.json")):
                for inner in os.listdir(path):
                    os.unlink(os.path.join(path, inner))
                os.rmdir(path)

    def _load(self, path: str) -> ApplyFolder | None:
        try:
            with open(os.path.join(path, "apply.json"), "rb") as file:
                content = json.load(file)
            content.pop("schema")
            content["paths"], content["counts"] = tuple(content["paths"]), tuple(content["counts"])
            return ApplyFolder(path, Header(**content))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def forget(store: Store, days: int | None) -> int:
    """Remove what can be undone no more: applies of so many days ago, with what they displaced; how many.

    Nothing where one is at work. Nothing is raised: what cannot go now goes another time.
    """
    applies = Applies(store)
    gone = 0
    if days is None or not os.path.isdir(applies.root):
        return 0
    with contextlib.suppress(ForkError, OSError), applies.lock(wait=False) as free:
        for one in applies.all() if free else ():
            if not one.is_open and one.header.moment < time.time() - days * _DAY:
                with contextlib.suppress(OSError):
                    one.remove()
                    gone += 1
    return gone


def _write(folder: str, name: str, content: bytes) -> None:
    path = os.path.join(folder, name)
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(path + ".new", path)
    _fsync(folder)


def _fsync(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
