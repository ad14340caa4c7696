"""`hostfork suspend`: hold all processes of a fork still."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.look import harmless
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import fork_argument, verb


@verb(
    "suspend",
    "Hold all processes of a fork still.",
    Example("hostfork suspend calm-otter", "It uses no processor until `resume`."),
    Example("hostfork list", "Its state is `frozen` then."),
    Example("hostfork resume calm-otter", "It goes on."),
    manual=Manual(
        about=(
            "Every process that any command in it started stops where it is, by the freezer of the fork's cgroup, "
            "until `resume`. It keeps its memory and its files; its time limit goes on, and ends it. A process that "
            "waits in the kernel for a disk can take a while; where it does not stop in ten seconds it is named, and "
            "all run on. A fork without a cgroup cannot be suspended.",
        ),
        environment=LOOK,
        files=STATE,
        see=("resume", "stop", "ps"),
    ),
)
@fork_argument()
def suspend_verb(output: Output, fork: str) -> int:
    """Hold them still."""
    seconds = api.suspend(fork)
    if output.json:
        from hostfork.cli.documents import answer, text

        output.document(answer({"suspended": text(fork), "seconds": round(seconds, 6)}))
    else:
        output.lines([f"suspended {harmless(fork)}"])
    return 0
