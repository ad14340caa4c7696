"""`hostfork exec` and `shell` at work: a command in a kept fork. No command-line library."""

from __future__ import annotations

import os

from hostfork import api
from hostfork.cli.asking import descriptor, environment, tags_from, usage
from hostfork.cli.output import INDENT, PREFIX, Output
from hostfork.cli.result import StatusLines, check_result, open_status, write_failure, write_result
from hostfork.cli.telling import exit_status, limit_line, problem_lines
from hostfork.cli.terminal import Interrupted, Terminal
from hostfork.errors import Code, WorkloadError
from hostfork.lifecycle.events import EndedCommand, Event, StartedCommand, Stopping, Warned
from hostfork.lifecycle.record import Outcome
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
    except Interrupted as interrupted:
        said = tuple(getattr(interrupted, "__notes__", ()))
        error = WorkloadError(
            Code.WORKLOAD_INTERRUPTED, f"interrupted by {interrupted} before it was done", details=said
        )
        write_failure(error, options, output)
        if said:
            output.complain([f"{PREFIX}{error.message}", *(INDENT + sentence for sentence in said)])
        return 128 + interrupted.number
    return close(output, outcome, options["result"], lines)


def close(output: Output, outcome: Outcome, result: str | None, lines: StatusLines) -> int:
    """Say how the command ended where its status does not, and write it where it was asked for."""
    status = exit_status(outcome.status)
    if outcome.status.error is not None:
        output.complain(problem_lines(outcome.status.error, status))
    elif outcome.status.timed_out:
        output.complain(["hostfork: the command was ended at its time limit   status 124"])
    if outcome.status.storage_limited:
        output.complain([f"{PREFIX}{limit_line(outcome)}   code {Code.STORAGE_LIMIT.text} · status {status}"])
    if result is None and not lines.wanted:
        return status
    from hostfork.cli import documents

    document = documents.result(outcome)
    lines.write("result", result=document)
    if result is None:
        return status
    try:
        write_result(result, document)
    except OSError as error:
        output.complain([f"hostfork: the result was not written to {result}: {error.strerror}"])
        return 125
    return status
