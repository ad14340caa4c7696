"""Makes a fork that is there to be entered: everything that `run` does up to the command, and nothing of it runs."""

from __future__ import annotations

import contextlib

from hostfork.errors import ForkError, UnfitError
from hostfork.lifecycle import audit, events
from hostfork.lifecycle.context import Caller
from hostfork.lifecycle.live import LiveFork, Times
from hostfork.lifecycle.prepare import Tell
from hostfork.lifecycle.record import Record
from hostfork.lifecycle.request import Request
from hostfork.lifecycle.run import plan_run
from hostfork.lifecycle.store import Store, state_folder
from hostfork.workload import launch


def create(request: Request, *, on_event: Tell | None = None, caller: Caller | None = None) -> Record:
    """Make a fork that is there to be entered: as `run`, but that no command runs. Raises HostforkError.

    The request's command is only noted, and may be empty.
    """
    tell, caller = on_event or _ignore, caller or Caller.current()
    try:
        return _create(request, tell, caller)
    except UnfitError:
        # Remembered: the next plan says another mechanism, or that there is none.
        return _create(request, tell, caller)


def _ignore(_event: object) -> None:
    """Nobody wants to be told."""


def _create(request: Request, tell: Tell, caller: Caller) -> Record:
    helper = launch.take_helper()
    helper.late = lambda why: tell(events.Warned(why))
    try:
        cwd = caller.working_folder(request.cwd)
        plan = plan_run(request, cwd, helper)
        tell(events.Planned(plan))
        store = Store(state_folder())
        with LiveFork(plan, request, tell, Times()) as fork:
            fork.create(store)
            fork.prepare(cwd, helper)
            record = fork.rest()
        with contextlib.suppress(ForkError):  # a full disk; the fork is there
            audit.tell_all(store, record, (audit.created(record),))
        return record
    finally:
        helper.abandon()
