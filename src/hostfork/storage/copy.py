"""Private storage as a full copy: works on every filesystem, independent of the source, taken over a period."""

from __future__ import annotations

import os

from hostfork.errors import StorageError
from hostfork.storage.contract import Guarantees, Offer, Refusal, Source
from hostfork.storage.failures import is_full, no_space
from hostfork.storage.measure import estimate
from hostfork.storage.replicated import Replicated, source_error
from hostfork.vocabulary import Guarantee, Mechanism, StorageKind


class Copy(Replicated):
    """The mechanism `copy`."""

    mechanism = Mechanism.COPY

    def probe(self, source: Source, pool: str) -> Offer | Refusal:
        """A short look at the source; the estimate is None where the tree is large."""
        found = self.look(source)
        if isinstance(found, Refusal):
            return found
        guarantees = Guarantees(Guarantee.INDEPENDENT)
        return Offer(
            StorageKind.COPY, guarantees, "a copy works on every filesystem", found.bytes, found.files, found.unreadable
        )

    def check(self, source: Source, pool: str) -> None:
        """Refuse before anything is copied where the copy cannot fit.

        A tree is not larger than what is used on its filesystem: only where that is more than the pool's room is
        counted.
        """
        try:
            place = os.path.dirname(source.path) if os.path.islink(source.path) else source.path
            here, there = os.statvfs(place), os.statvfs(pool)
            room = there.f_bavail * there.f_frsize
            if not there.f_blocks:
                return  # ramfs and some network filesystems do not tell their size
            if (here.f_blocks - here.f_bfree) * here.f_frsize <= room:
                return
            needed = estimate(source.path, source.omit).bytes
        except OSError as error:
            raise source_error(source, error) from error
        if needed is not None and needed > room:
            raise no_space(source.path, pool, needed)

    def failure(self, at: str, source: Source, pool: str, error: OSError) -> StorageError:
        """A full disk names the size of the source."""
        if is_full(error):
            return no_space(source.path, pool, _needed(source), error.errno or 0)
        return super().failure(at, source, pool, error)


def _needed(source: Source) -> int | None:
    try:
        return estimate(source.path, source.omit).bytes
    except OSError:
        return None  # it may have gone meanwhile; the size is only for the message
