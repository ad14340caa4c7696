"""Fact 4, second half: what was opened or watched in an overlay before the first write."""

import mmap
import os

import spike

QUESTION = "do an open read descriptor, a mapping and an inotify watch go stale at the first write in an overlay?"


def watch(path: str) -> int:
    """An inotify descriptor that tells of writes to the file."""
    handle = spike.check(spike.libc.inotify_init1(os.O_NONBLOCK))
    spike.check(spike.libc.inotify_add_watch(handle, path.encode(), 2))
    return int(handle)


def write(path: str) -> None:
    """Write in place."""
    with open(path, "r+") as file:
        file.write("new")


def told(handle: int) -> bool:
    """Whether the watch has told of anything since it was asked last."""
    return spike.refused(os.read, handle, 4096) == "ok"


def look(folder: str, option: str) -> dict[str, bool]:
    """Open, map and watch a file of the base, write it, and say for each whether it missed the write."""
    over = f"{folder}/over"
    spike.overlay(f"{folder}/base", f"{folder}/store{option}", over, option and f",{option}")
    handle, seen = os.open(f"{over}/file", os.O_RDONLY), watch(f"{over}/other")
    mapped = mmap.mmap(handle, 3, mmap.MAP_SHARED, mmap.PROT_READ)
    write(f"{over}/file")
    write(f"{over}/other")
    found = {"read": os.read(handle, 3) != b"new", "mapping": mapped[:] != b"new", "watch": not told(seen)}
    spike.mount("none", over, "", spike.REMOUNT)  # drops the overlay's names from the kernel's cache
    write(f"{over}/other")
    found["watch once the name left the cache"] = not told(seen)
    return found


def trial(folder: str) -> spike.Finding:
    """As root, and as a user in a user namespace."""
    spike.own(folder, f"{folder}/base")
    for name in ("file", "other"):
        spike.put(f"{folder}/base/{name}", "old")
        os.chown(f"{folder}/base/{name}", spike.USER, spike.USER)
    root = spike.child(look, folder, "", mounts=True)
    user = spike.child(look, folder, "userxattr", user=True, userns=True)
    return spike.Finding(
        f"stale as root: {spike.told(root)}; as a user in a user namespace: {spike.told(user)}",
        all(user[what] for what in ("read", "mapping", "watch")),
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
