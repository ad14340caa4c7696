"""Makes a fork whole again that `run` reduced to its changes, so that it can be entered."""

from __future__ import annotations

import os
import stat

from hostfork.collect.changeset import Changeset
from hostfork.collect.manifest import StatManifest, StatManifestEdit
from hostfork.errors import Code, CollectError, ForkError
from hostfork.lifecycle import changes
from hostfork.lifecycle.export import whole_tree
from hostfork.lifecycle.prepare import base_file
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.store import ForkFolder, as_fork_error
from hostfork.storage.choose import storage_of
from hostfork.storage.replicated import Replicated


def refill(folder: ForkFolder, record: Record, path: PathRecord) -> None:
    """Make one private path whole: its changes, and for the rest the base, each file verified to be still that.

    Raises ForkError `base.gone` where it is not, StorageError; then the fork is as it was.
    """
    storage = storage_of(path.storage)
    assert isinstance(storage, Replicated)  # nothing else is ever reduced
    part = changes.part_of(_stored(folder, record), path)

    def write(tree: str) -> None:
        write_whole(folder, record, path, tree)
        if path.folder:
            _recopied(folder, path, part, tree)

    try:
        storage.refill(path.key, record.pool, write)
    except CollectError as error:
        if error.code is not Code.COLLECT_BASE_GONE:
            raise
        raise ForkError(
            Code.COLLECT_BASE_GONE, f"{record.name} holds only its changes, and {path.written} is not what it was",
            path=path.path, details=(error.message, *error.details),
            hint=f"what it changed stays: hostfork diff {record.name} · hostfork export {record.name} DEST "
                 "--changes-only",
        ) from error  # fmt: skip


def write_whole(folder: ForkFolder, record: Record, path: PathRecord, tree: str) -> None:
    """Make a tree of what one private path of a fork holds that was reduced, as it is to be mounted.

    Raises CollectError `base.gone`, ForkError.
    """
    part = changes.part_of(_stored(folder, record), path)
    whole_tree(folder, record, path, part, tree)
    if path.folder:
        _stand_ins(path, tree)


def _stored(folder: ForkFolder, record: Record) -> Changeset:
    stored = changes.stored_changes(folder)
    if stored is None:
        raise ForkError(
            Code.FORK_CORRUPT, f"{record.name} was reduced to its changes and the list of them is gone",
            path=folder.file(changes.CHANGES_FILE), hint=f"hostfork export {record.name} DEST --changes-only",
        )  # fmt: skip
    return stored


def _stand_ins(path: PathRecord, tree: str) -> None:
    """What is mounted over something in the tree needs something there, as the copy had it."""
    for name in sorted(path.omit):
        place = os.path.join(tree, name)
        if os.path.lexists(place) or not os.path.isdir(os.path.dirname(place)):
            continue
        try:
            found = os.lstat(os.path.join(path.path, name))
        except OSError:
            continue  # gone from the host: nothing will be mounted there
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(place, stat.S_IMODE(found.st_mode) | stat.S_IRWXU)
        else:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _recopied(folder: ForkFolder, path: PathRecord, part: Changeset, tree: str) -> None:
    """What is as in the base is known by its new stat from now on: later changes of the host make no difference."""
    file = base_file(folder, path)
    manifest = StatManifest.load(file)
    edit = StatManifestEdit(manifest)
    changed = {os.fsencode(change.path)[len(os.fsencode(path.path)) + 1 :] for change in part.changes}
    omit = frozenset(map(os.fsencode, path.omit))
    waiting = [""]
    with as_fork_error("what a private path held at first cannot be written down", file):
        if manifest.root >= 0 and b"" not in changed:
            edit.recopied(manifest.root, os.lstat(tree))
        while waiting:
            above = waiting.pop()
            for name, index in manifest.names(above).items():
                relative = f"{above}/{name}" if above else name
                raw = os.fsencode(relative)
                if raw in omit:
                    continue
                entry = manifest.entry(index, raw)
                if stat.S_ISDIR(entry.copy_mode):
                    waiting.append(relative)
                if raw not in changed and os.path.lexists(os.path.join(tree, relative)):
                    edit.recopied(index, os.lstat(os.path.join(tree, relative)))
        edit.save(file)
