"""How a fork differs from its base, as values."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hostfork.values import frozen
from hostfork.vocabulary import ChangeClass, ChangeKind, EntryKind


@frozen
class Change:
    """One path that differs between base and final content.

    `path` is absolute, as the command saw it (surrogateescape). `kind` is what is there now (before, if deleted),
    `was` what was there before (None if created). `mode` and `size` are of what is there now, `old_…` of before;
    None where there is none. `fields` names what a metadata change (or a modification) touched:
    mode, owner, xattrs, acl, mtime never. `base_gone`: the base's content cannot be read any more.
    """

    path: str
    change: ChangeKind
    kind: EntryKind
    was: EntryKind | None = None
    size: int | None = None
    old_size: int | None = None
    mode: int | None = None
    old_mode: int | None = None
    target: str | None = None
    """A symlink's target now."""
    fields: tuple[str, ...] = ()
    class_: ChangeClass = ChangeClass.SOURCE
    ignored_by: str | None = None
    """The outermost ignored folder this path lies in, for people's one-line view."""
    active: bool = False
    """The host may run this file by itself (git hooks, .envrc, CI files, …)."""
    base_gone: bool = False


@frozen
class Counts:
    """How many paths changed, by kind of change. The same numbers everywhere."""

    created: int = 0
    modified: int = 0
    deleted: int = 0
    metadata: int = 0
    type: int = 0

    @property
    def total(self) -> int:
        return self.created + self.modified + self.deleted + self.metadata + self.type


@frozen
class Changeset:
    """The exact difference between a fork's base and its final visible content, ordered by path bytes."""

    changes: tuple[Change, ...]

    def below(self, paths: Sequence[str]) -> Changeset:
        """What of it is at one of these paths or below; all of it where none is given. They may lead through links."""
        if not paths:
            return self
        wanted = [os.path.abspath(path) for path in paths]
        wanted += [os.path.realpath(path) for path in wanted]
        return Changeset(
            tuple(c for c in self.changes if any(c.path == path or c.path.startswith(path + "/") for path in wanted))
        )

    def counts(self) -> Counts:
        numbers = dict.fromkeys((kind.value for kind in ChangeKind), 0)
        for change in self.changes:
            numbers[change.change.value] += 1
        return Counts(**numbers)
