"""What this host can do for this user: each capability tried, how it was tried, what follows, and the remedy.

Every trial does the real thing in hostfork's own state folder and leaves nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from hostfork.errors import HostforkError
from hostfork.values import frozen
from hostfork.vocabulary import StorageKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hostfork.storage.contract import Refusal
    from hostfork.workload.launch import Helper

_FICLONE = 0x40049409
_MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")


@frozen
class Capability:
    """One thing. `how` it was found out, what `follows` from it, the `remedy` where it is not there and there is one.

    `needed`: without it no fork at the same paths can be made here.
    """

    name: str
    available: bool
    how: str
    follows: str
    remedy: str | None = None
    needed: bool = False


def examine() -> tuple[Capability, ...]:
    """Try everything. Raises HostforkError only where not even a trial can be made."""
    found = [_namespaces(), _ownership(), _cgroup_kill()]
    with _scratch() as place:
        found.append(_pool(place))
        if place.folder is not None:
            from hostfork.storage.choose import MECHANISMS

            found += [_mechanism(kind, place.folder) for kind in MECHANISMS]
            found += [_reflink(place.folder), *_quota_groups(place.folder)]
    found += _not_erased()
    found += [_mount_table(), _ssh_configuration(), _privileges()]
    return tuple(found)


def _namespaces() -> Capability:
    """The helper's own trial, with the helper's own file: a security profile goes by it."""
    from hostfork.lifecycle.observe import namespaces
    from hostfork.workload.launch import Helper

    how = "the helper made them and a mount in them, in a child that ended at once"
    try:
        helper = Helper.spawn()
        try:
            facts = namespaces(helper.ready())
        finally:
            helper.abandon()
    except HostforkError as error:
        return Capability("namespaces", False, how, f"no fork can be made: {error.message}", error.hint, needed=True)
    if not facts.available:
        reason = f"step {facts.step}: {os.strerror(facts.errno or 0)}; {facts.reason}"
        return Capability("namespaces", False, how, f"no fork at the same paths: {reason}", "hostfork setup --print · "
                          "run --relocated needs none", needed=True)  # fmt: skip
    if facts.user:
        follows = ("forks keep their paths, in a user namespace: files of others show as nobody's, set-uid programs "
                   "such as sudo do not work")  # fmt: skip
    else:
        follows = "forks keep their paths; root needs no user namespace"
    return Capability("namespaces", True, how, follows, needed=True)


def _ownership() -> Capability:
    """A group is made and the helper is moved in: making can succeed where entering fails."""
    from hostfork.workload.launch import Helper

    try:
        helper = Helper.spawn()
    except HostforkError as error:
        return Capability("cgroup ownership", False, "a helper was started", error.message, error.hint)
    try:
        return _owned_by_group(helper)
    finally:
        helper.abandon()


def _owned_by_group(helper: Helper) -> Capability:
    """One of three: a group in the caller's own, a group in a scope of the user's systemd manager, the subreaper."""
    from hostfork.workload.cgroup import Group

    name, place = "cgroup ownership", helper.place()
    weaker = "a fork's processes are found by their parents and mount namespace (subreaper): weaker"
    remedy = "hostfork setup --print shows how a group can be had"
    if place.parent is None:
        how = "/proc/self/mountinfo and the permissions of the caller's own group"
        return Capability(name, False, how, f"{weaker}; {place.reason}", remedy)
    where = "a scope of this user's systemd manager" if place.scope else "the caller's own"
    how = f"a group was made in {where} and a child moved in"
    group = None
    try:
        group = Group.make(place.parent, f"doctor-{os.getpid()}")
        with open(f"{group.path}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(helper.pid))
        helper.abandon()
        group.wait_empty(5)
    except OSError as error:
        return Capability(name, False, how, f"{weaker}; {error.strerror}", remedy)
    finally:
        if group is not None:
            group.remove()
    follows = "the kernel ends every process of a fork"
    if place.scope:
        follows += "; it also ends with this user's systemd manager, which lingers or goes after the last logout"
    return Capability(name, True, how, follows)


def _cgroup_kill() -> Capability:
    from hostfork.workload.cgroup import own_folder

    folder = own_folder()
    how = "/proc/self/mountinfo and /proc/self/cgroup"
    if folder is None:
        return Capability(
            "cgroup v2", False, how, "no cgroup can own processes", "mount -t cgroup2 none /sys/fs/cgroup"
        )
    return Capability("cgroup v2", True, how, f"this process is in {folder}")


@frozen
class _Place:
    """A fresh folder below the state folder, or why there is none."""

    folder: str | None
    state: str
    filesystem: str
    error: OSError | None = None


@contextmanager
def _scratch() -> Iterator[_Place]:
    """A folder for trials in the state folder; it goes, and so does a state folder that was not there before."""
    import shutil

    from hostfork.lifecycle.store import state_folder

    state = state_folder()
    made: list[str] = []
    folder = os.path.join(state, f"doctor-{os.getpid()}")
    try:
        missing = []
        current = folder
        while not os.path.isdir(current):
            missing.append(current)
            current = os.path.dirname(current)
        for path in reversed(missing):
            os.mkdir(path, 0o700)
            made.append(path)
        yield _Place(folder, state, _filesystem(folder))
    except OSError as error:
        if folder in made:
            raise
        yield _Place(None, state, "", error)
    finally:
        if folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        for path in reversed(made):
            if path != folder and os.path.isdir(path) and not os.listdir(path):
                os.rmdir(path)


def _filesystem(path: str) -> str:
    """The type of the filesystem that a path is on, as mountinfo names it."""
    from hostfork.policy.mounts import mount_of, mounts

    entry = mount_of(path, mounts())
    return entry.filesystem if entry else "unknown"


def _pool(place: _Place) -> Capability:
    how = f"a folder was made in {place.state}"
    if place.folder is None:
        reason = os.strerror(place.error.errno or 0) if place.error else ""
        return Capability("pool", False, how, f"no fork can be recorded there: {reason}",
                          "XDG_STATE_HOME=DIR names another", needed=True)  # fmt: skip
    space = os.statvfs(place.folder)
    free = space.f_bavail * space.f_frsize
    follows = f"private copies lie on {place.filesystem}, {free // (1 << 20):,} MiB free"
    if place.filesystem in _MEMORY_FILESYSTEMS:
        return Capability("pool", False, how, f"{follows}: that is memory", "run --pool DIR · XDG_STATE_HOME=DIR")
    return Capability("pool", True, how, follows, needed=True)


def _mechanism(kind: StorageKind, folder: str) -> Capability:
    """The implementation's own probe, on a small tree."""
    from hostfork.storage.choose import storage_of
    from hostfork.storage.contract import Refusal, Source

    source, pool = os.path.join(folder, "source"), os.path.join(folder, "pool")
    for path in (source, pool):
        os.makedirs(path, 0o700, exist_ok=True)
    with open(os.path.join(source, "file"), "w", encoding="ascii") as file:
        file.write("hostfork doctor\n")
    how = "its own probe, on a small tree in the state folder"
    storage = storage_of(kind)
    names = {StorageKind.FROZEN: "frozen overlay", StorageKind.RETAINED: "baseline overlay"}
    name = names.get(kind, storage.mechanism.value)
    answer = storage.probe(Source(source), pool)
    if isinstance(answer, Refusal):
        return Capability(name, False, how, answer.reason, _btrfs_remedy(answer, folder))
    kept = answer.guarantees
    limits = [
        words
        for there, words in (
            (kept.folder_rename, "folders of the base cannot be renamed"),
            (kept.hard_links, "hard links of the base come apart at the first write"),
            (kept.native_watchers, "watchers and mappings of a base file may miss writes after the first one"),
        )
        if not there
    ]
    follows = ", ".join([f"gives {kept.guarantee.value} private paths", *limits])
    return Capability(name, True, how, follows)


def _btrfs_remedy(refusal: Refusal, folder: str) -> str | None:
    """Where a user may not take or remove a snapshot on Btrfs."""
    if refusal.errno != errno.EPERM or _filesystem(folder) != "btrfs":
        return None
    return (
        "btrfs subvolume create DIR makes a subvolume of this user's own · "
        "mount -o remount,user_subvol_rm_allowed lets users delete their snapshots"
    )


def _reflink(folder: str) -> Capability:
    """Clone one file's blocks (ioctl_ficlonerange(2))."""
    import fcntl

    how = "FICLONE of a file in the state folder"
    one, other = os.path.join(folder, "one"), os.path.join(folder, "other")
    with open(one, "w+b") as source, open(other, "wb") as target:
        source.write(b"x" * 4096)
        source.flush()
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS):
                raise
            return Capability("shared blocks", False, how, f"{_filesystem(folder)} does not share blocks")
    return Capability("shared blocks", True, how, f"{_filesystem(folder)} shares blocks between files")


def _quota_groups(state: str) -> list[Capability]:
    """Whether the Btrfs of the state folder or of the working directory counts quota groups: snapshots are slow."""
    from hostfork.storage.subvolume import quota_groups

    for path in (state, "."):
        try:
            folder = os.path.realpath(path)
            counts = _filesystem(folder) == "btrfs" and quota_groups(folder)
        except OSError:  # a working directory that is gone or closed: no fork starts there either
            continue
        if counts:
            follows = (
                f"the Btrfs of {folder} counts quota groups: each snapshot makes the next ones slower, and removal"
            )
            return [Capability("no quota groups", False, "/sys/fs/btrfs", follows, f"btrfs quota disable {folder}")]
    return []


def _not_erased() -> list[Capability]:
    """What forks that are gone held, and what could not be erased, once it was tried."""
    from hostfork.lifecycle.pools import reclaiming
    from hostfork.lifecycle.store import Store, state_folder

    how = "what is set aside in the pools"
    stuck = [one.problem.split("; ", 1) for one in reclaiming(Store(state_folder())) if one.problem is not None]
    return [Capability("space comes back", False, how, why, helps) for why, helps in stuck]


def _mount_table() -> Capability:
    """What of a live host can change under a fork: propagation of the root."""
    from hostfork.policy.mounts import mount_of, mounts

    how = "/proc/self/mountinfo"
    entry = mount_of("/", mounts())
    if entry is not None and entry.shared:
        return Capability("host mounts appear", True, how, "mounts made later on the host show in running forks")
    return Capability("host mounts appear", False, how, "/ is not a shared mount: mounts made later on the host do not "
                      "show in running forks", "mount --make-rshared /")  # fmt: skip


def _ssh_configuration(folder: str = "/etc/ssh/ssh_config.d") -> Capability:
    how = f"the owners of the files in {folder}"
    try:
        names = [name for name in sorted(os.listdir(folder)) if name.endswith(".conf")]
    except OSError:
        names = []
    if os.geteuid() == 0 or not names:
        return Capability("ssh", True, how, "ssh works in forks as on the host")
    closed = [name for name in names if not os.access(os.path.join(folder, name), os.R_OK)]
    if closed:
        return Capability("ssh", False, how, f"{', '.join(closed)} cannot be read: ssh in a fork refuses bad owners",
                          "ssh -F ~/.ssh/config")  # fmt: skip
    return Capability("ssh", True, how, f"forks see private copies of {len(names)} files of root's, since ssh refuses "
                      "owners that a user namespace hides")  # fmt: skip


def _privileges() -> Capability:
    """What this process may do itself: python-prctl's words where it is installed, else the kernel's."""
    name = "privileges"
    try:
        prctl: Any = import_module("prctl")
    except ImportError:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            facts = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
        has, sealed = bool(int(facts["CapEff"], 16) >> 21 & 1), facts.get("NoNewPrivs") == "1"
        how = "/proc/self/status"
    else:
        has, sealed, how = bool(prctl.cap_effective.sys_admin), bool(prctl.get_no_new_privs()), "python-prctl"
    follows = "this process may mount by itself" if has else "this process may not mount by itself; namespaces serve"
    if sealed:
        follows += "; no_new_privs is set around hostfork: set-uid programs do not work at all"
    return Capability(name, True, how, follows)
