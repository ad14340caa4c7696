"""What this host offers, observed once per run.

Values first; `observe` fills them. It reads /proc and tries nothing that could leave a trace; trials of namespaces are
made by the helper and handed in.
"""

from dataclasses import dataclass

from hostfork.vocabulary import EndpointKind, Ownership


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Namespaces:
    """Whether this user can make the view's namespaces; else the step of the trial that failed, why, what helps."""

    available: bool
    user: bool
    """True where an own user namespace is needed (any ordinary user)."""
    step: str = ""
    errno: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class CgroupFacts:
    """Who can own the process tree. `parent`: the folder in which the fork's own group is made, for `cgroup`."""

    ownership: Ownership
    parent: str | None
    reason: str


@dataclass(frozen=True)
class Listener:
    """A live socket or open FIFO of the host's at a path, with a process that has it (0 and "" where not visible)."""

    path: str
    kind: EndpointKind
    pid: int
    process: str


@dataclass(frozen=True)
class OpenFile:
    """A host process with a file or working directory below a private path."""

    path: str
    pid: int
    process: str
    writing: bool


@dataclass(frozen=True)
class HostFacts:
    """Everything about the host that a plan depends on. JSON-able: the plan made from it can be made again."""

    kernel: str
    boot_id: str
    uid: int
    gid: int
    home: str
    state: str
    """hostfork's state folder, absolute and resolved as far as it exists."""
    pool: str
    """The folder for private storage."""
    mounts: tuple[MountEntry, ...]
    namespaces: Namespaces
    cgroup: CgroupFacts
    listeners: tuple[Listener, ...] = ()
    open_files: tuple[OpenFile, ...] = ()
