"""The command `hostfork`: finds the verb, runs it, reports its error, and ends the process with its status.

A verb's module is imported only when it is used. `run` starts the helper before click is imported, so that both start
at once on two cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    import click

    from hostfork.cli.output import Output

COMPLETE_VARIABLE = "_HOSTFORK_COMPLETE"
INTERRUPTED = 130
NOBODY_READS = 141  # as a program that SIGPIPE ends


def run_command_line() -> NoReturn:
    """Run `sys.argv` and end the process."""
    _forget_coerced_locale()
    try:
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        status = INTERRUPTED
    # what the interpreter would tidy up is gone in a moment anyway, and every run pays for it
    os._exit(status)


def _forget_coerced_locale() -> None:
    """In the C locale Python sets LC_CTYPE for its children (PEP 538); the command is to find what the caller gave."""
    if "LC_CTYPE" in os.environ:
        with open("/proc/self/environ", "rb") as file:
            if not any(line.startswith(b"LC_CTYPE=") for line in file.read().split(b"\0")):
                del os.environ["LC_CTYPE"]


def main(arguments: Sequence[str]) -> int:
    """Run one command line; gives its exit status."""
    if COMPLETE_VARIABLE in os.environ:
        from hostfork.cli.completion import complete

        return complete(os.environ[COMPLETE_VARIABLE], arguments)
    try:
        return _dispatch(arguments)
    finally:
        if "hostfork.workload.launch" in sys.modules:
            sys.modules["hostfork.workload.launch"].abandon_prestarted()


def _dispatch(arguments: Sequence[str]) -> int:
    from hostfork.cli.output import ReaderGone
    from hostfork.errors import HostforkError

    try:
        try:
            status = _run_plainly(arguments)
            return _invoke(arguments) if status is None else status
        except HostforkError as error:
            return _report(error, arguments)
        except BrokenPipeError as error:  # click writes help and version itself
            raise ReaderGone from error
    except ReaderGone:
        return NOBODY_READS
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return _report_fault(error, arguments)


def _run_plainly(arguments: Sequence[str]) -> int | None:
    """`hostfork run` and `exec` whose options need no library to be read; None for everything else."""
    if arguments[:1] == ["exec"]:
        return _exec_plainly(arguments[1:])
    if arguments[:1] != ["run"]:
        return None
    from hostfork.cli.options import read_run

    found = read_run(arguments[1:])
    if found is None:
        return None
    from hostfork.cli.output import Output
    from hostfork.cli.running import run

    output = Output(json=found.options.pop("json"), debug=found.options.pop("debug"))
    return run(output, found.command, found.options)


def _exec_plainly(words: Sequence[str]) -> int | None:
    from hostfork.cli.options import read_exec

    found = read_exec(words)
    if found is None or not found.command:
        return None
    from hostfork.cli.entering import enter
    from hostfork.cli.output import Output

    name, *command = found.command
    output = Output(json=found.options.pop("json"), debug=found.options.pop("debug"))
    return enter(output, name, tuple(command[command[:1] == ["--"] :]), found.options)


def _invoke(arguments: Sequence[str]) -> int:
    import click

    from hostfork.cli.group import GROUP

    try:
        with GROUP.make_context("hostfork", list(arguments)) as context:
            return int(GROUP.invoke(context))
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        return _bad_usage(error, arguments)


def _bad_usage(error: click.UsageError, arguments: Sequence[str]) -> int:
    from hostfork.errors import Code, PolicyError

    verb = error.ctx.command_path if error.ctx else "hostfork"
    message = error.format_message().rstrip(".")
    reported = PolicyError(
        Code.POLICY_USAGE, message[:1].lower() + message[1:], step="options", hint=f"{verb} --help shows how"
    )
    reported.__cause__ = error
    return _report(reported, arguments)


def _report_fault(error: Exception, arguments: Sequence[str]) -> int:
    from hostfork.cli.report import fault

    return _report(fault(error), arguments)


def _report(error: Any, arguments: Sequence[str]) -> int:
    """Report an error of a verb; `run` tells it also in its result. Being interrupted needs no words."""
    from hostfork.cli.report import report
    from hostfork.errors import Code

    output, verb, options = _destination(arguments)
    if verb in ("run", "exec", "shell"):
        from hostfork.cli.result import write_failure

        write_failure(error, options, output)
    if error.code is Code.WORKLOAD_INTERRUPTED:
        return INTERRUPTED
    return report(error, output, verb)


def _destination(arguments: Sequence[str]) -> tuple[Output, str | None, dict[str, Any]]:
    """Where an error of these arguments goes, also when they could not be parsed: output, verb, its options seen."""
    from hostfork.cli.group import GROUP, find
    from hostfork.cli.output import Output
    from hostfork.cli.verb import seen

    above = seen(GROUP, arguments)
    name, rest = find(arguments)
    try:
        command = GROUP.get_command(None, name) if name else None
    except Exception:  # that is the error that is being told
        command = None
    options = seen(command, rest) if command else {}
    output = Output(
        colour=_colour(options.get("color") or above.get("color")),
        json=bool(options.get("json")),
        debug=bool(options.get("debug") or above.get("debug")),
    )
    return output, name, options


def _colour(asked: Any) -> str:
    return asked if asked in ("always", "never") else "auto"
