"""`apply`: a fork's changes reach the host, three-way, all of them or none, and can be undone.

Judged, staged, written down, exchanged, compared, committed; whatever fails before the commit is put back.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence

from hostfork.apply import originals, planning
from hostfork.apply.making import Maker, OpenStage, no_room
from hostfork.apply.rows import Moved
from hostfork.apply.sides import Identity, Sides, Source
from hostfork.apply.steps import Move, Plan, Stage, Target
from hostfork.apply.target import Targets, target_of
from hostfork.apply.threeway import ThreeWay
from hostfork.apply.transaction import Transaction
from hostfork.apply.values import Applied, ApplyState, Choice, Conflict, ConflictKind
from hostfork.collect.changeset import Changeset
from hostfork.collect.depth import AnyDepth
from hostfork.collect.difference import ordered
from hostfork.errors import ApplyError, Code, ForkError
from hostfork.helper.syscalls import syncfs
from hostfork.lifecycle import audit, changes, settling, uses
from hostfork.lifecycle.applies import Applies, ApplyFolder
from hostfork.lifecycle.context import who
from hostfork.lifecycle.decisions import must_be_approved
from hostfork.lifecycle.record import PathRecord, Record, Who, check_decision, observed_activity
from hostfork.lifecycle.store import ForkFolder, Store, as_fork_error, state_folder
from hostfork.values import replace
from hostfork.vocabulary import Activity, BaseContent, Disposition, StorageKind

_FEW = 64
"""Up to here staged files are fsynced one by one; beyond, the stage's filesystem is."""


_ALL = Choice()


def apply(
    name: str, choice: Choice = _ALL, *, dry_run: bool = False, tags: Sequence[tuple[str, str]] = ()
) -> Applied:  # fmt: skip
    """Bring a fork's changes to the host. With conflicts nothing is written. `dry_run`: only judge.

    `tags` go into the fork's log.

    Raises ForkError (`fork.busy`, `fork.decided`, `fork.approval`), ApplyError (`apply.blocked`, `apply.failed`; the
    host is as it was), CollectError.
    """
    store = Store(state_folder())
    with Applies(store).lock():
        if not dry_run:
            settling.settle(store)
        with store.find(name) as folder:
            record = _usable(folder)
            if not dry_run:
                must_be_approved(store, folder, record, who(tags))
                record = folder.load()
            check_decision(record, Disposition.APPLIED)
            with uses.using(folder.path), AnyDepth():
                return _Apply(store, folder, record, choice, who(tags)).run(dry_run)


def _usable(folder: ForkFolder) -> Record:
    record = folder.load()
    activity = observed_activity(record)
    if not folder.lock() or activity is not Activity.IDLE:
        if activity is Activity.ORPHANED:
            raise ForkError(Code.FORK_BUSY, f"{record.name} was left by a crash", hint="hostfork recover")
        what = f"is {activity.value}" if activity is not Activity.IDLE else "is in use"
        raise ForkError(
            Code.FORK_BUSY, f"{record.name} {what} and cannot be applied now",
            hint=f"end its command first · hostfork show {record.name}",
        )  # fmt: skip
    return record


class _Apply:
    """One apply of one fork, which nobody else uses meanwhile."""

    def __init__(self, store: Store, folder: ForkFolder, record: Record, choice: Choice, by: Who) -> None:
        self._store, self._folder, self._record, self._by = store, folder, record, by
        self._choice = replace(choice, trusted=record.asked.trusted)
        self._standing = Applies(store).of_fork(record.name, record.id)

    def run(self, dry_run: bool) -> Applied:
        changeset = changes.stored_changes(self._folder)
        if changeset is None:
            changeset = changes.joined(changes.collect(self._folder, self._record, lambda _path: None))
        changeset, before = self._without_applied(changeset)
        sources = [self._source(path, changeset) for path in changes.private_paths(self._record)]
        selection = planning.select(sources, self._choice)
        with contextlib.ExitStack() as stack:
            sides = [stack.enter_context(Sides(source)) for source in sources]
            try:
                targets = stack.enter_context(Targets(_targets(sources)))
                answers = [
                    planning.judge(source, wanted, side, targets, number, self._choice)
                    for number, (source, wanted, side) in enumerate(zip(sources, selection.changes, sides, strict=True))
                ]
                planning.hard_links(answers, targets)
            except OSError as error:
                raise _unreadable(error) from error
            result = self._result(selection, answers, before)
            if dry_run or result.refused or not any(answer.taken for answer in answers):
                return result
            try:
                return self._write(result, selection, answers, sides, targets)
            except Moved as moved:
                conflict = Conflict(moved.path, ConflictKind.MOVED, "", "changed while it was applied")
                return replace(result, conflicts=(conflict,))

    def _without_applied(self, changeset: Changeset) -> tuple[Changeset, str | None]:
        """Of a fork that was applied, and not written since, only what no apply looked at."""
        if self._record.disposition is not Disposition.APPLIED or not self._standing:
            return changeset, None
        known = {path for one in self._standing for path in one.header.paths}
        left = tuple(change for change in changeset.changes if change.path not in known)
        return Changeset(left), self._standing[-1].header.created

    def _source(self, path: PathRecord, changeset: Changeset) -> Source:
        content = changes.content_of(self._record, path)
        base, manifest = changes.base_side(self._folder, self._record.pool, path, content)
        kept = path.base_content is BaseContent.KEPT or path.storage is StorageKind.RETAINED or base != path.path
        part = changes.part_of(changeset, path).changes
        root = path.path if path.folder else os.path.dirname(path.path)
        return Source(
            path.path, path.folder, base, manifest, kept, changes.delta_of(content), path.omit, part,
            self._applied(root),
        )  # fmt: skip

    def _applied(self, root: str) -> dict[str, Identity]:
        """What earlier applies of this fork left below a folder of the host."""
        known: dict[str, Identity] = {}
        for one in self._standing:
            plan = one.plan()
            for step in plan.steps if plan is not None else ():
                if plan is None or plan.targets[step.target].path != root:
                    continue
                for row in step.old:
                    known[f"{step.name}/{row.relative}" if row.relative else step.name] = None
                for row in step.old if step.move is Move.CHANGE else step.new:
                    name = f"{step.name}/{row.relative}" if row.relative else step.name
                    known[name] = (row.device, row.inode, row.size, row.mtime_ns)
        return known

    def _result(self, selection: planning.Selection, answers: Sequence[ThreeWay], before: str | None) -> Applied:
        taken = [one.change for answer in answers for one in answer.taken if not one.through]
        nothing = not taken and not any(answer.conflicts for answer in answers)
        conflicts = sorted((c for answer in answers for c in answer.conflicts), key=lambda one: os.fsencode(one.path))
        known = self._standing[-1].header.created if self._standing else None
        return Applied(
            self._record.name,
            total=sum(len(wanted) for wanted in selection.changes),
            changes=Changeset(tuple(ordered(taken))),
            equal=sum(answer.equal for answer in answers),
            ignored=selection.ignored,
            left_out=tuple(pair for answer in answers for pair in answer.left_out),
            conflicts=tuple(conflicts),
            active=selection.active,
            resolved=tuple(pair for answer in answers for pair in answer.resolved),
            before=(before or known) if nothing else None,
        )

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(
        self, result: Applied, selection: planning.Selection, answers: Sequence[ThreeWay], sides: Sequence[Sides],
        targets: Targets,
    ) -> Applied:  # fmt: skip
        one = Applies(self._store).create(self._record.name, self._record.id, self._record.pool)
        try:
            counts = result.counts()
            numbers = (counts.created, counts.modified, counts.deleted, counts.metadata, counts.type)
            looked = tuple(change.path for wanted in selection.changes for change in wanted)
            complete = not self._choice.paths
            with _stages(one) as (pool, folder, make):
                plan, stages = self._staged(one, answers, sides, targets, pool, folder, make)
                with as_fork_error("an apply cannot be written down", one.path):
                    one.save(replace(one.header, paths=looked, counts=numbers, complete=complete))
                    one.write_plan(plan)
                    one.note("ready")
                self._do(one, plan, Transaction(plan, targets, stages, one.note), stages)
            notices = settling.finish(self._store, one, plan)
            notices += audit.try_to_tell(
                self._store, self._record, audit.Event.APPLIED, by=self._by, after=one.header.id,
                changes=counts.total, paths=[target.path for target in plan.targets],
            )  # fmt: skip
            return replace(result, id=one.header.id, written=True, notices=notices)
        finally:
            one.close()

    def _staged(
        self, one: ApplyFolder, answers: Sequence[ThreeWay], sides: Sequence[Sides], targets: Targets,
        pool: Stage, folder: int, make: OpenStage,
    ) -> tuple[Plan, Sequence[int]]:  # fmt: skip
        maker = Maker(targets, pool, folder, one.header.id, make)
        try:
            for number, (answer, side) in enumerate(zip(answers, sides, strict=True)):
                maker.add(number, answer, side)
            plan = maker.finish()
            _sync_staged(plan, maker.folders)
            return plan, maker.folders
        except BaseException as error:
            maker.abandon()
            settling.drop(one)
            if isinstance(error, OSError):
                raise no_room(error, one.stage) from error
            raise

    def _do(self, one: ApplyFolder, plan: Plan, transaction: Transaction, stages: Sequence[int]) -> None:
        try:
            transaction.do(True)
            one.note("kept", linked=originals.keep(plan, stages))
            one.note("committed")
        except BaseException as error:
            if not isinstance(error, OSError) and one.state() is ApplyState.APPLIED:  # interrupted after the commit
                settling.finish(self._store, one, plan)
                raise
            left = settling.put_back(self._store, one, plan, transaction)
            if isinstance(error, OSError):
                error = put_back_error(error, one)
                error.details += left
                raise error from error.__cause__
            if isinstance(error, ApplyError):
                error.details += left
            raise


@contextlib.contextmanager
def _stages(one: ApplyFolder) -> Iterator[tuple[Stage, int, OpenStage]]:
    """The stage in the pool, open, and what makes others."""
    opened: list[int] = []

    def make(stage: Stage) -> int:
        opened.append(settling.open_stage(one, stage))
        return opened[-1]

    pool = Stage(one.stage, -1)
    try:
        try:
            folder = make(pool)
        except OSError as error:
            settling.drop(one)
            raise no_room(error, one.stage) from error
        yield pool, folder, make
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _targets(sources: Sequence[Source]) -> list[Target]:
    """The folders of the host, each by its device and inode. Raises ApplyError where one is not there any more."""
    found = []
    for source in sources:
        try:
            found.append(target_of(source.root))
        except OSError as error:
            raise ApplyError(
                Code.APPLY_BLOCKED, f"{source.root} is not there, or is another kind of thing now", step="check",
                path=source.root, errno=error.errno, details=(error.strerror or str(error),),
                hint="put the folder back, or export the fork's content: hostfork export FORK DEST",
            ) from error  # fmt: skip
    return found


def _sync_staged(plan: Plan, stages: Sequence[int]) -> None:
    """What was staged is on disk before a name of the host shows it."""
    rows = [(step, row) for step in plan.steps if step.move is not Move.CHANGE for row in step.new]
    if len(rows) > _FEW:
        for stage in stages:
            syncfs(stage)
        return
    for step, row in rows:
        name = f"{step.slot}/{row.relative}" if row.relative else step.slot
        with contextlib.suppress(PermissionError):  # closed by its mode: the folder's sync takes it along
            if row.mode & 0o170000 in (0o100000, 0o040000):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=stages[step.stage])
                try:
                    os.fsync(file)
                finally:
                    os.close(file)
            continue
        syncfs(stages[step.stage])
    for stage in stages:
        os.fsync(stage)


def _unreadable(error: OSError) -> ApplyError:
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
    symlink = "a symlink stands in its place" if error.errno == errno.ELOOP else (error.strerror or str(error))
    return ApplyError(
        Code.APPLY_BLOCKED, "what the host has now cannot be read; nothing was applied", step="check", path=path,
        errno=error.errno, details=(symlink,), hint="make it readable, or name the paths that are to be applied",
    )  # fmt: skip


def put_back_error(error: OSError, one: ApplyFolder) -> ApplyError:
    """The kernel refused something on the way, and all is as it was."""
    found = ApplyError(
        Code.APPLY_FAILED, "the changes could not be applied; everything was put back", step="commit",
        path=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else one.path,
        errno=error.errno, details=(error.strerror or str(error),), hint="make room on that disk, then apply again",
    )  # fmt: skip
    found.__cause__ = error
    return found
