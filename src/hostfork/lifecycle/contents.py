"""The id of a fork's changes: what changed where and how, and the bytes of it. Equal changes have equal ids."""

from __future__ import annotations

import os

from hostfork.collect.changeset import Change
from hostfork.collect.digest import Digester
from hostfork.collect.reader import TreeReader
from hostfork.collect.walk import attributes, failure, open_file
from hostfork.helper.lean import dumps
from hostfork.lifecycle import changes
from hostfork.lifecycle.record import Record
from hostfork.lifecycle.store import ForkFolder
from hostfork.vocabulary import ChangeKind, EntryKind


def changes_id(folder: ForkFolder, record: Record) -> str:
    """BLAKE3 over every change: its path, and mode, owner, attributes and bytes of what is there, all read now.

    Raises CollectError, ForkError.
    """
    lines = [dumps([path, entry]) for path, entry in digests(folder, record).items()]
    return Digester(threads=False).text("\n".join(lines).encode("ascii")).hex()


def digests(folder: ForkFolder, record: Record, only: frozenset[str] | None = None) -> dict[str, list[object] | None]:
    """What is there now at every changed path, or at `only` these: equal where all of it is equal; None where deleted.

    Raises CollectError, ForkError.
    """
    stored = changes.stored_changes(folder)
    found = changes.collect(folder, record, lambda _path: None) if stored is None else changes.parts_of(stored, record)
    digester, entries = Digester(threads=True), {}
    for path in changes.private_paths(record):
        some = [change for change in found[path.path].changes if only is None or change.path in only]
        if some:
            with TreeReader(changes.delta_of(changes.content_of(record, path)), ours=True) as reader:
                for change in some:
                    entries[change.path] = _entry(change, change.path[len(path.path) + 1 :], reader, digester)
    return entries


def _entry(change: Change, relative: str, reader: TreeReader, digester: Digester) -> list[object] | None:
    if change.change is ChangeKind.DELETED:
        return None
    try:
        place = reader.place(relative)
        if place is None:
            raise FileNotFoundError(2, os.strerror(2))
        found, digest = place.stat(), ""
        if change.kind is EntryKind.FILE:
            file = open_file(place, ours=True)
            try:
                digest = digester.content(file, found.st_size).hex()
            finally:
                os.close(file)
        extended = attributes(place, ours=True) or {}
    except OSError as error:
        raise failure("a change of the fork cannot be read", change.path, error) from error
    more = sorted((name, content.hex()) for name, content in extended.items())
    return [found.st_mode, found.st_uid, found.st_gid, found.st_rdev, digest, change.target, more]
