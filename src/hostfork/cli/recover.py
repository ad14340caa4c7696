"""`hostfork recover`: what a crash, a kill or a reboot left behind is put right; changes are kept."""

from hostfork import api
from hostfork.cli.look import columns, harmless, pad
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
            "ended, if any are left; what it changed is kept as a fork; half made and half removed storage is given "
            "back. It is safe at any time, beside running forks too, and does nothing where nothing is left.",
        ),
        statuses=(("1", "something is still left; it is named"),),
        environment=LOOK,
        files=STATE,
        see=("list", "show", "discard"),
    ),
)
def recover_verb(output: Output) -> int:
    """Recover all orphans; 1 if something is still left."""
    recovered = api.recover()
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
