"""`undo`: the host gets back what an apply displaced, if nobody changed those paths since."""

from __future__ import annotations

import os

from hostfork.apply.rows import Moved
from hostfork.apply.steps import Plan, Step
from hostfork.apply.values import ApplyState, Conflict, ConflictKind, Undone
from hostfork.collect.changeset import Counts
from hostfork.collect.depth import AnyDepth
from hostfork.errors import ApplyError, Code
from hostfork.lifecycle import audit, settling
from hostfork.lifecycle.applies import Applies, ApplyFolder
from hostfork.lifecycle.applying import put_back_error
from hostfork.lifecycle.store import Store, as_fork_error, state_folder

_SHORTEST = 4
"""Letters of an id."""


def undo(name: str, *, dry_run: bool = False) -> Undone:
    """Undo an apply: `name` is its id or its beginning, or a fork, whose last apply is meant. `dry_run`: only look.

    Raises ApplyError `apply.not-found`, `apply.failed`; then the host is as it was before this.
    """
    store = Store(state_folder())
    with Applies(store).lock():
        if not dry_run:
            settling.settle(store)
        one = find(store, name)
        try:
            with AnyDepth():
                return _undo(store, one, dry_run)
        finally:
            one.close()


def find(store: Store, name: str) -> ApplyFolder:
    """The apply that is meant. Raises ApplyError `apply.not-found`, ForkError `fork.ambiguous`."""
    standing = [one for one in Applies(store).all() if one.state() is ApplyState.APPLIED]
    exact = [one for one in standing if one.header.fork == name]
    if exact:
        return exact[-1]
    by_id = [one for one in standing if len(name) >= _SHORTEST and one.header.id.startswith(name)]
    if len(by_id) == 1:
        return by_id[0]
    forks = {one.header.fork for one in standing if name and one.header.fork.startswith(name)}
    if len(forks) == 1 and not by_id:
        return next(one for one in reversed(standing) if one.header.fork in forks)
    if len(forks) > 1 or len(by_id) > 1:
        could = sorted(forks) or [one.header.id for one in by_id]
        raise ApplyError(Code.APPLY_NOT_FOUND, f"{name} could be {', '.join(could)}", hint="type more of the name")
    raise ApplyError(
        Code.APPLY_NOT_FOUND, f"nothing of {name} is applied that could be undone",
        details=("an apply can be undone once, and until `undo-days` have passed",),
        hint=f"hostfork log {name} tells what happened to it",
    )  # fmt: skip


def _undo(store: Store, one: ApplyFolder, dry_run: bool) -> Undone:
    plan = one.plan()
    if plan is None:
        raise ApplyError(Code.APPLY_NOT_FOUND, f"the steps of the apply {one.header.id} are gone", path=one.path)
    header = one.header
    result = Undone(header.id, header.fork, Counts(*header.counts), tuple(target.path for target in plan.targets))
    try:
        conflicts = _changed_since(one, plan)
    except OSError as error:
        raise ApplyError(
            Code.APPLY_BLOCKED, "the host cannot be looked at; nothing was undone", step="check",
            path=error.filename or plan.targets[0].path, errno=error.errno, details=(error.strerror or str(error),),
            hint="put back the folder that is named, then undo again",
        ) from error  # fmt: skip
    if conflicts:
        return Undone(header.id, header.fork, result.counts, result.paths, tuple(conflicts))
    if dry_run:
        return result
    moved, told = _write(store, one, plan)
    if moved is not None:
        return Undone(header.id, header.fork, result.counts, result.paths, (moved,))
    told = audit.try_to_tell(store, f"{header.fork}@{header.fork_id}", audit.Event.UNDONE, before=header.id)
    return Undone(header.id, header.fork, result.counts, result.paths, (), True, told)


def _changed_since(one: ApplyFolder, plan: Plan) -> list[Conflict]:
    from hostfork.apply.target import Targets
    from hostfork.apply.transaction import Transaction

    with Targets(plan.targets) as targets:
        differing = Transaction(plan, targets, (), one.note).differing(True)
        return [_conflict(plan, step) for step in differing]


def _conflict(plan: Plan, step: Step) -> Conflict:
    path = plan.path(step)
    try:
        found = os.lstat(path)
    except OSError:
        return Conflict(path, ConflictKind.HOST_DELETED, "applied", "deleted")
    words = "changed" if step.new or step.fields else "made again"
    return Conflict(path, ConflictKind.EDITED, "applied", words, host_time=found.st_ctime)


def _write(store: Store, one: ApplyFolder, plan: Plan) -> tuple[Conflict | None, tuple[str, ...]]:
    """Put the originals back; what met a change of the host meanwhile, after which all is applied as before; and
    sentences about what could not be tidied."""
    with as_fork_error("an undo cannot be written down", one.path):
        one.reopen()
        try:
            plan = settling.stage_again(one, plan)
        except OSError as error:
            settling.end_stages(one, plan)
            one.finish()
            raise put_back_error(error, one) from error
        one.write_plan(plan)
        one.note("undoing")
    try:
        with settling.opened(one, plan) as transaction:
            try:
                transaction.do(False)
                one.note("undone")
            except BaseException as error:
                if not isinstance(error, OSError) and one.state() is ApplyState.UNDONE:  # interrupted after the commit
                    settling.finish_undo(store, one, plan)
                elif left := settling.redo(one, plan, transaction):
                    error.add_note("; ".join(left))
                raise
    except Moved as moved:
        return Conflict(moved.path, ConflictKind.MOVED, "", "changed while it was undone"), ()
    except OSError as error:
        raise put_back_error(error, one) from error
    return None, settling.finish_undo(store, one, plan)
