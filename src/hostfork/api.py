"""hostfork for programs: plan, run, and what finished forks contain. The command line uses nothing else.

Nothing here prints, touches signals or exits. Every failure is a `HostforkError`. `run` can be called from any thread
of any program, any number at once: namespace work happens in a fresh helper process.

    outcome = run(Request(command=("make", "test"), rules=RuleOptions(private=("~/proj",))))
    if outcome.kept:
        for change in Fork.open(outcome.fork).diff().changes: ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hostfork.collect.changeset import Changeset
from hostfork.lifecycle.context import Caller
from hostfork.lifecycle.prepare import Tell
from hostfork.lifecycle.record import ForkProcess, Outcome, Reclaiming, Record, Recovered
from hostfork.lifecycle.request import ExportForm, Keep, Request
from hostfork.policy.plan import Plan
from hostfork.policy.rules import Policy, RuleOptions
from hostfork.workload.watch import SignalSource

__all__ = [
    "Applied", "Baseline", "Branched", "BrokenFork", "Caller", "Checkpoint", "Choice", "Collected", "Compared",
    "Detached", "Entry", "Expired", "ExportForm", "Fork", "ForkCommand", "ForkProcess", "Holder", "Keep",
    "KeepRules", "Log", "MadeBaseline", "MadeCheckpoint", "Meeting", "Origin", "OriginKind", "Outcome", "Overview",
    "Past", "Plan", "Policy", "PoolUse", "Receipt", "Reclaiming", "Record", "Recovered", "Request", "Restored",
    "RuleOptions", "SignalSource", "Stopped", "Undone", "VerifiedBaseline", "VerifiedCheckpoints", "apply",
    "approve", "baseline", "baseline_names", "baseline_stored", "baseline_usage", "baseline_users", "baselines",
    "branch", "checkpoint", "checkpoint_names", "checkpoints", "commit", "compared", "create", "create_baseline",
    "create_baseline_from", "discard_running", "enter", "enter_detached", "entries", "expired", "fork_names", "gc",
    "gc_in_background", "kept_bytes", "log_of", "logs", "meets", "opened", "plan", "policies", "policy",
    "policy_text", "read_log", "reclaiming", "recover", "refresh_baseline", "remove_baseline", "restore", "resume",
    "run", "run_detached", "seal", "settle_applies", "stop", "suspend", "undo", "unseal", "usage",
    "verifiable_baselines", "verify_baseline", "verify_checkpoints", "wait", "without_password",
]  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hostfork.apply.values import Applied, Choice, Undone
    from hostfork.baseline.catalog import Baseline, Origin
    from hostfork.baseline.git import without_password
    from hostfork.lifecycle.applying import apply
    from hostfork.lifecycle.audit import Entry, Log
    from hostfork.lifecycle.audit import logs_of as logs
    from hostfork.lifecycle.audit import read as read_log
    from hostfork.lifecycle.baselines import Made as MadeBaseline
    from hostfork.lifecycle.baselines import remove as remove_baseline
    from hostfork.lifecycle.branches import Branched, branch
    from hostfork.lifecycle.checkpoints import Made as MadeCheckpoint
    from hostfork.lifecycle.checkpoints import Verified as VerifiedCheckpoints
    from hostfork.lifecycle.committing import commit
    from hostfork.lifecycle.comparing import Compared
    from hostfork.lifecycle.config import KeepRules
    from hostfork.lifecycle.create import create
    from hostfork.lifecycle.decisions import approve, seal, unseal
    from hostfork.lifecycle.detached import Detached, enter_detached, run_detached
    from hostfork.lifecycle.enter import enter_by_name as enter
    from hostfork.lifecycle.entries import Entry as ForkCommand
    from hostfork.lifecycle.expired import Expired
    from hostfork.lifecycle.expiry import Collected
    from hostfork.lifecycle.fork import BrokenFork, Fork
    from hostfork.lifecycle.meeting import Meeting, meets
    from hostfork.lifecycle.moments import Checkpoint
    from hostfork.lifecycle.past import Past
    from hostfork.lifecycle.receipt import Receipt
    from hostfork.lifecycle.restoring import Restored
    from hostfork.lifecycle.settling import settle_applies
    from hostfork.lifecycle.stopping import Stopped, log_of, resume, stop, suspend, wait
    from hostfork.lifecycle.stopping import discard as discard_running
    from hostfork.lifecycle.undoing import undo
    from hostfork.lifecycle.usage import Holder, Overview, PoolUse
    from hostfork.lifecycle.verify import Verified as VerifiedBaseline
    from hostfork.lifecycle.verify import names as verifiable_baselines
    from hostfork.lifecycle.verify import verify as verify_baseline
    from hostfork.storage.contract import Usage
    from hostfork.vocabulary import OriginKind

    Tags = Sequence[tuple[str, str]]

_LATER = {
    "Applied": "apply.values", "Choice": "apply.values", "Undone": "apply.values",
    "apply": "lifecycle.applying", "undo": "lifecycle.undoing", "settle_applies": "lifecycle.settling",
    "Checkpoint": "lifecycle.moments", "MadeCheckpoint": "lifecycle.checkpoints:Made",
    "Restored": "lifecycle.restoring",
    "VerifiedCheckpoints": "lifecycle.checkpoints:Verified", "Past": "lifecycle.past",
    "Compared": "lifecycle.comparing",
    "Branched": "lifecycle.branches", "branch": "lifecycle.branches",
    "BrokenFork": "lifecycle.fork", "Fork": "lifecycle.fork", "Expired": "lifecycle.expired",
    "Collected": "lifecycle.expiry", "KeepRules": "lifecycle.config", "Holder": "lifecycle.usage",
    "Overview": "lifecycle.usage", "PoolUse": "lifecycle.usage", "Baseline": "baseline.catalog",
    "Origin": "baseline.catalog", "OriginKind": "vocabulary", "MadeBaseline": "lifecycle.baselines:Made",
    "VerifiedBaseline": "lifecycle.verify:Verified", "Entry": "lifecycle.audit", "Log": "lifecycle.audit",
    "Meeting": "lifecycle.meeting", "Receipt": "lifecycle.receipt", "approve": "lifecycle.decisions",
    "commit": "lifecycle.committing",
    "logs": "lifecycle.audit:logs_of", "meets": "lifecycle.meeting", "read_log": "lifecycle.audit:read",
    "seal": "lifecycle.decisions", "unseal": "lifecycle.decisions",
    "without_password": "baseline.git", "remove_baseline": "lifecycle.baselines:remove",
    "verifiable_baselines": "lifecycle.verify:names", "verify_baseline": "lifecycle.verify:verify",
    "create": "lifecycle.create", "enter": "lifecycle.enter:enter_by_name",
    "Detached": "lifecycle.detached", "ForkCommand": "lifecycle.entries:Entry", "Stopped": "lifecycle.stopping",
    "discard_running": "lifecycle.stopping:discard", "enter_detached": "lifecycle.detached", "log_of":
    "lifecycle.stopping", "resume": "lifecycle.stopping", "run_detached": "lifecycle.detached",
    "stop": "lifecycle.stopping", "suspend": "lifecycle.stopping", "wait": "lifecycle.stopping",
}  # fmt: skip
"""The module of each, and its name there where that is another."""


def __getattr__(name: str) -> object:
    """What finished forks need is imported when it is asked for: a run does not pay for it."""
    module, _, inner = _LATER.get(name, "").partition(":")
    if module:
        from importlib import import_module

        return getattr(import_module(f"hostfork.{module}"), inner or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run(
    request: Request,
    *,
    on_event: Tell | None = None,
    caller: Caller | None = None,
    signals: SignalSource | None = None,
) -> Outcome:
    """Run one command in a fork of its own and say how it went. `on_event` is told of each step, in this thread.

    Raises HostforkError; then nothing was started, or the changes are kept and the error says under which name.
    Only the command line gives `caller` and `signals`.
    """
    from hostfork.lifecycle.run import run as run_fork

    return run_fork(request, on_event or _ignore, caller or Caller.current(), signals)


def plan(request: Request) -> Plan:
    """What `run` would do with this request. Changes nothing. Raises HostforkError as `run` would."""
    from hostfork.lifecycle.run import plan_run
    from hostfork.workload.launch import take_helper

    helper = take_helper()
    try:
        return plan_run(request, Caller.current().working_folder(request.cwd), helper)
    finally:
        helper.abandon()


def recover(on_progress: Callable[[str, int], None] | None = None) -> tuple[Recovered, ...]:
    """Put right what crashes left: end, keep what changed, give back the rest.

    `on_progress` is told while storage is erased: whose it was, and how many files and folders went so far.
    """
    from hostfork.lifecycle.recover import recover as recover_all
    from hostfork.lifecycle.store import Store, state_folder

    return recover_all(Store(state_folder()), on_progress)


def reclaiming() -> tuple[Reclaiming, ...]:
    """What forks that are off the list held and that is not erased yet: a process of its own is at it, or nobody."""
    from hostfork.lifecycle.pools import reclaiming as waiting
    from hostfork.lifecycle.store import Store, state_folder

    return waiting(Store(state_folder()))


def usage() -> Overview:
    """What everything that is kept takes, pool by pool, and how long it is kept. Looks at all of it.

    Raises PolicyError `config.invalid`.
    """
    from hostfork.lifecycle.config import config_file, keep_rules
    from hostfork.lifecycle.store import Store, state_folder
    from hostfork.lifecycle.usage import overview

    return overview(Store(state_folder()), keep_rules(config_file()))


def gc(*, dry_run: bool = False) -> Collected:
    """Let kept forks go that have expired, and say which; `dry_run`: only say. Raises PolicyError `config.invalid`.

    Runs begin it in the background, at most once an hour.
    """
    from hostfork.lifecycle.config import config_file, keep_rules
    from hostfork.lifecycle.expiry import gc as collect
    from hostfork.lifecycle.store import Store, state_folder

    return collect(Store(state_folder()), keep_rules(config_file()), dry_run=dry_run)


def gc_in_background() -> None:
    """Begin `gc` in the background, if it began more than an hour ago. Nothing is raised, and nobody waits."""
    from hostfork.lifecycle.store import Store, state_folder

    store = Store(state_folder())
    if store.expiry_is_due():
        from hostfork.lifecycle.expirer import start

        start(store)


def expired() -> tuple[Expired, ...]:
    """The forks that expired, the last first, as far as the list of them goes back."""
    from hostfork.lifecycle.expired import expired as read
    from hostfork.lifecycle.store import Store, state_folder

    return read(Store(state_folder()))


def kept_bytes() -> tuple[int, int]:
    """How many forks are kept and what they take together, as their runs measured it. Nothing is walked."""
    from hostfork.lifecycle.store import Store, state_folder
    from hostfork.lifecycle.uses import total_known

    return total_known(Store(state_folder()))


def checkpoint(name: str, message: str = "") -> MadeCheckpoint:
    """Make a checkpoint of a fork, running or not; it is on disk when this returns. Where nothing changed it is the
    one that there is. Raises CheckpointError, ForkError, CollectError, StorageError; then there is none."""
    from hostfork.lifecycle.checkpoints import make
    from hostfork.lifecycle.store import Store, state_folder

    store = Store(state_folder())
    with store.find(name) as fork:
        return make(store, fork, message)


def checkpoints(name: str) -> tuple[Checkpoint, ...]:
    """The checkpoints of a fork, the oldest first. Raises ForkError."""
    from hostfork.lifecycle.moments import read
    from hostfork.lifecycle.store import Store, state_folder

    with Store(state_folder()).find(name) as fork:
        return read(fork)


def opened(words: str) -> AbstractContextManager[Fork | Past]:
    """What is to be looked at: a fork by its name, or a checkpoint as `FORK@ID` or by its id alone. Beginnings are
    enough. Raises ForkError, CheckpointError."""
    from contextlib import nullcontext

    from hostfork.lifecycle.fork import Fork
    from hostfork.lifecycle.moments import is_one
    from hostfork.lifecycle.past import Past
    from hostfork.lifecycle.store import Store, state_folder

    store = Store(state_folder())
    return Past(store, words) if is_one(store, words) else nullcontext(Fork.open(words))


def compared(one: str, other: str) -> Compared:
    """Two moments, each `FORK@base`, `FORK@host`, `FORK@now` or `FORK@ID`; to be used as a context. Raises
    HostforkError."""
    from hostfork.lifecycle.comparing import Compared
    from hostfork.lifecycle.store import Store, state_folder

    return Compared(Store(state_folder()), one, other)


def verify_checkpoints(name: str | None = None) -> VerifiedCheckpoints:
    """Read all that the checkpoints of a fork, or of all forks, are made of, and say what is damaged or missing."""
    from hostfork.lifecycle.checkpoints import verify
    from hostfork.lifecycle.store import Store, state_folder

    return verify(Store(state_folder()), name)


def checkpoint_names() -> tuple[tuple[str, str, str], ...]:
    """Every checkpoint: fork, id, message. Damaged lists are passed over."""
    from hostfork.lifecycle.moments import listed
    from hostfork.lifecycle.store import Store, state_folder

    store = Store(state_folder())
    return tuple((one.fork, one.id, one.message) for name in store.names() for one in listed(store, name))


def restore(name: str, checkpoint: str) -> Restored:
    """Make an idle fork what it was at one of its checkpoints; what it held becomes one first. Raises HostforkError."""
    from hostfork.lifecycle.restoring import restore as restore_fork
    from hostfork.lifecycle.store import Store, state_folder

    store = Store(state_folder())
    with store.find(name) as fork:
        return restore_fork(store, fork, checkpoint)


def fork_names() -> tuple[str, ...]:
    """The names of all forks, in order; none is opened. Raises ForkError `fork.state`."""
    from hostfork.lifecycle.store import Store, state_folder

    return Store(state_folder()).names()


def baseline_names() -> tuple[str, ...]:
    """The names of all baselines, in order."""
    from hostfork.baseline.catalog import Catalog
    from hostfork.lifecycle.store import state_folder

    return Catalog(state_folder()).names()


def baselines() -> tuple[Baseline, ...]:
    """All baselines that have a name, in order. Raises BaselineError `baseline.corrupt`."""
    from hostfork.lifecycle.baselines import catalog

    return tuple(map(catalog().load, catalog().names()))


def baseline(name: str) -> Baseline:
    """One by its name or unique beginning. Raises BaselineError."""
    from hostfork.lifecycle.baselines import catalog

    return catalog().find(name)


def create_baseline(
    name: str,
    paths: Sequence[str],
    pool: str | None = None,
    on_progress: Callable[[str, int, int, int | None, int | None], None] | None = None,
) -> MadeBaseline:
    """Keep folders as they are now. `on_progress`: the path, files and bytes done, and of how many where it is known.

    Raises BaselineError `baseline.name-taken`, PolicyError, StorageError; then nothing is left.
    """
    from hostfork.lifecycle.baselines import create

    return create(name, paths, pool, on_progress)


def create_baseline_from(
    name: str,
    origin: Origin,
    at: str | None = None,
    pool: str | None = None,
    on_progress: Callable[[str, int, int, int | None, int | None], None] | None = None,
) -> MadeBaseline:
    """Keep a checkout of a git repository, what an archive holds, or what a fork holds at last.

    `at`: where forks have it; without it a local repository's own place, a fork's own paths, and for the others none.
    Raises as `create_baseline`, and BaselineError `baseline.origin`, ForkError.
    """
    from hostfork.lifecycle.origins import create

    return create(name, origin, at, pool, on_progress)


def refresh_baseline(
    name: str, on_progress: Callable[[str, int, int, int | None, int | None], None] | None = None
) -> MadeBaseline:
    """Bring a baseline up to date with its folders. Raises BaselineError, StorageError; then it is as it was."""
    from hostfork.lifecycle.baselines import refresh

    return refresh(name, on_progress)


def baseline_users(one: Baseline) -> tuple[str, ...]:
    """The names of the forks that lie over it."""
    from hostfork.lifecycle.baselines import users

    return users(one)


def baseline_usage(one: Baseline) -> Usage:
    """What it takes, by a walk."""
    from hostfork.lifecycle.baselines import usage as taken

    return taken(one)


def baseline_stored(one: Baseline) -> tuple[str | None, ...]:
    """How each of its trees was taken at last: `snapshot`, `reflink`, `copy`; None where it is gone."""
    from hostfork.lifecycle.baselines import stored

    return tuple(None if how is None else how.value for how in stored(one))


def policies() -> tuple[str, ...]:
    """The names of the policies that come with hostfork."""
    from hostfork.policy.load import shipped

    return shipped()


def policy(name: str) -> Policy:
    """A policy by its shipped name or file, without options. Raises PolicyError."""
    import os

    from hostfork.lifecycle.store import home_folder
    from hostfork.policy.load import read

    return read(name, os.getcwd(), home_folder())


def policy_text(name: str, *, resolved: bool = False) -> str:
    """A policy's file as it stands; `resolved`: as TOML in which nothing is left to expand. Raises PolicyError."""
    import os

    from hostfork.lifecycle.store import home_folder
    from hostfork.policy.load import describe, dump

    return dump(policy(name)) if resolved else describe(name, os.getcwd(), home_folder()).text


def entries(changeset: Changeset) -> list[dict[str, object]]:
    """The `entries` of `diff --json` (docs/json.md)."""
    from hostfork.collect.store import to_json

    return to_json(changeset)


def _ignore(_event: object) -> None:
    """Nobody wants to be told."""
