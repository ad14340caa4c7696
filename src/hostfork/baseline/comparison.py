"""One folder of a source beside the manifest of its baseline: what in it is not as it was taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hostfork.collect.manifest import StatManifest
from hostfork.helper.shapes import NamedTuple

_FORMAT, _IS_FOLDER = 0o170000, 0o040000

Holds = Callable[[str, int, int, str, os.stat_result], bool]
"""Whether an entry holds what it held: its path, its index in the manifest, the open folder, its name, its stat."""


class Folder(NamedTuple):
    """A folder in a folder. `changed`: its own stat is not what it was; `is_new`: no folder was there."""

    name: str
    found: os.stat_result
    is_new: bool
    changed: bool


class Comparison:
    """The entries of a source, a folder at a time. `omit`: relative paths that are no part of it."""

    def __init__(self, manifest: StatManifest, omit: Sequence[str], holds: Holds | None = None) -> None:
        self._columns = manifest.stamps()
        self._holds = holds
        self._omit: dict[str, set[str]] = {}
        for path in omit:
            folder, _, name = path.rpartition("/")
            self._omit.setdefault(folder, set()).add(name)

    def is_same(self, index: int, found: os.stat_result) -> bool:
        """Whether that is the stat with which the entry was taken."""
        ctime, mtime, inode, size, mode = self._columns
        return (ctime[index], mtime[index], inode[index], size[index], mode[index]) == (
            found.st_ctime_ns, found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode,
        )  # fmt: skip

    def was_folder(self, index: int) -> bool:
        """Whether the entry was a folder when it was taken."""
        return index >= 0 and self._columns[4][index] & _FORMAT == _IS_FOLDER

    def look(
        self, folder: int, relative: str, known: dict[str, int]
    ) -> tuple[list[tuple[str, int, os.stat_result]], list[Folder]]:
        """What is not as it was in an open folder, but for folders: name, index (-1: none), stat; and all folders.

        `known`: the names that it had, with their indexes; it keeps those that went. Raises OSError.
        """
        ctime, mtime, inode, size, mode = self._columns
        omitted, holds = self._omit.get(relative, ()), self._holds
        changed: list[tuple[str, int, os.stat_result]] = []
        folders: list[Folder] = []
        pop = known.pop
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name in omitted:
                    continue
                found = entry.stat(follow_symlinks=False)
                index = pop(name, -1)
                same = (
                    index >= 0
                    and ctime[index] == found.st_ctime_ns
                    and mtime[index] == found.st_mtime_ns
                    and inode[index] == found.st_ino
                    and size[index] == found.st_size
                    and mode[index] == found.st_mode
                )
                if holds is not None:
                    same = index >= 0 and holds(below(relative, name), index, folder, name, found)
                if found.st_mode & _FORMAT == _IS_FOLDER:
                    folders.append(Folder(name, found, not self.was_folder(index), not same))
                elif not same:
                    changed.append((name, index, found))
        return changed, folders


def below(above: str, name: str) -> str:
    """The relative path of a name in a folder; "" is the root."""
    return f"{above}/{name}" if above else name
