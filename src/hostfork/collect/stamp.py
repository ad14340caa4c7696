"""The kernel's stamp at a fork's start, against which later writes are judged (see `source` and `pair`)."""

from __future__ import annotations

import os
import time

from hostfork.helper.syscalls import syncfs
from hostfork.values import frozen


@frozen
class Probe:
    """The kernel's stamp and clocks at one moment, in nanoseconds, and the boot they belong to."""

    ctime_ns: int
    realtime_ns: int
    boottime_ns: int
    boot_id: str


def make_probe(source: str, pool: str) -> Probe:
    """Take the stamp. After a syncfs of the source's filesystem, so that writes through mappings stamp again."""
    handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        syncfs(handle)
    finally:
        os.close(handle)
    return stamp(pool)


def stamp(pool: str) -> Probe:
    """The kernel's stamp and the clocks now, by a file that is made in the pool for a moment."""
    path = os.path.join(pool, f"probe-{os.getpid()}-{time.monotonic_ns()}")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        ctime = os.fstat(file).st_ctime_ns
    finally:
        os.close(file)
        os.unlink(path)
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as boot:
        return Probe(ctime, time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), boot.read().strip())


def clock_fault(since: Probe, now: Probe) -> str:
    """Why stamps of then and now cannot be compared, or nothing."""
    if since.boot_id != now.boot_id:
        return "the machine was started again"
    ran = now.boottime_ns - since.boottime_ns
    told = now.realtime_ns - since.realtime_ns
    # A clock that is being corrected may lose 500 parts in a million.
    if told < ran - 50_000_000 - ran // 2000 or now.ctime_ns < since.ctime_ns:
        return "the clock was set back"
    return ""
