"""Errors as people and programs see them: one error, what and where, why, what helps; never a cascade."""

from __future__ import annotations

from hostfork.cli.look import harmless
from hostfork.cli.output import PREFIX, Output
from hostfork.errors import Code, HostError, HostforkError, PolicyError

_NOTHING_MADE = (PolicyError, HostError)
_NOTHING_MADE_CODES = (Code.STORAGE_UNSUPPORTED, Code.STORAGE_SOURCE, Code.COMMAND_SET_UID)
_USAGE_CODES = (Code.POLICY_USAGE, Code.FORK_CONFIRM)

COMMANDS = ("run", "exec", "shell", "wait")
"""Verbs that end as a command did."""


def exit_status(error: HostforkError, verb: str | None) -> int:
    """What an error ends a verb with: those that give a command's status 124 to 127, the others 2 or else 125."""
    if verb in COMMANDS:
        return error.exit_status
    return 2 if error.code in _USAGE_CODES else 125


def error_lines(error: HostforkError, status: int, verb: str | None) -> list[str]:
    """An error for people."""
    lines = [error.message]
    if error.place and error.place not in error.message:
        lines.append(f"in {error.place}")
    lines.extend(error.details)
    reason = error.reason()
    if reason and not any(reason.lower() in line.lower() for line in lines):
        lines.append(f"{error.step}: {reason}" if error.step else reason)
    if error.hint:
        lines.append(error.hint)
    lines.append(" · ".join(_facts(error, status, verb)))
    lines = [harmless(part) for line in lines for part in line.split("\n")]
    return [PREFIX + lines[0], *("  " + line for line in lines[1:])]


def _facts(error: HostforkError, status: int, verb: str | None) -> list[str]:
    facts = [f"code {error.code.text}"]
    if verb == "run" and (isinstance(error, _NOTHING_MADE) or error.code in _NOTHING_MADE_CODES):
        facts.append("nothing was made")
    return [*facts, f"status {status}"]


def report(error: HostforkError, output: Output, verb: str | None, status: int | None = None) -> int:
    """Write an error where it belongs and give the exit status, the verb's own if it has one. Raises ReaderGone."""
    status = exit_status(error, verb) if status is None else status
    if output.debug:
        import traceback

        output.tell("".join(traceback.format_exception(error)))
    if output.json:
        from hostfork.cli.documents import error as document

        output.document(document(error, status))
    else:
        first, *more = error_lines(error, status, verb)
        output.complain([_paint_first(first, output), *more])
    return status


def _paint_first(line: str, output: Output) -> str:
    return output.err.paint(PREFIX.rstrip(), "red", "bold") + line[len(PREFIX) - 1 :]


def fault(error: Exception) -> HostforkError:
    """An exception that nobody foresaw, as an error of hostfork's own."""
    import os

    number = error.errno if isinstance(error, OSError) else None
    path = error.filename if isinstance(error, OSError) else None
    path = os.fsdecode(path) if isinstance(path, str | bytes) else None
    kind = type(error).__name__
    wrapped = HostforkError(
        Code.INTERNAL_FAULT,
        f"an error that hostfork does not handle: {kind}: {error}",
        path=path,
        errno=number,
        details=("this is a fault of hostfork, not of the command",),
        hint="the same command with --debug shows where it happened",
    )
    wrapped.__cause__ = error
    return wrapped
