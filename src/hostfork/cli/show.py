"""`hostfork show`: all that is known about one fork."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hostfork import api
from hostfork.cli.look import (
    Look,
    age,
    command_in_words,
    counts_in_words,
    harmless,
    pad,
    plural,
    size,
)
from hostfork.cli.manual import CONFIG, LOOK, STATE, Example, Manual
from hostfork.cli.output import PREFIX, Output
from hostfork.cli.telling import some_lost, some_paths
from hostfork.cli.usage import goes_in_words
from hostfork.cli.verb import flag, fork_argument, verb
from hostfork.collect.changeset import Counts
from hostfork.errors import PolicyError
from hostfork.lifecycle.record import ForkProcess, PathRecord, Record, Status
from hostfork.storage.contract import Usage
from hostfork.vocabulary import Access, Activity, BaseContent, SourceChanged

_LABEL = 12


@verb(
    "show",
    "Show all that is known about a fork.",
    Example("hostfork show calm-otter", "By its name."),
    Example("hostfork show calm", "A beginning of the name that no other fork has is enough."),
    Example("hostfork show calm-otter --receipt > receipt.txt", "What was asked, verified and changed, to be kept."),
    manual=Manual(
        about=(
            "One fork: its state and command, how that ended, each path with its mechanism and guarantee, the changes, "
            "the space and where it lies, what owns its processes and which there are, and what can be done next.",
            "`--receipt` is for others: who made the fork and where, its policy by digest, what was verified while it "
            "was made and run, and every change, with ids that are BLAKE3 digests of all that. The same fork gives "
            "the same receipt, whenever and wherever it is asked for.",
        ),
        environment=(*LOOK, "XDG_CONFIG_HOME"),
        files=(*STATE, *CONFIG),
        see=("list", "usage", "diff", "export", "pin", "discard"),
    ),
)
@fork_argument()
@flag("--receipt", help="on what it stands, what was verified, and all that it changed")
def show_verb(output: Output, fork: str, receipt: bool) -> int:
    """Show one fork."""
    found = api.Fork.open(fork)
    if receipt:
        from hostfork.cli.receipts import show_receipt

        return show_receipt(output, found.receipt())
    record, activity, counts, space = found.record, found.activity, found.counts(), found.space()
    goes = _goes(found, output)
    if output.json:
        from hostfork.cli import documents, keeping
        from hostfork.cli.ps import document as command_document

        document = keeping.kept(documents.observed(record, activity.value, found.age, space, counts), found)
        document["goes"] = keeping.known_moment(goes)
        document["processes"] = documents.processes(found.processes())
        document["commands"] = [command_document(*one) for one in found.commands()]
        output.document(documents.answer(document))
    else:
        keep = keep_in_words(found.pinned, found.last_use, goes) if activity is Activity.IDLE else ""
        running = tuple(one for one, _processes in found.commands() if one.number and one.running)
        output.lines(
            show_lines(record, activity, found.age, space, counts, output.out, found.processes(), keep, running)
        )
    return 0


def _goes(fork: api.Fork, output: Output) -> float | None:
    """When it expires; a configuration that is not good is no reason to show nothing."""
    try:
        return fork.goes()
    except PolicyError as error:
        output.complain([f"{PREFIX}when {harmless(fork.name)} expires is not known: {harmless(error.message)}"])
        return None


def keep_in_words(pinned: bool, last_use: float, goes: float | None) -> str:
    """When it was used, and how long it is kept."""
    now = time.time()
    until = "pinned: it never expires" if pinned else "" if goes is None else f"expires {goes_in_words(goes - now)}"
    return f"used {age(now - last_use)} ago{', ' if until else ''}{until}"


def show_lines(
    record: Record, activity: Activity, seconds: float, space: Usage, counts: Counts | None, look: Look,
    processes: Sequence[ForkProcess] = (), keep: str = "", running: Sequence[api.ForkCommand] = (),
) -> list[str]:  # fmt: skip
    """A fork for people."""
    facts = [
        ("fork", look.paint(harmless(record.name), "bold")),
        ("state", f"{activity.value}, {record.disposition.value}"),
        ("approved", "" if record.approved is None else f"{record.approved.at}  {record.approved.content[:12]}"),
        ("tags", "" if record.by is None else " ".join(harmless(f"{name}={text}") for name, text in record.by.tags)),
        ("command", command_in_words(record.command)),
        ("in", look.path(record.cwd)),
        ("made", f"{age(seconds)} ago, {record.created}"),
        ("ended", ended_in_words(record.status, record.ended)),
        ("kept", keep),
        *(
            ("" if index else "runs", f"{one.number:<8} {command_in_words(one.command)}")
            for index, one in enumerate(running)
        ),
        ("ports", " ".join(f"{harmless(name)}={number}" for name, number in record.ports)),
        *(
            ("" if index else "processes", f"{one.pid:<8} {harmless(one.name)}  {size(one.memory)}")
            for index, one in enumerate(processes)
        ),
        ("policy", harmless(record.policy)),
        *(("" if index else "paths", line) for index, line in enumerate(_paths(record, look))),
        ("changes", "not known" if counts is None else counts_in_words(counts)),
        ("space", f"{size(space.bytes)}{' at most' if space.upper_bound else ''}, {plural(space.inodes, 'inode')}"),
        ("limit", "" if record.storage_limit is None else f"{size(record.storage_limit)} of storage"),
        ("storage", look.path(record.pool)),
        (
            "owned by",
            f"{record.ownership.value} {look.path(record.cgroup)}" if record.cgroup else record.ownership.value,
        ),
        ("processes", _processes(record)),
        ("torn", "the machine went down before the changes were on disk" if record.torn else ""),
        ("same paths", "" if record.same_paths else "no: the copy lies at another path (--relocated)"),
        ("next", _next(record.name, activity, counts)),
    ]
    return [f"{look.paint(pad(label, _LABEL), 'dim')}{fact}" for label, fact in facts if fact]


def _paths(record: Record, look: Look) -> list[str]:
    return [_path(path, look) for path in record.paths] or ["none"]


def _path(path: PathRecord, look: Look) -> str:
    facts = [look.path(path.path), path.access.value]
    if path.mechanism and path.guarantee:
        facts += [path.mechanism.value, path.guarantee.value, f"{size(path.bytes_copied)} copied"]
        if path.base_content is BaseContent.WHILE_SOURCE_UNCHANGED:
            facts.append("base only while the source is unchanged")
        if path.unwritable:
            facts.append(f"read-only as on the host: {some_paths(path.unwritable, '.')}")
        if path.skipped:
            facts.append(f"left out, not readable: {some_paths(path.skipped, '.')}")
        if path.lost:
            facts.append(f"not kept: {some_lost(path.lost, '.')}")
        if path.source_changed in (SourceChanged.CHANGED, SourceChanged.NOT_CHECKED):
            facts.append("source changed" if path.source_changed is SourceChanged.CHANGED else "source not checked")
    elif path.access is Access.SCRATCH:
        facts.append("never collected")
    return "  ".join(facts)


def ended_in_words(status: Status | None, when: str | None) -> str:
    """How the command ended."""
    if status is None:
        return ""
    if status.error is not None:
        how = f"{harmless(status.error.message)} ({status.error.code})"
    elif status.timed_out:
        how = "at its time limit"
    elif status.storage_limited:
        how = "over its storage limit"
    elif status.signal is not None:
        how = f"by signal {status.signal}"
    elif status.exit is not None:
        how = f"with {status.exit}"
    else:
        how = "nobody saw how"
    return f"{how}, {when}" if when else how


def _processes(record: Record) -> str:
    known = (
        ("owner", record.owner), ("keeper", record.keeper), ("command", record.command_process),
        ("holder", record.holder),
    )  # fmt: skip
    return ", ".join(f"{name} {identity.pid}" for name, identity in known if identity and identity.alive())


def _next(name: str, activity: Activity, counts: Counts | None) -> str:
    if activity is Activity.ORPHANED:
        return "hostfork recover"
    if activity is not Activity.IDLE:
        return ""
    verbs = ["diff", "discard"] if counts is None or counts.total else ["discard"]
    return " · ".join(f"hostfork {verb} {harmless(name)}" for verb in verbs)
