"""`hostfork exec` and `shell` at work: a command in a kept fork. No command-line library."""

from __future__ import annotations

import os

from hostfork import api
from hostfork.cli.asking import descriptor, environment, tags_from, usage
from hostfork.cli.ending import interrupted, tell_end, write_end
from hostfork.cli.output import Output
from hostfork.cli.result import StatusLines, check_result, open_status
from hostfork.cli.terminal import Interrupted, Terminal
from hostfork.lifecycle.events import EndedCommand, Event, StartedCommand, Stopping, Warned
from hostfork.lifecycle.request import Request
from hostfork.policy.options import parse_duration
from hostfork.policy.rules import RuleOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def enter(output: Output, name: str, command: tuple[str, ...], options: dict[str, Any]) -> int:
    """Run, and give the command's own status or hostfork's 124 to 127."""
    if not command:
        raise usage("no command to run", "COMMAND", f"hostfork exec {name} -- make test · hostfork shell {name}")
    if command[0].startswith("-"):
        raise usage(f"{command[0]} stands behind the fork's name, where the command begins", command[0],
                    f"hostfork exec {command[0]} … {name} -- COMMAND")  # fmt: skip
    request = _request(command, options)
    output.quiet = options["quiet"]
    if options["detach"]:
        from hostfork.cli.detaching import enter_detached

        return enter_detached(output, name, request, options)
    if output.json:
        raise usage("--json: stdout is the command's", "--json", "--result FILE writes a document")
    if options["result"] is not None:
        check_result(options["result"])
    number = None if options["status_fd"] is None else descriptor("--status-fd", options["status_fd"])
    return _run(output, name, request, options, open_status(number, request.descriptors))


def _request(command: tuple[str, ...], options: dict[str, Any]) -> Request:
    own = environment(options["clear_env"], options["env_file"], options["env"])
    timeout = None if options["timeout"] is None else parse_duration(options["timeout"], "--timeout")
    return Request(
        command=command,
        rules=RuleOptions(environment=own, timeout=timeout),
        cwd=None if options["cwd"] is None else os.path.expanduser(options["cwd"]),
        descriptors=tuple(descriptor("--fd", word) for word in options["fd"]),
        tags=tags_from(options["tag"]),
    )


def _run(output: Output, name: str, request: Request, options: dict[str, Any], lines: StatusLines) -> int:
    terminal = Terminal()

    def on_event(event: Event) -> None:
        if isinstance(event, Stopping):
            terminal.take_back()
        elif isinstance(event, Warned):
            output.say(event.sentence)
        elif isinstance(event, StartedCommand):
            lines.write("started", pid=event.pid)
        elif isinstance(event, EndedCommand):
            lines.write("ended", exit=event.status.exit, signal=event.status.signal)

    try:
        with terminal:
            outcome = api.enter(name, request, on_event=on_event, caller=terminal.caller, signals=terminal)
    except Interrupted as by:
        return interrupted(output, options, by)
    return write_end(output, options["result"], lines, outcome, tell_end(output, outcome))
