"""Signals and job control of `hostfork run`: the only place that touches them.

Before the command exists a signal ends hostfork through an exception, so that everything made is given back. While it
runs, the signals are blocked and read one by one; the command has its own (signal(7), credentials(7)). At the end the
terminal is taken back if it was ours at the start.
"""

import os
import signal
from types import FrameType, TracebackType

from hostfork.api import Caller
from hostfork.helper.syscalls import read_signals, signalfd
from hostfork.workload.watch import Received

_PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
)
_JOB_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_ENDS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
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
        self._front = _in_front()

    def __enter__(self) -> "Terminal":
        for number in self._ends:
            self._previous[number] = signal.signal(number, _interrupt)
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
        return [Received(number, code == _SI_KERNEL, sender) for number, code, sender in read_signals(self._descriptor)]

    def stop_self(self, number: int) -> None:
        """Stop as the command was stopped, so that the shell sees one job."""
        previous = signal.getsignal(number)
        if number != signal.SIGSTOP:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        # Stopped here until somebody continues us.
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        if number != signal.SIGSTOP:
            signal.signal(number, previous)

    def take_back(self) -> None:
        """If we had the terminal at the start and do not have it now, take it, as a shell would."""
        if not self._front:
            return
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            terminal = _terminal()
            if terminal is not None and os.tcgetpgrp(terminal) != os.getpgrp():
                os.tcsetpgrp(terminal, os.getpgrp())
        except OSError:
            return  # hung up meanwhile
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


def _terminal() -> int | None:
    """A standard descriptor that is our terminal."""
    for descriptor in (0, 1, 2):
        try:
            os.tcgetpgrp(descriptor)
        except OSError:
            continue
        return descriptor
    return None


def _in_front() -> bool:
    terminal = _terminal()
    return terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp()
