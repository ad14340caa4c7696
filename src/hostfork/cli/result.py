"""Where programs read how a run went: `--result FILE` and `--status-fd N`. stdout and stderr are the command's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hostfork.cli.output import PREFIX, Output, write_all
from hostfork.errors import Code, HostforkError, PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def check_result(path: str) -> None:
    """Refuse a result file that could not be written, before anything is made."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise PolicyError(Code.POLICY_USAGE, f"--result {path}: that is a folder", path=path, place="--result")
    if not os.path.isdir(folder):
        raise PolicyError(
            Code.POLICY_USAGE, f"--result {path}: there is no folder {folder}", path=path, place="--result"
        )
    target = path if os.path.exists(path) and not os.path.isfile(path) else folder
    if not os.access(target, os.W_OK):
        raise PolicyError(Code.POLICY_USAGE, f"--result {path}: {target} cannot be written by this user",
                          path=path, place="--result")  # fmt: skip


def write_result(path: str, document: Mapping[str, Any]) -> None:
    """Write the whole document or nothing: a reader never sees half of it. Raises OSError."""
    content = _line(document)
    if os.path.lexists(path) and not os.path.isfile(path):
        # a pipe, a terminal or /dev/fd/N: there is nothing to replace
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)
        return
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:200]}.hostfork-{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)
        os.rename(temporary, target)
    except OSError:
        os.unlink(temporary)
        raise


def _line(document: Mapping[str, Any]) -> bytes:
    import json

    return json.dumps(document).encode("ascii") + b"\n"


class StatusLines:
    """The lines of `--status-fd N`: one JSON object each. Nobody reading them is no reason to stop."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @property
    def wanted(self) -> bool:
        """Whether anybody asked for them and still reads."""
        return self._descriptor is not None

    def write(self, event: str, **fields: Any) -> None:
        """One line."""
        if self._descriptor is None:
            return
        try:
            write_all(self._descriptor, _line({"event": event, **fields}))
        except OSError:
            self._descriptor = None


def open_status(number: int | None, passed: tuple[int, ...] = ()) -> StatusLines:
    """The status lines on a descriptor of the caller's, kept from the command. Refuses one that is not open."""
    if number is None:
        return StatusLines(None)
    place = f"--status-fd {number}"
    if number in passed or number < 3:
        why = "it is also given to the command with --fd" if number in passed else "0, 1 and 2 are the command's"
        raise PolicyError(Code.POLICY_USAGE, f"{place}: {why}", place="--status-fd")
    try:
        os.set_inheritable(number, False)
    except OSError as error:
        raise PolicyError(
            Code.POLICY_USAGE, f"{place}: that descriptor is not open", place="--status-fd", errno=error.errno
        ) from error
    return StatusLines(number)


def write_failure(error: HostforkError, options: Mapping[str, Any], output: Output) -> None:
    """Tell a run's failure in its result file and status lines, as far as they can be written at all.

    `options` are those that could be read from the command line, as text.
    """
    path, number = options.get("result"), options.get("status_fd")
    if error.place == "--result":
        path = None  # that it cannot be written is what is being told
    if path is None and number is None:
        return
    from hostfork.cli import documents
    from hostfork.lifecycle.record import Outcome, Status

    document = documents.result(Outcome(fork="", status=Status(error=documents.problem_of(error))))
    if number is not None and str(number).isdecimal():
        try:
            lines = open_status(int(number))
        except PolicyError:
            lines = StatusLines(None)  # the error that is being told may be this one
        lines.write("result", result=document)
    if path is not None:
        try:
            write_result(path, document)
        except OSError as failed:
            output.complain([f"{PREFIX}the result was not written to {path}: {failed.strerror}"])
