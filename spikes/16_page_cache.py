"""Fact 16: which private trees share the page cache of the same bytes."""

import os

import spike

QUESTION = "do snapshots, reflinks and overlays over one lower folder share the page cache?"
SIZE = 50 << 20


def read(path: str) -> None:
    """Read the whole file."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def trial(folder: str) -> spike.Finding:
    """Read 50 MB in one fork, and see how much of the same file is already in memory in the second."""
    top = spike.disk(folder, "btrfs", 600)
    spike.subvolume(f"{top}/base")
    with open(f"{top}/base/file", "wb") as file:
        file.write(os.urandom(SIZE))
    os.sync()
    for name in ("one", "two"):
        spike.snapshot(f"{top}/base", f"{top}/snapshot-{name}")
        spike.run("cp", "--reflink=always", f"{top}/base/file", f"{top}/reflink-{name}")
        spike.overlay(f"{top}/snapshot-one", f"{top}/store-{name}", f"{folder}/overlay-{name}")
    spike.run("mount", "-n", "-o", "remount", top)
    pages = SIZE // os.sysconf("SC_PAGE_SIZE")
    ways = {"snapshot": (f"{top}/snapshot-one/file", f"{top}/snapshot-two/file")}
    ways["reflink"] = (f"{top}/reflink-one", f"{top}/reflink-two")
    ways["overlay"] = (f"{folder}/overlay-one/file", f"{folder}/overlay-two/file")
    share, times = {}, {}
    for name, (first, second) in ways.items():
        read(first)
        share[name] = spike.cached(second)[0] * 100 // pages
        times[name] = f"{spike.milliseconds(read, second):.0f} ms"
    return spike.Finding(
        f"of 50 MB that one fork has read, the second finds in memory (per cent): {share}; its first read took {times}",
        share["snapshot"] < 5 and share["reflink"] < 5 and share["overlay"] > 95,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
