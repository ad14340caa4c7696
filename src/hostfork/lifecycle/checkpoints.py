"""Making a checkpoint of a fork: of one that is idle under its lock, of one that runs while it is held still.

    held still -> capture every private path -> objects, manifest -> the fork's list

Where a mechanism takes snapshots, one is taken and read after the processes run again, and stays: restoring goes back
to it. Else what changed is read twice: before, so that most is known, and while they stand still.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from hostfork.checkpoint import boundary, known
from hostfork.checkpoint.boundary import Boundary
from hostfork.checkpoint.capture import Held, Moved, capture
from hostfork.checkpoint.known import Known
from hostfork.checkpoint.objects import Intake, as_checkpoint_error
from hostfork.checkpoint.store import Checkpoints, Damaged, Removed
from hostfork.checkpoint.tree import Tree, TreeManifest
from hostfork.collect.changeset import Changeset
from hostfork.errors import CheckpointError, Code, ForkError, HostforkError
from hostfork.helper.syscalls import sync_filesystem
from hostfork.lifecycle import audit, changes, moments, uses
from hostfork.lifecycle.moments import Checkpoint
from hostfork.lifecycle.pools import is_ours_alone, pools
from hostfork.lifecycle.probes import first_write
from hostfork.lifecycle.record import PathRecord, Record, observed_activity
from hostfork.lifecycle.still import Still
from hostfork.lifecycle.store import ForkFolder, Store, now
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import Content, FullTree, Layer
from hostfork.storage.filesystem import filesystem_of
from hostfork.values import frozen
from hostfork.vocabulary import Activity, StorageKind

_TRIES = 3
_SEEN = "seen"


@frozen
class Made:
    """What making a checkpoint gave. `new` is False where the fork has one of that content, which this is then."""

    checkpoint: Checkpoint
    new: bool


@frozen
class _Taken:
    manifest: TreeManifest
    changes: Changeset
    pause: float | None
    files: int
    bytes: int
    snapshots: tuple[str, ...]


def make(store: Store, fork: ForkFolder, message: str = "") -> Made:
    """Make a checkpoint of a fork as it is now, running or not; it is on disk when this returns.

    Raises CheckpointError `checkpoint.busy`, `.no-space`, `.failed`, ForkError `fork.busy`; then there is none.
    """
    with ready(fork), moments.listing(fork), uses.using(fork.path):
        moments.must_not_be_restoring(fork)
        return take(store, fork, message)


def take(store: Store, fork: ForkFolder, message: str) -> Made:
    """The same where the caller holds what `make` takes first."""
    pool = fork.load().pool
    checkpoints = Checkpoints(pool)
    with checkpoints.held():
        moved: Moved | None = None
        for _ in range(_TRIES):
            record = fork.load()  # it may have ended since
            try:
                taken = _Taking(fork, record, checkpoints).taken()
            except Moved as error:
                moved = error
                continue
            return _listed(store, fork, record, checkpoints, taken, message)
        raise CheckpointError(
            Code.CHECKPOINT_BUSY, f"{fork.name} did not stand still for a checkpoint", step="checkpoint",
            path=moved.path if moved else None,
            details=(f"{moved.path} was written while it was read",) if moved else (),
            hint=f"end what writes there, or try again · hostfork show {fork.name}",
        )  # fmt: skip


@contextlib.contextmanager
def ready(fork: ForkFolder) -> Iterator[None]:
    """A fork that runs, or one that is idle and stays so meanwhile. Raises ForkError `fork.busy`."""
    record = fork.load()
    activity = observed_activity(record)
    if activity in (Activity.RUNNING, Activity.FROZEN):
        yield
        return
    if activity is Activity.ORPHANED:
        raise ForkError(
            Code.FORK_BUSY, f"{record.name} was left by a crash", hint="hostfork recover puts it right first"
        )
    if activity is not Activity.IDLE or not fork.lock():
        raise ForkError(
            Code.FORK_BUSY, f"{record.name} is in use by another hostfork", hint=f"hostfork show {record.name}"
        )
    yield


def _listed(
    store: Store, fork: ForkFolder, record: Record, checkpoints: Checkpoints, taken: _Taken, message: str
) -> Made:
    name = checkpoints.put(taken.manifest, taken.changes)
    _name_snapshots(record, taken, name)
    earlier = next((one for one in moments.read(fork) if one.id == name), None)
    if earlier is not None:
        return Made(earlier, new=False)
    running = observed_activity(record) in (Activity.RUNNING, Activity.FROZEN)
    one = Checkpoint(
        name, record.name, now(), message, record.command, None if running else record.status, running,
        None if taken.pause is None else round(taken.pause, 6), taken.files, taken.bytes, len(taken.changes.changes),
        all(tree.whole for tree in taken.manifest.trees),
    )  # fmt: skip
    if not fork.exists():
        raise ForkError(Code.FORK_NOT_FOUND, f"{record.name} ended and went meanwhile", hint="hostfork list")
    moments.add(fork, one)
    boundary.passed(Boundary.LISTED)
    audit.try_to_tell(store, record, audit.Event.CHECKPOINTED, after=name, message=message or None)
    return Made(one, new=True)


def _name_snapshots(record: Record, taken: _Taken, name: str) -> None:
    for path, snapshot in zip(changes.private_paths(record), taken.snapshots, strict=True):
        found = storage_of(path.storage).moments(path.key, record.pool)
        if found is not None and snapshot:
            found.rename(snapshot, name)


class _Taking:
    """One look at a fork."""

    def __init__(self, fork: ForkFolder, record: Record, checkpoints: Checkpoints) -> None:
        self._fork, self._record, self._checkpoints = fork, record, checkpoints
        self._paths = changes.private_paths(record)
        self._running = observed_activity(record) in (Activity.RUNNING, Activity.FROZEN)
        self._stored = None if self._running else changes.stored_changes(fork)
        self._snapshots: list[str] = []

    def taken(self) -> _Taken:
        """Look. Raises Moved, CheckpointError, CollectError, ForkError, StorageError."""
        before = time.time_ns()
        try:
            if self._running:
                sync_filesystem(self._record.pool)
            with ExitStack() as stack:
                intake = stack.enter_context(Intake(self._checkpoints.objects))
                pause, found, seen = self._look(intake, before)
        except OSError as error:
            sentence = f"no checkpoint of {self._record.name} could be made"
            raise as_checkpoint_error(sentence, self._record.pool, error) from error
        known.write(self._fork.file(_SEEN), seen.found)
        manifest = TreeManifest(tuple(tree for tree, _ in found))
        changeset = changes.joined({path.path: part for path, (_, part) in zip(self._paths, found, strict=True)})
        return _Taken(manifest, changeset, pause, intake.new, intake.bytes, tuple(self._snapshots))

    def _look(self, intake: Intake, before: int) -> tuple[float | None, list[tuple[Tree, Changeset]], Known]:
        trusts = filesystem_of(self._record.pool).kind != "tmpfs"  # which does not stamp writes through mappings
        seen = Known(before if trusts else 0, known.read(self._fork.file(_SEEN)) if trusts else {})
        places = {path.path: changes.content_of(self._record, path) for path in self._paths}
        if not self._running:
            contents = [self._snapshot(path, places[path.path]) for path in self._paths]
            return None, [self._path(*pair, intake, seen) for pair in zip(self._paths, contents, strict=True)], seen
        for path in self._paths:
            if storage_of(path.storage).moments(path.key, self._record.pool) is None:
                with contextlib.suppress(HostforkError, Moved, FileNotFoundError):
                    self._path(path, (places[path.path], ""), intake, seen)  # so that little is left
        with Still(self._fork, self._record) as still:
            boundary.passed(Boundary.FROZEN)
            contents = [self._snapshot(path, places[path.path]) for path in self._paths]
            found: dict[str, tuple[Tree, Changeset]] = {}
            for path, pair in zip(self._paths, contents, strict=True):
                if not pair[1]:
                    found[path.path] = self._path(path, pair, intake, seen)
            still.thaw()
            for path, pair in zip(self._paths, contents, strict=True):
                if pair[1]:
                    found[path.path] = self._path(path, pair, intake, seen)
            return still.pause, [found[path.path] for path in self._paths], seen

    def _snapshot(self, path: PathRecord, content: Content) -> tuple[Content, str]:
        """Where the content is to be read, and the name of the snapshot that it is in, if there is one."""
        found = storage_of(path.storage).moments(path.key, self._record.pool)
        if found is None or not isinstance(content, FullTree):
            self._snapshots.append("")
            return content, ""
        found.keep({one.id for one in moments.read(self._fork)})
        name = f"new-{os.getpid()}"
        place = FullTree(found.take(name), content.base)
        boundary.passed(Boundary.SNAPSHOT_TAKEN)
        self._snapshots.append(name)
        return place, name

    def _path(
        self, path: PathRecord, place: tuple[Content, str], intake: Intake, seen: Known
    ) -> tuple[Tree, Changeset]:
        content, snapshot = place
        changeset = self._changes(path, content, snapshot)
        whole = isinstance(content, FullTree) and content.base is None
        held = Held(
            path.path, changes.delta_of(content), base_of(self._record, path), path.omit,
            layer=isinstance(content, Layer), whole=whole,
            every=not (isinstance(content, FullTree) and content.base is not None), still=bool(snapshot),
        )  # fmt: skip
        return capture(held, changeset, intake, seen), changeset

    def _changes(self, path: PathRecord, content: Content, snapshot: str) -> Changeset:
        if self._stored is not None:
            return changes.part_of(self._stored, path)
        if not snapshot or not isinstance(content, FullTree) or content.base is None:
            return changes.find_changes(self._fork, self._record, path)
        from hostfork.collect import scan

        found = storage_of(path.storage).moments(path.key, self._record.pool)
        touched = None if found is None else found.touched(snapshot)
        since = first_write(self._fork, self._record.pool)
        return scan.scan_pair(content.tree, content.base, path.path, path.omit, touched, since)


def base_of(record: Record, path: PathRecord) -> str:
    """What tells the base of a private path from others: two forks that lie over one thing have the same."""
    # What a branch lies over besides is its own.
    if path.storage is StorageKind.RETAINED and len(storage_of(path.storage).held(path.key, record.pool)) == 1:
        from hostfork.storage.retained import generation_of

        return f"baseline {os.path.relpath(generation_of(path.key, record.pool).path, record.pool)}"
    return f"fork {record.name} {record.id or record.created} {path.key.rpartition('.')[2]}"


def collect_garbage(store: Store) -> tuple[tuple[str, Removed], ...]:
    """Remove what no fork's checkpoint needs, pool by pool, where something was removed or somebody was at it.

    A pool in which other state folders' forks may lie is left alone. Raises CheckpointError, ForkError.
    """
    found = []
    for pool in pools(store):
        checkpoints = Checkpoints(pool)
        if checkpoints.exists and is_ours_alone(store, pool):
            removed = checkpoints.gc(partial(moments.wanted, store, pool))
            if removed.trees or removed.objects or removed.busy:
                found.append((pool, removed))
    return tuple(found)


@frozen
class Verified:
    """What reading checkpoints told. `seconds` it took; `files` and `bytes` that were read."""

    checkpoints: int
    files: int
    bytes: int
    seconds: float
    damage: tuple[Damaged, ...]


def verify(store: Store, name: str | None) -> Verified:
    """Read all that the checkpoints of one fork, or of all, are made of. Raises ForkError, CheckpointError."""
    start = time.monotonic()
    by_pool: dict[str, dict[str, Checkpoint]] = {}
    names = store.names() if name is None else (name,)
    for one in names:
        with store.open(one) if name is None else store.find(one) as fork:
            found = moments.read(fork)
            if found:
                by_pool.setdefault(fork.load().pool, {}).update({one.id: one for one in found})
    files = size = 0
    damage: list[Damaged] = []
    for pool, ids in by_pool.items():
        checkpoints = Checkpoints(pool)
        with checkpoints.held():
            read, done, bad = checkpoints.verify(ids)
        files, size = files + read, size + done
        damage += bad
    total = sum(map(len, by_pool.values()))
    return Verified(total, files, size, time.monotonic() - start, tuple(damage))
