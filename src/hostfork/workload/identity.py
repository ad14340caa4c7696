"""Who a process is, so that a reused pid is never signalled: boot id, pid and start time together.

The start time is in clock ticks since boot (proc_pid_stat(5), field 22); it means nothing without the boot id.
from hostfork.values import frozen
"""

from __future__ import annotations

from hostfork.values import frozen


@frozen
class ProcessIdentity:
    boot_id: str
    pid: int
    start_time: int

    def alive(self) -> bool:
        """Whether exactly this process still exists (a zombie is not alive)."""
        if self.boot_id != boot_id():
            return False
        fields = stat_fields(self.pid)
        return fields is not None and int(fields[19]) == self.start_time and fields[0] not in ("Z", "X")


def boot_id() -> str:
    """This boot's id (random(4))."""
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from `state` on; None if there is no such process. The name may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return content[content.rindex(b")") + 2 :].decode("ascii").split()


def identify(pid: int) -> ProcessIdentity:
    """The identity of a living process. Raises ProcessLookupError if there is none."""
    fields = stat_fields(pid)
    if fields is None:
        raise ProcessLookupError(pid)
    return ProcessIdentity(boot_id(), pid, int(fields[19]))
