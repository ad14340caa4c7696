"""Stamps of the kernel's clock, taken at a fork's start.

Those of the sources that show through are taken beside the work of preparing the fork: they need a syncfs of the
source's filesystem, which waits for whatever anybody has dirty there, up to seconds on a busy disk. A run does not
wait for that: what is not there in time is not compared, and that is said at the end. Where the base's content is
kept, a stamp of the pool is written down when all is made and the command starts: what that writes is not older.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import time

from hostfork.lifecycle.record import Record
from hostfork.lifecycle.store import ForkFolder
from hostfork.vocabulary import BaseContent, SourceChanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hostfork.collect.stamp import Probe

_PATIENCE = 0.05
"""Seconds that the command's start may wait for stamps."""
_COARSE = 0.02
"""Seconds, more than one tick of any kernel."""
_STAMP, SOURCES = "stamp", "source-stamps"
"""Files in the fork's folder."""


class Probes:
    """The stamps of one fork, by path."""

    def __init__(self) -> None:
        self._taken: dict[str, Any] = {}
        self._awaited: list[_thread.LockType] = []
        """One lock for each stamp, open when it was taken."""
        self._closed = False
        self._pool: tuple[ForkFolder, str] | None = None

    @classmethod
    def since(cls, record: Record, start: float) -> Probes:
        """For recovery, where the owner's stamps are gone: `start`, seconds of the clock when the fork was made.

        The kernel's stamps may lie some milliseconds behind the clock.
        """
        from hostfork.collect.stamp import Probe

        probes = cls()
        moment = int((start - _COARSE) * 1e9)
        for path in record.paths:
            if path.source_changed is SourceChanged.NOT_CHECKED:
                probes._taken[path.path] = Probe(moment, moment, 0, record.boot_id)
        return probes

    def begin(self, fork: ForkFolder, record: Record) -> None:
        """Take a stamp for each source that shows through, in the background."""
        if any(path.base_content is BaseContent.KEPT for path in record.paths):
            self._pool = fork, record.pool
        by_disk: dict[int, list[str]] = {}
        for path in record.paths:
            if path.source_changed is SourceChanged.NOT_CHECKED:
                with contextlib.suppress(OSError):  # gone since the plan: nothing is claimed
                    by_disk.setdefault(os.stat(path.path).st_dev, []).append(path.path)
        for paths in by_disk.values():
            awaited = _thread.allocate_lock()
            awaited.acquire()
            self._awaited.append(awaited)
            _thread.start_new_thread(self._take, (paths, record.pool, awaited))

    def close(self, patience: float = _PATIENCE) -> None:
        """The command starts now: later stamps would not show what the host wrote before them."""
        end = time.monotonic() + patience
        for awaited in self._awaited:
            awaited.acquire(timeout=max(end - time.monotonic(), 0))
        self._closed = True
        if self._pool is not None:
            write_stamp(*self._pool)

    def save(self, fork: ForkFolder) -> None:
        """Write down those of sources, for when the fork is entered later."""
        from hostfork.helper.lean import dumps

        if self._taken:
            lines = {
                path: (one.ctime_ns, one.realtime_ns, one.boottime_ns, one.boot_id) for path, one in self._taken.items()
            }
            file = os.open(fork.file(SOURCES), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, dumps(lines).encode("ascii"))
            finally:
                os.close(file)

    @classmethod
    def load(cls, fork: ForkFolder) -> Probes:
        """Those that were written down; none where that cannot be read."""
        import json

        from hostfork.collect.stamp import Probe

        probes = cls()
        with contextlib.suppress(OSError, ValueError, TypeError), open(fork.file(SOURCES), "rb") as file:
            probes._taken = {path: Probe(*words) for path, words in json.load(file).items()}
        return probes

    def of(self, path: str) -> Probe | None:
        """The stamp of a path, None where it was not there in time."""
        return self._taken.get(path)

    def _take(self, paths: list[str], pool: str, awaited: _thread.LockType) -> None:
        """One stamp for all paths of a filesystem."""
        from hostfork.collect.stamp import make_probe

        try:
            probe = make_probe(paths[0], pool)
            if not self._closed:
                self._taken.update(dict.fromkeys(paths, probe))
        except OSError:
            pass  # without a stamp nothing is claimed
        finally:
            awaited.release()


def first_write(fork: ForkFolder, pool: str) -> int | None:
    """The pool's stamp from before the fork's first write, in nanoseconds. None where stamps tell nothing (any more):
    there is none, or the clock was set back since, or the machine was started again."""
    from hostfork.collect.stamp import Probe, clock_fault, stamp

    try:
        with open(fork.file(_STAMP), encoding="ascii") as file:
            ctime, realtime, boottime, boot = file.read().split()
        then = Probe(int(ctime), int(realtime), int(boottime), boot)
        return None if clock_fault(then, stamp(pool)) else then.ctime_ns
    except (OSError, ValueError):
        return None


def write_stamp(fork: ForkFolder, pool: str) -> None:
    """Write down the pool's stamp of now: what the fork writes from now on is not older. Raises OSError."""
    from hostfork.collect.stamp import stamp

    try:
        probe = stamp(pool)
    except OSError:
        return  # every entry is compared at the end
    file = os.open(fork.file(_STAMP), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, f"{probe.ctime_ns} {probe.realtime_ns} {probe.boottime_ns} {probe.boot_id}\n".encode())
    finally:
        os.close(file)
