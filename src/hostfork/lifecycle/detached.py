"""Commands that run in the background, and the program that owns one: `detached.py TOLD REPORT`.

The program leaves the caller's session, and the terminal's cgroup where a systemd manager gives it another. What the
command is to be comes on the descriptor TOLD, and on REPORT it says that the command runs, or why it does not. Its
output goes to `log.N` in the fork's folder; how it ended stands in `exec.N`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys

from hostfork.errors import Code, ForkError, HostforkError, WorkloadError
from hostfork.helper.lean import dumps, loads
from hostfork.lifecycle import entries
from hostfork.lifecycle.entries import Entry
from hostfork.lifecycle.record import Problem, Status, must_be_open
from hostfork.lifecycle.request import Keep, Request
from hostfork.lifecycle.store import ForkFolder, Store, now, plain, state_folder
from hostfork.policy.rules import Environment, RuleOptions
from hostfork.values import frozen, replace
from hostfork.workload.identity import identify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@frozen
class Detached:
    """A command in the background. `survives`: whether it goes on after its user has logged out; `why`, a clause."""

    fork: str
    number: int
    pid: int
    log: str
    survives: bool
    why: str


def run_detached(request: Request) -> Detached:
    """Make a fork and run its command in the background. The fork is kept, but for `Keep.NEVER`.

    Raises HostforkError; then nothing is left.
    """
    from hostfork.lifecycle.create import create

    record = create(request)
    inner = Request(
        request.command, rules=RuleOptions(timeout=request.rules.timeout), cwd=record.cwd, keep=request.keep,
        tags=request.tags,
    )  # fmt: skip
    try:
        return enter_detached(record.name, inner)
    except BaseException:
        from hostfork.lifecycle.fork import Fork

        with contextlib.suppress(HostforkError):
            Fork.open(record.name).discard()
        raise


def enter_detached(name: str, request: Request) -> Detached:
    """Run a command in a kept fork in the background. Raises HostforkError; then it does not run."""
    if request.descriptors:
        raise WorkloadError(Code.POLICY_USAGE, "a command in the background is given no descriptors", place="--fd")
    with Store(state_folder()).find(name) as folder:
        must_be_open(folder.load(), "entered")
        number = entries.new_number(folder, detached=True)
        # Named before it is made; whoever finds it dead knows that it never ran.
        entries.save(folder, Entry(number, request.command, now(), identify(os.getpid()), detached=True))
        try:
            answer = _start(folder, number, request)
            error = answer.get("error")
            if error is not None:
                raise _rebuilt(error)
        except BaseException:
            entries.drop(folder, number)
            raise
        return Detached(
            folder.name, number, answer["pid"], entries.log_file(folder, number), answer["survives"], answer["why"]
        )


def _start(folder: ForkFolder, number: int, request: Request) -> dict[str, Any]:
    """Start the program; what it reports."""
    reader, low = os.pipe2(os.O_CLOEXEC)
    writer = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 5)
    os.close(low)
    low = os.memfd_create("hostfork-detached", os.MFD_CLOEXEC)
    told = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 5)
    os.close(low)
    log = os.open(entries.log_file(folder, number), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.pwrite(told, dumps(_as_told(folder.name, number, request)).encode("ascii"), 0)
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-X", f"utf8={sys.flags.utf8_mode}", os.path.abspath(__file__), "3", "4"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
                # Both lie above 4, so that neither covers the other.
                (os.POSIX_SPAWN_DUP2, told, 3),
                (os.POSIX_SPAWN_DUP2, writer, 4),
            ],
            setsid=True,
        )
        os.close(writer)
        writer = -1
        with open(reader, "rb", closefd=False) as report:
            content = report.read()
        with contextlib.suppress(ChildProcessError):  # the caller ignores SIGCHLD
            os.waitpid(pid, 0)
    except OSError as error:
        raise WorkloadError(
            Code.VIEW_HELPER, "what owns a command in the background cannot be started", errno=error.errno,
            hint="hostfork doctor",
        ) from error  # fmt: skip
    finally:
        for descriptor in (told, reader, log, writer):
            if descriptor >= 0:
                os.close(descriptor)
    if not content:
        raise WorkloadError(
            Code.WORKLOAD_KEEPER, "what owns the command in the background died before it ran",
            path=entries.log_file(folder, number), hint="hostfork recover",
        )  # fmt: skip
    answer: dict[str, Any] = loads(content.decode("ascii"))
    return answer


def _as_told(name: str, number: int, request: Request) -> dict[str, Any]:
    rules = request.rules
    return {
        "fork": name, "number": number, "command": request.command, "cwd": request.cwd, "timeout": rules.timeout,
        "clear": rules.environment.clear, "variables": rules.environment.variables, "tags": request.tags,
        "discard": request.keep is Keep.NEVER,
    }  # fmt: skip


def _rebuilt(error: dict[str, Any]) -> HostforkError:
    """The error as the program met it."""
    code = next((code for code in Code if code.text == error["code"]), Code.INTERNAL_FAULT)
    kind = ForkError if error["code"].startswith("fork.") else WorkloadError
    return kind(
        code, error["message"], path=error["path"], step=error["step"], errno=error["errno"], hint=error["hint"],
        details=tuple(error["details"]),
    )  # fmt: skip


def main(told: int, report: int) -> None:
    """Own one command to its end."""
    if os.fork():
        os._exit(0)  # the owner is nobody's child
    os.setsid()
    os.closerange(5, 1 << 20)
    from hostfork.lifecycle import events
    from hostfork.lifecycle.context import Caller
    from hostfork.lifecycle.enter import enter
    from hostfork.workload.scope import leave_terminal

    with open(told, "rb") as file:
        asked = loads(file.read().decode("ascii"))
    os.set_inheritable(report, False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    survival = leave_terminal()
    store, name, number = Store(state_folder()), asked["fork"], asked["number"]
    environment = Environment(asked["clear"], tuple((key, value) for key, value in asked["variables"]))
    request = Request(
        tuple(asked["command"]), rules=RuleOptions(environment=environment, timeout=asked["timeout"]),
        cwd=asked["cwd"], tags=tuple((key, value) for key, value in asked["tags"]),
    )  # fmt: skip

    def tell(event: events.Event) -> None:
        if isinstance(event, events.StartedCommand):
            answer = {"pid": event.pid, "survives": survival.survives, "why": survival.reason}
            _say(report, answer)

    try:
        enter(name, request, tell, Caller.current(), None, number)
    except HostforkError as error:
        problem = Problem(error.code.text, error.message, error.step, error.path, error.errno, error.hint)
        _say(report, {"error": {**plain(problem), "details": error.details}})
        _note(store, name, number, problem)
        return
    if asked["discard"]:
        from hostfork.lifecycle.fork import Fork

        with contextlib.suppress(HostforkError):  # somebody is in it: it is theirs by now
            Fork.open(name).discard()


def _say(report: int, answer: dict[str, Any]) -> None:
    """Once: whoever waits for it then goes on."""
    with contextlib.suppress(OSError):
        os.write(report, dumps(answer).encode("ascii"))
        os.close(report)


def _note(store: Store, name: str, number: int, problem: Problem) -> None:
    """How it ended, where it had begun; else who started it removes what was noted."""
    with contextlib.suppress(HostforkError), store.open(name) as folder:
        entry = entries.load(folder, number)
        if entry is not None and entry.process is not None:
            entries.save(folder, replace(entry, status=Status(error=problem), ended=now()))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(int(sys.argv[1]), int(sys.argv[2]))
