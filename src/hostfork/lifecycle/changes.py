"""The changes of a fork: found once after its writers are stopped, stored, and read from then on.

Which way they are found follows from where the storage says the content lies, never from a mechanism's name.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from hostfork.collect.changeset import Changeset, Counts
from hostfork.errors import Code, ForkError, StorageError
from hostfork.helper.syscalls import sync_filesystem
from hostfork.lifecycle.prepare import base_file
from hostfork.lifecycle.probes import Probes, first_write
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.store import ForkFolder, as_fork_error
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import Content, Delta, FullTree, Layer
from hostfork.values import replace
from hostfork.vocabulary import Access, BaseContent, ChangeKind, EntryKind, SourceChanged, StorageKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.collect.manifest import StatManifest
    from hostfork.collect.stack import Base
    from hostfork.collect.stamp import Probe

CHANGES_FILE = "changes"
_LONGEST_CHECK = 10.0
"""Seconds that the look for host writes may take, below all private paths together."""
_FEW = 100
"""Up to here one fsync per file; beyond, one syncfs, which waits for everything dirty on the filesystem."""


def private_paths(record: Record) -> tuple[PathRecord, ...]:
    """The paths whose changes are collected."""
    return tuple(path for path in record.paths if path.access is Access.PRIVATE)


def content_of(record: Record, path: PathRecord) -> Content:
    """Where a private path's content lies. Raises ForkError `fork.lost` where its storage is gone."""
    try:
        return storage_of(path.storage).content(path.key, record.pool)
    except StorageError as error:
        raise ForkError(
            Code.FORK_LOST,
            f"the storage of {path.written} is gone",
            path=error.path or record.pool,
            details=(error.message,),
            hint=f"hostfork discard {record.name}",
        ) from error


def delta_of(content: Content) -> str:
    """The folder in which every changed path's present content lies."""
    return content.upper if isinstance(content, Layer) else content.tree


def base_of(fork: ForkFolder, path: PathRecord) -> StatManifest | None:
    """The stat manifest of the base, where one was taken."""
    from hostfork.collect.manifest import StatManifest

    file = base_file(fork, path)
    return StatManifest.load(file) if os.path.exists(file) else None


def base_side(fork: ForkFolder, pool: str, path: PathRecord, content: Content) -> tuple[Base, StatManifest | None]:
    """Where the base's content is read, and what tells whether it still is the base; None where it is kept.

    Raises ForkError `fork.lost` where a baseline is kept and not what it was.
    """
    if path.storage is StorageKind.RETAINED:
        _check_whole(fork.name, pool, path)
    if isinstance(content, FullTree) and content.base is not None:
        return content.base, None
    if isinstance(content, Layer):
        return content.lowers, None if path.base_content is BaseContent.KEPT else base_of(fork, path)
    return path.path if content.origin is None else content.origin, base_of(fork, path)


def _check_whole(name: str, pool: str, path: PathRecord) -> None:
    from hostfork.baseline.current import is_whole
    from hostfork.storage.retained import generation_of

    generation = generation_of(path.key, pool)
    if not is_whole(generation):
        raise ForkError(
            Code.FORK_LOST, f"what {path.written} held at first is not what it was", path=generation.path,
            details=("its baseline is damaged, or was not on disk yet when the machine went down",),
            hint=f"hostfork export {name} DEST --changes-only writes what the fork changed",
        )  # fmt: skip


def find_changes(fork: ForkFolder, record: Record, path: PathRecord) -> Changeset:
    """The changes of one private path, from its storage. Raises CollectError, ForkError."""
    from hostfork.collect import scan

    content = content_of(record, path)
    if isinstance(content, Layer):
        return scan.scan_layer(content.upper, content.lowers, path.path, path.omit)
    if isinstance(content, Delta):
        raise ForkError(
            Code.FORK_CORRUPT, f"{record.name} was reduced to its changes and the list of them is gone",
            path=fork.file(CHANGES_FILE), hint=f"hostfork export {record.name} DEST --changes-only",
        )  # fmt: skip
    if content.base is not None:
        touched = storage_of(path.storage).touched(path.key, record.pool)
        since = first_write(fork, record.pool)
        return scan.scan_pair(content.tree, content.base, path.path, path.omit, touched, since)
    base = base_of(fork, path)
    if base is None:
        raise ForkError(
            Code.FORK_CORRUPT, f"what {path.written} held at first is not known", path=base_file(fork, path),
            hint=f"hostfork discard {record.name}",
        )  # fmt: skip
    return scan.scan_tree(content.tree, base, content.origin or path.path, path.path, path.omit)


def collect(fork: ForkFolder, record: Record, begin: Callable[[PathRecord], None]) -> dict[str, Changeset]:
    """The changes of every private path, by path."""
    found = {}
    for path in private_paths(record):
        begin(path)
        found[path.path] = find_changes(fork, record, path)
    return found


def joined(changesets: dict[str, Changeset]) -> Changeset:
    """One changeset over all private paths, ordered by path bytes."""
    changes = [change for changeset in changesets.values() for change in changeset.changes]
    return Changeset(tuple(sorted(changes, key=lambda change: os.fsencode(change.path))))


def part_of(changeset: Changeset, path: PathRecord) -> Changeset:
    """What of a changeset belongs to one private path: below it, and not below a private path inside it."""
    inside = path.path + "/"
    covered = tuple(f"{inside}{name}" for name in path.omit)
    return Changeset(
        tuple(
            change
            for change in changeset.changes
            if (change.path == path.path or change.path.startswith(inside))
            and not any(change.path == other or change.path.startswith(other + "/") for other in covered)
        )
    )


def parts_of(changeset: Changeset, record: Record) -> dict[str, Changeset]:
    """A changeset over all private paths taken apart again."""
    return {path.path: part_of(changeset, path) for path in private_paths(record)}


def relocated(record: Record) -> tuple[str, str]:
    """Where the private copy lies that holds the working directory (else the first), and the directory inside it."""
    paths = private_paths(record)
    inside = [p for p in paths if record.cwd == p.path or record.cwd.startswith(p.path + "/")]
    path = max(inside, key=lambda p: len(p.path), default=paths[0])
    root = delta_of(content_of(record, path))
    return root, root + record.cwd[len(path.path) :] if inside else root


def make_durable(record: Record, changesets: dict[str, Changeset]) -> None:
    """Put the content of what changed on disk: file by file where there are few, else the pool's filesystem."""
    try:
        if sum(len(changeset.changes) for changeset in changesets.values()) > _FEW:
            return sync_filesystem(record.pool)
        for path in private_paths(record):
            root = delta_of(content_of(record, path))
            for change in changesets[path.path].changes:
                is_there = change.kind is EntryKind.FILE and change.change is not ChangeKind.DELETED
                if is_there and not _fsync(root + change.path[len(path.path) :]):
                    return sync_filesystem(record.pool)
    except OSError as error:
        raise StorageError(
            Code.STORAGE_FAILED, f"the changes of {record.name} could not be put on disk", step="sync",
            path=record.pool, errno=error.errno, hint=f"hostfork diff {record.name} shows what is there",
        ) from error  # fmt: skip


def store_changes(fork: ForkFolder, changeset: Changeset) -> None:
    """Put the changeset on disk, before anything is reduced."""
    from hostfork.collect.store import write_changeset

    with as_fork_error("the changes of a fork cannot be written", fork.path):
        write_changeset(fork.file(CHANGES_FILE), changeset)


def stored_changes(fork: ForkFolder) -> Changeset | None:
    """The changeset, if it was stored."""
    from hostfork.collect.store import read_changeset

    path = fork.file(CHANGES_FILE)
    return read_changeset(path) if os.path.exists(path) else None


def only_ignored(changesets: dict[str, Changeset]) -> bool:
    """Whether there are changes and all of them lie in folders that the project ignores."""
    changes = [change for changeset in changesets.values() for change in changeset.changes]
    return bool(changes) and all(change.ignored_by is not None for change in changes)


def reduce_storage(record: Record, changesets: dict[str, Changeset]) -> None:
    """Give up what equals the base: keeping a fork costs what changed."""
    for path in private_paths(record):
        start = len(os.fsencode(path.path)) + 1
        changed = {os.fsencode(change.path)[start:] for change in changesets[path.path].changes}
        storage_of(path.storage).reduce(path.key, record.pool, changed)


def check_sources(record: Record, found: dict[str, Changeset], probes: Probes, warn: Callable[[str], None]) -> Record:
    """Whether the host wrote under the sources that show through, judged against the probes of the start.

    Only where something of the fork's is kept: what it did not change stays `not-checked`.
    """
    paths, end = [], time.monotonic() + _LONGEST_CHECK
    for path in record.paths:
        if path.source_changed is SourceChanged.NOT_CHECKED and found[path.path].changes:
            limit = round(max(end - time.monotonic(), 0.0), 1)
            path = replace(path, source_changed=_checked(path, record.pool, probes.of(path.path), limit, warn))
        paths.append(path)
    return replace(record, paths=tuple(paths))


def must_be_unchanged(fork: ForkFolder, record: Record, path: PathRecord) -> None:
    """Refuse where the host wrote under a source that shows through after the fork began to change it.

    Raises ForkError `base.gone`.
    """
    said: list[str] = []
    state = path.source_changed
    if state is not SourceChanged.CHANGED:
        probe = Probes.load(fork).of(path.path)
        state = _checked(path, record.pool, probe, _LONGEST_CHECK, said.append)
    if state is not SourceChanged.UNCHANGED:
        known = "is not what it was" if state is SourceChanged.CHANGED else "nobody knows whether it is what it was"
        raise ForkError(
            Code.COLLECT_BASE_GONE, f"{path.written} shows through in {record.name}, and {known}", path=path.path,
            details=tuple(said),
            hint=f"what it changed stays: hostfork diff {record.name} · hostfork export {record.name} DEST "
                 "--changes-only",
        )  # fmt: skip


def _checked(
    path: PathRecord, pool: str, probe: Probe | None, limit: float, warn: Callable[[str], None]
) -> SourceChanged:
    if probe is None:
        warn(f"whether the host changed {path.written} meanwhile was not checked: its disk was busy at the start")
        return SourceChanged.NOT_CHECKED
    from hostfork.collect.source import source_changed

    check = source_changed(path.path, pool, probe, path.omit, limit)
    if check.state is SourceChanged.NOT_CHECKED:
        warn(f"whether the host changed {path.written} meanwhile was not checked: {check.reason}")
    elif check.state is SourceChanged.CHANGED:
        more = f" and {len(check.paths) - 1} more" if len(check.paths) > 1 else ""
        warn(f"the host changed {path.written} meanwhile: {check.paths[0] or 'the folder itself'}{more}")
    return check.state


def counts_by_path(changesets: dict[str, Changeset]) -> tuple[tuple[str, Counts], ...]:
    """The numbers of each private path."""
    return tuple((path, changeset.counts()) for path, changeset in changesets.items())


def _fsync(path: str) -> bool:
    """False where the file cannot be opened: its own mode forbids that, or it lies deeper than a path can say."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENAMETOOLONG):
            raise
        return False
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True
