"""Fact 19: fork costs by the size of the process, posix_spawn does not."""

import mmap
import os

import spike

QUESTION = "does starting a process cost more in a large process, with fork and with posix_spawn?"
SIZE = 500 << 20


def fork() -> int:
    """Fork a child that ends at once."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid


def spawn() -> int:
    """Start /bin/true."""
    return os.posix_spawn("/bin/true", ["true"], {})


def best(start: object) -> float:
    """The shortest of seven calls, in milliseconds, without the child's end."""
    found = []
    for _ in range(7):
        pids: list[int] = []
        found.append(spike.milliseconds(lambda pids=pids: pids.append(start())))  # type: ignore[operator]
        os.waitpid(pids[0], 0)
    return min(found)


def trial(folder: str) -> spike.Finding:
    """Both, before and after this process took 500 MB."""
    small = best(fork), best(spawn)
    heap = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    heap.madvise(15)  # MADV_NOHUGEPAGE: a heap of small objects, whatever this host's setting
    for offset in range(0, SIZE, mmap.PAGESIZE):
        heap[offset] = 1
    large = best(fork), best(spawn)
    return spike.Finding(
        f"fork {small[0]:.2f} ms in a small process and {large[0]:.2f} ms in one of 500 MB; posix_spawn {small[1]:.2f} "
        f"and {large[1]:.2f} ms",
        large[0] > 3 * small[0] and large[1] < large[0],
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, root=False)
