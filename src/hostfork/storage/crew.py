"""Worker processes that copy files beside us: a second processor's worth of system calls for large trees.

Processes, not threads, since one interpreter runs one thread at a time; spawned, not forked, since a caller may have
threads and a large heap. A worker gets two open folders and the names to copy, and answers with outcomes and stats.
"""

from __future__ import annotations

import marshal
import os
import signal
import struct
from collections import deque
from collections.abc import Iterator

from hostfork.helper.shapes import NamedTuple
from hostfork.storage.entry import Outcome, Taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BATCH = 64
"""Files in one message, about: few messages, since each wakes a process, and far below the kernel's limit of bytes."""
FOLDERS = 16
"""Folders in one message at most. Two descriptors each, for every batch under way: a process has 1024 by default."""
_WINDOW = 2
"""Batches that one worker has at a time."""
_LARGEST = 1 << 20
_MOST = 4


class Part(NamedTuple):
    """Files of one folder, to be given away. `source` and `target` are descriptors of our own."""

    level: Any
    source: int
    target: int
    names: list[str]

    def close(self) -> None:
        os.close(self.source)
        os.close(self.target)


class PartError(OSError):
    """A worker could not take `name`, a file of `part`."""

    def __init__(self, number: int, part: Part, name: str) -> None:
        super().__init__(number, os.strerror(number), name)
        self.part = part
        self.name = name


class Worker:
    """One worker process and the batches that it has. `kind` is its copier's."""

    def __init__(self, kind: str = "copy") -> None:
        import socket
        import sys

        self.batches: deque[list[Part]] = deque()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
        try:
            # Its own process group: Ctrl-C is the owner's, which then ends the worker.
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", program, str(os.getpid()), kind],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE,),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours

    @property
    def has_room(self) -> bool:
        return len(self.batches) < _WINDOW

    def give(self, parts: list[Part]) -> None:
        """Send a batch. Raises OSError; then it is not given."""
        import socket

        folders = [folder for part in parts for folder in (part.source, part.target)]
        rights = struct.pack(f"{len(folders)}i", *folders)
        names = marshal.dumps([part.names for part in parts])
        self._socket.sendmsg([names], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_NOSIGNAL)
        self.batches.append(parts)

    def take(self, wait: bool) -> tuple[list[Part], list[list[Taken]]] | None:
        """The oldest batch with its outcomes, or None if it is not done yet.

        Raises PartError where the worker failed at a file, OSError where it died.
        """
        import errno
        import socket

        try:
            answer = self._socket.recv(_LARGEST, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not answer:
            raise OSError(errno.ECHILD, "a worker process of the copy died")
        number, name, outcomes = marshal.loads(answer)
        if number:
            # A part is answered when its first file is begun: the last one holds the file.
            raise PartError(number, self.batches[0][len(outcomes) - 1], name)
        return self.batches.popleft(), [[_taken(item) for item in part] for part in outcomes]

    def end(self) -> None:
        """End the worker, whatever it does, and wait for that."""
        self._socket.close()
        try:
            os.kill(self.pid, signal.SIGKILL)  # our own child, not waited for yet: the pid is still its own
            os.waitpid(self.pid, 0)
        except (ChildProcessError, ProcessLookupError):
            pass  # a caller that ignores SIGCHLD or waits for every child of the process
        for parts in self.batches:
            for part in parts:
                part.close()
        self.batches.clear()


class Crew:
    """The workers of one copy, one for each idle processor, four at most."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._workers: list[Worker] = []

    def start(self) -> None:
        """Start a worker for each processor that is idle now. None where none is: there, more processes only cost.

        Does nothing where there are workers already, or inside a program that is no Python interpreter.
        """
        import sys

        if self._workers or not sys.executable:
            return
        for _ in range(min(idle_processors(), _MOST)):
            self._workers.append(Worker(self._kind))

    def free(self) -> Worker | None:
        """A worker that can take a batch."""
        return next((worker for worker in self._workers if worker.has_room), None)

    def finished(self, wait: bool = False) -> Iterator[tuple[Part, list[Taken]]]:
        """Parts that are done, the caller's to close; with `wait`, all that were given."""
        for worker in self._workers:
            while worker.batches:
                done = worker.take(wait)
                if done is None:
                    break
                yield from zip(*done, strict=True)

    def end(self) -> None:
        """End all workers. Safe to repeat."""
        while self._workers:
            self._workers.pop().end()


def idle_processors() -> int:
    """How many of our processors have nothing to run at this moment (proc_loadavg(5), fourth field)."""
    with open("/proc/loadavg", encoding="ascii") as file:
        running = int(file.read().split()[3].split("/")[0])
    return max(0, len(os.sched_getaffinity(0)) - running)


def packed(taken: Taken) -> tuple[Any, ...]:
    """An outcome in plain values (marshal knows no classes)."""
    return int(taken.outcome), _values(taken.source), _values(taken.copy), *taken[3:]


def _taken(item: tuple[Any, ...]) -> Taken:
    outcome, source, copy, *rest = item
    return Taken(Outcome(outcome), _stat(source), _stat(copy), *rest)


def _values(found: os.stat_result | None) -> tuple[int, ...] | None:
    if found is None:
        return None
    return (
        found.st_mode,
        found.st_ino,
        found.st_dev,
        found.st_nlink,
        found.st_uid,
        found.st_gid,
        found.st_size,
        found.st_atime_ns,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_blksize,
        found.st_blocks,
        found.st_rdev,
    )


def _stat(values: tuple[int, ...] | None) -> os.stat_result | None:
    """A stat of its fields by position, ten that a tuple shows and nine more: by name it takes twice as long."""
    if values is None:
        return None
    *first, atime, mtime, ctime, blksize, blocks, rdev = values
    seconds = atime // 10**9, mtime // 10**9, ctime // 10**9, atime / 1e9, mtime / 1e9, ctime / 1e9
    return os.stat_result((*first, *seconds, atime, mtime, ctime, blksize, blocks, rdev))
