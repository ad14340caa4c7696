"""`hostfork logs`: what a command in the background wrote."""

from __future__ import annotations

import os

import click

from hostfork import api
from hostfork.cli.manual import STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import flag, fork_argument, verb

_PIECE = 1 << 16


@verb(
    "logs",
    "Print what a command in the background wrote.",
    Example("hostfork logs calm-otter", "Of the last one, standard output and error as they came."),
    Example("hostfork logs calm-otter 1", "Of the command with that number."),
    Example("hostfork logs calm-otter --follow", "On and on, until it has ended."),
    manual=Manual(
        about=(
            "The output of a command that was started with `--detach`, byte for byte: colours and control characters "
            "are the command's. It is kept with the fork, without a limit, and is gone with it.",
        ),
        environment=("HOME", "XDG_STATE_HOME"),
        files=STATE,
        see=("run", "exec", "wait", "ps"),
    ),
    json="where the log lies, and how large it is",
)
@fork_argument()
@click.argument("number", required=False, type=click.IntRange(min=1), metavar="[NUMBER]")
@flag("-f", "--follow", help="go on until the command has ended")
def logs_verb(output: Output, fork: str, number: int | None, follow: bool) -> int:
    """Print it."""
    path, ended = api.log_of(fork, number)
    if output.json:
        from hostfork.cli.documents import answer, exact, text

        document = {"fork": text(fork), **exact("log", path), "bytes": os.stat(path).st_size, "ended": ended(0)}
        output.document(answer(document))
        return 0
    with open(path, "rb") as file:
        while True:
            # Asked first: what was written before the end is read after it.
            done = not follow or ended(0.1)
            while content := file.read(_PIECE):
                output.bytes(content)
            if done:
                return 0
