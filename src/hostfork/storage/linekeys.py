"""The folders of lines in a pool, and erasing what was set aside of them: subvolumes in them go first."""

from __future__ import annotations

import os

from hostfork.storage.contract import KeyState, Removal
from hostfork.storage.entry import FOLDER
from hostfork.storage.keys import Keys
from hostfork.storage.newtree import is_in_subvolume
from hostfork.storage.pace import Pace
from hostfork.vocabulary import StorageKind

_KIND = StorageKind.BASELINE.value


class LineKeys(Keys):
    """Lines, and single trees of lines."""

    def _erase(self, name: str, folder: int, pace: Pace) -> Removal:
        removed = Removal.GONE
        for path in (name, *(f"{name}/{inner}" for inner in _trees_in(name, folder))):
            if is_in_subvolume(f"/proc/self/fd/{folder}/{path}"):
                from hostfork.storage import subtree

                if subtree.erase(path, folder, pace) is Removal.RECLAIMING:
                    removed = Removal.RECLAIMING
        super()._erase(name, folder, pace)
        return removed


def set_aside(key: str, pool: str) -> tuple[str, ...]:
    """Take a line out of the way; only for one that nobody uses."""
    return LineKeys(pool, _KIND).set_aside(key)


def erase(name: str, pool: str, pace: Pace | None = None) -> Removal:
    """Erase what was set aside under that name."""
    return LineKeys(pool, _KIND).erase(name, pace)


def remove(key: str, pool: str) -> Removal:
    """Remove all that is left of a line. Idempotent."""
    return LineKeys(pool, _KIND).remove(key)


def keys(_pool: str) -> tuple[KeyState, ...]:
    """None: no fork owns a line, so that none is ever left over."""
    return ()


def _trees_in(name: str, folder: int) -> tuple[str, ...]:
    try:
        opened = os.open(name, FOLDER, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    try:
        return tuple(inner for inner in os.listdir(opened) if inner[0] == "t" and inner[1:].isdigit())
    finally:
        os.close(opened)
