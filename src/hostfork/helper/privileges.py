"""Namespaces and identity: what is gained for building the view, and given up before the command starts."""

from __future__ import annotations

import errno
import os

from hostfork.helper import syscalls
from hostfork.helper.lean import signal
from hostfork.helper.protocol import Identity, Ready

# What a file's capabilities may still give an ordinary user's command: nothing that reaches the view's mounts, and
# `ping` (cap_net_raw) still execs; with an empty bounding set its exec would fail with EPERM (capabilities(7)).
_KEPT_IN_BOUNDING_SET = frozenset({10, 12, 13})  # NET_BIND_SERVICE, NET_ADMIN, NET_RAW
_LAST_CAPABILITY = "/proc/sys/kernel/cap_last_cap"


def make_namespaces(identity: Identity | None) -> None:
    """A mount namespace; for an ordinary user inside a user namespace that maps nothing but their own ids."""
    if identity is None:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        return
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)


def open_namespaces(identity: Identity | None) -> tuple[int, ...]:
    """What somebody needs to come into the namespaces that were made: mount, and for an ordinary user, user.

    Opened by the process itself, which others may not look into once it has given up its capabilities (proc(5)).
    """
    names = ("mnt",) if identity is None else ("mnt", "user")
    return tuple(os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names)


def enter_namespaces(mount: int, user: int | None) -> None:
    """Come into namespaces that another process made: the user namespace first, which gives the right to the other."""
    if user is not None:
        syscalls.setns(user, syscalls.CLONE_NEWUSER)
    syscalls.setns(mount, syscalls.CLONE_NEWNS)


def map_identity(identity: Identity) -> None:
    """Map the caller's uid and gid to themselves (user_namespaces(7)); never to 0."""
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{identity.uid} {identity.uid} 1"),
        ("gid_map", f"{identity.gid} {identity.gid} 1"),
    ):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, content.encode())
        finally:
            os.close(descriptor)


def drop(identity: Identity | None) -> None:
    """Give up every capability of the user namespace. Root keeps its identity and what goes with it."""
    if identity is None:
        return
    descriptor = os.open(_LAST_CAPABILITY, os.O_RDONLY | os.O_CLOEXEC)
    last = int(os.read(descriptor, 20))
    os.close(descriptor)
    for capability in range(last + 1):
        if capability not in _KEPT_IN_BOUNDING_SET:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.drop_capabilities()


def try_namespaces() -> Ready:
    """Make the namespaces and a mount in them in a child that ends at once: what this user can really do here."""
    identity = None if os.geteuid() == 0 else Identity(os.geteuid(), os.getegid())
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        step = "namespaces"
        try:
            make_namespaces(identity)
            if identity is not None:
                step = "idmap"
                map_identity(identity)
            step = "propagation"
            syscalls.set_propagation("/", syscalls.MS_REC | syscalls.MS_SLAVE)
            step = "view"
            context = syscalls.fsopen("tmpfs")
            syscalls.fsconfig_create(context)
            syscalls.fsmount(context)
        except OSError as error:
            os.write(write_end, f"{error.errno} {step}".encode())
        except BaseException:
            os.write(write_end, f"{errno.EPROTO} {step}".encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(write_end)
    content = os.read(read_end, 100).decode()
    os.close(read_end)
    os.waitpid(child, 0)
    if not content:
        return Ready(0, "")
    number, step = content.split()
    return Ready(int(number), step)
