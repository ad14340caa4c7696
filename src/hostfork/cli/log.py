"""`hostfork log`: what happened to a fork, also to one that is gone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import click

from hostfork import api
from hostfork.cli import candidates
from hostfork.cli.documents import exact, text
from hostfork.cli.look import Look, command_in_words, harmless, plural, table
from hostfork.cli.manual import CONFIG, LOGS, LOOK, Example, Manual
from hostfork.cli.output import PREFIX, Output
from hostfork.cli.verb import flag, verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LAST = ("discarded", "expired", "released")
_EVERY = 0.2
_SHORT = 12
"""Letters of an id that people see."""


@verb(
    "log",
    "Show what happened to a fork, also to one that is gone.",
    Example("hostfork log calm-otter", "Who made it, how it ended, what became of its changes."),
    Example("hostfork log calm-otter --json | tail -n 1", "The same for a program, a JSON object a line."),
    Example("hostfork log calm-otter || echo damaged", "Status 1 if a line was lost or changed."),
    manual=Manual(
        about=(
            "A line for each thing that happened: when, what, by whom, and what more is known of it. Who: the user, "
            "who called sudo, and the tags that were given by `--tag K=V`; JSON has the whole command line. Ids of "
            "content are of BLAKE3; where something changed content, the one before and the one after it are shown.",
            "Every fork that was kept has a log. It stays when the fork is gone, for `log-days` of the configuration, "
            "90 without it. Of several forks that had one name the last is shown, and the others are named: "
            "`NAME@ID` is one of them.",
            "Each line holds a sum of the line before. A log in which a line was changed, lost, put in or moved is "
            "shown with what is wrong with it, and the status is 1. That finds damage; it does not bind the user "
            "whose files these are.",
        ),
        statuses=(("1", "the log is damaged"),),
        environment=(*LOOK, "XDG_CONFIG_HOME"),
        files=(*LOGS, *CONFIG[1:]),
        see=("show", "list", "approve"),
    ),
    json="one JSON object a line on stdout",
)
@click.argument("fork", metavar="FORK[@ID]", shell_complete=candidates.forks)
@flag("--follow", "-f", help="go on with what happens later, until the fork is gone")
def log_verb(output: Output, fork: str, follow: bool) -> int:
    """Show a log; 1 if it is damaged."""
    *others, log = api.logs(fork)
    if others:
        names = ", ".join(harmless(other.words) for other in others)
        output.say(f"{plural(len(others), 'earlier fork')} had this name: {names}")
    entries, problems = api.read_log(log)
    write(output, entries)
    if follow:
        problems = _follow(output, log, entries)
    output.complain(f"{PREFIX}the log of {harmless(log.words)} is damaged: {problem}" for problem in problems)
    return int(bool(problems))


def _follow(output: Output, log: api.Log, entries: Sequence[api.Entry]) -> tuple[str, ...]:
    """Write what comes, until the fork is gone; gives what is damaged."""
    problems: tuple[str, ...] = ()
    while not (entries and entries[-1].event in _LAST) and not problems:
        time.sleep(_EVERY)
        known = len(entries)
        entries, problems = api.read_log(log)
        write(output, entries[known:])
    return problems


def write(output: Output, entries: Sequence[api.Entry]) -> None:
    """The lines, for whom they are meant."""
    if output.json:
        output.lines(json.dumps(document(entry)) for entry in entries)
    else:
        output.lines(table([_row(entry, output.out) for entry in entries]))


def document(entry: api.Entry) -> dict[str, Any]:
    """One line as JSON; strings are UTF-8."""
    by = {**entry.by, "argv": _clean(entry.by.get("argv", []))}
    facts = {"n": entry.n, "at": entry.at, "event": entry.event, "by": by}
    return {**facts, "before": entry.before, "after": entry.after, **_clean(entry.facts)}


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for name, item in value.items():
            found |= exact(name, item) if isinstance(item, str) else {name: _clean(item)}
        return found
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _row(entry: api.Entry, look: Look) -> tuple[str, ...]:
    by = entry.by
    who = str(by.get("user") or by["uid"])
    who += f" (sudo by {by['sudo']})" if by.get("sudo") else ""
    who += f" in {by['inside']}" if by.get("inside") else ""
    tags = " ".join(f"{name}={value}" for name, value in by.get("tags", {}).items())
    ids = " -> ".join(identity[:_SHORT] for identity in (entry.before, entry.after) if identity)
    words = [what(entry.event, entry.facts, look), ids, tags]
    moment = f"{entry.at[:10]} {entry.at[11:19]}"
    return moment, look.paint(entry.event, "bold"), harmless(who), "  ".join(harmless(word) for word in words if word)


def what(event: str, facts: dict[str, Any], look: Look) -> str:
    """What is known of one thing, for people."""
    if event == "created":
        paths = ", ".join(f"{look.path(path['path'], 32)} {path['mechanism']}" for path in facts.get("paths", ()))
        return f"{paths}  {command_in_words(facts.get('command', ()))}".strip()
    if event == "ended":
        return f"by signal {facts['signal']}" if "signal" in facts else f"with {facts.get('exit', '?')}"
    if isinstance(facts.get("changes"), int):
        facts = {**facts, "changes": plural(facts["changes"], "change")}
    plain = {name: value for name, value in facts.items() if isinstance(value, str | int)}
    return "  ".join(str(value) if name in ("changes", "why", "message") else f"{name} {value}"
                     for name, value in plain.items())  # fmt: skip
