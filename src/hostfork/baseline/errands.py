"""Which folders a walk has given to its scout, and where it has to go itself after the scout's answers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence

from hostfork.baseline.comparison import Folder, below
from hostfork.baseline.scout import Scout

_EVERY = 16
"""Folders of the walk between two looks at the scout's answers."""
_LONGEST = 1000
"""Characters of a path that is given away: two of them are never more than the socket takes at once."""


class Pending:
    """A folder of the walk: what in it is still to be entered, and how many of its folders the scout has."""

    def __init__(self, relative: str) -> None:
        self.relative = relative
        self.folders: list[Folder] = []
        self.away = 0
        self.guided = False
        """The scout has looked at it and all below: only where it found something is there anything to do."""


class Errands:
    """The errands of one walk. `distrusted`: relative paths of entries whose stat is not believed."""

    def __init__(self, scout: Scout, distrusted: Iterable[str]) -> None:
        self._scout = scout
        self._distrusted = {path.rpartition("/")[0] for path in distrusted}
        self._given: dict[str, tuple[Pending, Folder]] = {}
        self._back: set[str] = set()
        self._guides: set[str] = set()
        self._differ: set[str] = set()
        self._inside: dict[str, set[str]] = {}
        self._turn = 0

    def share(self, levels: Sequence[Pending]) -> None:
        """Give the scout a folder from as far up as there is one that waits, now and then."""
        self._turn += 1
        if (self._turn - 1) % _EVERY:
            return
        self.take(wait=False)
        for level in levels:
            # The walk needs the last one of its own folder itself.
            least = 2 if level is levels[-1] else 1
            while self._scout.has_room and len(level.folders) >= least and self._can_go(level, level.folders[0]):
                folder = level.folders.pop(0)
                relative = below(level.relative, folder.name)
                self._given[relative] = (level, folder)
                level.away += 1
                self._scout.give(relative)

    def _can_go(self, level: Pending, folder: Folder) -> bool:
        relative = below(level.relative, folder.name)
        return not (folder.is_new or level.guided or relative in self._back) and len(relative) <= _LONGEST

    def take(self, wait: bool) -> None:
        """Put back to the levels what the walk has to enter; with `wait`, until there is an answer."""
        for relative, found in self._scout.answers(wait):
            level, folder = self._given.pop(relative)
            level.away -= 1
            self._back.add(relative)
            if found is None:
                level.folders.append(folder)
                continue
            differ = {*found, *(path for path in self._distrusted if _is_in(path, relative))}
            if differ or folder.changed:
                self._guides.add(relative)
                self._note(relative, differ)
                level.folders.append(folder)

    def _note(self, relative: str, differ: set[str]) -> None:
        self._differ |= differ
        for path in differ:
            while path != relative:
                path, _, name = path.rpartition("/")
                self._inside.setdefault(path, set()).add(name)

    def is_guide(self, relative: str) -> bool:
        """Whether the scout has looked at that folder and all below it."""
        return relative in self._guides

    def differs(self, relative: str) -> bool:
        """Whether something in that folder itself is not as it was."""
        return relative in self._differ

    def way(self, relative: str, folder: int) -> list[Folder] | None:
        """The folders in an open one that lead to what differs; None where it is not as the scout saw it."""
        found = []
        for name in self._inside.get(relative, ()):
            try:
                there = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                return None
            if not stat.S_ISDIR(there.st_mode):
                return None
            found.append(Folder(name, there, False, False))
        return found

    def leads(self, relative: str, folders: list[Folder]) -> list[Folder]:
        """Those of a folder's folders in which there is something to do."""
        names = self._inside.get(relative, ())
        return [folder for folder in folders if folder.is_new or folder.changed or folder.name in names]


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
