"""What the policy tests share: an own mount namespace, observed facts, and choices as storage would give them."""

import ctypes
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hostfork.policy.host import CgroupFacts, HostFacts, Namespaces, observe
from hostfork.policy.load import combine, read
from hostfork.policy.plan import Plan, make_plan, sources
from hostfork.policy.rules import Policy, RuleOptions
from hostfork.storage.choose import Choice
from hostfork.storage.contract import Guarantees, Offer, Refusal
from hostfork.vocabulary import Guarantee, Mechanism, Ownership, StorageKind
from rigs import _map_itself, in_child

CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000

ROOT_NAMESPACES = Namespaces(available=True, user=False)
USER_NAMESPACES = Namespaces(available=True, user=True)
OWNED = CgroupFacts(Ownership.CGROUP, "/a/cgroup", "")

COPIES = Choice(Offer(StorageKind.COPY, Guarantees(Guarantee.INDEPENDENT), "38 MB are copied"), ())
OVERLAYS = Choice(
    Offer(
        StorageKind.LIVE,
        Guarantees(Guarantee.LIVE, folder_rename=False, hard_links=False, native_watchers=False, elsewhere=False),
        "instant",
    ),
    (Refusal(Mechanism.REFLINK, "ext4 on /dev/x does not share blocks", 95),),
)
SNAPSHOTS = Choice(Offer(StorageKind.BTRFS, Guarantees(Guarantee.SNAPSHOT), "instant"), ())

_libc = ctypes.CDLL(None, use_errno=True)


def with_mounts(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a child with a mount namespace of its own, in which `bind` and `tmpfs` work."""

    def child() -> Any:
        if os.geteuid() == 0:
            _check(_libc.unshare(CLONE_NEWNS))
        else:
            uid, gid = os.geteuid(), os.getegid()
            _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
            _map_itself(uid, gid)
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        return function(*args)

    return in_child(child)


def bind(source: str, target: str) -> None:
    """Mount a folder or file a second time."""
    _mount(source, target, None, MS_BIND)


def tmpfs(target: str) -> None:
    """Mount a fresh tmpfs, which anybody may write."""
    _mount("none", target, "tmpfs", 0)


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    name = None if kind is None else kind.encode()
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), name, flags, None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def tree(base: str, *paths: str) -> None:
    """Make folders (names that end in `/`) and small files."""
    for path in paths:
        whole = os.path.join(base, path)
        os.makedirs(whole if path.endswith("/") else os.path.dirname(whole), exist_ok=True)
        if not path.endswith("/"):
            with open(whole, "w", encoding="ascii") as file:
                file.write("x")


@contextmanager
def listening(path: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    """A live socket at that path, of this very process."""
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(path)
        if kind != socket.SOCK_DGRAM:
            server.listen()
        yield server


@contextmanager
def another_process(script: str, *args: str, cwd: str | None = None) -> Iterator[int]:
    """A Python process that runs `script`, has printed a line, and waits; its pid."""
    import sys

    command = [sys.executable, "-I", "-S", "-c", script + "\nprint(flush=True)\ninput()", *args]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"\n"
        yield process.pid
    finally:
        process.communicate(b"\n")


def policy_of(name: str = "workspace", home: str = "/home/nobody", **options: Any) -> Policy:
    """A policy with options, without the demand that it has rules."""
    return combine(read(name, "/", home), RuleOptions(**options), "/", home)


def facts_of(
    policy: Policy,
    base: str,
    *,
    state: str | None = None,
    pool: str | None = None,
    namespaces: Namespaces | Callable[[], Namespaces] = ROOT_NAMESPACES,
    cgroup: CgroupFacts = OWNED,
    search: bool = True,
    cwd: str = "/",
) -> HostFacts:
    """Facts with hostfork's own folders below `base`, unless told otherwise."""
    state = state or f"{base}/own-state"
    pool = pool or f"{state}/pool"
    return observe(policy, namespaces=namespaces, cgroup=cgroup, state=state, pool=pool, search=search, cwd=cwd)


def plan_of(
    policy: Policy, facts: HostFacts, choice: Choice = COPIES, *, relocated: bool = False, **choices: Choice
) -> Plan:
    """The plan where storage chose `choice` for every private path, or `choices` by the path's last name."""
    chosen = {source.path: choices.get(os.path.basename(source.path), choice) for _, source in sources(policy, facts)}
    return make_plan(policy, facts, chosen, relocated=relocated)
