"""Puts right what a crash left: ends what still runs, keeps what was changed, gives back the rest.

Who lives is judged by boot id, pid and start time; locks only keep two recoveries apart. What a record names and
nobody owns is ended and either kept (something changed) or released. What no record names in a pool is set aside, and
what is set aside is erased, here and to its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from hostfork.baseline.catalog import Catalog
from hostfork.collect.changeset import Changeset
from hostfork.errors import Code, ForkError, HostforkError
from hostfork.lifecycle import audit, bases, changes, settling, stages, uses
from hostfork.lifecycle.pools import forget, is_foreign, is_ours_alone, pools
from hostfork.lifecycle.probes import Probes
from hostfork.lifecycle.quiesce import undo_quiescing
from hostfork.lifecycle.record import Record, Recovered, Status, observed_activity
from hostfork.lifecycle.release import Leftovers, await_keeper, close_view, end_writers, erased, release
from hostfork.lifecycle.store import ForkFolder, Store, now
from hostfork.storage import reclaim
from hostfork.storage.choose import all_keys, storage_of
from hostfork.storage.contract import KeyOwner, KeyStage
from hostfork.storage.pace import Pace
from hostfork.storage.pool import sweep_probes
from hostfork.values import replace
from hostfork.vocabulary import Activity, StorageKind
from hostfork.workload.cgroup import Group
from hostfork.workload.identity import boot_id

Told = Callable[[str, int], None]
"""Told while storage is erased: whose it was, and how many files and folders went so far."""


def recover(store: Store, told: Told | None = None) -> tuple[Recovered, ...]:
    """Look at every fork and at the pools. Forks that live are left alone. Safe beside other runs and recoveries."""
    with store.settling():
        found = [done for name in store.names() if (done := _recover_fork(store, name)) is not None]
        store.sweep()
        found += stages.remove_left(store)
        found += settling.settle_if_free(store)
        swept = [(pool, *_set_aside_unowned(store, pool)) for pool in pools(store)]
    # Nobody waits for the rest: what is set aside is on no list any more.
    for pool, number, left in swept:
        erased_too, more = _erase(pool, told)
        number, left = number + erased_too, left + more
        if number or left:
            found.append(Recovered("", _removed(number, "" if pool == store.pool else f" in {pool}"), tuple(left)))
    forget(store)
    return tuple(found)


def remove_unrecorded(store: Store, name: str) -> tuple[str, ...]:
    """Remove a fork that has no readable record, with what its journal and the default pool say is its own.

    Raises ForkError `fork.busy` where its owner lives.
    """
    with store.settling(), store.open(name) as folder:
        if not folder.lock():
            raise ForkError(Code.FORK_BUSY, f"{name} is in use by a hostfork that lives", hint="end its command first")
        made = next((line for line in folder.read_journal() if line.get("event") == "created"), {})
        left = [*undo_quiescing(folder), *_end_group(made.get("cgroup"))]
        for pool in sorted({str(made.get("pool") or store.pool), store.pool}) if not left else ():
            left += _remove_keys(pool, name)
        if not left:
            left += audit.try_to_tell(store, name, audit.Event.DISCARDED)
            folder.remove()
    return tuple(left)


def _end_group(path: object) -> list[str]:
    if not isinstance(path, str) or not os.path.isdir(path):
        return []
    group = Group(path)
    try:
        group.kill()
        if not group.wait_empty(10):
            return [f"processes {', '.join(map(str, group.processes()))} in {path} could not be ended yet"]
        group.remove()
    except OSError as error:
        return [f"{path} could not be removed: {error.strerror}"]
    return []


def _remove_keys(pool: str, name: str) -> list[str]:
    left: list[str] = []
    aside: list[tuple[KeyOwner, str]] = []
    for owner, state in all_keys(pool):
        if state.key.rpartition(".")[0] == name and state.stage is not KeyStage.HALF_REMOVED:
            try:
                aside += [(owner, moved) for moved in owner.set_aside(state.key, pool)]
            except HostforkError as error:
                left.append(error.message)
    return left + list(erased(pool, Leftovers(aside=tuple(aside))).stuck)


def _recover_fork(store: Store, name: str) -> Recovered | None:
    try:
        folder = store.open(name)
    except HostforkError:
        return None  # it went away meanwhile
    with folder:
        try:
            return _recover_folder(folder)
        except HostforkError as error:
            return Recovered(name, "could not be put right", (error.message, *error.details, error.hint or ""))
        except OSError as error:
            return Recovered(name, "could not be put right", (f"{name}: {error}",))


def _recover_folder(folder: ForkFolder) -> Recovered | None:
    free = folder.lock()
    if not folder.exists():
        return None  # it was released meanwhile
    if not os.path.exists(folder.file("record.json")) and not _journal_says(folder, "launching"):
        if free:
            folder.remove()
        return Recovered(folder.name, "was never made; removed") if free else None
    if not free and (thawed := _thaw(folder)) is not None:
        return thawed
    if not free and _has_owner(folder):
        return None
    record = folder.load()
    if free and os.path.exists(folder.file("restoring")):
        from hostfork.lifecycle.restoring import complete

        return Recovered(folder.name, complete(folder, record))
    if record.holder is not None and record.activity is Activity.RUNNING:
        return _settle_view(folder, record)
    # The owner is dead: where the lock is not free, a process that the owner's program forked holds it.
    if observed_activity(record) is Activity.IDLE:
        for path in changes.private_paths(record) if free else ():
            storage_of(path.storage).tidy(path.key, record.pool)  # what a killed branch left beside it
        return _tidy(folder, record)
    return _settle(folder, record)


def _thaw(folder: ForkFolder) -> Recovered | None:
    """A checkpoint of a running fork that was killed, with its guard, left it frozen."""
    if not _journal_says(folder, "quiescing"):
        return None
    from hostfork.lifecycle.still import thaw_left

    if not thaw_left(folder):
        return None
    return Recovered(folder.name, "was held still by a checkpoint that was killed; it runs on")


def _has_owner(folder: ForkFolder) -> bool:
    """Whether whoever holds the lock lives; with a record that cannot be read, who holds it knows better."""
    try:
        owner = folder.load().owner
    except ForkError:
        return True
    return owner is None or owner.alive()


def _tidy(folder: ForkFolder, record: Record) -> Recovered | None:
    """An owner that died between keeping the changes and closing the view left the rest of that to do."""
    if _journal_says(folder, "kept"):
        return None
    await_keeper(record)
    left = erased(record.pool, close_view(record, None), background=False)
    stored = changes.stored_changes(folder)
    if stored is not None and not record.lasting:
        changes.reduce_storage(record, changes.parts_of(stored, record))
    uses.begin(folder.path)
    if not left:
        folder.note("kept")
    return Recovered(record.name, "what its run left was removed; its changes are kept", left.told)


def _settle_view(folder: ForkFolder, record: Record) -> Recovered | None:
    """A fork that was entered and whose holder is dead: its commands are ended, and it is kept as it is."""
    from hostfork.lifecycle import holding

    if observed_activity(record) is not Activity.ORPHANED:
        number = holding.end_ownerless(folder)
        return Recovered(record.name, "what killed commands left in it was ended") if number else None
    record = holding.settle(folder, record, end=True)
    return Recovered(record.name, "what ran in it was ended; it is kept as it is")


def _settle(folder: ForkFolder, record: Record) -> Recovered:
    """End the writers; keep the fork if its command may have changed something, else release it."""
    await_keeper(record)
    still = undo_quiescing(folder)
    if still:
        return Recovered(record.name, "is not put right yet", still)
    launched = _journal_says(folder, "launching")
    if launched:
        report = end_writers(record, None)
        if report.survivors:
            pids = ", ".join(map(str, report.survivors))
            return Recovered(record.name, "is not put right yet", (f"processes could not be ended: {pids}",))
    left = close_view(record, None)
    if launched and record.activity is not Activity.RELEASING:
        record = replace(record, torn=record.boot_id != boot_id())
        found = changes.collect(folder, record, lambda _path: None)
        if any(changeset.changes for changeset in found.values()):
            return _keep(folder, record, found, left)
    if audit.has_log(_store_of(folder), record):
        left = replace(left, stuck=left.stuck + audit.try_to_tell(_store_of(folder), record, audit.Event.RELEASED))
    left = erased(record.pool, release(folder, record, left), background=False)
    return Recovered(record.name, "released" if not left else "partly released", left.told)


def _keep(folder: ForkFolder, record: Record, found: dict[str, Changeset], left: Leftovers) -> Recovered:
    """As at the end of a run: on disk first, then reduced to what changed."""
    found = bases.remember(folder, record, found, Probes.since(record, _start(folder)))
    changeset = changes.joined(found)
    changes.store_changes(folder, changeset)
    changes.make_durable(record, found)
    counts, status = changeset.counts(), record.status or _status(folder)
    record = replace(
        record,
        activity=Activity.IDLE,
        ended=record.ended or now(),
        counts=counts,
        status=status,
        ignored_only=changes.only_ignored(found),
    )
    told = audit.tell_kept(_store_of(folder), record, audit.Event.RECOVERED)
    folder.save(record, durable=True)
    changes.reduce_storage(record, found)
    left = erased(record.pool, left, background=False)
    uses.begin(folder.path)
    if not left:
        folder.note("kept")
    torn = ", the machine went down before they were surely on disk" if record.torn else ""
    number = "1 change is" if counts.total == 1 else f"{counts.total} changes are"
    return Recovered(record.name, f"its command was ended; {number} kept{torn}", told + left.told)


def _store_of(folder: ForkFolder) -> Store:
    return Store(os.path.dirname(os.path.dirname(folder.path)))


def _start(folder: ForkFolder) -> float:
    """When the fork was made; 0, so that every base counts as gone, where the journal lost it."""
    made = next((line for line in folder.read_journal() if line.get("event") == "created"), {})
    return float(made["at"]) if isinstance(made.get("at"), float) else 0.0


def _status(folder: ForkFolder) -> Status | None:
    """How the command ended, if its owner or keeper saw it."""
    for line in folder.read_journal():
        if line.get("event") == "ended":
            return Status(line.get("exit"), line.get("signal"))
        status = line.get("status")
        if line.get("event") == "ended-without-owner" and isinstance(status, int):
            return Status(None, -status) if status < 0 else Status(status, None)
    return None


def _journal_says(folder: ForkFolder, event: str) -> bool:
    return any(line.get("event") == event for line in folder.read_journal())


def _set_aside_unowned(store: Store, pool: str) -> tuple[int, list[str]]:
    """Storage whose fork does not exist: a fork's folder is there before and after its storage. Trials are swept."""
    left: list[str] = []
    number = 0
    try:
        number = sweep_probes(pool)
        if os.path.isdir(os.path.join(pool, StorageKind.BASELINE.value)) and is_ours_alone(store, pool):
            from hostfork.lifecycle import baselines

            number += baselines.sweep(Catalog(store.root), pool)
        for owner, state in _unowned(pool):
            name = state.rpartition(".")[0]
            # The name is taken while its old storage is moved: a new fork of that name could be making its own.
            with store.claim(name) as claimed:
                if claimed and not is_foreign(store, pool, name):
                    owner.set_aside(state, pool)
    except HostforkError as error:
        left.append(error.message)
    except OSError as error:
        left.append(f"{error.filename or pool} cannot be read: {error.strerror}")
    return number, left


def _unowned(pool: str) -> Iterator[tuple[KeyOwner, str]]:
    for owner, state in all_keys(pool):
        if state.stage is not KeyStage.HALF_REMOVED:
            yield owner, state.key


class _Progress(Pace):
    """Tells how many entries of one thing went."""

    def __init__(self, name: str, told: Told) -> None:
        self._name = name
        self._told = told
        self._number = 0

    def went(self, entries: int) -> None:
        self._number += entries
        self._told(self._name, self._number)


def _erase(pool: str, told: Told | None) -> tuple[int, list[str]]:
    """Erase all that is set aside in a pool, also what could not be erased before; how much went, and what did not."""
    number, left = 0, []
    for aside in reclaim.asides(pool):
        try:
            reclaim.erase(aside, None if told is None else _Progress(aside.key.rpartition(".")[0], told))
            number += 1
        except HostforkError:
            left += [
                one.problem or f"{one.path} could not be erased"
                for one in reclaim.asides(pool)
                if one.name == aside.name
            ]
    return number, left


def _removed(number: int, where: str) -> str:
    if not number:
        return f"private storage{where} could not be erased"
    pieces = "1 piece" if number == 1 else f"{number} pieces"
    return f"{pieces} of private storage that no fork owns {'was' if number == 1 else 'were'} removed{where}"
