"""A question before something that cannot be overlooked: at a terminal; without one it is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hostfork.cli.output import PREFIX, Output
from hostfork.errors import Code, ForkError


def confirmed(output: Output, what: str, lines: Sequence[str], head: str) -> bool:
    """Show the lines below `head` and ask. Raises ForkError `fork.confirm` where there is nobody to ask."""
    if output.json or not (os.isatty(0) and os.isatty(2)):
        raise ForkError(
            Code.FORK_CONFIRM, f"{what}, and nobody is there to ask", step="confirm", details=tuple(lines),
            hint="--yes does it without asking · --dry-run shows it",
        )  # fmt: skip
    output.complain([f"{PREFIX}{head}", *("  " + line for line in lines)])
    output.tell(f"{PREFIX}go on? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
