"""Puts right what a crash left: ends what still runs, keeps what was changed, gives back the rest.

Who lives is judged by boot id, pid and start time; the lock only keeps two recoveries apart. What a record names and
nobody owns is ended and either kept (something changed) or released. What no record names in the pool is removed.
"""

import os
import signal
import time
from dataclasses import replace

from hostfork.errors import HostforkError
from hostfork.lifecycle import changes
from hostfork.lifecycle.fork import observed_activity
from hostfork.lifecycle.record import Record, Recovered
from hostfork.lifecycle.release import Leftovers, close_view, end_writers, release, remove_key
from hostfork.lifecycle.store import ForkFolder, Store, now
from hostfork.storage.choose import all_keys
from hostfork.vocabulary import Activity
from hostfork.workload.identity import boot_id

_PATIENCE = 10.0


def recover(store: Store) -> tuple[Recovered, ...]:
    """Look at every fork and at the pool. Forks that live are left alone. Safe beside other runs."""
    found = []
    for name in store.names():
        done = _recover_fork(store, name)
        if done is not None:
            found.append(done)
    store.sweep()
    removed = _remove_unowned(store)
    if removed:
        found.append(Recovered("", f"{removed} pieces of private storage that no fork owns were removed"))
    return tuple(found)


def remove_unrecorded(store: Store, name: str) -> tuple[str, ...]:
    """Remove a fork that has no readable record: its folder, and what the default pool holds under its name."""
    with store.open(name) as folder:
        if not folder.lock():
            return (f"{name} is held by another hostfork",)
        folder.remove()
    _remove_unowned(store)
    return ()


def _recover_fork(store: Store, name: str) -> Recovered | None:
    try:
        folder = store.open(name)
    except HostforkError:
        return None  # it went away meanwhile
    with folder:
        if not folder.lock():
            return None  # its owner lives
        if not os.path.exists(folder.file("record.json")):
            folder.remove()
            return Recovered(name, "was never made; removed")
        try:
            record = folder.load()
            if observed_activity(record) is Activity.IDLE:
                return None
            return _settle(folder, record)
        except HostforkError as error:
            return Recovered(name, "could not be put right", (error.message, *error.details))


def _settle(folder: ForkFolder, record: Record) -> Recovered:
    """End the writers; keep the fork if its command may have changed something, else release it."""
    _wait_for_keeper(record)
    report = end_writers(record, None)
    if report.survivors:
        return Recovered(record.name, "still has processes that the kernel cannot end yet", ())
    left = close_view(record, None)
    if record.activity is not Activity.RELEASING and _was_launched(folder):
        record = replace(record, torn=record.boot_id != boot_id())
        found = changes.collect(folder, record, lambda _path: None)
        if any(changeset.changes for changeset in found.values()):
            return _keep(folder, record, changes.joined(found).counts().total, left)
    left = Leftovers(left.sentences + release(folder, record).sentences)
    return Recovered(record.name, "released" if not left else "partly released", left.sentences)


def _keep(folder: ForkFolder, record: Record, number: int, left: Leftovers) -> Recovered:
    """The changes stay where they are; they are read again when somebody asks."""
    folder.note("recovered")
    folder.save(replace(record, activity=Activity.IDLE, ended=record.ended or now()), durable=True)
    torn = ", the machine went down before they were surely on disk" if record.torn else ""
    return Recovered(record.name, f"its command was ended; {number} changes are kept{torn}", left.sentences)


def _was_launched(folder: ForkFolder) -> bool:
    return any(line.get("event") == "launching" for line in folder.read_journal())


def _wait_for_keeper(record: Record) -> None:
    """A keeper without an owner ends the tree by itself; one that hangs is killed."""
    keeper = record.keeper
    deadline = time.monotonic() + _PATIENCE
    while keeper is not None and keeper.alive():
        if time.monotonic() > deadline:
            os.kill(keeper.pid, signal.SIGKILL)
            return
        time.sleep(0.005)


def _remove_unowned(store: Store) -> int:
    """Storage in the default pool whose fork does not exist: a fork's folder is there before and after its storage."""
    pool = os.path.join(store.root, "pool")
    number = 0
    for mechanism, state in all_keys(pool):
        if not _owned(store, state.key):
            remove_key(mechanism, state.key, pool)
            number += 1
    return number


def _owned(store: Store, key: str) -> bool:
    return os.path.isdir(os.path.join(store.forks, key.rpartition(".")[0]))
