"""The log of a fork: who asked for what and when. It outlives the fork by the days that the configuration says.

    STATE/logs/NAME@ID.jsonl    append-only, a JSON object a line
               NAME@ID.end      how many lines and bytes there are, and the last line's sum

Each line holds the BLAKE2b sum of the line before, the first one that of the log's own name; so a line that was
changed, lost, put in or moved is found, and by the `.end` also one that is missing at the end. That shows damage. It
does not stop the user whose files they are. (BLAKE3 would cost a kept run 4 ms to load; BLAKE2b is there already.)

`journal.jsonl` is something else: what a fork's owner did step by step, for recovery, gone with the fork. A run that
leaves no fork leaves no log.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from enum import Enum, unique

from hostfork.errors import Code, ForkError
from hostfork.helper.lean import dumps
from hostfork.lifecycle.context import who
from hostfork.lifecycle.record import Record, Status, Who
from hostfork.lifecycle.store import Store, as_fork_error, plain, state_folder
from hostfork.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

_LOG, _END = ".jsonl", ".end"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT
_DAY = 86400.0
_FIXED = ("n", "at", "event", "by", "before", "after", "prev")


@unique
class Event(Enum):
    """What can happen to a fork and is worth knowing when it is gone."""

    CREATED = "created"
    STARTED = "started"
    ENDED = "ended"
    KEPT = "kept"
    RECOVERED = "recovered"
    CHECKPOINTED = "checkpointed"
    RESTORED = "restored"
    BRANCHED = "branched"
    REBASED = "rebased"
    APPLIED = "applied"
    COMMITTED = "committed"
    UNDONE = "undone"
    EXPORTED = "exported"
    SEALED = "sealed"
    UNSEALED = "unsealed"
    REQUESTED = "requested"
    APPROVED = "approved"
    STOPPED = "stopped"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    RELEASED = "released"
    DISCARDED = "discarded"
    EXPIRED = "expired"


@frozen
class Entry:
    """One line of a log. `at` is ISO-8601 UTC; `before` and `after` are ids of content; `facts` what else was told."""

    n: int
    at: str
    event: str
    by: dict[str, Any]
    before: str | None
    after: str | None
    facts: dict[str, Any]


@frozen
class Log:
    """The log of one fork, which may be gone. `id` tells forks of one name apart; `changed`: seconds of the clock."""

    name: str
    id: str
    path: str
    changed: float

    @property
    def words(self) -> str:
        """How it is named where several forks had the name."""
        return f"{self.name}@{self.id}"


@frozen
class Happened:
    """One thing to tell. `at` None is now."""

    event: Event
    by: Who | None = None
    at: str | None = None
    before: str | None = None
    after: str | None = None
    facts: tuple[tuple[str, Any], ...] = ()


def tell(
    store: Store, fork: Record | str, event: Event, *, by: Who | None = None, before: str | None = None,
    after: str | None = None, **facts: Any,
) -> None:  # fmt: skip
    """Add one line to a fork's log; it is on disk when this returns. Raises ForkError `fork.state`.

    `fork`: its record, its name, or NAME@ID, also of one that is gone. `by`: who asked, else who calls. `facts` are
    plain values.
    """
    tell_all(store, fork, (Happened(event, by, None, before, after, tuple(facts.items())),))


def try_to_tell(store: Store, fork: Record | str, event: Event, **facts: Any) -> tuple[str, ...]:
    """The same where a full disk must not stop what is done: what could not be written, in sentences."""
    try:
        tell(store, fork, event, **facts)
    except ForkError as error:
        return (f"the log does not tell that it was {event.value}: {', '.join(error.details) or error.message}",)
    return ()


def tell_kept(store: Store, record: Record, event: Event = Event.KEPT) -> tuple[str, ...]:
    """That a fork is kept at the end of its run, and how it was made and ended where nobody told that yet.

    What could not be written, in sentences.
    """
    facts: dict[str, object] = {"changes": None if record.counts is None else record.counts.total}
    if record.torn:
        facts["torn"] = True
    status = record.status or Status()
    happened = [
        Happened(Event.ENDED, record.by, record.ended, facts=(("exit", status.exit), ("signal", status.signal))),
        Happened(event, record.by if event is Event.KEPT else None, facts=tuple(facts.items())),
    ]
    try:
        if not has_log(store, record):
            happened.insert(0, created(record))
        tell_all(store, record, happened)
    except ForkError as error:
        return (f"the log of {record.name} cannot be written: {', '.join(error.details) or error.message}",)
    return ()


def has_log(store: Store, record: Record) -> bool:
    """Whether anything was told of it."""
    return os.path.exists(os.path.join(store.root, "logs", "@".join(_log_of(store, record)) + _LOG))


def created(record: Record) -> Happened:
    """How a fork was made."""
    paths = [
        {"path": path.path, "mechanism": path.mechanism, "guarantee": path.guarantee}
        for path in record.paths
        if path.mechanism is not None
    ]
    facts = (("command", record.command), ("cwd", record.cwd), ("policy", record.policy), ("paths", paths))
    return Happened(Event.CREATED, record.by, record.created, facts=facts)


def tell_all(store: Store, fork: Record | str, events: Sequence[Happened]) -> None:
    """Several lines in one write."""
    name, number = _log_of(store, fork)
    folder = os.path.join(store.root, "logs")
    path = os.path.join(folder, f"{name}@{number}")
    with as_fork_error("the log of a fork cannot be written", path + _LOG):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        end = os.open(path + _END, os.O_RDWR | _FLAGS, 0o600)
        try:
            fcntl.flock(end, fcntl.LOCK_EX)
            log = os.open(path + _LOG, os.O_RDWR | os.O_APPEND | _FLAGS, 0o600)
            try:
                _append(log, end, f"{name}@{number}", events)
            finally:
                os.close(log)
        finally:
            os.close(end)


def _append(log: int, end: int, words: str, events: Sequence[Happened]) -> None:
    there = os.fstat(log).st_size
    lines, size, prev = _read_end(os.pread(end, 200, 0)) or (0, 0, _sum(words.encode()))
    if there > size:  # it ended between the two writes
        for line in os.pread(log, there - size, size).splitlines():
            lines, prev = lines + 1, _sum(line)
    content = b"\n" if there and os.pread(log, 1, there - 1) != b"\n" else b""  # the machine went down
    for event in events:
        lines += 1
        line = dumps(_as_line(event, lines, prev)).encode("ascii")
        content, prev = content + line + b"\n", _sum(line)
    written = os.write(log, content)
    if written != len(content):
        os.ftruncate(log, there)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fdatasync(log)
    os.pwrite(end, f"{lines:<12} {there + written:<16} {prev}\n".encode(), 0)


def _as_line(event: Happened, number: int, prev: str) -> dict[str, Any]:
    return {
        "n": number,
        "at": event.at or _now(),
        "event": event.event.value,
        "by": _person(event.by or who()),
        **{name: value for name, value in (("before", event.before), ("after", event.after)) if value is not None},
        **{name: _plain(value) for name, value in event.facts if value is not None},
        "prev": prev,
    }


def _person(by: Who) -> dict[str, Any]:
    found: dict[str, Any] = {"uid": by.uid, "user": _user(by.uid), "argv": by.argv}
    optional = (("sudo", by.sudo), ("inside", by.inside), ("tags", dict(by.tags)))
    return found | {name: value for name, value in optional if value}


def _now() -> str:
    moment = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}.{int(moment * 1000) % 1000:03}Z"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else plain(value)


def _user(uid: int) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _sum(line: bytes) -> str:
    from _blake2 import blake2b

    return str(blake2b(line, digest_size=16).hexdigest())


def _read_end(content: bytes) -> tuple[int, int, str] | None:
    """Lines, bytes, and the last line's sum; None where nothing was written yet, or it is damaged."""
    words = content.split()
    if len(words) != 3 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return int(words[0]), int(words[1]), words[2].decode("ascii", "replace")


def _log_of(store: Store, fork: Record | str) -> tuple[str, str]:
    """A fork's name, and what tells it from others that had it."""
    if isinstance(fork, str):
        name, at, number = fork.partition("@")
        if at and number:
            return name, number
        try:
            with store.open(name) as folder:
                fork = folder.load()
        except ForkError:
            had = [log for log in logs(store) if log.name == name]
            return name, had[-1].id if had else "0"
    # records of older versions have no id
    return fork.name, fork.id or "".join(letter for letter in fork.created if letter.isalnum())


def logs(store: Store) -> tuple[Log, ...]:
    """All logs, by name, and those of one name in the order in which they were last written."""
    found = []
    folder = os.path.join(store.root, "logs")
    with as_fork_error("the logs of forks cannot be read", folder):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return ()
        for file in names:
            words, dot, _ = file.rpartition(_LOG)
            name, at, number = words.partition("@")
            if dot and at:
                with contextlib.suppress(FileNotFoundError):
                    path = os.path.join(folder, file)
                    found.append(Log(name, number, path, os.stat(path).st_mtime))
    return tuple(sorted(found, key=lambda log: (log.name, log.changed, log.id)))


def find(store: Store, beginning: str) -> tuple[Log, ...]:
    """The logs of the fork of that name or unique beginning, the present one last; `NAME@ID` is one alone.

    Raises ForkError `fork.not-found`, `fork.ambiguous`.
    """
    known = logs(store)
    matching = [log for log in known if beginning in (log.name, log.words)]
    matching = matching or [log for log in known if beginning and log.words.startswith(beginning)]
    names = sorted({log.name for log in matching})
    if len(names) > 1:
        raise ForkError(Code.FORK_AMBIGUOUS, f"{beginning} could be {', '.join(names)}", hint="type more of the name")
    if not matching:
        raise ForkError(
            Code.FORK_NOT_FOUND, f"there is no log of a fork called {beginning}",
            details=("only forks that were kept have one",), hint="hostfork list",
        )  # fmt: skip
    present = _present(store, names[0])
    return tuple(sorted(matching, key=lambda log: (log.id == present, log.changed)))


def logs_of(name: str) -> tuple[Log, ...]:
    """The caller's own: see `find`."""
    return find(Store(state_folder()), name)


def _present(store: Store, name: str) -> str | None:
    """The id of the fork that has the name now."""
    return _log_of(store, name)[1] if name in store.names() else None


def read(log: Log) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Every line that can be read, and what is damaged, in sentences. Raises ForkError `fork.state`."""
    with as_fork_error("the log of a fork cannot be read", log.path), open(log.path, "rb") as file:
        end = _end_of(log)  # first: lines that are added meanwhile follow it
        content = file.read()
    entries, problems = [], []
    prev = _sum(log.words.encode())
    number = size = 0
    at_end: str | None = prev
    lines = content.splitlines(keepends=True)
    for index, line in enumerate(lines, 1):
        entry, said = _entry(line.removesuffix(b"\n")) if line.endswith(b"\n") else (None, None)
        if entry is None:
            problems.append(f"line {index} cannot be read")
        else:
            if said != prev:
                problems.append(_broken(index, entry.n, number))
            number = entry.n
            entries.append(entry)
        prev = _sum(line.removesuffix(b"\n"))
        size += len(line)
        if end is not None and size == end[1]:
            at_end = prev
    if end is None and not content:
        pass  # nothing was told yet
    elif end is None:
        problems.append("where it ends is not recorded: lines may be missing there")
    elif size < end[1] or number < end[0]:
        missing = end[0] - number
        problems.append(f"{missing} line{'' if missing == 1 else 's'} missing at its end" if missing > 0 else
                        "it is shorter than it was")  # fmt: skip
    elif at_end != end[2]:
        problems.append("its last line was changed")
    return tuple(entries), tuple(problems)


def _broken(index: int, number: int, before: int) -> str:
    if number > before + 1:
        return f"before line {index} lines are missing: number {number} follows {before}"
    if number <= before:
        return f"line {index} is not in its place: number {number} follows {before}"
    return f"line {index} does not follow from what stands before it, which was changed"


def _end_of(log: Log) -> tuple[int, int, str] | None:
    try:
        with open(log.path.removesuffix(_LOG) + _END, "rb") as file:
            return _read_end(file.read(200))
    except FileNotFoundError:
        return None


def _entry(line: bytes) -> tuple[Entry | None, str | None]:
    """A line and the sum that it holds; nothing where it is no line of a log."""
    import json

    try:
        found = json.loads(line)
        facts = {name: value for name, value in found.items() if name not in _FIXED}
        entry = Entry(int(found["n"]), str(found["at"]), str(found["event"]), dict(found["by"]),
                      found.get("before"), found.get("after"), facts)  # fmt: skip
        return entry, str(found["prev"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None


def forget(store: Store, days: int | None) -> int:
    """Remove the logs of forks that are gone, and to which nothing was added for so many days; how many."""
    if days is None:
        return 0
    gone = 0
    for log in _old(store, time.time() - days * _DAY):
        with contextlib.suppress(OSError):
            os.unlink(log.path)
            os.unlink(log.path.removesuffix(_LOG) + _END)
            gone += 1
    return gone


def _old(store: Store, before: float) -> Iterator[Log]:
    there = frozenset(store.names())
    for log in logs(store):
        if log.changed < before and not (log.name in there and _present(store, log.name) == log.id):
            yield log
