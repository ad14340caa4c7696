"""`hostfork checkpoints`: those of a fork; `--verify` reads all that they are made of."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.look import duration, harmless, plural, size, table
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import INDENT, PREFIX, Output
from hostfork.cli.verb import flag, fork_argument, verb
from hostfork.errors import Code, PolicyError

_SHORT = 12


@verb(
    "checkpoints",
    "Show a fork's checkpoints, or verify them.",
    Example("hostfork checkpoints calm-otter", "The oldest first."),
    Example("hostfork checkpoints calm-otter --json", "The same for a program."),
    Example("hostfork checkpoints --verify", "Whether those of all forks hold what they held when they were made."),
    manual=Manual(
        about=(
            "A line for each: the beginning of its id, which is enough to name it, its age, how many paths differed "
            "from the fork's base, how the last command had ended (`running` where it had not), that command, and the "
            "note.",
            "`--verify` reads every file that they are made of and compares it with its digest, and names each that is "
            "damaged or missing, with the checkpoints that need it. Without FORK it does so for all forks.",
        ),
        statuses=(("1", "with `--verify`: something is damaged"),),
        environment=LOOK,
        files=STATE,
        see=("checkpoint", "restore", "diff"),
    ),
)
@fork_argument(required=False, metavar="[FORK]")
@flag("--verify", help="read all that they are made of, and show what is damaged")
def checkpoints_verb(output: Output, fork: str | None, verify: bool) -> int:
    """List or verify them."""
    from hostfork.cli.moments import document, lines

    if verify:
        return _verify(output, fork)
    if fork is None:
        raise PolicyError(
            Code.POLICY_USAGE, "no fork is named", place="FORK", step="options",
            hint="hostfork list · hostfork checkpoints --verify",
        )  # fmt: skip
    found = api.checkpoints(fork)
    if output.json:
        from hostfork.cli.documents import answer

        output.document(answer({"checkpoints": [document(one) for one in found]}))
    elif found:
        output.lines(lines(found, output.out))
    else:
        output.say(f"no checkpoints: hostfork checkpoint {harmless(fork)}")
    return 0


def _verify(output: Output, fork: str | None) -> int:
    done = api.verify_checkpoints(fork)
    if output.json:
        from hostfork.cli.documents import answer, exact, words

        damage = [
            {**exact("path", one.path), "fault": one.fault.value, "checkpoints": list(one.checkpoints),
             "files": words(one.files)}
            for one in done.damage
        ]  # fmt: skip
        facts = {"files": done.files, "bytes": done.bytes, "seconds": round(done.seconds, 3)}
        output.document(answer({"checkpoints": done.checkpoints, **facts, "damage": damage}))
        return int(bool(done.damage))
    read = f"{plural(done.files, 'file')}, {size(done.bytes)}, {duration(done.seconds)}"
    output.lines([f"{plural(done.checkpoints, 'checkpoint')}  {read}"])
    if not done.damage:
        return 0
    rows = [
        (one.fault.value, ", ".join(name[:_SHORT] for name in one.checkpoints),
         output.out.path(one.files[0] if one.files else one.path))
        for one in done.damage
    ]  # fmt: skip
    output.lines(f"  {line}" for line in table(rows, look=output.out))
    told = [f"{PREFIX}checkpoints do not hold what they held when they were made"]
    output.complain([*told, f"{INDENT}code {Code.CHECKPOINT_DAMAGED.text} · status 1"])
    return 1
