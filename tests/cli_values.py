"""Values as the command line gets them from the API: whole, with every kind of field, built by hand."""

from hostfork.collect.changeset import Change, Changeset, Counts
from hostfork.errors import Code, ForkError
from hostfork.lifecycle.record import Outcome, PathOutcome, PathRecord, Problem, Record, Status
from hostfork.policy.plan import Alias, EndpointPlan, NestedMount, Notice, NoticeKind, PathPlan, Plan
from hostfork.policy.rules import EndpointRule, EndpointSearch, Environment, Policy, Rule
from hostfork.storage.contract import Guarantees, Offer, Refusal
from hostfork.vocabulary import (
    Access,
    BaseContent,
    ChangeClass,
    ChangeKind,
    Disposition,
    EndpointKind,
    EntryKind,
    Guarantee,
    Mechanism,
    Ownership,
    Require,
    SourceChanged,
    StorageKind,
)
from hostfork.workload.identity import ProcessIdentity

ODD = "/home/me/proj/\udcff\n:,\\"
"""A path with a byte that is no UTF-8, a newline, and what overlay options trip over."""


def plan(**changes):
    """A plan with one of everything."""
    offer = Offer(
        StorageKind.COPY, Guarantees(Guarantee.INDEPENDENT), "ext4 does not share blocks", 38 << 20, 1204
    )  # fmt: skip
    private = PathPlan(
        Access.PRIVATE, "/home/me/proj", "~/proj", "--private", True, 1, 2, "ext4", "", offer,
        (Refusal(Mechanism.BTRFS, "not on Btrfs"), Refusal(Mechanism.REFLINK, "no shared blocks", 95)), None,
        ("mnt",),
    )  # fmt: skip
    scratch = PathPlan(
        Access.SCRATCH, "/home/me/tmp", "/home/me/tmp", "--scratch", True, 1, 3, "ext4", tmpfs_size=1 << 20
    )
    cover = PathPlan(Access.HIDDEN, "/home/me/.local/state/hostfork", "", "hostfork", True, 1, 4, "ext4",
                     automatic=True)  # fmt: skip
    values = {
        "policy": "workspace",
        "paths": (private, scratch, cover),
        "nested_mounts": (NestedMount("/home/me/proj/mnt", "tmpfs", True, 3, 1, "/home/me/proj"),),
        "endpoints": (
            EndpointPlan("/home/me/proj/.run/db.sock", EndpointKind.SOCKET, False, 812, "postgres", 1, 9),
            EndpointPlan("/run/x.fifo", EndpointKind.FIFO, True, 0, "", 1, 10),
        ),
        "aliases": (Alias("/data/proj", "/home/me/proj", "bind"),),
        "notices": (
            Notice(NoticeKind.SUBREAPER, "processes are owned by a subreaper"),
            Notice(NoticeKind.NETWORK_SHARED, "localhost is shared", "/home/me/proj"),
        ),
        "neighbours": ("/tmp", "/home/me/.ssh"),
        "ownership": Ownership.CGROUP,
        "cgroup_parent": "/sys/fs/cgroup/user.slice",
        "user_namespace": True,
        "same_paths": True,
        "slave": True,
        "read_only_root": False,
        "pool": "/home/me/.local/state/hostfork/pool",
        "environment": Environment(True, (("A", "1"),)),
        "timeout": 60.0,
    }
    return Plan(**{**values, **changes})


CHANGES = (
    Change("/home/me/proj/.git/hooks/pre-commit", ChangeKind.CREATED, EntryKind.FILE, size=90, mode=0o755,
           active=True),
    Change("/home/me/proj/big.bin", ChangeKind.MODIFIED, EntryKind.FILE, EntryKind.FILE, 4096, 1024, 0o644, 0o644),
    Change("/home/me/proj/data", ChangeKind.TYPE, EntryKind.SYMLINK, EntryKind.FOLDER, target="/big/data"),
    Change("/home/me/proj/node_modules", ChangeKind.CREATED, EntryKind.FOLDER, class_=ChangeClass.DEPENDENCY,
           ignored_by="/home/me/proj/node_modules"),
    Change("/home/me/proj/node_modules/a", ChangeKind.CREATED, EntryKind.FILE, size=1,
           class_=ChangeClass.DEPENDENCY, ignored_by="/home/me/proj/node_modules"),
    Change("/home/me/proj/old.txt", ChangeKind.DELETED, EntryKind.FILE, EntryKind.FILE, old_size=3, old_mode=0o644),
    Change("/home/me/proj/run.sh", ChangeKind.METADATA, EntryKind.FILE, EntryKind.FILE, 1, 1, 0o755, 0o644,
           fields=("mode", "xattrs")),
    Change("/home/me/proj/src", ChangeKind.CREATED, EntryKind.FOLDER, mode=0o755),
    Change("/home/me/proj/src/new.py", ChangeKind.CREATED, EntryKind.FILE, size=120, mode=0o644),
    Change(ODD, ChangeKind.MODIFIED, EntryKind.FILE, EntryKind.FILE, 5, 5, 0o600, 0o644, fields=("mode",),
           base_gone=True),
)  # fmt: skip


def changeset():
    """A changeset with every kind of change."""
    return Changeset(CHANGES)


def outcome(**changes):
    """A run that changed something and was kept."""
    counts = Counts(created=3, modified=1, deleted=2)
    values = {
        "fork": "calm-otter",
        "status": Status(exit=0),
        "paths": (
            PathOutcome("/home/me/proj", Mechanism.COPY, Guarantee.INDEPENDENT, 38 << 20, BaseContent.KEPT,
                        SourceChanged.IRRELEVANT),
            PathOutcome(ODD, Mechanism.OVERLAY, Guarantee.LIVE, 0, BaseContent.WHILE_SOURCE_UNCHANGED,
                        SourceChanged.NOT_CHECKED),
        ),
        "ownership": Ownership.CGROUP,
        "changes": counts,
        "kept": True,
        "timings": (("plan", 0.01), ("command", 1.5)),
        "bytes_kept": 12 << 10,
        "changes_by_path": (("/home/me/proj", counts), (ODD, Counts())),
    }  # fmt: skip
    return Outcome(**{**values, **changes})


def record(**changes):
    """A kept fork of a finished run."""
    values = {
        "name": "calm-otter",
        "schema": 1,
        "created": "2026-01-02T03:04:05Z",
        "boot_id": "b",
        "command": ("make", "te\udcffst"),
        "cwd": "/home/me/proj",
        "policy": "workspace",
        "pool": "/home/me/.local/state/hostfork/pool",
        "paths": (
            PathRecord(Access.PRIVATE, "/home/me/proj", "~/proj", True, "calm-otter.0", StorageKind.COPY,
                       Mechanism.COPY, Guarantee.INDEPENDENT, bytes_copied=38 << 20),
            PathRecord(Access.PRIVATE, ODD, "odd", False, "calm-otter.1", StorageKind.LIVE,
                       Mechanism.OVERLAY, Guarantee.LIVE,
                       base_content=BaseContent.KEPT, source_changed=SourceChanged.CHANGED),
            PathRecord(Access.SCRATCH, "/home/me/tmp", "~/tmp", True, "calm-otter.2", StorageKind.SCRATCH),
        ),
        "ownership": Ownership.CGROUP,
        "same_paths": False,
        "cgroup": "/sys/fs/cgroup/hostfork-calm-otter",
        "owner": ProcessIdentity("b", 1, 1),
        "disposition": Disposition.OPEN,
        "status": Status(exit=3),
        "ended": "2026-01-02T03:05:05Z",
        "counts": Counts(created=6),
        "torn": True,
    }  # fmt: skip
    return Record(**{**values, **changes})


def problem():
    """An error inside a result."""
    return Problem("storage.no-space", "the pool is full", "copy", ODD, 28, "hostfork discard")


def error():
    """An error with every field."""
    return ForkError(Code.FORK_CORRUPT, "the record of odd-heron cannot be read", path=ODD, place="--name",
                     step="load", errno=5, details=("line 1",), hint="hostfork discard odd-heron")  # fmt: skip


def policy():
    """A policy with one of everything."""
    return Policy(
        "mine", "Mine.",
        (Rule(Access.PRIVATE, "/home/me/proj", "~/proj", "mine.toml: rule[0]", Mechanism.COPY),
         Rule(Access.PRIVATE, ODD, ODD, "mine.toml: rule[1]", guarantee=Guarantee.LIVE, optional=True),
         Rule(Access.SCRATCH, "/tmp", "/tmp", "mine.toml: rule[2]", tmpfs_size=1 << 20)),
        (EndpointRule("/run/x", "/run/x", "mine.toml: endpoints.paths[0]"),),
        EndpointSearch.LISTED, (Require.CGROUP,), Environment(False, (("CI", "1"),)), timeout=9.0,
    )  # fmt: skip
