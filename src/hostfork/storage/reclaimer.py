"""The program that erases what is set aside in pools, in no hurry: `reclaimer.py POOL…`.

Started by `reclaim`. One for each pool at a time, by a lock on the pool's folder; it ends when nothing is left that it
did not try. SIGKILL at any moment does no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time

_TRIES, _BETWEEN = 3, 0.02


def main(pools: list[str]) -> None:
    """Erase, pool after pool."""
    from hostfork.helper import syscalls

    # Not SCHED_IDLE: stopped inside a journal's transaction for long it would hold up everybody's.
    os.nice(19)
    with contextlib.suppress(OSError):  # a filter on system calls; nice alone makes it the last of its class
        syscalls.set_idle_io()
    for pool in pools:
        _erase_all(pool)


def _erase_all(pool: str) -> None:
    from hostfork.errors import StorageError
    from hostfork.storage.reclaim import Aside, asides, erase

    tried: set[Aside] = set()
    # Looked at again without the lock: what came as we ended, whose own process saw us at it.
    while waiting := [one for one in asides(pool) if one.number is None and one not in tried]:
        lock = _lock(pool)
        if lock < 0:
            return
        try:
            for one in waiting:
                tried.add(one)
                try:
                    erase(one)
                except StorageError:
                    continue  # written down
        finally:
            os.close(lock)


def _lock(pool: str) -> int:
    """The locked pool, -1 where another one is at it or the pool went away."""
    try:
        opened = os.open(pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    for _ in range(_TRIES):  # who only looks whether anybody is at it holds it for a moment
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return opened
        except OSError:
            time.sleep(_BETWEEN)
    os.close(opened)
    return -1


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(sys.argv[1:])
