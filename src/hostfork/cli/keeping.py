"""What is kept, what expired and by which rules, as JSON documents (see `documents`)."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.documents import SCHEMA, argv, exact, moment, text, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]


def overview(value: api.Overview) -> Document:
    """What takes space."""
    return {
        "schema": SCHEMA,
        "holders": [_holder(one) for one in value.holders],
        "pools": [_pool(one) for one in value.pools],
        "rules": rules(value.rules),
        "gc_problem": None if value.gc_problem is None else text(value.gc_problem),
    }


def _holder(one: api.Holder) -> Document:
    space = one.space
    return {
        "kind": one.kind,
        "name": text(one.name),
        "state": one.state,
        **exact("pool", one.pool or None),
        "space": None if space is None else {
            "apparent": space.apparent,
            "exclusive": space.exclusive,
            "shared": space.shared,
            "inodes": space.inodes,
            "upper_bound": space.upper_bound,
            "lower_bound": space.lower_bound,
            "base_beside": space.base_beside,
        },
        "kept": one.kept,
        "pinned": one.pinned,
        "last_use": known_moment(one.last_use),
        "goes": known_moment(one.goes),
        "problem": None if one.problem is None else text(one.problem),
        **exact("path", one.path),
    }  # fmt: skip


def _pool(one: api.PoolUse) -> Document:
    return {
        **exact("path", one.path),
        "filesystem": text(one.filesystem),
        "total": one.total,
        "free": one.free,
        "holders": one.holders,
        "exclusive": one.exclusive,
        "upper_bound": one.upper_bound,
        "lower_bound": one.lower_bound,
        "kept": one.kept,
        "baselines": one.baselines,
        "checkpoints": one.checkpoints,
        "most": one.most,
        "erasing": one.erasing,
        "erasing_bytes": one.erasing_bytes,
        "problem": None if one.problem is None else text(one.problem),
    }


def rules(value: api.KeepRules) -> Document:
    """How long forks are kept, null for no limit, and where that is set."""
    return {
        "keep_days": value.keep_days,
        "keep_days_ignored": value.keep_days_ignored,
        "max_forks": value.max_forks,
        "max_bytes": value.max_bytes,
        "max_percent": value.max_percent,
        **exact("file", value.file),
        "given": value.given,
    }


def expired(value: api.Expired) -> Document:
    """A fork that expired, or would."""
    return {
        "kind": value.kind,
        "name": text(value.name),
        "at": value.at,
        "created": value.created,
        "last_use": value.last_use,
        "reason": value.reason,
        "why": text(value.why),
        "bytes": value.bytes,
        "changes": value.changes,
        **argv(value.command),
        "paths": words(value.paths),
    }


def collected(value: api.Collected, dry_run: bool) -> Document:
    """What `gc` did, or would do."""
    return {
        "schema": SCHEMA,
        "dry_run": dry_run,
        "expired": [expired(one) for one in value.gone],
        "over": words(value.over),
        "waiting": words(value.waiting),
        "spared": words(value.spared),
        "leftovers": words(value.leftovers),
        "contents": {"removed": value.contents, "bytes": value.contents_bytes},
        "rules": rules(value.rules),
    }


def kept(document: Document, fork: api.Fork) -> Document:
    """A fork as `documents.observed` has it, with what is known of its keeping."""
    return {**document, "pinned": fork.pinned, "last_use": moment(fork.last_use)}


def seconds_since(at: str) -> float:
    """How long ago a time was that records carry."""
    import time
    from calendar import timegm

    return time.time() - timegm(time.strptime(at, "%Y-%m-%dT%H:%M:%SZ"))


def known_moment(seconds: float | None) -> str | None:
    """A moment, where there is one."""
    return None if seconds is None else moment(seconds)
