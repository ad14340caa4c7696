"""Which filesystem and mount a path lies on, by the mount id of an open descriptor (proc_pid_fdinfo(5))."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hostfork.helper.shapes import NamedTuple

STAMPED = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "overlay"})
"""Filesystems where every write moves a ctime of this kernel's clock: there a stat tells that nothing changed."""


class Filesystem(NamedTuple):
    """The mount under a path: type, what is mounted, where; `root` is what of the filesystem the mount shows.

    `options` are the filesystem's own, `number` (major:minor) is the same for all mounts of one filesystem, `mount`
    is the mount's id.
    """

    kind: str
    device: str
    point: str
    root: str = "/"
    options: tuple[str, ...] = ()
    number: str = ""
    mount: int = 0

    def __str__(self) -> str:
        return f"{self.kind} on {self.device}" if self.device.startswith("/") else self.kind


def filesystem_of(path: str) -> Filesystem:
    """The filesystem of an existing path. Raises OSError."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        number = mount_id(handle)
    finally:
        os.close(handle)
    wanted = b"%d " % number
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            if line.startswith(wanted):
                return _parsed(line)
    # Another mount namespace's mount, reached by an inherited descriptor.
    return Filesystem("unknown", "", "/")


def mount_id(opened: int) -> int:
    """The id of the mount through which something was opened."""
    with open(f"/proc/self/fdinfo/{opened}", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"mnt_id:"))


def all_mounts() -> Iterator[Filesystem]:
    """Every mount that this process can see, in the order in which they were made."""
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            yield _parsed(line)


def _parsed(line: bytes) -> Filesystem:
    front, _, back = line.rstrip(b"\n").partition(b" - ")
    fields, (kind, device, options) = front.split(b" "), back.split(b" ")[:3]
    return Filesystem(
        os.fsdecode(kind),
        _unescaped(device),
        _unescaped(fields[4]),
        _unescaped(fields[3]),
        tuple(_unescaped(option) for option in options.split(b",")),
        os.fsdecode(fields[2]),
        int(fields[0]),
    )


def _unescaped(field: bytes) -> str:
    """Space, tab, newline and backslash are written as three octal digits."""
    for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, byte)
    return os.fsdecode(field)
