"""`hostfork branch`: a new fork that begins as another one is now."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli.asking import tags_from
from hostfork.cli.look import duration, harmless, size
from hostfork.cli.manual import LOGS, LOOK, STATE, Example, Manual
from hostfork.cli.options import TAG
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, options, verb


@verb(
    "branch",
    "Make a new fork that begins as another one is now.",
    Example("hostfork branch calm-otter second", "Two forks of one state; neither sees what the other does."),
    Example("hostfork branch calm-otter", "With a name that is found, and printed."),
    Example("hostfork list --tree", "Which fork is a branch of which."),
    manual=Manual(
        about=(
            "The base of the new fork is what the other one holds at this moment: it has no changes at first, and "
            "`diff` shows only its own. It has the same paths, terms and working directory, and is there to be entered "
            "by `exec` and `shell`. What becomes of the other fork makes no difference to it: either can be "
            "discarded first.",
            "It is of the same mechanism and takes no time where that takes snapshots or is an overlay: what the other "
            "fork changed then lies under both. A running fork that is an overlay or a copy is held still while that "
            "is copied; how long is told. A copy or clone is made twice: the second is the base that is kept.",
            "A branch of a `:live` folder is entered only while the host leaves that folder as it is.",
        ),
        environment=LOOK,
        files=(*STATE, *LOGS),
        see=("create", "exec", "list", "diff", "discard"),
    ),
)
@options(TAG)
@fork_argument()
@click.argument("name", required=False, metavar="[NAME]")
def branch_verb(output: Output, fork: str, name: str | None, tag: tuple[str, ...]) -> int:
    """Make it, and print its name."""
    made = api.branch(fork, name, tags_from(tag))
    if output.json:
        from hostfork.cli import documents

        facts = {"seconds": round(made.seconds, 6), "bytes_copied": made.bytes, "pause": made.pause}
        output.document(documents.answer({**documents.record(made.record), **facts}))
        return 0
    output.lines([harmless(made.record.name)])
    told = [f"a branch of {harmless(made.record.parent.name)}"] if made.record.parent is not None else []
    if made.bytes:
        told.append(f"{size(made.bytes)} copied")
    if made.pause is not None:
        told.append(f"held still for {duration(made.pause)}")
    output.say(f"{harmless(made.record.name)}  {' · '.join(told)}")
    return 0
