"""Every error of hostfork: one table of codes, one tree of exceptions.

An error says what failed and where (`step`, `path`, `place`, `errno`), why (`details`), and what helps (`hint`).
The message is a sentence; the command line prints it as it is. The kernel's error stays as the cause.
"""

from __future__ import annotations

import os
from enum import Enum, unique


@unique
class Code(Enum):
    """The stable name of an error (first value) and what it means (second value)."""

    def __init__(self, text: str, meaning: str) -> None:
        self.text = text
        self.meaning = meaning

    # what was asked
    POLICY_USAGE = ("policy.usage", "an option or argument does not make sense")
    POLICY_NOT_FOUND = ("policy.not-found", "there is no policy of that name or file")
    POLICY_SYNTAX = ("policy.syntax", "the policy file is not valid TOML")
    POLICY_UNKNOWN_KEY = ("policy.unknown-key", "the policy file has a key that hostfork does not know")
    POLICY_BAD_VALUE = ("policy.bad-value", "a value in the policy has the wrong type or is out of range")
    POLICY_BAD_PATH = ("policy.bad-path", "a rule names a path that cannot be used")
    POLICY_CONFLICT = ("policy.conflict", "two rules contradict each other")
    POLICY_NOTHING_PRIVATE = ("policy.nothing-private", "no rule gives the command anything of its own")
    POLICY_REQUIRE = ("policy.require", "this host cannot keep a promise that was demanded")
    CONFIG_INVALID = ("config.invalid", "the configuration file cannot be used as it is")
    # what the host offers
    HOST_NAMESPACES = ("host.namespaces", "this host does not let this user make the namespaces that a view needs")
    HOST_MISSING = ("host.missing", "the kernel or host lacks something that is needed")
    HOST_QUIESCE = ("host.quiesce", "what should hold the host's writers still did not work")
    # storage
    STORAGE_UNSUPPORTED = ("storage.unsupported", "the mechanism that was asked for cannot be had for this path")
    STORAGE_SOURCE = ("storage.source", "the source of a private path cannot be read")
    STORAGE_UNSTABLE = ("storage.unstable", "files kept changing while they were copied")
    STORAGE_NO_SPACE = ("storage.no-space", "the pool has no room for the private copy")
    STORAGE_LIMIT = ("storage.limit", "the fork takes more storage than it may")
    STORAGE_POOL = ("storage.pool", "the pool folder cannot be used")
    STORAGE_EXISTS = ("storage.exists", "private storage of that key is already there")
    STORAGE_BUSY = ("storage.busy", "private storage is in use")
    STORAGE_FAILED = ("storage.failed", "the kernel refused a step of making or removing private storage")
    # the view
    VIEW_FAILED = ("view.failed", "the kernel refused a step of building the view")
    VIEW_VERIFY = ("view.verify", "the view does not hold what the plan says")
    VIEW_HELPER = ("view.helper", "the helper that builds the view did not start or died")
    # the command
    COMMAND_NOT_FOUND = ("command.not-found", "the command does not exist")
    COMMAND_NOT_EXECUTABLE = ("command.not-executable", "the command cannot be executed")
    COMMAND_SET_UID = ("command.set-uid", "the command needs privileges that a user's fork cannot give")
    COMMAND_CONTEXT = ("command.context", "the working directory or a descriptor cannot be given to the command")
    # the process tree
    WORKLOAD_CGROUP = ("workload.cgroup", "the process tree cannot be owned by a cgroup")
    WORKLOAD_KEEPER = ("workload.keeper", "the keeper died while the command was running")
    WORKLOAD_SURVIVORS = ("workload.survivors", "processes of the fork could not be ended")
    WORKLOAD_METER = ("workload.meter", "what holds a fork to its storage limit did not start or ended")
    WORKLOAD_TIMEOUT = ("workload.timeout", "the command ran longer than its time limit")
    WORKLOAD_INTERRUPTED = ("workload.interrupted", "hostfork was interrupted before the command started")
    # what a fork contains
    COLLECT_FAILED = ("collect.failed", "the content of a fork could not be read")
    COLLECT_BASE_GONE = ("base.gone", "the base's content of a path is no longer there")
    COLLECT_DESTINATION = ("collect.destination", "the destination of an export cannot be used")
    # forks
    FORK_NOT_FOUND = ("fork.not-found", "there is no fork of that name")
    FORK_AMBIGUOUS = ("fork.ambiguous", "more than one fork's name starts like that")
    FORK_NAME_TAKEN = ("fork.name-taken", "another fork has that name")
    FORK_BAD_NAME = ("fork.bad-name", "the name cannot be used for a fork")
    FORK_BUSY = ("fork.busy", "the fork is in use")
    FORK_CORRUPT = ("fork.corrupt", "the fork's record cannot be read")
    FORK_LOST = ("fork.lost", "the fork's storage is gone")
    FORK_STATE = ("fork.state", "the state folder cannot be used")
    FORK_APPROVAL = ("fork.approval", "the changes of the fork are not approved")
    FORK_INSIDE = ("fork.inside", "the verb works only outside of forks")
    FORK_DECIDED = ("fork.decided", "what was decided about the fork forbids that")
    FORK_CONFIRM = ("fork.confirm", "something would be lost and nobody confirmed it")
    # baselines
    BASELINE_NOT_FOUND = ("baseline.not-found", "there is no baseline of that name")
    BASELINE_NAME_TAKEN = ("baseline.name-taken", "there is a baseline of that name already")
    BASELINE_IN_USE = ("baseline.in-use", "forks lie over the baseline")
    BASELINE_CORRUPT = ("baseline.corrupt", "the record of a baseline cannot be read")
    BASELINE_LOST = ("baseline.lost", "the storage of a baseline is gone")
    BASELINE_DAMAGED = ("baseline.damaged", "a baseline does not hold what it held when it was made")
    BASELINE_ORIGIN = ("baseline.origin", "what a baseline is made of cannot be had")
    # checkpoints
    CHECKPOINT_NOT_FOUND = ("checkpoint.not-found", "there is no checkpoint of that id")
    CHECKPOINT_AMBIGUOUS = ("checkpoint.ambiguous", "more than one checkpoint's id starts like that")
    CHECKPOINT_BUSY = ("checkpoint.busy", "what a fork holds did not stand still for a checkpoint")
    CHECKPOINT_DAMAGED = ("checkpoint.damaged", "a checkpoint does not hold what it held when it was made")
    CHECKPOINT_NO_SPACE = ("checkpoint.no-space", "the pool has no room for the checkpoint")
    CHECKPOINT_FAILED = ("checkpoint.failed", "the kernel refused a step of making or restoring a checkpoint")
    # applying
    APPLY_BLOCKED = ("apply.blocked", "something of the host cannot be replaced")
    APPLY_FAILED = ("apply.failed", "the kernel refused a step of applying or undoing; all was put back")
    APPLY_STUCK = ("apply.stuck", "an apply that was broken off could not be put back whole yet")
    APPLY_COMMIT = ("apply.commit", "a commit of a fork's content cannot be made")
    APPLY_NOT_FOUND = ("apply.not-found", "there is nothing to undo of that name")
    # hostfork itself
    INTERNAL_FAULT = ("internal.fault", "hostfork met something that it does not handle")


class HostforkError(Exception):
    """A failure of hostfork, never of the command that it runs.

    Arguments: `code` from the table; `message`, one sentence without a full stop, paths as the user wrote them;
    `path` the place in a filesystem; `place` the option or file and key; `step` the named step that failed;
    `errno` the kernel's number; `details` further lines that say why; `hint` what helps, usually a command.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        path: str | None = None,
        place: str | None = None,
        step: str | None = None,
        errno: int | None = None,
        details: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.place = place
        self.step = step
        self.errno = errno
        self.details = details
        self.hint = hint

    @property
    def exit_status(self) -> int:
        """The status with which `run` ends: 127 and 126 as env(1), 124 for a time limit, else 125."""
        return _EXIT_STATUS.get(self.code, 125)

    def reason(self) -> str:
        """The kernel's words for `errno`, or nothing."""
        return "" if self.errno is None else os.strerror(self.errno)


_EXIT_STATUS = {
    Code.COMMAND_NOT_FOUND: 127,
    Code.COMMAND_NOT_EXECUTABLE: 126,
    Code.WORKLOAD_TIMEOUT: 124,
}


class PolicyError(HostforkError):
    """What was asked cannot be done as asked. Nothing was made."""


class HostError(HostforkError):
    """This host lacks something. Nothing was made."""


class StorageError(HostforkError):
    """Private storage could not be made, measured or removed."""


class UnfitError(StorageError):
    """A source holds what the planned mechanism cannot show, as taking it told. It is remembered: plan again."""


class ViewError(HostforkError):
    """The view could not be built or is not what was planned. The command was not started."""


class CommandError(HostforkError):
    """The command could not be started."""


class WorkloadError(HostforkError):
    """The process tree could not be owned, watched or ended."""


class CollectError(HostforkError):
    """The content of a fork could not be read or exported."""


class ForkError(HostforkError):
    """A fork could not be found, locked, recorded or released."""


class BaselineError(HostforkError):
    """A baseline could not be found, made, read or removed."""


class CheckpointError(HostforkError):
    """A checkpoint could not be found, made, read or restored."""


class ApplyError(HostforkError):
    """Changes could not be applied to the host, or taken back. Unless it says otherwise the host is as it was."""
