"""Starts the helper, hands it the plan, and knows when the command exists.

The helper is an executable file of its own, spawned before anything heavy is imported; it waits at the gate. All
signals are blocked in it from the start, so that a Ctrl-C cannot end it half way.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable

from hostfork.errors import Code, CommandError, HostforkError, ViewError, WorkloadError
from hostfork.helper.protocol import (
    CGROUP_ENTRY,
    Channel,
    Executed,
    Failed,
    Finish,
    Held,
    Message,
    Ready,
    Started,
    Step,
    ViewPlan,
)
from hostfork.values import frozen, replace
from hostfork.workload import spawn
from hostfork.workload.identity import ProcessIdentity, identify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.workload.cgroup import Place
    from hostfork.workload.scope import ScopeRequest


@frozen
class Launched:
    """The command runs. `mount_namespace` is the inode of the namespace that it started in."""

    pid: int
    start_time: int
    mount_namespace: int


def _nothing() -> None:
    """No work to do while the helper is at it."""


class Helper:
    """One helper process, from the trial of namespaces to the end of its view. Not for threads."""

    def __init__(self, pid: int, channel: Channel) -> None:
        self.pid = pid
        self.channel = channel
        self.step = "fds"
        self._ready: Ready | None = None
        self._place: Place | None = None
        self._scope: ScopeRequest | None = None
        self._reaped = False
        self.late: Callable[[str], None] | None = None
        """Told why it takes longer than a person expects."""

    @classmethod
    def spawn(cls, *, apart: bool = False) -> Helper:
        """Start it with an explicit environment; a scope for it may be on its way. Raises ViewError `view.helper`.

        `apart`: in one of its own also where the caller's would do, for it is not to end with what that is for.
        """
        if not sys.executable:
            raise ViewError(Code.VIEW_HELPER, "this program does not know its Python interpreter")
        try:
            pid, channel = spawn.spawn()
        except OSError as error:
            path = spawn.helper_path()
            raise ViewError(
                Code.VIEW_HELPER, f"{path} cannot be started", path=path, errno=error.errno, hint="hostfork doctor"
            ) from error
        return cls.of(pid, channel, apart)

    @classmethod
    def of(cls, pid: int, channel: int, apart: bool = False) -> Helper:
        """A helper that was just started, by its pid and our end of the channel."""
        helper = cls(pid, Channel(channel))
        try:
            helper._ask_for_scope(apart)
        except BaseException:
            helper.abandon()
            raise
        return helper

    def _ask_for_scope(self, apart: bool) -> None:
        """An ordinary user whose own cgroup is root's asks their systemd manager, where one runs."""
        if os.geteuid() == 0 and not apart:
            return
        from hostfork.workload.scope import ScopeRequest, manager_socket

        manager = manager_socket()
        if manager is None:
            return
        from hostfork.workload.cgroup import find_place

        self._place = find_place()
        if self._place.parent is None or apart:
            self._scope = ScopeRequest(manager, self.pid)

    def place(self) -> Place:
        """Where the fork's own group can be made: in the caller's own group, else in the scope around the helper."""
        from hostfork.workload.cgroup import find_place

        if self._place is None:
            self._place = find_place()
            if self._place.parent is None and os.path.isdir("/run/systemd/system"):
                self._place = replace(
                    self._place, reason=f"{self._place.reason}, and no systemd manager of theirs runs"
                )
        if self._scope is not None:
            self._place = _in_scope(self.pid, self._scope, self._place, self.late)
            self._scope = None
        return self._place

    def come_near(self, group: str) -> None:
        """Be where children can be put into that group: what it and the helper's have in common must be this user's.

        Where it is not, a scope of the systemd manager that made the group's does, if there is one; nothing is raised.
        """
        if self._scope is not None:
            self.place()
        if os.geteuid() == 0:
            return
        from hostfork.workload.cgroup import own_folder
        from hostfork.workload.scope import ScopeRequest, manager_socket

        own, manager = own_folder(self.pid), manager_socket()
        if own is None or manager is None or os.access(f"{os.path.commonpath((own, group))}/cgroup.procs", os.W_OK):
            return
        scope = ScopeRequest(manager, self.pid)
        scope.wait(self.late)
        scope.close()

    def identity(self) -> ProcessIdentity | None:
        """Who it is; None where it died and a caller that ignores SIGCHLD let the kernel reap it."""
        try:
            return identify(self.pid)
        except ProcessLookupError:
            return None

    def ready(self) -> Ready:
        """What its trial of namespaces gave. Raises ViewError `view.helper` where it died."""
        if self._ready is None:
            message = self.channel.receive()
            if not isinstance(message, Ready):
                raise self._died()
            self._ready = message
        return self._ready

    def start(
        self,
        plan: ViewPlan,
        journal: int,
        cgroup: int | None,
        meanwhile: Callable[[], None] = _nothing,
        meter: int | None = None,
        entry: tuple[int, ...] = (),
    ) -> Launched:
        """Send the plan through the gate; returns when the command exists, before it is known to have exec'd.

        `meanwhile` is called while the helper builds the view. `meter`: a pidfd, where the plan says so. `entry`: what
        a plan that enters a view needs.
        Raises ViewError where a step failed: the command was not started and the helper is gone.
        """
        self.ready()
        try:
            given = (descriptor for descriptor in (journal, cgroup, *entry, meter) if descriptor is not None)
            self.channel.send(plan, tuple(given))
        except OSError as error:
            raise self._died() from error
        meanwhile()
        message = self._after_steps()
        if not isinstance(message, Started):
            raise self._died()
        return Launched(*message)

    def hold(self, plan: ViewPlan, journal: int, cgroup: int | None, lock: int, listener: int) -> tuple[Held, Channel]:
        """Send a plan that holds a view; when it stands, the channel is the caller's place in it.

        The helper is nobody's child from then on. Raises ViewError where a step failed: then it is gone.
        """
        self.ready()
        try:
            given = (descriptor for descriptor in (journal, cgroup, lock, listener) if descriptor is not None)
            self.channel.send(plan, tuple(given))
        except OSError as error:
            raise self._died() from error
        message = self._after_steps()
        if not isinstance(message, Held):
            raise self._died()
        channel, self.channel = self.channel, Channel.none()
        self.reap()
        return message, channel

    def _after_steps(self) -> Message | None:
        """The first message that is no step. Raises ViewError or CommandError where one failed."""
        while isinstance(message := self.channel.receive(), Step):
            self.step = message.name
        if isinstance(message, Failed):
            self.reap()
            raise _failure(message)
        return message

    def wait_executed(self, command: str) -> None:
        """Wait for the exec. Raises CommandError 127 or 126 where it failed."""
        message = self.channel.receive()
        if not isinstance(message, Executed):
            raise keeper_died()
        if message.errno:
            raise _not_executed(command, message.errno)

    def finish(self) -> None:
        """Let the keeper close the view and exit, and wait for it. No error where it is gone already."""
        self.let_go()
        self.reap()

    def let_go(self) -> None:
        """Let the keeper close the view and exit; other work can go on meanwhile."""
        with contextlib.suppress(OSError):  # it died, or was let go; what it held is gone with it
            self.channel.send(Finish())

    def abandon(self) -> None:
        """Close the gate: a helper without a plan exits and has started nothing."""
        self.reap()

    def reap(self) -> None:
        """Close the channel and wait for the process."""
        if self._reaped:
            return
        self._reaped = True
        self.channel.close()
        if self._scope is not None:
            self._scope.close()
        try:
            _pid, status = os.waitpid(self.pid, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                import signal

                os.kill(self.pid, signal.SIGKILL)  # it has nothing left to do, and would never end
                os.waitpid(self.pid, 0)
        except ChildProcessError:
            return  # the caller ignores SIGCHLD: the kernel reaped it

    def _died(self) -> ViewError:
        self.reap()
        return ViewError(
            Code.VIEW_HELPER,
            f"the helper died in step {self.step}",
            step=self.step,
            path=spawn.helper_path(),
            hint="hostfork doctor",
        )


def _in_scope(pid: int, scope: ScopeRequest, own: Place, late: Callable[[str], None] | None) -> Place:
    """The place in the scope; where there is none, the reason that is known for `own` and why."""
    from hostfork.workload.cgroup import find_place

    why = scope.wait(late)
    if not why:
        try:
            found = find_place(pid)
        except OSError:
            return replace(own, reason=f"{own.reason}, and the helper is gone")
        if found.parent is not None and found.parent.endswith(f"/{scope.unit}"):
            return replace(found, reason="a scope of this user's systemd manager", scope=True)
        why = f"the scope {scope.unit} cannot be used: {found.reason}"
    return replace(own, reason=f"{own.reason}, and {why}")


_prestarted: Helper | None = None


def keep_prestarted(pid: int, channel: int) -> None:
    """Keep a helper that was started in advance for the run to come.

    Where that fails the run will try again and say why.
    """
    global _prestarted
    with contextlib.suppress(ViewError, OSError):
        _prestarted = Helper.of(pid, channel)


def take_helper() -> Helper:
    """The helper that was started in advance, else a fresh one."""
    global _prestarted
    helper, _prestarted = _prestarted, None
    return helper or Helper.spawn()


def abandon_prestarted() -> None:
    """Let a helper go that no run took."""
    global _prestarted
    helper, _prestarted = _prestarted, None
    if helper is not None:
        helper.abandon()


def keeper_died() -> WorkloadError:
    """The error of a keeper that is gone before its command's end was told."""
    return WorkloadError(
        Code.WORKLOAD_KEEPER,
        "the keeper died while the command was running",
        details=("the process tree was ended; how the command would have ended is not known",),
    )


def _failure(failed: Failed) -> HostforkError:
    if failed.step == "context":
        return CommandError(
            Code.COMMAND_CONTEXT,
            f"{failed.path} cannot be entered in the fork",
            step=failed.step,
            path=failed.path,
            errno=failed.errno,
            details=(failed.sentence,),
            hint="--cwd DIR names another working directory",
        )
    if failed.path == CGROUP_ENTRY:
        return WorkloadError(
            Code.WORKLOAD_CGROUP,
            failed.sentence,
            step="cgroup",
            errno=failed.errno,
            hint="a fork's cgroup lies where its first command began: enter it from there · hostfork doctor",
        )
    code = Code.VIEW_VERIFY if failed.step == "verify" and not failed.errno else Code.VIEW_FAILED
    where = f" at {failed.path}" if failed.path else ""
    return ViewError(
        code,
        f"the view could not be built: step {failed.step}{where}",
        step=failed.step,
        path=failed.path or None,
        errno=failed.errno or None,
        details=(failed.sentence,),
        hint="hostfork doctor",
    )


def _not_executed(command: str, number: int) -> CommandError:
    if number in (errno.ENOENT, errno.ENOTDIR):
        return CommandError(Code.COMMAND_NOT_FOUND, f"{command} does not exist in the fork", step="exec", errno=number)
    return CommandError(
        Code.COMMAND_NOT_EXECUTABLE, f"{command} cannot be executed", step="exec", errno=number, path=command
    )
