"""`hostfork pin`: forks that never expire."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.look import harmless
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, verb


@verb(
    "pin",
    "Keep forks until they are discarded: they never expire.",
    Example("hostfork pin calm-otter", "One fork."),
    Example("hostfork pin calm-otter odd-heron", "Two forks."),
    Example("hostfork usage | grep pinned", "Those that are pinned."),
    manual=Manual(
        about=(
            "A pinned fork is kept until `discard` throws it away, or until `unpin`. It counts for the limits on "
            "number and bytes. A running fork can be pinned too. If one of the names is not there, nothing is done.",
        ),
        environment=LOOK,
        files=STATE,
        see=("unpin", "usage", "gc"),
    ),
)
@fork_argument(nargs=-1, required=True, metavar="FORK…")
def pin_verb(output: Output, fork: tuple[str, ...]) -> int:
    """Pin them."""
    return pin(output, fork, True)


def pin(output: Output, names: tuple[str, ...], wanted: bool) -> int:
    """Pin or unpin, each once; one that is not there is an error before anything is done."""
    forks = {fork.name: fork for fork in map(api.Fork.open, names)}
    changed = {name: fork.pin(wanted) for name, fork in forks.items()}
    word = "pinned" if wanted else "unpinned"
    if output.json:
        from hostfork.cli.documents import answer, words

        output.document(answer({word: words(forks), "changed": words(name for name in forks if changed[name])}))
    else:
        already = "   it was already" if wanted else "   it was not pinned"
        output.lines(f"{word} {harmless(name)}{'' if changed[name] else already}" for name in forks)
    return 0
