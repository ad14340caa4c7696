"""A tree of a line that lies in a Btrfs subvolume: forks can be snapshots of it, and a new state begins as one.

    tN/tree         a symlink to where in the next one the tree lies; there before it and gone after it
    tN/subvolume    the subvolume, read-only from the moment on that a generation names the tree
    tN/space        a writable snapshot of it for the upper folders of forks, if there is such a fork (see `layers`)

Elsewhere `tN/tree` is a folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hostfork.storage import ioctls, layers, snapshot, subvolume
from hostfork.storage.contract import Removal, Source
from hostfork.storage.entry import FOLDER
from hostfork.storage.pace import Pace
from hostfork.storage.snapshot import Found
from hostfork.storage.subvolume import Obstacle, Place

SUBVOLUME, TREE, LAYER = "subvolume", "tree", "layer"
_OWN = f"{SUBVOLUME}/{TREE}"
"""Where a tree lies in a subvolume that was made for it."""


def make(path: str) -> str:
    """Make an empty subvolume for the tree in the folder at `path`; where none can be had, the folder serves.

    Gives the path of the folder in which TREE is to be made. Raises OSError.
    """
    with _opened(path) as room:
        os.symlink(_OWN, TREE, dir_fd=room)
        try:
            ioctls.create(SUBVOLUME, room)
        except OSError:  # shut off there
            os.unlink(TREE, dir_fd=room)
            return path
    return _open_to_owner(os.path.join(path, SUBVOLUME))


def make_from(old: str, path: str) -> str:
    """Begin the tree in the folder at `path` as what the one at `old` is, if that lies in a subvolume made for it.

    Gives the path of a folder for a layer, to be merged by `finish`; else `path` itself. Raises OSError.
    """
    if place_of(old) != _OWN:
        return path
    with _opened(path) as room, _opened(os.path.join(old, SUBVOLUME)) as root:
        os.symlink(_OWN, TREE, dir_fd=room)
        ioctls.snapshot(root, SUBVOLUME, room)
    layer = os.path.join(path, SUBVOLUME, LAYER)
    os.mkdir(layer, 0o700)
    return layer


def finish(path: str) -> None:
    """Merge the layer into the tree in the folder at `path`. Raises OSError."""
    from hostfork.storage.merge import merge

    inside = os.path.join(path, SUBVOLUME)
    merge(LAYER, ".", inside, whole=True)
    os.rmdir(os.path.join(inside, LAYER, TREE))
    os.rmdir(os.path.join(inside, LAYER))


def take(found: Found, source: Source, path: str) -> None:
    """Make the tree in the folder at `path` a read-only snapshot of a source. Raises Obstacle, OSError."""
    with _opened(path) as room:
        os.symlink(os.path.normpath(os.path.join(SUBVOLUME, found.place.inside)), TREE, dir_fd=room)
        snapshot.take(found, source, SUBVOLUME, room, read_only=True)


def seal(path: str) -> None:
    """Make it read-only, if it lies in a subvolume. Raises OSError."""
    if place_of(path) == _OWN:
        with _opened(os.path.join(path, SUBVOLUME)) as root:
            ioctls.set_read_only(root, True)


def place_of(path: str) -> str | None:
    """Where the tree in the folder at `path` lies, relative to that; None where it is in no subvolume."""
    try:
        return os.readlink(os.path.join(path, TREE))
    except OSError:
        return None


def found(path: str) -> Found | None:
    """What a snapshot of the tree in the folder at `path` takes; None where it lies in no subvolume.

    Raises Obstacle, OSError.
    """
    place = place_of(path)
    if place is None:
        return None
    root = os.path.join(path, SUBVOLUME)
    inside = os.path.relpath(place, SUBVOLUME)
    with _opened(root) as opened:
        number = ioctls.subvolume(opened).number
        return Found(Place(root, inside, number), subvolume.nested_below(opened, inside))


def is_one(path: str) -> bool:
    """Whether the tree in the folder at `path`, in a subvolume, is all of one. Raises OSError."""
    try:
        there = found(path)
    except Obstacle:
        return False
    return there is not None and not there.nested


def space(path: str) -> str | None:
    """The space for upper folders over the tree in the folder at `path`, made if it is not there.

    None where they have nothing to be numbered with: it lies in no subvolume, or others are nested in it. The line's
    lock is to be held. Raises OSError.
    """
    if place_of(path) is None or not is_one(path):
        return None
    with _opened(path) as room:
        # One that a killed process made is like any other but for its mode, which is set again.
        if subvolume.is_root(layers.SPACE, room):
            os.chmod(layers.SPACE, 0o700, dir_fd=room)
        else:
            layers.make_space(SUBVOLUME, room)
    return os.path.join(path, layers.SPACE)


def erase(name: str, folder: int, pace: Pace) -> Removal:
    """Erase the subvolumes of the tree in the folder `name` of an open folder. Raises OSError, OutOfTime."""
    removed = Removal.GONE
    try:
        opened = os.open(name, FOLDER, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return removed
    try:
        for inner in (layers.SPACE, SUBVOLUME):
            if subvolume.is_root(inner, opened) and subvolume.erase(inner, opened, pace) is Removal.RECLAIMING:
                removed = Removal.RECLAIMING
    finally:
        os.close(opened)
    return removed


def _open_to_owner(path: str) -> str:
    os.chmod(path, 0o700)
    return path


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    opened = os.open(path, FOLDER)
    try:
        yield opened
    finally:
        os.close(opened)
