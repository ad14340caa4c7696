"""What was displaced in a stage at the top of a target, which goes: kept in the pool, and brought back for undo."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from hostfork.apply.rows import Row, survey
from hostfork.apply.stage import copy_slots
from hostfork.apply.steps import Move, Plan, Step
from hostfork.apply.target import Targets
from hostfork.collect.walk import Place


def keep(plan: Plan, stages: Sequence[int]) -> tuple[int, ...]:
    """Copy it to the pool, the first stage. The numbers of those that have other names. Raises OSError."""
    linked: list[int] = []
    for number, stage in enumerate(plan.stages):
        if stage.target < 0:
            continue
        steps = _displaced(plan, number)
        lost = copy_slots([step.slot for step in steps], stages[number], stages[0])
        if lost:
            path = plan.path(plan.steps[int(lost[0].split("/", 1)[0])])
            raise OSError(errno.EPERM, "its owner or attributes cannot be kept for undo", path)
        linked += [step.number for step in steps if _has_others(stages[number], step)]
    return tuple(linked)


def bring(plan: Plan, number: int, pool: int, stage: int, linked: Sequence[int], targets: Targets) -> list[Step]:
    """Bring it into such a stage again; its steps with what it is there. Raises OSError.

    `linked`: those that had other names. Where one is there still, it is linked again.
    """
    steps = _displaced(plan, number)
    first = {step.number: (step.original or step.old)[0] for step in steps}
    wanted = {(first[step.number].device, first[step.number].inode) for step in steps if step.number in linked}
    found = _find(targets, wanted) if wanted else {}
    copied = []
    for step in steps:
        row = first[step.number]
        place = found.get((row.device, row.inode))
        if place is not None and _is_same(survey(targets.place(*place))[0], row):
            there = targets.place(*place)
            os.link(there.name, step.slot, src_dir_fd=there.folder, dst_dir_fd=stage, follow_symlinks=False)
        else:
            copied.append(step.slot)
    copy_slots(copied, pool, stage)
    return [step._replace(old=survey(Place(stage, step.slot)), original=step.original or step.old) for step in steps]


def _displaced(plan: Plan, number: int) -> list[Step]:
    return [step for step in plan.steps if step.stage == number and step.old and step.move is not Move.CHANGE]


def _has_others(stage: int, step: Step) -> bool:
    return len(step.old) == 1 and os.stat(step.slot, dir_fd=stage, follow_symlinks=False).st_nlink > 1


def _is_same(row: Row, other: Row) -> bool:
    return tuple(row)[1:] == tuple(other)[1:]


def _find(targets: Targets, inodes: set[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, str]]:
    """A name of each of the inodes below the targets."""
    numbers = {inode for _, inode in inodes}
    known: dict[tuple[int, int], tuple[int, str]] = {}
    for number in range(len(targets.targets)):
        waiting = [""]
        while waiting:
            name = waiting.pop()
            try:
                with os.scandir(targets.folder(number, name)) as entries:
                    for entry in entries:
                        path = f"{name}/{entry.name}" if name else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(path)
                        elif entry.inode() in numbers:
                            found = entry.stat(follow_symlinks=False)
                            if (found.st_dev, found.st_ino) in inodes:
                                known[found.st_dev, found.st_ino] = number, path
            except OSError:
                continue
    return known
