"""`hostfork run` at work: the request, the run, what is said and written about it. No command-line library."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.asking import descriptor, request_from, usage
from hostfork.cli.output import INDENT, PREFIX, Output
from hostfork.cli.result import StatusLines, check_result, open_status, write_failure, write_result
from hostfork.cli.telling import (
    Teller,
    closing_lines,
    exit_status,
    limit_line,
    problem_lines,
    total_lines,
    written_paths,
)
from hostfork.cli.terminal import Interrupted, Terminal
from hostfork.errors import Code, WorkloadError
from hostfork.lifecycle.events import Collecting, EndedCommand, Event, Planned, StartedCommand
from hostfork.lifecycle.record import Outcome
from hostfork.lifecycle.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(output: Output, command: tuple[str, ...], options: dict[str, Any]) -> int:
    """Run, and give the command's own status or hostfork's 124 to 127."""
    request = request_from(options, command)
    if options["verbose"] and options["quiet"]:
        raise usage("--verbose and --quiet contradict each other", "--quiet", "give one of them")
    if options["dry_run"]:
        from hostfork.cli.plan import show_plan

        return show_plan(output, api.plan(request))
    if not command:
        raise usage("no command to run", "COMMAND", "hostfork run --private . -- make test")
    if output.json and not options["detach"]:
        raise usage("--json: stdout is the command's", "--json",
                    "--result FILE writes the same document; --dry-run --json shows the plan")  # fmt: skip
    output.quiet = options["quiet"]
    if options["detach"]:
        from hostfork.cli.detaching import run_detached

        return run_detached(output, request, options)
    if options["result"] is not None:
        check_result(options["result"])
    number = None if options["status_fd"] is None else descriptor("--status-fd", options["status_fd"])
    lines = open_status(number, request.descriptors)
    return _run(output, request, options, lines)


def _run(output: Output, request: Request, options: dict[str, Any], lines: StatusLines) -> int:
    teller = Teller(output, options["verbose"])
    written: dict[str, str] = {}

    terminal = Terminal()

    def on_event(event: Event) -> None:
        if isinstance(event, Collecting):
            terminal.take_back()  # the writers are gone; from here on a Ctrl-C is ours
        if isinstance(event, Planned):
            written.update(written_paths(event.plan.paths))
        teller(event)
        _tell_program(lines, event)

    try:
        with terminal:
            outcome = api.run(request, on_event=on_event, caller=terminal.caller, signals=terminal)
    except Interrupted as interrupted:
        said = tuple(getattr(interrupted, "__notes__", ()))  # what is kept, what could not be given back
        error = WorkloadError(
            Code.WORKLOAD_INTERRUPTED, f"interrupted by {interrupted} before it was done", details=said
        )
        write_failure(error, options, output)
        if said:
            output.complain([f"{PREFIX}{error.message}", *(INDENT + sentence for sentence in said)])
        return 128 + interrupted.number
    finally:
        teller.finish()
    status = _close(output, request, outcome, teller, written)
    return _write(output, options["result"], lines, outcome, status)


def _tell_program(lines: StatusLines, event: Event) -> None:
    match event:
        case Planned():
            if lines.wanted:
                from hostfork.cli import documents

                lines.write("planned", plan=documents.plan(event.plan))
        case StartedCommand():
            lines.write("started", pid=event.pid)
        case EndedCommand():
            lines.write("ended", exit=event.status.exit, signal=event.status.signal)


def _close(output: Output, request: Request, outcome: Outcome, teller: Teller, written: dict[str, str]) -> int:
    """Say how it ended; gives the exit status."""
    status = exit_status(outcome.status)
    for sentence in outcome.notices:
        teller.warn(sentence)
    if outcome.status.error is not None:
        output.complain(problem_lines(outcome.status.error, status))
    elif outcome.status.timed_out:
        output.complain(["hostfork: the command was ended at its time limit   status 124"])
    if outcome.status.storage_limited:
        output.complain([f"{PREFIX}{limit_line(outcome)}   code {Code.STORAGE_LIMIT.text} · status {status}"])
    lines = closing_lines(outcome, written, output.err, request.export)
    if outcome.kept and not output.quiet:
        lines += total_lines(*api.kept_bytes())
    if lines:
        output.say(*lines)
    for sentence in outcome.leftovers:
        output.complain([f"hostfork: {sentence}"])
    return status


def _write(output: Output, path: str | None, lines: StatusLines, outcome: Outcome, status: int) -> int:
    """Write the result where it was asked for; one that cannot be written is a failure of hostfork."""
    if path is None and not lines.wanted:
        return status
    from hostfork.cli import documents

    document = documents.result(outcome)
    lines.write("result", result=document)
    if path is None:
        return status
    try:
        write_result(path, document)
    except OSError as error:
        output.complain([f"hostfork: the result was not written to {path}: {error.strerror}"])
        return 125
    return status
