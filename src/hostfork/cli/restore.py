"""`hostfork restore`: an idle fork becomes what it was at a checkpoint."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli import candidates
from hostfork.cli.look import duration, harmless
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, verb


@verb(
    "restore",
    "Make a fork what it was at a checkpoint.",
    Example("hostfork restore calm-otter last", "To the last one; else by the beginning of an id."),
    Example("hostfork checkpoints calm-otter", "Which there are, and what was done before each."),
    Example("hostfork restore calm-otter last --json", "For a program: `before` is what it held, to go back."),
    manual=Manual(
        about=(
            "What the fork holds now becomes a checkpoint first, so that nothing is lost and restoring can be undone "
            "by restoring that. The fork must be idle; on Btrfs this takes no time, elsewhere what differs is "
            "written. What the fork's rules leave out is left alone.",
            "Killed in between, the fork is neither: `hostfork recover` completes it, and until then nothing else "
            "uses it.",
        ),
        environment=LOOK,
        files=STATE,
        see=("checkpoint", "checkpoints", "diff", "recover"),
    ),
)
@fork_argument()
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=candidates.checkpoints_of_fork)
def restore_verb(output: Output, fork: str, checkpoint: str) -> int:
    """Restore, and tell how to go back."""
    done = api.restore(fork, checkpoint)
    name = harmless(done.checkpoint.fork)
    if output.json:
        from hostfork.cli.documents import answer, words

        document = {
            "fork": done.checkpoint.fork, "checkpoint": done.checkpoint.id, "before": done.before.id,
            "changed": not done.same, "seconds": round(done.seconds, 6), "incomplete": words(done.incomplete),
        }  # fmt: skip
        output.document(answer(document))
    elif done.same:
        output.lines([f"{name} holds that already"])
    else:
        output.lines([f"{name} is what it was at {done.checkpoint.short}   {duration(done.seconds)}"])
        output.say(f"back again: hostfork restore {name} {done.before.short}")
        if done.incomplete:
            from hostfork.cli.export import left_out_lines

            output.complain(left_out_lines(done.incomplete))
    return 0
