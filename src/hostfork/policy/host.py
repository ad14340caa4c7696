"""What this host offers, observed once per run.

Values first; `observe` fills them. It reads /proc and tries nothing that could leave a trace; trials of namespaces are
made by the helper and handed in.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable

from hostfork.policy.mounts import MountEntry, MountTable, mount_of, mounts, mounts_beneath
from hostfork.policy.paths import beneath, join, within
from hostfork.policy.repository import Repository, repository_of
from hostfork.policy.rules import Default, EndpointSearch, Policy
from hostfork.policy.sharing import Listener, OpenFile
from hostfork.values import frozen
from hostfork.vocabulary import Access, EntryKind, Ownership

__all__ = [
    "CgroupFacts",
    "HostFacts",
    "Listener",
    "MountEntry",
    "MountTable",
    "Namespaces",
    "OpenFile",
    "PathFacts",
    "Setting",
    "denials",
    "look",
    "mount_of",
    "mounts",
    "mounts_beneath",
    "observe",
]


@frozen
class Namespaces:
    """Whether this user can make the view's namespaces; else the step of the trial that failed, why, what helps."""

    available: bool
    user: bool
    """True where an own user namespace is needed (any ordinary user)."""
    step: str = ""
    errno: int | None = None
    reason: str = ""


@frozen
class CgroupFacts:
    """Who can own the process tree. `parent`: the folder in which the fork's own group is made, for `cgroup`."""

    ownership: Ownership
    parent: str | None
    reason: str


@frozen
class PathFacts:
    """What one path is now. `asked` is what a rule says, `path` the same with every symlink followed, once.

    `kind` None: it is not there, or not to be reached (`errno` says which). `readable` and `writable` are this user's
    (a folder is readable if it can be listed and entered). `foreign`: names directly below that other users own.
    """

    asked: str
    path: str
    kind: EntryKind | None = None
    errno: int | None = None
    device: int = 0
    inode: int = 0
    uid: int = 0
    mode: int = 0
    links: int = 0
    readable: bool = False
    writable: bool = False
    foreign: tuple[str, ...] = ()

    @property
    def folder(self) -> bool:
        return self.kind is EntryKind.FOLDER


@frozen
class Setting:
    """A default of the policy's that nobody has set, for a cache that is there.

    `cache` is its resolved path, `written` the same for people, from `~`. `folders`: the private path in which the
    command starts, or else all of them, resolved, as far as a mark of the tool is there, if it has marks.
    """

    name: str
    value: str
    cache: str
    written: str
    folders: tuple[str, ...]


@frozen
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
    paths: tuple[PathFacts, ...] = ()
    """Every path that a rule or endpoint rule names, state folder, pool, and host mounts below private paths."""
    neighbours: tuple[PathFacts, ...] = ()
    """Places that commonly matter, exist, and that this user can write or connect to."""
    ssh_configs: tuple[PathFacts, ...] = ()
    """Root's readable system files for ssh clients, where they would look badly owned."""
    limits: tuple[str, ...] = ()
    """Where namespaces are denied: the settings that deny them, as clauses."""
    settings: tuple[Setting, ...] = ()
    repositories: tuple[tuple[str, Repository], ...] = ()
    """The git work tree in which a private path lies, by resolved path."""
    other_pools: tuple[str, ...] = ()
    """Further folders of this user's with private storage, resolved."""


def observe(
    policy: Policy,
    *,
    namespaces: Namespaces | Callable[[], Namespaces],
    cgroup: CgroupFacts,
    state: str,
    pool: str,
    others: tuple[str, ...] = (),
    search: bool = True,
    cwd: str = "/",
) -> HostFacts:
    """Look at all that a plan for this policy depends on; nothing is changed.

    `state` and `pool` are hostfork's folders, there or not yet, `others` further pools. `namespaces` as a function is
    asked last, so that a helper can make its trial while this looks at /proc. `search` false leaves out live listeners
    and open files (for a quick look); a policy with listed endpoints looks for open files alone. `cwd` is where the
    command starts, resolved.
    Raises HostError (`host.missing`) where the kernel does not tell which sockets there are.
    """
    entries = mounts()
    home = os.path.expanduser("~")
    private = [rule.path for rule in policy.rules if rule.access is Access.PRIVATE]
    asked = dict.fromkeys((*(rule.path for rule in policy.rules), *(rule.path for rule in policy.endpoints)))
    uid = os.geteuid()
    paths = {path: look(path, foreign=uid != 0 and path in private) for path in (*asked, state, pool, *others)}
    roots = tuple(dict.fromkeys(paths[path].path for path in private if paths[path].kind is not None))
    table = MountTable(entries)
    for root in roots:
        for entry in table.beneath(root):
            paths.setdefault(entry.point, look(entry.point, follow=False))
    listeners, open_files = _sharing(policy, roots, table) if search and roots else ((), ())
    neighbours = _neighbours(home, uid)
    if not isinstance(namespaces, Namespaces):
        namespaces = namespaces()
    return HostFacts(
        kernel=os.uname().release,
        boot_id=_word("/proc/sys/kernel/random/boot_id"),
        uid=uid,
        gid=os.getegid(),
        home=home,
        state=paths[state].path,
        pool=paths[pool].path,
        mounts=entries,
        namespaces=namespaces,
        cgroup=cgroup,
        listeners=listeners,
        open_files=open_files,
        paths=tuple(paths.values()),
        neighbours=neighbours,
        ssh_configs=_ssh_configs() if namespaces.user and policy.ssh_config_copies else (),
        limits=() if namespaces.available else denials(),
        settings=_settings(policy, roots, home, cwd) if roots else (),
        repositories=tuple((root, found) for root in roots if (found := repository_of(root)) is not None),
        other_pools=tuple(paths[other].path for other in others),
    )


def _sharing(
    policy: Policy, roots: tuple[str, ...], table: MountTable
) -> tuple[tuple[Listener, ...], tuple[OpenFile, ...]]:
    from hostfork.policy.sharing import open_files, search

    if policy.endpoint_search is EndpointSearch.LISTED:
        return (), open_files(roots)
    return search(roots, table)


def look(asked: str, *, follow: bool = True, foreign: bool = False) -> PathFacts:
    """What is at that absolute path; `follow` false where it is known to hold no symlink. Never raises OSError."""
    path = os.path.realpath(asked) if follow else asked
    try:
        found = os.lstat(path)
    except OSError as error:
        return PathFacts(asked, path, errno=error.errno)
    kind = EntryKind.of(found.st_mode)
    reading = os.R_OK | os.X_OK if kind is EntryKind.FOLDER else os.R_OK
    return PathFacts(
        asked,
        path,
        kind,
        device=found.st_dev,
        inode=found.st_ino,
        uid=found.st_uid,
        mode=stat.S_IMODE(found.st_mode),
        links=found.st_nlink,
        readable=os.access(path, reading),
        writable=os.access(path, os.W_OK),
        foreign=_foreign(path) if foreign and kind is EntryKind.FOLDER else (),
    )


_FOREIGN_LOOKED_AT = 1000
_FOREIGN_NAMED = 5


def _foreign(folder: str) -> tuple[str, ...]:
    """Names directly in a folder that belong to other users; a plan is not worth a walk of the tree."""
    uid = os.geteuid()
    found = []
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number == _FOREIGN_LOOKED_AT:
                    break
                if entry.stat(follow_symlinks=False).st_uid != uid:
                    found.append(entry.name)
    except OSError:
        # a folder that cannot be listed is refused later, with its own reason
        return ()
    return tuple(sorted(found)[:_FOREIGN_NAMED])


def _neighbours(home: str, uid: int) -> tuple[PathFacts, ...]:
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    below_home = (join(home, name) for name in (".ssh", ".claude", ".codex", ".gemini", ".config", ".cache"))
    below_runtime = (join(runtime, name) for name in ("bus", "podman/podman.sock"))
    doors = ("/run/docker.sock", "/run/podman/podman.sock", "/run/dbus/system_bus_socket")
    looked = (look(path) for path in (*below_home, "/tmp", "/dev/shm", runtime, *below_runtime, *doors))
    return tuple({facts.path: facts for facts in looked if facts.writable}.values())


def _settings(policy: Policy, roots: tuple[str, ...], home: str, cwd: str) -> tuple[Setting, ...]:
    variables = dict(policy.environment.variables)
    caller = {} if policy.environment.clear else os.environ
    there: list[tuple[Default, str]] = []
    for default in policy.environment.defaults:
        cache = _cache(default.caches, lambda name: variables.get(name, caller.get(name)), home.rstrip("/"))
        if cache and os.path.isdir(os.path.join(cwd, cache)):
            there.append((default, cache))
    if not there:
        return ()
    taken = {name.lower() for name in (*caller, *variables)}  # npm's and pnpm's are taken in any case of letters
    over = [root for root in roots if within(cwd, root)]
    near = (max(over, key=len),) if over else roots
    found: dict[str, Setting] = {}
    for default, asked in there:
        folders = tuple(root for root in near if not default.marks or _is_marked(root, cwd, default.marks))
        if folders and default.name.lower() not in taken:
            cache = os.path.realpath(os.path.join(cwd, asked))
            written = "~" + asked[len(home.rstrip("/")) :] if beneath(asked, home) else asked
            value = cache if default.value is None else default.value
            found.setdefault(default.name, Setting(default.name, value, cache, written, folders))
    return tuple(found.values())


def _cache(caches: tuple[str, ...], value: Callable[[str], str | None], home: str) -> str:
    """The first of them of which the variable is set; empty where none is."""
    for cache in caches:
        if not cache.startswith("$"):
            return home + cache[1:] if cache.startswith("~/") else cache
        name, slash, rest = cache[1:].partition("/")
        if set_to := value(name):
            return set_to + slash + rest
    return ""


def _is_marked(root: str, cwd: str, marks: tuple[str, ...]) -> bool:
    """Whether one of these names is in the private path, or in a folder of it at or above the working folder."""
    folder = cwd if within(cwd, root) else root
    while True:
        if any(os.path.lexists(join(folder, mark)) for mark in marks):
            return True
        if folder == root:
            return False
        folder = os.path.dirname(folder)


def _ssh_configs() -> tuple[PathFacts, ...]:
    """The files that /etc/ssh/ssh_config includes: ssh(1) checks the owner of an included file, not of its own."""
    folder = "/etc/ssh/ssh_config.d"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ()
    looked = (look(join(folder, name)) for name in names if name.endswith(".conf") and not name.startswith("."))
    return tuple(facts for facts in looked if facts.kind is EntryKind.FILE and facts.uid == 0 and facts.readable)


def denials() -> tuple[str, ...]:
    """The settings of this host that keep this process from making namespaces, as clauses; () where none is known."""
    return tuple(_denials())


def _denials() -> Iterable[str]:
    for name in ("max_user_namespaces", "max_mnt_namespaces"):
        if _word(f"/proc/sys/user/{name}") == "0":
            yield f"user.{name}=0 forbids them"
    if _word("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        yield "kernel.unprivileged_userns_clone=0 forbids them to ordinary users"
    if _word("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        yield "kernel.apparmor_restrict_unprivileged_userns=1 denies them to programs without an AppArmor profile"
    status = dict(line.partition(":")[::2] for line in _word("/proc/self/status").split("\n"))
    # CAP_SYS_ADMIN is capability 21 (linux/capability.h)
    if os.geteuid() == 0 and not int(status.get("CapEff", "0").strip() or "0", 16) >> 21 & 1:
        yield "this root has no CAP_SYS_ADMIN, as in a container without privileges"
    if status.get("Seccomp", "").strip() == "2":
        yield "a seccomp filter is on this process, as in a container without privileges"


def _word(path: str) -> str:
    """A small text of the kernel's without its last newline; nothing where there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""
