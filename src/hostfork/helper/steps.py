"""One helper, from the gate to the exec: the steps in their order, each named to the owner before it begins.

fds          standard descriptors are occupied, SIGCHLD is at its default
plan         the gate: the whole plan has arrived, the owner lives
namespaces   mount namespace, for an ordinary user inside a user namespace
idmap        the user's ids map to themselves
propagation  host mounts made later appear (slave), or not (private); ours never leave
view         detached trees are made and attached
verify       each path is what the plan says
privileges   capabilities are given up
enter        for a command in a kept fork, instead of those from `namespaces` to `verify`: it comes into its view
context      the working directory is entered by its path
exec         the keeper forks the command

A helper that holds a kept fork's view stops after `privileges`.
"""

from __future__ import annotations

import os
import sys

from hostfork.helper import context, keeper, privileges, syscalls, view
from hostfork.helper.lean import signal
from hostfork.helper.protocol import Channel, Failed, Step, ViewPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def serve(descriptor: int) -> None:
    """Try the namespaces, wait for a plan, carry it out, keep the view. Returns when the helper's work is done."""
    context.occupy_standard_descriptors()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channel = Channel(descriptor)
    try:
        channel.send(privileges.try_namespaces())
        plan = channel.receive()
    except OSError:
        return
    if not isinstance(plan, ViewPlan):
        return
    carry_out = _holding() if plan.holds else _carry_out
    _forget_import_paths()
    carry_out(plan, channel)


def _forget_import_paths() -> None:
    """From here on nothing can be imported: a module planted in a fork would run with the helper's capabilities."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()


def _carry_out(plan: ViewPlan, channel: Channel) -> None:
    steps = _Steps(channel)
    try:
        steps.begin("plan")
        owner = os.pidfd_open(plan.owner)
        journal, cgroup = channel.descriptors[0], channel.descriptors[1] if plan.cgroup else None
        meter = channel.descriptors[-1] if plan.meter else None
        tree = keeper.ProcessTree(cgroup)
        if plan.namespaces and plan.enters:
            steps.begin("enter")
            mount, user = channel.descriptors[1 + plan.cgroup :][:2]
            privileges.enter_namespaces(mount, None if plan.identity is None else user)
        elif plan.namespaces:
            _build(plan, steps)
        steps.begin("privileges")
        privileges.drop(plan.identity if plan.namespaces else None)
        steps.begin("context")
        context.enter(plan.context.cwd)
        steps.begin("exec")
        command = keeper.Command.start(plan.context, tree, channel)
    except OSError as error:
        sentence = error.strerror or str(error)
        steps.fail(error.errno or 0, os.fsdecode(error.filename or b""), sentence)
        return
    keeper.keep(command, tree, channel, owner, journal, plan.limit, meter)


def _holding() -> Callable[[ViewPlan, Channel], None]:
    """What only a holder needs is imported by it alone."""
    from hostfork.helper import holder

    return lambda plan, channel: _hold(plan, channel, holder.detach, holder.hold)


def _hold(plan: ViewPlan, channel: Channel, detach: Callable[[], None], hold: Callable[..., None]) -> None:
    steps = _Steps(channel)
    try:
        steps.begin("plan")
        detach()
        journal, *others = channel.descriptors
        tree = keeper.ProcessTree(others.pop(0)) if plan.cgroup else None
        lock, listener = others
        namespaces: tuple[int, ...] = ()
        if plan.namespaces:
            _build(plan, steps)
            namespaces = privileges.open_namespaces(plan.identity)
        steps.begin("privileges")
        privileges.drop(plan.identity if plan.namespaces else None)
        os.chdir("/")
    except OSError as error:
        steps.fail(error.errno or 0, os.fsdecode(error.filename or b""), error.strerror or str(error))
        return
    hold(channel, listener, (lock, *namespaces), tree, journal)


def _build(plan: ViewPlan, steps: _Steps) -> None:
    steps.begin("namespaces")
    privileges.make_namespaces(plan.identity)
    steps.begin("idmap")
    if plan.identity is not None:
        privileges.map_identity(plan.identity)
    steps.begin("propagation")
    syscalls.set_propagation("/", syscalls.MS_REC | (syscalls.MS_SLAVE if plan.slave else syscalls.MS_PRIVATE))
    steps.begin("view")
    trees = view.make_trees(plan.attaches)
    if plan.read_only_root:
        view.make_root_read_only()
    attached = view.attach_trees(plan.attaches, trees)
    steps.begin("verify")
    view.verify(attached)


class _Steps:
    """Tells the owner where the helper is, so that a failure or a death has a name."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._name = "fds"

    def begin(self, name: str) -> None:
        self._name = name
        self._channel.send(Step(name))

    def fail(self, number: int, path: str, sentence: str) -> None:
        try:
            self._channel.send(Failed(self._name, number, path, sentence))
        except OSError:
            return  # the owner is gone, and nothing was started
