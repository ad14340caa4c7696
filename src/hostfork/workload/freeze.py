"""Holds a cgroup's processes still for a moment (cgroup.freeze, cgroups(7)); it may belong to anybody else's work.

The freezer waits for system calls in flight, seconds in a large write: so there is a limit, and who did not stop by
then is named.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

from hostfork.errors import Code, HostError
from hostfork.workload.cgroup import Group, mount_point, own_folder

LIMIT = 10.0
"""Seconds that a cgroup may take to stop."""


def freezable(name: str) -> str:
    """The folder of a cgroup, given by that folder or by its name from the root, if it can be frozen from here.

    Raises HostError `host.quiesce`.
    """
    root = mount_point()
    if not root:
        raise _cannot(name, "no cgroup2 filesystem is mounted")
    folder = os.path.realpath(name if name.startswith(root + "/") else f"{root}/{name.strip('/')}")
    file = f"{folder}/cgroup.freeze"
    if not folder.startswith(root + "/") or not os.path.exists(file):
        raise _cannot(name, f"there is no cgroup {folder}", "systemd-cgls shows their names")
    own = own_folder()
    if own is not None and (own == folder or own.startswith(folder + "/")):
        raise _cannot(name, "this hostfork is in it, and would be frozen too")
    if not os.access(file, os.W_OK):
        raise _cannot(name, f"{file} cannot be written by this user")
    return folder


def is_frozen(folder: str) -> bool:
    """Whether every process in the cgroup is stopped."""
    with open(f"{folder}/cgroup.events", "rb") as file:
        return b"frozen 1" in file.read()


def freeze(folder: str, limit: float = LIMIT) -> float:
    """Stop every process in it; gives the seconds that took. Raises HostError `host.quiesce` where it takes longer than
    `limit`; the caller lets it run again, then and at the end.
    """
    start = time.monotonic()
    with open(f"{folder}/cgroup.freeze", "wb", buffering=0) as file:
        file.write(b"1")
    with open(f"{folder}/cgroup.events", "rb", buffering=0) as events:
        waiting = select.poll()
        waiting.register(events, select.POLLPRI)
        while b"frozen 1" not in os.pread(events.fileno(), 200, 0):
            left = start + limit - time.monotonic()
            if left <= 0:
                raise _too_slow(folder, limit)
            waiting.poll(min(left, 0.2) * 1000)
    return time.monotonic() - start


def thaw(folder: str) -> None:
    """Let it run again; no error where it is gone."""
    with contextlib.suppress(FileNotFoundError), open(f"{folder}/cgroup.freeze", "wb", buffering=0) as file:
        file.write(b"0")


def waiting_in_kernel(folder: str) -> tuple[int, ...]:
    """Processes of it that wait in the kernel, where the freezer cannot stop them."""
    return tuple(pid for pid in Group(folder).processes() if _state(pid) == "D")


def _too_slow(folder: str, limit: float) -> HostError:
    busy = waiting_in_kernel(folder)
    named = f"waiting in the kernel: {', '.join(map(str, busy))}" if busy else "no process of it waits in the kernel"
    return _cannot(folder, f"its processes did not stop within {limit:g} s ({named})", "try again when it is less busy")


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""


def _cannot(name: str, why: str, hint: str | None = None) -> HostError:
    return HostError(
        Code.HOST_QUIESCE, f"the cgroup {name} cannot be frozen", step="freeze", path=name, details=(why,), hint=hint
    )
