"""Gives back what a fork holds, in order, each step verified: writers, view, cgroup, storage, record.

The same release serves a normal end, Ctrl-C, discard and recovery. A step that fails is reported and leaves what a
retry needs. Storage goes in two steps: it is set aside, which takes no time and puts the fork off the list, and erased,
for a moment here and for as long as it takes by a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

from hostfork.errors import ForkError, StorageError
from hostfork.lifecycle.pools import mark_of, within_filesystem
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.store import ForkFolder
from hostfork.storage.choose import owner_of
from hostfork.storage.contract import KeyOwner, Removal
from hostfork.values import frozen, replace
from hostfork.vocabulary import Access, Activity
from hostfork.workload.cgroup import Group
from hostfork.workload.identity import boot_id, stat_fields
from hostfork.workload.launch import Helper
from hostfork.workload.stop import StopReport, members, stop

_PATIENCE = 1.0


@frozen
class Leftovers:
    """Sentences about what could not be given back; empty means that everything is, so that the record can go.

    `aside` is what waits to be erased. `stuck`: sentences about what could not be erased. `reclaiming`: the space of
    what went is not all back yet.
    """

    sentences: tuple[str, ...] = ()
    aside: tuple[tuple[KeyOwner, str], ...] = ()
    stuck: tuple[str, ...] = ()
    reclaiming: bool = False

    def __bool__(self) -> bool:
        return bool(self.sentences)

    @property
    def told(self) -> tuple[str, ...]:
        """All that somebody has to know."""
        return self.sentences + self.stuck


def marks(record: Record) -> tuple[str, ...]:
    """The variables by which a fork's processes are known where no keeper lives: its name and its owner's identity."""
    owner = record.owner
    known = "" if owner is None else f"{owner.pid}:{owner.start_time}"
    return (f"HOSTFORK_FORK={record.name}", f"HOSTFORK_OWNER={known}")


def places(record: Record) -> tuple[str, ...]:
    """What only the mount table of the fork's view holds: its storage, as overlays and as binds name it.

    Of a snapshot only a part may be bound. Forks of another pool may have the same name, and by now the same number of
    a namespace.
    """
    if not record.same_paths:
        return ()
    mark, found = mark_of(record.pool), []
    try:
        pool = within_filesystem(record.pool)
    except OSError:
        pool = ""  # its disk is not mounted any more
    for path in record.paths:
        bound = f"{pool}/{path.storage.value}/{path.key}/tree"
        found += [f" hostfork:{path.key}{mark} ", f"{bound} ", f"{bound}/"]
    return tuple(found)


def members_of(record: Record) -> tuple[int, ...]:
    """The pids of a fork's processes: those of its cgroup, else those in its mount namespace but the keeper."""
    group = _group(record)
    if group is not None:
        return tuple(group.processes()) if group.exists() else ()
    if record.mount_namespace is None or not record.same_paths:
        return () if record.command_process is None else (record.command_process.pid,)
    keeper = record.keeper.pid if record.keeper else -1
    return tuple(pid for pid in members(record.mount_namespace) if pid != keeper)


def end_writers(record: Record, keeper: Helper | None) -> StopReport:
    """End every process of the fork and prove that none is left."""
    if record.boot_id != boot_id():
        return StopReport(())
    namespace = record.mount_namespace if record.same_paths else None
    known = frozenset(map(os.fsencode, marks(record)))
    return stop(_group(record), keeper, namespace, known, lambda: tuple(map(os.fsencode, places(record))))


def await_keeper(record: Record) -> None:
    """A keeper without an owner ends the tree by itself and writes down how. One that is stopped or hangs is killed.

    It hangs when nothing of the fork ends any more for about a second. What it left is ended by who calls this.
    """
    keeper = record.keeper
    seen: tuple[int, ...] | None = None
    deadline = 0.0
    while keeper is not None and keeper.alive():
        left = members_of(record)
        if left != seen:
            seen, deadline = left, time.monotonic() + _PATIENCE
        fields = stat_fields(keeper.pid)
        if time.monotonic() > deadline or (fields is not None and fields[0] == "T"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper.pid, signal.SIGKILL)
            return
        time.sleep(0.01)


def close_view(record: Record, keeper: Helper | None) -> Leftovers:
    """Let the keeper go, with it the view; remove the empty cgroup, and set aside what is never collected."""
    sentences = []
    if keeper is not None:
        keeper.finish()
    group = _group(record)
    if group is not None:
        sentences += _attempt(group.path, group.remove)
    scratch = [path for path in record.paths if path.access is Access.SCRATCH]
    return _set_aside(scratch, record.pool, Leftovers(tuple(sentences)))


def release(fork: ForkFolder, record: Record, left: Leftovers) -> Leftovers:
    """Set aside the storage and, if nothing is left, take the fork off the list. The writers are stopped.

    `left` is what closing the view could not give back: the record stays for it. Until the end it says `releasing`, so
    that a retry knows what it finds. What is set aside is for `erased`.
    """
    record = replace(record, activity=Activity.RELEASING)
    try:
        fork.save(record)
    except ForkError:  # a full disk must not keep anybody from giving back
        fork.drop_lists()
        fork.save(record)
    left = _set_aside(record.paths, record.pool, left)
    if not left:
        fork.remove()
    return left


def erased(pool: str, left: Leftovers, background: bool = True) -> Leftovers:
    """Erase what is set aside, as far as a moment goes; the rest goes in the background, or is the caller's."""
    from hostfork.storage import reclaim

    removed, errors = reclaim.erase_soon(pool, left.aside, background)
    stuck = tuple(map(reclaim.told, errors))
    return replace(left, aside=(), stuck=left.stuck + stuck, reclaiming=removed is Removal.RECLAIMING)


def erase_later(pool: str) -> None:
    """Have everything that is set aside in a pool erased in the background: an interrupt came in the middle of it."""
    from hostfork.storage import reclaim

    if reclaim.asides(pool) and not reclaim.is_active(pool):
        reclaim.start((pool,))


def _set_aside(paths: Iterable[PathRecord], pool: str, left: Leftovers) -> Leftovers:
    sentences, aside = list(left.sentences), list(left.aside)
    for path in paths:
        owner = owner_of(path.storage)

        def move(owner: KeyOwner = owner, key: str = path.key) -> None:
            aside.extend((owner, name) for name in owner.set_aside(key, pool))

        sentences += _attempt(path.written, move)
    return replace(left, sentences=tuple(sentences), aside=tuple(aside))


def _group(record: Record) -> Group | None:
    """The fork's own group. One of that name in another boot is somebody else's."""
    return None if record.cgroup is None or record.boot_id != boot_id() else Group(record.cgroup)


def _attempt(what: str, action: Callable[[], object]) -> list[str]:
    try:
        action()
    except StorageError as error:
        return [error.message]
    except OSError as error:
        return [f"{what} could not be removed: {error.strerror}"]
    return []
