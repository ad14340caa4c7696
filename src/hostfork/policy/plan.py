"""A policy resolved against host facts and choices. Pure: the same values give the same plan; nothing is made.

facts = observe(policy, …)                     what the host offers          (host)
for rule, source in sources(policy, facts):    what needs storage
    choices[source.path] = choose(…)           which mechanism               (storage)
plan = make_plan(policy, facts, choices)       what will be done, and why
"""

from __future__ import annotations

from collections.abc import Mapping

from hostfork.policy.aliases import aliases
from hostfork.policy.demands import check_requires, namespaces_denied, refuse_relocated, unsupported
from hostfork.policy.host import HostFacts, PathFacts
from hostfork.policy.layout import Layout, Placed, resolve
from hostfork.policy.load import demand_rules
from hostfork.policy.notices import notices
from hostfork.policy.planned import (
    Alias,
    ConfigCopy,
    EndpointPlan,
    NestedMount,
    Notice,
    NoticeKind,
    PathPlan,
    Plan,
)
from hostfork.policy.rules import Policy, Rule
from hostfork.storage.choose import Choice
from hostfork.storage.contract import Source
from hostfork.vocabulary import Access, EntryKind, Require, Unreadable

__all__ = [
    "Alias",
    "ConfigCopy",
    "EndpointPlan",
    "NestedMount",
    "Notice",
    "NoticeKind",
    "PathPlan",
    "Plan",
    "make_plan",
    "sources",
]

_SSH_MODE = 0o444


def sources(policy: Policy, facts: HostFacts) -> tuple[tuple[Rule, Source], ...]:
    """The private and scratch rules that have an effect, resolved, outer first; hostfork's own covers are not there.

    `omit` of each is also that of its path in the plan. Raises PolicyError and StorageError as `make_plan` does for
    paths that cannot be used.
    """
    layout, skip = resolve(policy, facts), policy.unreadable is Unreadable.SKIP
    return tuple(
        (placed.rule, Source(placed.path, layout.omit(placed), _mounts_beneath(placed, layout), skip))
        for placed in layout.placed
        if placed.access in (Access.PRIVATE, Access.SCRATCH) and not placed.automatic
    )


def make_plan(policy: Policy, facts: HostFacts, choices: Mapping[str, Choice], *, relocated: bool = False) -> Plan:
    """The plan. `choices` has a choice for the resolved path of every private rule that `sources` gave.

    `relocated`: no namespaces, private folders lie at another path. Raises PolicyError (`policy.bad-path`,
    `policy.conflict`, `policy.nothing-private`, `policy.require`, `policy.usage`), HostError (`host.namespaces`) and
    StorageError (`storage.source`, `storage.unsupported`); nothing was made then.
    """
    served = {path: choice.offer is not None for path, choice in choices.items()}
    layout = resolve(policy, facts, served)
    demand_rules(policy, tuple(placed.rule for placed in layout.named))
    _demand_private(layout, choices)
    if relocated:
        refuse_relocated(layout, choices)
    elif not facts.namespaces.available:
        raise namespaces_denied(facts)
    paths = tuple(
        _path_plan(placed, layout, choices) for placed in layout.placed if not (relocated and placed.automatic)
    )
    check_requires(policy, layout, paths, same_paths=not relocated)
    read_only_root = any(placed.access is Access.READ_ONLY and placed.path == "/" for placed in layout.placed)
    user_namespace = facts.namespaces.user and not relocated
    slave = policy.host_mounts_appear and not read_only_root and not relocated
    copies = _config_copies(layout) if user_namespace and policy.ssh_config_copies else ()
    plan = Plan(
        policy=policy.name,
        paths=paths,
        nested_mounts=() if relocated else layout.nested,
        endpoints=() if relocated else layout.endpoints,
        aliases=() if relocated else aliases(layout),
        notices=(),
        neighbours=_neighbours(layout),
        ownership=facts.cgroup.ownership,
        cgroup_parent=facts.cgroup.parent,
        user_namespace=user_namespace,
        same_paths=not relocated,
        slave=slave,
        read_only_root=read_only_root,
        pool=facts.pool,
        environment=policy.environment,
        timeout=policy.timeout,
        config_copies=copies,
        quiesce=policy.quiesce,
        storage_limit=policy.storage_limit,
        stable=Require.STABLE in policy.requires,
        skip_unreadable=policy.unreadable is Unreadable.SKIP,
        endpoint_search=policy.endpoint_search,
        ssh_config_copies=policy.ssh_config_copies,
        asked=policy,
    )
    if facts.settings and not relocated:
        from hostfork.policy.settings import with_settings

        return with_settings(notices(plan, layout), layout)
    return notices(plan, layout)


def _demand_private(layout: Layout, choices: Mapping[str, Choice]) -> None:
    """Raise where nothing of what was to be private can be: what its rules say otherwise is not what was meant."""
    if any(placed.access is Access.PRIVATE for placed in layout.placed):
        return
    for placed in layout.placed:
        if placed.otherwise and placed.path in choices:
            raise unsupported(placed.rule, placed.path, choices[placed.path])


def _path_plan(placed: Placed, layout: Layout, choices: Mapping[str, Choice]) -> PathPlan:
    rule, facts = placed.rule, placed.facts
    choice = choices[placed.path] if placed.access is Access.PRIVATE else choices.get(placed.path)
    if choice is not None and choice.offer is None and not placed.otherwise:
        raise unsupported(rule, placed.path, choice)
    mount = layout.table.mount_of(placed.path)
    return PathPlan(
        access=placed.access,
        path=placed.path,
        written=rule.written,
        place=rule.place,
        folder=facts.folder,
        device=facts.device,
        inode=facts.inode,
        filesystem="" if mount is None else mount.filesystem,
        reason=_reason(placed, choice),
        offer=None if choice is None else choice.offer,
        refused=() if choice is None else choice.refused,
        tmpfs_size=rule.tmpfs_size,
        line=rule.line,
        omit=layout.omit(placed) if placed.access in (Access.PRIVATE, Access.SCRATCH) else (),
        automatic=placed.automatic,
    )


def _reason(placed: Placed, choice: Choice | None) -> str:
    if placed.automatic:
        return "hostfork's own folder, which no command sees"
    if placed.otherwise:
        why = "which nothing gives here" if placed.facts.readable else "since this user cannot read it"
        return f"instead of private, {why}"
    return "" if choice is None or choice.offer is None else choice.offer.reason


def _mounts_beneath(placed: Placed, layout: Layout) -> tuple[str, ...]:
    return tuple(entry.point for entry in layout.table.beneath(placed.path))


def _config_copies(layout: Layout) -> tuple[ConfigCopy, ...]:
    """Copies over the originals, where those can be seen at all."""
    gone = (Access.SCRATCH, Access.HIDDEN)
    seen: list[PathFacts] = []
    for facts in layout.facts.ssh_configs:
        over = layout.over(facts.path)
        if over is None or over.access not in gone:
            seen.append(facts)
    unique = {facts.path: facts for facts in seen}
    return tuple(ConfigCopy(facts.path, _SSH_MODE, facts.device, facts.inode) for facts in unique.values())


def _neighbours(layout: Layout) -> tuple[str, ...]:
    """Writable shared places that no rule speaks of. A read-only rule does not stop connections to a socket."""
    from hostfork.policy.layout import nearest

    found = []
    for facts in layout.facts.neighbours:
        over = nearest(facts.path, layout.named)
        connects = over is not None and over.access is Access.READ_ONLY and facts.kind is EntryKind.SOCKET
        if over is None or connects:
            found.append(facts.path)
    return tuple(found)
