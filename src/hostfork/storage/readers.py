"""Who reads a generation says so by a shared lock on its folder: the kernel takes it back with the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from hostfork.storage.entry import FOLDER


@contextlib.contextmanager
def reading(generation: str) -> Iterator[None]:
    """Read a generation: as long as this lasts its trees stay as they are. To be begun with its line's lock held.

    Raises OSError where it is gone.
    """
    opened = os.open(generation, FOLDER)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH)
        yield
    finally:
        # Said, not left to the close: a process that the caller forked meanwhile holds the same open file.
        fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


def is_read(generation: str) -> bool:
    """Whether somebody reads it. To be asked with its line's lock held."""
    try:
        opened = os.open(generation, FOLDER)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False
