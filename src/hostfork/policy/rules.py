"""What a user asks for, as values: a policy and its rules. Resolving and judging them is `plan`'s work."""

from __future__ import annotations

from enum import Enum, unique

from hostfork.values import frozen
from hostfork.vocabulary import Access, Guarantee, Mechanism, Prefer, Require, Unreadable


@frozen
class Rule:
    """What one path gets.

    `path` is absolute and normal (no `.`, `..`, `~`), symlinks not yet followed; `written` is what the user typed.
    `place` names where the rule stands: `--private` or `workspace.toml: rule[0]`. For `private`, at most one of
    `mechanism` and `guarantee` is asked for by name; `lesser` is what will do where that cannot be had, in the order in
    which it is tried, and `otherwise` the access where nothing of it can. `tmpfs_size`, in bytes, only for `scratch`.
    `line`: the retained tree that it starts from, not from what is at its path.
    `optional`: a path that is not there is passed over. `from_option`: typed for this run, so it
    wins over a policy's rule for the path.
    """

    access: Access
    path: str
    written: str
    place: str
    mechanism: Mechanism | None = None
    guarantee: Guarantee | None = None
    tmpfs_size: int | None = None
    optional: bool = False
    from_option: bool = False
    lesser: tuple[Mechanism | Guarantee, ...] = ()
    otherwise: Access | None = None
    line: str | None = None


@frozen
class EndpointRule:
    """A host socket or FIFO that must stay the host's at its own path."""

    path: str
    written: str
    place: str
    optional: bool = False


@unique
class EndpointSearch(Enum):
    """Whether live listeners and open FIFOs under private paths are looked for and kept."""

    AUTOMATIC = "automatic"
    LISTED = "listed"


@frozen
class Default:
    """A variable that the command gets where nobody has set it, for a tool that would link from its cache.

    It counts where the cache is there and lies on another mount than the private path in which the command works, and
    where one of `marks` is there, if there are any. `caches`: from `/`, `~/` or a variable; the first of which the
    variable is set is the cache. `value` None: the cache's path.
    """

    name: str
    value: str | None
    caches: tuple[str, ...]
    marks: tuple[str, ...] = ()


@frozen
class Environment:
    """Changes to the caller's environment: `clear` first, then `variables` in order, `defaults` where none is set."""

    clear: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    defaults: tuple[Default, ...] = ()


@frozen
class Quiesce:
    """What holds writers still while a fork is made: a shell command and its undoing, a cgroup to freeze.

    `undo` is run in any case, also where `command` failed. `cgroup` is its folder, or its name from the root.
    """

    command: str | None = None
    undo: str | None = None
    cgroup: str | None = None

    def __bool__(self) -> bool:
        return self != Quiesce()


@frozen
class Policy:
    """What the user asks for. `share_all`: no rule is needed. `host_mounts_appear`: mounts made later on the host show.

    `ssh_config_copies`: an ordinary user's ssh sees private copies of root's readable `ssh_config.d` files, since
    the originals look badly owned in a user namespace. `timeout` in seconds, `storage_limit` in bytes.
    """

    name: str
    description: str = ""
    rules: tuple[Rule, ...] = ()
    endpoints: tuple[EndpointRule, ...] = ()
    endpoint_search: EndpointSearch = EndpointSearch.AUTOMATIC
    requires: tuple[Require, ...] = ()
    environment: Environment = Environment()
    share_all: bool = False
    host_mounts_appear: bool = True
    ssh_config_copies: bool = True
    timeout: float | None = None
    prefer: Prefer = Prefer.NATIVE
    unreadable: Unreadable = Unreadable.REFUSE
    quiesce: Quiesce = Quiesce()
    storage_limit: int | None = None
    private_git: bool = False
    """Where git keeps what belongs to a private work tree is private too, if it lies elsewhere."""
    approval: bool = False
    """Changes are applied only once somebody outside the fork has approved them."""
    trusted: tuple[str, ...] = ()
    """Patterns of paths, from a private path's top: what the host runs by itself may be applied where one matches."""


@frozen
class RuleOptions:
    """The command line's (or a program's) rules, as typed; they are added to the policy's and win over its switches."""

    private: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    endpoint: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    environment: Environment = Environment()
    share_all: bool = False
    timeout: float | None = None
    prefer: str | None = None
    unreadable: str | None = None
    quiesce: Quiesce = Quiesce()
    storage_limit: int | None = None
    private_git: bool = False
    made: tuple[Rule, ...] = ()
    """Rules that are made already, of a baseline's trees."""
