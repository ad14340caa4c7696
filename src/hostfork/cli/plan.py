"""`hostfork plan`: what a run would do, for people and as JSON."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli import candidates
from hostfork.cli.asking import request_from
from hostfork.cli.look import Look, columns, harmless, pad, size, wrapped
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.merging import joined, merged_notices, merged_refusals
from hostfork.cli.options import CONTEXT, RULES
from hostfork.cli.output import Output
from hostfork.cli.verb import options, verb
from hostfork.policy.plan import EndpointPlan, NestedMount, PathPlan, Plan
from hostfork.vocabulary import Access, Ownership

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LABEL = 20


@verb(
    "plan",
    "Show what a run would do; nothing is made.",
    Example("hostfork plan --private ~/proj", "What a run with these rules would do."),
    Example("hostfork plan --policy build --private . -- make", "With a policy, and the command that is meant."),
    Example("hostfork plan --private . --require same-paths --json", "As a JSON document; refused if it is not kept."),
    manual=Manual(
        about=(
            "Takes the rules and the context of `run`, looks at this host, and shows what a run would do: a line for "
            "each path with its access, mechanism, guarantee and reason; sockets and mounts of the host that stay in "
            "it; what else is shared, what else leads to the same files, what will not work and is weaker, and the "
            "mechanisms that were refused. Nothing is made, and nothing is started.",
            "It is refused where the run would be, with the same error.",
        ),
        environment=LOOK,
        files=STATE,
        see=("run", "policy", "doctor"),
    ),
)
@options(*RULES, *CONTEXT)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[[--] COMMAND…]", shell_complete=candidates.files)
def plan_verb(output: Output, command: tuple[str, ...], **given: Any) -> int:
    """Make a plan and show it."""
    return show_plan(output, api.plan(request_from(given, command)))


plan_verb.allow_interspersed_args = False


def show_plan(output: Output, plan: Plan) -> int:
    """Write a plan; also for `run --dry-run`."""
    if output.json:
        from hostfork.cli import documents

        output.document(documents.plan(plan))
    else:
        output.lines(plan_lines(plan, output.out))
    return 0


def plan_lines(plan: Plan, look: Look) -> list[str]:
    """A plan for people: paths, what is shared, what else reaches it, what will not work, what is refused."""
    lines = _path_lines(plan, look)
    lines += _labelled("everything else", [_everything_else(plan, look)], look)
    lines += _labelled("also reaches it", [
        f"{look.path(alias.path)} is {look.path(alias.of)} too ({harmless(alias.how)}): writes change the original"
        for alias in plan.aliases
    ], look)  # fmt: skip
    lines += _labelled("owned by", [_owner(plan, look)], look)
    limit = "" if plan.storage_limit is None else f", at most {size(plan.storage_limit)}: more ends the command"
    lines += _labelled("private storage", [look.path(plan.pool) + limit] if _stores(plan) else [], look)
    for label, weaker in (("weaker", True), ("note", False)):
        lines += _labelled(label, [harmless(sentence) for sentence in merged_notices(plan, weaker=weaker)], look)
    lines += _labelled("refused", _refusals(plan, look), look)
    return lines


def _stores(plan: Plan) -> bool:
    return any(path.access in (Access.PRIVATE, Access.SCRATCH) for path in plan.paths)


def _path_lines(plan: Plan, look: Look) -> list[str]:
    """One line for each rule; beneath it, what of the host is put back inside it."""
    rows: list[tuple[str, str, str, str, str]] = []
    named = [path for path in plan.paths if not path.automatic]
    insides: dict[str, list[NestedMount | EndpointPlan]] = {}
    put_back: list[NestedMount | EndpointPlan] = [*plan.nested_mounts, *plan.endpoints]
    for inside in put_back:
        around = [path.path for path in named if _is_inside(inside.path, path.path)]
        insides.setdefault(max(around, key=len, default=""), []).append(inside)
    for path in named:
        rows.append(_path_row(path, look))
        rows += [_inside_row(inside, look) for inside in insides.get(path.path, ())]
    rows += [_inside_row(inside, look, "") for inside in insides.get("", ())]
    widths = [max((columns(row[index]) for row in rows), default=0) for index in range(5)]
    return ["  ".join(pad(cell, widths[index]) for index, cell in enumerate(row)).rstrip() for row in rows]


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/") or path == folder


def _path_row(path: PathPlan, look: Look) -> tuple[str, str, str, str, str]:
    shown = look.path(path.written, 40)
    resolved = look.path(path.path, 40)
    reason = path.offer.reason if path.offer else path.reason
    if not _same_word(path.written, path.path):
        reason = f"is {resolved}; {reason}" if reason else f"is {resolved}"
    if path.offer:
        offer = path.offer
        copied = f", copies {size(offer.bytes_estimate)}" if offer.bytes_estimate else ""
        return (shown, path.access.value, offer.mechanism.value, offer.guarantees.guarantee.value,
                harmless(reason) + copied)  # fmt: skip
    kind = ""
    if path.access is Access.SCRATCH:
        kind = f"tmpfs {size(path.tmpfs_size)}" if path.tmpfs_size else "empty"
    return (shown, path.access.value, kind, "", harmless(reason))


def _same_word(written: str, path: str) -> bool:
    """Whether the user's word is plainly this path: written absolute, or with `~`, or relative to here."""
    from hostfork.cli.verb import absolute

    return absolute(written).rstrip("/") == path.rstrip("/")


def _inside_row(inside: NestedMount | EndpointPlan, look: Look, indent: str = "  ") -> tuple[str, str, str, str, str]:
    shown = indent + look.path(inside.path, 38)
    if isinstance(inside, NestedMount):
        access = Access.READ_ONLY if inside.read_only else Access.SHARED
        return (shown, access.value, inside.filesystem, "", "host mount beneath, put back")
    who = f"{harmless(inside.process)} ({inside.pid})" if inside.pid else inside.kind.value
    asked = "asked for" if inside.asked else "found alive"
    return (shown, "endpoint", who, "", f"{asked}: acts on the host")


def _everything_else(plan: Plan, look: Look) -> str:
    if plan.read_only_root:
        return "read-only"
    near = f"   with: {', '.join(look.path(path) for path in plan.neighbours)}" if plan.neighbours else ""
    return f"shared, writable{near}"


def _owner(plan: Plan, look: Look) -> str:
    if plan.ownership is Ownership.CGROUP:
        return (
            f"a cgroup of its own in {look.path(plan.cgroup_parent)}" if plan.cgroup_parent else "a cgroup of its own"
        )
    return "subreaper: a process that leaves its parents is found by its mount namespace alone"


def _refusals(plan: Plan, look: Look) -> list[str]:
    several = sum(bool(path.refused) for path in plan.paths) > 1
    written = {path.path: look.path(path.written) for path in plan.paths}
    return [
        f"{joined([written[path] for path in paths]) + ' ' if several else ''}{kind}: {harmless(reason)}"
        for paths, kind, reason in merged_refusals(plan)
    ]


def _labelled(label: str, sentences: list[str], look: Look) -> list[str]:
    """Sentences beside one label, each on its own line, wrapped between words to the terminal."""
    lines: list[str] = []
    for sentence in sentences:
        room = look.width - _LABEL if look.width and look.width > _LABEL + 20 else None
        for text in wrapped(sentence.split(" "), 0, room, " "):
            lines.append(f"{look.paint(pad(label, _LABEL - 2), 'dim') if not lines else ' ' * (_LABEL - 2)}  {text}")
    return lines
