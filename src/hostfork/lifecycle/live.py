"""A fork while its owner lives: prepared, launched, watched, finished; and given back or kept when something fails."""

from __future__ import annotations

import contextlib
import os
import time
from importlib import import_module
from types import TracebackType

from hostfork.collect.changeset import Changeset, Counts
from hostfork.errors import Code, CommandError, HostforkError, WorkloadError
from hostfork.helper.protocol import SCHEMA, Identity, ViewPlan
from hostfork.lifecycle import bases, changes, events
from hostfork.lifecycle.context import Caller, command_context, with_ports
from hostfork.lifecycle.prepare import Tell, new_record, prepare
from hostfork.lifecycle.probes import Probes
from hostfork.lifecycle.record import Outcome, PathOutcome, Record, Status
from hostfork.lifecycle.release import Leftovers, close_view, end_writers, erase_later, erased, marks, release
from hostfork.lifecycle.request import ExportForm, Keep, Request
from hostfork.lifecycle.store import ForkFolder, Store, now
from hostfork.lifecycle.view import attaches
from hostfork.policy.plan import Plan
from hostfork.storage.choose import storage_of
from hostfork.values import replace
from hostfork.vocabulary import Activity
from hostfork.workload.cgroup import Group
from hostfork.workload.launch import Helper
from hostfork.workload.watch import Exit, SignalSource, pass_early, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.lifecycle.meter import Meter


class Times:
    """How long each phase took, in seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.phases: list[tuple[str, float]] = []

    def end(self, phase: str) -> None:
        """What was done since the last call was this phase."""
        moment = time.monotonic()
        self.phases.append((phase, round(moment - self._last, 6)))
        self._last = moment


_PATIENCE = 5.0
"""Seconds that a fork without a command may wait for the stamps of its sources."""


def _import_the_end() -> None:
    """What is needed after the command: imported while the helper builds the view on another processor."""
    for name in ("collect.scan", "collect.layer", "collect.tree", "storage.tree", "storage.reclaim"):
        import_module(f"hostfork.{name}")


class LiveFork:
    """One fork and its owner. As a context: an error gives everything back, or keeps what the command changed."""

    def __init__(self, plan: Plan, request: Request, tell: Tell, times: Times) -> None:
        self._made: ForkFolder | None = None
        self._plan = plan
        self._request = request
        self._tell = tell
        self._times = times
        self._record: Record | None = None
        self._helper: Helper | None = None
        self._launched = False
        self._may_have_run = False
        self._finished = False
        self._probes = Probes()
        self._exit = Exit(None, None)
        self._meter: Meter | None = None
        self._storage_limited = False

    def __enter__(self) -> LiveFork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not self._finished:
                self._give_up(error)
        finally:
            if self._meter is not None:
                self._meter.close()
            if error is not None and self._record is not None:
                with contextlib.suppress(HostforkError, OSError):  # else the next run does it
                    erase_later(self._record.pool)
            if self._made is not None:
                self._made.close()

    def create(self, store: Store) -> None:
        """Its name and its lock. Raises ForkError `fork.name-taken`, `fork.bad-name`, `fork.state`.

        Inside the context: between a folder that is there and somebody who removes it no Ctrl-C may come.
        """
        self._store = store
        self._made = store.create(self._request.name)

    @property
    def _folder(self) -> ForkFolder:
        assert self._made is not None
        return self._made

    @property
    def record(self) -> Record:
        """The fork's record as it is on disk."""
        assert self._record is not None
        return self._record

    def prepare(self, cwd: str, helper: Helper) -> None:
        """The record, then the storage that it names."""
        self._helper = helper
        self._record = self._folder.save(new_record(self._folder, self._plan, self._request, cwd))
        self._folder.note("created", pool=self.record.pool, cgroup=self.record.cgroup)
        self._probes.begin(self._folder, self.record)
        with self._quiesced():
            made = prepare(self._folder, self.record, self._plan, self._tell)
        self._record = self._folder.save(replace(made, keeper=helper.identity()))
        if self._plan.storage_limit is not None:
            from hostfork.lifecycle.meter import Meter

            self._meter = Meter(self.record, self._plan.storage_limit)
        self._times.end("prepare")

    def _quiesced(self) -> contextlib.AbstractContextManager[object]:
        if not self._plan.quiesce:
            return contextlib.nullcontext()
        from hostfork.lifecycle.quiesce import Quiesced

        return Quiesced(self._folder, self.record, self._plan)

    def launch(self, caller: Caller, signals: SignalSource | None) -> None:
        """Make the cgroup, open the gate, wait until the command has exec'd."""
        helper = self._keeper()
        group = self._make_group()
        self._folder.note("launching")
        meter = None if self._meter is None else self._meter.begin(helper.pid)
        descriptor = None if group is None else group.open()
        view = self._view(caller)
        self._probes.close()
        if signals is not None:
            signals.watching()
        self._launched = self._may_have_run = True
        try:
            launched = helper.start(view, self._folder.journal(), descriptor, _import_the_end, meter)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self._record = self._folder.advance(
            self.record,
            Activity.RUNNING,
            command_process=replace(self.record.owner, pid=launched.pid, start_time=launched.start_time)
            if self.record.owner
            else None,
            mount_namespace=launched.mount_namespace,
        )
        try:
            helper.wait_executed(self._request.command[0])
        except CommandError:
            self._may_have_run = False
            raise
        if signals is not None:
            pass_early(helper.channel, signals)
        self._folder.note("started", pid=launched.pid)
        self._tell(events.StartedCommand(launched.pid))
        self._times.end("launch")

    def rest(self) -> Record:
        """Nothing runs in it now: it is kept as it is, to be entered. Its storage stays whole."""
        from hostfork.lifecycle import uses

        self._probes.close(_PATIENCE)
        self._note_terms()
        self._record = self._folder.advance(self.record, Activity.IDLE, durable=True, keeper=None, lasting=True)
        uses.begin(self._folder.path)
        self._folder.note("kept")
        self._finished = True
        return self.record

    def watch(self, signals: SignalSource | None) -> None:
        """Wait for the command's end."""
        self._note_terms()  # now, when nobody waits for it: the fork may be branched while it runs
        namespace = self.record.mount_namespace if self.record.same_paths else None
        self._exit = watch(self._keeper().channel, signals, self.record.cgroup, namespace)
        if signals is not None:
            signals.unwatch()
        self._folder.note("ended", exit=self._exit.exit, signal=self._exit.signal)
        self._times.end("command")
        if self._meter is not None and self._exit.cut:
            self._storage_limited = self._meter.check()
        self._tell(events.EndedCommand(self._status()))

    def finish(self) -> Outcome:
        """Stop writers, collect, export where asked, keep or release."""
        self._tell(events.Stopping())
        self._stop_writers()
        if self._meter is not None:
            self._storage_limited = self._meter.settle()
        # All content lies in the pool: the kernel can take the view down while it is read there.
        self._keeper().let_go()
        self._times.end("stop")
        found = changes.collect(self._folder, self.record, lambda path: self._tell(events.Collecting(path.written)))
        self._times.end("collect")
        if self._request.export is not None:
            from hostfork.lifecycle.export import export

            export(self._folder, self.record, changes.joined(found), self._request.export, ExportForm.TREE)
            self._times.end("export")
        keep = self._keeps(found)
        self._record = replace(self.record, status=self._status(), ended=now(), counts=changes.joined(found).counts())
        if keep:
            self._keep(found)
        left = close_view(self.record, self._helper)
        if not keep:
            left = release(self._folder, self.record, left)
        elif not left:
            self._folder.note("kept")
        self._finished = True
        left = erased(self.record.pool, left)
        size = self._measured() if keep else 0
        self._times.end("release")
        return self._outcome(found, keep, left, size)

    def _measured(self) -> int:
        """What the kept fork takes, written down beside its record: from now on it is not in use."""
        from hostfork.lifecycle import uses

        size = sum(
            storage_of(path.storage).usage(path.key, self.record.pool).bytes
            for path in changes.private_paths(self.record)
        )
        uses.begin(self._folder.path, size)
        return size

    def _keeps(self, found: dict[str, Changeset]) -> bool:
        if self._request.keep is Keep.CHANGES:
            return self._request.export is None and any(changeset.changes for changeset in found.values())
        return self._request.keep is Keep.ALWAYS

    def _keep(self, found: dict[str, Changeset]) -> None:
        """What is kept is evidence: on disk before anything is given up. `kept` is noted once the view is closed."""
        from hostfork.lifecycle import audit

        self._note_terms()
        self._record = changes.check_sources(self.record, found, self._probes, self._warn)
        found = bases.remember(self._folder, self.record, found, self._probes)
        changes.store_changes(self._folder, changes.joined(found))
        changes.make_durable(self.record, found)
        for sentence in audit.tell_kept(self._store, self.record):
            self._warn(sentence)
        ignored = changes.only_ignored(found)
        self._record = self._folder.advance(self.record, Activity.IDLE, durable=True, ignored_only=ignored)
        changes.reduce_storage(self.record, found)

    def _note_terms(self) -> None:
        """Write down on which terms it can be entered later."""
        from hostfork.lifecycle.terms import Terms

        Terms.of(self._plan).save(self._folder)
        self._probes.save(self._folder)

    def _warn(self, sentence: str) -> None:
        self._tell(events.Warned(sentence))

    def _keeper(self) -> Helper:
        assert self._helper is not None
        return self._helper

    def _make_group(self) -> Group | None:
        if self._plan.cgroup_parent is None:
            return None
        try:
            return Group.make(self._plan.cgroup_parent, self._folder.name)
        except OSError as error:
            # One that is there already is another fork's: nothing of it is to be ended or removed.
            path, self._record = self.record.cgroup, replace(self.record, cgroup=None)
            raise WorkloadError(
                Code.WORKLOAD_CGROUP,
                f"the fork's cgroup cannot be made in {self._plan.cgroup_parent}",
                step="cgroup",
                path=path,
                errno=error.errno,
                details=(error.strerror or str(error),),
                hint="hostfork recover removes a group that a crash left · hostfork doctor",
            ) from error

    def _view(self, caller: Caller) -> ViewPlan:
        cwd, root = self.record.cwd, None
        environment = with_ports(self._plan.environment, self.record.ports)
        if not self._plan.same_paths:
            root, cwd = changes.relocated(self.record)
        return ViewPlan(
            schema=SCHEMA,
            namespaces=self._plan.same_paths,
            identity=Identity(os.geteuid(), os.getegid()) if self._plan.user_namespace else None,
            slave=self._plan.slave,
            read_only_root=self._plan.read_only_root,
            attaches=attaches(self._plan, self.record, self._folder) if self._plan.same_paths else (),
            cgroup=self._plan.cgroup_parent is not None,
            owner=os.getpid(),
            context=command_context(self._request, environment, caller, cwd, marks(self.record), root),
            limit=self._plan.timeout or 0.0,
            meter=self._meter is not None,
        )

    def _stop_writers(self) -> None:
        report = end_writers(self.record, self._helper)
        if report.survivors:
            pids = ", ".join(map(str, report.survivors))
            raise WorkloadError(
                Code.WORKLOAD_SURVIVORS,
                f"processes of the fork could not be ended: {pids}",
                step="stop",
                details=("they wait in the kernel; the fork is kept until they are gone",),
                hint=f"hostfork recover, later · ps -o pid,stat,wchan,cmd {pids}",
            )

    def _status(self) -> Status:
        return Status(self._exit.exit, self._exit.signal, self._exit.timed_out, self._storage_limited)

    def _outcome(self, found: dict[str, Changeset], kept: bool, left: Leftovers, size: int) -> Outcome:
        paths = tuple(
            PathOutcome(
                path.path,
                path.mechanism,
                path.guarantee,
                path.bytes_copied,
                path.base_content,
                path.source_changed,
                path.skipped,
                path.lost,
            )
            for path in changes.private_paths(self.record)
            if path.mechanism is not None and path.guarantee is not None
        )
        return Outcome(
            fork=self._folder.name,
            status=self._status(),
            paths=paths,
            ownership=self.record.ownership,
            same_paths=self.record.same_paths,
            changes=self.record.counts or Counts(),
            kept=kept,
            released=not kept and not left,
            leftovers=left.told,
            reclaiming=left.reclaiming,
            timings=tuple(self._times.phases),
            notices=tuple(notice.sentence for notice in self._plan.notices if notice.kind.weaker),
            bytes_kept=size,
            changes_by_path=changes.counts_by_path(found),
            active=tuple(one.path for changeset in found.values() for one in changeset.changes if one.active),
            storage_limit=self._plan.storage_limit,
            storage_taken=None if self._meter is None else self._meter.taken,
        )

    def _give_up(self, error: BaseException) -> None:
        """Give back what was made; if the command ran, keep its changes. What fails here is told with the error."""
        try:
            left = self._leave() if self._may_have_run else self._give_back()
        except (HostforkError, OSError) as other:
            left = Leftovers((str(other),))
        for sentence in left.told:
            error.add_note(sentence)
            if isinstance(error, HostforkError):
                error.details += (sentence,)

    def _give_back(self) -> Leftovers:
        if self._record is None:
            if self._made is not None:
                self._made.remove()
            return Leftovers()
        if self._launched:
            end_writers(self.record, self._helper)
        return self._release(close_view(self.record, self._helper))

    def _release(self, left: Leftovers) -> Leftovers:
        return erased(self.record.pool, release(self._folder, self.record, left))

    def _leave(self) -> Leftovers:
        """The command may have run: what it changed is kept."""
        report = end_writers(self.record, self._helper)
        left = erased(self.record.pool, close_view(self.record, self._helper))
        if report.survivors:
            return Leftovers((*left.told, "the fork stays as it is until `hostfork recover`"))
        found = self._found()
        if found is not None and self._request.keep is not Keep.ALWAYS and not any(c.changes for c in found.values()):
            return self._release(left)
        if self.record.activity is not Activity.IDLE:
            self._record = replace(self.record, activity=Activity.RUNNING, status=self._status(), ended=now())
            self._leave_idle(found)
        if not left:
            self._folder.note("kept")
        return Leftovers((*left.told, f"its changes are kept as {self._folder.name}"))

    def _found(self) -> dict[str, Changeset] | None:
        try:
            return changes.collect(self._folder, self.record, lambda _path: None)
        except (HostforkError, OSError):
            return None  # they stay where they are, and are read when somebody asks

    def _leave_idle(self, found: dict[str, Changeset] | None) -> None:
        """Kept as at a normal end, or, where that fails too, as it is."""
        if found is not None:
            with contextlib.suppress(HostforkError, OSError):
                self._record = replace(self.record, counts=changes.joined(found).counts())
                return self._keep(found)
        self._record = self._folder.advance(self.record, Activity.IDLE, durable=True)
        return None
