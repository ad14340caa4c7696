"""How long a removal may take: told of what goes, a pace can stop it. What is left can be removed later."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

CHUNK = 32
"""Entries that go between two looks at the clock."""


class OutOfTime(Exception):
    """A removal was stopped by its pace; the rest can be removed later."""


class Pace:
    """Told how a removal goes on. This one lets it go on."""

    looks = False
    """Whether it wants to see each file before that goes."""
    waits = True
    """Whether it waits for another process that is at the same."""

    def file(self, found: os.stat_result) -> None:
        """A file is about to go. May raise OutOfTime."""

    def went(self, entries: int) -> None:
        """So many entries went. May raise OutOfTime."""


STEADY = Pace()


class Brief(Pace):
    """A removal that a user waits for: a few entries whatever it takes, as many more as fit into a moment."""

    looks = True
    waits = False

    def __init__(self, entries: int, seconds: float, largest: int) -> None:
        self._left = entries
        self._end = time.monotonic() + seconds
        self._largest = largest

    @property
    def is_over(self) -> bool:
        """Whether nothing further is to be begun."""
        return self._left < 0 and time.monotonic() > self._end

    def file(self, found: os.stat_result) -> None:
        """The kernel frees a large file's blocks before unlink returns."""
        if found.st_nlink == 1 and found.st_blocks * 512 > self._largest:
            raise OutOfTime

    def went(self, entries: int) -> None:
        self._left -= entries
        if self.is_over:
            raise OutOfTime
