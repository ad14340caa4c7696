"""Fact 12: other ways to the original of a private path."""

import os

import spike

QUESTION = "through which other names is the original of a private path still reached?"


def view(disk: str, device: str, outside: int) -> dict[str, str]:
    """Put a private tree over the folder and write to the original by each alias."""
    spike.bind(f"{disk}/private", f"{disk}/tree")
    ways = {
        "path": f"{disk}/tree/file",
        "/proc/PID/root": f"/proc/{outside}/root{disk}/tree/file",
        "another bind": f"{disk}/bound/file",
        "second mount of the device": f"{disk}/again/tree/file",
        "hard link": f"{disk}/linked",
    }
    spike.run("mount", "-n", "-t", "ext4", device, f"{disk}/again")
    return {name: spike.get(path) for name, path in ways.items()}


def trial(folder: str) -> spike.Finding:
    """Make a tree on a device with a bind and a hard link beside it; this process stays outside the view."""
    disk = spike.disk(folder, "ext4", 64)
    for name in ("tree", "private", "bound", "again"):
        os.mkdir(f"{disk}/{name}")
    spike.put(f"{disk}/tree/file", "host")
    spike.put(f"{disk}/private/file", "private")
    os.link(f"{disk}/tree/file", f"{disk}/linked")
    spike.bind(f"{disk}/tree", f"{disk}/bound")
    device = spike.run("findmnt", "-n", "-o", "SOURCE", disk).strip()
    found = spike.child(view, disk, device, os.getpid(), mounts=True)
    return spike.Finding(
        f"all of them: {spike.told(found)}", found.pop("path") == "private" and set(found.values()) == {"host"}
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.ext4",))
