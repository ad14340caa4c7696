"""`hostfork timer install | remove`: a timer of the user's systemd manager that runs `hostfork gc` once a day."""

from __future__ import annotations

import shlex

import click

from hostfork.cli.look import harmless
from hostfork.cli.manual import TIMER, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import verb
from hostfork.lifecycle import timer


@verb(
    "timer",
    "Run gc once a day by systemd: install, remove.",
    Example("hostfork timer install", "Write both units and start the timer."),
    Example("hostfork timer remove", "Take exactly that back."),
    Example("hostfork gc --dry-run", "What it would let go now."),
    manual=Manual(
        about=(
            "Not needed where hostfork is used: runs begin `gc` in the background, at most once an hour. The timer is "
            "for when nobody runs anything for weeks and kept forks still hold space.",
            "`install` writes `hostfork-gc.service` and `hostfork-gc.timer` for the user's own systemd manager, and "
            "starts the timer; `remove` stops it and removes both files. Files of that name that hostfork did not make "
            "are left alone. Without such a manager nothing is written; `sudo loginctl enable-linger UID` starts one.",
        ),
        environment=("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
        files=TIMER,
        see=("gc", "usage", "setup"),
    ),
)
@click.argument("action", type=click.Choice(("install", "remove")))
def timer_verb(output: Output, action: str) -> int:
    """Install or remove."""
    done = timer.install() if action == "install" else timer.remove()
    if output.json:
        from hostfork.cli.documents import answer, words

        output.document(
            answer({"action": action, "files": words(done.files), "commands": [words(one) for one in done.commands]})
        )
        return 0
    word = "written" if action == "install" else "removed"
    output.lines(f"{word}: {output.out.path(path)}" for path in done.files)
    output.lines(f"done: {harmless(shlex.join(command))}" for command in done.commands)
    if not done.files:
        output.lines(["timer has installed nothing here"])
    return 0
