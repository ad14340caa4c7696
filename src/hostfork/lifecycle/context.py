"""What the command inherits from its caller: environment, working directory, descriptors, umask, signals."""

from __future__ import annotations

import os
import signal
import sys

from hostfork.errors import Code, CommandError
from hostfork.helper.protocol import Context
from hostfork.helper.syscalls import is_ignored
from hostfork.lifecycle.record import Who
from hostfork.lifecycle.request import Request
from hostfork.policy.rules import Environment
from hostfork.values import frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_LIBRARYS = (32, 33)
"""Signals of the C library's own, that Python does not show; whatever posix_spawn started has them ignored."""


@frozen
class Caller:
    """The calling process as it was when hostfork began: signals that it blocked and ignored, its umask."""

    blocked: frozenset[int]
    ignored: frozenset[int]
    umask: int

    @classmethod
    def current(cls) -> Caller:
        """This process as it is now."""
        seen = (number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN)
        ignored = frozenset((*seen, *filter(is_ignored, _LIBRARYS)))
        return cls(frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, [])), ignored, _umask())

    def working_folder(self, asked: str | None) -> str:
        """The folder in which the command starts, absolute. Raises CommandError `command.context`."""
        try:
            here = os.getcwd()
        except OSError as error:
            if asked is None or not asked.startswith("/"):
                raise CommandError(
                    Code.COMMAND_CONTEXT,
                    "the working directory was deleted",
                    errno=error.errno,
                    hint="cd to a folder that is there · --cwd DIR",
                ) from error
            here = "/"
        path = os.path.realpath(os.path.join(here, asked or ""))
        if not os.path.isdir(path):
            raise CommandError(Code.COMMAND_CONTEXT, f"{asked} is not a folder", path=path, place="--cwd")
        return path


def who(tags: Sequence[tuple[str, str]] = ()) -> Who:
    """Who calls now."""
    return Who(os.getuid(), tuple(sys.argv), os.environ.get("SUDO_USER"), os.environ.get("HOSTFORK_FORK"), tuple(tags))


def command_context(
    request: Request, changes: Environment, caller: Caller, cwd: str, marks: tuple[str, ...], root: str | None
) -> Context:
    """The command's own context. `root`: where the private copy lies in the relocated mode, else None."""
    variables = {} if changes.clear else dict(os.environ)
    variables |= dict(changes.variables)
    variables |= {"HOSTFORK": "1"} | dict(mark.split("=", 1) for mark in marks)
    if root is not None:
        variables["HOSTFORK_ROOT"] = root
    if os.path.realpath(variables.get("PWD", cwd)) != cwd:
        variables["PWD"] = cwd
    return Context(
        argv=request.command,
        environment=tuple(variables.items()),
        cwd=cwd,
        umask=caller.umask,
        blocked=tuple(sorted(caller.blocked)),
        ignored=tuple(sorted(caller.ignored)),
        descriptors=request.descriptors,
    )


def with_ports(changes: Environment, ports: tuple[tuple[str, int], ...]) -> Environment:
    """The changes to the environment with a fork's ports; what somebody sets himself counts."""
    if not ports:
        return changes
    return replace(changes, variables=(*((name, str(number)) for name, number in ports), *changes.variables))


def check_descriptors(descriptors: tuple[int, ...]) -> None:
    """Each is open and may be inherited. Raises CommandError `command.context`."""
    for descriptor in descriptors:
        try:
            inheritable = os.get_inheritable(descriptor)
        except OSError as error:
            raise CommandError(
                Code.COMMAND_CONTEXT, f"descriptor {descriptor} is not open", place="--fd", errno=error.errno
            ) from error
        if not inheritable:
            raise CommandError(
                Code.COMMAND_CONTEXT,
                f"descriptor {descriptor} is closed at exec",
                place="--fd",
                hint="os.set_inheritable(descriptor, True) before the call",
            )


def _umask() -> int:
    """Read, not set and reset: another thread may create a file meanwhile."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022
