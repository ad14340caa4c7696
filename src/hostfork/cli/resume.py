"""`hostfork resume`: let a suspended fork go on."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.look import harmless
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, verb


@verb(
    "resume",
    "Let a suspended fork go on.",
    Example("hostfork resume calm-otter", "Its processes go on."),
    Example("hostfork suspend calm-otter && hostfork resume calm-otter", "Held still for a moment."),
    Example("hostfork list", "Its state is `running` again."),
    manual=Manual(
        about=("All its processes go on where `suspend` held them.",),
        environment=LOOK,
        files=STATE,
        see=("suspend", "stop", "ps"),
    ),
)
@fork_argument()
def resume_verb(output: Output, fork: str) -> int:
    """Let them go on."""
    api.resume(fork)
    if output.json:
        from hostfork.cli.documents import answer, text

        output.document(answer({"resumed": text(fork)}))
    else:
        output.lines([f"resumed {harmless(fork)}"])
    return 0
