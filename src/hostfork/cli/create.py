"""`hostfork create`: a fork without a command, there to be entered."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli.asking import request_from, usage
from hostfork.cli.look import harmless
from hostfork.cli.manual import ENVIRONMENT, STATE, Example, Manual
from hostfork.cli.options import CONTEXT, ENDING, RULES
from hostfork.cli.output import Output
from hostfork.cli.telling import Teller
from hostfork.cli.verb import options, verb
from hostfork.lifecycle.request import Request
from hostfork.values import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@verb(
    "create",
    "Make a fork that is there to be entered.",
    Example("hostfork create agent-1 --private ~/proj", "A private copy of a project; prints its name."),
    Example("hostfork exec agent-1 -- make test", "Run something in it, as often as you like."),
    Example("hostfork create --private . --port PORT --json", "With a free port, for a program."),
    manual=Manual(
        about=(
            "Everything that `run` does up to the command: the same options, the same plan, the same refusals. What is "
            "said for the command, its environment, working directory and limits, counts for every command in the "
            "fork, and can be said anew by each.",
            "The fork is kept whatever it holds, until `discard` throws it away or it expires. Its storage is whole: "
            "nothing of it is given up, as `run` does with what equals the base. A fork of a `:live` folder can be "
            "entered for as long as the host leaves that folder as it is, once the fork has changed something.",
        ),
        environment=tuple(ENVIRONMENT),
        files=STATE,
        see=("exec", "shell", "run", "discard"),
    ),
)
@options(
    *RULES, *CONTEXT, *(option for option in ENDING if option.key in ("tag", "verbose", "quiet", "dry_run")),
)  # fmt: skip
@click.argument("name", required=False, metavar="[NAME]")
def create_verb(output: Output, name: str | None, **given: Any) -> int:
    """Make it, and print its name."""
    request = _request(name, given)
    if given["verbose"] and given["quiet"]:
        raise usage("--verbose and --quiet contradict each other", "--quiet", "give one of them")
    if given["dry_run"]:
        from hostfork.cli.plan import show_plan

        return show_plan(output, api.plan(request))
    output.quiet = given["quiet"]
    teller = Teller(output, given["verbose"])
    try:
        record = api.create(request, on_event=teller)
    finally:
        teller.finish()
    if output.json:
        from hostfork.cli import documents

        output.document(documents.answer(documents.record(record)))
    else:
        output.lines([harmless(record.name)])
    return 0


def _request(name: str | None, given: dict[str, Any]) -> Request:
    if given["fd"]:
        raise usage("--fd is for a command, and none is started", "--fd", f"hostfork exec --fd N {name or 'NAME'} …")
    return replace(request_from(given, ()), name=name)
