"""`hostfork wait`: until a fork's command has ended."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli.exec import STATUSES
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import PREFIX, Output
from hostfork.cli.telling import exit_status, problem_lines
from hostfork.cli.verb import fork_argument, verb


@verb(
    "wait",
    "Wait for a fork's command, and end as it did.",
    Example("hostfork wait calm-otter", "For its last command; the status is that command's."),
    Example("hostfork wait $(hostfork run --detach --private . -- make test)", "For a run in the background."),
    Example("hostfork wait calm-otter 1 --json", "How the command with that number ended, for a program."),
    manual=Manual(
        about=(
            "Returns at once where it has ended already: of commands in the background that is known until the fork "
            "is gone or they are run again, of others while they run. Nobody knows the status of a command whose "
            "hostfork and keeper were both killed; that is 125.",
        ),
        statuses=STATUSES,
        environment=LOOK,
        files=STATE,
        see=("run", "exec", "logs", "stop"),
    ),
)
@fork_argument()
@click.argument("number", required=False, type=click.IntRange(min=1), metavar="[NUMBER]")
def wait_verb(output: Output, fork: str, number: int | None) -> int:
    """Wait, and give the command's own status."""
    status = api.wait(fork, number)
    code = exit_status(status)
    if output.json:
        from hostfork.cli import documents

        output.document(documents.answer({**documents.status(status), "status": code}))
    elif status.error is not None:
        output.complain(problem_lines(status.error, code))
    elif status.exit is None and status.signal is None and not status.timed_out:
        output.complain([f"{PREFIX}nobody saw how the command ended   status {code}"])
    return code
