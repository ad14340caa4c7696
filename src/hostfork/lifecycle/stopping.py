"""Commands of a running fork from outside: which there are, waiting for one, ending, suspending and going on."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from hostfork.errors import Code, ForkError, HostError, HostforkError, WorkloadError
from hostfork.lifecycle import audit, entries, holding
from hostfork.lifecycle.entries import Entry
from hostfork.lifecycle.record import Record, Status, observed_activity
from hostfork.lifecycle.release import members_of
from hostfork.lifecycle.store import ForkFolder, Store, state_folder
from hostfork.values import frozen
from hostfork.vocabulary import Activity
from hostfork.workload import freeze
from hostfork.workload.cgroup import Group, own_folder
from hostfork.workload.identity import ProcessIdentity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GRACE = 10.0
"""Seconds between SIGTERM and the end."""
_PATIENCE = 15.0
"""Seconds that an owner may take to put away what its command left."""
_AGAIN = 0.02


@frozen
class Stopped:
    """A command that was ended. `killed`: it did not end by itself within the grace."""

    number: int
    command: tuple[str, ...]
    killed: bool


def commands(folder: ForkFolder, record: Record) -> tuple[Entry, ...]:
    """What runs in a fork, and what ran detached: of a plain run its one command, with the number 0."""
    if record.holder is not None or record.lasting:
        return entries.entries(folder)
    if observed_activity(record) not in (Activity.RUNNING, Activity.FROZEN) or record.owner is None:
        return ()
    return (
        Entry(0, record.command, record.created, record.owner, record.cgroup, record.command_process, record.keeper),
    )


def pids_of(record: Record, entry: Entry) -> tuple[int, ...]:
    """The processes of one command; without a cgroup only itself is known among those of the fork."""
    if entry.cgroup is not None:
        group = Group(entry.cgroup)
        return tuple(sorted(group.processes())) if group.exists() else ()
    if entry.number == 0:
        return tuple(sorted(members_of(record)))
    return () if entry.process is None or not entry.process.alive() else (entry.process.pid,)


def stop(name: str, number: int | None = None, grace: float = GRACE) -> tuple[Stopped, ...]:
    """End what runs in a fork, or one command of it: SIGTERM, and after the grace all of it is killed.

    Returns when their owners have put away what they left. Raises ForkError.
    """
    with Store(state_folder()).find(name) as folder:
        record = folder.load()
        if observed_activity(record) is Activity.ORPHANED:
            raise ForkError(Code.FORK_BUSY, f"{record.name} was left by a crash", hint="hostfork recover")
        if record.holder is not None:
            holding.end_ownerless(folder)
        running = [entry for entry in commands(folder, record) if entry.running and number in (None, entry.number)]
        if number is not None and not running:
            entries.find(folder, number, "command")
        frozen_now = observed_activity(record) is Activity.FROZEN
        for entry in running:
            _signal(entry.process, signal.SIGTERM)
            _signal(entry.process, signal.SIGCONT)
        if frozen_now and running and record.cgroup is not None:
            freeze.thaw(record.cgroup)
        end = time.monotonic() + grace
        while _left(folder, running) and time.monotonic() < end:
            time.sleep(_AGAIN)
        killed = _left(folder, running)
        for entry in killed:
            _kill(entry)
        end = time.monotonic() + _PATIENCE
        while late := _left(folder, running):
            if time.monotonic() > end:
                pids = ", ".join(str(pid) for entry in late for pid in pids_of(record, entry))
                raise ForkError(
                    Code.FORK_BUSY, f"commands of {record.name} could not be ended yet",
                    details=(f"processes {pids}",) if pids else (), hint="hostfork recover, later",
                )  # fmt: skip
            time.sleep(_AGAIN)
        if running:
            numbers = [entry.number for entry in running]
            audit.try_to_tell(_store(folder), record, audit.Event.STOPPED, numbers=numbers, killed=len(killed))
        return tuple(Stopped(entry.number, entry.command, entry in killed) for entry in running)


def _left(folder: ForkFolder, running: list[Entry]) -> list[Entry]:
    """Those that have not come to their end yet."""
    left = []
    for entry in running:
        known = entry if entry.number == 0 else entries.load(folder, entry.number)
        if known is not None and known.running:
            left.append(entry)
    return left


def _kill(entry: Entry) -> None:
    if entry.cgroup is not None and os.path.isdir(entry.cgroup):
        with contextlib.suppress(OSError):
            Group(entry.cgroup).kill()
    _signal(entry.process, signal.SIGKILL)


def _signal(process: ProcessIdentity | None, number: int) -> None:
    """To exactly that process: a pid that is another's by now is left alone (pidfd_open(2))."""
    if process is None:
        return
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if process.alive():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)


def wait(name: str, number: int | None = None) -> Status:
    """Wait for a command of a fork, the last one where none is named, and say how it ended.

    `exit` and `signal` are None where nobody saw it. Raises ForkError.
    """
    with Store(state_folder()).find(name) as folder:
        record = folder.load()
        known = commands(folder, record)
        wanted = [entry for entry in known if number in (None, entry.number)]
        if not wanted:
            if number is None and record.status is not None and observed_activity(record) is Activity.IDLE:
                return record.status
            return entries.find(folder, number, "command").status or Status()
        entry = wanted[-1]
        journal = os.open(folder.file("journal.jsonl"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            await_end(folder, entry)
            ended = None if entry.number == 0 else entries.load(folder, entry.number)
            if ended is not None and ended.status is not None:
                return ended.status
            # The fork may be gone by now, its journal can still be read.
            return _told(journal, entry)
        finally:
            os.close(journal)


def await_end(folder: ForkFolder, entry: Entry, seconds: float | None = None) -> bool:
    """Wait until nobody sees to a command any more; False where that takes longer."""
    end = None if seconds is None else time.monotonic() + seconds
    for process in (entry.owner, entry.keeper):
        while process is not None and process.alive():
            current = entry if entry.number == 0 else entries.load(folder, entry.number)
            if current is None or current.status is not None:
                return True
            left = 1.0 if end is None else min(1.0, end - time.monotonic())
            if left <= 0:
                return False
            _poll(process.pid, left)
    return True


def _poll(pid: int, seconds: float) -> None:
    """Until that process ends, but no longer."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        waiting.poll(seconds * 1000)
    finally:
        os.close(pidfd)


def _told(journal: int, entry: Entry) -> Status:
    import json

    with open(journal, "rb", closefd=False) as file:
        lines = []
        for line in file:
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
    for line in reversed(lines):
        event = line.get("event")
        if (entry.number == 0 and event == "ended") or (event == "left" and line.get("number") == entry.number):
            return Status(line.get("exit"), line.get("signal"))
    return Status()


def log_of(name: str, number: int | None = None) -> tuple[str, Callable[[float], bool]]:
    """Where the output of a command in the background lies, the last one where none is named.

    And what waits for that command's end, at most so many seconds: whether it ended. Raises ForkError.
    """
    with Store(state_folder()).find(name) as folder:
        entry = entries.find(folder, number, "log")
        path = folder.path

    def ended(seconds: float) -> bool:
        try:
            with Store(state_folder()).open(os.path.basename(path)) as again:
                return await_end(again, entry, seconds)
        except ForkError:
            return True  # it is gone, and its commands with it

    return entries.log_file(folder, entry.number), ended


def suspend(name: str) -> float:
    """Hold every process of a fork still, until `resume`; gives the seconds that took.

    Raises ForkError `fork.busy` with the pids of those that do not stop; then all run on.
    """
    with Store(state_folder()).find(name) as folder:
        record = folder.load()
        group = _freezable(record, "suspended", Activity.RUNNING)
        try:
            seconds = freeze.freeze(group)
        except HostError as error:
            stuck = freeze.waiting_in_kernel(group)
            freeze.thaw(group)
            raise ForkError(
                Code.FORK_BUSY, f"{record.name} could not be suspended", path=group,
                details=error.details or tuple(map(str, stuck)), hint=f"hostfork ps {record.name}, and try again",
            ) from error  # fmt: skip
        audit.try_to_tell(_store(folder), record, audit.Event.SUSPENDED)
        return seconds


def resume(name: str) -> None:
    """Let the processes of a suspended fork go on. Raises ForkError."""
    with Store(state_folder()).find(name) as folder:
        record = folder.load()
        freeze.thaw(_freezable(record, "resumed", Activity.FROZEN))
        audit.try_to_tell(_store(folder), record, audit.Event.RESUMED)


def _store(folder: ForkFolder) -> Store:
    return Store(os.path.dirname(os.path.dirname(folder.path)))


def _freezable(record: Record, what: str, needed: Activity) -> str:
    activity = observed_activity(record)
    if activity is not needed:
        raise ForkError(
            Code.FORK_BUSY, f"{record.name} is {activity.value} and cannot be {what}",
            hint=f"hostfork show {record.name}",
        )  # fmt: skip
    if record.cgroup is None:
        raise WorkloadError(
            Code.WORKLOAD_CGROUP, f"{record.name} cannot be {what}: no cgroup owns its processes",
            details=("only a cgroup can hold all of them still, those too that they start meanwhile",),
            hint="hostfork doctor says what gives this user one",
        )  # fmt: skip
    own = own_folder()
    if own is not None and (own == record.cgroup or own.startswith(record.cgroup + "/")):
        raise ForkError(Code.FORK_BUSY, f"this hostfork runs in {record.name} and would be held too",
                        hint="do it from outside the fork")  # fmt: skip
    return record.cgroup


def discard(name: str, grace: float = GRACE) -> tuple[str, ...]:
    """End what runs in a fork and throw it away. Returns what is left. Raises ForkError."""
    from hostfork.lifecycle.fork import Fork

    fork = Fork.open(name)
    if fork.activity in (Activity.RUNNING, Activity.FROZEN):
        stop(fork.name, None, grace)
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                fork = Fork.open(fork.name)
            except HostforkError as error:
                if error.code is Code.FORK_NOT_FOUND:
                    return ()  # its run had nothing to keep
                raise
            if fork.activity not in (Activity.RUNNING, Activity.FROZEN) or time.monotonic() > end:
                break
            time.sleep(_AGAIN)
    return fork.discard()
