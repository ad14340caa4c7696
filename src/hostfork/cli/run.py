"""`hostfork run` as a verb: everything up to the first word that is no option is hostfork's, the rest the command's."""

from __future__ import annotations

import click

from hostfork.cli import candidates
from hostfork.cli.manual import ENVIRONMENT, STATE, Example, Manual
from hostfork.cli.options import CONTEXT, ENDING, RULES
from hostfork.cli.output import Output
from hostfork.cli.running import run
from hostfork.cli.verb import options, verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MANUAL = Manual(
    about=(
        "The command gets the host as it is, except for the paths that rules name: `--private` a writable copy of its "
        "own, `--read-only`, `--scratch`, `--hidden` what they say. It starts in the working directory, with the "
        "caller's environment, umask, signals and terminal; standard input, output and error are the caller's, byte "
        "for byte. Everything up to the first word that is no option is hostfork's, the rest the command's; `--` makes "
        "that plain.",
        "When the command ends, every process that it started is ended. If nothing changed, nothing is kept and "
        "nothing is said. Else the fork is kept, and a closing line names it and the commands that work with it; "
        "`--rm` throws the changes away, `--export` writes the final content somewhere.",
        "What is weaker than usual on this host is printed by each run. `-v` says also which mechanism each path got "
        "and why, `hostfork plan` all of it beforehand. A promise that cannot be kept is an error, before anything is "
        "made: nothing turns into something weaker.",
        "INT, TERM, HUP, QUIT, USR1 and USR2 sent to hostfork are passed to the command. If hostfork is killed, the "
        "command's processes are ended, and `hostfork recover` keeps the changes.",
    ),
    statuses=(
        ("0 to 255", "the command's own"),
        ("128+N", "signal N ended the command; or hostfork, before the command began or while its changes were read"),
        ("124", "the time limit ended it"),
        ("125", "hostfork failed, refused, or was used wrongly"),
        ("126", "the command cannot be executed"),
        ("127", "the command does not exist"),
    ),
    environment=tuple(ENVIRONMENT),
    files=STATE,
    see=("plan", "diff", "export", "discard", "recover", "policy"),
)


@verb(
    "run",
    "Run a command with selected independent state.",
    Example("hostfork run --private ~/proj -- make test", "Run the tests in a private copy of a project."),
    Example(
        "hostfork run --private . --rm --timeout 5m -- pytest -x",
        "In a copy of the working directory, five minutes at most; whatever it writes is thrown away.",
    ),
    Example(
        "hostfork run --policy build --private . --result r.json -- ./build.sh",
        "With the home folder read-only, and a file that tells a program how it went.",
    ),
    manual=_MANUAL,
    json="with --dry-run or --detach: a JSON document",
)
@options(*RULES, *CONTEXT, *ENDING)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…", shell_complete=candidates.files)
def run_verb(output: Output, command: tuple[str, ...], **given: Any) -> int:
    """Run, and give the command's own status or hostfork's 124 to 127."""
    return run(output, command, given)


# the first word that is no option begins the command, whatever follows
run_verb.allow_interspersed_args = False
