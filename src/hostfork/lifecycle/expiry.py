"""Which kept forks go by themselves, when and why; and how they go, so that none goes that somebody uses.

Only an idle fork goes that is not pinned and whose disposition allows it, the one that was not used for longest first.
It is judged, locked, judged again, written down, and released like one that is discarded. Of the two locks the fork's
own keeps an owner out, and that of `uses` everybody who reads its content.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, unique

from hostfork.errors import Code, ForkError, HostforkError
from hostfork.lifecycle import applies, audit, expired, unused, uses
from hostfork.lifecycle.config import KeepRules
from hostfork.lifecycle.expired import Expired
from hostfork.lifecycle.pools import pools
from hostfork.lifecycle.record import DISPOSITION_AFTER, Record, observed_activity
from hostfork.lifecycle.release import close_view, erase_later, erased, release
from hostfork.lifecycle.store import ForkFolder, Store
from hostfork.values import frozen, replace
from hostfork.vocabulary import Activity, Disposition

DAY = 86400.0
SPARED = DAY
"""Seconds after its last use in which no limit on number or bytes takes a fork: the changes of a run that was just
made are never the price of an older one's."""


@unique
class Reason(Enum):
    """The key of the configuration by which a fork goes."""

    AGE = "keep-days"
    IGNORED = "keep-days-ignored"
    NUMBER = "max-forks"
    BYTES = "max-bytes"


@frozen
class KeptFork:
    """A fork that is kept, as expiry sees it. `size` None: not measured yet."""

    folder: str
    record: Record
    last_use: float
    size: int | None
    pinned: bool

    @property
    def may_expire(self) -> bool:
        """Whether it may go at all."""
        return not self.pinned and Disposition.EXPIRED in DISPOSITION_AFTER[self.record.disposition]

    def goes(self, rules: KeepRules) -> float | None:
        """When it goes for its age, in seconds of the clock; None where it never does."""
        days = self.limit(rules)[1]
        return self.last_use + days * DAY if days is not None and self.may_expire else None

    def limit(self, rules: KeepRules) -> tuple[Reason, int | None]:
        """The limit on its age in days, and the key that says so: the shorter one, where both hold."""
        ignored = rules.keep_days_ignored if self.record.ignored_only else None
        if ignored is None or (rules.keep_days is not None and rules.keep_days <= ignored):
            return Reason.AGE, rules.keep_days
        return Reason.IGNORED, ignored


@frozen
class Due:
    """A kept fork that is to go, and why: the key of the configuration, and a clause."""

    fork: KeptFork
    reason: Reason
    why: str


@frozen
class Judged:
    """What is to go, in the order in which it goes. `over`: limits that are not kept all the same, in sentences.

    `waiting`: forks that a crash left, which are `recover`'s.
    """

    due: tuple[Due, ...]
    over: tuple[str, ...]
    waiting: tuple[str, ...]


@frozen
class Collected:
    """What `gc` did, or would do. `spared`: used, pinned or locked meanwhile. `leftovers`: what could not be done."""

    gone: tuple[Expired, ...]
    over: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    rules: KeepRules = KeepRules()
    contents: int = 0
    """Contents of files that no checkpoint needed any more, and their bytes."""
    contents_bytes: int = 0


def gc(store: Store, rules: KeepRules, *, dry_run: bool = False, must_be_noted: bool = False) -> Collected:
    """Let go what is to go, and have what is set aside in the pools erased.

    With `must_be_noted` nothing goes that cannot be written down first; else the caller tells people what went.
    """
    judged = judge(store, rules, remember=not dry_run)
    gone: list[Expired] = []
    spared: list[str] = []
    leftovers: list[str] = []
    for due in judged.due:
        if dry_run:
            gone.append(_expired(due))
            continue
        try:
            went = expire(store, due, must_be_noted=must_be_noted)
        except (HostforkError, OSError) as error:
            leftovers += _told(due.fork.record.name, error)
            continue
        if went is None:
            spared.append(due.fork.record.name)
        else:
            gone.append(went)
    try:
        gone += unused.gc(store, rules, dry_run=dry_run, must_be_noted=must_be_noted)
    except (HostforkError, OSError) as error:
        leftovers += _told("automatic baselines", error)
    if not dry_run:
        audit.forget(store, rules.log_days)
        applies.forget(store, rules.undo_days)
        for pool in pools(store):
            erase_later(pool)
    contents, size = (0, 0) if dry_run else _needless_contents(store, leftovers)
    return Collected(
        tuple(gone), judged.over, judged.waiting, tuple(spared), tuple(leftovers), rules, contents, size
    )  # fmt: skip


def _needless_contents(store: Store, leftovers: list[str]) -> tuple[int, int]:
    """Remove what no checkpoint needs any more: how many contents, and their bytes."""
    if not any(os.path.isdir(os.path.join(pool, "checkpoints")) for pool in pools(store)):
        return 0, 0
    from hostfork.lifecycle.checkpoints import collect_garbage

    try:
        removed = [one for _, one in collect_garbage(store)]
    except (HostforkError, OSError) as error:
        leftovers += _told("checkpoints", error)
        return 0, 0
    return sum(one.objects for one in removed), sum(one.bytes for one in removed)


def _told(name: str, error: HostforkError | OSError) -> list[str]:
    if isinstance(error, OSError):
        return [f"{name} could not expire: {error.filename or ''} {error.strerror}"]
    return [f"{name}: {error.message}", *error.details]


def judge(store: Store, rules: KeepRules, *, remember: bool = True) -> Judged:
    """Look at every fork, and say what is to go. `remember`: sizes that had to be measured are written down."""
    kept, waiting = _kept(store)
    now = time.time()
    due: list[Due] = []
    rest: list[KeptFork] = []
    for fork in kept:
        goes = fork.goes(rules)
        if goes is not None and goes <= now:
            due.append(_for_its_age(fork, rules, now))
        else:
            rest.append(fork)
    over: list[str] = []
    if rules.max_forks is not None:
        rest = _by_number(rest, rules.max_forks, due, over, now)
    for pool in sorted({fork.record.pool for fork in rest}):
        _by_bytes([fork for fork in rest if fork.record.pool == pool], pool, rules, due, over, remember)
    return Judged(tuple(due), tuple(over), waiting)


def expire(store: Store, due: Due, *, must_be_noted: bool = False) -> Expired | None:
    """Let one fork go; None where somebody uses it, or it is not what was judged any more. Raises HostforkError."""
    try:
        folder = store.open(due.fork.record.name)
    except ForkError:
        return None
    with store.settling(), folder:
        if not folder.lock():
            return None
        with uses.claimed(folder.path, due.fork.record) as free:
            record = folder.load() if free else due.fork.record
            if not free or not _is_as_judged(folder, record, due.fork):
                return None
            gone = _expired(due)
            try:
                expired.write_down(store, gone)
                if must_be_noted:
                    audit.tell(store, record, audit.Event.EXPIRED, why=gone.why)
            except ForkError:
                if must_be_noted:
                    raise
            left = close_view(record, None)
            left = release(folder, replace(record, disposition=Disposition.EXPIRED), left)
    told = erased(record.pool, left).told
    if not must_be_noted:
        # Now a full disk has room again; where it has none, who called sees what went.
        audit.try_to_tell(store, record, audit.Event.EXPIRED, why=gone.why)
    if told:
        raise ForkError(Code.FORK_STATE, f"{record.name} expired, and a part of it is left", details=told)
    return gone


def _is_as_judged(folder: ForkFolder, record: Record, fork: KeptFork) -> bool:
    """Under both locks: whether it is still the fork that was judged, idle, unpinned, and not used since."""
    return (
        record.created == fork.record.created
        and observed_activity(record) is Activity.IDLE
        and replace(fork, record=record, pinned=uses.is_pinned(folder.path)).may_expire
        and uses.last_use(folder.path, record) == fork.last_use
        and is_settled(folder)
    )


def is_settled(folder: ForkFolder) -> bool:
    """Whether its run came to its end; what a crash left of it is recovery's."""
    return any(line.get("event") == "kept" for line in folder.read_journal())


def _kept(store: Store) -> tuple[list[KeptFork], tuple[str, ...]]:
    """The kept forks, the one that was not used for longest first; and the names of those that wait for recovery."""
    kept: list[KeptFork] = []
    waiting: list[str] = []
    for folder, record in _records(store):
        activity = observed_activity(record)
        if activity is Activity.ORPHANED or (activity is Activity.IDLE and not is_settled(folder)):
            waiting.append(record.name)
        elif activity is Activity.IDLE:
            kept.append(kept_fork(folder.path, record))
    return sorted(kept, key=lambda fork: (fork.last_use, fork.record.name)), tuple(waiting)


def kept_fork(path: str, record: Record) -> KeptFork:
    """An idle fork as expiry sees it."""
    return KeptFork(path, record, uses.last_use(path, record), uses.known_size(path), uses.is_pinned(path))


def _records(store: Store) -> Iterator[tuple[ForkFolder, Record]]:
    for name in store.names():
        try:
            with store.open(name) as folder:
                yield folder, folder.load()
        except ForkError:
            continue  # it went meanwhile, is being made, or cannot be read: nothing that expires


def _for_its_age(fork: KeptFork, rules: KeepRules, now: float) -> Due:
    days = int((now - fork.last_use) // DAY)
    reason, limit = fork.limit(rules)
    only = ", and every change is in ignored folders" if reason is Reason.IGNORED else ""
    return Due(fork, reason, f"not used for {days} d{only} ({reason.value} {limit})")


def _may_make_room(fork: KeptFork, now: float) -> bool:
    return fork.may_expire and now - fork.last_use >= SPARED


def _by_number(
    forks: Sequence[KeptFork], most: int, due: list[Due], over: list[str], now: float
) -> list[KeptFork]:  # fmt: skip
    """Add to `due` what is too many; gives the rest."""
    surplus = len(forks) - most
    why = f"{len(forks)} forks are kept ({Reason.NUMBER.value} {most})"
    rest = []
    for fork in forks:
        if surplus > 0 and _may_make_room(fork, now):
            due.append(Due(fork, Reason.NUMBER, why))
            surplus -= 1
        else:
            rest.append(fork)
    if surplus > 0:
        over.append(f"{why}, and {_NOTHING_GOES}")
    return rest


_NOTHING_GOES = "those that are left are pinned or were used within a day"


def _by_bytes(
    forks: list[KeptFork], pool: str, rules: KeepRules, due: list[Due], over: list[str], remember: bool
) -> None:
    """Add to `due` what takes too much of one pool."""
    try:
        found = os.statvfs(pool)
    except OSError:
        return  # its disk is not mounted
    most = rules.most_bytes(found.f_blocks * found.f_frsize)
    if most is None:
        return
    forks = _sized(forks, (fork for fork in forks if fork.size is None), remember)
    if _total(forks) > most:  # sizes as runs found them are upper bounds
        forks = _sized(forks, forks, remember)
    total = _total(forks)
    why = f"forks in {pool} take {_size(total)} ({Reason.BYTES.value} {_size(most)})"
    now = time.time()
    for fork in forks:
        if total > most and fork.size and _may_make_room(fork, now):
            due.append(Due(fork, Reason.BYTES, why))
            total -= fork.size
    if total > most:
        over.append(f"{why}, and {_NOTHING_GOES}")


def _total(forks: Iterable[KeptFork]) -> int:
    return sum(fork.size or 0 for fork in forks)


def _sized(forks: Sequence[KeptFork], which: Iterable[KeptFork], remember: bool) -> list[KeptFork]:
    """The forks, those of `which` with what they alone take now."""
    from hostfork.lifecycle.usage import space_of_fork

    measured = {}
    for fork in which:
        try:
            size = space_of_fork(fork.record, still=True).exclusive
        except (HostforkError, OSError):
            continue  # its storage is lost or its disk not mounted
        measured[fork.folder] = size
        if remember:
            uses.remember_size(fork.folder, fork.record, size)
    return [replace(fork, size=measured.get(fork.folder, fork.size)) for fork in forks]


def _size(number: int) -> str:
    from hostfork.storage.failures import size

    return size(number)


def _expired(due: Due) -> Expired:
    record, counts = due.fork.record, due.fork.record.counts
    return Expired(
        name=record.name,
        at=uses.in_words(time.time()),
        created=record.created,
        last_use=uses.in_words(due.fork.last_use),
        reason=due.reason.value,
        why=due.why,
        bytes=due.fork.size,
        changes=None if counts is None else counts.total,
        command=record.command,
        paths=tuple(path.path for path in record.paths if path.mechanism is not None),
    )
