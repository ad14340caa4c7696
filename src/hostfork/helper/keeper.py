"""The helper after the view stands: parent of the command, holder of the view, and what ends the tree without an owner.

It forks the command and then leaves the caller's session, so that a SIGKILL to the caller's whole process group does
not reach it. It reports stops and the end, passes signals on, and when the owner's process is gone it ends the tree,
writes what happened to the journal and exits.
"""

from __future__ import annotations

import os
import select
import time

from hostfork.helper import context, syscalls
from hostfork.helper.lean import dumps, signal
from hostfork.helper.protocol import (
    CGROUP_ENTRY,
    GRACE,
    Channel,
    Context,
    End,
    Ended,
    Executed,
    Exited,
    Finish,
    Follow,
    MeterEnded,
    Signal,
    Started,
    Stopped,
    TimedOut,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SI_KERNEL = 0x80
_AGAIN = 0.02
"""Seconds after which a subreaper looks for what outran it."""


class ProcessTree:
    """What ends the command and all that it started: the fork's cgroup, else the keeper as their subreaper."""

    def __init__(self, cgroup: int | None) -> None:
        self._cgroup = cgroup
        if cgroup is None:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
            return
        # Opened while the view does not stand yet: /sys may be read-only in it.
        self._kill = os.open("cgroup.kill", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup)
        self._events = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=cgroup)

    def fork(self) -> int:
        """Fork; the child is born inside the tree."""
        if self._cgroup is None:
            return os.fork()
        try:
            return syscalls.fork_into_cgroup(self._cgroup)
        except OSError as error:
            raise OSError(error.errno, f"the fork's cgroup cannot be entered: {error.strerror}", CGROUP_ENTRY) from None

    def kill(self) -> bool:
        """SIGKILL to everything in the tree, stopped or not, without waiting; whether forks may have outrun it."""
        if self._cgroup is not None:
            os.write(self._kill, b"1")
            return False
        found = _descendants(os.getpid())
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return bool(found)

    def end(self) -> None:
        """Kill everything in the tree and wait until nothing is left."""
        self.kill()
        if self._cgroup is None:
            # A killed process's children come to the subreaper: so again until there are none.
            while _reap():
                time.sleep(0.001)
                self.kill()
            return
        waiting = select.poll()
        waiting.register(self._events, select.POLLPRI)
        while b"populated 1" in os.pread(self._events, 200, 0):
            _reap()
            waiting.poll(50)


def _reap() -> bool:
    """Collect what has ended; whether children are left."""
    try:
        while True:
            pid, _status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
    except ChildProcessError:
        return False


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                content = file.read()
        except OSError:
            continue  # it ended meanwhile
        parents.setdefault(int(content[content.rindex(b")") + 2 :].split()[1]), []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def start_time_of(pid: int) -> int:
    """When a process started (proc_pid_stat(5), field 22)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        content = file.read()
    return int(content[content.rindex(b")") + 2 :].split()[19])


class Command:
    """The command as the keeper's child."""

    def __init__(self, pid: int, executed: int) -> None:
        self.pid = pid
        self.executed = executed
        self.told = False
        self.status: int | None = None
        self.stopped = False
        self.stops = 0
        self.followed = False
        self.early: list[int] = []
        """Stops from before the exec."""

    @classmethod
    def start(cls, plan: Context, tree: ProcessTree, channel: Channel) -> Command:
        """Fork the command; it stays in the caller's session and process group while the keeper leaves both."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        gate, opener = os.pipe2(os.O_CLOEXEC)
        pid = tree.fork()
        if pid == 0:
            os.close(opener)  # else a keeper that dies here would leave the command at its gate for ever
            _become_command(plan, write_end, gate)
        os.close(write_end)
        os.close(gate)
        try:
            os.setsid()
            # Only now: what the terminal sends from here on is the command's alone.
            _open(opener, _from_terminal())
            os.chdir("/")
            channel.send(Started(pid, start_time_of(pid), os.stat("/proc/self/ns/mnt").st_ino))
        except OSError:
            tree.end()  # without an owner to tell, or without a keeper, no command
            raise
        return cls(pid, read_end)

    def wait_for_change(self) -> list[Stopped | Exited]:
        """What happened to the command; other children are reaped on the way."""
        changes: list[Stopped | Exited] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return changes
            if pid == 0:
                return changes
            if pid != self.pid:
                continue
            self.stopped = os.WIFSTOPPED(status)
            if self.stopped:
                changes.append(Stopped(os.WSTOPSIG(status)))
            elif not os.WIFCONTINUED(status):
                self.status = os.waitstatus_to_exitcode(status)
                changes.append(Exited(self.status))

    def report(self, change: Stopped | Exited, channel: Channel) -> None:
        """Tell the owner. A stop before the exec is undone, and done again after it."""
        if isinstance(change, Stopped):
            if not self.told:
                self.early.append(change.signal)
                os.kill(self.pid, signal.SIGCONT)
                return
            self.stops += 1
        channel.send(change)

    def send_signal(self, number: int, stops: int) -> None:
        """Not reaped yet means that the pid is still the command's. SIGCONT for an earlier stop leaves a later one."""
        if self.status is None and stops in (-1, self.stops):
            os.kill(self.pid, number)

    def wake(self, owner: int) -> None:
        """Continue the owner that stopped with a command that runs again or has ended."""
        if self.followed and not self.stopped:
            self.followed = False
            signal.pidfd_send_signal(owner, signal.SIGCONT)


def _from_terminal() -> list[int]:
    """What the terminal sent to the caller's group while this process was in it: all of it waits here, blocked."""
    waiting = syscalls.signalfd({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP})
    try:
        return [number for number, code, _sender in syscalls.read_signals(waiting) if code == _SI_KERNEL]
    finally:
        os.close(waiting)


def _open(gate: int, came: list[int]) -> None:
    try:
        os.write(gate, bytes((0, *came)))
    except BrokenPipeError:
        return  # somebody killed the command at its gate: it is reaped as any other
    finally:
        os.close(gate)


def _become_command(plan: Context, report: int, gate: int) -> NoReturn:
    try:
        context.start(plan, report, gate)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


class _Limit:
    """The limits of time and storage, kept outside the job: a stopped command is ended in time, a stopped owner too."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline: float | None = None
        self._reached = False

    def begin(self) -> None:
        """The command runs."""
        if self._seconds and not self._reached:
            self._deadline = time.monotonic() + self._seconds

    def cut(self) -> None:
        """No more may be stored: without a grace, in which more would be."""
        self._reached, self._deadline = True, time.monotonic()

    def milliseconds(self) -> float | None:
        """How long nothing is to be done."""
        return None if self._deadline is None else max(0.0, (self._deadline - time.monotonic()) * 1000 + 1)

    def act(self, command: Command, tree: ProcessTree, channel: Channel) -> None:
        """SIGTERM when it is reached, with SIGCONT, for a stopped process gets no other; after a grace the end."""
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        if command.status is not None:
            self._deadline = None  # what it left is ended by the owner
        elif self._reached:
            self._deadline = time.monotonic() + _AGAIN if tree.kill() else None
        else:
            self._reached = True
            self._deadline = time.monotonic() + GRACE
            channel.send(TimedOut())
            command.send_signal(signal.SIGTERM, -1)
            command.send_signal(signal.SIGCONT, -1)


def keep(
    command: Command, tree: ProcessTree, channel: Channel, owner: int, journal: int, seconds: float, meter: int | None
) -> None:
    """Report and pass on until the owner says finish; without an owner, end the tree and write it down."""
    limit = _Limit(seconds)
    children = syscalls.signalfd({signal.SIGCHLD})
    waiting = select.poll()
    for descriptor in (channel.fileno(), owner, children, command.executed):
        waiting.register(descriptor, select.POLLIN)
    try:
        while True:
            ready = {descriptor for descriptor, _events in waiting.poll(limit.milliseconds())}
            changes = []
            if children in ready:
                syscalls.read_signals(children)
                changes = command.wait_for_change()
            # Looked at again: the end can be seen before the exec that came since the poll.
            if not command.told and _readable(command.executed):
                command.told = True
                waiting.unregister(command.executed)
                channel.send(Executed(int(os.read(command.executed, 20) or b"0")))
                for number in command.early:
                    command.send_signal(number, -1)
                limit.begin()
                if meter is not None:
                    waiting.register(meter, select.POLLIN)
            for change in changes:
                command.report(change, channel)
            if channel.fileno() in ready and not _obey(command, tree, channel):
                return
            if meter in ready and meter is not None:
                waiting.unregister(meter)
                if command.status is None:
                    channel.send(MeterEnded())
                    limit.cut()
            limit.act(command, tree, channel)
            command.wake(owner)
            if owner in ready:
                break
    except OSError:
        pass  # the owner's end of the channel is gone
    _end_without_owner(command, tree, journal)


def _readable(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(0))


def _obey(command: Command, tree: ProcessTree, channel: Channel) -> bool:
    """Carry out what the owner says; False at `finish`."""
    if not channel.read():
        raise ConnectionResetError
    while (message := channel.next()) is not None:
        if isinstance(message, Finish):
            return False
        if isinstance(message, Signal):
            command.send_signal(message.number, message.stops)
        elif isinstance(message, Follow):
            command.followed = True
        elif isinstance(message, End):
            tree.end()
            channel.send(Ended())
    return True


def _end_without_owner(command: Command, tree: ProcessTree, journal: int) -> None:
    command.wait_for_change()
    status = command.status
    tree.end()
    said = {"at": time.time(), "event": "ended-without-owner", "status": status}
    os.write(journal, dumps(said).encode() + b"\n")
