"""`hostfork run` as a verb: everything up to the first word that is no option is hostfork's, the rest the command's."""

from typing import Any

import click

from hostfork.cli.options import CONTEXT, ENDING, RULES
from hostfork.cli.output import Output
from hostfork.cli.running import run
from hostfork.cli.verb import complete_files, options, verb


@verb(
    "run",
    "Run a command with selected independent state.",
    "hostfork run --private ~/proj -- make test",
    "hostfork run --private . --rm --timeout 5m -- pytest -x",
    "hostfork run --policy build --private . --result r.json -- ./build.sh",
    json="with --dry-run: the plan as a JSON document",
)
@options(*RULES, *CONTEXT, *ENDING)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…", shell_complete=complete_files)
def run_verb(output: Output, command: tuple[str, ...], **given: Any) -> int:
    """Run, and give the command's own status or hostfork's 124 to 127."""
    return run(output, command, given)


# the first word that is no option begins the command, whatever follows
run_verb.allow_interspersed_args = False
