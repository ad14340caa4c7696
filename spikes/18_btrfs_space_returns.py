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


def trial(folder: str) -> spike.Finding:
    """Fill a subvolume, delete it, and watch the free space, first alone and then with the ioctl."""
    top = spike.disk(folder, "btrfs")
    spike.subvolume(f"{top}/sub")
    with open(f"{top}/sub/file", "wb") as file:
        file.write(os.urandom(SIZE))
    os.sync()
    wanted = free(top) + SIZE * 9 // 10
    spike.delete_subvolume(f"{top}/sub")
    time.sleep(1)
    alone = free(top) >= wanted
    start, calls = time.perf_counter(), 0
    while free(top) < wanted and time.perf_counter() - start < 20:
        spike.control(top, spike.SYNC)
        calls += 1
        time.sleep(0.001)
    took = (time.perf_counter() - start) * 1000
    back = free(top) >= wanted
    return spike.Finding(
        f"a second after the deletion: {'back' if alone else 'not back'} (the commit comes every 30 s); with the ioctl "
        f"{'back' if back else 'not back'} after {calls} calls and {took:.1f} ms (one call commits the deletion, the "
        f"cleaner frees, a later call commits that)",
        not alone and back,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
