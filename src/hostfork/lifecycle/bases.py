"""What the changed paths of a kept `live` fork were in the source, so that no patch is ever made against a later file.

A live fork's base is the host's folder itself. While the changes are collected, each changed path's source is looked
at once more: one that the host wrote since the fork's start is no base any more, and of the others the identity is
stored, in the same form as the base of a copy.
"""

from __future__ import annotations

import os

from hostfork.collect.changeset import Changeset
from hostfork.lifecycle import changes
from hostfork.lifecycle.prepare import base_file
from hostfork.lifecycle.probes import Probes
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.store import ForkFolder, as_fork_error
from hostfork.storage.contract import Layer
from hostfork.values import replace
from hostfork.vocabulary import Access, EntryKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.collect.stamp import Probe
    from hostfork.collect.walk import Place


def remember(fork: ForkFolder, record: Record, found: dict[str, Changeset], probes: Probes) -> dict[str, Changeset]:
    """Store the identities; gives the changesets with `base_gone` where the host was quicker."""
    known = dict(found)
    for path in record.paths:
        if path.access is Access.PRIVATE and path.guarantee is not None and path.guarantee.depends_on_source:
            known[path.path] = _of_path(fork, record, path, found[path.path], probes.of(path.path))
    return known


def _of_path(
    fork: ForkFolder, record: Record, path: PathRecord, changeset: Changeset, probe: Probe | None
) -> Changeset:
    from hostfork.collect.depth import AnyDepth
    from hostfork.collect.manifest import StatManifestWriter
    from hostfork.collect.reader import TreeReader

    known = []
    content = changes.content_of(record, path)
    lowers = content.lowers if isinstance(content, Layer) else path.path
    file = base_file(fork, path)
    with (
        as_fork_error("what a private path held at first cannot be written down", file),
        AnyDepth(),
        TreeReader(lowers) as source,
        StatManifestWriter(file) as base,
    ):
        for change in changeset.changes:
            relative = change.path[len(path.path) + 1 :]
            found = None if change.was is None else _unwritten(source.place(relative), probe)
            if found is not None:
                base.witness(os.fsencode(relative), found, found)
            gone = change.was in (EntryKind.FILE, EntryKind.SYMLINK) and found is None
            known.append(replace(change, base_gone=True) if gone else change)
    return Changeset(tuple(known))


def _unwritten(place: Place | None, probe: Probe | None) -> os.stat_result | None:
    """What a change's source is, if it is there and still what the fork started from. In a layer nothing changes."""
    try:
        found = None if place is None else place.stat()
    except OSError:
        return None
    if place is not None and place.under:
        return found
    return None if found is None or (probe is not None and found.st_ctime_ns >= probe.ctime_ns) else found
