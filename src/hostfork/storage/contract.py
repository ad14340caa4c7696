"""Private storage for one path: the contract that every mechanism keeps, in the shape of a snapshotter.

The life of a key: `probe` tries the real thing and leaves nothing. `prepare` makes storage under a key: it works in
`new-KEY` and renames at the end, so that all of it is there under `KEY`, or only a `new-KEY` that `keys` reports.
`mounts` says, from the pool alone, what is to be mounted; a later process gets the same answer. `content` says where
the changes lie. `set_aside` moves the key to `rm-KEY`, which takes no time whatever it holds, and `erase` empties that,
at once, in a moment as far as it goes, or in the background. `remove` does both; calling it again is no error.

A mechanism never mounts, diffs, hashes, prints, or writes to a source. What differs between mechanisms is a field of
`Guarantees`, never a test on a name.

    offer = mechanism.probe(source, pool)          Offer or Refusal
    prepared = mechanism.prepare(key, source, pool, witness)
    tree = mechanism.mounts(key, pool)             Bind or Overlay, for the helper
    where = mechanism.content(key, pool)           FullTree, Delta or Layer, for collect
    mechanism.reduce(key, pool, changed)           give up what equals the base
    mechanism.branch(other, key, pool)             another key, whose base is what this one holds now
    mechanism.thaw(key, pool)                      before this one is mounted again
    names = mechanism.set_aside(key, pool)         off the list: the key can be made again
    mechanism.erase(name, pool, pace)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from enum import Enum, unique

from hostfork.helper.protocol import Bind, Overlay
from hostfork.helper.shapes import Protocol
from hostfork.values import frozen
from hostfork.vocabulary import BaseContent, Guarantee, Mechanism, StorageKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.storage.moment import Moments
    from hostfork.storage.pace import Pace


@frozen
class Source:
    """A host path that is to become private.

    `path` is absolute and resolved. `omit` holds paths relative to it that belong to something else (nested rules,
    host mounts beneath, the pool, the state folder): a folder there is made empty with the original's owner and mode,
    a file becomes an empty stand-in, and neither is shown to the witness. A snapshot of a whole subvolume leaves such a
    folder as it is: a mount covers it in the view, and collecting passes over it. `mounts_beneath` holds the absolute
    paths of the host's mounts beneath it: some mechanisms cannot serve an ordinary user over such a folder.
    `retained`: the generation of a baseline that is equal to it, a folder in the pool.
    `skip_unreadable`: what this user cannot read below it is left out of a copy or clone, which else is refused.
    """

    path: str
    omit: tuple[str, ...] = ()
    mounts_beneath: tuple[str, ...] = ()
    skip_unreadable: bool = False
    retained: str | None = None


@frozen
class Guarantees:
    """What a private tree of this mechanism keeps."""

    guarantee: Guarantee
    folder_rename: bool = True
    """rename(2) of a folder of the base works inside (else EXDEV)."""
    hard_links: bool = True
    """hard links of the base stay one file after a write."""
    native_watchers: bool = True
    """inotify watches and open descriptors of base files see later writes."""
    xattrs: bool = True
    sparse: bool = True
    foreign_owners: bool = True
    """files whose owner has no id in a user namespace can be written where the host allows it (else EOVERFLOW)."""
    nested_mounts: bool = True
    """host mounts beneath the source are no obstacle for this user."""
    unique_inodes: bool = True
    """two files never have the same device and inode number (programs would take them for hard links of one)."""
    layers: bool = True
    """layers of other overlays in the base, as container engines keep them, are shown as they are (else what looks like
    their marks deletes files)."""
    elsewhere: bool = True
    """its content lies in the pool as it is, and can be used there without a mount."""
    base_content: BaseContent = BaseContent.WHILE_SOURCE_UNCHANGED
    """how long the content of the base can be read."""


@frozen
class Offer:
    """A mechanism can serve this source. `bytes_estimate` is what `prepare` would copy, None where not known."""

    kind: StorageKind
    guarantees: Guarantees
    reason: str
    bytes_estimate: int | None = 0
    files_estimate: int | None = 0
    unreadable: tuple[str, ...] = ()
    """Relative paths that will be left out since this user cannot read them, as far as a short look finds them."""

    @property
    def mechanism(self) -> Mechanism:
        found = self.kind.mechanism
        assert found is not None  # scratch is not offered
        return found


@frozen
class Refusal:
    """A mechanism cannot serve this source; `reason` is a clause such as `ext4 on /dev/vda2 does not share blocks`.

    `of_pool`: with a pool on another filesystem it could. `skippable`: if what this user cannot read was left out.
    """

    mechanism: Mechanism
    reason: str
    errno: int | None = None
    of_pool: bool = False
    skippable: bool = False


@frozen
class Lost:
    """A copied entry that lacks something of its original, in words: file flags, set-uid, attributes that are root's.

    `path` is relative.
    """

    path: str
    what: tuple[str, ...]


@frozen
class Prepared:
    """Storage that is there. `unwritable`: relative paths that the user could not write on the host and cannot here.

    `guarantee`: what is kept where only the making of it tells; None is what was offered. `skipped`: relative paths
    that could not be read; an empty, unreadable stand-in has each one's place, as for what `Source.omit` names.
    """

    key: str
    mechanism: Mechanism
    files: int
    bytes_copied: int
    seconds: float
    unwritable: tuple[str, ...] = ()
    guarantee: Guarantee | None = None
    skipped: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()


@frozen
class FullTree:
    """All of the private content lies in `tree`, a folder or file in the pool.

    `base`: where the base's content lies in the pool, None where only the source has it. It is a frozen snapshot of the
    same shape as `tree`, with the same inode numbers. `origin`: the tree that it is a copy of, where that is kept; what
    tells them apart is a stat manifest, as with a source.
    """

    tree: str
    base: str | None = None
    origin: str | None = None


@frozen
class Delta:
    """A full tree that was reduced: what changed lies in `tree`, plain files; deletions are known elsewhere.

    `origin` as of a `FullTree`.
    """

    tree: str
    origin: str | None = None


@frozen
class Layer:
    """Only what changed lies in `upper`, in overlayfs's format (whiteouts, opaque marks); the rest in `lowers`, from
    the top down: the last is a plain tree, those above it are layers of that format too."""

    upper: str
    lowers: tuple[str, ...]


Content = FullTree | Delta | Layer


@frozen
class Usage:
    """Space of one key. `upper_bound`: extents may be shared, the true figure can be lower."""

    bytes: int
    inodes: int
    upper_bound: bool = False


@frozen
class Held:
    """An upper folder or layer that a key uses. `alone`: no other key does."""

    tree: str
    alone: bool


@unique
class Removal(Enum):
    GONE = "gone"
    RECLAIMING = "reclaiming"
    """Off the list; the space comes back later: it is set aside and not erased yet, or the kernel frees it."""


@unique
class KeyStage(Enum):
    LIVE = "live"
    HALF_MADE = "half-made"
    HALF_REMOVED = "half-removed"


@frozen
class KeyState:
    key: str
    stage: KeyStage


Witness = Callable[[bytes, os.stat_result, os.stat_result], None]
"""Told of each entry as it is taken: relative path (b"" is the root), stat of the source, stat of the finished copy."""


@frozen
class Fill:
    """What a branch is to know of the fork that it is of.

    `write` makes a tree of what that holds now, at a path that is not there yet; for what was reduced to its changes.
    `mounted`: it is in use, and held still for this moment.
    """

    write: Callable[[str], object]
    mounted: bool = False


Progress = Callable[[int, int], None]
"""Told now and then: files done, bytes done."""


class KeyOwner(Protocol):
    """What keys in a pool belong to: a mechanism, or scratch."""

    def set_aside(self, key: str, pool: str) -> tuple[str, ...]:
        """Take all stages of the key out of the way by renaming; it can be made again at once. Raises StorageError.

        The names under which it waits to be erased.
        """

    def erase(self, name: str, pool: str, pace: Pace | None = None) -> Removal:
        """Erase what was set aside; RECLAIMING where `pace` stopped it. Raises StorageError `storage.busy`, `.failed`.

        Safe to repeat, and beside another process that does the same.
        """

    def remove(self, key: str, pool: str) -> Removal:
        """Remove all stages of the key. Idempotent. Raises StorageError `storage.busy` or `.failed`."""

    def keys(self, pool: str) -> tuple[KeyState, ...]:
        """Every key of this owner in the pool, half-made and half-removed ones too."""


class Storage(KeyOwner, Protocol):
    """One mechanism. Instances hold no state; `pool` is an absolute folder of the user's, mode 0700."""

    mechanism: Mechanism

    def probe(self, source: Source, pool: str) -> Offer | Refusal:
        """Try the real thing in the pool; leave nothing."""

    def prepare(
        self, key: str, source: Source, pool: str, witness: Witness | None = None, progress: Progress | None = None
    ) -> Prepared:
        """Make storage. Raises StorageError (`storage.exists`, `.source`, `.unstable`, `.no-space`, `.failed`)."""

    def mounts(self, key: str, pool: str) -> Bind | Overlay:
        """What the helper mounts. Raises StorageError if the key is not whole."""

    def content(self, key: str, pool: str) -> Content:
        """Where the content lies, for collect."""

    def touched(self, key: str, pool: str) -> tuple[bytes, ...] | None:
        """The relative paths that may differ from the kept base; None where only a comparison tells.

        Complete, but for what lies below a folder that was moved: that folder and those above its names are there.
        """

    def moments(self, key: str, pool: str) -> Moments | None:
        """Moments to which the key can go back in no time; None where a mechanism has none. Raises StorageError."""

    def reduce(self, key: str, pool: str, changed: Collection[bytes]) -> None:
        """Give up what equals the base: keep the relative paths in `changed` and the folders above them.

        The changeset must be on disk before. Does nothing where only changes are held already. Safe to repeat.
        """

    def branch(self, key: str, of: str, pool: str, fill: Fill, witness: Witness | None = None) -> Prepared:
        """Make storage under `key` whose base is what the key `of` holds now, and stays so whatever becomes of that.

        Nothing may write to `of` meanwhile, and with `Fill.mounted` unset nothing may have it mounted. The witness is
        told of what is copied. Raises StorageError.
        """

    def thaw(self, key: str, pool: str) -> None:
        """Let a key be mounted and written again after it was branched. Does nothing where that is so."""

    def tidy(self, key: str, pool: str) -> None:
        """Remove what a `branch` or `thaw` of that key left that was killed."""

    def held(self, key: str, pool: str) -> tuple[Held, ...]:
        """The upper folders that a key uses, its own first, where others may use some; else nothing."""

    def usage(self, key: str, pool: str) -> Usage:
        """Space used, by a walk."""
