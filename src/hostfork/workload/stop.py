"""Ends every writer of a fork and proves that none is left.

The cgroup's emptiness is not enough: a workload may move itself into another group that its user owns. So no process
may be left in the view's mount namespace either; under a subreaper that is the only proof.
"""

import os
import signal
import time
from dataclasses import dataclass

from hostfork.helper.protocol import End, Ended
from hostfork.workload.cgroup import Group
from hostfork.workload.launch import Helper

_PATIENCE = 10.0


@dataclass(frozen=True)
class StopReport:
    """`survivors`: pids that could not be ended. `ended`: how many were found outside the cgroup and killed."""

    survivors: tuple[int, ...]
    ended: int = 0


def stop(group: Group | None, keeper: Helper | None, namespace: int | None) -> StopReport:
    """End the tree: by cgroup.kill, else by the keeper as subreaper; then look into the mount namespace.

    `namespace` is the inode of the view's mount namespace, None where the command shares the host's. `keeper` is not a
    survivor. Waits at most some seconds for what the kernel cannot end (a process in an uninterruptible call).
    """
    if group is not None and group.exists():
        group.kill()
        if not group.wait_empty(_PATIENCE):
            return StopReport(tuple(group.processes()))
    elif keeper is not None:
        _end_by_subreaper(keeper)
    return _clear_namespace(namespace, -1 if keeper is None else keeper.pid)


def members(namespace: int) -> tuple[int, ...]:
    """Every process that this user can see in the mount namespace of that inode."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}/ns/mnt").st_ino == namespace:
                    found.append(int(name))
            except OSError:
                continue  # it ended, or belongs to somebody else
    return tuple(found)


def _end_by_subreaper(keeper: Helper) -> None:
    try:
        keeper.channel.send(End())
        while not isinstance(keeper.channel.receive(), Ended | None):
            continue
    except OSError:
        return  # the keeper is dead: what it left is looked for in the namespace


def _clear_namespace(namespace: int | None, keeper: int) -> StopReport:
    if namespace is None:
        return StopReport(())
    deadline = time.monotonic() + _PATIENCE
    ended: set[int] = set()
    while True:
        left = [pid for pid in members(namespace) if pid not in (keeper, os.getpid())]
        if not left or time.monotonic() > deadline:
            return StopReport(tuple(left), len(ended))
        for pid in left:
            ended.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:
                return StopReport(tuple(left), len(ended))
        time.sleep(0.002)
