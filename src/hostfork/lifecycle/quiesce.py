"""Holds the host's writers still while private paths are taken: a command before, a frozen cgroup, and the undoing.

A guard does it: a shell in a session of its own that runs the command, waits until the owner lets go of a pipe, and
undoes everything. So whatever ends the owner ends the quiescing; where the guard is ended too, recovery undoes it.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from types import TracebackType

from hostfork.errors import Code, HostError, HostforkError, PolicyError
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.store import ForkFolder
from hostfork.policy.demands import WRITER_HINT, is_writing
from hostfork.policy.plan import Plan
from hostfork.policy.rules import Quiesce
from hostfork.policy.sharing import open_files
from hostfork.vocabulary import Access
from hostfork.workload.freeze import freezable, freeze, is_frozen
from hostfork.workload.identity import ProcessIdentity, boot_id, identify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIFE, _SAID, _STATUS, _JOURNAL = 0, 1, 3, 4
"""The guard's descriptors: the owner's life, hostfork's stderr, where it tells the command's status, the journal."""

_GUARD = r"""
trap : HUP INT TERM PIPE
echo "armed $$" >&3
[ -z "$1" ] || sh -c "$1" </dev/null 3>&- 4>&-
echo $? >&3
exec 3>&-
read -r _
status=0
[ -z "$3" ] || echo 0 >"$3" || status=$?
[ -z "$2" ] || sh -c "$2" </dev/null 4>&- || status=$?
[ $status != 0 ] || printf '{"event":"unquiesced"}\n' >&4
exit $status
"""
"""$1 the command, $2 its undoing, $3 the file that thaws a cgroup; each may be empty. It says two lines: its pid, once
signals no longer end it, and the command's status."""


def check_quiesce(quiesce: Quiesce) -> None:
    """Refuse a cgroup that cannot be frozen before anything is made. Raises HostError `host.quiesce`."""
    if quiesce.cgroup is not None:
        freezable(quiesce.cgroup)


class Quiesced:
    """The host's writers, held still inside the context. Raises HostError `host.quiesce`, PolicyError `policy.require`.

    At the end everything is undone; where that fails it is an error too, since somebody's service may stand still.
    """

    def __init__(self, fork: ForkFolder, record: Record, plan: Plan) -> None:
        self._fork, self._plan, self._record = fork, plan, record
        self._guard: Guard | None = None

    def __enter__(self) -> Quiesced:
        quiesce = self._plan.quiesce
        folder = None if quiesce.cgroup is None else freezable(quiesce.cgroup)
        frozen_by_others = folder is not None and is_frozen(folder)
        self._guard = Guard(self._fork, quiesce, None if frozen_by_others else folder)
        try:
            self._guard.start()
            self._guard.wait_quiesced(quiesce)
            if folder is not None:
                self._fork.note("frozen", seconds=freeze(folder))
            if self._plan.stable:
                self._check_writers(folder)
        except BaseException as error:
            self._undo(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo(error)

    def _undo(self, error: BaseException | None) -> None:
        """Undo everything; beside another error a failure is told with that one."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        failure = guard.let_go(self._plan.quiesce)
        if failure is None:
            return
        if error is None:
            raise failure
        error.add_note(failure.message)
        if isinstance(error, HostforkError):
            error.details += (failure.message,)

    def _check_writers(self, frozen: str | None) -> None:
        """`stable` was demanded: who still writes, now that all had the chance to stop?"""
        from hostfork.workload.cgroup import Group

        paths = [path for path in self._record.paths if path.access is Access.PRIVATE]
        still = set() if frozen is None else set(Group(frozen).processes())
        for file in open_files(tuple(path.path for path in paths)):
            path = next((path for path in paths if _holds(path, file.path)), None)
            if file.writing and path is not None and file.pid not in still:
                raise PolicyError(
                    Code.POLICY_REQUIRE,
                    f"{path.written} cannot keep `stable`: {is_writing(file)}",
                    path=path.path,
                    place="--require stable",
                    hint=WRITER_HINT,
                )


def undo_quiescing(fork: ForkFolder) -> tuple[str, ...]:
    """For recovery: what a dead owner's guard did not undo is undone now; sentences about what could not be."""
    journal = _last(fork)
    if "quiescing" not in journal or "unquiesced" in journal:
        return ()
    begun, guarded = journal["quiescing"], journal.get("guarded", {})
    boot, thaw = begun.get("boot_id"), begun.get("thaw")
    pid, start_time = guarded.get("pid"), guarded.get("start_time")
    if isinstance(pid, int) and isinstance(start_time, int) and ProcessIdentity(str(boot), pid, start_time).alive():
        return (f"`{begun.get('undo') or 'the thawing of a cgroup'}` is still going on (pid {pid})",)
    if boot != boot_id():
        thaw = None
    quiesce = Quiesce(None, begun.get("undo"))
    guard = Guard(fork, quiesce, thaw if isinstance(thaw, str) and os.path.isdir(thaw) else None)
    guard.start()
    failure = guard.let_go(quiesce)
    return () if failure is None else (failure.message, *failure.details)


def is_quiesced(fork: ForkFolder) -> bool:
    """Whether something was begun that is not undone yet."""
    journal = _last(fork)
    return "quiescing" in journal and "unquiesced" not in journal


def _last(fork: ForkFolder) -> dict[Any, dict[str, Any]]:
    """The events from the last beginning on: a fork's checkpoints begin again and again."""
    journal: dict[Any, dict[str, Any]] = {}
    for line in fork.read_journal():
        if line.get("event") == "quiescing":
            journal.clear()
        journal[line.get("event")] = line
    return journal


def _holds(path: PathRecord, file: str) -> bool:
    inside = path.path.rstrip("/") + "/"
    return (file == path.path or file.startswith(inside)) and not any(
        file == inside + other or file.startswith(f"{inside}{other}/") for other in path.omit
    )


class Guard:
    """The shell that undoes. `thaw`: the folder of the cgroup that it lets run again.

    A Ctrl-C may come at any moment, so also between its start and the next line of ours: it tells its pid itself.
    """

    def __init__(self, fork: ForkFolder, quiesce: Quiesce, thaw: str | None) -> None:
        self._fork, self._quiesce, self._thaw = fork, quiesce, thaw
        life, self._life = os.pipe()
        self._status, status = os.pipe()
        self._said = b""
        given = {_LIFE: life, _SAID: _stderr(), _STATUS: status, _JOURNAL: os.dup(fork.journal())}
        # Moved out of the way first: one must not cover another before that was put in its place.
        self._given = {
            target: fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for target, descriptor in given.items()
        }
        for descriptor in given.values():
            os.close(descriptor)

    def start(self) -> None:
        """Start it, and with it the command. Raises OSError."""
        quiesce, thaw = self._quiesce, self._thaw
        self._fork.note("quiescing", undo=quiesce.undo, thaw=thaw, boot_id=boot_id())
        undone = "" if thaw is None else f"{thaw}/cgroup.freeze"
        argv = ["sh", "-c", _GUARD, "hostfork-guard", quiesce.command or "", quiesce.undo or "", undone]
        try:
            pid = os.posix_spawn(
                "/bin/sh",
                argv,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in self._given.items()],
                setsid=True,
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        finally:
            self._close_given()
        self._fork.note("guarded", pid=pid, start_time=identify(pid).start_time)

    def _close_given(self) -> None:
        while self._given:
            os.close(self._given.popitem()[1])

    def wait_quiesced(self, quiesce: Quiesce) -> None:
        """Wait for the command's end. Raises HostError where it failed; a Ctrl-C comes through."""
        self._hear(2)
        status = self._said.partition(b"\n")[2].strip().decode()
        if status != "0":
            raise HostError(
                Code.HOST_QUIESCE,
                f"`{quiesce.command}` did not quiesce the host",
                step="quiesce",
                place="--quiesce",
                details=(f"it ended with status {status or 'unknown'}", "nothing was made"),
            )

    def _hear(self, lines: int) -> None:
        """Wait until the guard has said so many lines, or its end."""
        while self._said.count(b"\n") < lines and (said := os.read(self._status, 64)):
            self._said += said

    def let_go(self, quiesce: Quiesce) -> HostError | None:
        """End a command that still runs, let everything be undone, wait for that. The error where it failed."""
        self._close_given()
        self._hear(1)
        if not self._said:
            return None  # it was never started
        pid = int(self._said.split()[1])
        if self._said.count(b"\n") == 1 and not _is_readable(self._status):
            os.killpg(pid, signal.SIGTERM)  # the command; the guard itself goes on, and undoes
        os.close(self._life)
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return None  # the caller ignores SIGCHLD and the kernel reaped it; the journal knows
        finally:
            os.close(self._status)  # not before: it would die of writing there
        if status == 0:
            return None
        what = "what was quiesced may still stand still"
        return HostError(
            Code.HOST_QUIESCE,
            f"`{quiesce.undo}` failed: {what}" if quiesce.undo else f"the cgroup could not be thawed: {what}",
            step="unquiesce",
            place="--unquiesce",
            details=(f"it ended with status {status}",),
        )


def _stderr() -> int:
    """What the commands say is no output of the fork's command; a caller may have closed its stderr."""
    try:
        return os.dup(2)
    except OSError:
        return os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)


def _is_readable(descriptor: int) -> bool:
    """Whether something waits there, or its end."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(waiting.poll(0))
