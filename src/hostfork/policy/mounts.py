"""The mounts that this process sees, from /proc/self/mountinfo, and which of them a path lies on.

A mount can be there and not be reached: a later one on a folder above shadows it. What a path lies on is found as the
kernel does it, from the root down, from parent to child.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from hostfork.policy.paths import beneath, components
from hostfork.values import frozen


@frozen
class MountEntry:
    """One line of /proc/self/mountinfo (proc_pid_mountinfo(5)), unescaped."""

    mount_id: int
    parent_id: int
    device: str
    root: str
    point: str
    options: tuple[str, ...]
    shared: bool
    filesystem: str
    source: str
    super_options: tuple[str, ...]

    @property
    def read_only(self) -> bool:
        return "ro" in self.options or "ro" in self.super_options


def mounts() -> tuple[MountEntry, ...]:
    """Every mount of this process's namespace below its root, in the kernel's order."""
    with open("/proc/self/mountinfo", "rb") as file:
        return tuple(parse_line(line) for line in file.read().split(b"\n") if line)


def parse_line(line: bytes) -> MountEntry:
    """One line: `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE SUPER-OPTIONS`."""
    fields = line.split(b" ")
    # the tags between are of any number; a field of its own `-` ends them
    end = fields.index(b"-", 6)
    filesystem, source, super_options = [*fields[end + 1 :], b""][:3]
    return MountEntry(
        mount_id=int(fields[0]),
        parent_id=int(fields[1]),
        device=fields[2].decode("ascii"),
        root=_unescape(fields[3]),
        point=_unescape(fields[4]),
        options=tuple(os.fsdecode(fields[5]).split(",")),
        shared=any(tag.startswith(b"shared:") for tag in fields[6:end]),
        filesystem=os.fsdecode(filesystem),
        source=_unescape(source),
        super_options=tuple(os.fsdecode(super_options).split(",")),
    )


def mount_of(path: str, entries: Iterable[MountEntry]) -> MountEntry | None:
    """The mount on which `path` (absolute, no symlink in it) lies; None below a root that is no mount point."""
    return MountTable(entries).mount_of(path)


def mounts_beneath(path: str, entries: Iterable[MountEntry]) -> tuple[MountEntry, ...]:
    """The mounts that can be reached below `path`, outer first; of stacked ones the topmost."""
    return MountTable(entries).beneath(path)


class MountTable:
    """Mounts by parent and mount point, for many questions about one state of the host."""

    def __init__(self, entries: Iterable[MountEntry]) -> None:
        self.entries = tuple(entries)
        known = {entry.mount_id for entry in self.entries}
        self._children: dict[int | None, dict[str, MountEntry]] = {}
        for entry in self.entries:
            # the root's parent lies outside of this namespace, or the root is its own parent
            own = entry.parent_id in known and entry.parent_id != entry.mount_id
            self._children.setdefault(entry.parent_id if own else None, {})[entry.point] = entry

    def mount_of(self, path: str) -> MountEntry | None:
        """As the function of that name."""
        current: MountEntry | None = None
        end = 0
        while True:
            prefix = path[:end] or "/"
            children = self._children.get(None if current is None else current.mount_id, {})
            if prefix in children:
                # stacked: what is mounted on this mount's own root
                current = children[prefix]
                continue
            if end >= len(path) or path == "/":
                return current
            end = path.find("/", end + 1)
            end = len(path) if end < 0 else end

    def beneath(self, path: str) -> tuple[MountEntry, ...]:
        """As the function `mounts_beneath`."""
        found = {entry.point: entry for entry in self.entries if beneath(entry.point, path)}
        visible = (self.mount_of(point) for point in found)
        reached = [entry for entry in visible if entry is not None and entry.point in found]
        return tuple(
            sorted({entry.point: entry for entry in reached}.values(), key=lambda entry: components(entry.point))
        )


def _unescape(field: bytes) -> str:
    r"""Space, tab, newline and backslash are written `\040`, `\011`, `\012`, `\134`; `#` in a source as `\043`."""
    if b"\\" not in field:
        return os.fsdecode(field)
    parts = field.split(b"\\")
    return os.fsdecode(parts[0] + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in parts[1:]))
