"""Puts together what this host offers: the helper's trial of namespaces, a place for the cgroup, /proc, the pool."""

from __future__ import annotations

import errno
import os

from hostfork.helper.protocol import Ready
from hostfork.lifecycle.request import Request
from hostfork.lifecycle.store import Store, state_folder
from hostfork.policy.host import CgroupFacts, HostFacts, Namespaces, denials, observe
from hostfork.policy.rules import Policy
from hostfork.storage.pool import open_pool
from hostfork.vocabulary import Access, Ownership
from hostfork.workload.launch import Helper


def host_facts(policy: Policy, request: Request, helper: Helper, cwd: str) -> HostFacts:
    """Everything that a plan depends on. Makes state folder and pool, which mechanisms are tried in.

    Raises ViewError where the helper died, ForkError `fork.state`, StorageError `storage.pool`.
    """
    state = state_folder()
    store = Store(state)
    store.make_folders()
    pool, others = _pools(store, policy, request.pool)
    return observe(
        policy,
        namespaces=lambda: namespaces(helper.ready()),
        cgroup=cgroup(helper),
        state=state,
        pool=pool,
        others=others,
        cwd=cwd,
    )


def _pools(store: Store, policy: Policy, asked: str | None) -> tuple[str, tuple[str, ...]]:
    """The pool of this fork, and further ones of this user's, which no view may show."""
    pool = open_pool(store.pool if asked is None else os.path.abspath(asked), asked is not None)
    own = os.stat(pool).st_dev
    private = [rule.path for rule in policy.rules if rule.access is Access.PRIVATE]
    elsewhere = asked is None and any(_device(path) != own for path in private)
    if asked is None and not elsewhere and not os.path.isdir(os.path.join(store.root, "pools")):
        return pool, ()
    from hostfork.lifecycle import pools

    if asked is not None:
        pools.remember(store, pool)
    elif elsewhere:
        pool = pools.nearest(store, pool, private)
    return pool, tuple(other for other in pools.pools(store) if other != pool and os.path.isdir(other))


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None  # refused later, or left out


def namespaces(ready: Ready) -> Namespaces:
    """What the helper's trial means, with the setting that is the likeliest reason of a refusal."""
    user = os.geteuid() != 0
    if ready.errno == 0:
        return Namespaces(True, user)
    return Namespaces(False, user, ready.step, ready.errno, _why_denied(ready))


def cgroup(helper: Helper) -> CgroupFacts:
    """Who can own the process tree that this helper starts."""
    place = helper.place()
    ownership = Ownership.SUBREAPER if place.parent is None else Ownership.CGROUP
    return CgroupFacts(ownership, place.parent, place.reason)


def _why_denied(ready: Ready) -> str:
    known = denials()
    if known:
        return known[0]
    if ready.errno == errno.ENOSPC:
        return "the limit of namespaces is reached (user.max_user_namespaces, user.max_mnt_namespaces)"
    if ready.errno == errno.EPERM:
        return "a container or sandbox around hostfork gives no right to make namespaces"
    return os.strerror(ready.errno)
