"""`hostfork list`: every fork, as the kernel shows it now."""

from __future__ import annotations

from collections.abc import Sequence

from hostfork import api
from hostfork.cli.look import Look, age, command_in_words, harmless, number, plural, size, table
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import flag, verb
from hostfork.lifecycle.record import Record
from hostfork.storage.contract import Usage
from hostfork.values import replace
from hostfork.vocabulary import Access, Activity, Disposition

TYPE_CHECKING = False
if TYPE_CHECKING:
    _Listed = api.Fork | api.BrokenFork

_HEAD = ("NAME", "STATE", "AGE", "PATHS", "CHANGES", "MEETS", "SPACE", "COMMAND")
_MEETS = _HEAD.index("MEETS")
_NONE = ("0", "?", "-")
"""Where no fork has more, there is no such column."""
_NARROWEST = 12


@verb(
    "list",
    "Show the forks that there are.",
    Example("hostfork list", "All forks."),
    Example("hostfork ls --json > forks.json", "The same for a program, with exact numbers."),
    Example("hostfork list | grep orphaned", "What a crash left behind: status 1 if nothing.", status=1),
    manual=Manual(
        about=(
            "A line for each fork of yours: its name, what it is doing, its age, its private paths, how many paths it "
            "changed, the space that it takes, its command, and what is to be done if something is.",
            "The state is looked at, not remembered: `running`, `idle` after its command has ended, `orphaned` if "
            "hostfork was killed (`hostfork recover`), `preparing`, `releasing`, or `broken` if its record cannot be "
            "read (`hostfork discard`). `?` changes are not counted yet. Short for it: `hostfork ls`.",
            "`MEETS` is how many of its changed paths the host changed since, or another idle fork too: what `overlap` "
            "lists and an apply may refuse. `?` is not known without a look: the fork runs or is large. Where there is "
            "none the column is left out.",
            "At the end of a line stands what was decided: `sealed`, `awaiting-approval`, `applied`; and `pinned`.",
            "`reclaiming`: a fork that is gone, whose storage is still being erased in the background; its name is "
            "free. Where nobody is at it, or a part cannot be erased, `hostfork recover` does the rest or says why.",
            "`--tree` shows each branch below the fork that it is of; JSON has `parent`, also where that one is gone.",
            "`pinned` forks never expire; `hostfork usage` shows when the others do. `--expired` lists those that did, "
            "the last first, with what they held and why they went.",
        ),
        environment=LOOK,
        files=STATE,
        see=("show", "usage", "recover", "discard"),
    ),
)
@flag("--tree", help="show each branch below the fork that it is of")
@flag("--expired", help="show the forks that expired instead")
def list_verb(output: Output, tree: bool, expired: bool) -> int:
    """Show all forks; broken records too, with what helps."""
    if expired:
        return _list_expired(output)
    api.gc_in_background()
    api.settle_applies()
    forks, gone, meets = api.Fork.all(), api.reclaiming(), api.meets()
    if output.json:
        from hostfork.cli import documents, keeping

        output.document(
            documents.fork_list(
                [
                    keeping.kept(
                        documents.observed(fork.record, fork.activity.value, fork.age, fork.space(), fork.counts()),
                        fork,
                    )
                    | {"meets": meets.get(fork.name)}
                    for fork in forks
                    if isinstance(fork, api.Fork)
                ],
                [(fork.name, fork.error) for fork in forks if not isinstance(fork, api.Fork)],
                gone,
            )
        )
        return 0
    forks, deep = _as_tree(forks) if tree else (forks, dict.fromkeys((fork.name for fork in forks), 0))
    rows = [
        row(
            as_it_runs(fork),
            fork.activity,
            fork.age,
            fork.space(),
            _changes(fork),
            output.out,
            fork.pinned,
            _known(meets.get(fork.name)),
        )
        if isinstance(fork, api.Fork)
        else broken_row(fork.name)
        for fork in forks
    ]
    rows = [("  " * deep[fork.name] + cells[0], *cells[1:]) for fork, cells in zip(forks, rows, strict=True)]
    rows += gone_rows(gone)
    if rows:
        output.lines(list_lines(rows, output.out))
    for fork in forks:
        if not isinstance(fork, api.Fork):
            output.complain([f"hostfork: {harmless(fork.error.message)}"])
    for one in gone:
        if one.problem is not None:
            output.complain([f"hostfork: {harmless(one.problem)}"])
    _tell_expired(output)
    return 0


def _as_tree(forks: Sequence[_Listed]) -> tuple[tuple[_Listed, ...], dict[str, int]]:
    """The forks, each followed by its branches, and how deep each lies. A branch of one that is gone is nobody's."""
    known = {(fork.name, fork.record.id) for fork in forks if isinstance(fork, api.Fork)}
    below: dict[str, list[_Listed]] = {}
    for fork in forks:
        parent = fork.record.parent if isinstance(fork, api.Fork) else None
        there = parent is not None and (parent.name, parent.id) in known
        below.setdefault(parent.name if parent is not None and there else "", []).append(fork)
    ordered: list[_Listed] = []
    deep: dict[str, int] = {}
    waiting = [(fork, 0) for fork in reversed(below.get("", []))]
    while waiting:
        fork, depth = waiting.pop()
        ordered.append(fork)
        deep[fork.name] = depth
        waiting += [(branch, depth + 1) for branch in reversed(below.get(fork.name, []))]
    return tuple(ordered), deep


_NEWS = 7 * 86400
"""Seconds for which a list of forks tells that some expired."""


def _tell_expired(output: Output) -> None:
    """That forks expired of late: what they were is not on the list any more."""
    from hostfork.cli.keeping import seconds_since

    late = [one for one in api.expired() if seconds_since(one.at) < _NEWS]
    if late:
        output.say(f"{plural(len(late), 'fork')} expired in the last 7 days: hostfork list --expired")


def _list_expired(output: Output) -> int:
    """What expired, and why."""
    from hostfork.cli import keeping

    gone = api.expired()
    if output.json:
        from hostfork.cli.documents import answer

        output.document(answer({"expired": [keeping.expired(one) for one in gone]}))
        return 0
    rows = [
        (
            harmless(one.name),
            f"{age(keeping.seconds_since(one.at))} ago",
            output.out.path(one.paths[0], 32) if one.paths else "-",
            "?" if one.changes is None else number(one.changes),
            "?" if one.bytes is None else size(one.bytes),
            harmless(one.why),
        )
        for one in gone
    ]
    if rows:
        head, *lines = table([("NAME", "EXPIRED", "PATHS", "CHANGES", "SPACE", "WHY"), *rows])
        output.lines([output.out.paint(head, "dim"), *lines])
    return 0


def as_it_runs(fork: api.Fork) -> Record:
    """The record with what runs in the fork as its command, where that is entered: the last, and how many more."""
    if not fork.record.lasting or fork.activity not in (Activity.RUNNING, Activity.FROZEN):
        return fork.record
    running = [one for one, _processes in fork.commands() if one.running]
    if not running:
        return fork.record
    more = (f"+{len(running) - 1}",) if len(running) > 1 else ()
    return replace(fork.record, command=(*running[-1].command, *more))


def _changes(fork: api.Fork) -> str:
    counts = fork.counts()
    return _known(None if counts is None else counts.total)


def _known(count: int | None) -> str:
    return "?" if count is None else number(count)


def row(
    record: Record, activity: Activity, seconds: float, space: Usage, changes: str, look: Look, pinned: bool = False,
    meets: str = "0",
) -> tuple[str, ...]:  # fmt: skip
    """One fork as cells; the last says what is to be done about it, if anything, or that it never expires."""
    decided = "" if record.disposition is Disposition.OPEN else record.disposition.value
    if record.disposition is Disposition.AWAITING_APPROVAL:
        decided += f"   hostfork approve {harmless(record.name)}"
    hint = " ".join(filter(None, ("pinned" if pinned else "", decided)))
    hint = "hostfork recover" if activity is Activity.ORPHANED else hint
    return (
        harmless(record.name),
        activity.value,
        age(seconds),
        paths_in_words(record, look),
        changes,
        meets,
        f"{size(space.bytes)}{' at most' if space.upper_bound else ''}",
        command_in_words(record.command),
        hint,
    )


def broken_row(name: str) -> tuple[str, ...]:
    """A fork whose record cannot be read: there to be explained and discarded."""
    return (harmless(name), "broken", "?", "?", "?", "?", "?", "?", f"hostfork discard {harmless(name)}")


def gone_rows(gone: Sequence[api.Reclaiming]) -> list[tuple[str, ...]]:
    """Forks that are off the list, whose storage is not erased yet, each once."""
    names = sorted({one.fork for one in gone})
    waiting = {one.fork for one in gone if not one.active}
    return [
        (harmless(name), "reclaiming", "-", "-", "-", "-", "-", "-", "hostfork recover" if name in waiting else "")
        for name in names
    ]


def paths_in_words(record: Record, look: Look) -> str:
    """The first private path and how many more there are."""
    private = [path for path in record.paths if path.access is Access.PRIVATE] or list(record.paths)
    if not private:
        return "-"
    more = f" +{len(private) - 1}" if len(private) > 1 else ""
    return look.path(private[0].written, 32) + more


def list_lines(rows: Sequence[tuple[str, ...]], look: Look) -> list[str]:
    """The table, with the command cut to what the terminal has left; its first word stays readable."""
    with_hints = any(row[8] for row in rows)
    cells = [list(row if with_hints else row[:8]) for row in rows]
    head = [*_HEAD, *([""] if with_hints else [])]
    command = _HEAD.index("COMMAND")
    if not any(row[_MEETS] not in _NONE for row in rows):
        for row_ in (head, *cells):
            del row_[_MEETS]
        command -= 1
    if look.width:
        full = table([head, *cells])
        over = max(len(line) for line in full) - look.width
        widest = max(len(row[command]) for row in cells)
        if over > 0:
            room = max(_NARROWEST, widest - over)
            for row_ in cells:
                row_[command] = _cut(row_[command], room)
    else:
        cells = [[*row[:command], _cut(row[command], 60), *row[command + 1 :]] for row in cells]
    lines = table([head, *cells])
    return [look.paint(lines[0], "dim"), *lines[1:]]


def _cut(command: str, room: int) -> str:
    return command if len(command) <= room else command[: room - 1] + "…"
