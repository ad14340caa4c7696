"""`hostfork exec` as a verb: options, the fork, and the command behind it."""

from __future__ import annotations

import click

from hostfork.cli import candidates
from hostfork.cli.entering import enter
from hostfork.cli.manual import ENVIRONMENT, STATE, Example, Manual
from hostfork.cli.options import ENTERING
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, options, verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATUSES = (
    ("0 to 255", "the command's own"),
    ("128+N", "signal N ended the command; or hostfork, before the command began"),
    ("124", "the time limit ended it"),
    ("125", "hostfork failed, refused, or was used wrongly"),
    ("126", "the command cannot be executed"),
    ("127", "the command does not exist"),
)


@verb(
    "exec",
    "Run a command in a kept fork.",
    Example("hostfork exec calm-otter -- git status", "In the fork's view: same paths, its own content."),
    Example("hostfork exec --timeout 5m calm-otter -- make test", "Five minutes at most; others in the fork go on."),
    Example("hostfork exec --detach calm-otter -- make", "In the background; `hostfork logs calm-otter` shows it."),
    manual=Manual(
        about=(
            "Any number of commands can be in one fork at once, and all of them see one view. Each has a cgroup of its "
            "own, so that it is ended alone, with all that it started: by its own end, its time limit, or the end of "
            "this hostfork. When the last one has left, the view is taken down; the fork stays, and the next command "
            "finds the same paths, times and owners, so that build trees stay warm.",
            "The command starts in your working directory if that is private to the fork, else where the fork was "
            "made. It has your environment, changed as the fork was told by `create`, and then by this command line.",
            "A fork that `run` kept can be entered too, and is kept whole from then on. Refused is one whose base is "
            "gone, one that shows through to a folder which has changed since, and one that is sealed.",
        ),
        statuses=STATUSES,
        environment=tuple(ENVIRONMENT),
        files=STATE,
        see=("create", "shell", "ps", "logs", "stop"),
    ),
    json="with --detach: a JSON document on stdout",
)
@options(*ENTERING)
@fork_argument()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…", shell_complete=candidates.files)
def exec_verb(output: Output, fork: str, command: tuple[str, ...], **given: Any) -> int:
    """Run in the fork, and give the command's own status or hostfork's 124 to 127."""
    return enter(output, fork, command[command[:1] == ("--",) :], given)


# the first word that is no option is the fork, and then the command begins
exec_verb.allow_interspersed_args = False
