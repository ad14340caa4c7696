"""`hostfork ps`: the commands in a fork, and their processes."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.keeping import seconds_since
from hostfork.cli.look import age, command_in_words, harmless, size, table
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.show import ended_in_words
from hostfork.cli.verb import fork_argument, verb
from hostfork.vocabulary import Activity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hostfork.lifecycle.record import ForkProcess


@verb(
    "ps",
    "Show the commands in a fork and their processes.",
    Example("hostfork ps calm-otter", "All that runs in it, and what ran in the background."),
    Example("hostfork ps calm-otter --json", "The same for a program, with exact numbers."),
    Example("hostfork ps calm-otter | grep running", "Only what runs: status 1 if nothing.", status=1),
    manual=Manual(
        about=(
            "A line for each command: its number, which `wait`, `stop` and `logs` take, what it is doing, its age, and "
            "its words; below it its processes with the memory that each has, pages that it shares included. Of a "
            "command in the background it is known how it ended, until the fork is gone.",
            "Where no cgroup owns the processes, only a command itself is known as its own.",
        ),
        environment=LOOK,
        files=STATE,
        see=("exec", "stop", "logs", "show"),
    ),
)
@fork_argument()
def ps_verb(output: Output, fork: str) -> int:
    """Show them."""
    found = api.Fork.open(fork)
    commands, held = found.commands(), found.activity is Activity.FROZEN
    if output.json:
        from hostfork.cli.documents import answer, text

        shown = [document(one, processes) for one, processes in commands]
        output.document(answer({"fork": text(found.name), "frozen": held, "commands": shown}))
        return 0
    rows = [("NUMBER", "STATE", "AGE", "COMMAND")]
    for one, processes in commands:
        state = ("frozen" if held else "running") if one.running else ended_in_words(one.status, None) or "gone"
        background = ", detached" if one.detached and one.running else ""
        rows.append((
            str(one.number or "-"), state + background, age(seconds_since(one.began)), command_in_words(one.command)
        ))  # fmt: skip
        rows += [("", str(each.pid), size(each.memory), harmless(each.name)) for each in processes]
    if len(rows) > 1:
        first, *lines = table(rows)
        output.lines([output.out.paint(first, "dim"), *lines])
    return 0


def document(one: api.ForkCommand, processes: tuple[ForkProcess, ...]) -> dict[str, Any]:
    """One command of a fork."""
    from hostfork.cli import documents

    return {
        "number": one.number,
        **documents.argv(one.command),
        "running": one.running,
        "detached": one.detached,
        "began": one.began,
        "ended": one.ended,
        "owner": one.owner.pid,
        "pid": one.process.pid if one.process else None,
        "status": documents.status(one.status) if one.status else None,
        "processes": documents.processes(processes),
    }
