"""Which filesystem and mount a path lies on, by the mount id of an open descriptor (proc_pid_fdinfo(5))."""

import os
from typing import NamedTuple


class Filesystem(NamedTuple):
    """The mount under a path: type, what is mounted, where."""

    kind: str
    device: str
    point: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.device}" if self.device.startswith("/") else self.kind


def filesystem_of(path: str) -> Filesystem:
    """The filesystem of an existing path. Raises OSError."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{handle}", "rb") as file:
            number = next(line.split()[1] for line in file if line.startswith(b"mnt_id:"))
    finally:
        os.close(handle)
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            if line.split(b" ", 1)[0] == number:
                return _parsed(line)
    # Another mount namespace's mount, reached by an inherited descriptor.
    return Filesystem("unknown", "", "/")


def _parsed(line: bytes) -> Filesystem:
    front, _, back = line.rstrip(b"\n").partition(b" - ")
    kind, device = back.split(b" ")[:2]
    return Filesystem(os.fsdecode(kind), _unescaped(device), _unescaped(front.split(b" ")[4]))


def _unescaped(field: bytes) -> str:
    """Space, tab, newline and backslash are written as three octal digits."""
    for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, byte)
    return os.fsdecode(field)
