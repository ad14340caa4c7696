"""The project's words as enums: one word for one thing, in code, records, command line and documents.

Only the words stand here. What is done with them belongs to the packages.
"""

from __future__ import annotations

import stat
from enum import Enum, unique


@unique
class Access(Enum):
    """What a rule gives one path."""

    PRIVATE = "private"
    READ_ONLY = "read-only"
    SHARED = "shared"
    SCRATCH = "scratch"
    HIDDEN = "hidden"


@unique
class Mechanism(Enum):
    """How private storage for one path is made."""

    BTRFS = "btrfs"
    REFLINK = "reflink"
    OVERLAY = "overlay"
    COPY = "copy"


@unique
class StorageKind(Enum):
    """One implementation of storage in a pool; its word is the name of its folder there."""

    BTRFS = "btrfs"
    REFLINK = "reflink"
    COPY = "copy"
    LIVE = "overlay"
    """An overlay over the source itself."""
    FROZEN = "frozen"
    """An overlay over a read-only snapshot of the source."""
    RETAINED = "retained"
    """An overlay over a baseline."""
    SCRATCH = "scratch"
    BASELINE = "baseline"
    """Retained trees themselves."""

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism that it implements; what serves no private path has none."""
        if self in (StorageKind.SCRATCH, StorageKind.BASELINE):
            return None
        overlays = (StorageKind.LIVE, StorageKind.FROZEN, StorageKind.RETAINED)
        return Mechanism.OVERLAY if self in overlays else Mechanism(self.value)


@unique
class Stored(Enum):
    """How a tree of a baseline was taken."""

    SNAPSHOT = "snapshot"
    """A Btrfs snapshot: all of it at one instant, nothing copied."""
    REFLINK = "reflink"
    """Its files share their blocks with the source's, but for those that could not."""
    COPY = "copy"


@unique
class Verdict(Enum):
    """What reading all of a baseline told. `RECORDED`: there was nothing to compare with yet, and now there is."""

    VERIFIED = "verified"
    RECORDED = "recorded"
    DAMAGED = "damaged"


@unique
class Guarantee(Enum):
    """What a private path promises. `keeps` orders them."""

    SNAPSHOT = "snapshot"
    INDEPENDENT = "independent"
    LIVE = "live"

    def keeps(self, asked: Guarantee) -> bool:
        """Whether this promise is as strong as `asked` or stronger."""
        order = (Guarantee.LIVE, Guarantee.INDEPENDENT, Guarantee.SNAPSHOT)
        return order.index(self) >= order.index(asked)

    @property
    def depends_on_source(self) -> bool:
        """Whether later writes of the host show through."""
        return self is Guarantee.LIVE


@unique
class Prefer(Enum):
    """Which of the mechanisms that keep the same guarantee is taken first."""

    NATIVE = "native"
    """Writable snapshots and clones: folders can be renamed, hard links hold, watchers see writes."""
    MEMORY = "memory"
    """Overlays over one frozen tree: forks share its page cache, and their changes are found in no time."""


@unique
class Unreadable(Enum):
    """What becomes of entries that the user cannot read, where a private path is copied or cloned."""

    REFUSE = "refuse"
    SKIP = "skip"
    """Each gets an empty stand-in that is as closed, and is named; it is never collected."""


@unique
class Ownership(Enum):
    """What ends the process tree. `SUBREAPER` is the weaker one: it follows parents, not a kernel object."""

    CGROUP = "cgroup"
    SUBREAPER = "subreaper"


@unique
class EndpointKind(Enum):
    SOCKET = "socket"
    FIFO = "fifo"


@unique
class Require(Enum):
    """Promises that a user may demand with `--require`; each refuses before anything is made."""

    SNAPSHOT = "snapshot"
    INDEPENDENT = "independent"
    STABLE = "stable"
    SAME_PATHS = "same-paths"
    NATIVE_WATCHERS = "native-watchers"
    FOLDER_RENAME = "folder-rename"
    HARD_LINKS = "hard-links"
    CGROUP = "cgroup"
    PRIVATE_GIT = "private-git"
    """What git writes for a private work tree is private too: objects, references, index."""


@unique
class BaseContent(Enum):
    """How long the content of a fork's base can be read."""

    KEPT = "kept"
    WHILE_SOURCE_UNCHANGED = "while-source-unchanged"


@unique
class SourceChanged(Enum):
    """Whether the host wrote under a private path's source while the fork used it."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    NOT_CHECKED = "not-checked"
    IRRELEVANT = "irrelevant"
    """The fork's content does not depend on the source (any guarantee but `live`)."""


@unique
class Activity(Enum):
    """What a fork is doing: observed from the kernel."""

    PREPARING = "preparing"
    RUNNING = "running"
    FROZEN = "frozen"
    IDLE = "idle"
    ORPHANED = "orphaned"
    RELEASING = "releasing"
    RECLAIMING = "reclaiming"


@unique
class Disposition(Enum):
    """What was decided about a fork's changes."""

    OPEN = "open"
    SEALED = "sealed"
    AWAITING_APPROVAL = "awaiting-approval"
    APPLIED = "applied"
    DISCARDED = "discarded"
    EXPIRED = "expired"


@unique
class ChangeKind(Enum):
    """How one path differs between a fork's base and its final visible content."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    METADATA = "metadata"
    TYPE = "type"


@unique
class EntryKind(Enum):
    """What one name in a tree is."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER_DEVICE = "character-device"
    BLOCK_DEVICE = "block-device"

    @classmethod
    def of(cls, mode: int) -> EntryKind:
        """What an entry with this `st_mode` is (inode(7))."""
        return _ENTRY_KINDS[stat.S_IFMT(mode)]


_ENTRY_KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFDIR: EntryKind.FOLDER,
    stat.S_IFLNK: EntryKind.SYMLINK,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
    stat.S_IFCHR: EntryKind.CHARACTER_DEVICE,
    stat.S_IFBLK: EntryKind.BLOCK_DEVICE,
}


@unique
class ChangeClass(Enum):
    """Who usually makes such a change, so that people see their work first."""

    SOURCE = "source"
    DEPENDENCY = "dependency"
    GENERATED = "generated"
    RUNTIME = "runtime"


@unique
class OriginKind(Enum):
    """What a baseline was made of."""

    FOLDERS = "folders"
    GIT = "git"
    ARCHIVE = "archive"
    FORK = "fork"
