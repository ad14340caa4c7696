"""A delegated scope from the user's systemd manager, for an ordinary user whose own cgroup is root's.

A login by ssh or on a console lies in a session scope that belongs to root; the manager has a tree that is the user's.
It is asked to make a transient scope around the helper (StartTransientUnit, org.freedesktop.systemd1(5)). So no program
is started in between, the helper stays the child that it is, and gets ready meanwhile. The scope goes with its last
process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hostfork.values import frozen
from hostfork.workload import bus
from hostfork.workload.identity import stat_fields

_SOON = 1.0
"""Seconds after which a person is told what is waited for; a manager answers in some milliseconds."""
_PATIENCE = 3.0


def manager_socket() -> str | None:
    """The socket of this user's systemd manager, None where there is none."""
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.geteuid()}"):
        path = f"{folder}/systemd/private"
        if folder and os.path.exists(path):
            return path
    return None


class ScopeRequest:
    """A request on its way. Nothing is raised: where there is no scope there is a reason, and nothing was changed."""

    def __init__(self, manager: str, pid: int) -> None:
        """Ask the manager with this socket for a scope around the process."""
        self.unit = f"hostfork-{pid}-{time.monotonic_ns()}.scope"
        self._answer: str | None = None
        self._connection: bus.Connection | None = None
        try:
            self._connection = bus.Connection(manager, _PATIENCE, _SOON)
            self._connection.call(
                (bus.string(self.unit), bus.string("fail"), _properties(pid), bus.array(8, ())),
                path="/org/freedesktop/systemd1",
                interface="org.freedesktop.systemd1.Manager",
                member="StartTransientUnit",
                signature="ssa(sv)a(sa(sv))",
            )
        except OSError as error:
            self._end(_failure(error))

    def wait(self, late: Callable[[str], None] | None = None) -> str:
        """Empty once the process is in the scope, else why it is not. Waits at most some seconds, and tells `late` why.

        Not for one that is stopped: it answers when somebody continues it.
        """
        if self._answer is None and self._connection is not None:
            connection = self._connection
            connection.late = lambda: _be_late(connection.peer, late)
            try:
                self._end(self._read_answer(self._connection))
            except OSError as error:
                self._end(_failure(error))
        return self._answer or ""

    def close(self) -> None:
        """Nobody waits any more."""
        if self._connection is not None:
            self._end("it was not waited for")

    def _end(self, answer: str) -> None:
        self._answer = answer
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_answer(self, connection: bus.Connection) -> str:
        """The reply says that a job was made, a signal how it ended."""
        while True:
            message = connection.receive()
            if message.kind == bus.ERROR:
                return f"this user's systemd manager gives no scope: {message.body.string()}"
            if message.kind == bus.SIGNAL and message.member == "JobRemoved":
                message.body.number()
                _job, unit, result = (message.body.string() for _ in range(3))
                if unit == self.unit:
                    return "" if result == "done" else f"this user's systemd manager gives no scope: its job {result}"


@frozen
class Survival:
    """Whether what runs in the background goes on after its user has logged out, and why, as a clause."""

    survives: bool
    reason: str


def leave_terminal(late: Callable[[str], None] | None = None) -> Survival:
    """Put this process into a scope of its own, where a systemd manager gives one; what it starts is there too."""
    manager = manager_socket()
    if manager is not None:
        request = ScopeRequest(manager, os.getpid())
        try:
            why = request.wait(late)
        finally:
            request.close()
        if not why:
            return _in_manager()
    if not os.path.isdir("/run/systemd/system"):
        return Survival(True, "nothing here ends what a user leaves running")
    if os.geteuid() == 0:
        return Survival(True, "logind leaves root's processes alone unless it is told otherwise")
    if _kills_at_logout():
        return Survival(False, "logind ends a user's processes here (KillUserProcesses)")
    return Survival(True, "logind leaves a user's processes alone here")


def _in_manager() -> Survival:
    import pwd

    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = ""
    if name and os.path.exists(f"/var/lib/systemd/linger/{name}"):
        return Survival(True, "your systemd manager stays (lingering is on)")
    return Survival(False, "your systemd manager ends with your last session; loginctl enable-linger keeps it")


def _kills_at_logout() -> bool:
    """logind.conf(5), where it says so; its default is no."""
    import glob

    found = False
    for path in ("/etc/systemd/logind.conf", *sorted(glob.glob("/etc/systemd/logind.conf.d/*.conf"))):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    name, _, value = line.partition("=")
                    if name.strip() == "KillUserProcesses":
                        found = value.strip().lower() in ("yes", "true", "on", "1")
        except OSError:
            continue
    return found


def _be_late(manager: int, late: Callable[[str], None] | None) -> None:
    fields = stat_fields(manager)
    if fields is not None and fields[0] == "T":
        raise InterruptedError(None, "it is stopped")
    if late is not None:
        late("waiting for this user's systemd manager, which is asked for a cgroup of this run's own")


def _properties(pid: int) -> bus.Put:
    return bus.array(
        8,
        (
            bus.named("Description", "s", bus.string("hostfork: one run")),
            bus.named("Delegate", "b", bus.number(1)),
            bus.named("CollectMode", "s", bus.string("inactive-or-failed")),
            bus.named("PIDs", "au", bus.array(4, (bus.number(pid),))),
        ),
    )


def _failure(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "this user's systemd manager does not answer"
    return f"this user's systemd manager cannot be asked: {error.strerror or error}"
