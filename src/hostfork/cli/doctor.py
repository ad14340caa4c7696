"""`hostfork doctor`: each capability of this host, how it was tried, what follows, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from hostfork.cli.look import Look, harmless, wrapped
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import verb
from hostfork.lifecycle.doctor import Capability, examine

_NAME = 20


@verb(
    "doctor",
    "Show what this host can do, and how that was found.",
    Example("hostfork doctor", "Everything that was tried."),
    Example("hostfork doctor --json", "The same for a program."),
    Example("hostfork doctor > /dev/null && hostfork run --private . -- make", "Run only where forks can be made."),
    manual=Manual(
        about=(
            "Tries each capability for real, in hostfork's own state folder and in a child that ends at once, and "
            "leaves nothing: namespaces, cgroup ownership, the pool, each mechanism, mounts, ssh. For each it says "
            "what follows, how it was tried, and what would help.",
        ),
        statuses=(("1", "no fork at the same paths can be made here"),),
        environment=(*LOOK, "XDG_RUNTIME_DIR"),
        files=STATE,
        see=("setup", "plan"),
    ),
)
def doctor_verb(output: Output) -> int:
    """Examine; 1 if no fork at the same paths can be made here."""
    capabilities = examine()
    if output.json:
        from hostfork.cli.documents import doctor

        output.document(doctor(capabilities))
    else:
        output.lines(doctor_lines(capabilities, output.out))
    return int(any(capability.needed and not capability.available for capability in capabilities))


def doctor_lines(capabilities: Sequence[Capability], look: Look) -> list[str]:
    """The capabilities for people."""
    lines = []
    for capability in capabilities:
        word, style = ("yes", "green") if capability.available else ("no", "red" if capability.needed else "yellow")
        lines += _indented(f"{look.paint(f'{word:<3}', style)} {look.paint(f'{capability.name:<{_NAME}}', 'bold')} ",
                           harmless(capability.follows), look)  # fmt: skip
        lines += _indented(" " * (_NAME + 5) + look.paint("tried: ", "dim"), harmless(capability.how), look)
        if capability.remedy and not capability.available:
            lines += _indented(" " * (_NAME + 5) + "remedy: ", harmless(capability.remedy), look)
    return lines


def _indented(first: str, text: str, look: Look) -> list[str]:
    indent = " " * (_NAME + 5)
    room = max(30, look.width - _NAME - 14) if look.width else None
    parts = wrapped(text.split(" "), 0, room, " ")
    return [first + parts[0], *(indent + part for part in parts[1:])]
