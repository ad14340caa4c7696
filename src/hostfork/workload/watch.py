"""The owner's wait: what the command does, what signals ask for. The keeper has the clock of the time limit.

Signals come from a `SignalSource` that only the command line provides; a program that calls the API keeps its own.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from hostfork.helper.protocol import GRACE, Channel, Exited, Follow, MeterEnded, Signal, Stopped, TimedOut
from hostfork.helper.shapes import Protocol
from hostfork.values import frozen
from hostfork.workload.cgroup import own_folder
from hostfork.workload.launch import keeper_died

_END_OF_LIMIT = 2 * GRACE
"""Seconds from the time limit on until a command counts as killed that the kernel does not let go."""


@frozen
class Received:
    """One signal to hostfork. `from_kernel`: the terminal sent it to the whole group, so the command has it too."""

    number: int
    from_kernel: bool
    sender: int


class SignalSource(Protocol):
    """The caller's signals while the command runs."""

    def watching(self) -> None:
        """The command is about to exist: from here on signals are read, not acted on."""

    def unwatch(self) -> None:
        """The command has ended: signals act again."""

    def fileno(self) -> int:
        """Readable when a signal waits."""

    def take(self) -> list[Received]:
        """The signals that wait."""

    def stop_self(self, number: int, announce: Callable[[], None]) -> None:
        """Stop this process as the command was stopped; returns when it was continued.

        `announce` asks for a SIGCONT when the command goes on. One that comes before the stop prevents it.
        """


@frozen
class Exit:
    """How the command ended: `exit` or `signal`. `timed_out`: the time limit was reached first.

    `cut`: it was ended because what measures the fork's storage had ended.
    """

    exit: int | None
    signal: int | None
    timed_out: bool = False
    cut: bool = False


def watch(
    channel: Channel,
    signals: SignalSource | None,
    group: str | None,
    namespace: int | None = None,
) -> Exit:
    """Wait for the command's end. Raises WorkloadError `workload.keeper` if the keeper dies.

    `group` and `namespace` (the mount namespace's inode) tell a signal of the fork's own from others.
    """
    given_up: float | None = None
    timed_out = cut = False
    waiting = select.poll()
    waiting.register(channel.fileno(), select.POLLIN)
    if signals is not None:
        waiting.register(signals.fileno(), select.POLLIN)
    stops = 0
    while True:
        # Before the messages: what woke us after a stop belongs to that stop, not to one that followed.
        received = [] if signals is None else signals.take()
        stopped = None
        while (message := channel.next()) is not None:
            if isinstance(message, Exited):
                return _exit(message.status, timed_out, cut)
            if isinstance(message, Stopped):
                stops += 1
                stopped = message.signal
            elif isinstance(message, TimedOut | MeterEnded):
                timed_out = timed_out or isinstance(message, TimedOut)
                cut = cut or isinstance(message, MeterEnded)
                given_up = time.monotonic() + _END_OF_LIMIT
        for one in received:
            _pass_on(one, channel, group, namespace, stops)
            if one.number == signal.SIGCONT:
                stopped = None
        if stopped is not None and signals is not None:
            signals.stop_self(stopped, lambda: channel.send(Follow()))
            continue
        left = None if given_up is None else max(0.0, given_up - time.monotonic())
        ready = {descriptor for descriptor, _events in waiting.poll(None if left is None else left * 1000)}
        if channel.fileno() in ready and not channel.read():
            raise keeper_died()
        if left == 0.0 and not ready:
            return _exit(-signal.SIGKILL, timed_out, cut)


def _exit(status: int, timed_out: bool, cut: bool) -> Exit:
    return Exit(None, -status, timed_out, cut) if status < 0 else Exit(status, None, timed_out, cut)


def pass_early(channel: Channel, signals: SignalSource) -> None:
    """What came while the command did not exist yet is the command's too; the keeper itself has the terminal's."""
    for received in signals.take():
        if not received.from_kernel:
            channel.send(Signal(received.number))


def _pass_on(received: Received, channel: Channel, group: str | None, namespace: int | None, stops: int) -> None:
    """Not what the terminal sent to the whole group, and not what the fork itself sends: that would come back."""
    if received.number == signal.SIGCONT:
        channel.send(Signal(received.number, stops))
    elif not received.from_kernel and not _is_of(received.sender, group, namespace):
        channel.send(Signal(received.number))


def _is_of(pid: int, group: str | None, namespace: int | None) -> bool:
    """Whether a process is of the fork: by its cgroup, or where none owns the fork by its mount namespace."""
    try:
        if group is None:
            return os.stat(f"/proc/{pid}/ns/mnt").st_ino == namespace
        folder = own_folder(pid)
    except OSError:
        return False
    return folder is not None and (folder == group or folder.startswith(group + os.sep))
