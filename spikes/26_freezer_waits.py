"""Fact 26: the freezer waits for system calls in flight; dirty data makes a snapshot slow."""

import os
import time
from collections.abc import Callable

import spike

QUESTION = "does the freezer wait for a write and an fsync in flight, and does syncfs make a snapshot fast?"
SIZE = 300 << 20


def freeze(group: str) -> float:
    """Freeze the group and wait until it is; milliseconds."""
    start = time.perf_counter()
    spike.put(f"{group}/cgroup.freeze", "1")
    while "frozen 1" not in spike.get(f"{group}/cgroup.events"):
        time.sleep(0.0005)
    return (time.perf_counter() - start) * 1000


def frozen_while(group: str, work: Callable[[], None], begun: Callable[[], bool]) -> float:
    """Freeze a child in the middle of its work, then end it; milliseconds."""
    pid = os.fork()
    if pid == 0:
        try:
            spike.libc.prctl(1, 9)
            spike.put(f"{group}/cgroup.procs", "0")
            work()
            time.sleep(60)
        finally:
            os._exit(0)
    while not begun():
        pass
    took = freeze(group)
    os.kill(pid, 9)
    spike.put(f"{group}/cgroup.freeze", "0")
    os.waitpid(pid, 0)
    return took


def write(path: str) -> None:
    """Write it all in one system call."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(file, memoryview(bytes(SIZE)))
    os.close(file)


def sync(path: str) -> None:
    """Say that it begins, then fsync."""
    handle = os.open(path, os.O_RDWR)
    spike.put(path + ".begun", "")
    os.fsync(handle)


def stop_write(group: str, path: str) -> tuple[int, float]:
    """Freeze in the middle of the write: its size when that was asked, and how long it took."""
    seen = 0

    def begun() -> bool:
        nonlocal seen
        seen = os.path.getsize(path) if os.path.exists(path) else 0
        return seen > 0

    took = frozen_while(group, lambda: write(path), begun)
    return seen, took


def snapshots(folder: str) -> tuple[float, float]:
    """How long a snapshot takes with the file dirty, and after syncfs."""
    top = spike.disk(folder, "btrfs", 1000)
    spike.subvolume(f"{top}/sub")
    write(f"{top}/sub/file")
    slow = spike.milliseconds(spike.snapshot, f"{top}/sub", f"{top}/dirty")
    write(f"{top}/sub/file")
    spike.run("sync", "-f", top)
    return slow, spike.milliseconds(spike.snapshot, f"{top}/sub", f"{top}/clean")


def trial(folder: str) -> spike.Finding:
    """Freeze in a write of 300 MB and in its fsync on ext4, then snapshot a Btrfs subvolume with as much dirty."""
    disk = spike.disk(folder, "ext4", 1000)
    path = f"{disk}/file"
    with spike.cgroup() as group:
        for _ in range(5):  # again if it was asked too late, or a sync(2) of anybody came in between
            spike.put(path, "")
            seen, in_write = stop_write(group, path)
            dirty = spike.cached(path)[1]
            if seen < SIZE and dirty > 0:
                break
        whole = seen < SIZE == os.path.getsize(path)
        in_sync = frozen_while(group, lambda: sync(path), lambda: os.path.exists(path + ".begun"))
        left = spike.cached(path)[1]
    spike.umount(disk)
    slow, fast = snapshots(folder)
    return spike.Finding(
        f"yes: asked {seen >> 20} MB into a write of {SIZE >> 20}, it was frozen {in_write:.0f} ms later with the "
        f"write complete: {spike.told(whole)}; in an fsync of {dirty} dirty pages after {in_sync:.0f} ms with {left} "
        f"left; a snapshot with {SIZE >> 20} MB dirty took {slow:.0f} ms, after syncfs {fast:.1f} ms",
        whole and dirty > left == 0 and fast < slow,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.ext4", "mkfs.btrfs"))
