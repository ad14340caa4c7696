"""The entries that are to come to the host, made in a folder that nobody else uses, with all that belongs to them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress

from hostfork.collect.copying import TreeCopy
from hostfork.collect.final import Entry
from hostfork.collect.walk import FOLDER, Place, opened_folder

_DEFAULT_ACL = ("system.posix_acl_default", "system.posix_acl_access")


class Stager(TreeCopy):
    """Makes entries below the folder `root`, in the order of their names, component by component.

    `left_out`: the relative paths of those that could not get all of their metadata.
    """

    def __init__(self, root: int) -> None:
        super().__init__(root, special=True)
        self._given: dict[str, dict[str, bytes]] = {}
        self._content: dict[str, bytes] = {}

    def make(self, entry: Entry, attributes: dict[str, bytes], content: bytes | None = None) -> None:
        """One entry with these attributes; with `content` a file that holds that, whatever its place has."""
        self._given[entry.relative] = attributes
        if content is not None:
            self._content[entry.relative] = content
        self.add(entry)

    def _metadata(self, place: Place, entry: Entry, found: dict[str, bytes]) -> None:
        super()._metadata(place, entry, self._given.pop(entry.relative, found))

    def _file(self, entry: Entry, place: Place) -> bool:
        content = self._content.pop(entry.relative, None)
        if content is None:
            return super()._file(entry, place)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(place.name, flags, 0o600, dir_fd=place.folder), "wb") as file:
            file.write(content)
        return True


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
    for name in _DEFAULT_ACL:
        try:
            os.removexattr(opened, name)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                os.close(opened)
                raise
    return opened
