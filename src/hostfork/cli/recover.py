"""`hostfork recover`: what a crash, a kill or a reboot left behind is put right; changes are kept."""

from __future__ import annotations

import os
import time

from hostfork import api
from hostfork.cli.look import columns, harmless, number, pad
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import PREFIX, Output
from hostfork.cli.verb import verb


@verb(
    "recover",
    "Put right what a crash or kill left behind; changes are kept.",
    Example("hostfork recover", "Put right what there is, and say what."),
    Example("hostfork recover --json", "The same for a program."),
    Example("hostfork recover && hostfork list", "Then see what was kept."),
    manual=Manual(
        about=(
            "For after a crash: hostfork or the machine went down while a command ran. The command's processes are "
            "ended, if any are left; what it changed is kept as a fork; half made storage, and what is still left of "
            "forks that are gone, is erased. It is safe at any time, beside running forks too, and does nothing where "
            "nothing is left.",
        ),
        statuses=(("1", "something is still left; it is named"),),
        environment=LOOK,
        files=STATE,
        see=("list", "show", "discard"),
    ),
)
def recover_verb(output: Output) -> int:
    """Recover all orphans; 1 if something is still left."""
    progress = _Progress(output)
    try:
        recovered = api.recover(progress.show if os.isatty(2) else None)
    finally:
        progress.clear()
    left = [sentence for item in recovered for sentence in item.leftovers]
    if output.json:
        from hostfork.cli.documents import answer, text, words

        output.document(
            answer(
                {
                    "recovered": [
                        {"name": text(item.name), "what": text(item.what), "leftovers": words(item.leftovers)}
                        for item in recovered
                    ]
                }
            )
        )
        return int(bool(left))
    rows = [(harmless(item.name or "pool"), harmless(item.what)) for item in recovered]
    room = max((columns(name) for name, _ in rows), default=0)
    output.lines(f"{pad(name, room)}  {what}" for name, what in rows)
    for sentence in left:
        output.complain([f"{PREFIX}{harmless(sentence)}"])
    return int(bool(left))


class _Progress:
    """One line on a terminal, written over itself, only where something takes long."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._next = time.monotonic() + 0.4
        self._shown = 0

    def show(self, name: str, entries: int) -> None:
        """So many files and folders of a fork that is gone were erased."""
        if time.monotonic() < self._next:
            return
        line = f"{PREFIX}erasing what {harmless(name)} left  {number(entries)} files and folders"
        width = self._output.err.width
        if not width or columns(line) < width:  # a line that wraps could not be written over
            self._output.tell(f"\r{pad(line, self._shown)}")
            self._shown = columns(line)
        self._next = time.monotonic() + 0.1

    def clear(self) -> None:
        """Leave no half line behind."""
        if self._shown:
            self._output.tell(f"\r{' ' * self._shown}\r")
        self._shown = 0
