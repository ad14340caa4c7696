"""What the spikes share: the four printed lines, a private mount namespace, disks on loop devices, raw kernel calls.

A spike tries one fact of the kernel. It imports nothing of hostfork and hostfork imports no spike.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

USER = 54321  # an ordinary user's number: no account is needed for it
NEWNS, NEWUSER, NEWPID = 0x00020000, 0x10000000, 0x20000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE, SLAVE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18, 1 << 19
ATTR_RDONLY, ATTR_NOSUID, ATTR_IDMAP = 1, 2, 0x00100000
AT_EMPTY_PATH, AT_RECURSIVE, OPEN_TREE_CLONE = 0x1000, 0x8000, 1
SET_FLAG, SET_STRING, SET_FD, CREATE = 0, 1, 5, 6
OPEN_TREE, MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT, MOUNT_SETATTR, CACHESTAT = 428, 429, 430, 431, 432, 442, 451
SNAPSHOT, SUBVOLUME, DESTROY, SYNC, SETFLAGS = 0x50009401, 0x5000940E, 0x5000940F, 0x9408, 0x4008941A
FICLONE = 0x40049409

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True)
class Finding:
    """What this kernel answered, and whether the fact as hostfork relies on it holds."""

    answer: str
    holds: bool


class Missing(Exception):
    """A rig that this fact needs is not on this host."""


def main(question: str, trial: Callable[[str], Finding], *, root: bool = True, tools: Iterable[str] = ()) -> None:
    """Try the fact in a child with a mount namespace of its own, print the four lines, leave nothing."""
    try:
        if root and os.geteuid() != 0:
            raise Missing("it needs root")
        for tool in tools:
            if shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
                raise Missing(f"{tool} is not installed")
        folder = tempfile.mkdtemp(prefix="hostfork-spike-")
        os.chmod(folder, 0o755)
        try:
            answer, holds = child(_guarded, trial, folder, mounts=root)
        finally:
            shutil.rmtree(folder)
    except Missing as missing:
        answer, _, reason = str(missing).rpartition(" | ")
        answer, holds = answer or "unknown on this host", f"not tried: {reason}"
    print(f"question  {question}\nanswer    {answer}")
    print(f"kernel    {platform.release()}  date {time.strftime('%Y-%m-%d')}\nholds     {holds}")


def _guarded(trial: Callable[[str], Finding], folder: str) -> tuple[str, str]:
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(120)
    os.umask(0o022)
    finding = trial(folder)
    return finding.answer, "yes" if finding.holds else "no"


def _too_long(_signal: int, _frame: Any) -> None:
    raise TimeoutError("the spike took longer than two minutes")  # an exception, so that it still cleans up


def child(work: Callable[..., Any], *args: Any, user: bool = False, userns: bool = False, mounts: bool = False) -> Any:
    """Return what `work` returns in a forked child: as an ordinary user, in a user namespace, with its own mounts."""
    come, go = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(come)
        libc.prctl(1, signal.SIGKILL)
        said: dict[str, Any] = {}
        try:
            _enter_or_missing(user, userns, mounts)
            said["value"] = work(*args)
        except Missing as missing:
            said["missing"] = str(missing)
        except OSError as error:
            said["errno"], said["text"] = error.errno, traceback.format_exc()
        except BaseException:
            said["text"] = traceback.format_exc()
        with os.fdopen(go, "w") as pipe:
            json.dump(said, pipe)
        os._exit(0)
    os.close(go)
    with os.fdopen(come) as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not told:
        raise RuntimeError(f"the child ended with wait status {status}")
    said = json.loads(told)
    if "value" in said:
        return said["value"]
    if "missing" in said:
        raise Missing(said["missing"])
    if said.get("errno"):
        raise OSError(said["errno"], said["text"])
    raise RuntimeError(said["text"])


def _enter_or_missing(user: bool, userns: bool, mounts: bool) -> None:
    try:
        enter(user=user, userns=userns, mounts=mounts)
    except OSError as error:
        raise Missing(f"this process may not make its namespaces here: {error}") from error


def enter(*, user: bool = False, userns: bool = False, mounts: bool = False) -> None:
    """Become an ordinary user, with the user namespace (own number to itself) and mount namespace asked for."""
    if user and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        libc.prctl(1, signal.SIGKILL)  # a change of user clears it
        libc.prctl(4, 1)  # dumpable again, or /proc/self/uid_map is root's
    if userns:
        uid, gid = os.geteuid(), os.getegid()
        check(libc.unshare(NEWUSER | NEWNS))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            put(f"/proc/self/{name}", text)
    elif mounts:
        check(libc.unshare(NEWNS))
    if userns or mounts:
        mount("none", "/", "", REC | PRIVATE)


def check(result: int) -> int:
    """The result of a C library call, or its errno as OSError."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number: int, *args: Any) -> int:
    """A kernel call that the C library has no name for."""
    return check(libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in args)))


def refused(call: Callable[..., Any], *args: Any) -> str:
    """The name of the error that the call gives, or 'ok'."""
    try:
        call(*args)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok"


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    check(libc.mount(*(os.fsencode(text) for text in (source, target, kind)), flags, os.fsencode(options)))


def bind(source: str, target: str, flags: int = 0) -> None:
    """Bind `source` at `target`; with RDONLY in the flags read-only."""
    mount(source, target, "", BIND | (flags & REC))
    if flags & RDONLY:
        mount("none", target, "", BIND | REMOUNT | RDONLY)


def umount(target: str) -> None:
    """umount(2)."""
    check(libc.umount2(os.fsencode(target), 0))


def overlay(lower: str, store: str, target: str, options: str = "") -> None:
    """Mount an overlay at `target` with upper and work folder below `store`."""
    for name in ("upper", "work"):
        os.makedirs(f"{store}/{name}", exist_ok=True)
    os.makedirs(target, exist_ok=True)
    mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={store}/upper,workdir={store}/work{options}")


def detached_overlay(lower: str, store: str, *flags: str) -> int:
    """The descriptor of an overlay that is attached nowhere yet."""
    context = syscall(FSOPEN, b"overlay", 1)
    for name, path in (("lowerdir", lower), ("upperdir", f"{store}/upper"), ("workdir", f"{store}/work")):
        os.makedirs(path, exist_ok=True)
        syscall(FSCONFIG, context, SET_STRING, name.encode(), path.encode(), 0)
    for flag in flags:
        syscall(FSCONFIG, context, SET_FLAG, flag.encode(), None, 0)
    syscall(FSCONFIG, context, CREATE, None, None, 0)
    made = syscall(FSMOUNT, context, 1, 0)
    os.close(context)
    return made


def clone_tree(path: str, flags: int = 0) -> int:
    """The descriptor of a detached clone of the mounts at `path`."""
    return syscall(OPEN_TREE, -100, path.encode(), OPEN_TREE_CLONE | os.O_CLOEXEC | flags)


def attach(tree: int, path: str) -> None:
    """Attach a detached tree at `path`."""
    syscall(MOVE_MOUNT, tree, b"", -100, path.encode(), 4)


def set_attributes(tree: int, path: str, add: int, flags: int = 0, userns: int = 0) -> None:
    """mount_setattr(2): add attributes to the mount at `path` (or at the descriptor)."""
    request = (ctypes.c_uint64 * 4)(add, 0, 0, userns)
    syscall(MOUNT_SETATTR, tree, path.encode(), flags, ctypes.byref(request), 32)


def disk(folder: str, kind: str, megabytes: int = 400) -> str:
    """A new filesystem of this kind, mounted below `folder`; it vanishes with the mount namespace."""
    place = f"{folder}/{kind}"
    os.mkdir(place)
    if kind == "tmpfs":
        mount("tmpfs", place, "tmpfs", 0, f"size={megabytes}m,mode=755")
        return place
    put(f"{folder}/{kind}.img", "")
    os.truncate(f"{folder}/{kind}.img", megabytes << 20)
    run(f"mkfs.{kind}", *(["-q", "-F"] if kind == "ext4" else ["-q"]), f"{folder}/{kind}.img")
    try:
        run("mount", "-n", "-t", kind, "-o", "loop", f"{folder}/{kind}.img", place)
    except RuntimeError as error:
        raise Missing(f"{kind} cannot be mounted from a loop device here: {error}".replace("\n", " ")) from error
    return place


def run(*argv: str) -> str:
    """What a program prints; it must succeed."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env={"PATH": path, "LC_ALL": "C"})
    if done.returncode:
        raise RuntimeError(f"{argv}: {done.stderr}")
    return done.stdout


@contextlib.contextmanager
def cgroup() -> Iterator[str]:
    """A fresh cgroup v2 folder; at the end everything in it is killed and it is removed."""
    mounts = [line.split() for line in get("/proc/self/mountinfo").splitlines()]
    places = [fields[4] for fields in mounts if fields[fields.index("-") + 1] == "cgroup2"]
    own = [line[3:] for line in get("/proc/self/cgroup").splitlines() if line.startswith("0::")]
    if not places or not own:
        raise Missing("no cgroup2 is mounted")
    path = f"{places[0]}{own[0].rstrip('/')}/hostfork-spike-{os.getpid()}"
    try:
        os.mkdir(path)
    except OSError as error:
        raise Missing(f"no cgroup can be made: {error}") from error
    try:
        yield path
    finally:
        put(f"{path}/cgroup.kill", "1")
        while "populated 1" in get(f"{path}/cgroup.events"):
            time.sleep(0.001)
        os.rmdir(path)


def subvolume(path: str) -> None:
    """Make an empty Btrfs subvolume."""
    _named(os.path.dirname(path), SUBVOLUME, os.path.basename(path), 0)


def snapshot(source: str, target: str) -> None:
    """Make a writable Btrfs snapshot of the subvolume `source`."""
    handle = os.open(source, os.O_RDONLY)
    try:
        _named(os.path.dirname(target), SNAPSHOT, os.path.basename(target), handle)
    finally:
        os.close(handle)


def delete_subvolume(path: str) -> None:
    """Delete a Btrfs subvolume by ioctl."""
    _named(os.path.dirname(path), DESTROY, os.path.basename(path), 0)


def _named(folder: str, number: int, name: str, handle: int) -> None:
    request = bytearray(handle.to_bytes(8, "little") + name.encode().ljust(4088, b"\0"))
    control(folder, number, request)


def control(path: str, number: int, argument: int | bytearray = 0) -> None:
    """ioctl(2) on a folder or file opened for reading."""
    import fcntl

    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, number, argument)
    finally:
        os.close(handle)


def cached(path: str) -> tuple[int, int]:
    """Pages of the file in the page cache, and those of them not yet written to disk (cachestat, Linux 6.5)."""
    handle = os.open(path, os.O_RDONLY)
    whole, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    try:
        syscall(CACHESTAT, handle, ctypes.byref(whole), ctypes.byref(counts), 0)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise Missing("it needs Linux 6.5, for cachestat") from error
        raise
    finally:
        os.close(handle)
    return counts[0], counts[1] + counts[2]


def landlock_abi() -> int:
    """The version of Landlock that this kernel offers, 0 if none."""
    try:
        return syscall(444, None, 0, 1)
    except OSError:
        return 0


def landlock(files: int, scope: int) -> None:
    """Restrict this process for good: no rule allows anything of what is handled here."""
    handled = (ctypes.c_uint64 * 3)(files, 0, scope)
    ruleset = syscall(444, ctypes.byref(handled), 24, 0)
    check(libc.prctl(38, 1, 0, 0, 0))
    syscall(446, ruleset, 0)


def told(found: Any) -> str:
    """What was found, in words: 'name: value' for each entry, yes and no for truth."""
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, dict):
        return ", ".join(f"{name}: {told(value)}" for name, value in found.items())
    if isinstance(found, (list, tuple)):
        return f"({', '.join(told(value) for value in found)})" if found else "nothing"
    return str(found)


def put(path: str, text: str) -> None:
    """Write a small file."""
    with open(path, "w") as file:
        file.write(text)


def get(path: str) -> str:
    """Read a small file."""
    with open(path) as file:
        return file.read()


def own(*paths: str) -> None:
    """Make the paths (folders, made if need be) the ordinary user's."""
    for path in paths:
        os.makedirs(path, exist_ok=True)
        os.chown(path, USER, USER)


def milliseconds(call: Callable[..., Any], *args: Any) -> float:
    """How long the call takes."""
    start = time.perf_counter()
    call(*args)
    return (time.perf_counter() - start) * 1000
