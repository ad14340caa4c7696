"""Values as JSON documents: stable keys, exact numbers, a `schema` number each. docs/json.md describes them.

A path is a string; beside one that is no UTF-8 stands its exact form, `KEY_bytes`, in base64. Nothing here prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from hostfork.collect.changeset import Changeset, Counts
from hostfork.errors import HostforkError
from hostfork.lifecycle.record import ForkProcess, Outcome, PathRecord, Problem, Reclaiming, Record, Status
from hostfork.policy.plan import PathPlan, Plan
from hostfork.storage.contract import Lost, Offer, Refusal, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hostfork.lifecycle.doctor import Capability

    Document = dict[str, Any]

SCHEMA = 1


def text(value: str) -> str:
    """A string that is UTF-8: bytes that are none are replaced."""
    return value if value.isascii() else os.fsencode(value).decode("utf-8", "replace")


def words(values: Iterable[str]) -> list[str]:
    """Several strings as `text`."""
    return [text(value) for value in values]


def exact(key: str, value: str | None) -> Document:
    """`{key: value}`, and `key_bytes` in base64 where the value is no UTF-8."""
    if value is None:
        return {key: None}
    shown = text(value)
    if os.fsencode(value) == shown.encode("utf-8", "surrogatepass"):
        return {key: shown}
    import base64

    return {key: shown, f"{key}_bytes": base64.b64encode(os.fsencode(value)).decode("ascii")}


def moment(seconds: float) -> str:
    """A moment, seconds of the clock, as ISO-8601 in UTC."""
    import time

    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def argv(command: Sequence[str]) -> Document:
    """A command; `command_bytes` holds every word in base64 where one of them is no UTF-8."""
    if all("command_bytes" not in exact("command", word) for word in command):
        return {"command": words(command)}
    import base64

    encoded = [base64.b64encode(os.fsencode(word)).decode("ascii") for word in command]
    return {"command": words(command), "command_bytes": encoded}


def counts(value: Counts) -> Document:
    """How many paths changed, by kind of change."""
    return asdict(value)


def usage(value: Usage) -> Document:
    """Space of a fork."""
    return {"bytes": value.bytes, "inodes": value.inodes, "upper_bound": value.upper_bound}


def error(value: HostforkError, status: int) -> Document:
    """One error, with the exit status it led to."""
    return {
        "schema": SCHEMA,
        "error": {
            "code": value.code.text,
            "message": text(value.message),
            "step": value.step,
            **exact("path", value.path),
            "place": None if value.place is None else text(value.place),
            "errno": value.errno,
            "details": words(value.details),
            "hint": None if value.hint is None else text(value.hint),
        },
        "status": status,
    }


def problem_of(value: HostforkError) -> Problem:
    """An error as a result carries it."""
    return Problem(value.code.text, value.message, value.step, value.path, value.errno, value.hint)


def problem(value: Problem | None) -> Document | None:
    """An error inside a result."""
    if value is None:
        return None
    return {
        "code": value.code,
        "step": value.step,
        **exact("path", value.path),
        "errno": value.errno,
        "message": text(value.message),
        "hint": None if value.hint is None else text(value.hint),
    }


def status(value: Status) -> Document:
    """How a command ended."""
    return {
        "exit": value.exit,
        "signal": value.signal,
        "timed_out": value.timed_out,
        "storage_limited": value.storage_limited,
        "error": problem(value.error),
    }


def result(outcome: Outcome) -> Document:
    """What a run gave: the content of `--result FILE`."""
    return {
        "schema": SCHEMA,
        "fork": outcome.fork or None,
        "status": status(outcome.status),
        "paths": [
            {
                **exact("path", path.path),
                "mechanism": path.mechanism.value,
                "guarantee": path.guarantee.value,
                "bytes_copied": path.bytes_copied,
                "base_content": path.base_content.value,
                "source_changed": path.source_changed.value,
                **_incomplete(path.skipped, path.lost),
            }
            for path in outcome.paths
        ],
        "ownership": outcome.ownership.value if outcome.ownership else None,
        "same_paths": outcome.same_paths,
        "changes": counts(outcome.changes),
        "kept": outcome.kept,
        "released": outcome.released,
        "leftovers": words(outcome.leftovers),
        "timings": dict(outcome.timings),
        "bytes_kept": outcome.bytes_kept,
        "notices": words(outcome.notices),
        "reclaiming": outcome.reclaiming,
        "storage_limit": outcome.storage_limit,
        "storage_taken": outcome.storage_taken,
        "active": words(outcome.active),
    }


def diff(fork: str, changeset: Changeset) -> Document:
    """A changeset: every path, never folded."""
    from hostfork.api import entries

    return {
        "schema": SCHEMA,
        "fork": fork,
        "counts": counts(changeset.counts()),
        "entries": entries(changeset),
    }


def record(value: Record) -> Document:
    """What is known about a fork, without what only the present kernel knows."""
    return {
        "name": value.name,
        "created": value.created,
        "ended": value.ended,
        "parent": None if value.parent is None else value.parent.name,
        "disposition": value.disposition.value,
        **argv(value.command),
        **exact("cwd", value.cwd),
        "policy": text(value.policy),
        **exact("pool", value.pool),
        "ownership": value.ownership.value,
        "same_paths": value.same_paths,
        **exact("cgroup", value.cgroup),
        "owner": value.owner.pid if value.owner else None,
        "keeper": value.keeper.pid if value.keeper else None,
        "pid": value.command_process.pid if value.command_process else None,
        "status": status(value.status) if value.status else None,
        "torn": value.torn,
        "storage_limit": value.storage_limit,
        "lasting": value.lasting,
        "holder": value.holder.pid if value.holder else None,
        "ports": {text(name): number for name, number in value.ports},
        "paths": [_path_record(path) for path in value.paths],
    }


def _incomplete(skipped: Sequence[str], lost: Sequence[Lost]) -> Document:
    """What of a source is not in its copy, or not with all that it has."""
    return {
        "skipped": [text(path) for path in skipped],
        "lost": [{"path": text(one.path), "what": list(one.what)} for one in lost],
    }


def _path_record(value: PathRecord) -> Document:
    return {
        **exact("path", value.path),
        "access": value.access.value,
        "folder": value.folder,
        "mechanism": value.mechanism.value if value.mechanism else None,
        "guarantee": value.guarantee.value if value.guarantee else None,
        "bytes_copied": value.bytes_copied,
        "unwritable": [text(path) for path in value.unwritable],
        **_incomplete(value.skipped, value.lost),
        "base_content": value.base_content.value if value.mechanism else None,
        "source_changed": value.source_changed.value if value.mechanism else None,
        "taken": None if value.taken is None else {"from": value.taken[0], "until": value.taken[1]},
    }


def observed(value: Record, activity: str, age: float, space: Usage | None, changes: Counts | None) -> Document:
    """A fork as it is now: its record and what the kernel says."""
    return {
        **record(value),
        "activity": activity,
        "age": round(age, 3),
        "space": usage(space) if space else None,
        "changes": counts(changes) if changes else None,
    }


def processes(value: Sequence[ForkProcess]) -> list[Document]:
    """The processes of a running fork."""
    return [{"pid": one.pid, "name": text(one.name), "memory": one.memory} for one in value]


def reclaiming(value: Reclaiming) -> Document:
    """Storage of a fork that is off the list, which is not erased yet."""
    return {
        "fork": text(value.fork),
        **exact("pool", value.pool),
        **exact("path", value.path),
        "active": value.active,
        "errno": value.errno,
        "problem": None if value.problem is None else text(value.problem),
    }


def fork_list(
    forks: Sequence[Document],
    broken: Sequence[tuple[str, HostforkError]],
    gone: Sequence[Reclaiming] = (),
) -> Document:
    """All forks; those whose record cannot be read stand apart, with the reason, and what is being erased."""
    return {
        "schema": SCHEMA,
        "forks": list(forks),
        "broken": [{"name": text(name), "error": error(reason, 125)["error"]} for name, reason in broken],
        "reclaiming": [reclaiming(one) for one in gone],
    }


def plan(value: Plan) -> Document:
    """A plan: what a run would do, what was refused and why."""
    return {
        "schema": SCHEMA,
        "policy": text(value.policy),
        "paths": [_path_plan(path) for path in value.paths],
        "nested_mounts": [
            {
                **exact("path", mount.path),
                "filesystem": mount.filesystem,
                **exact("inside", mount.inside),
                "read_only": mount.read_only,
            }
            for mount in value.nested_mounts
        ],
        "endpoints": [
            {
                **exact("path", endpoint.path),
                "kind": endpoint.kind.value,
                "asked": endpoint.asked,
                "pid": endpoint.pid or None,
                "process": text(endpoint.process) or None,
            }
            for endpoint in value.endpoints
        ],
        "aliases": [
            {**exact("path", alias.path), **exact("of", alias.of), "how": text(alias.how)} for alias in value.aliases
        ],
        "notices": [
            {
                "kind": notice.kind.text,
                "weaker": notice.kind.weaker,
                "sentence": text(notice.sentence),
                **exact("path", notice.path),
            }
            for notice in value.notices
        ],
        "neighbours": words(value.neighbours),
        "ownership": value.ownership.value,
        **exact("cgroup_parent", value.cgroup_parent),
        "user_namespace": value.user_namespace,
        "same_paths": value.same_paths,
        "host_mounts_appear": value.slave,
        "read_only_root": value.read_only_root,
        **exact("pool", value.pool),
        "environment": {
            "clear": value.environment.clear,
            "variables": [[text(name), text(content)] for name, content in value.environment.variables],
        },
        "timeout": value.timeout,
        "storage_limit": value.storage_limit,
    }


def _path_plan(value: PathPlan) -> Document:
    return {
        **exact("path", value.path),
        **exact("written", value.written),
        "place": text(value.place),
        "access": value.access.value,
        "folder": value.folder,
        "filesystem": value.filesystem,
        "reason": text(value.reason),
        "mechanism": value.offer.mechanism.value if value.offer else None,
        "guarantee": value.offer.guarantees.guarantee.value if value.offer else None,
        "offer": _offer(value.offer) if value.offer else None,
        "refused": [_refusal(refusal) for refusal in value.refused],
        "tmpfs_size": value.tmpfs_size,
        "omit": words(value.omit),
        "automatic": value.automatic,
    }


def _offer(value: Offer) -> Document:
    kept = value.guarantees
    return {
        "reason": text(value.reason),
        "bytes_estimate": value.bytes_estimate,
        "files_estimate": value.files_estimate,
        "unreadable": [text(path) for path in value.unreadable],
        "folder_rename": kept.folder_rename,
        "hard_links": kept.hard_links,
        "native_watchers": kept.native_watchers,
        "xattrs": kept.xattrs,
        "sparse": kept.sparse,
        "nested_mounts": kept.nested_mounts,
        "unique_inodes": kept.unique_inodes,
        "layers": kept.layers,
    }


def _refusal(value: Refusal) -> Document:
    return {"mechanism": value.mechanism.value, "reason": text(value.reason), "errno": value.errno}


def answer(content: Mapping[str, Any]) -> Document:
    """A small answer of a verb that does something: its fields under the schema number."""
    return {"schema": SCHEMA, **content}


def doctor(capabilities: Sequence[Capability]) -> Document:
    """What a host can do."""
    return {
        "schema": SCHEMA,
        "usable": all(capability.available for capability in capabilities if capability.needed),
        "capabilities": [
            {
                "name": capability.name,
                "available": capability.available,
                "needed": capability.needed,
                "how": text(capability.how),
                "follows": text(capability.follows),
                "remedy": None if capability.remedy is None else text(capability.remedy),
            }
            for capability in capabilities
        ],
    }
