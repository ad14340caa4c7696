"""The base beside a tree that is compared with it: read as it is, never opened by force."""

from __future__ import annotations

from hostfork.collect.changeset import Change
from hostfork.collect.difference import below, between, deleted, joined
from hostfork.collect.stack import base_folder
from hostfork.collect.walk import Facts, Place, attribute_fields, attributes, facts, same_content
from hostfork.vocabulary import EntryKind


class BesideBase:
    """A scan that looks at the base's entries themselves. `changes` fills up while it runs."""

    def __init__(self, at: str, omit: tuple[str, ...]) -> None:
        self.changes: list[Change] = []
        self._at = at
        self._omit = frozenset(omit)

    def _compare(self, relative: str, tree: Place, base: Place, after: Facts, before: Facts) -> None:
        """One name that both have."""
        same, unreadable = _same_file(tree, base, after, before)
        fields: tuple[str, ...] = ()
        if after.kind is before.kind:
            fields = attribute_fields(attributes(base), attributes(tree, ours=True))
        change = between(joined(self._at, relative), before, after, same, fields, base_gone=unreadable)
        if change is not None:
            self.changes.append(change)

    def _gone(self, relative: str, base: Place) -> None:
        """A name of the base that is not visible any more, with everything in it."""
        if relative in self._omit:
            return
        try:
            before = facts(base, base.stat())
        except (FileNotFoundError, PermissionError):
            return  # deleted on the host too, or in a folder that only lists its names: not visible to the fork
        self.changes.append(deleted(joined(self._at, relative), before))
        if before.kind is EntryKind.FOLDER:
            self._gone_below(relative, base)

    def _gone_below(self, relative: str, base: Place) -> None:
        with base_folder(base) as names:
            for place in names.all():
                self._gone(below(relative, place.name), place)


def _same_file(tree: Place, base: Place, after: Facts, before: Facts) -> tuple[bool, bool]:
    """Whether two files hold the same bytes, and whether the base's could not be read."""
    if after.kind is not EntryKind.FILE or before.kind is not EntryKind.FILE or after.size != before.size:
        return False, False
    try:
        return same_content(tree, base, ours=True), False
    except PermissionError:
        return False, True
