"""What is known about one fork: the record, its states and the transitions between them.

A record is saved before the things that it names are made, so that a crash leaves an orphan with a name.
"""

from __future__ import annotations

from hostfork.collect.changeset import Counts
from hostfork.errors import Code, ForkError
from hostfork.storage.contract import Lost
from hostfork.values import frozen
from hostfork.vocabulary import (
    Access,
    Activity,
    BaseContent,
    Disposition,
    Guarantee,
    Mechanism,
    Ownership,
    Require,
    SourceChanged,
    StorageKind,
)
from hostfork.workload.identity import ProcessIdentity

SCHEMA = 1

ACTIVITY_AFTER: dict[Activity, frozenset[Activity]] = {
    Activity.PREPARING: frozenset({Activity.RUNNING, Activity.IDLE, Activity.ORPHANED, Activity.RELEASING}),
    Activity.RUNNING: frozenset({Activity.IDLE, Activity.FROZEN, Activity.ORPHANED, Activity.RELEASING}),
    Activity.FROZEN: frozenset({Activity.RUNNING, Activity.ORPHANED}),
    Activity.IDLE: frozenset({Activity.RUNNING, Activity.RELEASING}),
    Activity.ORPHANED: frozenset({Activity.IDLE, Activity.RELEASING}),
    Activity.RELEASING: frozenset({Activity.RECLAIMING}),
    Activity.RECLAIMING: frozenset(),
}

DISPOSITION_AFTER: dict[Disposition, frozenset[Disposition]] = {
    Disposition.OPEN: frozenset(
        {Disposition.SEALED, Disposition.AWAITING_APPROVAL, Disposition.APPLIED, Disposition.DISCARDED,
         Disposition.EXPIRED}
    ),
    Disposition.SEALED: frozenset(
        {Disposition.OPEN, Disposition.AWAITING_APPROVAL, Disposition.APPLIED, Disposition.DISCARDED,
         Disposition.EXPIRED}
    ),
    Disposition.AWAITING_APPROVAL: frozenset(
        {Disposition.OPEN, Disposition.SEALED, Disposition.APPLIED, Disposition.DISCARDED}
    ),
    Disposition.APPLIED: frozenset(
        {Disposition.OPEN, Disposition.SEALED, Disposition.AWAITING_APPROVAL, Disposition.DISCARDED,
         Disposition.EXPIRED}
    ),
    Disposition.DISCARDED: frozenset(),
    Disposition.EXPIRED: frozenset(),
}  # fmt: skip


_DECIDED = {
    Disposition.OPEN: ("is open", "hostfork show {}"),
    Disposition.SEALED: ("is sealed", "hostfork unseal {}"),
    Disposition.AWAITING_APPROVAL: ("waits for approval", "hostfork approve {0} · hostfork unseal {0} withdraws it"),
    Disposition.APPLIED: ("is applied", "hostfork undo {}"),
    Disposition.DISCARDED: ("is being discarded", "hostfork log {}"),
    Disposition.EXPIRED: ("has expired", "hostfork log {}"),
}
"""What was decided, said of a fork, and the command that helps."""


@frozen
class Who:
    """Who asked for something. `sudo`: who called sudo(8). `inside`: the fork from which it was asked.

    `tags` are words of their own that somebody gave it: name and value.
    """

    uid: int
    argv: tuple[str, ...] = ()
    sudo: str | None = None
    inside: str | None = None
    tags: tuple[tuple[str, str], ...] = ()


@frozen
class Approval:
    """Who approved what: `content` is the id of the changes as they were then. `at` is ISO-8601 UTC."""

    by: Who
    at: str
    content: str


@frozen
class Asked:
    """What the policy said of the fork's promises and of applying its changes, as in `Policy`.

    `digest` tells the policy from another one, options included.
    """

    digest: str = ""
    requires: tuple[Require, ...] = ()
    approval: bool = False
    trusted: tuple[str, ...] = ()


@frozen
class Host:
    """Where a fork was made: the machine, its kernel, and the version of hostfork."""

    name: str = ""
    kernel: str = ""
    hostfork: str = ""


@frozen
class PathRecord:
    """One private or scratch path of a fork. `key` names its storage in the pool, of the kind `storage`.

    Scratch has no mechanism.
    """

    access: Access
    path: str
    written: str
    folder: bool
    key: str
    storage: StorageKind
    mechanism: Mechanism | None = None
    guarantee: Guarantee | None = None
    omit: tuple[str, ...] = ()
    bytes_copied: int = 0
    unwritable: tuple[str, ...] = ()
    """Relative paths, the first hundred, that the user cannot write on the host and so not in the fork ("" the top)."""
    line: str | None = None
    """The line of a named baseline that it lies over, in the same pool."""
    base_content: BaseContent = BaseContent.WHILE_SOURCE_UNCHANGED
    source_changed: SourceChanged = SourceChanged.NOT_CHECKED
    taken: tuple[float, float] | None = None
    """When it was taken, from and until, seconds of the clock: several paths are never one instant."""
    skipped: tuple[str, ...] = ()
    """Relative paths that the user cannot read; they are in `omit` too: stand-ins are there, and are not collected."""
    in_repository: str | None = None
    """The top of the git work tree that it lies in."""
    head: str | None = None
    """The commit that this work tree was at."""
    lost: tuple[Lost, ...] = ()
    """What copies, the first hundred such, could not keep of their originals."""


@frozen
class Problem:
    """An error as JSON carries it (see `errors`)."""

    code: str
    message: str
    step: str | None = None
    path: str | None = None
    errno: int | None = None
    hint: str | None = None


@frozen
class Status:
    """How the command ended: `exit`, or `signal`; both None where it never ran or nobody saw its end.

    `storage_limited`: the fork took more than its storage limit, and the command was ended if it still ran.
    """

    exit: int | None = None
    signal: int | None = None
    timed_out: bool = False
    storage_limited: bool = False
    error: Problem | None = None


@frozen
class Parent:
    """The fork that a branch is of, by its name and what tells it from another one of that name."""

    name: str
    id: str


@frozen
class Record:
    """One fork. Times are ISO-8601 UTC. `owner`, `keeper`, `command_process` are judged by identity, not by lock.

    `cgroup` is the fork's own group's folder. `mount_namespace` is the inode of the view's namespace.
    """

    name: str
    schema: int
    created: str
    boot_id: str
    command: tuple[str, ...]
    cwd: str
    policy: str
    pool: str
    paths: tuple[PathRecord, ...]
    ownership: Ownership
    same_paths: bool
    cgroup: str | None = None
    owner: ProcessIdentity | None = None
    keeper: ProcessIdentity | None = None
    command_process: ProcessIdentity | None = None
    mount_namespace: int | None = None
    activity: Activity = Activity.PREPARING
    disposition: Disposition = Disposition.OPEN
    status: Status | None = None
    ended: str | None = None
    counts: Counts | None = None
    storage_limit: int | None = None
    """Bytes that it may take while its command runs."""
    torn: bool = False
    """The machine went down before the changes were on disk."""
    ignored_only: bool = False
    """There are changes, and all of them lie in folders that the project ignores."""
    id: str = ""
    """Tells it from another fork of that name."""
    by: Who | None = None
    """Who made it."""
    asked: Asked = Asked()
    made_on: Host = Host()
    approved: Approval | None = None
    """Its changes may be applied as they were then; void as soon as it is opened again."""
    lasting: bool = False
    """Made to be entered: kept whatever it holds, its storage whole, until it is discarded or expires."""
    holder: ProcessIdentity | None = None
    """Who holds the view while it is entered; each command in it has an owner and a keeper of its own."""
    parent: Parent | None = None
    """Of a branch: what that one held was its base. It may be gone, and is no part of it."""
    ports: tuple[tuple[str, int], ...] = ()
    """Ports that were free when it was made, by the variable that tells each to its commands."""


@frozen
class ForkProcess:
    """One process of a running fork. `memory`: resident bytes, pages that it shares with others included."""

    pid: int
    name: str
    memory: int


@frozen
class PathOutcome:
    """What became of one private path; `skipped` and `lost` as in its record."""

    path: str
    mechanism: Mechanism
    guarantee: Guarantee
    bytes_copied: int
    base_content: BaseContent
    source_changed: SourceChanged
    skipped: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()


@frozen
class Outcome:
    """What a run gave. `timings` in seconds by phase. `leftovers`: sentences about what a release could not finish.

    `released`: it is off the list. `reclaiming`: the space of what went is not all back yet, but comes by itself.
    `storage_taken`: what the fork took when its command ended, in bytes, measured where there is a `storage_limit`.
    """

    fork: str
    status: Status
    paths: tuple[PathOutcome, ...] = ()
    ownership: Ownership | None = None
    same_paths: bool = True
    changes: Counts = Counts()
    kept: bool = False
    released: bool = False
    leftovers: tuple[str, ...] = ()
    timings: tuple[tuple[str, float], ...] = ()
    notices: tuple[str, ...] = ()
    bytes_kept: int = 0
    changes_by_path: tuple[tuple[str, Counts], ...] = ()
    reclaiming: bool = False
    storage_limit: int | None = None
    storage_taken: int | None = None
    active: tuple[str, ...] = ()
    """Changed paths that the host runs by itself."""


@frozen
class Recovered:
    """What was done about one fork (`name` "" for the pool). `leftovers` could not be put right yet."""

    name: str
    what: str
    leftovers: tuple[str, ...] = ()


@frozen
class Reclaiming:
    """Storage of a fork that is off the list, which is not erased yet. The fork's name may be another's by now.

    `active`: a process is at it. `problem`: why a part of it could not be erased and what helps, in a sentence; `path`
    is that part then, else all of it.
    """

    fork: str
    pool: str
    path: str
    active: bool
    errno: int | None = None
    problem: str | None = None


def must_be_open(record: Record, what: str) -> None:
    """Refuse to write a fork that is sealed, waits for approval or goes. `what`: "entered", "restored".

    One that was applied may be written; it is open then. Raises ForkError `fork.decided`.
    """
    if record.disposition not in (Disposition.OPEN, Disposition.APPLIED):
        raise _forbidden(record, f"cannot be {what}")


def check_decision(record: Record, wanted: Disposition) -> None:
    """Raises ForkError `fork.decided` where the table has no way from what was decided to that."""
    if wanted is not record.disposition and wanted not in DISPOSITION_AFTER[record.disposition]:
        raise _forbidden(record, f"cannot become {wanted.value}")


def _forbidden(record: Record, what: str) -> ForkError:
    said, hint = _DECIDED[record.disposition]
    return ForkError(Code.FORK_DECIDED, f"{record.name} {said} and {what}", hint=hint.format(record.name))


def observed_activity(record: Record) -> Activity:
    """What the fork is doing now: the record's word, checked against who still lives."""
    if record.activity is Activity.IDLE:
        return Activity.IDLE
    if record.activity is Activity.RUNNING and record.holder is not None:
        return _running(record) if record.holder.alive() else Activity.ORPHANED
    owner_lives = record.owner is not None and record.owner.alive()
    keeper_lives = record.keeper is not None and record.keeper.alive()
    if owner_lives or (keeper_lives and record.activity is Activity.RUNNING):
        return _running(record) if record.activity is Activity.RUNNING else record.activity
    return Activity.ORPHANED


def _running(record: Record) -> Activity:
    """Running, or frozen as its cgroup says (cgroups(7))."""
    try:
        with open(f"{record.cgroup}/cgroup.freeze", "rb") as file:
            return Activity.FROZEN if file.read(1) == b"1" else Activity.RUNNING
    except OSError:
        return Activity.RUNNING
