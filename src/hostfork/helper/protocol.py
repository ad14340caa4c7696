"""What owner and helper say to each other: one JSON object a line over a Unix stream socket, typed on both sides.

    helper -> owner   Ready         the helper is there; what a trial of namespaces gave
    owner  -> helper  ViewPlan      the gate: everything to do; descriptors attached: the journal, the cgroup's folder,
                                    what a plan that `holds` or `enters` says, a pidfd of the meter
    helper -> owner   Step          a named step begins (only the first of its kind)
    helper -> owner   Failed        a step failed; the command was not started; the helper exits
    helper -> owner   Started       the command exists: pid, start time, mount namespace
    helper -> owner   Executed      the exec happened (told by a close-on-exec pipe) or the errno why it did not
    helper -> owner   Stopped       the command was stopped by a signal
    helper -> owner   TimedOut      the time limit is reached: SIGTERM now, and after a grace the tree is killed
    helper -> owner   MeterEnded    what measures the fork's storage ended, at the limit or not: the tree is killed
    helper -> owner   Exited        the command ended: exit status or signal
    owner  -> helper  Signal        send this signal to the command (the keeper is its parent: the pid cannot be reused)
    owner  -> helper  Follow        the owner stops as the command did: SIGCONT to it when the command goes on or ends
    owner  -> helper  End           subreaper only: end every descendant (with a cgroup the owner does that itself)
    helper -> owner   Ended         no descendant is left
    owner  -> helper  Finish        close the view and exit

A helper whose plan `holds` builds the view of a kept fork and then has many clients: who started it, and those that
connect to its socket. Each keeps its connection for as long as it is in the fork.

    holder -> client  Held          the view stands; descriptors attached: the fork's locked folder, the mount
                                    namespace, for an ordinary user the user namespace
    client -> holder  Leave         nothing of this client's is left
    holder -> client  Left          whether it was the last one: then nobody is let in any more, and after what is left
                                    to do it says Finish

End of file without a whole plan means: exit, nothing was started. NamedTuples, not dataclasses: the helper's imports
are felt in every run. Paths are `str` with surrogateescape, so that JSON carries every byte.
"""

from __future__ import annotations

import sys

from hostfork.helper.lean import dumps, loads
from hostfork.helper.shapes import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
CGROUP_ENTRY = "cgroup.procs"
"""The path of a failure to enter the fork's cgroup: the file whose permission counts for that (cgroups(7))."""
GRACE = 2.0
"""Seconds between SIGTERM at the time limit and the end of the tree."""


class Bind(NamedTuple):
    """A clone, without what is mounted beneath, of a folder or file."""

    source: str


class Overlay(NamedTuple):
    """An overlay; `lowers` from the top down. Given to the kernel as descriptors: no length limit, no escaping.

    `mark` stands behind the name of its key in the mount table.
    """

    lowers: tuple[str, ...]
    upper: str
    work: str
    volatile: bool
    mark: str = ""


class Tmpfs(NamedTuple):
    """A fresh tmpfs; `size` in bytes, 0 for the kernel's default; `mode` of its root."""

    size: int
    mode: int


class Keep(NamedTuple):
    """A recursive clone of what the host has at this path, taken before anything is covered."""

    source: str


Tree = Bind | Overlay | Tmpfs | Keep


class StandIn(NamedTuple):
    """A mount point to make inside a fresh tmpfs: relative path, folder or file, mode. Parents come first."""

    path: str
    folder: bool
    mode: int


class Attach(NamedTuple):
    """Attach `tree` at `target` (resolved, no symlink in it). In the order of the plan, outer paths first.

    `same` says what verify must find there: the host's own inode `device`:`inode` (endpoints, shared paths), or, when
    false, anything but that inode. Inode 0: nothing to verify. `optional`: it is left out where nothing is there any
    more to attach it to: commands in a kept fork may have removed or moved that.
    """

    target: str
    tree: Tree
    read_only: bool
    same: bool
    device: int
    inode: int
    stand_ins: tuple[StandIn, ...] = ()
    optional: bool = False


class Identity(NamedTuple):
    """The caller's uid and gid, mapped to themselves in the user namespace of an ordinary user."""

    uid: int
    gid: int


class Context(NamedTuple):
    """What the command gets: argv and environment byte for byte; descriptors above 2 that stay open."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    cwd: str
    umask: int
    blocked: tuple[int, ...]
    ignored: tuple[int, ...]
    descriptors: tuple[int, ...]


class ViewPlan(NamedTuple):
    """Everything the helper does. It decides nothing itself.

    `namespaces` false is the relocated mode: no view, only the context. `identity` is None for root. `slave`: host
    mounts made later appear; else the view is private. `cgroup`: the second descriptor is the fork's cgroup, else
    the keeper is the subreaper. `limit`: seconds that the command may run, 0 for ever; the keeper has the clock, for
    the owner may be stopped. `meter`: the last descriptor is a pidfd, and when that process ends, so does the tree.

    `holds`: no command; behind the cgroup come the fork's locked folder and a listening socket. `enters`: the view is
    there; behind the cgroup come its namespaces, mount and user, and what is only to stay open: lock and connection.
    """

    schema: int
    namespaces: bool
    identity: Identity | None
    slave: bool
    read_only_root: bool
    attaches: tuple[Attach, ...]
    cgroup: bool
    owner: int
    context: Context
    limit: float = 0.0
    meter: bool = False
    holds: bool = False
    enters: bool = False


class Ready(NamedTuple):
    """`errno` 0: this user can make the namespaces and mount in them; else the trial step that failed."""

    errno: int
    step: str


class Step(NamedTuple):
    name: str


class Failed(NamedTuple):
    step: str
    errno: int
    path: str
    sentence: str


class Started(NamedTuple):
    pid: int
    start_time: int
    mount_namespace: int


class Executed(NamedTuple):
    errno: int


class Stopped(NamedTuple):
    signal: int


class TimedOut(NamedTuple):
    pass


class MeterEnded(NamedTuple):
    pass


class Exited(NamedTuple):
    status: int
    """Exit status, or -N when signal N ended it."""


class Signal(NamedTuple):
    """`stops`: how many stops the owner has heard of; not sent where the command has stopped again. -1: send anyway."""

    number: int
    stops: int = -1


class Follow(NamedTuple):
    pass


class End(NamedTuple):
    pass


class Ended(NamedTuple):
    pass


class Finish(NamedTuple):
    pass


class Held(NamedTuple):
    """Who holds the view, and the inode of its mount namespace."""

    pid: int
    start_time: int
    mount_namespace: int


class Leave(NamedTuple):
    pass


class Left(NamedTuple):
    last: bool


Message = (
    ViewPlan
    | Ready
    | Step
    | Failed
    | Started
    | Executed
    | Stopped
    | TimedOut
    | MeterEnded
    | Exited
    | Signal
    | Follow
    | End
    | Ended
    | Finish
    | Held
    | Leave
    | Left
)

_MESSAGES = {kind.__name__: kind for kind in Message.__args__}
_TREES = {kind.__name__: kind for kind in (Bind, Overlay, Tmpfs, Keep)}


class Channel:
    """One end of the socket between owner and helper. Not for threads."""

    def __init__(self, descriptor: int) -> None:
        import _socket

        self._socket = _socket.socket(fileno=descriptor)
        self._buffer = b""
        self.descriptors: list[int] = []

    @classmethod
    def none(cls) -> Channel:
        """One that is closed."""
        import _socket

        channel = cls(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM).detach())
        channel.close()
        return channel

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message, `descriptors` with its first byte. Raises OSError where the peer is gone.

        Never SIGPIPE: a program that calls the API may have it at its default.
        """
        import _socket

        line = _encode(message)
        rights = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else []
        sent = self._socket.sendmsg([line], ancillary, _socket.MSG_NOSIGNAL)
        if sent < len(line):
            self._socket.sendall(line[sent:], _socket.MSG_NOSIGNAL)

    def read(self) -> bool:
        """Take what has arrived, waiting for at least a byte; descriptors go to `descriptors`. False at its end."""
        import _socket

        room = _socket.CMSG_SPACE(4 * 8)
        try:
            content, ancillary, _flags, _address = self._socket.recvmsg(1 << 16, room, _socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return False
        for _level, _kind, data in ancillary:
            for start in range(0, len(data), 4):
                self.descriptors.append(int.from_bytes(data[start : start + 4], sys.byteorder))
        self._buffer += content
        return bool(content)

    def next(self) -> Message | None:
        """The next whole message that has arrived, if any. Raises ValueError on anything that is not one."""
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return _decode(line)

    def receive(self) -> Message | None:
        """Wait for the next message; None at the peer's end."""
        while (message := self.next()) is None:
            if not self.read():
                return None
        return message


def _encode(message: Message) -> bytes:
    """One line of JSON, ending in a newline."""
    return dumps([type(message).__name__, _plain(message)]).encode("ascii") + b"\n"


def _decode(line: bytes) -> Message:
    """The message of one line. Raises ValueError on anything else."""
    name, fields = loads(line.decode("ascii"))
    kind: Any = _MESSAGES.get(name)
    if kind is None or len(fields) != len(kind._fields):
        raise ValueError(f"not a message of this protocol: {name!r}")
    if kind is ViewPlan:
        return _view_plan(fields)
    return kind(*fields)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """NamedTuples as lists; a tree carries its name in front."""
    if isinstance(value, tuple):
        items = [_plain(item) for item in value]
        return [type(value).__name__, *items] if type(value).__name__ in _TREES else items
    return value


def _view_plan(fields: list[Any]) -> ViewPlan:
    plan = ViewPlan(*fields)
    if plan.schema != SCHEMA:
        raise ValueError(f"plan of schema {plan.schema}, this helper speaks {SCHEMA}")
    return plan._replace(
        identity=None if plan.identity is None else Identity(*plan.identity),
        attaches=tuple(_attach(item) for item in plan.attaches),
        context=_context(plan.context),
    )


def _context(fields: Any) -> Context:
    argv, environment, cwd, umask, blocked, ignored, descriptors = fields
    pairs = tuple((name, value) for name, value in environment)
    return Context(tuple(argv), pairs, cwd, umask, tuple(blocked), tuple(ignored), tuple(descriptors))


def _attach(fields: Any) -> Attach:
    attach = Attach(*fields)
    name, *rest = attach.tree
    kind: Any = _TREES[str(name)]
    tree = kind(*(tuple(item) if isinstance(item, list) else item for item in rest))
    return attach._replace(tree=tree, stand_ins=tuple(StandIn(*item) for item in attach.stand_ins))
