"""`hostfork approve`: lets the changes of a fork be applied whose policy demands that somebody says so."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.asking import tags_from
from hostfork.cli.manual import LOGS, LOOK, STATE, Example, Manual
from hostfork.cli.options import TAG
from hostfork.cli.output import Output
from hostfork.cli.seal import tell
from hostfork.cli.verb import fork_argument, options, verb


@verb(
    "approve",
    "Approve a fork's changes, so that they may be applied.",
    Example("hostfork approve calm-otter", "After `hostfork diff calm-otter`."),
    Example("hostfork approve calm-otter --tag reviewer=ann", "With a note that its log keeps."),
    Example("hostfork show calm-otter --receipt", "Whether it is approved, by whom, and which changes."),
    manual=Manual(
        about=(
            "A policy with `approval = true` in `[apply]` lets nobody apply changes that were not approved: the first "
            "`apply` makes the fork wait, and `list` and `show` say so. An approval counts for the changes as they "
            "are when it is given. From then on the fork is sealed; `unseal` voids the approval.",
            "It is refused in every process of a fork, whatever fork: nobody approves their own changes.",
        ),
        environment=(*LOOK, "HOSTFORK_FORK"),
        files=(*STATE, *LOGS),
        see=("diff", "show", "unseal", "log"),
    ),
)
@fork_argument()
@options(TAG)
def approve_verb(output: Output, fork: str, tag: tuple[str, ...]) -> int:
    """Approve."""
    return tell(output, "approved", [api.approve(fork, tags_from(tag))])
