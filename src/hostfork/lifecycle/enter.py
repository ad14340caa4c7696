"""One command in a kept fork: it comes into the view, runs as in `run`, by the same code, and leaves.

    come_in -> InView    new_number -> number    launch -> Launched    watch -> Exit    end its group    go

Whatever fails after it came in, it leaves; what it changed stays in the fork.
"""

from __future__ import annotations

import os
from types import TracebackType

from hostfork.errors import Code, WorkloadError
from hostfork.helper.protocol import SCHEMA, ViewPlan
from hostfork.lifecycle import changes, entries, events, holding
from hostfork.lifecycle.context import Caller, check_descriptors, command_context, with_ports
from hostfork.lifecycle.entries import Entry
from hostfork.lifecycle.glance import ViewTerms, terms_of
from hostfork.lifecycle.holding import InView
from hostfork.lifecycle.prepare import Tell
from hostfork.lifecycle.record import Outcome, Record, Status
from hostfork.lifecycle.release import marks
from hostfork.lifecycle.request import Request
from hostfork.lifecycle.store import ForkFolder, Store, now, state_folder
from hostfork.policy.rules import Environment
from hostfork.values import replace
from hostfork.workload import launch
from hostfork.workload.cgroup import Group
from hostfork.workload.identity import ProcessIdentity, identify
from hostfork.workload.launch import Helper
from hostfork.workload.stop import stop
from hostfork.workload.watch import Exit, SignalSource, pass_early, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.lifecycle.meter import Meter


def enter(
    name: str, request: Request, tell: Tell, caller: Caller, signals: SignalSource | None, number: int | None = None
) -> Outcome:
    """Run one command in the kept fork of that name. Of the request count command, environment and timeout of the
    rules, cwd and descriptors; None is what the fork has.

    `number`: one that a detached command was given before. Raises HostforkError; what the fork holds stays.
    """
    helper = launch.take_helper()
    helper.late = lambda why: tell(events.Warned(why))
    try:
        check_descriptors(request.descriptors)
        with Store(state_folder()).find(name) as folder, Visit(folder, request, tell, number) as visit:
            visit.launch(helper, caller, signals)
            visit.watch(signals)
            return visit.finish()
    finally:
        helper.abandon()


def enter_by_name(
    fork: str, request: Request, *, on_event: Tell | None = None, caller: Caller | None = None,
    signals: SignalSource | None = None,
) -> Outcome:  # fmt: skip
    """Run one command in a kept fork, beside others that may be in it, and say how it went; the fork stays.

    Of the request count command, `cwd`, `descriptors`, and of its rules environment and limits. Raises HostforkError.
    Only the command line gives `caller` and `signals`.
    """
    return enter(fork, request, on_event or _ignore, caller or Caller.current(), signals)


def _ignore(_event: object) -> None:
    """Nobody wants to be told."""


class Visit:
    """One command in a fork, from its coming to its leaving. As a context: an error makes it leave as well."""

    def __init__(self, folder: ForkFolder, request: Request, tell: Tell, number: int | None) -> None:
        self._folder = folder
        self._request = request
        self._tell = tell
        self._detached = number is not None
        self._number = number
        self._place: InView | None = None
        self._entry: Entry | None = None
        self._helper: Helper | None = None
        self._launched = False
        self._exit = Exit(None, None)
        self._meter: Meter | None = None
        self._storage_limited = False

    def __enter__(self) -> Visit:
        self._place = holding.come_in(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and self._launched and self._place is not None:
                self._end_group()
        finally:
            if self._meter is not None:
                self._meter.close()
            if self._place is not None:
                self._leave()

    @property
    def _record(self) -> Record:
        assert self._place is not None
        return self._place.record

    def launch(self, helper: Helper, caller: Caller, signals: SignalSource | None) -> None:
        """Make its group, send its plan, wait until it has exec'd."""
        assert self._place is not None
        self._helper = helper
        terms = terms_of(self._folder)
        own = identify(os.getpid())
        if self._number is None:
            self._number = entries.new_number(self._folder, detached=False)
        group = self._make_group()
        if group is not None:
            helper.come_near(group.path)
        entry = Entry(
            self._number, self._request.command, now(), own, None if group is None else group.path,
            keeper=helper.identity(), detached=self._detached,
        )  # fmt: skip
        self._entry = entries.save(self._folder, entry)
        self._folder.note("entered", number=self._number, owner=own.pid)
        limit = self._request.rules.storage_limit or terms.storage_limit
        meter = self._begin_meter(limit, helper) if limit is not None else None
        view = self._view(terms, caller)
        descriptor = None if group is None else group.open()
        if signals is not None:
            signals.watching()
        self._launched = True
        try:
            launched = helper.start(
                view, self._folder.journal(), descriptor, meter=meter, entry=self._place.seat.entry()
            )
        finally:
            if descriptor is not None:
                os.close(descriptor)
        process = ProcessIdentity(own.boot_id, launched.pid, launched.start_time)
        self._entry = entries.save(self._folder, replace(entry, process=process))
        helper.wait_executed(self._request.command[0])
        if signals is not None:
            pass_early(helper.channel, signals)
        self._tell(events.StartedCommand(launched.pid))

    def watch(self, signals: SignalSource | None) -> None:
        """Wait for the command's end."""
        assert self._helper is not None
        assert self._entry is not None
        namespace = self._record.mount_namespace if self._record.same_paths else None
        self._exit = watch(self._helper.channel, signals, self._entry.cgroup, namespace)
        if signals is not None:
            signals.unwatch()
        if self._meter is not None and self._exit.cut:
            self._storage_limited = self._meter.check()
        self._tell(events.EndedCommand(self._status()))

    def finish(self) -> Outcome:
        """End what the command left, and leave. Raises WorkloadError `workload.survivors`."""
        self._tell(events.Stopping())
        self._end_group()
        if self._meter is not None:
            self._storage_limited = self._meter.settle()
        status, record = self._status(), self._record
        self._tell_log(status)
        self._leave(command=self._request.command, status=status)
        return Outcome(
            self._folder.name, status, ownership=record.ownership, same_paths=record.same_paths, kept=True,
            storage_limit=record.storage_limit,
            storage_taken=None if self._meter is None else self._meter.taken,
        )  # fmt: skip

    def _tell_log(self, status: Status) -> None:
        """Who ran what in it, for when the fork is gone."""
        from hostfork.lifecycle import audit
        from hostfork.lifecycle.context import who

        assert self._entry is not None
        store = Store(os.path.dirname(os.path.dirname(self._folder.path)))
        told = audit.try_to_tell(
            store, self._record, audit.Event.ENDED, by=who(self._request.tags), number=self._number,
            command=self._request.command, began=self._entry.began, exit=status.exit, signal=status.signal,
        )  # fmt: skip
        for sentence in told:
            self._tell(events.Warned(sentence))

    def _status(self) -> Status:
        return Status(self._exit.exit, self._exit.signal, self._exit.timed_out, self._storage_limited)

    def _make_group(self) -> Group | None:
        if self._record.cgroup is None:
            return None
        group = Group(f"{self._record.cgroup}/exec.{self._number}")
        try:
            os.mkdir(group.path)
        except OSError as error:
            raise WorkloadError(
                Code.WORKLOAD_CGROUP, "a cgroup of its own cannot be made for the command", step="cgroup",
                path=group.path, errno=error.errno, details=(error.strerror or str(error),),
                hint=f"hostfork stop {self._folder.name} · hostfork recover",
            ) from error  # fmt: skip
        return group

    def _begin_meter(self, limit: int, helper: Helper) -> int:
        from hostfork.lifecycle.meter import Meter

        self._meter = Meter(self._record, limit)
        return self._meter.begin(helper.pid)

    def _view(self, terms: ViewTerms, caller: Caller) -> ViewPlan:
        """What the command's keeper does: nothing is built, the view is there."""
        record, rules = self._record, self._request.rules
        cwd, root = working_folder(record, self._request.cwd), None
        if not record.same_paths:
            root, start = changes.relocated(record)
            cwd = start if self._request.cwd is None else cwd
        own = rules.environment
        known = with_ports(terms.environment, record.ports)
        environment = Environment(known.clear or own.clear, (*known.variables, *own.variables))
        limit = terms.timeout if rules.timeout is None else rules.timeout
        return ViewPlan(
            schema=SCHEMA,
            namespaces=record.same_paths,
            identity=holding.identity(record, terms.user_namespace),
            slave=False,
            read_only_root=False,
            attaches=(),
            cgroup=record.cgroup is not None,
            owner=os.getpid(),
            context=command_context(self._request, environment, caller, cwd, marks(record), root),
            limit=limit or 0.0,
            meter=self._meter is not None,
            enters=True,
        )

    def _end_group(self) -> None:
        """End what the command started, and only that; the proof for the whole fork is the last one's."""
        assert self._helper is not None
        assert self._entry is not None
        group = None if self._entry.cgroup is None else Group(self._entry.cgroup)
        report = stop(group, self._helper, None, frozenset(map(os.fsencode, marks(self._record))))
        self._helper.finish()
        if report.survivors:
            raise holding.survivors(self._record, report)

    def _leave(self, **facts: object) -> None:
        """Once: give up the place, and what was noted about the command."""
        place, self._place = self._place, None
        if place is None:
            return
        try:
            if self._entry is not None and self._entry.cgroup is not None:
                Group(self._entry.cgroup).remove()
        except OSError:
            pass  # something still waits in the kernel: the last one, or recovery, removes it with the fork's
        finally:
            self._note_end()
            holding.go(self._folder, place.seat, **facts)

    def _note_end(self) -> None:
        if self._number is None:
            return
        self._folder.note("left", number=self._number, exit=self._exit.exit, signal=self._exit.signal)
        if self._entry is not None and self._detached:
            entries.save(self._folder, replace(self._entry, status=self._status(), ended=now()))
        else:
            entries.drop(self._folder, self._number)


def working_folder(record: Record, asked: str | None) -> str:
    """Where a command starts: as asked, else where the caller is, if that is private to the fork, else the fork's."""
    try:
        here = os.getcwd()
    except OSError:
        here = record.cwd
    if asked is not None:
        return os.path.normpath(os.path.join(here, asked))
    inside = any(here == path.path or here.startswith(path.path + "/") for path in changes.private_paths(record))
    return here if inside else record.cwd
