"""What everything that is kept takes: a line for each fork and baseline, and for each pool the sum and what is free."""

from __future__ import annotations

import os

from hostfork.errors import Code, HostforkError, StorageError
from hostfork.lifecycle import changes
from hostfork.lifecycle.config import KeepRules
from hostfork.lifecycle.expirer import problem
from hostfork.lifecycle.expiry import kept_fork
from hostfork.lifecycle.pools import pools, reclaiming
from hostfork.lifecycle.record import Record, observed_activity
from hostfork.lifecycle.store import Store
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import FullTree, Held, Layer
from hostfork.storage.space import Space, space_of, space_of_tree
from hostfork.values import frozen, replace
from hostfork.vocabulary import Access, Activity, StorageKind


@frozen
class Holder:
    """One thing that holds space in a pool. Times are seconds of the clock.

    `kind`: `fork` or `baseline`. `kept`: it counts for the limit on bytes of kept forks. `goes`: when it expires for
    its age; None where it does not. `space` None: it could not be measured, and `problem` says why. `path`: what an
    automatic baseline was taken of.
    """

    kind: str
    name: str
    state: str
    pool: str
    space: Space | None
    kept: bool
    pinned: bool
    last_use: float | None = None
    goes: float | None = None
    problem: str | None = None
    path: str | None = None


@frozen
class PoolUse:
    """One pool. `kept` is what its kept forks take of at most `most` bytes, `baselines` what baselines do.

    `erasing` is set aside to be erased. With `lower_bound` some may hold blocks together, which count for none.

    `filesystem` is its type and device. `total` and `free` are of the filesystem, free for this user. With `problem` it
    cannot be looked at: its disk is not mounted.
    """

    path: str
    filesystem: str = ""
    total: int = 0
    free: int = 0
    holders: int = 0
    exclusive: int = 0
    upper_bound: bool = False
    lower_bound: bool = False
    kept: int = 0
    baselines: int = 0
    most: int | None = None
    erasing: int = 0
    erasing_bytes: int = 0
    problem: str | None = None
    checkpoints: int = 0
    """Bytes that the contents of files and manifests of checkpoints take, shared ones included."""


@frozen
class Overview:
    """Everything that holds space, the largest first; the pools; the rules in force; what the last gc could not do."""

    holders: tuple[Holder, ...]
    pools: tuple[PoolUse, ...]
    rules: KeepRules
    gc_problem: str | None = None


def overview(store: Store, rules: KeepRules) -> Overview:
    """Look at everything, by a walk of each. Raises ForkError `fork.state`."""
    found = [*_forks(store, rules), *_baselines(store, rules)]
    holders = sorted(found, key=lambda one: (-_exclusive(one), one.name))
    return Overview(
        tuple(holders),
        tuple(_pool(store, pool, holders, rules) for pool in pools(store)),
        rules,
        problem(store),
    )


def space_of_fork(record: Record, *, still: bool) -> Space:
    """What the storage of a fork takes; nothing where it is gone. `still`: nothing writes to it.

    Raises StorageError, OSError.
    """
    total = Space()
    for path in record.paths:
        try:
            if path.access is Access.SCRATCH:
                from hostfork.storage import scratch

                total += space_of_tree(scratch.mounts(path.key, record.pool).source)
                continue
            content = changes.content_of(record, path)
            touched = None
            if still and isinstance(content, FullTree) and content.base is not None:
                touched = storage_of(path.storage).touched(path.key, record.pool)
            held = storage_of(path.storage).held(path.key, record.pool)
            over_snapshot = path.storage is StorageKind.FROZEN
            if held:
                total += sum((_of_layer(one, over_snapshot) for one in held), Space())
            else:
                total += space_of(content, touched, over_snapshot=over_snapshot)
        except (HostforkError, FileNotFoundError) as error:
            if isinstance(error, HostforkError) and not _is_gone(error):
                raise
    return total


def _of_layer(held: Held, over_snapshot: bool) -> Space:
    """What an upper folder takes; all of it is shared where other forks lie over it too."""
    found = space_of(Layer(held.tree, ()), over_snapshot=over_snapshot)
    return found if held.alone else replace(found, exclusive=0, shared=found.shared + found.exclusive)


def _is_gone(error: HostforkError) -> bool:
    import errno

    return error.code is Code.FORK_LOST or (isinstance(error, StorageError) and error.errno == errno.ENOENT)


def _forks(store: Store, rules: KeepRules) -> list[Holder]:
    found = []
    for name in store.names():
        try:
            with store.open(name) as folder:
                record = folder.load()
        except HostforkError as error:
            if error.code is Code.FORK_CORRUPT and not store.being_made(name):
                found.append(Holder("fork", name, "broken", "", None, False, False, problem=error.message))
            continue
        activity = observed_activity(record)
        space, problem = None, None
        try:
            space = space_of_fork(record, still=activity is Activity.IDLE)
        except (HostforkError, OSError) as error:
            problem = f"what {name} takes could not be measured: {error}"
        kept = kept_fork(folder.path, record)
        idle = activity is Activity.IDLE
        goes = kept.goes(rules) if idle else None
        found.append(
            Holder("fork", name, activity.value, record.pool, space, idle, kept.pinned,
                   kept.last_use if idle else None, goes, problem)
        )  # fmt: skip
    return found


def _baselines(store: Store, rules: KeepRules) -> list[Holder]:
    """Those with a name, which are kept until they are removed, and those that `--private` made by itself."""
    from hostfork.lifecycle import baselines, unused

    found, known = [], baselines.catalog()
    for name in known.names():
        try:
            one = known.load(name)
            there = [line for line in one.lines if os.path.isdir(line.path)]
            space = sum(map(unused.space_of_line, there), Space())
        except (HostforkError, OSError) as error:
            problem = f"what {name} takes could not be measured: {error}"
            found.append(Holder(unused.BASELINE, name, "broken", "", None, False, False, problem=problem))
            continue
        state = "lost" if one.lost else "in use" if baselines.users(one) else "unused"
        found.append(Holder(unused.BASELINE, name, state, one.pool, space, False, False))
    for pool in pools(store):
        for line in unused.automatic(pool):
            try:
                space = unused.space_of_line(line.line)
            except OSError:
                continue  # it went meanwhile
            state = "in use" if line.in_use else "unused"
            source = line.line.source
            found.append(
                Holder(unused.BASELINE, line.line.name, state, pool, space, False, False, line.last_use,
                       line.goes(rules), path=None if source is None else source.path)
            )  # fmt: skip
    return found


def _exclusive(holder: Holder) -> int:
    return 0 if holder.space is None else holder.space.exclusive


def _pool(store: Store, pool: str, holders: list[Holder], rules: KeepRules) -> PoolUse:
    from hostfork.storage.filesystem import filesystem_of

    here = [one for one in holders if one.pool == pool]
    waiting = [one for one in reclaiming(store) if one.pool == pool]
    try:
        found = os.statvfs(pool)
        filesystem = str(filesystem_of(pool))
    except OSError as error:
        return PoolUse(pool, holders=len(here), problem=f"{pool} cannot be looked at: {error.strerror}")
    total = found.f_blocks * found.f_frsize
    return PoolUse(
        path=pool,
        filesystem=filesystem,
        total=total,
        free=found.f_bavail * found.f_frsize,
        holders=len(here),
        exclusive=sum(map(_exclusive, here)),
        upper_bound=any(one.space is not None and one.space.upper_bound for one in here),
        lower_bound=any(one.space is not None and (one.space.lower_bound or one.space.shared > 0) for one in here),
        kept=sum(_exclusive(one) for one in here if one.kept),
        baselines=sum(_exclusive(one) for one in here if one.kind == "baseline"),
        most=rules.most_bytes(total),
        erasing=len(waiting),
        erasing_bytes=sum(_space_at(one.path) for one in waiting),
        checkpoints=_checkpoints(pool),
    )


def _checkpoints(pool: str) -> int:
    from hostfork.checkpoint.store import Checkpoints

    return Checkpoints(pool).space() if os.path.isdir(os.path.join(pool, "checkpoints")) else 0


def _space_at(path: str) -> int:
    try:
        return space_of_tree(path).exclusive
    except OSError:
        return 0  # erased meanwhile
