"""What applying is asked and what it answers, as frozen values."""

from __future__ import annotations

from enum import Enum, unique

from hostfork.collect.changeset import Change, Changeset, Counts
from hostfork.values import frozen


@unique
class OnConflict(Enum):
    """What becomes of a path that host and fork changed differently."""

    FAIL = "fail"
    FORK = "fork"
    HOST = "host"
    MERGE = "merge"
    """Text: both changes, where they do not touch the same lines."""


@unique
class ConflictKind(Enum):
    """Why a path cannot be applied as it is."""

    EDITED = "both-edited"
    CREATED = "both-created"
    METADATA = "both-metadata"
    """Both changed the mode, the owner or the attributes."""
    FORK_DELETED = "fork-deleted"
    """The fork deleted what the host edited."""
    HOST_DELETED = "host-deleted"
    """The host deleted what the fork edited, or the folder that it lies in."""
    TYPE = "type"
    """On one side it is another kind of thing now."""
    FOLDER = "folder"
    """The fork deleted a folder in which the host made something."""
    HARD_LINK = "hard-link"
    """Another name of the file lies outside of the private paths, and would stay what it was."""
    BASE_GONE = "base-gone"
    """What it was when the fork began is not known any more, so nothing tells whether the host changed it."""
    MOVED = "moved"
    """The host changed it while it was applied; all was put back."""


@unique
class LeftOut(Enum):
    """Why a change stays out of an apply."""

    DEVICE = "device"
    SOCKET = "socket"
    SET_UID = "set-uid"
    """The file is there, without its set-uid or set-gid bit, or its capabilities."""


@unique
class ApplyState(Enum):
    """How far an apply is, from its journal."""

    STARTED = "started"
    APPLIED = "applied"
    UNDOING = "undoing"
    UNDONE = "undone"


@frozen
class Resolution:
    """What to do about conflicts: in general, and for some paths and what lies below them (absolute)."""

    general: OnConflict = OnConflict.FAIL
    paths: tuple[tuple[str, OnConflict], ...] = ()

    def of(self, path: str) -> OnConflict:
        """What holds for one path: what was said of it, else of the nearest folder around it, else in general."""
        around = [(name, how) for name, how in self.paths if path == name or path.startswith(name.rstrip("/") + "/")]
        return max(around, key=lambda pair: len(pair[0]))[1] if around else self.general


@frozen
class Choice:
    """What of a fork is applied, and how. `paths` (absolute): only these and what lies below.

    `ignored`: what the project ignores too. `special`: devices, sockets and set-uid bits too. `active`: what the host
    runs by itself may be changed.
    """

    paths: tuple[str, ...] = ()
    resolution: Resolution = Resolution()
    ignored: bool = False
    special: bool = False
    active: bool = False
    trusted: tuple[str, ...] = ()
    """Patterns (fnmatch) of paths from a private path's top: where one matches, what the host runs may be changed."""


@frozen
class Conflict:
    """A path that cannot be applied as it is. `fork` and `host`: what each side did, a word or two.

    `…_lines`: added and removed since the base, where both sides are text. `host_time`: when the host's content was
    written, seconds of the clock. `other`: a path that says more, such as what the host made in a deleted folder.
    """

    path: str
    kind: ConflictKind
    fork: str
    host: str
    fork_lines: tuple[int, int] | None = None
    host_lines: tuple[int, int] | None = None
    host_time: float | None = None
    other: str | None = None


@frozen
class Applied:
    """What applying gave, or would give. `id` names it for undo; None where nothing was, or is to be, written.

    `changes`: what reaches the host. `equal`: how many of the fork's changes are there already. `ignored`: how many
    stay out because the project ignores them. `active`: what the host runs by itself and was not allowed. With
    `conflicts` or `active` nothing was written. `resolved`: paths of conflicts, and the side that was taken.
    """

    fork: str
    id: str | None = None
    total: int = 0
    changes: Changeset = Changeset(())
    equal: int = 0
    ignored: int = 0
    left_out: tuple[tuple[str, LeftOut], ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    active: tuple[str, ...] = ()
    resolved: tuple[tuple[str, OnConflict], ...] = ()
    written: bool = False
    before: str | None = None
    """When the fork was applied before, where nothing was left to do."""
    notices: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the answer is no."""
        return bool(self.conflicts or self.active)

    def counts(self) -> Counts:
        """How much reaches the host."""
        return self.changes.counts()


@frozen
class Undone:
    """What undoing an apply gave. With `conflicts` nothing was written."""

    id: str
    fork: str
    counts: Counts = Counts()
    paths: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    written: bool = False
    notices: tuple[str, ...] = ()


@frozen
class Decision:
    """What is to become of one path on the host. `relative` to its target.

    `substance`: kind and content are the fork's; `fields`: so are these of `mode`, `owner`, `xattrs`, `acl`. `merged`:
    the content that both changes give together. `through`: it stands for a folder that the host lacks.
    """

    change: Change
    relative: str
    substance: bool
    fields: tuple[str, ...] = ()
    merged: bytes | None = None
    through: bool = False
