"""Making an idle fork what it was at a checkpoint, in place, so that this can be undone: what it held is one first.

    take the present state -> note -> each private path -> the stored changes, the record -> the note goes

The note says to what; from it on recovery completes a restore that was killed, and no other verb uses the fork until
then. Where the storage has a snapshot of that moment it goes back to it; else only what differs is written.
"""

from __future__ import annotations

import os
import time

from hostfork.checkpoint import boundary, known
from hostfork.checkpoint.boundary import Boundary
from hostfork.checkpoint.conform import conform
from hostfork.checkpoint.known import Known
from hostfork.checkpoint.objects import as_checkpoint_error, sync_folder
from hostfork.checkpoint.store import Checkpoints
from hostfork.checkpoint.tree import Tree, TreeManifest
from hostfork.collect.changeset import Changeset
from hostfork.errors import CheckpointError, Code, ForkError, HostforkError
from hostfork.helper.syscalls import sync_filesystem
from hostfork.lifecycle import audit, changes, checkpoints, moments, uses
from hostfork.lifecycle.moments import Checkpoint
from hostfork.lifecycle.prepare import base_file
from hostfork.lifecycle.record import PathRecord, Record, must_be_open, observed_activity
from hostfork.lifecycle.store import ForkFolder, Store
from hostfork.storage import reclaim
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import Content, Delta, FullTree, Layer
from hostfork.values import frozen, replace
from hostfork.vocabulary import Activity, Disposition


@frozen
class Restored:
    """What a restore did. `before`: the checkpoint of what the fork held, to go back; `new`: it was made for that.

    `same`: the fork held that already. `seconds`: of the restore itself. `incomplete`: absolute paths that could not
    get all their metadata.
    """

    checkpoint: Checkpoint
    before: Checkpoint
    new: bool
    same: bool
    seconds: float
    incomplete: tuple[str, ...] = ()


def restore(store: Store, fork: ForkFolder, words: str) -> Restored:
    """Make a fork what it was at one of its checkpoints. Raises CheckpointError `checkpoint.not-found`, `.damaged`,
    ForkError `fork.busy`, `fork.decided`, CollectError `base.gone`; then it is as it was."""
    target = moments.of_fork(fork, words)
    _must_be_idle(fork)
    must_be_open(fork.load(), "restored")
    with checkpoints.ready(fork), moments.listing(fork), uses.using(fork.path):
        moments.must_not_be_restoring(fork)
        record = fork.load()
        pool = Checkpoints(record.pool)
        with pool.held():
            manifest = pool.manifest(target.id)
            changeset = pool.changes(target.id)
            _must_be_whole(pool, manifest, target)
            present = checkpoints.take(store, fork, f"before restoring {target.short}")
            before = present.checkpoint
            start = time.monotonic()
            if before.id == target.id:
                return Restored(target, before, present.new, True, 0.0)
            _check(fork, record, manifest, pool.changes(before.id))
            moments.begin_restore(fork, target.id, before.id)
            boundary.passed(Boundary.RESTORE_NOTED)
            try:
                incomplete = _carry_out(fork, record, pool, target.id, manifest, changeset)
            except (HostforkError, OSError) as error:
                raise _taken_back(fork, pool, before.id, error) from error
            seconds = time.monotonic() - start
        audit.try_to_tell(store, record, audit.Event.RESTORED, before=before.id, after=target.id)
        reclaim.start((record.pool,))
        return Restored(target, before, present.new, False, seconds, incomplete)


def complete(fork: ForkFolder, record: Record) -> str:
    """For recovery, under the fork's lock: carry out a restore that was begun; says so. Raises HostforkError."""
    begun = moments.restoring(fork)
    if begun is None:
        return "is as it was"
    pool = Checkpoints(record.pool)
    with pool.held():
        manifest, changeset = pool.manifest(begun.to), pool.changes(begun.to)
        _carry_out(fork, record, pool, begun.to, manifest, changeset)
    reclaim.start((record.pool,))
    return f"its restore to {begun.to[: moments.SHORT]} is complete"


def _must_be_idle(fork: ForkFolder) -> None:
    record = fork.load()
    if observed_activity(record) in (Activity.RUNNING, Activity.FROZEN):
        raise ForkError(
            Code.FORK_BUSY, f"{record.name} is running and cannot be restored now",
            hint=f"hostfork stop {record.name}, then again",
        )  # fmt: skip


def _must_be_whole(pool: Checkpoints, manifest: TreeManifest, target: Checkpoint) -> None:
    """Before anything is written: all that is needed is there. Its content is hashed by `verify`."""
    for tree in manifest.trees:
        for row in tree.rows:
            if row.digest is not None and not pool.objects.has(row.digest):
                path = os.path.join(tree.path, row.path)
                raise CheckpointError(
                    Code.CHECKPOINT_DAMAGED, f"the checkpoint {target.short} has lost {path}",
                    step="restore", path=pool.objects.path(row.digest),
                    hint=f"hostfork checkpoints {target.fork} --verify tells what is damaged",
                )  # fmt: skip


def _check(fork: ForkFolder, record: Record, manifest: TreeManifest, present: Changeset) -> None:
    """A base that does not hold still cannot give back what the fork changed since and the checkpoint does not hold."""
    for path in changes.private_paths(record):
        tree, content = manifest.of(path.path), changes.content_of(record, path)
        if not isinstance(content, FullTree) or content.base is not None or tree.whole:
            continue
        held = {row.path for row in tree.rows}
        start = len(path.path) + 1
        lost = [one.path for one in changes.part_of(present, path).changes if one.path[start:] not in held]
        if lost:
            raise CheckpointError(
                Code.COLLECT_BASE_GONE, f"the checkpoint does not hold what {path.written} held at first",
                path=lost[0], details=tuple(lost[:10]), hint=f"hostfork export {fork.name} DEST saves what it holds",
            )  # fmt: skip


def _carry_out(
    fork: ForkFolder, record: Record, pool: Checkpoints, name: str, manifest: TreeManifest, changeset: Changeset
) -> tuple[str, ...]:
    """Everything from the note to its end. Safe to repeat."""
    seen = Known(time.time_ns(), known.read(fork.file("seen")))
    incomplete: list[str] = []
    swapped = True
    for path in changes.private_paths(record):
        storage_of(path.storage).thaw(path.key, record.pool)
        found = storage_of(path.storage).moments(path.key, record.pool)
        if found is not None and found.has(name):
            found.go_back(name, lambda: boundary.passed(Boundary.TREE_SWAPPED))
        else:
            swapped = False
            incomplete += _conformed(fork, record, path, pool, manifest.of(path.path), seen)
        boundary.passed(Boundary.TREE_RESTORED)
    if not swapped:
        sync_filesystem(record.pool)
    if changes.stored_changes(fork) is not None or _is_reduced(record):
        changes.store_changes(fork, changeset)
    boundary.passed(Boundary.CHANGES_STORED)
    parts = changes.parts_of(changeset, record)
    record = replace(record, counts=changeset.counts(), ignored_only=changes.only_ignored(parts))
    if record.disposition is Disposition.APPLIED:
        fork.decide(record, Disposition.OPEN)
    else:
        fork.save(record, durable=True)
    boundary.passed(Boundary.RECORD_SAVED)
    moments.end_restore(fork)
    return tuple(incomplete)


def _conformed(
    fork: ForkFolder, record: Record, path: PathRecord, pool: Checkpoints, tree: Tree, seen: Known
) -> tuple[str, ...]:
    content = changes.content_of(record, path)
    if isinstance(content, FullTree) and content.base is not None:
        raise CheckpointError(
            Code.CHECKPOINT_DAMAGED, f"the snapshot of {path.written} that the checkpoint needs is gone",
            step="restore", path=content.tree, hint=f"hostfork export {fork.name}@ID DEST writes what it held",
        )  # fmt: skip
    rows = tree.changes() if isinstance(content, Delta | Layer) else tree.rows
    above, name = os.path.split(changes.delta_of(content))
    parent = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        layer = isinstance(content, Layer)
        done = conform(parent, name, rows, pool.objects, seen, (*tree.omit, *path.omit), layer)
        os.fsync(parent)
    except OSError as error:
        raise as_checkpoint_error(f"{path.written} could not be restored", above, error) from error
    finally:
        os.close(parent)
    if isinstance(content, FullTree):
        _note_copies(fork, path, content, tree)
    return tuple(os.path.join(path.path, one) for one in done.incomplete)


def _note_copies(fork: ForkFolder, path: PathRecord, content: Content, tree: Tree) -> None:
    """Of what equals the base, the manifest of the base has the identity that it has now: it is not compared again."""
    from hostfork.collect.manifest import StatManifest, StatManifestEdit

    file = base_file(fork, path)
    if not os.path.exists(file):
        return
    base, root = StatManifest.load(file), changes.delta_of(content)
    edit, edited = StatManifestEdit(base), False
    folders: dict[str, dict[str, int]] = {}
    for row in tree.rows:
        folder, _, name = row.path.rpartition("/")
        if row.changed or not row.path:
            continue
        if folder not in folders:
            folders = {folder: base.names(folder)} if len(folders) > 100 else folders | {folder: base.names(folder)}
        index = folders[folder].get(name)
        if index is None:
            continue
        found = os.lstat(os.path.join(root, row.path))
        if not base.entry(index, b"").is_copy(found):
            edit.recopied(index, found)
            edited = True
    if edited:
        edit.save(file)
        sync_folder(fork.path)


def _is_reduced(record: Record) -> bool:
    return any(isinstance(changes.content_of(record, path), Delta) for path in changes.private_paths(record))


def _taken_back(fork: ForkFolder, pool: Checkpoints, before: str, error: HostforkError | OSError) -> HostforkError:
    """What failed; the fork is what it was, if that can be done, else the note stays for recovery."""
    if isinstance(error, OSError):
        error = as_checkpoint_error(f"{fork.name} could not be restored", fork.path, error)
    try:
        moments.begin_restore(fork, before, before)
        _carry_out(fork, fork.load(), pool, before, pool.manifest(before), pool.changes(before))
        error.details += ("the fork is as it was",)
    except (HostforkError, OSError) as other:
        error.details += (f"nor could it be put back: {other}",)
        error.hint = "hostfork recover, when what is said above is put right"
    return error
