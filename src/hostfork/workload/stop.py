"""Ends every writer of a fork and proves that none is left.

The cgroup's emptiness is not enough: a workload may move itself into another group that its user owns. So no process
may be left in the view's mount namespace either; under a subreaper that is the only proof.
"""

import os
import signal
import time
from collections.abc import Callable

from hostfork.helper.protocol import End, Ended
from hostfork.values import frozen
from hostfork.workload.cgroup import Group
from hostfork.workload.launch import Helper

_PATIENCE = 10.0


@frozen
class StopReport:
    """`survivors`: pids that could not be ended. `ended`: how many were found outside the cgroup and killed."""

    survivors: tuple[int, ...]
    ended: int = 0


def stop(group: Group | None, keeper: Helper | None, namespace: int | None, name: str) -> StopReport:
    """End the tree: by cgroup.kill, else by the keeper as subreaper; then look for what is left of the fork `name`.

    `namespace` is the inode of the view's mount namespace, None where the command shares the host's. `keeper` is not a
    survivor. Waits at most some seconds for what the kernel cannot end (a process in an uninterruptible call).
    """
    if group is not None and group.exists():
        group.kill()
        if not group.wait_empty(_PATIENCE):
            return StopReport(tuple(group.processes()))
    elif keeper is not None:
        _end_by_subreaper(keeper)
    if keeper is None:
        # Nobody holds the namespace any more, so its inode number may be another's by now.
        return _clear(lambda: tuple(pid for pid in _candidates(namespace) if _carries(pid, name)))
    if namespace is None:
        return StopReport(())
    return _clear(lambda: tuple(pid for pid in members(namespace) if pid != keeper.pid))


def members(namespace: int) -> tuple[int, ...]:
    """Every process that this user can see in the mount namespace of that inode."""
    found = []
    for pid in _pids():
        try:
            if os.stat(f"/proc/{pid}/ns/mnt").st_ino == namespace:
                found.append(pid)
        except OSError:
            continue  # it ended, or belongs to somebody else
    return tuple(found)


def _candidates(namespace: int | None) -> tuple[int, ...]:
    return tuple(_pids()) if namespace is None else members(namespace)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _carries(pid: int, name: str) -> bool:
    """Whether the process was started in the fork, by the variable that every one of its processes inherits."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"HOSTFORK_FORK={name}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _end_by_subreaper(keeper: Helper) -> None:
    try:
        keeper.channel.send(End())
        while not isinstance(keeper.channel.receive(), Ended | None):
            continue
    except OSError:
        return  # the keeper is dead: what it left is looked for in the namespace


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
