"""Whether baselines hold what they held when they were made: all of them is read, by a process for each processor."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from hostfork.baseline.catalog import Baseline, Tree
from hostfork.baseline.current import mark_damaged
from hostfork.baseline.summing import Checked, check, standing
from hostfork.baseline.summing import Told as OfOne
from hostfork.baseline.sums import Damage, Fault, Known
from hostfork.errors import BaselineError, Code, StorageError
from hostfork.lifecycle import baselines
from hostfork.lifecycle.baselines import Told
from hostfork.storage.lines import AUTOMATIC, Generation, Line, lines
from hostfork.storage.retained import users_of
from hostfork.values import frozen
from hostfork.vocabulary import Verdict


@frozen
class Verified:
    """What reading a baseline told. `damage`: by the paths that forks have, else relative ones.

    `forks` lie over it, and may show the damage. `dropped`: it was an automatic one that nobody used, and is gone.
    """

    name: str
    verdict: Verdict
    files: int
    bytes: int
    seconds: float
    damage: tuple[Damage, ...] = ()
    forks: tuple[str, ...] = ()
    dropped: bool = False

    @property
    def is_automatic(self) -> bool:
        """Whether `--private` made it by itself."""
        return self.name.startswith(AUTOMATIC)


@frozen
class _Target:
    """What has a name. `lost`: the baseline, whose storage may be gone."""

    name: str
    pool: str
    trees: tuple[Tree, ...]
    baseline: Baseline | None


def names() -> tuple[str, ...]:
    """All that can be verified: baselines with a name, then automatic ones."""
    return (*baselines.catalog().names(), *sorted(line.name for line in _automatic()))


def verify(name: str, told: Told | None = None) -> Verified:
    """Read a baseline and compare it with its sums, or record them where there are none yet.

    What is damaged is marked, and no fork starts from it any more. Raises BaselineError `baseline.not-found`, `.lost`,
    StorageError where it cannot be read.
    """
    target, start = _find(name), time.monotonic()
    if target.baseline is not None and target.baseline.lost:
        raise baselines.lost(target.baseline)
    found: list[Checked] = []
    damage: dict[Damage, None] = {}
    for tree in target.trees:
        newest, damaged = _verified(Line(target.pool, tree.line), tree, told)
        found.append(newest)
        damage |= dict.fromkeys(damaged)
    verdict = Verdict.RECORDED if any(one.recorded for one in found) else Verdict.VERIFIED
    files, size = sum(one.files for one in found), sum(one.bytes for one in found)
    if not damage:
        return Verified(target.name, verdict, files, size, time.monotonic() - start)
    dropped = target.baseline is None and _dropped(target)
    seconds = time.monotonic() - start
    return Verified(target.name, Verdict.DAMAGED, files, size, seconds, tuple(damage), _forks(target), dropped)


def _verified(line: Line, tree: Tree, told: Told | None) -> tuple[Checked, list[Damage]]:
    """What the newest generation of a line holds, and what of any of them is damaged."""
    path, damaged = tree.path or "", list[Damage]()
    at = path or line.name
    newest: Checked | None = None
    try:
        with standing(line) as generations:
            known: Known | None = {} if len(generations) > 1 else None
            for generation in generations:
                one = check(generation, known, _processes(), _telling(told, at))
                newest = newest or one
                if one.damage:
                    _check_there(generation)
                    mark_damaged(generation)
                    damaged += (_placed(damage, path, generation) for damage in one.damage)
    except OSError as error:
        if not os.path.isdir(line.path):
            raise _gone(line.name) from error
        raise StorageError(
            Code.STORAGE_FAILED, f"the baseline of {at} cannot be read", step="verify",
            path=os.path.join(at, os.fsdecode(error.filename or "")), errno=error.errno,
            hint="a user reads what they closed to themselves by a user namespace: hostfork doctor"
            if isinstance(error, PermissionError) else "hostfork baseline verify tries again",
        ) from error  # fmt: skip
    if newest is None:
        raise _gone(line.name)
    return newest, damaged


def _placed(damage: Damage, path: str, generation: Generation) -> Damage:
    if damage.fault is Fault.SUMS:
        return Damage(generation.file(Fault.SUMS.value), damage.fault)
    return Damage(os.path.join(path, damage.path) if damage.path else path, damage.fault, damage.detail)


def _telling(told: Told | None, at: str) -> OfOne | None:
    return None if told is None else lambda *values: told(at, *values)


def _processes() -> int:
    return len(os.sched_getaffinity(0))


def _check_there(generation: Generation) -> None:
    """What was removed while it was read is not damaged. Raises BaselineError."""
    if not os.path.isdir(generation.path):
        raise _gone(os.path.basename(generation.line))


def _dropped(target: _Target) -> bool:
    """Remove a damaged automatic baseline that nobody uses: the next run takes it anew. Whether it is gone."""
    line = Line(target.pool, target.name)
    with line.held() as free:
        if not free or line.users:
            return False
        line.remove()
    from hostfork.storage import reclaim

    reclaim.start((target.pool,))
    return True


def _forks(target: _Target) -> tuple[str, ...]:
    keys = [key for tree in target.trees for key in users_of(Line(target.pool, tree.line))]
    return tuple(sorted({key.rpartition(".")[0] for key in keys}))


def _find(name: str) -> _Target:
    """The baseline of that name, or the only one whose name begins so. Raises BaselineError."""
    if not name.startswith(AUTOMATIC) or name in baselines.catalog().names():
        baseline = baselines.catalog().find(name)
        return _Target(baseline.name, baseline.pool, baseline.trees, baseline)
    found = [line for line in _automatic() if line.name.startswith(name)]
    if len(found) > 1:
        raise BaselineError(
            Code.BASELINE_NOT_FOUND, f"{name} could be {', '.join(line.name for line in found)}",
            hint="type more of the name",
        )  # fmt: skip
    if not found:
        raise _gone(name)
    line, source = found[0], found[0].source
    return _Target(line.name, line.pool, (Tree(line.name, None if source is None else source.path),), None)


def _automatic() -> Sequence[Line]:
    from hostfork.lifecycle.pools import pools
    from hostfork.lifecycle.store import Store, state_folder

    found = [line for pool in pools(Store(state_folder())) for line in lines(pool)]
    return [line for line in found if line.is_automatic and line.generations()]


def _gone(name: str) -> BaselineError:
    return BaselineError(Code.BASELINE_NOT_FOUND, f"there is no baseline called {name}", hint="hostfork baseline list")
