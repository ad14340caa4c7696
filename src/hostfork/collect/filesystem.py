"""Which kind of filesystem a path lies on, from the kernel's own list of mounts."""

from __future__ import annotations

import os


def filesystem_type(path: str) -> str:
    """The type, such as `ext4` or `fuse.sshfs`; "" where the mount is in no list of this process."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        mount = mount_id(handle)
        device = os.fstat(handle).st_dev
    finally:
        os.close(handle)
    numbers = f"{os.major(device)}:{os.minor(device)}"
    by_device = ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            fields, _, rest = line.partition(" - ")
            number, _, of_device = fields.split(" ", 3)[:3]
            if number == mount:
                return rest.split(" ", 1)[0]
            # A detached tree is in no list, but another mount of the same filesystem usually is.
            if of_device == numbers:
                by_device = rest.split(" ", 1)[0]
    return by_device


def mount_id(handle: int) -> str:
    """The number of the mount a descriptor is on, as in mountinfo."""
    with open(f"/proc/self/fdinfo/{handle}", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("mnt_id:"):
                return line.split()[1]
    return ""
