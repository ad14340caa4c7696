"""`hostfork run` at work: the request, the run, what is said and written about it. No command-line library."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.asking import descriptor, request_from, usage
from hostfork.cli.ending import interrupted, tell_end, write_end
from hostfork.cli.output import Output
from hostfork.cli.result import StatusLines, check_result, open_status
from hostfork.cli.telling import Teller, closing_lines, total_lines, written_paths
from hostfork.cli.terminal import Interrupted, Terminal
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
    except Interrupted as by:
        return interrupted(output, options, by)
    finally:
        teller.finish()
    status = _close(output, request, outcome, teller, written)
    return write_end(output, options["result"], lines, outcome, status)


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
    for sentence in outcome.notices:
        teller.warn(sentence)
    status = tell_end(output, outcome)
    lines = closing_lines(outcome, written, output.err, request.export)
    if outcome.kept and not output.quiet:
        lines += total_lines(*api.kept_bytes())
    if lines:
        output.say(*lines)
    for sentence in outcome.leftovers:
        output.complain([f"hostfork: {sentence}"])
    return status
