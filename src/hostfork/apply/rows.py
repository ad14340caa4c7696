"""What stands at a name, exactly enough to know it again: one row for each entry, a folder's with all that it holds."""

from __future__ import annotations

import os
from _blake2 import blake2b
from errno import EXDEV
from stat import S_ISDIR, S_ISLNK, S_ISREG

from hostfork.apply.sides import digest_of
from hostfork.collect.walk import Place, attributes, open_file, opened_folder
from hostfork.helper.shapes import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Row(NamedTuple):
    """One entry. `relative`: "" is the top. Never the ctime: a rename moves it. Of folders neither size nor time.

    `content`: a digest of a file's bytes, or a link's target; `extra`: a digest of attributes and ACLs. Both in hex,
    "" where there are none or they cannot be read.
    """

    relative: str
    mode: int
    uid: int
    gid: int
    device: int
    inode: int
    size: int
    mtime_ns: int
    content: str
    extra: str

    def is_at(self, found: os.stat_result | None) -> bool:
        """Whether that is this very entry."""
        return found is not None and (found.st_dev, found.st_ino) == (self.device, self.inode)


Rows = tuple[Row, ...]


class Moved(Exception):
    """Something of the host is not what it was when it was judged. The argument is its absolute path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def survey(place: Place, known: Mapping[str, tuple[str, str]] | None = None) -> Rows:
    """Everything at a place. Raises OSError; EXDEV where something is mounted inside.

    `known`: digests of content and of attributes, by the name of the place and the path below it.
    """
    found = place.stat()
    rows: list[Row] = []
    _add(rows, "", place, found, found.st_dev, {} if known is None else known, place.name)
    return tuple(rows)


def stamps(place: Place) -> tuple[int, int, int, int, int] | None:
    """What a write to the top entry would move, without reading it; None where nothing is there."""
    try:
        found = place.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


def _add(
    rows: list[Row],
    relative: str,
    place: Place,
    found: os.stat_result,
    device: int,
    known: Mapping[str, tuple[str, str]],
    top: str,
) -> None:
    if found.st_dev != device:
        raise OSError(EXDEV, "something is mounted there", relative)
    folder = S_ISDIR(found.st_mode)
    size, mtime = (0, 0) if folder else (found.st_size, found.st_mtime_ns)
    owner = found.st_mode, found.st_uid, found.st_gid
    told = known.get(f"{top}/{relative}" if relative else top) if known else None
    content, extra = told or (_content(place, found), _extra(place))
    rows.append(Row(relative, *owner, found.st_dev, found.st_ino, size, mtime, content, extra))
    if folder:
        with opened_folder(place, ours=found.st_uid == os.geteuid()) as opened:
            for name in sorted(os.listdir(opened), key=os.fsencode):
                inner = Place(opened, name)
                _add(rows, f"{relative}/{name}" if relative else name, inner, inner.stat(), device, known, top)


def _content(place: Place, found: os.stat_result) -> str:
    if S_ISLNK(found.st_mode):
        return place.link_target().hex()
    if not S_ISREG(found.st_mode):
        return f"{found.st_rdev:x}" if found.st_rdev else ""
    try:
        file = open_file(place)
    except PermissionError:
        return ""
    try:
        return digest_of(file).hex()
    finally:
        os.close(file)


def _extra(place: Place) -> str:
    return extra_of(attributes(place))


def extra_of(known: Mapping[str, bytes] | None) -> str:
    """The digest of attributes and ACLs."""
    if not known:
        return ""
    digest = blake2b(digest_size=8)
    for name, value in sorted(known.items()):
        digest.update(b"%d %s %d " % (len(name), os.fsencode(name), len(value)) + value)
    return str(digest.hexdigest())


def rows_from(value: list[list[Any]]) -> Rows:
    """Rows as JSON has them."""
    return tuple(Row(*row) for row in value)
