"""Tries to mount an overlay in namespaces of its own, and ends: `trial.py LOWER UPPER WORK`.

Prints the errno and the step that failed; a status of 0 means that the kernel makes the overlay. A program of its own
since a process with threads cannot enter a user namespace, and nobody else's mounts may change.
"""

from __future__ import annotations

import os
import sys


def main(lower: str, upper: str, work: str) -> str:
    """Nothing, or the errno and the step that failed."""
    from hostfork.helper import syscalls

    step = "no namespace can be made"
    try:
        _enter(syscalls.CLONE_NEWNS, syscalls.CLONE_NEWUSER)
        step = "overlayfs is not there"
        context = syscalls.fsopen("overlay")
        layers = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (lower, upper, work)]
        for name, layer in zip(("lowerdir", "upperdir", "workdir"), layers, strict=True):
            step = f"{name} is refused"
            syscalls.fsconfig_string(context, name, f"/proc/self/fd/{layer}")
        syscalls.fsconfig_flag(context, "userxattr")
        step = "its filesystems do not serve"
        syscalls.fsconfig_create(context)
        # Where something is missing the kernel sometimes mounts, read-only or without a feature.
        step = "it could only be read"
        syscalls.fsmount(context)
    except OSError as error:
        return f"{error.errno} {step} ({os.strerror(error.errno or 0)})"
    return ""


def _enter(mounts: int, user: int) -> None:
    from hostfork.helper import syscalls

    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        return syscalls.unshare(mounts)
    syscalls.unshare(mounts | user)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    return None


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    failure = main(*sys.argv[1:])
    sys.stdout.write(failure)
    sys.exit(1 if failure else 0)
