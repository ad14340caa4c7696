"""What a run says to people: what was chosen, how far it is, what is weaker than usual, and how it ended.

All of it goes to stderr; nothing at all when nothing changed and nothing is weaker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hostfork.cli.look import (
    Look,
    bar,
    columns,
    counts_in_words,
    duration,
    harmless,
    number,
    pad,
    plural,
    size,
    wrapped,
)
from hostfork.cli.output import INDENT, PREFIX, Output
from hostfork.errors import Code
from hostfork.lifecycle.events import EndedCommand, Event, Planned, PreparedPath, Progress, StartedCommand, Warned
from hostfork.lifecycle.record import Outcome, Problem, Status
from hostfork.policy.plan import EndpointPlan, NoticeKind, PathPlan, Plan
from hostfork.storage.contract import Lost
from hostfork.vocabulary import Access

_FIRST_SHOWN = 0.4
_ADVICE_AFTER = 3.0
_BETWEEN = 0.1
_OUR_OWN = 125
_MUCH = 1 << 30
"""Bytes; beyond, each run that keeps something says what all that is kept takes."""


class Teller:
    """Told of each event of a run; writes what people see of it. Holds back warnings while the command runs."""

    def __init__(self, output: Output, verbose: bool) -> None:
        import time

        self._output = output
        self._verbose = verbose and not output.quiet
        self._running = False
        self._held: list[str] = []
        self._said: set[str] = set()
        self._plan: Plan | None = None
        self._progress = ProgressLine(output, time.monotonic) if os.isatty(2) and not output.quiet else None

    def __call__(self, event: Event) -> None:
        match event:
            case Progress():
                if self._progress:
                    self._progress.show(event)
                return
            case Planned():
                self._plan = event.plan
                if self._verbose:
                    self._tell_others(event.plan)
                if any(notice.kind.weaker for notice in event.plan.notices):
                    from hostfork.cli.merging import merged_notices

                    for sentence, of in merged_notices(event.plan, weaker=True).items():
                        self.warn(sentence)
                        self._said.update(of)
            case PreparedPath():
                self._clear()
                if self._verbose:
                    self._output.say(*prepared_lines(event, self._plan, self._output.err))
            case StartedCommand():
                self._clear()
                self._running = True
            case EndedCommand():
                self._running = False
                held, self._held = self._held, []
                for sentence in held:
                    self.warn(sentence)
            case Warned():
                self.warn(event.sentence)

    def warn(self, sentence: str) -> None:
        """One line, once; never into the screen of a running command."""
        if self._running:
            self._held.append(sentence)
        elif sentence not in self._said:
            self._said.add(sentence)
            self._clear()
            self._output.say(harmless(sentence))

    def _tell_others(self, plan: Plan) -> None:
        for path in plan.paths:
            if path.access is not Access.PRIVATE and not path.automatic:
                self._output.say(f"{self._output.err.path(path.written)}  {path.access.value}")
        for notice in plan.notices:
            if notice.kind is NoticeKind.SETTING:
                self._output.say(harmless(notice.sentence))

    def _clear(self) -> None:
        if self._progress:
            self._progress.clear()

    def finish(self) -> None:
        """Leave no half line behind, however the run ended."""
        self._clear()
        self._running = False


def some_paths(relative: Sequence[str], top: str) -> str:
    """The first few of many paths below `top`, and how many more there are."""
    names = [harmless(path) if path else top for path in relative[:3]]
    return ", ".join(names) + (f" and {len(relative) - 3} more" if len(relative) > 3 else "")


def some_lost(lost: Sequence[Lost], top: str) -> str:
    """`a (immutable), b (set-uid) and 2 more`."""
    names = [f"{harmless(one.path) if one.path else top} ({', '.join(one.what)})" for one in lost[:3]]
    return ", ".join(names) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")


def prepared_lines(event: PreparedPath, plan: Plan | None, look: Look) -> list[str]:
    """What was chosen for one private path, and the endpoints inside it."""
    planned = next((path for path in plan.paths if path.path == event.path), None) if plan else None
    shown = look.path(planned.written if planned else event.path)
    whole = planned.offer.bytes_estimate if planned and planned.offer else None
    copied = f"{size(event.bytes_copied)} copied"
    if whole and whole > event.bytes_copied:
        copied = f"{size(event.bytes_copied)} of {size(whole)} copied"
    files = f"{plural(event.files, 'file')}, " if event.files else ""
    facts = [shown, "private", event.mechanism.value, event.guarantee.value]
    lines = [f"{'  '.join(facts)}  {files}{copied}, {duration(event.seconds)}"]
    if event.unwritable:
        lines.append(f"not yours to write on the host, nor inside: {some_paths(event.unwritable, shown)}")
    if event.lost:
        lines.append(f"not kept in the copy: {some_lost(event.lost, shown)}")
    for endpoint in plan.endpoints if plan else ():
        if endpoint.path.startswith(event.path.rstrip("/") + "/"):
            lines.append(f"endpoint {look.path(endpoint.path)}{holder(endpoint)} stays the host's")
    return lines


def holder(endpoint: EndpointPlan) -> str:
    """` (postgres, pid 812)`, where that can be seen."""
    if not endpoint.pid:
        return ""
    return f" ({harmless(endpoint.process)}, pid {endpoint.pid})" if endpoint.process else f" (pid {endpoint.pid})"


class ProgressLine:
    """One line on a terminal, written over itself at most ten times a second, only where something takes long."""

    def __init__(self, output: Output, clock: Callable[[], float], advises: bool = True) -> None:
        self._output = output
        self._clock = clock
        self._start: float | None = None
        self._last = 0.0
        self._shown = 0
        self._advised = not advises

    def show(self, event: Progress) -> None:
        """Show how far the copy is."""
        now = self._clock()
        if self._start is None:
            self._start = now
        spent = now - self._start
        if spent < _FIRST_SHOWN or now - self._last < _BETWEEN:
            return
        if spent > _ADVICE_AFTER and not self._advised:
            self._advised = True
            self.clear()
            self._output.say(advice(event, self._output.err))
        line = progress_text(event, spent, self._output.err)
        self._output.tell(f"\r{pad(line, self._shown)}")
        self._shown = columns(line)
        self._last = now

    def clear(self) -> None:
        """Wipe the line; the next path begins anew."""
        if self._shown:
            self._output.tell(f"\r{' ' * self._shown}\r")
        self._shown = 0
        self._start = None


def advice(event: Progress, look: Look) -> str:
    """What would be faster than a long copy."""
    once = "copied once: later runs start from it. " if event.retained else ""
    return f"{once}`--private {look.path(event.path)}:live` starts at once, but host changes show through"


def progress_text(event: Progress, spent: float, look: Look) -> str:
    """How far a copy is, and how long it still takes where the whole is known."""
    facts = [f"{PREFIX}{'baseline' if event.retained else 'copy'} of {look.path(event.path, 30)}"]
    if event.bytes_total:
        facts.append(bar(event.bytes, event.bytes_total))
    if event.files_total:
        facts.append(f"{number(event.files)} of {plural(event.files_total, 'file')}")
    elif event.files:
        facts.append(plural(event.files, "file"))
    facts.append(f"{size(event.bytes)} of {size(event.bytes_total)}" if event.bytes_total else size(event.bytes))
    share = event.bytes / event.bytes_total if event.bytes_total else event.files / (event.files_total or 1)
    if 0 < share < 1:
        facts.append(f"{duration(round(spent * (1 - share) / share) or 1)} left")
    text = "  ".join(facts)
    # a line that wraps could not be written over
    while look.width and columns(text) >= look.width and len(facts) > 2:
        facts.pop(1)
        text = "  ".join(facts)
    return text


def closing_lines(outcome: Outcome, paths: dict[str, str], look: Look, exported: str | None) -> list[str]:
    """How a run ended, for people: what changed, what became of it, what to do next. `paths`: words of the user's."""
    lines: list[str] = []
    changed = [(path, counts) for path, counts in outcome.changes_by_path if counts.total]
    shown = [(look.path(paths.get(path, path)), counts_in_words(counts)) for path, counts in changed]
    if not shown and (outcome.changes.total or outcome.kept):
        shown = [("", counts_in_words(outcome.changes))]
    widest = max((columns(path) for path, _ in shown), default=0)
    lines.extend(f"{pad(path, widest)}  {words}".strip() for path, words in shown)
    fate = fate_of(outcome, exported)
    if lines and fate:
        lines[-1] += f"   {fate}"
    elif exported:
        lines.append(f"exported to {look.path(exported)}")
    if outcome.kept:
        lines += active_lines(outcome.active, look)
        name = harmless(outcome.fork)
        hints = [f"hostfork diff {name}", f"hostfork apply {name}", f"hostfork discard {name}"]
        room = look.width - len(INDENT) if look.width else None
        lines.extend(wrapped(hints if outcome.changes.total else hints[2:], 0, room))
    return lines


def active_lines(paths: Sequence[str], look: Look) -> list[str]:
    """What of the changes the host runs by itself: the first path."""
    if not paths:
        return []
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return [f"! {look.path(paths[0], look.width and look.width - 50)}{more}   runs on your host by itself"]


def limit_line(outcome: Outcome) -> str:
    """What is said of a fork that took more than its storage limit."""
    taken, limit = size(outcome.storage_taken or 0), size(outcome.storage_limit or 0)
    how = "was ended" if outcome.status.signal is not None else "had ended"
    return f"the command {how}: its fork takes {taken}, and the storage limit is {limit}"


def total_lines(forks: int, total: int) -> list[str]:
    """What all kept forks take, where that is much."""
    return [f"{plural(forks, 'fork')} kept in all, {size(total)}   hostfork usage"] if total > _MUCH else []


def fate_of(outcome: Outcome, exported: str | None) -> str:
    """What became of the changes."""
    if outcome.kept:
        space = f", {size(outcome.bytes_kept)}" if outcome.bytes_kept else ""
        also = f", exported to {exported}" if exported else ""
        return f"kept as {harmless(outcome.fork)}{space}{also}"
    if exported:
        return f"exported to {harmless(exported)}"
    return "thrown away" if outcome.changes.total and outcome.released else ""


def exit_status(status: Status) -> int:
    """What `run` ends with: the command's own, 128+N, or hostfork's 124 to 127."""
    if status.timed_out:
        return 124
    if status.error is not None:
        return problem_status(status.error)
    if status.storage_limited:
        return _OUR_OWN
    if status.signal is not None:
        return 128 + status.signal
    return _OUR_OWN if status.exit is None else status.exit


def problem_status(problem: Problem) -> int:
    """The status of an error inside a result."""
    by_code = {Code.COMMAND_NOT_FOUND.text: 127, Code.COMMAND_NOT_EXECUTABLE.text: 126, Code.WORKLOAD_TIMEOUT.text: 124}
    return by_code.get(problem.code, _OUR_OWN)


def problem_lines(problem: Problem, status: int) -> list[str]:
    """An error that a run ended with, beside what is known of the run."""
    lines = [harmless(problem.message)]
    if problem.errno is not None and os.strerror(problem.errno).lower() not in problem.message.lower():
        lines.append(f"{problem.step}: {os.strerror(problem.errno)}" if problem.step else os.strerror(problem.errno))
    if problem.hint:
        lines.append(harmless(problem.hint))
    lines.append(f"code {problem.code} · status {status}")
    return [PREFIX + lines[0], *("  " + line for line in lines[1:])]


def written_paths(paths: tuple[PathPlan, ...]) -> dict[str, str]:
    """The user's words for the paths of a plan."""
    return {path.path: path.written for path in paths}
