"""Everything that a tree holds, read byte by byte: the reference that the fast ways of finding changes must equal."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hostfork.collect.changeset import Change
from hostfork.collect.difference import below, between, created, deleted, joined
from hostfork.collect.digest import Digester
from hostfork.collect.ignores import IGNORE_FILES
from hostfork.collect.reader import read_small
from hostfork.collect.walk import Facts, Place, attribute_fields, attributes, facts, open_file, opened_folder
from hostfork.values import frozen
from hostfork.vocabulary import EntryKind


@frozen
class FullEntry:
    """One entry. `digest`: BLAKE3 of a file's bytes, None for other kinds and for files this user cannot read.

    Entries with the same `inode` (device and number) are hard links of one file.
    """

    facts: Facts
    digest: bytes | None
    attributes: dict[str, bytes] | None
    inode: tuple[int, int]


@frozen
class FullManifest:
    """What a tree holds by relative path ("" is the root). No times."""

    entries: dict[str, FullEntry]
    ignore_files: dict[str, bytes]
    """The content of the project's ignore files, for the classes of changes."""

    def hard_links(self) -> tuple[tuple[str, ...], ...]:
        """The groups of paths that are one file."""
        groups: dict[tuple[int, int], list[str]] = {}
        for path, entry in self.entries.items():
            if entry.facts.kind is not EntryKind.FOLDER:
                groups.setdefault(entry.inode, []).append(path)
        return tuple(tuple(sorted(paths)) for paths in groups.values() if len(paths) > 1)

    def read(self, relative: str) -> bytes | None:
        """The content of an ignore file."""
        return self.ignore_files.get(relative)

    def exists(self, relative: str) -> bool:
        return relative in self.entries


class FullScan:
    """One walk over a tree. `ours`: a private tree, where the modes that the fork set are no obstacle."""

    def __init__(self, omit: tuple[str, ...], ours: bool) -> None:
        self._digester = Digester(threads=False)
        self._omit = frozenset(omit)
        self._ours = ours
        self._digests: dict[tuple[int, int], bytes] = {}
        self.entries: dict[str, FullEntry] = {}
        self.ignore_files: dict[str, bytes] = {}

    def visit(self, relative: str, place: Place) -> None:
        """Read one entry and everything below it."""
        found = place.stat()
        inode = (found.st_dev, found.st_ino)
        known = facts(place, found)
        digest = self._digest(place, inode) if known.kind is EntryKind.FILE else None
        self.entries[relative] = FullEntry(known, digest, attributes(place, self._ours), inode)
        if known.kind is EntryKind.FOLDER:
            with opened_folder(place, self._ours) as folder:
                for name in os.listdir(folder):
                    inner = below(relative, name)
                    if inner not in self._omit:
                        self.visit(inner, Place(folder, name))
        elif known.kind is EntryKind.FILE and relative.endswith(IGNORE_FILES):
            content = read_small(place, self._ours)
            if content is not None:
                self.ignore_files[relative] = content

    def _digest(self, place: Place, inode: tuple[int, int]) -> bytes | None:
        if inode not in self._digests:
            try:
                file = open_file(place, self._ours)
            except PermissionError:
                return None
            try:
                self._digests[inode] = self._digester.content(file, os.fstat(file).st_size)
            finally:
                os.close(file)
        return self._digests[inode]


def differences(before: FullManifest, after: FullManifest, at: str) -> Iterator[Change]:
    """Every difference between two manifests, in no particular order."""
    for relative in before.entries.keys() | after.entries.keys():
        path = joined(at, relative)
        old, new = before.entries.get(relative), after.entries.get(relative)
        if old is None and new is not None:
            yield created(path, new.facts)
        elif new is None and old is not None:
            yield deleted(path, old.facts)
        elif old is not None and new is not None:
            fields = attribute_fields(old.attributes, new.attributes)
            change = between(path, old.facts, new.facts, old.digest == new.digest, fields)
            if change is not None:
                yield change
