"""`hostfork checkpoints`: those of a fork."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.look import harmless
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, verb


@verb(
    "checkpoints",
    "Show a fork's checkpoints.",
    Example("hostfork checkpoints calm-otter", "The oldest first."),
    Example("hostfork checkpoints calm-otter --json", "The same for a program."),
    Example("hostfork diff calm-otter@3f9a calm-otter", "What changed since one of them."),
    manual=Manual(
        about=(
            "A line for each: the beginning of its id, which is enough to name it, its age, how many paths differed "
            "from the fork's base, how the last command had ended (`running` where it had not), that command, and the "
            "note.",
        ),
        environment=LOOK,
        files=STATE,
        see=("checkpoint", "restore", "diff"),
    ),
)
@fork_argument()
def checkpoints_verb(output: Output, fork: str) -> int:
    """List them."""
    from hostfork.cli.moments import document, lines

    found = api.checkpoints(fork)
    if output.json:
        from hostfork.cli.documents import answer

        output.document(answer({"checkpoints": [document(one) for one in found]}))
    elif found:
        output.lines(lines(found, output.out))
    else:
        output.say(f"no checkpoints: hostfork checkpoint {harmless(fork)}")
    return 0
