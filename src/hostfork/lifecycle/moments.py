"""A fork's own list of its checkpoints, and how they are found by their ids.

    STATE/forks/NAME/checkpoints    a JSON object a line, the oldest first; replaced in one step
                     seen           digests of files that were read (see `checkpoint.known`)
                     restoring      a restore that has begun: to what, and from what

A checkpoint belongs to its fork and goes with it. Two forks that held the same have checkpoints of one id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from hostfork.errors import CheckpointError, Code, ForkError
from hostfork.helper.lean import dumps
from hostfork.lifecycle.record import Status
from hostfork.lifecycle.store import ForkFolder, Store, as_fork_error, plain
from hostfork.values import frozen

SHORT = 12
LAST = "last"
"""Instead of an id: the newest one of a fork."""
_LIST, _RESTORING = "checkpoints", "restoring"


@frozen
class Checkpoint:
    """One checkpoint of a fork. `at` is ISO-8601 UTC.

    `command` is the last one that ran, `status` how it ended: None where it still runs, or nobody saw its end. `pause`:
    seconds for which the fork's processes were held still; None where none ran, or none could be. `files` and `bytes`
    are contents that no checkpoint had. `changes`: how many paths differed from the base. `whole`: every entry is held,
    so that it needs nothing else.
    """

    id: str
    fork: str
    at: str
    message: str = ""
    command: tuple[str, ...] = ()
    status: Status | None = None
    running: bool = False
    pause: float | None = None
    files: int = 0
    bytes: int = 0
    changes: int = 0
    whole: bool = False

    @property
    def short(self) -> str:
        """The beginning of the id that people see."""
        return self.id[:SHORT]


@frozen
class Restoring:
    """A restore that has begun: to which checkpoint, and what the fork held before."""

    to: str
    before: str


def read(fork: ForkFolder) -> tuple[Checkpoint, ...]:
    """All of a fork's checkpoints, the oldest first. Raises ForkError `fork.corrupt`."""
    import json

    import msgspec

    try:
        with open(fork.file(_LIST), "rb") as file:
            return tuple(msgspec.convert(json.loads(line), type=Checkpoint) for line in file)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise ForkError(
            Code.FORK_CORRUPT, f"the list of the checkpoints of {fork.name} cannot be read", path=fork.file(_LIST),
            details=(str(error),), hint=f"hostfork export {fork.name} DEST saves what it holds now",
        ) from error  # fmt: skip


def add(fork: ForkFolder, one: Checkpoint) -> None:
    """Put one at the end of the list; it is there on disk when this returns. Hold `listing`."""
    lines = [*read(fork), one]
    content = b"".join(dumps(plain(line)).encode("ascii") + b"\n" for line in lines)
    _write(fork, _LIST, content)


@contextlib.contextmanager
def listing(fork: ForkFolder) -> Iterator[None]:
    """One at a time makes a checkpoint of a fork."""
    with as_fork_error("the checkpoints of a fork cannot be listed", fork.path):
        opened = os.open(fork.file("checkpointing"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


def begin_restore(fork: ForkFolder, to: str, before: str) -> None:
    """Note on disk that a restore begins."""
    _write(fork, _RESTORING, dumps({"to": to, "before": before}).encode("ascii"))


def restoring(fork: ForkFolder) -> Restoring | None:
    """The restore that has begun and not ended."""
    import json

    try:
        with open(fork.file(_RESTORING), "rb") as file:
            found = json.load(file)
        return Restoring(str(found["to"]), str(found["before"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForkError(
            Code.FORK_CORRUPT, f"what {fork.name} is being restored to cannot be read", path=fork.file(_RESTORING),
            details=(str(error),), hint=f"hostfork checkpoints {fork.name} · hostfork restore {fork.name} ID",
        ) from error  # fmt: skip


def end_restore(fork: ForkFolder) -> None:
    """It is done."""
    with contextlib.suppress(FileNotFoundError), as_fork_error("a restore cannot be ended", fork.path):
        os.unlink(fork.file(_RESTORING))


def must_not_be_restoring(fork: ForkFolder) -> None:
    """Refuse what is half restored. Raises ForkError `fork.busy`."""
    begun = restoring(fork)
    if begun is not None:
        raise ForkError(
            Code.FORK_BUSY, f"a restore of {fork.name} to {begun.to[:SHORT]} did not end",
            hint="hostfork recover completes it",
        )  # fmt: skip


def find(store: Store, words: str) -> tuple[str, Checkpoint]:
    """The fork and the checkpoint of `FORK@ID`, or of `ID` or `@ID` that some fork has. Beginnings are enough.

    Raises CheckpointError `checkpoint.not-found`, `.ambiguous`, ForkError.
    """
    name, at, beginning = words.rpartition("@")
    if name and at:
        with store.find(name) as fork:
            return fork.name, _one(read(fork), beginning, fork.name)
    known = [one for fork_name in store.names() for one in listed(store, fork_name)]
    return (found := _one(known, beginning, None)).fork, found


def of_fork(fork: ForkFolder, words: str) -> Checkpoint:
    """One of this fork's, by the beginning of its id or `last`, with or without `FORK@` before it."""
    return _one(read(fork), words.rpartition("@")[2], fork.name)


def is_one(store: Store, words: str) -> bool:
    """Whether words name a checkpoint rather than a fork: there is an `@`, or no fork's name begins so."""
    if "@" in words:
        return True
    return not any(name.startswith(words) for name in store.names()) and any(
        one.id.startswith(words) for name in store.names() for one in listed(store, name)
    )


def wanted(store: Store, pool: str) -> frozenset[str]:
    """The ids that forks of a pool need. Raises ForkError: then nothing of the pool may go."""
    found: set[str] = set()
    for name in store.names():
        try:
            fork = store.open(name)
        except ForkError:
            continue  # it went meanwhile
        with fork:
            if not os.path.exists(fork.file(_LIST)):
                continue
            begun = restoring(fork)
            found.update(one.id for one in read(fork))
            if begun is not None:
                found.update((begun.to, begun.before))
    return frozenset(found)


def has_any(fork: ForkFolder) -> bool:
    """Whether it has a list of checkpoints."""
    return os.path.exists(fork.file(_LIST))


def listed(store: Store, name: str) -> tuple[Checkpoint, ...]:
    """Those of a fork; none where it is gone, or its list is damaged."""
    try:
        with store.open(name) as fork:
            return read(fork)
    except ForkError:
        return ()


def _one(known: tuple[Checkpoint, ...] | list[Checkpoint], beginning: str, fork: str | None) -> Checkpoint:
    if beginning == LAST and fork is not None and known:
        return known[-1]
    matching = {one.id: one for one in known if beginning and one.id.startswith(beginning)}
    if len(matching) > 1:
        raise CheckpointError(
            Code.CHECKPOINT_AMBIGUOUS, f"{beginning} could be {', '.join(one.short for one in matching.values())}",
            hint="type more of the id",
        )  # fmt: skip
    if not matching:
        of = "" if fork is None else f" of {fork}"
        raise CheckpointError(
            Code.CHECKPOINT_NOT_FOUND, f"there is no checkpoint {beginning}{of}",
            hint=f"hostfork checkpoints {fork or 'FORK'}",
        )  # fmt: skip
    return next(iter(matching.values()))


def _write(fork: ForkFolder, name: str, content: bytes) -> None:
    with as_fork_error("the checkpoints of a fork cannot be written down", fork.path):
        path = fork.file(name)
        with open(f"{path}.new", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{path}.new", path)
        folder = os.open(fork.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
