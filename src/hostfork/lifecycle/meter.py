"""Holds a fork to its storage limit: what it takes is looked at before its command begins, while it runs, and after.

While it runs, by a process of its own, which ends when the fork takes too much. The keeper holds that process and ends
the fork's tree with it, so that nobody gets rid of the limit by ending what looks. It asks for the filesystem's level
up to a hundred times a second, which costs next to nothing, and measures the fork only once that grew by what is left.
As a program: `meter.py OWNER`, with what is to be done on its standard input.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hostfork.errors import HostforkError
    from hostfork.lifecycle.record import Record
    from hostfork.storage.taken import Place, Taken

_PR_SET_PDEATHSIG = 1  # prctl(2)
_COARSE = 5  # CLOCK_REALTIME_COARSE (clock_gettime(2)), the clock of file times
_FASTEST = 4 << 30
"""Bytes a second that no command writes."""
_SHORTEST, _LONGEST, _QUIET = 0.01, 0.25, 0.05
"""Seconds between two looks at the level: the least, the most, and the most once little is left."""
_REST, _REST_AFTER_LITTLE = 4, 50
"""How many times as long as a look at the fork took there is none: where it is due, and where others may hide it."""
_AT_LAST = 5.0
"""Seconds after which the fork is looked at if the level changed at all: while it wrote, others may have given back."""


class Meter:
    """The storage limit of one fork, for its owner. Its storage is there, and its command does not run yet."""

    def __init__(self, record: Record, limit: int) -> None:
        """Raises StorageError `storage.limit` where the fork takes more already; nothing is left running then."""
        from hostfork.storage.level import Level

        self.pidfd = -1
        self.taken = 0
        self._record = record
        self._limit = limit
        self._pid, self._report = -1, -1
        self._places = _places(record)
        with self._as_failed():
            self._level = Level(record.pool)
            self._start = self._level.now()
        self.look()
        if self.taken > limit:
            self.close()
            raise _too_large(record, self.taken, limit)

    def begin(self, keeper: int) -> int:
        """Start the process; a pidfd of it for the keeper, that pid. Raises WorkloadError `workload.meter`."""
        scope = {
            "limit": self._limit,
            "taken": self.taken,
            "level": self._start,
            "pool": self._record.pool,
            "places": self._places,
            "cgroup": self._record.cgroup,
            "keeper": keeper,
            "below": [path.path for path in self._record.paths],
            "beside": [f"{path.path}/{name}" for path in self._record.paths for name in path.omit],
        }
        try:
            self._spawn(scope)
            self.pidfd = os.pidfd_open(self._pid)
        except OSError as error:
            raise _no_meter("what holds the fork to its storage limit cannot be started", error.errno) from error
        return self.pidfd

    def _spawn(self, scope: dict[str, Any]) -> None:
        from hostfork.helper.lean import dumps

        told = os.memfd_create("hostfork-meter", os.MFD_CLOEXEC)
        self._report, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.pwrite(told, dumps(scope).encode("ascii"), 0)
            # Its own process group: what the terminal sends to the job is not for it.
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid())],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, told, 0),
                    (os.POSIX_SPAWN_DUP2, writer, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE,),
            )
        finally:
            os.close(told)
            os.close(writer)

    def check(self) -> bool:
        """The process has ended; True. Raises WorkloadError `workload.meter` where that was not for the limit."""
        report = self._read()
        if "taken" not in report:
            raise _no_meter("what holds the fork to its storage limit ended while the command was running",
                            why=report.get("failed", "somebody ended it"))  # fmt: skip
        self.taken = report["taken"]
        return True

    def settle(self) -> bool:
        """Nothing writes any more: end the process, look once more; whether the fork takes more than its limit."""
        self.end()
        told = self.taken
        with self._as_failed():
            level = self._level.now()
        if level is None or level != self._start:
            self.look(last=True)
        if told > self._limit:  # part of it may have gone with its processes
            self.taken = max(self.taken, told)
        return self.taken > self._limit

    def look(self, last: bool = False) -> None:
        """Measure what the fork takes now."""
        from hostfork.storage.taken import taken

        with self._as_failed():
            level = self._level.now()
            grown = sys.maxsize if level is None or self._start is None else level - self._start
            self.taken = taken(self._places, self._limit, grown, self._level.kind, last).bytes

    def end(self) -> None:
        """End the process, wherever it is. Safe to repeat."""
        if self._pid > 0:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                if self.pidfd >= 0:
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
                else:
                    os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
        for descriptor in (self.pidfd, self._report):
            if descriptor >= 0:
                os.close(descriptor)
        self._pid = self.pidfd = self._report = -1

    def close(self) -> None:
        """End the process, and give up what is open."""
        self.end()
        self._level.close()

    @contextlib.contextmanager
    def _as_failed(self) -> Iterator[None]:
        from hostfork.storage.failures import failed

        try:
            yield
        except OSError as error:
            raise failed("what the fork takes cannot be measured", self._record.pool, error, "measure") from error

    def _read(self) -> dict[str, Any]:
        from hostfork.helper.lean import loads

        with contextlib.suppress(OSError, ValueError):
            report: dict[str, Any] = loads(os.read(self._report, 4096).decode("ascii"))
            return report
        return {}


def _places(record: Record) -> list[Place]:
    """What counts. The clock is read after all storage was made, and before a command that writes there exists."""
    from hostfork.lifecycle.changes import content_of, delta_of
    from hostfork.storage import scratch
    from hostfork.storage.taken import Place

    since = time.clock_gettime_ns(_COARSE)
    found = []
    for path in record.paths:
        if path.mechanism is None:
            found.append(Place(scratch.mounts(path.key, record.pool).source, since, True))
        else:
            found.append(Place(delta_of(content_of(record, path)), since, path.bytes_copied > 0))
    return found


def _too_large(record: Record, found: int, limit: int) -> HostforkError:
    from hostfork.errors import Code, StorageError
    from hostfork.storage.failures import size

    return StorageError(
        Code.STORAGE_LIMIT,
        f"the fork takes {size(found)} before its command begins, and its storage limit is {size(limit)}",
        step="prepare",
        path=record.pool,
        place="--storage-limit",
        hint="a larger --storage-limit · --private PATH:live copies nothing · --scratch FOLDER copies nothing either",
    )


def _no_meter(message: str, number: int | None = None, why: str | None = None) -> HostforkError:
    from hostfork.errors import Code, WorkloadError

    details = () if why is None else (why, "the process tree was ended: nothing would have held it to the limit")
    return WorkloadError(Code.WORKLOAD_METER, message, step="measure", errno=number, details=details)


class _Look:
    """The fork, as the process looks at it."""

    def __init__(self, scope: dict[str, Any]) -> None:
        from hostfork.storage.level import Level
        from hostfork.storage.taken import Place

        self.limit: int = scope["limit"]
        self.taken: int = scope["taken"]
        self._places = [Place(*place) for place in scope["places"]]
        self._group, self._keeper = scope["cgroup"], scope["keeper"]
        self._below = tuple(os.fsencode(path) for path in (*scope["below"], *(place.tree for place in self._places)))
        self._beside = tuple(os.fsencode(path) for path in scope["beside"])
        self._level = Level(scope["pool"])
        self._last: int | None = scope["level"]
        self._grown = 0
        """Since the command began: what others give back at another moment hides nothing."""
        self._risen, self._changed = 0, False
        self._whole, self._spent, self._looked = True, 0.0, time.monotonic()

    def wait(self) -> None:
        """Look at the level until the fork is to be looked at."""
        pause = _SHORTEST
        while True:
            time.sleep(pause)
            quiet = not self._rise()
            since = time.monotonic() - self._looked
            if self._is_due(since):
                return
            left = self.limit - self.taken - self._risen
            least = min(max(left / _FASTEST, _SHORTEST), _LONGEST)
            pause = max(least, min(pause * 2, _QUIET)) if quiet else least

    def _rise(self) -> bool:
        """Look at the level; whether it changed."""
        now = self._level.now()
        if now is None or self._last is None:
            return False
        step, self._last = now - self._last, now
        self._risen += max(0, step)
        self._grown += max(0, step)
        self._changed = self._changed or step != 0
        return step != 0

    def _is_due(self, since: float) -> bool:
        if self._last is None:  # the level is not known: only the fork tells
            return since >= max(_SHORTEST * 10, self._spent * _REST_AFTER_LITTLE)
        full = self._risen >= self.limit - self.taken or not self._whole
        if full and since >= self._spent * _REST:
            return True
        return self._changed and since >= max(_AT_LAST, self._spent * _REST_AFTER_LITTLE)

    def look(self) -> bool:
        """Measure; whether the fork takes more than its limit."""
        from hostfork.storage.taken import taken
        from hostfork.workload.held import held

        begin = time.monotonic()
        self._risen, self._changed = 0, False
        grown = sys.maxsize if self._last is None else self._grown
        nameless = held(self._processes(), self._below, self._beside)
        found: Taken = taken(self._places, self.limit - nameless, grown, self._level.kind)
        self.taken, self._whole = found.bytes + nameless, found.whole
        self._looked = time.monotonic()
        self._spent = self._looked - begin
        return self.taken > self.limit

    def _processes(self) -> list[int] | tuple[int, ...]:
        from hostfork.workload.cgroup import Group
        from hostfork.workload.stop import members

        if self._group is not None:
            return Group(self._group).processes()
        return members(os.stat(f"/proc/{self._keeper}/ns/mnt").st_ino)


def main(owner: int) -> None:
    """Look until the fork takes too much, and say in one line what it takes, or why it could not be looked at."""
    from hostfork.helper import syscalls
    from hostfork.helper.lean import dumps, loads

    syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:
        return
    os.chdir("/")
    try:
        look = _Look(loads(os.pread(0, os.fstat(0).st_size, 0).decode("ascii")))
        look.wait()
        while not look.look():
            look.wait()
        report: dict[str, Any] = {"taken": look.taken}
    except OSError as error:
        report = {"failed": f"{error.filename or 'a tree'}: {error.strerror}"}
    os.write(1, dumps(report).encode("ascii"))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(int(sys.argv[1]))
    os._exit(0)  # the keeper waits for our end
