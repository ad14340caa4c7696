"""The three sides of one private path: what the fork started from, what the host has now, what the fork has now.

Each is read by folder descriptors, never through a symlink. What is found is good until the next path is asked for.
"""

from __future__ import annotations

import os
from _blake2 import blake2b
from contextlib import ExitStack

from hostfork.collect.changeset import Change
from hostfork.collect.difference import relative_to
from hostfork.collect.manifest import StatManifest
from hostfork.collect.reader import TreeReader, read_small
from hostfork.collect.stack import Base
from hostfork.collect.walk import Facts, Place, attributes, facts, open_file
from hostfork.helper.shapes import NamedTuple
from hostfork.vocabulary import EntryKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostfork.apply.steps import Value

_CHUNK = 1 << 18
_TEXT = 16 << 20
"""Bytes of a file whose lines are compared or merged."""
_SNIFFED = 8000
_ACL = ("system.posix_acl_access", "system.posix_acl_default")

Identity = tuple[int, int, int, int] | None
"""Device, inode, size and mtime of what an earlier apply of the fork left on the host; None where it left nothing."""


def some_of(attributes: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    """Of extended attributes those that are `xattrs`, or `acl`."""
    return {key: value for key, value in attributes.items() if (key in _ACL) == (name == "acl")}


class Source(NamedTuple):
    """One private path of a fork, as an apply needs it.

    `base`: where what it started from is read; with a `manifest`, it is the host's own folder, and that tells what of
    it still is what it was. `applied`: what an earlier apply left there, by relative path of the target.
    """

    at: str
    folder: bool
    base: Base
    manifest: StatManifest | None
    kept: bool
    delta: str
    omit: tuple[str, ...]
    changes: tuple[Change, ...]
    applied: Mapping[str, Identity]

    @property
    def root(self) -> str:
        """The folder of the host in which names are replaced: the private folder, or the one around a private file."""
        return self.at if self.folder else os.path.dirname(self.at)

    def name(self, path: str) -> str:
        """A path of the host relative to that folder."""
        return relative_to(self.at, path) if self.folder else os.path.basename(self.at)


class Found:
    """An entry that one side has; more of it is read when it is asked for."""

    def __init__(self, place: Place, stat: os.stat_result, ours: bool = False) -> None:
        self.place = place
        self.stat = stat
        self.kind = EntryKind.of(stat.st_mode)
        self._facts: Facts | None = None
        self._ours = ours
        self._digest: bytes | None = None
        self._attributes: dict[str, bytes] | None = None

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            self._facts = facts(self.place, self.stat)
        return self._facts

    def digest(self) -> bytes:
        """Of a file's content. Raises OSError."""
        if self._digest is None:
            file = open_file(self.place, self._ours)
            try:
                self._digest = digest_of(file)
            finally:
                os.close(file)
        return self._digest

    def attributes(self) -> dict[str, bytes]:
        """Extended attributes and ACLs, as far as this user may read them."""
        if self._attributes is None:
            self._attributes = attributes(self.place, self._ours) or {}
        return self._attributes

    def text(self) -> bytes | None:
        """The content of a file of text, else None."""
        if self.kind is not EntryKind.FILE:
            return None
        content = read_small(self.place, self._ours, _TEXT)
        return None if content is None or b"\0" in content[:_SNIFFED] else content

    def same_substance(self, other: Found) -> bool:
        """Whether both are of one kind, and hold the same. Folders of one kind always do."""
        mine, others = self.facts, other.facts
        if mine.kind is not others.kind or mine.target != others.target or mine.rdev != others.rdev:
            return False
        return mine.kind is not EntryKind.FILE or (mine.size == others.size and self.digest() == other.digest())

    def field(self, name: str) -> Value:
        """One of `mode`, `owner`, `xattrs`, `acl`."""
        if name == "mode":
            return self.facts.mode
        if name == "owner":
            return self.facts.uid, self.facts.gid
        return self.some_attributes(name)

    def some_attributes(self, name: str) -> dict[str, bytes]:
        """Those that are `xattrs`, or `acl`."""
        return some_of(self.attributes(), name)

    def identity(self) -> Identity:
        """Device, inode, size and mtime."""
        return self.stat.st_dev, self.stat.st_ino, self.stat.st_size, self.stat.st_mtime_ns


def digest_of(file: int) -> bytes:
    """The digest of an open file's content."""
    digest = blake2b(digest_size=16)
    while chunk := os.read(file, _CHUNK):
        digest.update(chunk)
    return bytes(digest.digest())


class Sides:
    """The three sides, while this lasts."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stack = ExitStack()
        self._host = TreeReader(source.root)
        self._base = TreeReader(source.base) if source.kept else None
        self._fork = TreeReader(source.delta, ours=True)

    def __enter__(self) -> Sides:
        for reader in (self._host, self._base, self._fork):
            if reader is not None:
                self._stack.enter_context(reader)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def host(self, name: str) -> Found | None:
        """What the host has at a path relative to its folder."""
        return _found(self._host.place(name))

    def fork(self, path: str) -> Found | None:
        """What the fork has at an absolute path."""
        return _found(self._fork.place(relative_to(self._source.at, path)), ours=True)

    def base(self, path: str) -> Found | None:
        """What the fork started from, where that is kept."""
        return None if self._base is None else _found(self._base.place(relative_to(self._source.at, path)))

    def unwritten(self, change: Change, host: Found) -> bool | None:
        """Whether the host's entry still is what the fork started from, by its stat; None where that is not known."""
        manifest = self._source.manifest
        if self._source.kept:
            return None
        if change.base_gone or manifest is None:
            return False
        known = manifest.find(os.fsencode(relative_to(self._source.at, change.path)))
        if known is None:
            return False
        if host.kind is EntryKind.FOLDER and known.kind is EntryKind.FOLDER:
            # what is made or removed in it moves its times
            return (known.mode, known.uid, known.gid) == (host.stat.st_mode, host.stat.st_uid, host.stat.st_gid)
        return known.is_source(host.stat)

    def known_before(self, change: Change) -> bool:
        """Whether anything is known of what was there."""
        if self._source.kept:
            return True
        manifest = self._source.manifest
        path = os.fsencode(relative_to(self._source.at, change.path))
        return not change.base_gone and manifest is not None and manifest.find(path) is not None


def _found(place: Place | None, ours: bool = False) -> Found | None:
    if place is None:
        return None
    try:
        return Found(place, place.stat(), ours)
    except FileNotFoundError:
        return None
