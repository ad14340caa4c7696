"""How a command's end is told and written, by `run`, `exec` and `shell`. No command-line library."""

from __future__ import annotations

from hostfork.cli.output import INDENT, PREFIX, Output
from hostfork.cli.result import StatusLines, write_failure, write_result
from hostfork.cli.telling import exit_status, limit_line, problem_lines
from hostfork.cli.terminal import Interrupted
from hostfork.errors import Code, WorkloadError
from hostfork.lifecycle.record import Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def interrupted(output: Output, options: dict[str, Any], by: Interrupted) -> int:
    """Say and write that a signal came before it was done; gives the exit status."""
    said = tuple(getattr(by, "__notes__", ()))  # what is kept, what could not be given back
    error = WorkloadError(Code.WORKLOAD_INTERRUPTED, f"interrupted by {by} before it was done", details=said)
    write_failure(error, options, output)
    if said:
        output.complain([f"{PREFIX}{error.message}", *(INDENT + sentence for sentence in said)])
    return 128 + by.number


def tell_end(output: Output, outcome: Outcome) -> int:
    """Say how the command ended where its status does not; gives the exit status."""
    status = exit_status(outcome.status)
    if outcome.status.error is not None:
        output.complain(problem_lines(outcome.status.error, status))
    elif outcome.status.timed_out:
        output.complain(["hostfork: the command was ended at its time limit   status 124"])
    if outcome.status.storage_limited:
        output.complain([f"{PREFIX}{limit_line(outcome)}   code {Code.STORAGE_LIMIT.text} · status {status}"])
    return status


def write_end(output: Output, path: str | None, lines: StatusLines, outcome: Outcome, status: int) -> int:
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
