"""Baselines that `--private` made by itself go when nobody used them for long: the next run takes its source anew.

They hold nothing that the host has not: so they have limits of their own, and forks never go to make room for them.
Only one goes that no fork lies over and nobody reads: looked at under its lock, which a run holds that takes it.
"""

from __future__ import annotations

import os
import time

from hostfork.errors import ForkError
from hostfork.lifecycle import expired, uses
from hostfork.lifecycle.config import KeepRules
from hostfork.lifecycle.expired import Expired
from hostfork.lifecycle.pools import pools
from hostfork.lifecycle.store import Store
from hostfork.storage.lines import Line, lines
from hostfork.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.storage.space import Space

BASELINE = "baseline"
DAY = 86400.0


@frozen
class Automatic:
    """One that `--private` made. Times are seconds of the clock. `in_use`: forks lie over it, or somebody reads it."""

    line: Line
    last_use: float
    in_use: bool

    def goes(self, rules: KeepRules) -> float | None:
        """When it goes for its age; None where it does not."""
        return None if self.in_use or rules.keep_days is None else self.last_use + rules.keep_days * DAY


def automatic(pool: str) -> tuple[Automatic, ...]:
    """Those of a pool, the one that was not used for longest first."""
    found = []
    for line in lines(pool) if os.path.isdir(pool) else ():
        last_use = line.last_use
        if line.is_automatic and last_use is not None:
            found.append(Automatic(line, last_use, _in_use(line)))
    return tuple(sorted(found, key=lambda one: (one.last_use, one.line.name)))


def space_of_line(line: Line) -> Space:
    """What a baseline's trees take, by a walk. Raises OSError where it went meanwhile.

    In Btrfs subvolumes forks have their layers beside the trees: those are the forks'.
    """
    from hostfork.storage.space import space_of_trees

    if not line.is_in_subvolumes:
        return space_of_trees((line.path,))
    return space_of_trees(sorted({tree for one in line.generations() for tree in one.lowers}))


def size_of(line: Line) -> int | None:
    """What may come back when it goes, what it shares with its source included; None where it went meanwhile."""
    try:
        space = space_of_line(line)
    except OSError:
        return None
    return space.exclusive + space.shared


def gc(store: Store, rules: KeepRules, *, dry_run: bool = False, must_be_noted: bool = False) -> tuple[Expired, ...]:
    """Let go those that were not used for long, or take too much of their pool. Raises ForkError as `expiry.expire`."""
    gone = []
    for pool in pools(store):
        for one, reason, why, size in _due(pool, rules):
            going = _expired(one, reason, why, size)
            if dry_run or _go(store, one, going, must_be_noted):
                gone.append(going)
    return tuple(gone)


def _due(pool: str, rules: KeepRules) -> list[tuple[Automatic, str, str, int | None]]:
    now = time.time()
    due: list[tuple[Automatic, str, str, int | None]] = []
    rest = []
    for one in automatic(pool):
        goes = one.goes(rules)
        if goes is not None and goes <= now:
            days = int((now - one.last_use) // DAY)
            due.append((one, "keep-days", f"not used for {days} d (keep-days {rules.keep_days})", size_of(one.line)))
        else:
            rest.append(one)
    most = _most(pool, rules) if rest else None
    if most is None:
        return due
    sizes = {one.line.name: size_of(one.line) or 0 for one in rest}
    total = sum(sizes.values())
    from hostfork.storage.failures import size as shown

    why = f"automatic baselines in {pool} hold {shown(total)} (max-bytes {shown(most)})"
    for one in rest:
        if total > most and not one.in_use and now - one.last_use >= DAY:
            due.append((one, "max-bytes", why, sizes[one.line.name]))
            total -= sizes[one.line.name]
    return due


def _most(pool: str, rules: KeepRules) -> int | None:
    try:
        found = os.statvfs(pool)
    except OSError:
        return None  # its disk is not mounted
    return rules.most_bytes(found.f_blocks * found.f_frsize)


def _go(store: Store, one: Automatic, going: Expired, must_be_noted: bool) -> bool:
    """Remove it, unless somebody took it or uses it meanwhile."""
    with store.settling(), one.line.held() as held:
        if not held or _in_use(one.line) or one.line.last_use != one.last_use:
            return False
        try:
            expired.write_down(store, going)
        except ForkError:
            if must_be_noted:
                raise
        one.line.remove()
    return True


def _in_use(line: Line) -> bool:
    return any(generation.in_use for generation in line.generations())


def _expired(one: Automatic, reason: str, why: str, size: int | None) -> Expired:
    source = one.line.source
    last_use = uses.in_words(one.last_use)
    return Expired(
        name=one.line.name,
        at=uses.in_words(time.time()),
        created=last_use,
        last_use=last_use,
        reason=reason,
        why=why,
        bytes=size,
        paths=() if source is None else (source.path,),
        kind=BASELINE,
    )
