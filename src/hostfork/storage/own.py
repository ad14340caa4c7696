"""Copying trees of the pool itself: blocks are shared where they can be, and what a fork closed is no obstacle.

What is closed to its owner is opened while it is copied. Before, a symlink in the folder of the key that is being made
says what mode it had: whoever erases what a killed copy left closes it again.

    …/opened-N      MODE:PATH, the mode in octal

The module imports what `clone` does: worker programs load it too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from hostfork.storage.clone import Sharer
from hostfork.storage.entry import FOLDER, Outcome, Taken, Wanted, open_quietly

_READ = 0o500


class OwnCopier(Sharer):
    """Copies entries that are this user's. What it may not read it opens for that moment; copies are as closed."""

    kind = "own"

    def __init__(self, room: int = -1) -> None:
        """`room`: the open folder of the key. Without one nothing is opened: a worker leaves that to its owner."""
        super().__init__()
        self._room = room
        self._noted = 0
        self._modes: dict[tuple[int, int], int] = {}
        self._opened: list[tuple[int, int, str]] = []

    def opener(self, name: str, folder: int) -> int:
        """A folder; one that is closed stays open to its owner until `restore`. Raises OSError."""
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(handle)
            if not self.root and found.st_uid == os.geteuid() and found.st_mode & _READ != _READ:
                noted = self._open_up(handle, found)
                self._opened.append((os.dup(handle), stat.S_IMODE(found.st_mode), noted))
            return open_quietly(f"/proc/self/fd/{handle}/.", FOLDER)
        finally:
            os.close(handle)

    def restore(self) -> None:
        """Close again what was opened."""
        while self._opened:
            handle, mode, noted = self._opened.pop()
            try:
                self._close(handle, mode, noted)
            finally:
                os.close(handle)

    def file(
        self, source: int, name: str, target: int, as_name: str, *, links: bool = False, look: bool = False
    ) -> Taken:
        taken = super().file(source, name, target, as_name, links=links, look=look)
        if taken.outcome is not Outcome.UNREADABLE or self._room < 0:
            return taken
        with self._readable(source, name):
            return super().file(source, name, target, as_name, links=links, look=look)

    def wanted(self, found: os.stat_result, folder: int, name: str) -> Wanted:
        wanted = super().wanted(found, folder, name)
        mode = self._modes.get((found.st_dev, found.st_ino))
        return wanted if mode is None else wanted._replace(mode=mode)

    @contextlib.contextmanager
    def _readable(self, folder: int, name: str) -> Iterator[None]:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(handle)
            noted = self._open_up(handle, found)
            try:
                yield
            finally:
                self._close(handle, stat.S_IMODE(found.st_mode), noted)
        finally:
            os.close(handle)

    def _open_up(self, handle: int, found: os.stat_result) -> str:
        """Open it to its owner; the name of the note about that. Raises OSError."""
        mode = stat.S_IMODE(found.st_mode)
        self._modes[found.st_dev, found.st_ino] = mode
        self._noted += 1
        noted = f"opened-{self._noted}"
        os.symlink(f"{mode:o}:{os.readlink(f'/proc/self/fd/{handle}')}", noted, dir_fd=self._room)
        os.chmod(f"/proc/self/fd/{handle}", mode | _READ)
        return noted

    def _close(self, handle: int, mode: int, noted: str) -> None:
        os.chmod(f"/proc/self/fd/{handle}", mode)
        os.unlink(noted, dir_fd=self._room)


def close_again(room: int, notes: list[str]) -> None:
    """Close what a killed copy left open, by its notes in the open folder of a key. Raises OSError."""
    for note in notes:
        mode, _, path = os.readlink(note, dir_fd=room).partition(":")
        with contextlib.suppress(FileNotFoundError):
            if stat.S_IMODE(os.lstat(path).st_mode) == int(mode, 8) | _READ:
                os.chmod(path, int(mode, 8))
        os.unlink(note, dir_fd=room)
