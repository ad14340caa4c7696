"""The moments between two writes of a checkpoint or a restore, by name: whatever ends the process at one of them leaves
the old state, or what `recover` completes. Tests end it at each."""

from __future__ import annotations

from enum import Enum, unique


@unique
class Boundary(Enum):
    """Where a process may die. Up to `LISTED` nobody sees the new checkpoint; what it wrote is removed by `gc`."""

    FROZEN = "frozen"
    SNAPSHOT_TAKEN = "snapshot-taken"
    OBJECT_STAGED = "object-staged"
    OBJECTS_SYNCED = "objects-synced"
    OBJECT_LINKED = "object-linked"
    TREE_WRITTEN = "tree-written"
    TREE_PUBLISHED = "tree-published"
    LISTED = "listed"
    RESTORE_NOTED = "restore-noted"
    ENTRY_REMOVED = "entry-removed"
    ENTRY_WRITTEN = "entry-written"
    TREE_SWAPPED = "tree-swapped"
    TREE_RESTORED = "tree-restored"
    CHANGES_STORED = "changes-stored"
    RECORD_SAVED = "record-saved"


def passed(_boundary: Boundary) -> None:
    """That moment is here. Nothing happens."""
