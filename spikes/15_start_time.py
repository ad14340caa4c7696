"""Fact 15: the kernel's process start time is in ticks since boot."""

import os
import time

import spike

QUESTION = "in what is the start time of a process told, and is it enough to know a process again?"


def trial(folder: str) -> spike.Finding:
    """Fork a child between two looks at the boot clock and read its start time."""
    ticks = os.sysconf("SC_CLK_TCK")
    come, go = os.pipe()
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(come, 1)
        os._exit(0)
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    start = int(spike.get(f"/proc/{pid}/stat").rpartition(")")[2].split()[19])
    os.close(go)
    os.waitpid(pid, 0)
    boot = spike.get("/proc/sys/kernel/random/boot_id").strip()
    within = int(before * ticks) <= start <= int(after * ticks)
    return spike.Finding(
        f"ticks of 1/{ticks} s since boot: a child forked at {before:.2f} s of the boot clock started at {start}; the "
        f"number comes again after a reboot, so it counts only with the boot id ({len(boot)} characters)",
        within and len(boot) == 36,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, root=False)
