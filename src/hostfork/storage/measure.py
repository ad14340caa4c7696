"""How large a tree is: a host tree by a short look, private storage by a whole walk."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable

from hostfork.helper.shapes import NamedTuple
from hostfork.storage.contract import Usage
from hostfork.storage.entry import FOLDER, open_quietly
from hostfork.storage.tree import Entry, open_source, walk

_ENTRIES, _SECONDS = 50_000, 0.1


class Estimate(NamedTuple):
    """What a copy would take; None where the tree is too large to count in a moment.

    `unreadable`: relative paths that this user cannot read, those that the moment was enough for ("" the top).
    """

    bytes: int | None
    files: int | None
    unreadable: tuple[str, ...] = ()


def estimate(path: str, omit: tuple[str, ...] = ()) -> Estimate:
    """Count a host tree, for a tenth of a second at most. Raises OSError if `path` itself is not there."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return Estimate(_space(found), 1, ("",) if _closed(found, None, path) else ())
    try:
        root = open_quietly(path, FOLDER)
    except PermissionError:
        return Estimate(None, None, ("",))
    try:
        return _counted(root, omit)
    finally:
        os.close(root)


def tally(path: str, omit: tuple[str, ...] = ()) -> tuple[int, int]:
    """Entries and bytes of a whole host folder, however long that takes; a file with several names is copied once.

    What cannot be looked into is not counted. Raises OSError if `path` itself cannot be opened.
    """
    total, files = 0, 0
    seen: set[tuple[int, int]] = set()
    root = open_quietly(path, FOLDER)
    try:
        for entry in walk(root, open_source, frozenset(omit), skip_closed=True):
            files += 1
            total += _space(entry.found) if is_first(entry, seen) else 0
    finally:
        os.close(root)
    return files, total


def _counted(root: int, omit: tuple[str, ...]) -> Estimate:
    total, files, end = 0, 0, time.monotonic() + _SECONDS
    closed: list[str] = []
    for entry in walk(root, open_source, frozenset(omit), closed=closed):
        files += 1
        if _closed(entry.found, entry.folder, entry.name):
            closed.append(entry.relative)
        else:
            total += _space(entry.found)
        if files >= _ENTRIES or (not files % 64 and time.monotonic() > end):
            return Estimate(None, None, tuple(closed))
    return Estimate(total, files, tuple(closed))


def _closed(found: os.stat_result, folder: int | None, name: str) -> bool:
    """Whether this user cannot take the entry. Folders show it when they are opened."""
    if stat.S_ISREG(found.st_mode):
        if found.st_uid == os.geteuid() and found.st_mode & 0o400:
            return False
        return not os.access(name, os.R_OK, dir_fd=folder, effective_ids=True, follow_symlinks=False)
    device = stat.S_ISBLK(found.st_mode) or (stat.S_ISCHR(found.st_mode) and found.st_rdev != 0)
    return device and os.geteuid() != 0


def _space(found: os.stat_result) -> int:
    return min(found.st_blocks * 512, found.st_size) if stat.S_ISREG(found.st_mode) else 0


def usage(path: str) -> Usage:
    """Space and inodes of private storage, itself included; a file with several names counts once.

    What lies in a folder that its owner closed to itself is not counted.
    """
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
    finally:
        os.close(handle)
    total, inodes = found.st_blocks * 512, 1
    if stat.S_ISDIR(found.st_mode):
        root = os.open(path, FOLDER)
        try:
            seen: set[tuple[int, int]] = set()
            for entry in walk(root, open_source, skip_closed=True):
                if is_first(entry, seen):
                    total += entry.found.st_blocks * 512
                    inodes += 1
        finally:
            os.close(root)
    return Usage(total, inodes)


def usage_beside(tree: str, base: str) -> Usage:
    """Space and inodes of what in `tree` is not what `base`, its snapshot, has at the same path: an upper bound."""
    if not stat.S_ISDIR(os.lstat(tree).st_mode):
        found = os.lstat(tree)
        return Usage(0 if is_unchanged(found, base, None) else found.st_blocks * 512, 1, upper_bound=True)
    total, inodes = 0, 0
    root, beside = os.open(tree, FOLDER), os.open(base, FOLDER)
    try:
        seen: set[tuple[int, int]] = set()
        for entry in walk(root, open_source, skip_closed=True):
            if not is_unchanged(entry.found, entry.relative, beside) and is_first(entry, seen):
                total += entry.found.st_blocks * 512
                inodes += 1
    finally:
        os.close(root)
        os.close(beside)
    return Usage(total, inodes, upper_bound=True)


def usage_of(tree: str, names: Iterable[bytes]) -> Usage:
    """Space and inodes of these paths of `tree` alone, relative ones, each file once, not its root: an upper bound."""
    seen: dict[tuple[int, int], int] = {}
    for name in names:
        try:
            found = os.lstat(os.path.join(os.fsencode(tree), name) if name else tree)
        except OSError:
            continue  # it went meanwhile, or lies too deep for its path
        if name or not stat.S_ISDIR(found.st_mode):
            seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return Usage(sum(seen.values()), len(seen), upper_bound=True)


def is_unchanged(found: os.stat_result, path: str, folder: int | None) -> bool:
    """Whether an entry of a snapshot is still that of the base at `path` in the open `folder`."""
    try:
        base = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return (found.st_ino, found.st_ctime_ns, found.st_size) == (base.st_ino, base.st_ctime_ns, base.st_size)


def is_first(entry: Entry, seen: set[tuple[int, int]]) -> bool:
    """Whether this is the first name of its file."""
    if entry.found.st_nlink == 1 or stat.S_ISDIR(entry.found.st_mode):
        return True
    identity = entry.found.st_dev, entry.found.st_ino
    if identity in seen:
        return False
    seen.add(identity)
    return True
