"""Holds the processes of a running fork still for a moment (cgroups(7), the freezer), and lets them run again.

A guard of `quiesce` thaws the cgroup whatever ends this process; where the guard is ended too, `recover` does it.
"""

from __future__ import annotations

import os
import time
from types import TracebackType

from hostfork.errors import CheckpointError, Code, HostError
from hostfork.lifecycle.quiesce import Guard, is_quiesced, undo_quiescing
from hostfork.lifecycle.record import Record, observed_activity
from hostfork.lifecycle.store import ForkFolder
from hostfork.policy.rules import Quiesce
from hostfork.vocabulary import Activity
from hostfork.workload.freeze import freeze, thaw, waiting_in_kernel

LIMIT = 5.0
"""Seconds that a fork's processes may take to stop."""


class Still:
    """A running fork's processes, stopped inside the context. One that is suspended stays so.

    `pause`: seconds from the order to stop to the order to go on; None where nothing could be stopped, because no
    cgroup owns the processes. Raises CheckpointError `checkpoint.busy` with the pids that did not stop.
    """

    def __init__(self, fork: ForkFolder, record: Record) -> None:
        self._fork, self._record = fork, record
        self._guard: Guard | None = None
        self._start = 0.0
        self.pause: float | None = None

    def __enter__(self) -> Still:
        folder = self._record.cgroup
        if folder is None or not os.path.isdir(folder) or observed_activity(self._record) is Activity.FROZEN:
            return self
        self._guard = Guard(self._fork, Quiesce(None, None), folder)
        try:
            self._guard.start()
            self._guard.wait_quiesced(Quiesce(None, None))
            self._start = time.monotonic()
            freeze(folder, LIMIT)
        except HostError as error:
            pids = waiting_in_kernel(folder)
            self.thaw()
            raise CheckpointError(
                Code.CHECKPOINT_BUSY, f"the processes of {self._record.name} did not stop within {LIMIT:g} s",
                step="freeze", path=folder,
                details=(f"waiting in the kernel: {', '.join(map(str, pids))}",) if pids else error.details,
                hint=f"try again when it is less busy · hostfork show {self._record.name}",
            ) from error  # fmt: skip
        except BaseException:
            self.thaw()
            raise
        return self

    def thaw(self) -> None:
        """Let them run again."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        try:
            assert self._record.cgroup is not None
            thaw(self._record.cgroup)
            if self._start:
                self.pause = time.monotonic() - self._start
        finally:
            guard.let_go(Quiesce(None, None))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()


def thaw_left(fork: ForkFolder) -> bool:
    """For recovery: whether a checkpoint that was killed, with its guard, left a running fork frozen; it runs again."""
    record = fork.load()
    if observed_activity(record) not in (Activity.RUNNING, Activity.FROZEN) or not is_quiesced(fork):
        return False
    return not undo_quiescing(fork)
