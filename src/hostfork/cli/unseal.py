"""`hostfork unseal`: Open forks again that were sealed or wait for approval."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.asking import tags_from
from hostfork.cli.manual import LOGS, LOOK, STATE, Example, Manual
from hostfork.cli.options import TAG
from hostfork.cli.output import Output
from hostfork.cli.seal import tell
from hostfork.cli.verb import fork_argument, options, verb


@verb(
    "unseal",
    "Open forks again that were sealed or wait for approval.",
    Example("hostfork unseal calm-otter", "One fork."),
    Example("hostfork unseal calm-otter odd-heron", "Two forks."),
    Example("hostfork unseal calm-otter --tag why=rework", "With a note that its log keeps."),
    manual=Manual(
        about=(
            "After that a fork may be entered and changed. An approval is void then, and changes that wait for one "
            "wait no more: the next `apply` asks for it anew.",
        ),
        environment=LOOK,
        files=(*STATE, *LOGS),
        see=("seal", "show", "log", "approve"),
    ),
)
@fork_argument(nargs=-1, required=True, metavar="FORK…")
@options(TAG)
def unseal_verb(output: Output, fork: tuple[str, ...], tag: tuple[str, ...]) -> int:
    """Each, in order."""
    return tell(output, "open", [api.unseal(name, tags_from(tag)) for name in fork])
