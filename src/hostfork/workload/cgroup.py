"""The cgroup v2 folder that owns a fork's process tree: found, made, killed, proved empty, removed (cgroups(7)).

Direct file writes. The place of the cgroup2 mount comes from mountinfo. Nothing here decides what is done without one.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hostfork.values import frozen

_OCTAL_ESCAPES = ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\"))


@frozen
class Place:
    """Where a fork's group can be made: `parent`, the helper's own group, or None and the reason.

    `scope`: that group is a scope which the user's systemd manager made around the helper.
    """

    parent: str | None
    reason: str
    scope: bool = False


def find_place(pid: int | str = "self") -> Place:
    """A process's own group, if this user may make groups in it and move processes from it into them.

    Both groups' common ancestor is that group, so its `cgroup.procs` is the file whose permission counts.
    """
    own = own_folder(pid)
    if own is None:
        return Place(None, "no cgroup2 filesystem is mounted")
    if not os.path.exists(f"{own}/cgroup.kill") and own.count("/") > mount_point().count("/"):
        return Place(None, "this kernel's cgroups have no cgroup.kill (Linux 5.14)")
    if not os.access(own, os.W_OK | os.X_OK) or not os.access(f"{own}/cgroup.procs", os.W_OK):
        return Place(None, f"{own} is not delegated to this user")
    return Place(own, "the caller's own cgroup")


def own_folder(pid: int | str = "self") -> str | None:
    """The folder of a process's cgroup v2, None where there is no cgroup2 mount that shows it."""
    point = mount_point()
    if not point:
        return None
    with open(f"/proc/{pid}/cgroup", "rb") as file:
        for line in file:
            if line.startswith(b"0::"):
                name = os.fsdecode(line[3:].rstrip(b"\n"))
                return None if name.startswith("/..") else point + (name if name != "/" else "")
    return None


def mount_point() -> str:
    """Where the root of the cgroup2 hierarchy (of this cgroup namespace) is mounted; "" where it is not."""
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            before, _separator, after = line.partition(b" - ")
            if after.startswith(b"cgroup2 ") and before.split()[3] == b"/":
                point = before.split()[4]
                for escape, byte in _OCTAL_ESCAPES:
                    point = point.replace(escape, byte)
                return os.fsdecode(point)
    return ""


@contextmanager
def _gone_is_empty() -> Iterator[None]:
    """A group can only be removed when it is empty; its open files then say ENODEV."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


@frozen
class Group:
    """One fork's own group, by its folder."""

    path: str

    @classmethod
    def make(cls, parent: str, name: str) -> Group:
        """Make the group. Raises OSError, FileExistsError where one of that name is there."""
        group = cls(f"{parent}/hostfork-{name}")
        os.mkdir(group.path)
        return group

    def open(self) -> int:
        """The folder as a descriptor, for CLONE_INTO_CGROUP."""
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def exists(self) -> bool:
        """Whether the folder is there."""
        return os.path.isdir(self.path)

    def kill(self) -> None:
        """SIGKILL to every process in it and in groups below, frozen ones too; forks cannot outrun it.

        No error where it is gone, here and in `wait_empty`: systemd removes an empty scope with all that is in it.
        """
        with _gone_is_empty(), open(f"{self.path}/cgroup.kill", "wb", buffering=0) as file:
            file.write(b"1")

    def populated(self) -> bool:
        """Whether a living process is in it or in a group below."""
        with open(f"{self.path}/cgroup.events", "rb") as file:
            return b"populated 1" in file.read()

    def wait_empty(self, seconds: float) -> bool:
        """Wait until nothing is left (POLLPRI on cgroup.events); False where something still is after `seconds`."""
        deadline = time.monotonic() + seconds
        with _gone_is_empty(), open(f"{self.path}/cgroup.events", "rb", buffering=0) as file:
            waiting = select.poll()
            waiting.register(file, select.POLLPRI)
            while b"populated 1" in os.pread(file.fileno(), 200, 0):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                waiting.poll(min(left, 0.5) * 1000)
        return True

    def processes(self) -> list[int]:
        """Pids in it and in groups below."""
        pids: list[int] = []
        for folder, _folders, _files in os.walk(self.path):
            try:
                with open(f"{folder}/cgroup.procs", "rb") as file:
                    pids += [int(line) for line in file]
            except OSError:
                continue  # removed meanwhile, or a threaded group: its processes show above
        return pids

    def remove(self) -> None:
        """Remove the empty group and the groups that the workload made below. No error where it is gone."""
        for folder, _folders, _files in os.walk(self.path, topdown=False):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
