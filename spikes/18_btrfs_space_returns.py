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


def delete(top: str, name: str) -> tuple[bool, bool, int, float]:
    """Delete a full subvolume: is the space back a second later, and with the ioctl, after how many calls and ms."""
    spike.subvolume(f"{top}/{name}")
    with open(f"{top}/{name}/file", "wb") as file:
        file.write(os.urandom(SIZE))
    spike.run("sync", "-f", top)
    wanted = free(top) + SIZE * 9 // 10
    spike.delete_subvolume(f"{top}/{name}")
    time.sleep(1)
    alone = free(top) >= wanted
    start, calls = time.perf_counter(), 0
    while free(top) < wanted and time.perf_counter() - start < 20:
        spike.control(top, spike.SYNC)
        calls += 1
        time.sleep(0.001)
    return alone, free(top) >= wanted, calls, (time.perf_counter() - start) * 1000


def trial(folder: str) -> spike.Finding:
    """Up to three times, as a sync(2) of anybody on this host would bring the space early."""
    top = spike.disk(folder, "btrfs")
    for number in range(3):
        alone, back, calls, took = delete(top, f"sub{number}")
        if not alone:
            break
    return spike.Finding(
        f"a second after the deletion: {'back' if alone else 'not back'} (the commit comes every 30 s); with the ioctl "
        f"{'back' if back else 'not back'} after {calls} calls and {took:.1f} ms (one call commits the deletion, the "
        "cleaner frees, a later call commits that)",
        not alone and back,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
