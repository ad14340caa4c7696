"""From a fork's changes to the steps of an apply: what is taken, what meets a change of the host, where it is done.

Nothing of the host is written here. Decisions come first, over all private paths; then, if nothing is in the way, the
entries are staged and each step gets what stands before and after it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hostfork.apply.sides import Found, Sides, Source
from hostfork.apply.target import Targets
from hostfork.apply.threeway import ThreeWay
from hostfork.apply.values import Choice, ConflictKind, Decision, OnConflict
from hostfork.collect.changeset import Change
from hostfork.collect.difference import relative_to
from hostfork.helper.shapes import NamedTuple
from hostfork.vocabulary import ChangeKind, EntryKind


class Selection(NamedTuple):
    """What of a fork's changes is looked at: of each private path, the number left out as ignored, and what is active
    and not allowed."""

    changes: tuple[tuple[Change, ...], ...]
    ignored: int
    active: tuple[str, ...]


def select(sources: Sequence[Source], choice: Choice) -> Selection:
    """What of the changes is asked for. What lies below a folder that is deleted goes with it, ignored or not."""
    ignored = 0
    active: list[str] = []
    chosen = []
    for source in sources:
        taken = []
        gone = ""
        for change in sorted(source.changes, key=lambda change: _key(change.path)):
            if choice.paths and not any(_is_below(change.path, path) for path in choice.paths):
                continue
            below = bool(gone) and _is_below(change.path, gone)
            if change.ignored_by is not None and not choice.ignored and not below:
                ignored += 1
                continue
            if change.was is EntryKind.FOLDER and change.change in (ChangeKind.DELETED, ChangeKind.TYPE) and not below:
                gone = change.path
            if change.active and not choice.active and not _is_trusted(relative_to(source.at, change.path), choice):
                active.append(change.path)
            taken.append(change)
        chosen.append(tuple(taken))
    return Selection(tuple(chosen), ignored, tuple(active))


def _is_trusted(relative: str, choice: Choice) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(relative, pattern) for pattern in choice.trusted)


def judge(source: Source, wanted: Sequence[Change], sides: Sides, targets: Targets, number: int,
          choice: Choice) -> ThreeWay:  # fmt: skip
    """Judge what is wanted of one private path. `number`: that of its target."""
    answer = ThreeWay(source, sides, choice.resolution, choice.special)
    for change in wanted:
        if not _is_covered(source.name(change.path), answer.barred):
            answer.judge(change)
    _Folders(source, sides, targets, number, answer).settle()
    return answer


class _Folders:
    """What can be told only when every change is judged: folders that go, and folders that the host lacks."""

    def __init__(self, source: Source, sides: Sides, targets: Targets, number: int, answer: ThreeWay) -> None:
        self._source, self._sides, self._targets, self._number = source, sides, targets, number
        self._answer = answer
        self._going = {one.relative: one for one in answer.taken if _goes(one)}

    def settle(self) -> None:
        """Drop deletions of folders that stay, and add folders that must be made."""
        dropped: set[str] = set()
        for name, decision in sorted(self._going.items(), key=lambda pair: _key(pair[0])):
            if decision.change.was is EntryKind.FOLDER and not self._is_inside(name):
                self._goes_whole(name, dropped)
        self._answer.taken[:] = [one for one in self._answer.taken if one.relative not in dropped]
        self._answer.through(self._missing())
        self._answer.taken.sort(key=lambda one: _key(one.relative))

    def _is_inside(self, name: str) -> bool:
        above = name.rpartition("/")[0]
        while above:
            if above in self._going:
                return True
            above = above.rpartition("/")[0]
        return False

    def _goes_whole(self, name: str, dropped: set[str]) -> bool:
        """Whether all that the host has in a folder goes with it."""
        found = self._sides.host(name)
        if found is None or found.kind is not EntryKind.FOLDER:
            return True
        whole, told = True, False
        for inner in self._names(name):
            path = f"{name}/{inner}" if name else inner
            if path in self._going:
                whole = self._goes_whole(path, dropped) and whole
            elif path in self._answer.kept:
                whole = False
            elif not told:
                told = True
                other = os.path.join(self._source.root, path)
                how = self._answer.other(os.path.join(self._source.root, name), ConflictKind.FOLDER, name, other)
                whole = whole and how is OnConflict.FORK
        if not whole:
            dropped.add(name)
            self._answer.kept.add(name)
        return whole

    def _names(self, name: str) -> list[str]:
        place = self._targets.place(self._number, name)
        folder = self._targets.folder(self._number, name) if place.name else place.folder
        return sorted(os.listdir(folder), key=os.fsencode)

    def _missing(self) -> list[str]:
        """Folders that the host lacks, and in which something taken lies that is not made with one of them."""
        made = {one.relative for one in self._answer.taken if _makes_folder(one)}
        missing: set[str] = set()
        there: set[str] = set()
        for one in self._answer.taken:
            above = one.relative.rpartition("/")[0]
            if one.change.change is ChangeKind.DELETED:
                continue
            while above and above not in made and above not in missing and above not in there:
                found = self._sides.host(above)
                if found is not None and found.kind is EntryKind.FOLDER:
                    there.add(above)
                    break
                missing.add(above)
                above = above.rpartition("/")[0]
        return sorted(missing, key=_key)


def hard_links(answers: Sequence[ThreeWay], targets: Targets) -> None:
    """Files whose content is to be another, and of which a name lies where nothing is replaced, are conflicts."""
    groups: dict[tuple[int, int], list[tuple[ThreeWay, Decision]]] = {}
    wanted: dict[tuple[int, int], int] = {}
    for answer in answers:
        for decision in answer.taken if answer.linked else ():
            known_as = answer.linked.get(decision.relative)
            if known_as is not None:
                groups.setdefault(known_as[:2], []).append((answer, decision))
                wanted[known_as[:2]] = known_as[2]
    lacking = {inode for inode, group in groups.items() if len(group) < wanted[inode]}
    edited = {inode for inode in lacking if any(d.change.change is not ChangeKind.DELETED for _, d in groups[inode])}
    known = _names_of(edited, targets) if edited else {}
    for inode in edited:
        if known[inode] >= wanted[inode]:
            continue
        for answer, decision in groups[inode]:
            if decision.change.change is ChangeKind.DELETED:
                continue
            how = answer.other(decision.change.path, ConflictKind.HARD_LINK, decision.relative)
            if how is not OnConflict.FORK:
                answer.taken.remove(decision)


def _names_of(inodes: set[tuple[int, int]], targets: Targets) -> dict[tuple[int, int], int]:
    """How many names each of the inodes has below the targets."""
    known = dict.fromkeys(inodes, 0)
    numbers = {inode for _, inode in inodes}
    seen: set[tuple[int, int]] = set()
    for number in range(len(targets.targets)):
        waiting = [""]
        while waiting:
            name = waiting.pop()
            try:
                folder = targets.folder(number, name)
                own = os.fstat(folder)
                if (own.st_dev, own.st_ino) in seen:
                    continue
                seen.add((own.st_dev, own.st_ino))
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(f"{name}/{entry.name}" if name else entry.name)
                        elif entry.inode() in numbers:
                            found = entry.stat(follow_symlinks=False)
                            if (found.st_dev, found.st_ino) in known:
                                known[found.st_dev, found.st_ino] += 1
            except OSError:
                continue  # what cannot be looked into counts as outside
    return known


def in_place(decision: Decision, host: Found | None) -> bool:
    """Whether mode, owner and attributes are changed where they are: no content comes, and no other name has them."""
    if decision.substance or host is None:
        return False
    return host.kind is EntryKind.FOLDER or (host.kind is EntryKind.FILE and host.stat.st_nlink == 1)


def _goes(decision: Decision) -> bool:
    return decision.change.change is ChangeKind.DELETED or (
        decision.change.change is ChangeKind.TYPE and decision.change.was is EntryKind.FOLDER
    )


def _makes_folder(decision: Decision) -> bool:
    gone = decision.change.change is ChangeKind.DELETED
    return decision.substance and decision.change.kind is EntryKind.FOLDER and not gone


def _key(path: str) -> list[bytes]:
    """Folders come right before what they hold."""
    return os.fsencode(path).split(b"/")


def _is_below(path: str, other: str) -> bool:
    return path == other or path.startswith(other.rstrip("/") + "/")


def _is_covered(name: str, barred: set[str]) -> bool:
    """Whether above a name there stays something that is no folder."""
    above = name.rpartition("/")[0]
    while above:
        if above in barred:
            return True
        above = above.rpartition("/")[0]
    return False
