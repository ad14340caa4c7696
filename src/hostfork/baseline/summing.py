"""Making the sums of generations, and comparing generations with theirs.

Made in the background by the program `settler`, one at a time for each pool; or by who asks first, and has nothing to
compare with. No lock is held meanwhile: the generation is said to be read, and holds still.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator

from hostfork.baseline import sums
from hostfork.baseline.current import is_damaged, is_durable
from hostfork.baseline.showing import sums_of
from hostfork.baseline.sums import Damage, DamagedSumsError, Fault, Known, Sums
from hostfork.storage.entry import FOLDER
from hostfork.storage.lines import SUMS, Generation, Line, lines
from hostfork.storage.readers import reading
from hostfork.values import frozen

Told = Callable[[int, int, int | None, int | None], None]
"""Told now and then: files and bytes done, and of how many where that is known."""
_BETWEEN = 0.05


@frozen
class Checked:
    """What reading a generation told. `recorded`: there was nothing to compare with, and now there is."""

    files: int
    bytes: int
    recorded: bool
    damage: tuple[Damage, ...]


@contextlib.contextmanager
def standing(line: Line, patience: float | None = None) -> Iterator[tuple[Generation, ...]]:
    """The generations of a line, the newest first, which hold still as long as this lasts.

    None where the line is gone, or others had its lock for `patience` seconds. Raises OSError.
    """
    end = None if patience is None else time.monotonic() + patience
    found: list[Generation] = []
    with contextlib.ExitStack() as stack:
        while True:
            with line.held() as free:
                if free:
                    line.settle()  # a merge that was killed left modes behind
                    found += sorted(line.generations(), key=_number, reverse=True)
                    for one in found:
                        stack.enter_context(reading(one.path))
                    break
            if not os.path.isdir(line.path) or (end is not None and time.monotonic() > end):
                break
            time.sleep(_BETWEEN)
        yield tuple(found)


def check(generation: Generation, known: Known | None, processes: int, told: Told | None = None) -> Checked:
    """Read all of a generation and compare it with its sums; without any they are written. It must hold still.

    What is `known` is not read again, and what was read is known afterwards: for one line's generations in turn.
    Raises OSError.
    """
    try:
        before: Sums | None = sums.read(generation.file(SUMS))
    except FileNotFoundError:
        before = None
    except DamagedSumsError:
        return Checked(0, 0, False, (Damage("", Fault.SUMS),))
    of = (None, None) if before is None or told is None else _total(before)
    tell = None if told is None else lambda files, done: told(files, done, *of)
    now, failed = sums_of(generation.lowers, known or {}, processes, tell, strict=before is None)
    total = _total(now)
    if known is not None:
        known.update(sums.known_of(now))
    if before is not None:
        return Checked(*total, False, tuple(sums.compared(before, now, failed)))
    sums.write(generation, now)
    return Checked(*total, True, ())


def record(generation: Generation) -> None:
    """Write the sums of a generation; what is the same as in the line's newest sums is not read. It must hold still.

    Raises OSError.
    """
    now, _ = sums_of(generation.lowers, sums.known(generation), processes=1, strict=True)
    sums.write(generation, now)


def record_all(pool: str) -> None:
    """Record what a pool has no sums of. Another process that is at it does that too. Nothing is raised."""
    tried: set[str] = set()
    # Looked at again without the lock: what came as we ended, whose own process saw us at it.
    while waiting := [one for one in _unrecorded(pool) if one.path not in tried]:
        with _alone(pool) as alone:
            if not alone:
                return
            for one in waiting:
                tried.add(one.path)
                with contextlib.suppress(OSError):  # it went meanwhile, or cannot be read: `verify` tells
                    _record(one)


def _record(generation: Generation) -> None:
    path = generation.line
    with standing(Line(os.path.dirname(os.path.dirname(path)), os.path.basename(path)), patience=5.0) as there:
        if generation in there and _lacks_sums(generation):
            record(generation)


def _unrecorded(pool: str) -> list[Generation]:
    try:
        return [one for line in lines(pool) for one in line.generations() if _lacks_sums(one)]
    except OSError:
        return []


def _lacks_sums(generation: Generation) -> bool:
    return is_durable(generation) and not is_damaged(generation) and not os.path.exists(generation.file(SUMS))


@contextlib.contextmanager
def _alone(pool: str) -> Iterator[bool]:
    """Whether no other process makes sums in the pool, and none will as long as this lasts."""
    import fcntl

    try:
        opened = os.open(os.path.join(pool, "baseline"), FOLDER)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(opened)


def _total(known: Sums) -> tuple[int, int]:
    files = [one.size for one in known.values() if stat.S_ISREG(one.mode)]
    return len(files), sum(files)


def _number(generation: Generation) -> int:
    return int(os.path.basename(generation.path)[1:])
