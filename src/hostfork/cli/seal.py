"""`hostfork seal`: Let nothing more be written in forks."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.asking import tags_from
from hostfork.cli.look import harmless
from hostfork.cli.manual import LOGS, LOOK, STATE, Example, Manual
from hostfork.cli.options import TAG
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, options, verb


@verb(
    "seal",
    "Let nothing more be written in forks.",
    Example("hostfork seal calm-otter", "One fork."),
    Example("hostfork seal calm-otter odd-heron", "Two forks."),
    Example("hostfork seal calm-otter --tag review=42", "With a note that its log keeps."),
    manual=Manual(
        about=(
            "A sealed fork is read, exported and applied as any other, and neither entered nor restored; what was "
            "reviewed is what is applied. `unseal` opens it again. A fork whose command is running cannot be sealed.",
        ),
        environment=LOOK,
        files=(*STATE, *LOGS),
        see=("unseal", "show", "log", "approve"),
    ),
)
@fork_argument(nargs=-1, required=True, metavar="FORK…")
@options(TAG)
def seal_verb(output: Output, fork: tuple[str, ...], tag: tuple[str, ...]) -> int:
    """Each, in order."""
    return tell(output, "sealed", [api.seal(name, tags_from(tag)) for name in fork])


def tell(output: Output, word: str, decided: list[tuple[api.Record, bool]]) -> int:
    """What is so now, and whether it was not before."""
    if output.json:
        from hostfork.cli.documents import answer, words

        names = words(record.name for record, _ in decided)
        output.document(answer({word: names, "changed": words(record.name for record, new in decided if new)}))
    else:
        output.lines(
            f"{harmless(record.name)} is {word}{'' if new else '   it was already'}" for record, new in decided
        )
    return 0
