"""The entries that are to come to the host, made in a folder that nobody else uses, with all that belongs to them."""

from __future__ import annotations

import os
from _blake2 import blake2b
from collections.abc import Iterator
from contextlib import suppress

from hostfork.collect.copying import TreeCopy
from hostfork.collect.export import drop_inherited
from hostfork.collect.final import Entry
from hostfork.collect.walk import FOLDER, Place, open_file, opened_folder

_SMALL = 1 << 16
"""Bytes. Up to here a file is read and written: that is quicker than the calls that share or copy blocks."""


class Stager(TreeCopy):
    """Makes entries below the folder `root`, in the order of their names, component by component.

    `left_out`: the relative paths of those that could not get all of their metadata.
    """

    def __init__(self, root: int) -> None:
        super().__init__(root, special=True)
        self.known: dict[str, tuple[str, str]] = {}
        """Digests of content and attributes of small files without any of those, by relative path."""
        self._given: dict[str, dict[str, bytes]] = {}
        self._content: dict[str, bytes] = {}

    def make(self, entry: Entry, attributes: dict[str, bytes], content: bytes | None = None) -> None:
        """One entry with these attributes; with `content` a file that holds that, whatever its place has."""
        self._given[entry.relative] = attributes
        if content is not None:
            self._content[entry.relative] = content
        self.add(entry)

    def _attributes(self, entry: Entry) -> dict[str, bytes]:
        return self._given.pop(entry.relative)

    def _file(self, entry: Entry, place: Place) -> bool:
        content = self._content.pop(entry.relative, None)
        if content is None and entry.stat.st_size <= _SMALL:
            content = _read(entry)
        if content is None:
            return super()._file(entry, place)
        if not self._given[entry.relative]:
            self.known[entry.relative] = str(blake2b(content, digest_size=16).hexdigest()), ""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(place.name, flags, 0o600, dir_fd=place.folder)
        try:
            while content:
                content = content[os.write(file, content) :]
        finally:
            os.close(file)
        return True


def _read(entry: Entry) -> bytes | None:
    """The content of a small file; None where it is larger by now."""
    file = open_file(entry.place, ours=entry.changed)
    try:
        content = os.read(file, _SMALL + 1)
        return content if len(content) <= _SMALL and not os.read(file, 1) else None
    finally:
        os.close(file)


def copy_slots(names: list[str], source: int, target: int) -> tuple[str, ...]:
    """Copy what a folder holds under these names into another one; the paths of what lost some of its metadata.

    What are names of one file stay that.
    """
    copy = TreeCopy(target, special=True)
    try:
        for name in names:
            for entry in _entries(name, Place(source, name)):
                copy.add(entry)
        copy.finish()
    finally:
        copy.abandon()
    return tuple(copy.left_out)


def _entries(relative: str, place: Place) -> Iterator[Entry]:
    found = place.stat()
    yield Entry(relative, place, found, True, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns)
    if found.st_mode & 0o170000 == 0o040000:
        with opened_folder(place, ours=True) as opened:
            for name in sorted(os.listdir(opened), key=os.fsencode):
                yield from _entries(f"{relative}/{name}", Place(opened, name))


def make_stage(path: str) -> int:
    """Make the folder, mode 0700 and without what it would inherit; a descriptor. Raises OSError."""
    with suppress(FileExistsError):  # a recovery of ours comes back to it
        os.mkdir(path, 0o700)
    opened = os.open(path, FOLDER)
    try:
        drop_inherited(opened)
    except BaseException:
        os.close(opened)
        raise
    return opened
