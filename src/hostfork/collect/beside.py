"""The base beside a tree that is compared with it: read as it is, never opened by force."""

from __future__ import annotations

import os
from contextlib import ExitStack

from hostfork.collect.changeset import Change
from hostfork.collect.difference import below, between, deleted, joined
from hostfork.collect.walk import Facts, Place, attribute_fields, attributes, facts, opened_folder, same_content
from hostfork.vocabulary import EntryKind


class BaseFolder:
    """An open folder of the base, or none."""

    def __init__(self, folder: int) -> None:
        self.folder = folder

    def place(self, name: str) -> Place | None:
        if self.folder < 0:
            return None
        place = Place(self.folder, name)
        try:
            place.stat()
        except (FileNotFoundError, PermissionError):
            return None
        return place

    def all(self) -> list[str]:
        return os.listdir(self.folder) if self.folder >= 0 else []

    def __enter__(self) -> BaseFolder:
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder >= 0:
            os.close(self.folder)


def base_folder(base: Place, depth: int) -> BaseFolder:
    """The base's folder; none if this user may not read it (then nothing in it was visible) or it has just gone."""
    stack = ExitStack()
    try:
        folder = stack.enter_context(opened_folder(base, depth))
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        return BaseFolder(-1)
    with stack:
        return BaseFolder(os.dup(folder))


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

    def _gone(self, relative: str, base: Place, depth: int) -> None:
        """A name of the base that is not visible any more, with everything in it."""
        if relative in self._omit:
            return
        try:
            before = facts(base, base.stat())
        except (FileNotFoundError, PermissionError):
            return  # deleted on the host too, or in a folder that only lists its names: not visible to the fork
        self.changes.append(deleted(joined(self._at, relative), before))
        if before.kind is EntryKind.FOLDER:
            self._gone_below(relative, base, depth + 1)

    def _gone_below(self, relative: str, base: Place, depth: int) -> None:
        with base_folder(base, depth) as names:
            for name in names.all():
                self._gone(below(relative, name), Place(names.folder, name), depth)


def _same_file(tree: Place, base: Place, after: Facts, before: Facts) -> tuple[bool, bool]:
    """Whether two files hold the same bytes, and whether the base's could not be read."""
    if after.kind is not EntryKind.FILE or before.kind is not EntryKind.FILE or after.size != before.size:
        return False, False
    try:
        return same_content(tree, base, ours=True), False
    except PermissionError:
        return False, True
