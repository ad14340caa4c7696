"""Snapshots of a private Btrfs snapshot, kept in its key's folder: moments to which it can go back.

    POOL/btrfs/KEY/at-NAME       one of them; it goes with the key
    POOL/btrfs/KEY/tree-new      for a moment: what is about to become `tree`

Going back makes a writable snapshot of one and exchanges it with `tree`, which takes no time; what was there is set
aside and erased later.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator

from hostfork.helper.syscalls import RENAME_EXCHANGE, renameat2
from hostfork.storage import ioctls, snapshot, subvolume
from hostfork.storage.entry import FOLDER
from hostfork.storage.failures import failed, is_full, no_space
from hostfork.storage.keys import aside_name
from hostfork.storage.pace import Pace
from hostfork.storage.subvolume import Nested, Obstacle

TREE, _AT, _FRESH = "tree", "at-", "tree-new"


class Moments:
    """Those of one key. Every call raises StorageError.

    An ordinary user's are not read-only: what is closed to its owner is opened for the moment of reading.
    """

    def __init__(self, path: str, key: str) -> None:
        self._path, self._key = path, key

    def take(self, name: str) -> str:
        """Take one; gives where the private content lies in it."""
        with self._room(f"no snapshot of private storage {self._key} could be taken") as room:
            _drop(room, _AT + name)
            root = os.open(TREE, FOLDER, dir_fd=room)
            try:
                nested = subvolume.nested_below(root, _inside(room))
                if os.geteuid() == 0:
                    snapshot.again_from(root, nested, room, _AT + name)
                else:
                    _writable(root, nested, room, _AT + name)
            finally:
                os.close(root)
        return snapshot.inside(self._path, _AT + name, self._key)

    def rename(self, name: str, new: str) -> None:
        """Give one another name; where that is another's it is dropped instead."""
        with self._room(f"a snapshot of private storage {self._key} could not be renamed") as room:
            if _is_there(room, _AT + new):
                _drop(room, _AT + name)
            else:
                os.rename(_AT + name, _AT + new, src_dir_fd=room, dst_dir_fd=room)
                os.fsync(room)

    def keep(self, wanted: Collection[str]) -> None:
        """Drop all but these, and what a killed `go_back` left."""
        with self._room(f"a snapshot of private storage {self._key} could not be removed") as room:
            if _is_there(room, _FRESH):
                self._set_aside(room)
            for name in os.listdir(room):
                if name.startswith(_AT) and name[len(_AT) :] not in wanted:
                    _drop(room, name)

    def has(self, name: str) -> bool:
        """Whether it is there."""
        return os.path.isdir(os.path.join(self._path, _AT + name))

    def inside(self, name: str) -> str:
        """Where the private content lies in it."""
        return snapshot.inside(self._path, _AT + name, self._key)

    def go_back(self, name: str, swapped: Callable[[], None]) -> None:
        """Make `tree` what it was at that moment; `swapped` is called once it is."""
        with self._room(f"private storage {self._key} could not go back to a snapshot") as room:
            if _is_there(room, _FRESH):
                self._set_aside(room)
            root = os.open(_AT + name, FOLDER, dir_fd=room)
            try:
                _writable(root, subvolume.nested_below(root, _inside(room)), room, _FRESH)
            finally:
                os.close(root)
            renameat2(_FRESH, TREE, RENAME_EXCHANGE, old_folder=room, new_folder=room)
            os.fsync(room)
            swapped()
            self._set_aside(room)

    def touched(self, name: str) -> tuple[bytes, ...] | None:
        """As of the key itself: the paths that may differ from the base at that moment, None if only a walk tells."""
        from hostfork.storage.touched import touched

        inside = snapshot.inside(self._path, _AT + name, self._key)
        try:
            return touched(self._path, os.path.relpath(inside, os.path.join(self._path, _AT + name)), _AT + name)
        except OSError as error:
            raise failed(f"what changed in private storage {self._key} cannot be looked up", self._path, error,
                         "touched") from error  # fmt: skip

    @contextlib.contextmanager
    def _room(self, sentence: str) -> Iterator[int]:
        """The key's folder, open."""
        try:
            room = os.open(self._path, FOLDER)
            try:
                yield room
            finally:
                os.close(room)
        except Obstacle as obstacle:
            error = OSError(obstacle.number or errno.EIO, obstacle.reason)
            raise failed(f"{sentence}: {obstacle.reason}", self._path, error, "snapshot") from obstacle
        except OSError as error:
            if is_full(error):
                raise no_space(self._path, self._path, None, error.errno or 0) from error
            raise failed(sentence, self._path, error, "snapshot") from error

    def _set_aside(self, room: int) -> None:
        """Put what is no longer `tree` where it is erased in the background."""
        folder = os.open(os.path.dirname(self._path), FOLDER)
        try:
            aside = aside_name(self._key)
            os.mkdir(aside, 0o700, dir_fd=folder)
            os.rename(_FRESH, f"{aside}/{TREE}", src_dir_fd=room, dst_dir_fd=folder)
        finally:
            os.close(folder)


def _writable(root: int, nested: tuple[Nested, ...], room: int, name: str) -> None:
    """Make a writable snapshot of an open one, what is nested in it included."""
    ioctls.snapshot(root, name, room)
    if nested:
        made = os.open(name, FOLDER, dir_fd=room)
        try:
            subvolume.snapshot_nested(root, made, nested)
        finally:
            os.close(made)


def _drop(room: int, name: str) -> None:
    if _is_there(room, name):
        subvolume.erase(name, room, Pace())


def _is_there(room: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=room, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _inside(room: int) -> str:
    return os.readlink(snapshot.INSIDE, dir_fd=room) or "."
