"""`hostfork usage`: what everything that is kept takes, how long it is kept, and how much room is left."""

from __future__ import annotations

import time

from hostfork import api
from hostfork.cli.look import Look, age, columns, harmless, pad, plural, size, table
from hostfork.cli.manual import CONFIG, LOOK, STATE, Example, Manual
from hostfork.cli.output import PREFIX, Output
from hostfork.cli.verb import verb

_HEAD = ("NAME", "STATE", "EXCLUSIVE", "SHARED", "APPARENT", "LAST USE", "GOES")
_LABEL = 12


@verb(
    "usage",
    "Show what is kept takes, and how long it is kept.",
    Example("hostfork usage", "Every fork, the largest first, and the pools."),
    Example("hostfork usage --json", "The same for a program, with exact numbers."),
    Example("hostfork usage | grep pinned", "What never expires: status 1 if nothing.", status=1),
    manual=Manual(
        about=(
            "A line for each fork and baseline. `EXCLUSIVE`: bytes on the disk that nothing else holds, so what comes "
            "back when it goes; `at most` where the filesystem cannot tell exactly, `at least` where files of it share "
            "blocks with each other. `SHARED`: bytes that its source, its base or another file holds too. `APPARENT`: "
            "the sizes of its files. Only files that a fork wrote or has a copy of are counted, not those that are "
            "still its base's.",
            "`GOES`: when it expires if nobody uses it. `diff` and `export` count as a use, `list`, `show` and `usage` "
            "do not. `pinned` forks never expire.",
            "Then a paragraph for each pool: its filesystem and what is free there, what kept forks take of what they "
            "may take, and what is still being erased. What several hold together "
            "counts for none of them. At the end stand the rules in force, and where they are set.",
        ),
        environment=(*LOOK, "XDG_CONFIG_HOME"),
        files=(*STATE, *CONFIG),
        see=("gc", "pin", "list", "discard"),
    ),
)
def usage_verb(output: Output) -> int:
    """Show all that takes space."""
    view = api.usage()
    if output.json:
        from hostfork.cli.keeping import overview

        output.document(overview(view))
        return 0
    output.lines(usage_lines(view, output.out))
    problems = [one.problem for one in view.holders if one.problem is not None]
    problems += [f"expiry in the background: {view.gc_problem}"] if view.gc_problem else []
    for sentence in problems:
        output.complain([f"{PREFIX}{harmless(sentence)}"])
    return 0


def usage_lines(view: api.Overview, look: Look) -> list[str]:
    """All of it for people."""
    now = time.time()
    with_kind = any(one.kind != "fork" for one in view.holders)
    rows = [_row(one, now, with_kind, look) for one in view.holders]
    head = (_HEAD[0], "KIND", *_HEAD[1:]) if with_kind else _HEAD
    lines = table([head, *rows]) if rows else []
    lines[:1] = [look.paint(line, "dim") for line in lines[:1]]
    for pool in view.pools:
        lines += [*([""] if lines else []), *_pool_lines(pool, look)]
    if any(one.space is not None and one.space.base_beside for one in view.holders):
        lines += ["", "snapshots: blocks that the host gave up since, and a base still holds, are not counted"]
    return [*lines, *([""] if lines else []), *rules_lines(view.rules, look)]


def _row(one: api.Holder, now: float, with_kind: bool, look: Look) -> tuple[str, ...]:
    space = one.space
    sizes = ("?", "?", "?") if space is None else (
        size(space.exclusive) + _bound(upper=space.upper_bound, lower=space.lower_bound),
        size(space.shared), size(space.apparent),
    )  # fmt: skip
    used = "-" if one.last_use is None else f"{age(now - one.last_use)} ago"
    kind = (one.kind,) if with_kind else ()
    name = harmless(one.name) + (f" of {look.path(one.path, 32)}" if one.path else "")
    return (name, *kind, one.state, *sizes, used, _goes(one, now))


def _bound(*, upper: bool, lower: bool) -> str:
    if upper and lower:
        return " or so"
    return " at most" if upper else " at least" if lower else ""


def _goes(one: api.Holder, now: float) -> str:
    if one.pinned:
        return "pinned"
    return "-" if one.goes is None else goes_in_words(one.goes - now)


def goes_in_words(seconds: float) -> str:
    """When something expires; a minute makes it no day less."""
    return f"in {age(seconds + 60)}" if seconds > 0 else "now"


def _pool_lines(pool: api.PoolUse, look: Look) -> list[str]:
    first = look.paint("pool", "bold") + f" {look.path(pool.path)}"
    if pool.problem is not None:
        return [first, f"  {harmless(pool.problem)}"]
    most = "" if pool.most is None else f" of at most {size(pool.most)}"
    running = pool.exclusive - pool.kept - pool.baselines
    facts = [
        ("filesystem", f"{harmless(pool.filesystem)}, {size(pool.free)} of {size(pool.total)} free"),
        ("kept", f"{size(pool.kept)}{most}"),
        ("baselines", size(pool.baselines) if pool.baselines else ""),
        ("checkpoints", size(pool.checkpoints) if pool.checkpoints else ""),
        ("in use", size(running) if running else ""),
        ("being erased", f"{plural(pool.erasing, 'piece')}, {size(pool.erasing_bytes)}" if pool.erasing else ""),
    ]
    return [first, *(f"  {pad(label, _LABEL)}  {fact}" for label, fact in facts if fact)]


def rules_lines(rules: api.KeepRules, look: Look) -> list[str]:
    """How long forks are kept, and where that is set."""
    facts = [
        ("kept for", "ever" if rules.keep_days is None else f"{rules.keep_days} d after the last use"),
        ("", f"{rules.keep_days_ignored} d where every change is in ignored folders" if _shorter(rules) else ""),
        ("at most", _limits(rules)),
        ("set in", look.path(rules.file) + ("" if rules.given else ", which is not there: these are the defaults")),
    ]  # fmt: skip
    room = max(columns(label) for label, _ in facts)
    return [f"{pad(label, room)}  {fact}" for label, fact in facts if fact]


def _shorter(rules: api.KeepRules) -> bool:
    days = rules.keep_days_ignored
    return days is not None and (rules.keep_days is None or days < rules.keep_days)


def _limits(rules: api.KeepRules) -> str:
    number = "any number of forks" if rules.max_forks is None else plural(rules.max_forks, "fork")
    if rules.max_percent is not None:
        return f"{number}; in a pool {rules.max_percent}% of its filesystem"
    return f"{number}; in a pool {'any size' if rules.max_bytes is None else size(rules.max_bytes)}"
