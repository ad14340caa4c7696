"""`hostfork overlap`: the paths that two forks, or a fork and the host, both changed."""

from __future__ import annotations

import click

from hostfork import api
from hostfork.cli import candidates
from hostfork.cli.changes import kind_in_words
from hostfork.cli.look import Look, harmless, table
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, verb
from hostfork.collect.changeset import Change, Changeset
from hostfork.vocabulary import ChangeKind

_WORDS = {
    ChangeKind.CREATED: "created",
    ChangeKind.MODIFIED: "edited",
    ChangeKind.DELETED: "deleted",
    ChangeKind.METADATA: "permissions",
}


@verb(
    "overlap",
    "Show what two forks, or a fork and the host, both changed.",
    Example("hostfork overlap calm-otter odd-heron", "What each of two forks did to the same paths.", status=1),
    Example("hostfork overlap calm-otter", "What the host has changed since.", status=0),
    Example("hostfork list", "How many there are, with all others: `MEETS`."),
    manual=Manual(
        about=(
            "A line for each path that both changed, with what each did; `same` where both now hold the same, which is "
            "no conflict. Also where one removed or replaced a folder in which the other changed something.",
            "With one name it is the host that is compared: a path counts where the host's entry was written after the "
            "fork's copy was begun, or came or went. That is one look at each path, and may name one that was only "
            "touched; `apply --dry-run` compares contents.",
        ),
        statuses=(("1", "there are such paths"),),
        environment=LOOK,
        files=STATE,
        see=("list", "diff"),
    ),
)
@fork_argument()
@click.argument("other", required=False, metavar="[OTHER]", shell_complete=candidates.forks)
def overlap_verb(output: Output, fork: str, other: str | None) -> int:
    """Show them; 1 if there are any."""
    one = api.Fork.open(fork)
    two = None if other is None else api.Fork.open(other)
    found = one.overlap(two)
    if output.json:
        from hostfork.cli.documents import answer

        output.document(answer({
            "fork": one.name,
            "other": None if two is None else two.name,
            "entries": [_document(meeting) for meeting in found],
        }))  # fmt: skip
    elif found:
        head = ("PATH", one.name, "host" if two is None else two.name, "")
        first, *lines = table([head, *(_row(meeting, output.out) for meeting in found)])
        output.lines([output.out.paint(first, "dim"), *lines])
    return int(bool(found))


def _row(meeting: api.Meeting, look: Look) -> tuple[str, ...]:
    return (look.path(meeting.path, 48), _did(meeting.one), _did(meeting.other), "same" if meeting.same else "")


def _did(change: Change | None) -> str:
    """What became of a path on one side."""
    if change is None:
        return "changed"
    if change.change is ChangeKind.TYPE:
        now = f"link to {harmless(change.target)}" if change.target is not None else kind_in_words(change.kind)
        return f"{kind_in_words(change.was)} -> {now}"
    return _WORDS[change.change]


def _document(meeting: api.Meeting) -> dict[str, object]:
    from hostfork.cli.documents import exact

    sides = (None if one is None else api.entries(Changeset((one,)))[0] for one in (meeting.one, meeting.other))
    return {**exact("path", meeting.path), **dict(zip(("one", "other"), sides, strict=True)), "same": meeting.same}
