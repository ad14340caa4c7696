"""`hostfork shell`: the caller's own shell in a kept fork."""

from __future__ import annotations

import os

from hostfork.cli.entering import enter
from hostfork.cli.exec import STATUSES
from hostfork.cli.manual import ENVIRONMENT, STATE, Example, Manual
from hostfork.cli.options import ENTERING
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, options, verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@verb(
    "shell",
    "Open a shell in a kept fork.",
    Example("hostfork shell calm-otter", "$SHELL, or /bin/sh; it ends with `exit`."),
    Example("SHELL=/bin/bash hostfork shell calm-otter", "Another one."),
    Example("hostfork shell --cwd /tmp calm-otter", "Somewhere else."),
    manual=Manual(
        about=(
            "As `exec` with the program that `SHELL` names. Nothing of the shell's is changed: what it reads at its "
            "start can put `HOSTFORK_FORK`, the fork's name, into the prompt.",
        ),
        statuses=STATUSES,
        environment=("SHELL", *ENVIRONMENT),
        files=STATE,
        see=("exec", "create"),
    ),
    json="not for a shell: stdout is its own",
)
@options(*(option for option in ENTERING if option.key != "detach"))
@fork_argument()
def shell_verb(output: Output, fork: str, **given: Any) -> int:
    """Open it, and give its own status."""
    return enter(output, fork, (os.environ.get("SHELL") or "/bin/sh",), {**given, "detach": False})
