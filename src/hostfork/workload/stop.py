"""Ends every writer of a fork and proves that none is left.

The cgroup's emptiness is not enough: a workload may move itself into another group that its user owns. So no process
may be left in the view's mount namespace either; under a subreaper that is the only proof.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from hostfork.helper.protocol import End, Ended
from hostfork.values import frozen
from hostfork.workload.cgroup import Group
from hostfork.workload.launch import Helper

Marks = frozenset[bytes]
"""Variables of an environment, `NAME=VALUE`."""
Places = Callable[[], tuple[bytes, ...]]
_PATIENCE = 10.0
_LOOK_AGAIN = 200
"""Milliseconds."""


@frozen
class StopReport:
    """`survivors`: pids that could not be ended. `ended`: how many were found outside the cgroup and killed."""

    survivors: tuple[int, ...]
    ended: int = 0


def stop(
    group: Group | None, keeper: Helper | None, namespace: int | None, marks: Marks, places: Places = tuple
) -> StopReport:
    """End the tree: by cgroup.kill, else by the keeper as subreaper; then look for what is left of the fork.

    `namespace` is the inode of the view's mount namespace, None where the command shares the host's. `keeper` is not a
    survivor. `marks` are the variables that every process of the fork inherits, `places` gives what only the mount
    table of its view holds: by them its processes are known where no keeper holds the namespace any more. Waits at most
    some seconds for what the kernel cannot end (a process in an uninterruptible call).
    """
    if group is not None and group.exists():
        group.kill()
        if not group.wait_empty(_PATIENCE):
            return StopReport(tuple(group.processes()))
    elif keeper is not None:
        _end_by_subreaper(keeper)
    if keeper is None:
        known = places()
        return _clear(lambda: tuple(pid for pid in _candidates(namespace) if _belongs(pid, marks, known)))
    if namespace is None:
        return StopReport(())
    return _clear(lambda: _beside(keeper.pid, namespace, marks, places))


def stop_in_view(group: Group | None, holder: int, namespace: int | None, marks: Marks, places: Places) -> StopReport:
    """End all that is left in a view which nobody can come into any more, but for its holder."""
    if group is not None and group.exists():
        group.kill()
        if not group.wait_empty(_PATIENCE):
            return StopReport(tuple(group.processes()))
    return StopReport(()) if namespace is None else _clear(lambda: _beside(holder, namespace, marks, places))


def _beside(keeper: int, namespace: int, marks: Marks, places: Places) -> tuple[int, ...]:
    """The processes in the keeper's namespace. Once it is dead the number may be that of another fork's namespace."""
    found = tuple(pid for pid in members(namespace) if pid != keeper)
    if not found or _is_in(keeper, namespace):
        return found
    known = places()
    return tuple(pid for pid in found if _belongs(pid, marks, known))


def members(namespace: int) -> tuple[int, ...]:
    """Every process that this user can see in the mount namespace of that inode."""
    found = []
    for pid in _pids():
        if _is_in(pid, namespace):
            found.append(pid)
    return tuple(found)


def _is_in(pid: int, namespace: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino == namespace
    except OSError:
        return False  # it ended, or belongs to somebody else


def _candidates(namespace: int | None) -> tuple[int, ...]:
    return tuple(_pids()) if namespace is None else members(namespace)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _belongs(pid: int, marks: Marks, places: tuple[bytes, ...]) -> bool:
    """Whether the process was started in the fork, or sees its view: an environment can be cleared."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if marks <= set(file.read().split(b"\0")):
                return True
        with open(f"/proc/{pid}/mountinfo", "rb") as file:
            content = file.read()
    except OSError:
        return False
    return any(place in content for place in places)


def _end_by_subreaper(keeper: Helper) -> None:
    channel = keeper.channel
    if channel.fileno() < 0:
        return  # it was let go before: what it left is looked for in the namespace
    waiting = select.poll()
    waiting.register(channel.fileno(), select.POLLIN)
    try:
        channel.send(End())
        while not isinstance(message := channel.next(), Ended):
            if message is not None:
                continue
            _go_on(keeper.pid)
            if waiting.poll(_LOOK_AGAIN) and not channel.read():
                return
    except OSError:
        return  # the keeper is dead: what it left is looked for in the namespace


def _go_on(child: int) -> None:
    """Somebody may have stopped it. Asked of the kernel as its parent: the pid cannot be another's."""
    try:
        if os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None:
            os.kill(child, signal.SIGCONT)
    except ChildProcessError:
        return  # the caller ignores SIGCHLD, and it is gone


def _clear(living: Callable[[], tuple[int, ...]]) -> StopReport:
    """Kill until none is left."""
    deadline = time.monotonic() + _PATIENCE
    ended: set[int] = set()
    while left := living():
        if time.monotonic() > deadline:
            return StopReport(left, len(ended))
        for pid in left:
            ended.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:
                return StopReport(left, len(ended))
        time.sleep(0.002)
    return StopReport((), len(ended))
