"""The stored stat manifest of a base.

A `StatManifest` is made while a tree is copied: for each entry the identity of the source and of the copy, so that
afterwards one stat walk finds what was touched, without reading a byte of what was not.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from types import TracebackType

from hostfork.errors import Code, CollectError
from hostfork.helper.shapes import NamedTuple
from hostfork.vocabulary import EntryKind

_MAGIC = 0x31_74_61_74_73_66_68_02
"""Also tells the byte order: a manifest is read on the machine that wrote it."""

_COLUMNS = (
    ("dev", "H"),
    ("kind_mode", "I"),
    ("uid", "I"),
    ("gid", "I"),
    ("nlink", "I"),
    ("ino", "Q"),
    ("size", "q"),
    ("mtime", "q"),
    ("ctime", "q"),
    ("copy_ino", "Q"),
    ("copy_size", "q"),
    ("copy_mtime", "q"),
    ("copy_ctime", "q"),
    ("copy_mode", "I"),
    ("copy_uid", "I"),
    ("copy_gid", "I"),
)

_TICK = 10_000_000
"""Nanoseconds. Kernels before 6.13 stamp files with the last timer tick, 100 Hz at the coarsest."""


class StatEntry(NamedTuple):
    """One entry of a copied base: the source when it was taken, and the finished copy. Modes are whole `st_mode`s."""

    relative: bytes
    dev: int
    mode: int
    uid: int
    gid: int
    nlink: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int
    copy_ino: int
    copy_size: int
    copy_mtime_ns: int
    copy_ctime_ns: int
    copy_mode: int
    copy_uid: int
    copy_gid: int

    @property
    def kind(self) -> EntryKind:
        return EntryKind.of(self.mode)

    def is_source(self, found: os.stat_result) -> bool:
        """Whether the source is still what was copied: device, inode, size, mode, mtime and ctime are the same."""
        return (found.st_dev, found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns, found.st_ctime_ns) == (
            self.dev,
            self.ino,
            self.size,
            self.mode,
            self.mtime_ns,
            self.ctime_ns,
        )

    def is_copy(self, found: os.stat_result) -> bool:
        """Whether the copy's stat is the one it had when it was finished."""
        return (found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns, found.st_ctime_ns) == (
            self.copy_ino,
            self.copy_size,
            self.copy_mode,
            self.copy_mtime_ns,
            self.copy_ctime_ns,
        )


class StatManifestWriter:
    """Collects what a copy saw, and writes it once, when the context ends without an error.

    `witness` is called for each entry in any order (b"" is the root). The file appears whole or not at all.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._columns = [array(code) for _, code in _COLUMNS]
        self._append = [column.append for column in self._columns]
        self._devices: dict[int, int] = {}
        self._names: list[bytes] = []
        self._folders: dict[bytes, list[int]] = {}
        self._root = -1

    def witness(self, relative: bytes, source: os.stat_result, copy: os.stat_result) -> None:
        """Note one entry: its path below the root, the source's stat, the finished copy's stat."""
        folder, _, name = relative.rpartition(b"/")
        index = len(self._names)
        if relative:
            self._folders.setdefault(folder, []).append(index)
        else:
            self._root = index
        self._names.append(name)
        device = self._devices.setdefault(source.st_dev, len(self._devices))
        for append, value in zip(self._append, _row(device, source, copy), strict=True):
            append(value)

    def __enter__(self) -> StatManifestWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._write()

    def _write(self) -> None:
        order = array("I", (index for indexes in self._folders.values() for index in indexes))
        sizes = array("I", map(len, self._folders.values()))
        names, folders = b"\0".join(self._names), b"\0".join(self._folders)
        _write(self._path, self._root, array("Q", self._devices), self._columns, order, sizes, names, folders)


def _row(device: int, source: os.stat_result, copy: os.stat_result) -> tuple[int, ...]:
    """The values of one entry, in the order of the columns."""
    taken = (device, source.st_mode, source.st_uid, source.st_gid, source.st_nlink)
    identity = (source.st_ino, source.st_size, source.st_mtime_ns, source.st_ctime_ns)
    made = (copy.st_ino, copy.st_size, copy.st_mtime_ns, copy.st_ctime_ns, copy.st_mode, copy.st_uid, copy.st_gid)
    return taken + identity + made


def _write(
    path: str,
    root: int,
    devices: array[int],
    columns: Iterable[array[int]],
    order: array[int],
    sizes: array[int],
    names: bytes,
    folders: bytes,
) -> None:
    import time

    columns = tuple(columns)
    numbers = (len(columns[0]), root, len(order), len(sizes), len(devices), len(names), len(folders))
    header = array("q", (_MAGIC, time.time_ns(), *numbers))
    parts: tuple[array[int] | bytes, ...] = (header, devices, *columns, order, sizes, names, folders)
    temporary = path + ".new"
    with open(temporary, "wb") as file:
        for part in parts:
            file.write(part)
    os.rename(temporary, path)


class StatManifest:
    """What `StatManifestWriter` wrote. Columns are arrays and names stay unsorted, so that loading costs a read."""

    def __init__(self, columns: dict[str, array[int]], names: list[str], root: int) -> None:
        self._columns = columns
        self._names = names
        self._root = root
        self._order = array("I")
        self._folders: dict[str, tuple[int, int]] = {}
        self._devices = array("Q")
        self._open_until = 0
        self._last: tuple[str | None, dict[str, int]] = (None, {})

    @classmethod
    def load(cls, path: str) -> StatManifest:
        """Read a manifest. Raises CollectError `collect.failed` if it is missing or not whole."""
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise CollectError(
                Code.COLLECT_FAILED,
                f"the manifest {path} cannot be read",
                step="manifest",
                path=path,
                errno=error.errno,
            ) from error
        try:
            return cls._parse(memoryview(data))
        except (ValueError, IndexError) as error:
            raise CollectError(
                Code.COLLECT_FAILED, f"the manifest {path} is damaged", step="manifest", path=path
            ) from error

    @classmethod
    def _parse(cls, data: memoryview) -> StatManifest:
        place = 0

        def take(code: str, count: int) -> array[int]:
            nonlocal place
            column = array(code)
            size = column.itemsize * count
            if count < 0 or place + size > len(data):
                raise ValueError("ends too early")
            column.frombytes(data[place : place + size])
            place += size
            return column

        magic, closed, count, root, named, folder_count, device_count, names_size, folders_size = take("q", 9)
        if magic != _MAGIC or not -1 <= root < count:
            raise ValueError("not a manifest")
        devices = take("Q", device_count)
        columns = {name: take(code, count) for name, code in _COLUMNS}
        order, sizes = take("I", named), take("I", folder_count)
        if place + names_size + folders_size != len(data):
            raise ValueError("wrong size")
        names = os.fsdecode(bytes(data[place : place + names_size])).split("\0") if count else []
        folders = os.fsdecode(bytes(data[place + names_size :])).split("\0") if folder_count else []
        if len(names) != count or len(folders) != folder_count or sum(sizes) != len(order):
            raise ValueError("names and entries do not match")
        manifest = cls(columns, names, root)
        manifest._order, manifest._devices, manifest._open_until = order, devices, closed - _TICK
        start = 0
        for folder, size in zip(folders, sizes, strict=True):
            manifest._folders[folder] = (start, start + size)
            start += size
        return manifest

    def __len__(self) -> int:
        return len(self._names)

    @property
    def root(self) -> int:
        """The index of the root's entry, -1 if the copy never saw one."""
        return self._root

    def names(self, folder: str) -> dict[str, int]:
        """The names in one folder (relative path, "" is the root) with their indexes. Empty for an unknown folder."""
        start, end = self._folders.get(folder, (0, 0))
        order = self._order[start:end]
        return dict(zip(map(self._names.__getitem__, order), order, strict=True))

    def signature(self) -> tuple[array[int], array[int], array[int], array[int], array[int]]:
        """Columns of the copy: ctime, mtime, inode, size, mode.

        An entry whose ctime lies in the last tick before the manifest was written has the ctime -1: the kernel may
        give a later write the same stamp, so its stat proves nothing.
        """
        columns = self._columns
        ctime = columns["copy_ctime"]
        if len(ctime) and max(ctime) >= self._open_until:
            ctime = array("q", (-1 if value >= self._open_until else value for value in ctime))
        return ctime, columns["copy_mtime"], columns["copy_ino"], columns["copy_size"], columns["copy_mode"]

    def stamps(self) -> tuple[array[int], array[int], array[int], array[int], array[int]]:
        """Columns of the source: ctime, mtime, inode, size, mode. Who sets a ctime to -1 distrusts that entry."""
        columns = self._columns
        return columns["ctime"], columns["mtime"], columns["ino"], columns["size"], columns["kind_mode"]

    def entry(self, index: int, relative: bytes) -> StatEntry:
        """The entry at `index`, which `names` gave for `relative`."""
        device, *rest = (self._columns[name][index] for name, _ in _COLUMNS)
        return StatEntry(relative, self._devices[device], *rest)

    def find(self, relative: bytes) -> StatEntry | None:
        """The entry of one path, or None."""
        if not relative:
            return self.entry(self._root, relative) if self._root >= 0 else None
        folder, _, name = os.fsdecode(relative).rpartition("/")
        if self._last[0] != folder:
            self._last = (folder, self.names(folder))
        index = self._last[1].get(name)
        return None if index is None else self.entry(index, relative)

    def __iter__(self) -> Iterator[StatEntry]:
        if self._root >= 0:
            yield self.entry(self._root, b"")
        for folder in self._folders:
            for name, index in self.names(folder).items():
                yield self.entry(index, os.fsencode(f"{folder}/{name}" if folder else name))


class StatManifestEdit:
    """A manifest that is changed and saved as another, for the price of the changes. It is not to be used meanwhile."""

    def __init__(self, manifest: StatManifest) -> None:
        self._manifest = manifest
        self._columns = [manifest._columns[name] for name, _ in _COLUMNS]
        self._edited: dict[str, dict[str, int]] = {}
        self._gone: set[str] = set()

    def put(self, relative: bytes, source: os.stat_result, copy: os.stat_result) -> None:
        """Add an entry, or replace it: its path below the root, the source's stat, the finished copy's stat."""
        manifest = self._manifest
        folder, _, name = os.fsdecode(relative).rpartition("/")
        known = {} if not relative else self._names(folder)
        index = known.get(name, len(manifest._names)) if relative else manifest._root
        row = _row(self._device(source.st_dev), source, copy)
        if index < len(manifest._names):
            for column, value in zip(self._columns, row, strict=True):
                column[index] = value
            return
        manifest._names.append(name)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        known[name] = index

    def replaced(self, relative: bytes, source: os.stat_result) -> None:
        """The source's entry was put there anew, with the same content and metadata."""
        folder, _, name = os.fsdecode(relative).rpartition("/")
        index = self._names(folder)[name] if relative else self._manifest._root
        columns = self._manifest._columns
        columns["dev"][index], columns["ino"][index] = self._device(source.st_dev), source.st_ino
        columns["ctime"][index] = source.st_ctime_ns

    def _device(self, number: int) -> int:
        """The place of a device in the table."""
        devices = self._manifest._devices
        if number not in devices:
            devices.append(number)
        return devices.index(number)

    def recopied(self, index: int, copy: os.stat_result) -> None:
        """The entry at `index` was copied once more, with the same content and metadata."""
        columns = self._manifest._columns
        columns["copy_ino"][index], columns["copy_size"][index] = copy.st_ino, copy.st_size
        columns["copy_mtime"][index], columns["copy_ctime"][index] = copy.st_mtime_ns, copy.st_ctime_ns

    def drop(self, relative: str) -> None:
        """Remove an entry and all below it."""
        folder, _, name = relative.rpartition("/")
        index = self._names(folder).pop(name, None)
        if index is not None:
            self._gone.add(relative)

    def _names(self, folder: str) -> dict[str, int]:
        if folder not in self._edited:
            self._edited[folder] = {} if self.is_gone(folder) else self._manifest.names(folder)
        return self._edited[folder]

    def save(self, path: str) -> None:
        """Write it. Raises OSError."""
        manifest, order, sizes, folders = self._manifest, array("I"), array("I"), []
        for folder, (start, end) in manifest._folders.items():
            if folder not in self._edited and not self.is_gone(folder):
                order.extend(manifest._order[start:end])
                sizes.append(end - start)
                folders.append(folder)
        for folder, names in self._edited.items():
            order.extend(names.values())
            sizes.append(len(names))
            folders.append(folder)
        texts = (os.fsencode("\0".join(manifest._names)), os.fsencode("\0".join(folders)))
        _write(path, manifest._root, manifest._devices, self._columns, order, sizes, *texts)

    def is_gone(self, path: str) -> bool:
        """Whether that was dropped."""
        while path and self._gone:
            if path in self._gone:
                return True
            path = path.rpartition("/")[0]
        return False
