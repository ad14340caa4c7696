"""Where forks meet: paths that one changed and that another fork, or the host since then, changed too.

How many there are is asked for each fork of a list, so that only stored changes are read and the host is only stat'ed:
an entry counts as changed there if its ctime is not before the moment at which the fork's copy was begun, or if it is
there or not there other than at that moment. What `apply` finds is exact; this never misses a change but one that
came and went, and may name one that was none (a touch).
"""

from __future__ import annotations

import os
import stat
from calendar import timegm
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from time import strptime

from hostfork.collect.changeset import Change
from hostfork.collect.store import read_places
from hostfork.errors import CollectError, HostforkError
from hostfork.lifecycle import changes, contents, uses
from hostfork.lifecycle.record import Record, observed_activity
from hostfork.lifecycle.store import ForkFolder, Store, state_folder
from hostfork.values import frozen
from hostfork.vocabulary import Activity, ChangeKind, Disposition, EntryKind

MOST = 5000
"""Changes of one fork up to which they are compared for a list."""
_TICK = 0.01
"""Seconds by which the clock of a filesystem may be behind."""

Places = Mapping[str, tuple[bool, bool]]
"""Changed paths; of each, whether it was there before and whether it is a folder now."""


@frozen
class Meeting:
    """One path that both changed; `one` and `other` what each did, None for the host. `same`: to the same effect."""

    path: str
    one: Change | None
    other: Change | None
    same: bool = False


def meets() -> dict[str, int | None]:
    """For each idle fork, how many of its changed paths were also changed by the host or in another of these.

    None where that is not known without looking: more changes than `MOST`, or none stored.
    """
    store = Store(state_folder())
    found: dict[str, tuple[Record, Places | None]] = {}
    for name in store.names():
        try:
            with store.open(name) as folder:
                record = folder.load()
                if observed_activity(record) is Activity.IDLE:
                    found[name] = record, _places(folder, record)
        except HostforkError:
            continue  # it went meanwhile, is being made, or cannot be read
    owners: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for name, (_, places) in found.items():
        for path, (_, folder_now) in (places or {}).items():
            owners[path].append((name, folder_now))
    known = _Known(owners, _folders_of(owners))
    return {name: known.number(name, record, places) for name, (record, places) in found.items()}


def _places(folder: ForkFolder, record: Record) -> Places | None:
    if record.counts is not None and record.counts.total > MOST:
        return None
    try:
        return read_places(folder.file(changes.CHANGES_FILE))
    except CollectError:
        return None


def _folders_of(owners: Mapping[str, Sequence[tuple[str, bool]]]) -> Mapping[str, set[str]]:
    """Every folder around a changed path, and the forks that changed something in it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, several in owners.items():
        names = {name for name, _ in several}
        around = os.path.dirname(path)
        while around != "/" and not found[around].issuperset(names):
            found[around].update(names)
            around = os.path.dirname(around)
    return found


@frozen
class _Known:
    """What all forks changed: by path, each fork and whether it is a folder there now; by folder, who changed in it."""

    owners: Mapping[str, Sequence[tuple[str, bool]]]
    inside: Mapping[str, set[str]]

    def number(self, name: str, record: Record, places: Places | None) -> int | None:
        """How many of a fork's changed paths others changed too."""
        if places is None:
            return None
        since = _since(record)
        # what was applied is on the host as the fork has it
        alone = record.disposition is Disposition.APPLIED
        return sum(
            self._in_other(path, name, folder_now) or (not alone and host_changed(path, existed, _moment(path, since)))
            for path, (existed, folder_now) in places.items()
        )

    def _in_other(self, path: str, name: str, folder_now: bool) -> bool:
        if any(other != name for other, _ in self.owners[path]):
            return True
        if not folder_now and any(other != name for other in self.inside.get(path, ())):
            return True  # a folder that is one no more, and in which the other changed something
        around = os.path.dirname(path)
        while around != "/":
            if any(other != name and not folder for other, folder in self.owners.get(around, ())):
                return True
            around = os.path.dirname(around)
        return False


def _since(record: Record) -> list[tuple[str, float]]:
    """Each private path and when its copy was begun, the innermost first."""
    made = timegm(strptime(record.created, "%Y-%m-%dT%H:%M:%SZ"))
    known = [(path.path, (path.taken[0] if path.taken else made) - _TICK) for path in changes.private_paths(record)]
    return sorted(known, key=lambda pair: -len(pair[0]))


def _moment(path: str, since: Iterable[tuple[str, float]]) -> float:
    return next((moment for at, moment in since if path == at or path.startswith(at.rstrip("/") + "/")), 0.0)


def host_changed(path: str, existed: bool, since: float) -> bool:
    """Whether the host has something else at a path than at that moment, as far as one stat tells.

    A folder counts only where it came or went, or is none any more.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return existed
    if not existed:
        return True
    return found.st_ctime >= since and not stat.S_ISDIR(found.st_mode)


def overlap(one: tuple[ForkFolder, Record], other: tuple[ForkFolder, Record]) -> tuple[Meeting, ...]:
    """The paths that two forks changed, each with what both did. Also where one replaced a folder of the other's.

    Raises CollectError, ForkError.
    """
    sides = [_changes_of(*one), _changes_of(*other)]
    both = sorted(set(sides[0]) & set(sides[1]), key=os.fsencode)
    same = _equal(both, one, other)
    found = [Meeting(path, sides[0][path], sides[1][path], path in same) for path in both]
    for number, (mine, others) in enumerate((sides, sides[::-1])):
        for path, change in mine.items():
            around = _changed_above(path, others)
            if around is not None and path not in others:
                pair = (change, others[around])
                found.append(Meeting(path, *(pair if number == 0 else pair[::-1])))
    return tuple(sorted(found, key=lambda meeting: os.fsencode(meeting.path)))


def with_host(folder: ForkFolder, record: Record) -> tuple[Meeting, ...]:
    """The paths that a fork changed and that the host changed too, as far as a stat tells."""
    since = _since(record)
    return tuple(
        Meeting(path, change, None)
        for path, change in _changes_of(folder, record).items()
        if host_changed(path, change.was is not None, _moment(path, since))
    )


def _changes_of(folder: ForkFolder, record: Record) -> dict[str, Change]:
    with uses.using(folder.path):
        stored = changes.stored_changes(folder)
        if stored is None:
            stored = changes.joined(changes.collect(folder, record, lambda _path: None))
    return {change.path: change for change in stored.changes}


def _changed_above(path: str, others: Mapping[str, Change]) -> str | None:
    """The folder around it that the other removed or made something else."""
    around = os.path.dirname(path)
    while around != "/":
        change = others.get(around)
        if change is not None and (change.change is ChangeKind.DELETED or change.kind is not EntryKind.FOLDER):
            return around
        around = os.path.dirname(around)
    return None


def _equal(paths: Sequence[str], one: tuple[ForkFolder, Record], other: tuple[ForkFolder, Record]) -> set[str]:
    """Those of the paths that hold the same in both forks."""
    if not paths:
        return set()
    mine, others = (contents.digests(folder, record, frozenset(paths)) for folder, record in (one, other))
    return {path for path in paths if mine.get(path) == others.get(path)}
