"""What applies that did not come to their end left: finished where all was done, else put back. Never a mix.

Their lock is held: whoever began them is dead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from hostfork.apply import originals
from hostfork.apply.stage import copy_slots, make_stage
from hostfork.apply.steps import STAGE_PREFIX, Move, Plan, Stage, Step
from hostfork.apply.target import Targets
from hostfork.apply.transaction import Transaction
from hostfork.apply.values import ApplyState
from hostfork.collect.copying import remove_tree
from hostfork.collect.depth import AnyDepth
from hostfork.collect.walk import FOLDER
from hostfork.errors import ForkError, HostforkError
from hostfork.lifecycle import changes
from hostfork.lifecycle.applies import Applies, ApplyFolder
from hostfork.lifecycle.record import Record, Recovered
from hostfork.lifecycle.store import ForkFolder, Store, state_folder
from hostfork.vocabulary import Activity, Disposition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def settle(store: Store) -> list[Recovered]:
    """Settle every apply that is open. The lock of applies is held. Nothing is raised: what is left is told."""
    applies = Applies(store)
    applies.remove_headless()
    found = []
    for one in applies.all():
        if one.is_open:
            try:
                with AnyDepth():
                    found.append(_settle(store, one))
            except (HostforkError, OSError) as error:
                found.append(Recovered(one.header.fork, f"its apply {one.header.id} is not settled yet", _why(error)))
            finally:
                one.close()
    return found


def settle_if_free(store: Store) -> list[Recovered]:
    """The same, unless somebody applies just now. Costs one look at a folder where there is nothing to do."""
    applies = Applies(store)
    if not applies.is_any_open():
        return []
    with applies.lock(wait=False) as free:
        return settle(store) if free else []


def settle_applies() -> tuple[Recovered, ...]:
    """Finish or put back what applies left that were killed. One look at a folder where there are none."""
    return tuple(settle_if_free(Store(state_folder())))


def _why(error: HostforkError | OSError) -> tuple[str, ...]:
    if isinstance(error, OSError):
        return (f"{os.fsdecode(error.filename) if error.filename else 'it'}: {error.strerror}",)
    return (error.message, *error.details)


def _settle(store: Store, one: ApplyFolder) -> Recovered:
    events = [str(line.get("event")) for line in one.events()]
    plan = one.plan()
    last = next((event for event in reversed(events) if event in _LAST), "")
    if plan is None or last == "":
        drop(one)
        return Recovered(one.header.fork, "its apply was broken off before anything was written")
    if last == "committed":
        left = finish(store, one, plan)
        return Recovered(one.header.fork, f"its apply {one.header.id} was finished", left)
    if last == "undone":
        left = finish_undo(store, one, plan)
        return Recovered(one.header.fork, f"its undo of {one.header.id} was finished", left)
    with opened(one, plan) as transaction:
        told = transaction.put(last == "undoing")
    if last == "undoing":
        one.note("redone")
        end_stages(one, plan)
        one.finish()
        return Recovered(one.header.fork, f"its undo of {one.header.id} was broken off: it is applied as before", told)
    after_put_back(store, one, plan, told)
    return Recovered(one.header.fork, "its apply was broken off: the host is as it was before it", told)


_LAST = {"ready", "committed", "uncommitted", "undoing", "undone"}


@contextlib.contextmanager
def opened(one: ApplyFolder, plan: Plan) -> Iterator[Transaction]:
    """The transaction of a plan, its targets and stages open. Raises OSError, ESTALE where a target is another one."""
    with contextlib.ExitStack() as stack:
        targets = stack.enter_context(Targets(plan.targets))
        stages = []
        for stage in plan.stages:
            stages.append(os.open(stage.path, FOLDER))
            stack.callback(os.close, stages[-1])
        yield Transaction(plan, targets, stages, one.note)


def put_back(store: Store, one: ApplyFolder, plan: Plan, transaction: Transaction) -> tuple[str, ...]:
    """Put everything back after a failure; sentences about what is in the way. What fails here too is done by the next
    command: the journal says where it is."""
    try:
        if one.state() is ApplyState.APPLIED:  # the record is written, and may not be on disk
            one.note("uncommitted")
        told = transaction.put(False)
        after_put_back(store, one, plan, told)
    except (HostforkError, OSError) as error:
        return (f"putting back is not finished, the next hostfork command does that: {'; '.join(_why(error))}",)
    return told


def redo(one: ApplyFolder, plan: Plan, transaction: Transaction) -> tuple[str, ...]:
    """The same for an undo that failed: all is applied as before it."""
    try:
        if one.state() is ApplyState.UNDONE:
            one.note("undoing")
        told = transaction.put(True)
        one.note("redone")
        end_stages(one, plan)
        one.finish()
    except (HostforkError, OSError) as error:
        return (f"putting back is not finished, the next hostfork command does that: {'; '.join(_why(error))}",)
    return told


def after_put_back(store: Store, one: ApplyFolder, plan: Plan, told: Sequence[str]) -> None:
    """The host is as it was: what was staged goes. Where something of others was set aside, its folder stays."""
    one.note("back")
    refresh_base(store, one, plan)
    end_stages(one, plan)
    if told and _asides(one):
        one.finish()
    else:
        one.remove()


def finish(store: Store, one: ApplyFolder, plan: Plan) -> tuple[str, ...]:
    """All is applied: what is of no use any more goes, and the fork is told. Sentences about what could not be."""
    try:
        end_stages(one, plan)
        if one.header.complete:
            _decide(store, one, Disposition.APPLIED)
        one.finish()
    except (HostforkError, OSError) as error:
        return (f"what it needed is removed by the next hostfork command: {'; '.join(_why(error))}",)
    return ()


def finish_undo(store: Store, one: ApplyFolder, plan: Plan) -> tuple[str, ...]:
    """All is as before the apply: nothing of it is left but in the fork's log. Sentences about what could not be."""
    try:
        refresh_base(store, one, plan)
        end_stages(one, plan)
        _decide(store, one, Disposition.OPEN)
        one.note("done")
        one.remove()
    except (HostforkError, OSError) as error:
        return (f"what it needed is removed by the next hostfork command: {'; '.join(_why(error))}",)
    return ()


def _decide(store: Store, one: ApplyFolder, wanted: Disposition) -> None:
    """Where the fork is there, is the same, and nobody uses it. Its lock may be held by this process already."""
    with contextlib.suppress(ForkError), store.open(one.header.fork) as folder:
        record = folder.load()
        if record.id != one.header.fork_id or record.activity is not Activity.IDLE:
            return
        if wanted is Disposition.OPEN and record.disposition is not Disposition.APPLIED:
            return
        folder.decide(record, wanted)


def drop(one: ApplyFolder) -> None:
    """It was broken off before anything of the host was touched: nothing of it stays."""
    _remove_stages(one, one.events())
    one.remove()


def end_stages(one: ApplyFolder, plan: Plan) -> None:
    """Remove the stages at the tops of targets. What others own in one is moved into the pool. Raises OSError."""
    rescue(one, plan)
    for stage in plan.stages:
        if stage.target >= 0:
            remove_stage(stage.path)
    unused = {step.slot for step in plan.steps}
    with contextlib.suppress(FileNotFoundError):
        folder = os.open(one.stage, FOLDER)
        try:
            keep = _kept(one, plan)
            for name in os.listdir(folder):
                if name in unused and name not in keep:
                    remove_tree(folder, name)
        finally:
            os.close(folder)


def _kept(one: ApplyFolder, plan: Plan) -> set[str]:
    """The names in the pool that undo needs, while the apply stands."""
    stands = one.state() is ApplyState.APPLIED
    return {step.slot for step in plan.steps if step.old and step.move is not Move.CHANGE} if stands else set()


def rescue(one: ApplyFolder, plan: Plan) -> None:
    """What putting back set aside in a stage at the top of a target comes into the pool. Raises OSError."""
    for stage in plan.stages:
        if stage.target < 0 or not os.path.isdir(stage.path):
            continue
        source = os.open(stage.path, FOLDER)
        try:
            names = [name for name in os.listdir(source) if name.startswith("aside-")]
            if names:
                target = os.open(one.stage, FOLDER)
                try:
                    for name in names:
                        if os.path.lexists(os.path.join(one.stage, name)):
                            remove_tree(target, name)
                    copy_slots(names, source, target)
                finally:
                    os.close(target)
        finally:
            os.close(source)


def _asides(one: ApplyFolder) -> bool:
    try:
        return any(name.startswith("aside-") for name in os.listdir(one.stage))
    except FileNotFoundError:
        return False


def remove_stage(path: str) -> None:
    """Remove a stage at the top of a target, if it is there; nothing that is called otherwise. Raises OSError."""
    above, name = os.path.split(path)
    if not name.startswith(STAGE_PREFIX) or not os.path.lexists(path):
        return
    folder = os.open(above, FOLDER)
    try:
        with _writable(folder):
            remove_tree(folder, name)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _writable(folder: int) -> Iterator[None]:
    """A top of mode 0555 takes no name out."""
    found = os.fstat(folder)
    closed = found.st_uid == os.geteuid() and not found.st_mode & 0o200
    if closed:
        os.fchmod(folder, found.st_mode & 0o7777 | 0o300)
    try:
        yield
    finally:
        if closed:
            os.fchmod(folder, found.st_mode & 0o7777)


def _remove_stages(one: ApplyFolder, events: list[dict[str, Any]]) -> None:
    for line in events:
        if line.get("event") == "stage" and isinstance(line.get("path"), str):
            path = str(line["path"])
            remove_stage(path)
            mode = line.get("mode")
            if isinstance(mode, int):
                with contextlib.suppress(OSError):
                    os.chmod(os.path.dirname(path), mode)


def stage_again(one: ApplyFolder, plan: Plan) -> Plan:
    """For undo: what was displaced lies in the pool; where a rename from there does not work, it is copied to the top
    of the target once more. The plan with what it is there. Raises OSError."""
    steps = list(plan.steps)
    linked = [number for line in one.events() if line.get("event") == "kept" for number in line["linked"]]
    with Targets(plan.targets) as targets:
        pool = os.open(one.stage, FOLDER)
        try:
            for number, stage in enumerate(plan.stages):
                if stage.target < 0:
                    continue
                remove_stage(stage.path)
                again = open_stage(one, stage)
                try:
                    for step in originals.bring(plan, number, pool, again, linked, targets):
                        steps[step.number] = step
                finally:
                    os.close(again)
        finally:
            os.close(pool)
    return plan._replace(steps=tuple(steps))


def open_stage(one: ApplyFolder, stage: Stage) -> int:
    """Make a stage, written down first. A top of mode 0555 gets its bits for a moment, which is written down too."""
    above = os.path.dirname(stage.path)
    if stage.target < 0:
        one.note("stage", path=stage.path)
        os.makedirs(above, 0o700, exist_ok=True)
        return make_stage(stage.path)
    found = os.stat(above)
    closed = found.st_uid == os.geteuid() and not found.st_mode & 0o200
    one.note("stage", path=stage.path, **({"mode": found.st_mode & 0o7777} if closed else {}))
    folder = os.open(above, FOLDER)
    try:
        with _writable(folder):
            return make_stage(stage.path)
    finally:
        os.close(folder)


def refresh_base(store: Store, one: ApplyFolder, plan: Plan) -> None:
    """Moving an entry there and back moved its ctime: where the fork's base is known by that, what came back unchanged
    is known by the new one. Nothing is raised: else a later apply finds conflicts, and harms nothing."""
    with contextlib.suppress(HostforkError, OSError), store.open(one.header.fork) as folder:
        record = folder.load()
        if record.id == one.header.fork_id:
            for path in changes.private_paths(record):
                _refresh(folder, record, path.path, path.folder, plan)


def _refresh(folder: ForkFolder, record: Record, at: str, is_folder: bool, plan: Plan) -> None:
    from hostfork.collect.manifest import StatManifestEdit
    from hostfork.lifecycle.prepare import base_file

    path = next(one for one in record.paths if one.path == at)
    manifest = changes.base_of(folder, path)
    if manifest is None:
        return
    fresh = []
    for step in plan.steps:
        top = _relative(plan, step, at, is_folder)
        for row in step.original or step.old if top is not None else ():
            relative = "/".join(filter(None, (top, row.relative)))
            known = manifest.find(os.fsencode(relative))
            if known is None or (known.dev, known.ino) != (row.device, row.inode):
                continue
            found = os.lstat(os.path.join(plan.path(step), row.relative) if row.relative else plan.path(step))
            same = (known.size, known.mode, known.mtime_ns) == (found.st_size, found.st_mode, found.st_mtime_ns)
            if same and not known.is_source(found):
                fresh.append((os.fsencode(relative), found))
    if fresh:
        edit = StatManifestEdit(manifest)
        for name, found in fresh:
            edit.replaced(name, found)
        edit.save(base_file(folder, path))


def _relative(plan: Plan, step: Step, at: str, is_folder: bool) -> str | None:
    path = plan.path(step)
    if path == at:
        return ""
    return path[len(at) + 1 :] if is_folder and path.startswith(at.rstrip("/") + "/") else None
