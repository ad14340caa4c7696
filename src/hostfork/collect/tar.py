"""A deterministic tar stream: PAX format, raw name bytes, nanoseconds, extended attributes, hard links."""

from __future__ import annotations

import os
import stat
import tarfile
from typing import BinaryIO, cast

from hostfork.collect.final import Entry
from hostfork.collect.walk import attributes, open_file

_TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}
_ON_REQUEST = (tarfile.CHRTYPE, tarfile.BLKTYPE)
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID


class TarWriter:
    """Writes entries in the order given. `special` and `left_out` as in an export; a tar stream holds no sockets."""

    def __init__(self, file: BinaryIO, special: bool) -> None:
        self.left_out: list[str] = []
        self._special = special
        self._links: dict[tuple[int, int], str] = {}
        self._tar = tarfile.TarFile(
            fileobj=cast(BinaryIO, _Sink(file)),
            mode="w",
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        )

    def add(self, entry: Entry, name: str) -> None:
        """Write one entry under that name."""
        kind = _TYPES.get(stat.S_IFMT(entry.mode))
        if kind is None or (kind in _ON_REQUEST and not self._special):
            self.left_out.append(name)
            return
        info = self._header(entry, name, kind)
        first = self._links.get((entry.stat.st_dev, entry.stat.st_ino))
        if first is not None and kind != tarfile.DIRTYPE:
            info.type, info.linkname = tarfile.LNKTYPE, first
        elif kind == tarfile.REGTYPE:
            self._file(entry, name, info)
            return
        self._tar.addfile(info)

    def finish(self) -> None:
        """Write the end of the archive."""
        self._tar.close()

    def _header(self, entry: Entry, name: str, kind: bytes) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.mode = kind, stat.S_IMODE(entry.mode)
        info.uid, info.gid = entry.uid, entry.gid
        seconds, rest = divmod(entry.mtime_ns, 1_000_000_000)
        info.mtime = seconds
        headers = {"mtime": f"{seconds}.{rest:09d}"} if rest else {}
        if kind == tarfile.SYMTYPE:
            info.linkname = os.fsdecode(entry.place.link_target())
        if kind in _ON_REQUEST:
            info.devmajor, info.devminor = os.major(entry.stat.st_rdev), os.minor(entry.stat.st_rdev)
        info.pax_headers = headers | self._attributes(entry, name)
        if kind != tarfile.DIRTYPE and info.mode & _SPECIAL_BITS and not self._special:
            info.mode &= ~_SPECIAL_BITS
            self.left_out.append(name)
        return info

    def _attributes(self, entry: Entry, name: str) -> dict[str, str]:
        found = attributes(entry.place, entry.changed) or {}
        if "security.capability" in found and not self._special:
            del found["security.capability"]
            self.left_out.append(name)
        names = sorted(found)
        return {f"SCHILY.xattr.{key}": found[key].decode("utf-8", "surrogateescape") for key in names}

    def _file(self, entry: Entry, name: str, info: tarfile.TarInfo) -> None:
        try:
            source = open_file(entry.place, ours=entry.changed)
        except PermissionError:
            self.left_out.append(name)  # the base's, and the fork could not read it either
            return
        with open(source, "rb") as content:
            info.size = os.fstat(source).st_size
            self._tar.addfile(info, content)
        if entry.stat.st_nlink > 1:
            self._links[entry.stat.st_dev, entry.stat.st_ino] = name


class _Sink:
    """A stream that need not be able to seek; a raw pipe may take less than it is given."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._place = 0

    def write(self, content: bytes) -> int:
        rest = memoryview(content)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._place += len(content)
        return len(content)

    def tell(self) -> int:
        return self._place
