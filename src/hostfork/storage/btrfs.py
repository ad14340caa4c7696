"""Private storage as a writable snapshot of the Btrfs subvolume that holds the source: one instant, made in no time.

    POOL/btrfs/KEY/tree      the snapshot; the wanted folder lies in it where it lies in its subvolume
    POOL/btrfs/KEY/base      a read-only snapshot of `tree`, made before anything wrote there
    POOL/btrfs/KEY/inside    a symlink whose text is the wanted path, relative to the subvolume's root
    POOL/btrfs/KEY/at-NAME   a moment to which it can go back (see `moment`)
    POOL/btrfs/KEY/now-PID   for a moment, while that process looks up what changed

Where the source names a generation of a baseline, that is what the snapshot is of; nothing ties the two together then.

A subvolume nested below the source is an empty folder in a snapshot: it gets a snapshot of its own in that place. Then
they are not of one instant, and the guarantee is `independent`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from hostfork.errors import Code, StorageError
from hostfork.helper.protocol import Bind
from hostfork.storage.contract import (
    Fill,
    FullTree,
    Guarantees,
    Offer,
    Prepared,
    Progress,
    Refusal,
    Source,
    Usage,
    Witness,
)
from hostfork.storage.failures import failed
from hostfork.storage.filesystem import filesystem_of
from hostfork.storage.keys import Keyed
from hostfork.values import replace
from hostfork.vocabulary import BaseContent, Guarantee, Mechanism, StorageKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.storage.moment import Moments
    from hostfork.storage.snapshot import Found, SnapshotKeys

TREE, BASE = "tree", "base"


class Btrfs(Keyed):
    """The mechanism `btrfs`. What it is made of is loaded where there is Btrfs: every run asks, most are elsewhere."""

    mechanism = Mechanism.BTRFS

    def keys_of(self, pool: str) -> SnapshotKeys:
        from hostfork.storage.snapshot import SnapshotKeys

        return SnapshotKeys(pool, "btrfs")

    def probe(self, source: Source, pool: str) -> Offer | Refusal:
        """Look at the subvolume, its owners and what is nested; make and remove an empty one in the pool."""
        if source.retained is not None:
            return _probe_baseline(source.retained)
        try:
            mount = filesystem_of(source.path)
        except OSError as error:
            return Refusal(Mechanism.BTRFS, f"{source.path} cannot be read", error.errno)
        if mount.kind != "btrfs":
            return Refusal(Mechanism.BTRFS, f"{source.path} is on {mount}, not on Btrfs")
        from hostfork.storage import snapshot
        from hostfork.storage.subvolume import Obstacle

        try:
            found = snapshot.examine(source, pool)
        except Obstacle as obstacle:
            return Refusal(Mechanism.BTRFS, obstacle.reason, obstacle.number)
        except OSError as error:
            return Refusal(Mechanism.BTRFS, f"{error.filename or source.path} cannot be read", error.errno)
        return Offer(StorageKind.BTRFS, Guarantees(kept(found), base_content=BaseContent.KEPT), said(found))

    def prepare(
        self, key: str, source: Source, pool: str, witness: Witness | None = None, progress: Progress | None = None
    ) -> Prepared:
        """Take the snapshots. No entry is looked at: the witness is told of none."""
        from hostfork.storage import snapshot

        start = time.monotonic()
        there, guarantee = None, Guarantee.SNAPSHOT
        if source.retained is not None:
            there = _found_in_baseline(source.retained, source)
            source = replace(source, omit=())  # its tree holds stand-ins already

        def make(found: Found, room: int) -> None:
            nonlocal guarantee
            guarantee = kept(found) if there is None else Guarantee.INDEPENDENT
            snapshot.take(found, source, TREE, room, read_only=False)
            snapshot.again(found.nested, TREE, room, BASE)

        snapshot.made_under(self.keys_of(pool), key, source, pool, make, there)
        return Prepared(key, Mechanism.BTRFS, 0, 0, time.monotonic() - start, guarantee=guarantee)

    def branch(self, key: str, of: str, pool: str, fill: Fill, witness: Witness | None = None) -> Prepared:
        """Snapshots of the other's tree, which may be in use. The witness is told of nothing."""
        # What is left out of it are stand-ins there already.
        return self.prepare(key, Source(self.content(of, pool).tree), pool)

    def mounts(self, key: str, pool: str) -> Bind:
        """The wanted folder or file in the snapshot."""
        return Bind(self.content(key, pool).tree)

    def content(self, key: str, pool: str) -> FullTree:
        """The same; the base lies beside it, with the same inode numbers."""
        from hostfork.storage import snapshot

        path = self.keys_of(pool).whole(key)
        return FullTree(snapshot.inside(path, TREE, key), snapshot.inside(path, BASE, key))

    def moments(self, key: str, pool: str) -> Moments:
        """Snapshots of the private snapshot, beside it."""
        from hostfork.storage.moment import Moments

        return Moments(self.keys_of(pool).whole(key), key)

    def reduce(self, key: str, pool: str, changed: Collection[bytes]) -> None:
        """Nothing: what equals the base takes no space."""

    def touched(self, key: str, pool: str) -> tuple[bytes, ...] | None:
        """As root the paths that may differ from the base; None for an ordinary user, whom the kernel does not tell.

        What lies below a folder that was moved is not named, only the folder under its present path and the folders
        above its old and new names. Call it when nothing writes any more. Raises StorageError.
        """
        from hostfork.storage.touched import touched

        path = self.keys_of(pool).whole(key)
        try:
            return touched(path, os.path.relpath(self.content(key, pool).tree, os.path.join(path, TREE)))
        except OSError as error:
            raise failed(
                f"what changed in private storage {key} cannot be looked up", path, error, "touched"
            ) from error

    def usage(self, key: str, pool: str) -> Usage:
        """The size of the files that are not those of the base: those that were touched, else found by a walk of both.

        An upper bound: a file of which a part was written shares the rest. What the host deletes later and the base
        still holds is not counted.
        """
        from hostfork.storage.measure import usage_beside, usage_of

        content = self.content(key, pool)
        assert content.base is not None
        names = self.touched(key, pool)
        try:
            return usage_beside(content.tree, content.base) if names is None else usage_of(content.tree, names)
        except OSError as error:
            raise failed(f"private storage {key} could not be measured", content.tree, error, "usage") from error


def _probe_baseline(generation: str) -> Offer | Refusal:
    """Whether the tree of a generation lies in a subvolume."""
    from hostfork.storage.lines import Generation
    from hostfork.storage.newtree import is_in_subvolume

    try:
        single = Generation(generation).single
        if filesystem_of(generation).kind != "btrfs":
            return Refusal(Mechanism.BTRFS, f"the baseline is on {filesystem_of(generation)}, not on Btrfs")
        if single is None or not is_in_subvolume(single):
            return Refusal(Mechanism.BTRFS, "the baseline lies in no subvolume of its own")
    except OSError as error:
        return Refusal(Mechanism.BTRFS, f"{error.filename or generation} cannot be read", error.errno)
    guarantees = Guarantees(Guarantee.INDEPENDENT, base_content=BaseContent.KEPT)
    return Offer(StorageKind.BTRFS, guarantees, "a writable snapshot of the baseline takes no time")


def _found_in_baseline(generation: str, source: Source) -> Found:
    """What a snapshot of the tree of a generation takes. Raises StorageError."""
    from hostfork.storage import subtree
    from hostfork.storage.lines import Generation
    from hostfork.storage.subvolume import Obstacle

    why, number = "it lies in no subvolume of its own", None
    try:
        single = Generation(generation).single
        found = None if single is None else subtree.found(single)
        if found is not None:
            return found
    except Obstacle as obstacle:
        why, number = obstacle.reason, obstacle.number
    except OSError as error:
        why, number = f"{error.filename or generation} cannot be read", error.errno
    raise StorageError(
        Code.STORAGE_SOURCE, f"no snapshot of the baseline of {source.path} can be taken: {why}", step="prepare",
        path=generation, errno=number, hint="--prefer memory lays an overlay over it",
    )  # fmt: skip


def kept(found: Found) -> Guarantee:
    """One snapshot is one instant, several are not."""
    return Guarantee.INDEPENDENT if found.nested else Guarantee.SNAPSHOT


def said(found: Found) -> str:
    """The reason of an offer."""
    if not found.nested:
        return f"a snapshot of the Btrfs subvolume {found.place.root} is one instant and takes no time"
    number = len(found.nested)
    names = ", ".join(os.path.join(found.place.root, one.path) for one in found.nested[:3])
    more = f" and {number - 3} more" if number > 3 else ""
    return (
        f"{number + 1} Btrfs subvolumes are snapshotted one after the other, which is not one instant: {names}{more} "
        f"{'lies' if number == 1 else 'lie'} beneath it"
    )
