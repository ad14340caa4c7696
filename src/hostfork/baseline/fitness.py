"""Whether an overlay can show a generation that is a snapshot: nothing of it was looked at when it was taken.

    POOL/baseline/LINE/gN/fit        a symlink: its text is `.`, or the path of something that no overlay can show
    POOL/baseline/LINE/gN/looking    who looks it up holds a flock on it

Looked up in the background by the program `settler`, by a walk; until that is known forks are writable snapshots.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator

from hostfork.baseline.current import Facts
from hostfork.storage.entry import FOLDER
from hostfork.storage.layering import MARKS, is_whiteout
from hostfork.storage.lines import Generation
from hostfork.storage.tree import Entry, open_source, walk
from hostfork.vocabulary import Stored

_FIT, _LOOKING = "fit", "looking"
_YES = "."
"""No path of an entry below the tree."""


def is_known(generation: Generation) -> bool:
    """Whether that needs no look any more. Raises OSError, ValueError."""
    return Facts.read(generation).stored is not Stored.SNAPSHOT or os.path.lexists(generation.file(_FIT))


def obstacle(generation: Generation) -> str | None:
    """Why no overlay is laid over it, as a clause; None where one can be. Raises OSError, ValueError."""
    if Facts.read(generation).stored is not Stored.SNAPSHOT:
        return None  # taking it found that
    try:
        found = os.readlink(generation.file(_FIT))
    except FileNotFoundError:
        return "whether an overlay can show all of it is still being looked up"
    return None if found == _YES else f"{found} in it is overlayfs's own, which none can show"


def is_looked_up(generation: Generation) -> bool:
    """Whether somebody is at it. Raises OSError."""
    try:
        with _alone(generation, wait=False):
            return False
    except BlockingIOError:
        return True


def look_up(generation: Generation, wait: bool = True) -> None:
    """Look it up where that is not known; without `wait` not where somebody is at it.

    Raises OSError, ValueError; a generation that went meanwhile is no fault.
    """
    with contextlib.suppress(FileNotFoundError, *(() if wait else (BlockingIOError,))):
        if is_known(generation):
            return
        with _alone(generation, wait):
            if not is_known(generation):
                found = _unfit(generation.lowers[0])
                os.symlink(_YES if found is None else found, generation.file(_FIT))


@contextlib.contextmanager
def _alone(generation: Generation, wait: bool) -> Iterator[None]:
    opened = os.open(generation.file(_LOOKING), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(opened)


def _unfit(tree: str) -> str | None:
    """The relative path of the first such thing; the tree itself counts as its own path."""
    root = os.open(tree, FOLDER)
    try:
        if _is_marked(root, "."):
            return os.path.basename(tree)
        for entry in walk(root, open_source, skip_closed=True):
            if is_whiteout(entry.found) or (_may_be_marked(entry) and _is_marked(entry.folder, entry.name)):
                return entry.relative
    finally:
        os.close(root)
    return None


def _may_be_marked(entry: Entry) -> bool:
    return stat.S_ISREG(entry.found.st_mode) or stat.S_ISDIR(entry.found.st_mode)


def _is_marked(folder: int, name: str) -> bool:
    try:
        names = os.listxattr(f"/proc/self/fd/{folder}/{name}", follow_symlinks=False)
    except OSError:
        return False  # closed to us, and so to every fork of ours
    return any(one.startswith(MARKS) for one in names)
