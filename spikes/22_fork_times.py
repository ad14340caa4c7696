"""Fact 22: what one private tree costs, and what a list of its changes costs."""

import os
import shutil

import spike

QUESTION = "how long does one private tree take by each mechanism, and a list of 20 changes?"
FOLDERS, FILES = 50, 100


def walk(folder: str) -> int:
    """Stat every entry, without following."""
    seen = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)
            seen += 1 + (walk(entry.path) if entry.is_dir(follow_symlinks=False) else 0)
    return seen


def send(pool: str) -> None:
    """The names that differ between two read-only snapshots, as Btrfs tells them."""
    spike.run("btrfs", "send", "-q", "--no-data", "-p", f"{pool}/base", "-f", f"{pool}/sent", f"{pool}/snap")


def freeze(path: str) -> None:
    """Make a snapshot read-only."""
    spike.control(path, spike.SETFLAGS, bytearray((2).to_bytes(8, "little")))


def trial(folder: str) -> spike.Finding:
    """A tree of 5,000 files on Btrfs, by four mechanisms."""
    top = spike.disk(folder, "btrfs", 600)
    spike.subvolume(f"{top}/tree")
    for number in range(FOLDERS * FILES):
        os.makedirs(f"{top}/tree/{number % FOLDERS}", exist_ok=True)
        spike.put(f"{top}/tree/{number % FOLDERS}/{number}", "x" * 5000)
    spike.run("sync", "-f", top)
    tree, made = f"{top}/tree", {}
    made["overlay"] = spike.milliseconds(spike.overlay, tree, f"{top}/store", f"{folder}/over")
    spike.snapshot(tree, f"{top}/base")
    made["snapshot"] = min(spike.milliseconds(spike.snapshot, tree, f"{top}/snap{n}") for n in ("", "2", "3"))
    made["cp -a --reflink"] = spike.milliseconds(spike.run, "cp", "-a", "--reflink=always", tree, f"{top}/clone")
    made["cp -a"] = spike.milliseconds(spike.run, "cp", "-a", "--reflink=never", tree, f"{top}/copy")
    for number in range(20):
        for place in (f"{folder}/over", f"{top}/snap"):
            spike.put(f"{place}/{number}/{number}", "changed")
    for name in ("base", "snap"):
        freeze(f"{top}/{name}")
    spike.run("sync", "-f", top)
    told = {"upper folder": spike.milliseconds(walk, f"{top}/store/upper")}
    if shutil.which("btrfs"):
        told["btrfs send --no-data"] = spike.milliseconds(send, top)
    told["stat walk"] = spike.milliseconds(walk, f"{top}/copy")
    shown = [", ".join(f"{name} {took:.1f} ms" for name, took in part.items()) for part in (made, told)]
    return spike.Finding(
        f"{FOLDERS * FILES} files: {shown[0]}; 20 changes: {shown[1]}",
        max(made["overlay"], made["snapshot"]) * 3 < min(made["cp -a"], made["cp -a --reflink"])
        and told["upper folder"] < told["stat walk"],
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
