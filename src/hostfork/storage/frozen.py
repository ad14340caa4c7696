"""Private storage as an overlay over a read-only Btrfs snapshot: independent of the source, and only changes are held.

    POOL/frozen/KEY/base     the snapshot, read-only, of the subvolume that holds the source; or a link to a shared one
    POOL/frozen/KEY/inside   a symlink whose text is the wanted path, relative to the subvolume's root
    POOL/frozen/KEY/layers   a symlink to the folder that holds the next two (see `layers`)
             …/upper         what changes, in overlayfs's format
             …/work          overlayfs's own; one mount of the view uses it up

As with any overlay, a base that holds 0:0 devices or overlayfs's own attributes shows them as deletions; they are
looked for at its top, and where container engines keep them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from hostfork.storage import layers, overlay, shared, snapshot
from hostfork.storage.btrfs import kept, said
from hostfork.storage.contract import Offer, Prepared, Progress, Refusal, Source, Witness
from hostfork.storage.entry import FOLDER, Outcome, Taken
from hostfork.storage.failures import failed
from hostfork.storage.shared import BASE, SharedKeys
from hostfork.storage.snapshot import INSIDE, Found
from hostfork.storage.stacked import Stacked
from hostfork.storage.subvolume import Obstacle
from hostfork.vocabulary import BaseContent, Guarantee, Mechanism, StorageKind


class Frozen(Stacked):
    """The mechanism `overlay` over a frozen snapshot."""

    mechanism = Mechanism.OVERLAY

    def keys_of(self, pool: str) -> SharedKeys:
        return SharedKeys(pool, "frozen")

    def probe(self, source: Source, pool: str) -> Offer | Refusal:
        """What a snapshot needs, then what an overlay needs."""
        try:
            found = snapshot.examine(source, pool)
            refusal = overlay.obstacle(source, pool)
        except Obstacle as obstacle:
            reason = f"there is nothing frozen to lie over: {obstacle.reason}; `:live` is over the source"
            return Refusal(Mechanism.OVERLAY, reason, obstacle.number)
        except OSError as error:
            return Refusal(Mechanism.OVERLAY, f"{error.filename or source.path} cannot be read", error.errno)
        if refusal is not None:
            return refusal
        # No host mount lies beneath a snapshot.
        guarantees = overlay.guarantees(
            kept(found), nested_mounts=True, unique_inodes=not found.nested, base_content=BaseContent.KEPT
        )
        return Offer(StorageKind.FROZEN, guarantees, f"only changes are held, over a frozen tree: {said(found)}")

    def prepare(
        self, key: str, source: Source, pool: str, witness: Witness | None = None, progress: Progress | None = None
    ) -> Prepared:
        """Make an empty upper folder over a snapshot, an older one if the source is the same since.

        The witness is told of nothing.
        """
        start = time.monotonic()
        top, guarantee = Taken(Outcome.GONE), Guarantee.SNAPSHOT

        def make(found: Found, room: int) -> None:
            nonlocal top, guarantee
            into = layers.begin(shared.take(found, source, room), room, key)
            guarantee = kept(found)
            base = os.open(f"{BASE}/{found.place.inside}", FOLDER, dir_fd=room)
            try:
                top = overlay.make_layers(into, base)
            finally:
                os.close(base)
                os.close(into)

        snapshot.made_under(self.keys_of(pool), key, source, pool, make)
        return overlay.prepared(key, time.monotonic() - start, top, guarantee)

    def place(self, path: str, key: str) -> str:
        """Where inode numbers go on."""
        return layers.place(path, key)

    def bottom(self, path: str, key: str) -> tuple[str, ...]:
        """The snapshot."""
        return (_lower(path, key),)

    def link_bottom(self, path: str, room: int) -> None:
        """A hard link of the reference of the same base; where that is the key's own, a snapshot of it."""
        os.symlink(os.readlink(os.path.join(path, INSIDE)), INSIDE, dir_fd=room)
        shared.refer_too(path, room)

    def reduce(self, key: str, pool: str, changed: Collection[bytes]) -> None:
        """Nothing: an upper folder holds only what was touched."""


def _lower(path: str, key: str) -> str:
    try:
        base = shared.referred(path)
    except OSError as error:
        raise failed(f"what private storage {key} lies over cannot be read", path, error, "mounts") from error
    return snapshot.inside(path, base, key)
