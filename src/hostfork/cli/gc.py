"""`hostfork gc`: kept forks that have expired go; `--dry-run` says which, and why."""

from __future__ import annotations

from collections.abc import Sequence

from hostfork import api
from hostfork.cli.look import Look, harmless, plural, size, table
from hostfork.cli.manual import CONFIG, LOOK, STATE, Example, Manual
from hostfork.cli.output import PREFIX, Output
from hostfork.cli.usage import rules_lines
from hostfork.cli.verb import flag, verb


@verb(
    "gc",
    "Let kept forks go that have expired.",
    Example("hostfork gc --dry-run", "What would go, in which order, and why."),
    Example("hostfork gc", "Let it go, now."),
    Example("hostfork gc --dry-run --json", "The same for a program, with the rules in force."),
    manual=Manual(
        about=(
            "A kept fork expires 14 days after its last use, 1 day where every change is in folders that the project "
            "ignores; and before that where kept forks are too many or take too much of their pool's filesystem, the "
            "one that was not used for longest first. `[keep]` in the configuration file says how long and how much.",
            "Nothing goes that is pinned, running, awaits approval, or was left by a crash (that is `hostfork "
            "recover`'s, and named). Nothing goes while somebody uses it. What was used within a day goes for no limit "
            "on number or bytes, so a limit can be exceeded; that is said.",
            "Baselines that `--private` made by itself go likewise, where no fork lies over them; they have the "
            "limit on bytes for themselves. Those with a name are kept until `baseline remove`.",
            "Runs, `list` and `discard` begin it in the background, at most once an hour; `hostfork list --expired` "
            "shows what went.",
        ),
        environment=(*LOOK, "XDG_CONFIG_HOME"),
        files=(*STATE, *CONFIG),
        see=("usage", "pin", "timer", "list", "recover"),
    ),
)
@flag("--dry-run", help="show what would go, and let nothing go")
def gc_verb(output: Output, dry_run: bool) -> int:
    """Let go what has expired."""
    done = api.gc(dry_run=dry_run)
    if output.json:
        from hostfork.cli.keeping import collected

        output.document(collected(done, dry_run))
    else:
        output.lines(gone_lines(done.gone, output.out))
        output.lines([sum_in_words(done.gone, dry_run)])
        if done.contents:
            what = plural(done.contents, "file")
            output.lines([f"{what} that no checkpoint needs any more, {size(done.contents_bytes)}"])
        if dry_run:
            output.lines(["", *rules_lines(done.rules, output.out)])
    _complain(output, done)
    return 0


def gone_lines(gone: Sequence[api.Expired], look: Look) -> list[str]:
    """A line for each: what it took, and why it goes; of a baseline also what it was taken of."""
    return table(
        [
            (
                harmless(one.name) + (f" of {look.path(one.paths[0])}" if one.kind != "fork" and one.paths else ""),
                "?" if one.bytes is None else size(one.bytes),
                harmless(one.why),
            )
            for one in gone
        ]
    )


def sum_in_words(gone: Sequence[api.Expired], dry_run: bool) -> str:
    """How many went, or would, and what that makes."""
    if not gone:
        return "nothing has expired"
    kinds = [(kind, sum(one.kind == kind for one in gone)) for kind in ("fork", "baseline")]
    what = ", ".join(plural(count, kind) for kind, count in kinds if count)
    return f"{what} {'would go' if dry_run else 'expired'}, {size(sum(one.bytes or 0 for one in gone))}"


def _complain(output: Output, done: api.Collected) -> None:
    """What stands in the way, also beside a JSON document."""
    for sentence in (*done.over, *done.leftovers):
        output.complain([f"{PREFIX}{harmless(sentence)}"])
    for name in done.spared:
        output.complain([f"{PREFIX}{harmless(name)} stays: it was used or pinned meanwhile"])
    if done.waiting:
        names = ", ".join(map(harmless, done.waiting))
        output.complain([f"{PREFIX}a crash left {names}: hostfork recover"])
