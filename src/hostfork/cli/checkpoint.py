"""`hostfork checkpoint`: what a fork holds now, kept to go back to."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli.look import duration, harmless, plural, size
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import TableOption, fork_argument, verb


@verb(
    "checkpoint",
    "Keep what a fork holds now, to go back to.",
    Example('hostfork checkpoint calm-otter -m "before the upgrade"', "With a note."),
    Example("hostfork checkpoint calm-otter --json", "For a program: `checkpoint` is its id."),
    Example("hostfork restore calm-otter last", "Go back to it; the beginning of its id will do too."),
    manual=Manual(
        about=(
            "A checkpoint is all that the fork's private paths hold at this moment, with modes, owners, times, links, "
            "extended attributes and ACLs. It is called after its content: where nothing changed since one, there is "
            "no new one. Contents of files lie in the pool once for all forks, and share blocks with the fork's own "
            "where the filesystem does that. With it are kept the note, the time, the last command and how that ended.",
            "A running fork is held still for the moment by its cgroup; how long is told. A process that waits in the "
            "kernel cannot be stopped: after 5 seconds the answer is the error `checkpoint.busy` with its pid. A fork "
            "without a cgroup is read twice, and what was written meanwhile is named.",
            "A checkpoint belongs to its fork and goes with it. `export FORK@ID DEST` and `baseline create "
            "--from-checkpoint` keep one beyond that.",
        ),
        environment=LOOK,
        files=STATE,
        see=("checkpoints", "restore", "diff", "export"),
    ),
)
@fork_argument()
@click.option("-m", "--message", cls=TableOption, metavar="TEXT", default="", help="a note that is kept with it")
def checkpoint_verb(output: Output, fork: str, message: str) -> int:
    """Make it, and tell its id."""
    made = api.checkpoint(fork, message)
    one = made.checkpoint
    if output.json:
        from hostfork.cli.documents import answer
        from hostfork.cli.moments import document

        output.document(answer({**document(one), "new": made.new}))
        return 0
    output.lines([one.short])
    if not made.new:
        output.say(f"nothing changed since {one.short}: it is that one")
    else:
        facts = [f"{plural(one.changes, 'path')} changed", f"{plural(one.files, 'new file')}, {size(one.bytes)}"]
        if one.pause is not None:
            facts.append(f"held still for {duration(one.pause)}")
        output.say(f"{harmless(one.fork)}  {' · '.join(facts)}")
    return 0
