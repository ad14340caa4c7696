"""Asking a systemd manager for a scope: the words on the wire, and every way in which no scope is had.

What a real manager answers is tested in test_systemd.py; here a program speaks for it that answers what none would.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostfork.helper import syscalls
from hostfork.vocabulary import Ownership
from hostfork.workload import bus, scope
from hostfork.workload.launch import Helper
from rigs import Disk, Person

CLONE_NEWPID = 0x20000000
OK = b"OK 0123456789abcdef0123456789abcdef\r\n"


class Manager:
    """Listens where a manager would, gives one connection these bytes, and keeps what it was sent."""

    def __init__(self, folder: str, answer: Callable[[str], bytes], *, stays: bool = False) -> None:
        self.path = f"{folder}/private"
        self.heard = b""
        self._answer = answer
        self._stays = stays
        self._end = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        os.chmod(self.path, 0o666)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "Manager":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            connection = self._listener.accept()[0]
        except OSError:
            return
        with connection:
            while b".scope" not in self.heard:
                more = connection.recv(65536)
                if not more:
                    return
                self.heard += more
            start = self.heard.index(b"hostfork-")
            connection.sendall(self._answer(self.heard[start : self.heard.index(b"\0", start)].decode()))
            if self._stays:
                self._end.wait()


def message(kind: int, member: str, *body: bus.Put, big: bool = False) -> bytes:
    """A message as a manager sends it."""
    content = bus._joined(body)
    fields = bus.array(8, (bus._field("member", member),))
    data = bytearray((ord("l"), kind, 0, 1)) + bus._joined((bus.number(len(content)), bus.number(9)))
    fields(data)
    bus._align(data, 8)
    return bytes(data + content)


def removed(unit: str, result: str) -> bytes:
    """The signal about the end of a job."""
    words = (bus.string(word) for word in ("/job/1", unit, result))
    return message(bus.SIGNAL, "JobRemoved", bus.number(1), *words)


@pytest.fixture
def folder(ext4_disk: Disk, root: Person) -> str:
    return ext4_disk.folder(root)


def asked(folder: str, answer: Callable[[str], bytes], *, stays: bool = False) -> str:
    """What is said about a scope for this process, that nobody moves anywhere."""
    with Manager(folder, answer, stays=stays) as manager:
        return scope.ScopeRequest(manager.path, os.getpid()).wait()


def test_the_call_on_the_wire(folder: str) -> None:
    """Checked by hand against the specification: lengths, padding, signatures."""
    with Manager(folder, lambda unit: OK + removed(unit, "done")) as manager:
        request = scope.ScopeRequest(manager.path, 4711)
        assert request.wait() == ""
        assert request.wait() == ""
    hello, _begin, call = manager.heard.partition(b"\r\nBEGIN\r\n")
    assert hello == b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode()
    assert call[:4] == b"l\1\0\1"
    fields = int.from_bytes(call[12:16], "little")
    body = call[16 + fields + -fields % 8 :]
    assert len(body) == int.from_bytes(call[4:8], "little")
    assert b"\3\1s\0\x12\0\0\0StartTransientUnit\0" in call
    assert b"\x10ssa(sv)a(sa(sv))\0" in call
    assert body.startswith(len(request.unit).to_bytes(4, "little") + request.unit.encode() + b"\0")
    assert b"\x08\0\0\0Delegate\0\1b\0\1\0\0\0" in body
    assert b"\x04\0\0\0PIDs\0\2au\0\0\0\0\4\0\0\0\x67\x12\0\0" in body
    assert body.endswith(b"\x67\x12" + bytes(10))


def test_other_messages_are_passed_over(folder: str) -> None:
    """Signals about other units and other things, replies; in pieces or at once."""
    noise = message(bus.SIGNAL, "UnitNew", bus.string("x.scope")) + removed("x.scope", "failed") + message(2, "")
    assert asked(folder, lambda unit: OK + noise + removed(unit, "done")) == ""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda unit: OK + removed(unit, "canceled"), "gives no scope: its job canceled"),
        (lambda _unit: OK + message(bus.ERROR, "", bus.string("Unit is there.")), "gives no scope: Unit is there."),
        (lambda _unit: b"REJECTED EXTERNAL\r\n", "cannot be asked: it does not accept this user"),
        (lambda _unit: OK, "cannot be asked: it closed the connection"),
        (lambda _unit: OK + removed("x", "done")[:-3], "cannot be asked: it closed the connection"),
        (lambda _unit: OK + b"\xff" * 64, "cannot be asked: its answer is no message"),
    ],
)  # fmt: skip
def test_no_scope_is_had(folder: str, answer: Callable[[str], bytes], why: str) -> None:
    assert asked(folder, answer) == f"this user's systemd manager {why}"


def test_a_message_in_the_other_byte_order(folder: str) -> None:
    words = b"".join(len(word).to_bytes(4, "big") + word + b"\0" for word in (b"no",))
    reply = b"B\3\0\1" + len(words).to_bytes(4, "big") + bytes(4) + bytes(4) + words
    assert asked(folder, lambda _unit: OK + reply) == "this user's systemd manager gives no scope: no"


def test_a_manager_that_says_nothing(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "_PATIENCE", 0.1)
    assert asked(folder, lambda _unit: OK, stays=True) == "this user's systemd manager does not answer"


def test_a_manager_that_takes_its_time(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is told once what for."""
    monkeypatch.setattr(scope, "_SOON", 0.1)
    told: list[str] = []
    go_on = threading.Event()

    def late(why: str) -> None:
        told.append(why)
        go_on.set()

    def slow(unit: str) -> bytes:
        go_on.wait()
        return OK + removed(unit, "done")

    with Manager(folder, slow) as manager:
        assert scope.ScopeRequest(manager.path, os.getpid()).wait(late) == ""
    assert told == ["waiting for this user's systemd manager, which is asked for a cgroup of this run's own"]


def test_a_manager_that_is_stopped(folder: str) -> None:
    """It is not waited for, and nobody is told to wait."""
    path = f"{folder}/private"
    manager = os.fork()
    if manager == 0:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
    try:
        os.waitpid(manager, os.WUNTRACED)
        told: list[str] = []
        why = scope.ScopeRequest(path, os.getpid()).wait(told.append)
    finally:
        os.kill(manager, signal.SIGKILL)
        os.waitpid(manager, 0)
    assert why == "this user's systemd manager cannot be asked: it is stopped"
    assert told == []


def test_a_run_tells_that_it_waits(user: Person, ext4_disk: Disk, hostfork: Callable[..., Any]) -> None:
    """And then why its hold is weaker."""
    folder = ext4_disk.folder(user)
    user.call(os.mkdir, f"{folder}/systemd")
    user.call(os.mkdir, f"{folder}/project")
    with user.popen([sys.executable, "-c", LISTENS, f"{folder}/systemd/private"]) as manager:
        while not os.path.exists(f"{folder}/systemd/private"):
            assert manager.poll() is None
        run = ("run", "--private", f"{folder}/project", "--", "true")
        done = hostfork(user, *run, delegated=False, env={"XDG_RUNTIME_DIR": folder}, check=0)
        manager.kill()
    assert "waiting for this user's systemd manager" in done.stderr
    assert "systemd manager does not answer), a weaker hold" in done.stderr


LISTENS = """
import os, signal, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + ".new")
listener.listen()
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.pause()
"""


def test_a_socket_without_a_manager(folder: str) -> None:
    with Manager(folder, lambda _unit: b"") as manager:
        pass
    why = scope.ScopeRequest(manager.path, os.getpid()).wait()
    assert why == "this user's systemd manager cannot be asked: Connection refused"


def test_a_manager_of_somebody_else(folder: str, user: Person) -> None:
    os.chmod(folder, 0o755)
    with Manager(folder, lambda _unit: OK) as manager:
        why = user.call(_ask, manager.path)
        assert manager.heard == b""
    assert why == "this user's systemd manager cannot be asked: it is that of user 0"


def _ask(path: str) -> str:
    return scope.ScopeRequest(path, os.getpid()).wait()


def test_a_manager_in_another_pid_namespace(folder: str, root: Person) -> None:
    """Our pids would name other processes there."""
    with Manager(folder, lambda _unit: OK) as manager:
        why = root.call(_ask_from_another_namespace, manager.path)
        assert manager.heard == b""
    assert why == "this user's systemd manager cannot be asked: it is in another PID namespace"


def _ask_from_another_namespace(path: str) -> str:
    syscalls.unshare(CLONE_NEWPID)
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.write(write_end, _ask(path).encode())
        os._exit(0)
    os.wait()
    return os.read(read_end, 1000).decode()


# --- who asks ---------------------------------------------------------------------------------------------------------


def _place(folder: str) -> tuple[str | None, bool, str]:
    """What a helper says that is started with this runtime folder; it must be this process's child all the time."""
    os.environ["XDG_RUNTIME_DIR"] = folder
    helper = Helper.spawn()
    try:
        place = helper.place()
        assert helper.place() == place
        helper.ready()
        return place.parent, place.scope, place.reason
    finally:
        helper.abandon()
        assert not os.path.exists(f"/proc/{helper.pid}")


def _ended(folder: str) -> None:
    """Nobody asks where it is; its connection goes with it."""
    os.environ["XDG_RUNTIME_DIR"] = folder
    before = os.listdir("/proc/self/fd")
    Helper.spawn().abandon()
    assert os.listdir("/proc/self/fd") == before


def _interrupted(folder: str) -> None:
    """A Ctrl-C just when the manager is asked: the helper goes too."""

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    os.environ["XDG_RUNTIME_DIR"] = folder
    scope.ScopeRequest.__init__ = interrupt  # type: ignore[method-assign]
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KeyboardInterrupt):
        Helper.spawn()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def runtime(ext4_disk: Disk, user: Person) -> str:
    """A user's runtime folder, with the socket of a manager that has died."""
    folder = ext4_disk.folder(user)
    user.call(_stale_socket, folder)
    return folder


def _stale_socket(folder: str) -> None:
    os.mkdir(f"{folder}/systemd")
    socket.socket(socket.AF_UNIX).bind(f"{folder}/systemd/private")


def test_only_a_user_without_a_cgroup_asks(runtime: str, user: Person, root: Person, delegated_cgroup: str) -> None:
    parent, scoped, reason = user.call(_place, runtime, delegated=False)
    assert (parent, scoped) == (None, False)
    assert reason.endswith(
        " is not delegated to this user, and this user's systemd manager cannot be asked: Connection refused"
    )
    assert user.call(_place, runtime) == (delegated_cgroup, False, "the caller's own cgroup")
    assert root.call(_place, runtime)[1:] == (False, "the caller's own cgroup")
    user.call(_ended, runtime, delegated=False)
    user.call(_interrupted, runtime, delegated=False)


def _told_done(folder: str, dead: bool) -> str:
    """A manager that says that it is done and has done nothing; the reason why there is no place."""
    os.environ["XDG_RUNTIME_DIR"] = folder
    os.mkdir(f"{folder}/systemd")
    with Manager(f"{folder}/systemd", lambda unit: OK + removed(unit, "done")):
        helper = Helper.spawn()
        if dead:
            os.kill(helper.pid, signal.SIGKILL)
            os.waitpid(helper.pid, 0)
        place = helper.place()
        assert (place.parent, place.scope) == (None, False)
        helper.abandon()
    return place.reason


def test_a_scope_is_believed_when_it_is_seen(user: Person, ext4_disk: Disk) -> None:
    reason = user.call(_told_done, ext4_disk.folder(user), False, delegated=False)
    before, _and, why = reason.partition(", and ")
    assert before.endswith(" is not delegated to this user")
    assert why.startswith("the scope hostfork-")
    assert why.endswith(f" cannot be used: {before}")
    reason = user.call(_told_done, ext4_disk.folder(user), True, delegated=False)
    assert reason == f"{before}, and the helper is gone"


def test_the_reason_is_in_the_plan(runtime: str, user: Person, hostfork: Callable[..., Any]) -> None:
    """A run goes on, weaker, and says why."""
    project = f"{user.home}/project"
    user.call(os.mkdir, project)
    env = {"XDG_RUNTIME_DIR": runtime}
    run = ("run", "--private", project, "--", "true")
    done = hostfork(user, *run, delegated=False, env=env, check=0)
    assert "systemd manager cannot be asked: Connection refused), a weaker hold" in done.stderr
    done = hostfork(user, "run", "--require", "cgroup", *run[1:], delegated=False, env=env, check=125)
    assert "systemd manager cannot be asked" in done.stderr


def _helpers_facts(folder: str) -> tuple[Ownership, str]:
    from hostfork.lifecycle.observe import cgroup

    helper = Helper.spawn()
    os.environ["XDG_RUNTIME_DIR"] = folder
    try:
        facts = cgroup(helper)
        return facts.ownership, facts.reason
    finally:
        helper.abandon()


@pytest.mark.rig("cgroup")
def test_without_a_manager_nothing_is_asked(user: Person, ext4_disk: Disk) -> None:
    ownership, reason = user.call(_helpers_facts, ext4_disk.folder(user), delegated=False)
    assert ownership is Ownership.SUBREAPER
    assert "cannot be asked" not in reason
    assert user.call(_helpers_facts, "/", delegated=True)[0] is Ownership.CGROUP


def test_a_group_that_goes_meanwhile_is_empty(root: Person) -> None:
    root.call(_group_goes)


def _group_goes() -> None:
    from hostfork.workload.cgroup import Group, find_place

    group = Group.make(find_place().parent or "", f"gone-{os.getpid()}")
    os.rmdir(group.path)
    group.kill()
    assert group.wait_empty(1)
    group.remove()
    assert not Path(group.path).exists()
