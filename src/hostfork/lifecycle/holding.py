"""The view of a kept fork: who builds it, who comes in, and who puts away what is left when the last one has left.

Only who has the fork's lock builds a view. The lock then belongs to the view's holder and to all that are in it, as one
open file: it is free when nobody is. So an overlay's upper folder is never mounted twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time

from hostfork.errors import Code, ForkError, WorkloadError
from hostfork.helper.protocol import SCHEMA, Context, Identity, Overlay, ViewPlan
from hostfork.lifecycle import bases, changes, entries
from hostfork.lifecycle.glance import record_of
from hostfork.lifecycle.moments import must_not_be_restoring
from hostfork.lifecycle.probes import Probes
from hostfork.lifecycle.record import PathRecord, Record, Status, must_be_open, observed_activity
from hostfork.lifecycle.release import end_writers, marks, places
from hostfork.lifecycle.request import Request
from hostfork.lifecycle.store import ForkFolder, now
from hostfork.storage import scratch
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import Delta, Layer
from hostfork.values import frozen, replace
from hostfork.vocabulary import Access, Activity, Disposition
from hostfork.workload import seat as seats
from hostfork.workload.cgroup import Group
from hostfork.workload.identity import ProcessIdentity, boot_id
from hostfork.workload.launch import Helper
from hostfork.workload.seat import Seat
from hostfork.workload.stop import StopReport, stop_in_view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.lifecycle.terms import Terms
    from hostfork.policy.plan import Plan

_PATIENCE = 10.0
"""Seconds that somebody may take to come or to go."""
_AGAIN = 0.005
_NOTHING = Context((), (), "/", 0o077, (), (), ())


@frozen
class InView:
    """A place in the view of a fork. `record` is the fork's as it is while it runs."""

    record: Record
    seat: Seat


def come_in(folder: ForkFolder) -> InView:
    """Come into the view of a fork, which is built where there is none. Raises ForkError, ViewError, StorageError."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        found = _join(folder)
        if found is not None:
            return found
        if folder.lock():
            record = settle(folder, folder.load())
            must_be_open(record, "entered")
            if os.path.exists(folder.file("restoring")):
                must_not_be_restoring(folder)
            return _build(folder, record)
        if not folder.exists():
            raise ForkError(Code.FORK_NOT_FOUND, f"there is no fork called {folder.name}", hint="hostfork list")
        _must_be_coming(folder, time.monotonic() > deadline)
        time.sleep(_AGAIN)


def _join(folder: ForkFolder) -> InView | None:
    try:
        found = seats.connect(folder.descriptor)
    except (OSError, ValueError) as error:
        raise ForkError(
            Code.FORK_BUSY, f"who holds {folder.name} does not answer",
            details=(getattr(error, "strerror", None) or "it was asked for ten seconds",),
            hint=f"hostfork stop {folder.name}",
        ) from error  # fmt: skip
    if found is None:
        return None
    try:
        record = record_of(folder)
        must_be_open(record, "entered")
        if observed_activity(record) is Activity.FROZEN:
            raise ForkError(Code.FORK_BUSY, f"{folder.name} is suspended", hint=f"hostfork resume {folder.name}")
    except BaseException:
        go(folder, found)
        raise
    return InView(record, found)


def _must_be_coming(folder: ForkFolder, late: bool) -> None:
    """Somebody has the lock and no view stands: for a moment while it is built or taken down, else for their work."""
    record = folder.load()
    must_be_open(record, "entered")
    activity = observed_activity(record)
    if late or (record.holder is None and activity in (Activity.RUNNING, Activity.PREPARING, Activity.RELEASING)):
        what = "is in use by another hostfork" if activity in (Activity.IDLE, Activity.ORPHANED) else activity.value
        what = what if what.startswith("is") else f"is {what}"
        raise ForkError(Code.FORK_BUSY, f"{folder.name} {what}", hint=f"hostfork show {folder.name}")


def settle(folder: ForkFolder, record: Record, *, end: bool = False) -> Record:
    """Put right what a dead holder left; the lock is ours. `end`: also what still runs, which else is an error."""
    if record.activity is not Activity.RUNNING or record.holder is None:
        if record.activity is not Activity.IDLE:
            raise ForkError(Code.FORK_BUSY, f"{record.name} was left by a crash", hint="hostfork recover")
        return record
    group = _group(record)
    living = [entry for entry in entries.entries(folder) if entry.running]
    if not end and (living or (group is not None and group.exists() and group.populated())):
        raise ForkError(
            Code.FORK_BUSY, f"who held {record.name} is dead, and commands in it still run",
            details=tuple(f"command {entry.number}: {' '.join(entry.command)}" for entry in living),
            hint="wait for them, or end them: hostfork recover",
        )  # fmt: skip
    report = end_writers(record, None)
    if report.survivors:
        raise survivors(record, report)
    if group is not None:
        group.remove()
    entries.forget_dead(folder)
    folder.note("settled")
    return _idle(folder, record)


def end_ownerless(folder: ForkFolder) -> int:
    """End what commands left whose owner and keeper are both dead while others are in the fork; how many there were."""
    found = 0
    for entry in entries.entries(folder):
        if entry.status is not None or entry.running:
            continue
        found += 1
        if entry.process is not None and entry.process.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.process.pid, signal.SIGKILL)
        if entry.cgroup is not None and os.path.isdir(entry.cgroup):
            group = Group(entry.cgroup)
            group.kill()
            if group.wait_empty(_PATIENCE):
                group.remove()
        if entry.detached:
            entries.save(folder, replace(entry, status=Status(), ended=now()))
        else:
            entries.drop(folder, entry.number)
    return found


def survivors(record: Record, report: StopReport) -> WorkloadError:
    """The error of processes that the kernel does not let go."""
    pids = ", ".join(map(str, report.survivors))
    return WorkloadError(
        Code.WORKLOAD_SURVIVORS, f"processes of {record.name} could not be ended: {pids}", step="stop",
        details=("they wait in the kernel; the fork stays as it is until they are gone",),
        hint=f"hostfork recover, later · ps -o pid,stat,wchan,cmd {pids}",
    )  # fmt: skip


def _idle(folder: ForkFolder, record: Record) -> Record:
    return folder.advance(record, Activity.IDLE, holder=None, cgroup=None, mount_namespace=None)


def _build(folder: ForkFolder, record: Record) -> InView:
    """Build the view, and be the first in it. What fails leaves the fork as it was."""
    from hostfork.lifecycle.terms import Terms

    # Others come into the view from elsewhere: it does not go with the terminal of the first.
    helper = Helper.spawn(apart=True)
    listener = descriptor = -1
    started = False
    try:
        terms = Terms.load(folder)
        record = _enterable(folder, record)
        plan = _plan(terms, record, helper)
        _refresh(record)
        cgroup = None if plan.cgroup_parent is None else f"{plan.cgroup_parent}/hostfork-{record.name}"
        record = folder.advance(
            record, Activity.RUNNING, holder=helper.identity(), cgroup=cgroup, ownership=plan.ownership,
            boot_id=boot_id(), mount_namespace=None, keeper=None, command_process=None,
            disposition=Disposition.OPEN, counts=None, torn=False,
        )  # fmt: skip
        started = True
        if plan.cgroup_parent is not None:
            descriptor = _make_group(plan.cgroup_parent, record.name).open()
        listener = seats.listen(folder.descriptor)
        view = _view(plan, record, folder)
        folder.hand_over()
        held, channel = helper.hold(
            view, folder.journal(), None if descriptor < 0 else descriptor, folder.descriptor, listener
        )
        found = Seat(held, channel, tuple(channel.descriptors))
        holder = ProcessIdentity(record.boot_id, held.pid, held.start_time)
        record = folder.save(replace(record, holder=holder, mount_namespace=held.mount_namespace))
        return InView(record, found)
    except BaseException:
        helper.abandon()
        if started:
            with contextlib.suppress(OSError):
                Group(record.cgroup).remove() if record.cgroup else None
            _idle(folder, record)
        raise
    finally:
        for opened in (listener, descriptor):
            if opened >= 0:
                os.close(opened)


def _enterable(folder: ForkFolder, record: Record) -> Record:
    """A fork whose storage can be mounted and whose content is what it was. It lasts from now on."""
    for path in changes.private_paths(record):
        if isinstance(changes.content_of(record, path), Delta):
            from hostfork.lifecycle.refill import refill

            refill(folder, record, path)
    live = _live(record)
    if any(_has_changed(record, path) for path in live):
        for path in live:
            changes.must_be_unchanged(folder, record, path)
    elif live:
        probes = Probes()  # nothing is changed yet: it starts from what is there now
        probes.begin(folder, record)
        probes.close(_PATIENCE)
        probes.save(folder)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder.file(changes.CHANGES_FILE))  # commands change more
    return replace(record, lasting=True)


def _has_changed(record: Record, path: PathRecord) -> bool:
    """Whether anything lies over the host's content, be it only in the layers of a branch."""
    content = changes.content_of(record, path)
    return bool(os.listdir(changes.delta_of(content))) or (isinstance(content, Layer) and len(content.lowers) > 1)


def _live(record: Record) -> list[PathRecord]:
    """The private paths into which the host's content shows through."""
    return [p for p in changes.private_paths(record) if p.guarantee is not None and p.guarantee.depends_on_source]


def _plan(terms: Terms, record: Record, helper: Helper) -> Plan:
    """The plan of the view, on the host as it is now."""
    from hostfork.lifecycle.observe import host_facts
    from hostfork.lifecycle.terms import choices_of
    from hostfork.policy.plan import make_plan

    policy = terms.asked()
    facts = host_facts(policy, Request(record.command, pool=record.pool), helper, record.cwd)
    return make_plan(policy, facts, choices_of(record), relocated=not record.same_paths)


def _refresh(record: Record) -> None:
    """What a view uses up or drops: work folders of overlays, scratch that an earlier end took away."""
    from hostfork.storage.tree import remove_tree

    for path in record.paths:
        if path.access is Access.SCRATCH:
            if not any(state.key == path.key for state in scratch.keys(record.pool)):
                scratch.prepare(path.key, path.path, record.pool)
            continue
        storage_of(path.storage).thaw(path.key, record.pool)
        tree = storage_of(path.storage).mounts(path.key, record.pool)
        if isinstance(tree, Overlay):
            above, name = os.path.split(tree.work)
            place = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with contextlib.suppress(FileNotFoundError):
                    remove_tree(name, place)
                os.mkdir(name, 0o700, dir_fd=place)
            finally:
                os.close(place)


def _make_group(parent: str, name: str) -> Group:
    try:
        return Group.make(parent, name)
    except OSError as error:
        raise WorkloadError(
            Code.WORKLOAD_CGROUP, f"the fork's cgroup cannot be made in {parent}", step="cgroup",
            path=f"{parent}/hostfork-{name}", errno=error.errno, details=(error.strerror or str(error),),
            hint="hostfork recover removes a group that a crash left · hostfork doctor",
        ) from error  # fmt: skip


def _view(plan: Plan, record: Record, folder: ForkFolder) -> ViewPlan:
    from hostfork.lifecycle.view import attaches

    return ViewPlan(
        schema=SCHEMA,
        namespaces=plan.same_paths,
        identity=identity(record, plan.user_namespace),
        slave=plan.slave,
        read_only_root=plan.read_only_root,
        attaches=attaches(plan, record, folder) if plan.same_paths else (),
        cgroup=plan.cgroup_parent is not None,
        owner=os.getpid(),
        context=_NOTHING,
        holds=True,
    )


def identity(record: Record, user_namespace: bool) -> Identity | None:
    """Who the commands are in their user namespace; None without one."""
    return Identity(os.geteuid(), os.getegid()) if user_namespace and record.same_paths else None


def go(folder: ForkFolder, seat: Seat, **facts: object) -> None:
    """Leave the view. The last one ends what is left of the fork, and has the view closed; `facts` for its record.

    Raises WorkloadError `workload.survivors`: then the fork stays as it is.
    """
    last = seat.leave()
    try:
        if last:
            _put_away(folder, seat, facts)
            # Said, not left to the close: a process that the caller forked meanwhile holds the same open folder.
            fcntl.flock(seat.lock, fcntl.LOCK_UN)
    finally:
        seat.close()
        os.close(seat.lock)
    if last is None and folder.lock():
        # The holder is dead. If we were alone, nothing else is to be put right.
        with contextlib.suppress(ForkError):
            settle(folder, folder.load())


def _put_away(folder: ForkFolder, seat: Seat, facts: dict[str, object]) -> None:
    record = folder.load()
    group = _group(record)
    namespace = record.mount_namespace if record.same_paths else None
    known = frozenset(map(os.fsencode, marks(record)))
    report = stop_in_view(group, seat.held.pid, namespace, known, lambda: tuple(map(os.fsencode, places(record))))
    if report.survivors:
        raise survivors(record, report)
    if group is not None:
        group.remove()
    entries.forget_dead(folder)
    seat.finish()
    if _live(record):
        # What its changes were changes of is looked at now: the host may change it later.
        found = changes.collect(folder, record, lambda _path: None)
        found = bases.remember(folder, record, found, Probes.load(folder))
        changes.store_changes(folder, changes.joined(found))
        facts = facts | {"counts": changes.joined(found).counts()}
    _idle(folder, replace(record, ended=now(), **facts))
    from hostfork.lifecycle import uses

    uses.begin(folder.path)


def _group(record: Record) -> Group | None:
    return None if record.cgroup is None or record.boot_id != boot_id() else Group(record.cgroup)
