"""`hostfork undo`: the host gets back what an apply displaced."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli import candidates
from hostfork.cli.applied import undo_conflict_lines, undone_document, undone_lines
from hostfork.cli.confirm import confirmed
from hostfork.cli.look import counts_in_words, harmless
from hostfork.cli.manual import APPLIES, LOOK, STATE, Example, Manual
from hostfork.cli.output import PREFIX, Output
from hostfork.cli.verb import flag, verb


@verb(
    "undo",
    "Take back what an apply did to the host.",
    Example("hostfork undo calm-otter --dry-run", "Whether the fork's last apply can be taken back."),
    Example("hostfork undo calm-otter --yes", "The host is as it was before; the fork keeps its changes."),
    Example("hostfork apply calm-otter --yes", "And once more."),
    manual=Manual(
        about=(
            "Puts back names, contents, modification times, modes, owners and attributes of all that the apply "
            "replaced, all of it or none. NAME is a fork, whose last apply is meant, or the id that `apply` told, "
            "which works also when the fork is gone. Where somebody changed one of those paths since, nothing is "
            "written, they are listed, and the status is 1.",
            "What an apply displaced is kept for the days that `undo-days` of the configuration says, 14 without it.",
        ),
        statuses=(("1", "somebody changed what was applied; or the answer to the question was no"),),
        environment=LOOK,
        files=STATE + APPLIES,
        see=("apply", "log"),
    ),
)
@click.argument("name", metavar="NAME", shell_complete=candidates.forks)
@flag("--dry-run", help="show what would be taken back; write nothing")
@flag("--yes", "-y", help="do not ask")
def undo_verb(output: Output, name: str, dry_run: bool, yes: bool) -> int:
    """Undo; 1 where somebody changed it since."""
    result = api.undo(name, dry_run=True)
    if not result.conflicts and not dry_run:
        lines = [f"{', '.join(output.err.path(path) for path in result.paths)}  {counts_in_words(result.counts)}"]
        if not yes and not confirmed(output, "the host's files would change", lines, "this is taken back:"):
            return 1
        result = api.undo(result.id)
    if output.json:
        output.document(undone_document(result, dry_run))
    elif result.conflicts:
        output.complain(undo_conflict_lines(result, output.err))
    else:
        output.lines(undone_lines(result, dry_run, output.out))
        output.complain([f"{PREFIX}{harmless(one)}" for one in result.notices])
    return int(bool(result.conflicts))
