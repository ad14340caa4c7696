"""Fact 18: when the space of a deleted Btrfs subvolume comes back."""

import os
import time

import spike

QUESTION = "when does the space of a deleted subvolume come back, and does BTRFS_IOC_SYNC bring it?"
SIZE = 60 << 20


def free(path: str) -> int:
    """Bytes free on the filesystem."""
    found = os.statvfs(path)
    return found.f_bfree * found.f_frsize


def until(path: str, wanted: int, limit: float) -> float | None:
    """Milliseconds until that much is free, or None at the limit."""
    start = time.perf_counter()
    while time.perf_counter() - start < limit:
        if free(path) >= wanted:
            return (time.perf_counter() - start) * 1000
        time.sleep(0.001)
    return None


def trial(folder: str) -> spike.Finding:
    """Fill a subvolume, delete it, and watch the free space before and after the ioctl."""
    top = spike.disk(folder, "btrfs")
    spike.subvolume(f"{top}/sub")
    with open(f"{top}/sub/file", "wb") as file:
        file.write(os.urandom(SIZE))
    os.sync()
    filled = free(top)
    spike.delete_subvolume(f"{top}/sub")
    alone = until(top, filled + SIZE * 9 // 10, 1)
    call = spike.milliseconds(spike.control, top, spike.SYNC)
    after = until(top, filled + SIZE * 9 // 10, 20)
    return spike.Finding(
        f"within a second of the deletion: {'yes' if alone else 'no'} (the commit comes every 30 s); the ioctl took "
        f"{call:.1f} ms and the space was back {'never' if after is None else f'{after:.1f} ms'} after it",
        alone is None and after is not None,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
