"""The helper alone: the gate, the view, the context and the keeper, driven without the rest of hostfork."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hostfork.errors import Code, CommandError, HostforkError, WorkloadError
from hostfork.helper.protocol import (
    SCHEMA,
    Attach,
    Bind,
    Context,
    Identity,
    Keep,
    Overlay,
    StandIn,
    Tmpfs,
    ViewPlan,
)
from hostfork.workload.cgroup import Group, find_place
from hostfork.workload.identity import stat_fields
from hostfork.workload.launch import Helper
from hostfork.workload.spawn import helper_path
from hostfork.workload.stop import members, stop
from hostfork.workload.watch import Exit, watch
from rigs import Disk, Person


def attach(target: str, tree: Any, *, read_only: bool = False, same: bool = False, **more: Any) -> Attach:
    """An attach whose host identity is looked up."""
    found = os.stat(target, follow_symlinks=False)
    return Attach(target, tree, read_only, same, found.st_dev, found.st_ino, **more)


def view_plan(*attaches: Attach, argv: tuple[str, ...], cwd: str = "/", cgroup: bool = False, **more: Any) -> ViewPlan:
    """A plan as lifecycle would make it for the caller."""
    identity = None if os.geteuid() == 0 else Identity(os.geteuid(), os.getegid())
    context = Context(
        argv=argv,
        environment=more.pop("environment", tuple(os.environ.items())),
        cwd=cwd,
        umask=0o022,
        blocked=more.pop("blocked", ()),
        ignored=more.pop("ignored", ()),
        descriptors=more.pop("descriptors", ()),
    )
    return ViewPlan(
        SCHEMA, True, identity, True, more.pop("read_only_root", False), attaches, cgroup, os.getpid(), context
    )


def run(plan: ViewPlan, journal: str, *, owned: bool = False) -> tuple[Exit, str]:
    """Run one plan to its end; gives the command's end and its output."""
    read_end, write_end = os.pipe()
    os.dup2(write_end, 7)  # the shell knows descriptors of one digit only
    os.close(write_end)
    helper = Helper.spawn()
    os.close(7)
    group = Group.make(find_place().parent or "", f"helper-{os.getpid()}") if owned else None
    folder = None if group is None else group.open()
    log = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        context = plan.context._replace(descriptors=(*plan.context.descriptors, 7))
        shell = ("sh", "-c", "exec >&7 2>&1 7>&-; " + plan.context.argv[0])
        launched = helper.start(plan._replace(context=context._replace(argv=shell), cgroup=owned), log, folder)
        helper.wait_executed("sh")
        ended = watch(helper.channel, None, None)
        assert stop(group, helper, launched.mount_namespace, frozenset()).survivors == ()
        assert [pid for pid in members(launched.mount_namespace) if pid != helper.pid] == []
    finally:
        helper.finish()
        os.close(log)
        if group is not None and folder is not None:
            os.close(folder)
            group.remove()
    with open(read_end, encoding="utf-8") as file:
        return ended, file.read()


def _views(folder: str) -> dict[str, str]:
    """One command in a view that has every kind of tree; what it saw and what the host has afterwards."""
    for name in ("live", "copied", "scratch", "hidden", "fixed", "upper", "work", "copy", "shared"):
        os.mkdir(f"{folder}/{name}")
    for name in ("live/a", "fixed/a", "hidden/secret", "shared/a", "copied/a", "copy/a", "live/sock"):
        Path(f"{folder}/{name}").write_text("host\n")
    os.unlink(f"{folder}/live/sock")
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{folder}/live/sock")
    server.listen()
    plan = view_plan(
        attach(f"{folder}/live", Overlay((f"{folder}/live",), f"{folder}/upper", f"{folder}/work", True)),
        attach(f"{folder}/copied", Bind(f"{folder}/copy")),
        attach(f"{folder}/scratch", Tmpfs(1 << 20, 0o755), stand_ins=(StandIn("in", True, 0o755),)),
        attach(f"{folder}/hidden", Tmpfs(4096, 0), read_only=True),
        attach(f"{folder}/fixed", Keep(f"{folder}/fixed"), read_only=True, same=True),
        attach(f"{folder}/live/sock", Bind(f"{folder}/live/sock"), same=True),
        argv=(
            "echo in >live/a; echo in >copied/b; echo in >scratch/in/x; echo in >shared/b; cat live/a;"
            "{ echo in >fixed/a; } 2>/dev/null || echo fixed-is-fixed; cat hidden/secret 2>/dev/null || echo is-hidden;"
            f'{sys.executable} -c \'import socket; socket.socket(socket.AF_UNIX).connect("live/sock"); print("met")\'',
        ),
        cwd=folder,
    )
    ended, said = run(plan, f"{folder}/journal")
    server.close()
    assert ended == Exit(0, None)
    found = {name: ",".join(sorted(os.listdir(f"{folder}/{name}"))) for name in ("copied", "shared", "scratch")}
    files = {name: Path(f"{folder}/{name}/a").read_text() for name in ("live", "upper")}
    return {"said": said, **found, **files}


def test_a_view_holds_what_the_plan_says(person: Person, ext4_disk: Disk, leaves_nothing: None) -> None:
    """Private trees take the writes, shared ones reach the host, read-only and hidden ones refuse."""
    found = person.call(_views, ext4_disk.folder(person))
    assert found["said"].split() == ["in", "fixed-is-fixed", "is-hidden", "met"]
    assert (found["live"], found["upper"]) == ("host\n", "in\n")
    assert (found["copied"], found["shared"], found["scratch"]) == ("a", "a,b", "")


def _read_only_root(folder: str) -> str:
    os.mkdir(f"{folder}/mine")
    os.mkdir(f"{folder}/copy")
    plan = view_plan(
        *(attach(path, Keep(path), same=True) for path in ("/dev", "/proc")),
        attach(f"{folder}/mine", Bind(f"{folder}/copy")),
        argv=(
            "echo x >mine/x && echo wrote; touch y 2>/dev/null || echo fixed; echo z >/dev/null && echo device;"
            "unshare -Ur true && echo nested",
        ),
        cwd=folder,
        read_only_root=True,
    )
    return run(plan, f"{folder}/journal")[1]


def test_a_read_only_root_keeps_private_trees_and_devices_writable(
    person: Person, ext4_disk: Disk, leaves_nothing: None
) -> None:
    """DESIGN fact 24: the order of the mounts decides."""
    assert person.call(_read_only_root, ext4_disk.folder(person)).split() == ["wrote", "fixed", "device", "nested"]


def _status_of(folder: str) -> str:
    return run(view_plan(argv=("cat /proc/self/status",)), f"{folder}/journal")[1]


def test_a_users_command_has_no_capabilities(user: Person, ext4_disk: Disk, leaves_nothing: None) -> None:
    """With them it could unmount the private tree; nor can a file's capabilities give them back."""
    status = dict(line.split(":\t", 1) for line in user.call(_status_of, ext4_disk.folder(user)).splitlines())
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert int(status["CapBnd"], 16) == 1 << 10 | 1 << 12 | 1 << 13
    assert status["Uid"].split() == [str(user.uid)] * 4


def _descriptors(folder: str) -> str:
    os.dup2(os.open(folder, os.O_RDONLY), 9)
    os.set_inheritable(9, True)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 11)
    os.set_inheritable(11, True)
    return run(view_plan(argv=("ls /proc/$$/fd",), descriptors=(11,)), f"{folder}/journal")[1]


def test_only_the_named_descriptors_reach_the_command(person: Person, ext4_disk: Disk, leaves_nothing: None) -> None:
    """A folder descriptor of the caller's would still lead to the host's tree (CASES 18)."""
    assert person.call(_descriptors, ext4_disk.folder(person)).split() == ["0", "1", "11", "2"]


def _failing(folder: str, what: str) -> tuple[str, str | None, str | None, int | None]:
    os.mkdir(f"{folder}/a")
    os.symlink(f"{folder}/a", f"{folder}/link")
    found = os.stat(f"{folder}/a")
    here = (found.st_dev, found.st_ino)
    cwd = "/"
    attaches: tuple[Attach, ...] = ()
    if what == "target":
        attaches = (Attach(f"{folder}/none", Tmpfs(0, 0o755), False, False, *here),)
    elif what == "link":
        attaches = (Attach(f"{folder}/link", Tmpfs(0, 0o755), False, False, *here),)
    elif what == "source":
        attaches = (Attach(f"{folder}/a", Bind(f"{folder}/none"), False, False, *here),)
    elif what == "verify":
        attaches = (Attach(f"{folder}/a", Keep(f"{folder}/a"), False, False, *here),)
    elif what == "cwd":
        cwd = f"{folder}/none"
    try:
        run(view_plan(*attaches, argv=("touch /dev/null",), cwd=cwd), f"{folder}/journal")
    except HostforkError as error:
        return error.code.name, error.step, error.path, error.errno
    return "", None, None, None


@pytest.mark.parametrize(
    ("what", "code", "step", "path", "errno"),
    [
        ("target", Code.VIEW_FAILED, "view", "none", 2),
        ("link", Code.VIEW_FAILED, "view", "link", 40),
        ("source", Code.VIEW_FAILED, "view", "none", 2),
        ("verify", Code.VIEW_VERIFY, "verify", "a", None),
        ("cwd", Code.COMMAND_CONTEXT, "context", "none", 2),
    ],
)
def test_a_failing_step_names_itself_and_the_path(
    person: Person,
    ext4_disk: Disk,
    leaves_nothing: None,
    what: str,
    code: Code,
    step: str,
    path: str,
    errno: int | None,
) -> None:
    """And the command is never started."""
    folder = ext4_disk.folder(person)
    assert person.call(_failing, folder, what) == (code.name, step, f"{folder}/{path}", errno)


def _not_executed(folder: str, name: str) -> tuple[str, int]:
    helper = Helper.spawn()
    log = os.open(f"{folder}/journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        helper.start(view_plan(argv=(name,), cwd=folder), log, None)
        helper.wait_executed(name)
    except CommandError as error:
        return error.code.name, error.exit_status
    finally:
        helper.finish()
        os.close(log)
    return "", 0


def test_what_cannot_be_executed_is_126_or_127(person: Person, ext4_disk: Disk, leaves_nothing: None) -> None:
    """As env(1) says it."""
    folder = ext4_disk.folder(person)
    person.call(Path(f"{folder}/plain").write_text, "x")
    assert person.call(_not_executed, folder, "no-such-program") == ("COMMAND_NOT_FOUND", 127)
    assert person.call(_not_executed, folder, "./plain") == ("COMMAND_NOT_EXECUTABLE", 126)
    assert person.call(_not_executed, folder, "/") == ("COMMAND_NOT_EXECUTABLE", 126)


def test_a_gate_that_closes_starts_nothing(leaves_nothing: None) -> None:
    """A dead owner starts nothing: the helper exits without a word."""
    helper = Helper.spawn()
    helper.abandon()
    assert not os.path.exists(f"/proc/{helper.pid}")


def test_junk_at_the_gate_starts_nothing(leaves_nothing: None) -> None:
    """Nor does half a plan."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [helper_path(), sys.executable, "0", str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stderr=subprocess.DEVNULL,
    )
    theirs.close()
    ours.recv(4096)
    ours.sendall(b'["ViewPlan",[1,tr')
    ours.close()
    assert process.wait(10) == 0


def _owner(folder: str, owned: bool) -> None:
    """An owner that starts a tree of daemons and then is killed."""
    helper = Helper.spawn()
    group = Group.make(find_place().parent or "", f"owner-{os.getpid()}") if owned else None
    log = os.open(f"{folder}/journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    storm = f"for i in 1 2 3; do setsid sh -c '(sleep 1000 & echo $! >>{folder}/pids) & sleep 1000' & done; wait"
    helper.start(view_plan(argv=("sh", "-c", storm), cgroup=owned), log, None if group is None else group.open())
    helper.wait_executed("sh")
    deadline = time.monotonic() + 20
    while not os.path.exists(f"{folder}/pids") or len(Path(f"{folder}/pids").read_text().split()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    Path(f"{folder}/group").write_text(group.path if group else "")
    os.kill(0 if os.getpid() == os.getpgrp() else os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "owned", [pytest.param(True, marks=pytest.mark.rig("cgroup")), False], ids=["cgroup", "subreaper"]
)
def test_without_an_owner_the_keeper_ends_the_tree(
    person: Person, ext4_disk: Disk, leaves_nothing: None, owned: bool
) -> None:
    """SIGKILL to the owner's whole process group, as harnesses do: the keeper ends the tree and writes it down."""
    folder = ext4_disk.folder(person)
    with pytest.raises(Exception, match=r".*"):
        person.call(_owner, folder, owned)
    journal = Path(f"{folder}/journal")
    deadline = time.monotonic() + 20
    while b"ended-without-owner" not in journal.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert json.loads(journal.read_text())["event"] == "ended-without-owner"
    for pid in Path(f"{folder}/pids").read_text().split():
        state = stat_fields(int(pid))
        assert state is None or state[0] == "Z"  # the machine's init may take its time
    if owned:
        Group(Path(f"{folder}/group").read_text()).remove()


def _killed_keeper(folder: str) -> str:
    helper = Helper.spawn()
    log = os.open(f"{folder}/journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    environment = (*os.environ.items(), ("HOSTFORK_FORK", "killed-keeper"))
    launched = helper.start(view_plan(argv=("sleep", "1000"), environment=environment), log, None)
    helper.wait_executed("sleep")
    os.kill(helper.pid, signal.SIGKILL)
    try:
        watch(helper.channel, None, None)
    except WorkloadError as error:
        helper.reap()
        assert stop(None, None, launched.mount_namespace, frozenset({b"HOSTFORK_FORK=killed-keeper"})).ended == 1
        return error.code.name
    return ""


def test_a_killed_keeper_is_noticed_and_its_tree_ended(person: Person, ext4_disk: Disk, leaves_nothing: None) -> None:
    """What is left is found in the view's namespace by the variable that it carries."""
    assert person.call(_killed_keeper, ext4_disk.folder(person)) == "WORKLOAD_KEEPER"


def _stopped_keeper(folder: str, owned: bool) -> None:
    """Everything ends although the keeper does nothing by itself."""
    helper = Helper.spawn()
    group = Group.make(find_place().parent or "", f"stopped-{os.getpid()}") if owned else None
    log = os.open(f"{folder}/journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    plan = view_plan(argv=("sleep", "1000"), cgroup=owned)
    launched = helper.start(plan, log, None if group is None else group.open())
    helper.wait_executed("sleep")
    os.kill(helper.pid, signal.SIGSTOP)
    assert stop(group, helper, launched.mount_namespace, frozenset()).survivors == ()
    state = stat_fields(launched.pid)
    assert state is None or state[0] == "Z"
    os.kill(helper.pid, signal.SIGSTOP)
    helper.finish()
    assert stat_fields(helper.pid) is None
    if group is not None:
        group.remove()


@pytest.mark.parametrize(
    "owned", [pytest.param(True, marks=pytest.mark.rig("cgroup")), False], ids=["cgroup", "subreaper"]
)
def test_a_stopped_keeper_holds_nobody_up(person: Person, ext4_disk: Disk, leaves_nothing: None, owned: bool) -> None:
    """Neither the end of the tree nor that of the view."""
    person.call(_stopped_keeper, ext4_disk.folder(person), owned)


def _mounts_from_outside(folder: str) -> str:
    os.mkdir(f"{folder}/mine")
    os.mkdir(f"{folder}/copy")
    plan = view_plan(
        attach(f"{folder}/mine", Bind(f"{folder}/copy")), argv=(f"grep -c ' {folder}/mine ' /proc/self/mountinfo",)
    )
    inside = run(plan, f"{folder}/journal")[1]
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return inside.strip() + " " + str(sum(f" {folder}/mine " in line for line in file))


def test_no_mount_of_a_view_reaches_the_host(person: Person, ext4_disk: Disk, leaves_nothing: None) -> None:
    """ESCAPES 27, the harmless half."""
    assert person.call(_mounts_from_outside, ext4_disk.folder(person)) == "1 0"
