"""`hostfork unpin`: pinned forks expire as others do."""

from __future__ import annotations

from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.pin import pin
from hostfork.cli.verb import fork_argument, verb


@verb(
    "unpin",
    "Let pinned forks expire as others do.",
    Example("hostfork unpin calm-otter", "One fork."),
    Example("hostfork unpin calm-otter odd-heron", "Two forks."),
    Example("hostfork usage", "When they go now."),
    manual=Manual(
        about=(
            "Takes back what `pin` did: the fork expires again, counted from its last use. What is not pinned stays as "
            "it is.",
        ),
        environment=LOOK,
        files=STATE,
        see=("pin", "usage", "gc"),
    ),
)
@fork_argument(nargs=-1, required=True, metavar="FORK…")
def unpin_verb(output: Output, fork: tuple[str, ...]) -> int:
    """Unpin them."""
    return pin(output, fork, False)
