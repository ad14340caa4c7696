"""What a plan says, as values: every path with mechanism and reason, what was refused, and what is worth knowing."""

from __future__ import annotations

from enum import Enum, unique

from hostfork.policy.rules import EndpointSearch, Environment, Policy, Quiesce
from hostfork.storage.contract import Offer, Refusal
from hostfork.values import frozen
from hostfork.vocabulary import Access, EndpointKind, Ownership


@frozen
class PathPlan:
    """One rule, resolved. `path` has no symlink in it; `written` is the user's word for it.

    `omit`: paths relative to it that belong to something else. `offer` is the chosen mechanism of a private path,
    `refused` what could not serve, best first. `device` and `inode` are the host's.
    """

    access: Access
    path: str
    written: str
    place: str
    folder: bool
    device: int
    inode: int
    filesystem: str
    reason: str = ""
    offer: Offer | None = None
    refused: tuple[Refusal, ...] = ()
    tmpfs_size: int | None = None
    omit: tuple[str, ...] = ()
    line: str | None = None
    """The retained tree that it starts from."""
    automatic: bool = False
    """Added by hostfork (the state folder's cover, ssh's configuration), not asked for."""


@frozen
class EndpointPlan:
    """A host socket or FIFO that is put back. `asked`: named by the user, else found alive below a private path."""

    path: str
    kind: EndpointKind
    asked: bool
    pid: int
    process: str
    device: int
    inode: int


@frozen
class NestedMount:
    """A host mount beneath a private path that is put back with all that is mounted beneath it: shared, or read-only.

    `device` and `inode` are 0 where this user may not look at it (another user's FUSE mount): nothing to verify then.
    """

    path: str
    filesystem: str
    folder: bool
    device: int
    inode: int
    inside: str
    read_only: bool = False


@frozen
class Alias:
    """Another way to the original of a private path: writes through it change the host's."""

    path: str
    of: str
    how: str


@frozen
class ConfigCopy:
    """A file of root's, readable to all, that a program refuses in a user namespace because its owner shows as nobody.

    A file of the user's with the same bytes and `mode` is attached read-only over `path`, which has no symlink in it.
    `device` and `inode` are the original's: verify must find another one.
    """

    path: str
    mode: int
    device: int
    inode: int


@unique
class NoticeKind(Enum):
    """Why something is said. The second value: it is weaker than the default promise and printed in every run."""

    def __init__(self, text: str, weaker: bool) -> None:
        self.text = text
        self.weaker = weaker

    SUBREAPER = ("subreaper", True)
    LIVE_SOURCE = ("live-source", False)
    ENDPOINT_NOT_KEPT = ("endpoint-not-kept", True)
    RELOCATED = ("relocated", True)
    SET_UID = ("set-uid", False)
    FOREIGN_OWNERS = ("foreign-owners", False)
    SSH_CONFIG = ("ssh-config", False)
    NETWORK_SHARED = ("network-shared", False)
    HOST_MOUNTS_APPEAR = ("host-mounts-appear", False)
    FILE_NOT_REPLACEABLE = ("file-not-replaceable", False)
    SCRATCH_DROPPED = ("scratch-dropped", False)
    POOL_INSIDE = ("pool-inside", False)
    NO_WATCHERS = ("no-watchers", False)
    FOLDER_RENAME = ("folder-rename", False)
    HARD_LINKS = ("hard-links", False)
    INODE_NUMBERS = ("inode-numbers", True)
    LAYERS = ("layers", False)
    UNREADABLE = ("unreadable", False)
    RESOLVED = ("resolved", False)
    NOT_PRIVATE = ("not-private", False)
    WRITERS = ("writers", False)
    SEVERAL_INSTANTS = ("several-instants", False)
    QUIESCED = ("quiesced", False)
    SETTING = ("setting", False)
    GIT_SHARED = ("git-shared", True)
    GIT_ABOVE = ("git-above", False)


@frozen
class Notice:
    kind: NoticeKind
    sentence: str
    path: str | None = None


@frozen
class Plan:
    """What will be done, in the order in which it is done: `paths` outer first.

    `user_namespace`: an own user namespace is made. `same_paths` false is the relocated mode. `neighbours`: writable
    shared places that commonly matter and exist here.
    """

    policy: str
    paths: tuple[PathPlan, ...]
    nested_mounts: tuple[NestedMount, ...]
    endpoints: tuple[EndpointPlan, ...]
    aliases: tuple[Alias, ...]
    notices: tuple[Notice, ...]
    neighbours: tuple[str, ...]
    ownership: Ownership
    cgroup_parent: str | None
    user_namespace: bool
    same_paths: bool
    slave: bool
    read_only_root: bool
    pool: str
    environment: Environment
    timeout: float | None
    config_copies: tuple[ConfigCopy, ...] = ()
    quiesce: Quiesce = Quiesce()
    storage_limit: int | None = None
    """Bytes that the fork may take in the pool, what is copied at the start included."""
    stable: bool = False
    """No host process may be writing below a private path while it is taken: looked at again once they are quiesced."""
    skip_unreadable: bool = False
    """What this user cannot read is left out of copies and clones."""
    endpoint_search: EndpointSearch = EndpointSearch.AUTOMATIC
    ssh_config_copies: bool = True
    asked: Policy | None = None
    """What it was made of."""
