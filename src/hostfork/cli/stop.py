"""`hostfork stop`: ends what runs in a fork."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli.look import command_in_words, harmless
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.options import GRACE
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, options, verb
from hostfork.policy.options import parse_duration


@verb(
    "stop",
    "End what runs in a fork.",
    Example("hostfork stop calm-otter", "Everything: SIGTERM, and ten seconds later all that is left."),
    Example("hostfork stop calm-otter 1", "One command; `hostfork ps` shows their numbers."),
    Example("hostfork stop calm-otter --time 1s", "With less patience."),
    manual=Manual(
        about=(
            "Each command gets SIGTERM, and what has not ended when the time is over is killed with all that it "
            "started, also what is suspended. It returns when everything is put away; the fork and what it holds "
            "stay. Where nothing runs there is nothing to do.",
        ),
        environment=LOOK,
        files=STATE,
        see=("ps", "wait", "suspend", "discard"),
    ),
)
@fork_argument()
@click.argument("number", required=False, type=click.IntRange(min=1), metavar="[NUMBER]")
@options(GRACE)
def stop_verb(output: Output, fork: str, number: int | None, time: str | None) -> int:
    """Stop, and say what was."""
    grace = 10.0 if time is None else 0.0 if time == "0" else parse_duration(time, "--time")
    done = api.stop(fork, number, grace)
    if output.json:
        from hostfork.cli import documents

        stopped = [{"number": one.number, **documents.argv(one.command), "killed": one.killed} for one in done]
        output.document(documents.answer({"fork": documents.text(fork), "stopped": stopped}))
        return 0
    output.lines(
        f"stopped {one.number or harmless(fork)}  {command_in_words(one.command)}{'   killed' if one.killed else ''}"
        for one in done
    )
    if not done:
        output.say(f"nothing runs in {harmless(fork)}")
    return 0
