"""Signals and job control of `hostfork run`: the only place that touches them.

Before the command exists a signal ends hostfork through an exception, so that everything made is given back. While it
runs, the signals are blocked and read one by one; the command has its own (signal(7), credentials(7)). At the end the
terminal is taken back if it was ours at the start.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType

from hostfork.api import Caller
from hostfork.helper.syscalls import read_signals, signalfd
from hostfork.workload.watch import Received

_PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
)
_JOB_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_ENDS = _PASSED_ON - {signal.SIGCONT}
_SI_KERNEL = 0x80


class Interrupted(BaseException):
    """A signal that ends hostfork came while it was not watching a command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Terminal:
    """The signals of one run, as a context. As a `SignalSource` it serves `watch`."""

    def __init__(self) -> None:
        self.caller = Caller.current()
        # What the caller ignores (nohup, a shell's background job) stays ignored.
        self._ends = _ENDS - self.caller.ignored
        self._read = (_PASSED_ON | _JOB_STOPS) - self.caller.ignored
        self._previous: dict[int, object] = {}
        self._descriptor = -1
        self._front = _front() == os.getpgrp()
        # A hang-up tells only the session's leader; else it comes to the whole group (tty_ioctl(4)).
        self._leads = os.getsid(0) == os.getpid()
        self._interrupted = False

    def __enter__(self) -> Terminal:
        for number in self._ends:
            self._previous[number] = signal.signal(number, self._interrupt)
        # Never stopped half way: a stop is passed to the command, and hostfork follows it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _JOB_STOPS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unwatch()
        self.take_back()
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.pthread_sigmask(signal.SIG_SETMASK, self.caller.blocked)

    def watching(self) -> None:
        """From here on signals are read, not acted on: the command is about to exist."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._read)
        self._descriptor = signalfd({int(number) for number in self._read})

    def unwatch(self) -> None:
        """The command has ended: a signal ends hostfork again. What waited from the terminal was the command's."""
        if self._descriptor < 0:
            return
        self.take()
        os.close(self._descriptor)
        self._descriptor = -1
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._read - _JOB_STOPS - self.caller.blocked)

    def fileno(self) -> int:
        return self._descriptor

    def take(self) -> list[Received]:
        return [
            Received(number, code == _SI_KERNEL and not (number == signal.SIGHUP and self._leads), sender)
            for number, code, sender in read_signals(self._descriptor)
        ]

    def stop_self(self, number: int, announce: Callable[[], None]) -> None:
        """Stop as the command was stopped, so that the shell sees one job.

        SIGTSTP stands for SIGSTOP, which cannot wait: a SIGCONT takes a waiting stop away, so none is missed. And it
        stops nobody whom no shell would continue (an orphaned process group).
        """
        number = signal.SIGTSTP if number == signal.SIGSTOP else number
        previous = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        announce()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        # Stopped here until somebody continues us.
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        signal.signal(number, previous)

    def take_back(self) -> None:
        """If we had the terminal at the start and nobody living has it now, take it, as a shell would.

        After `bg` it is the shell that has it.
        """
        if not self._front:
            return
        front = _front()
        if front is None or front == os.getpgrp() or _lives(front):
            return
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            terminal = _open_terminal()
            try:
                os.tcsetpgrp(terminal, os.getpgrp())
            finally:
                os.close(terminal)
        except OSError:
            return  # hung up meanwhile
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Once: another Ctrl-C must not end the giving back that the first one began."""
        if not self._interrupted:
            self._interrupted = True
            raise Interrupted(number)


def _open_terminal() -> int:
    """The controlling terminal, wherever the standard descriptors go."""
    return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def _front() -> int | None:
    """The terminal's foreground process group, None without a terminal."""
    try:
        terminal = _open_terminal()
        try:
            return os.tcgetpgrp(terminal)
        finally:
            os.close(terminal)
    except OSError:
        return None


def _lives(group: int) -> bool:
    """Whether a process group has a process that has not ended."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _parent, its_group = file.read().rpartition(b")")[2].split()[:3]
        except OSError:
            continue  # it ended meanwhile
        if int(its_group) == group and state not in (b"Z", b"X"):
            return True
    return False
