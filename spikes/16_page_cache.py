"""Fact 16: which private trees share the page cache of the same bytes."""

import ctypes
import os

import spike

QUESTION = "do snapshots, reflinks and overlays over one lower folder share the page cache?"
SIZE = 50 << 20


def read(path: str) -> None:
    """Read the whole file."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def resident(path: str) -> int:
    """Per cent of the file that a mapping of it finds in memory (mincore: also right for a file of an overlay)."""
    handle, size = os.open(path, os.O_RDONLY), os.stat(path).st_size
    spike.libc.mmap.restype = ctypes.c_void_p
    address = spike.libc.mmap(None, ctypes.c_size_t(size), 1, 1, handle, ctypes.c_long(0))
    pages = ctypes.create_string_buffer(-(-size // os.sysconf("SC_PAGE_SIZE")))
    spike.check(spike.libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages))
    spike.check(spike.libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size)))
    os.close(handle)
    return sum(byte & 1 for byte in pages.raw) * 100 // len(pages.raw)


def trial(folder: str) -> spike.Finding:
    """Read 50 MB in one fork, and see how much of the same file is already in memory in the second."""
    top = spike.disk(folder, "btrfs", 600)
    spike.subvolume(f"{top}/base")
    with open(f"{top}/base/file", "wb") as file:
        file.write(os.urandom(SIZE))
    spike.run("sync", "-f", top)
    spike.snapshot(f"{top}/base", f"{top}/frozen")
    for name in ("one", "two"):
        spike.snapshot(f"{top}/base", f"{top}/snapshot-{name}")
        spike.run("cp", "--reflink=always", f"{top}/base/file", f"{top}/reflink-{name}")
        spike.overlay(f"{top}/frozen", f"{top}/store-{name}", f"{folder}/overlay-{name}")
    ways = {"snapshot": (f"{top}/snapshot-one/file", f"{top}/snapshot-two/file")}
    ways["reflink"] = (f"{top}/reflink-one", f"{top}/reflink-two")
    ways["overlay"] = (f"{folder}/overlay-one/file", f"{folder}/overlay-two/file")
    share, times = {}, {}
    for name, (first, second) in ways.items():
        read(first)
        share[name] = resident(second)
        times[name] = f"{spike.milliseconds(read, second):.0f} ms"
    return spike.Finding(
        f"of 50 MB that one fork has read, the second finds in memory (per cent): {spike.told(share)}; its first read "
        f"took {spike.told(times)}",
        share["snapshot"] < 5 and share["reflink"] < 5 and share["overlay"] > 95,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
