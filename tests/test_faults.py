"""Bad input and real faults: every one is a typed error that says where, and nothing is left behind."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rigs
from hostfork import api
from hostfork.errors import HostforkError
from hostfork.lifecycle.store import state_folder
from hostfork.workload import spawn
from hostfork.workload.cgroup import Group

# What a kill leaves is judged by the cgroup that owned it.
pytestmark = pytest.mark.rig("cgroup")

PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
MODES = ("", ":live")
FILES = {name: name for name in ("a", "b", "d/c", "d/e/f")}
CHANGE = ("--", "sh", "-c", "echo x >new; echo y >>a; rm b")


@pytest.fixture
def project(person, ext4_disk):
    """A small project of the person's."""
    return rigs.make_project(person, ext4_disk.folder(person), FILES)


def keep(hostfork, person, project, name="one", mode="", **options):
    """A kept fork with one created, one modified and one deleted file."""
    arguments = ("run", "-q", "--name", name, "--private", project + mode, *options.pop("extra", ()), *CHANGE)
    hostfork(person, *arguments, cwd=project, check=0, **options)


def refused(hostfork, person, code, *args, status=125, **options):
    """The command ends with that status and exactly one error of that code; gives its lines."""
    done = hostfork(person, *args, **options)
    assert done.returncode == status, f"{done.stdout}{done.stderr}"
    assert f"code {code} " in done.stderr + " ", done.stderr
    assert done.stderr.count("hostfork: ") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def nothing_left(person):
    """The state folder holds no fork and the pool no storage."""
    assert rigs.left_in_state(person.state) == []


def names(hostfork, person):
    return [fork["name"] for fork in json.loads(hostfork(person, "list", "--json", check=0).stdout)["forks"]]


# --- what is broken by hand (CASES 33) -------------------------------------------------------------------------------


def _changed(change):
    def edit(text):
        record = json.loads(text)
        change(record)
        return json.dumps(record)

    return edit


BROKEN = {
    "truncated": lambda text: text[: len(text) // 2],
    "empty": lambda _text: "",
    "no text": lambda _text: "\x00\xff\xfe",
    "a list": lambda _text: "[]",
    "too deep": lambda _text: "[" * 100_000,
    "wrong types": _changed(lambda record: record.update(paths=7)),
    "no such mechanism": _changed(lambda record: record["paths"][0].update(mechanism="magic")),
    "a field is missing": _changed(lambda record: record.pop("pool")),
    "a later version": _changed(lambda record: record.update(schema=99, pool={"more": "than a path"})),
    "another name": _changed(lambda record: record.update(name="two")),
    "a key that leads out": _changed(lambda record: record["paths"][0].update(key="../../forks")),
    "missing": None,
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_record(hostfork, person, project, ext4_disk, how):
    """It is listed, explained and discarded, with the storage that it can no longer name, in a named pool too."""
    folder = ext4_disk.folder(person)
    os.chmod(folder, 0o700)
    keep(hostfork, person, project, extra=("--pool", folder) if how in ("truncated", "missing") else ())
    record = Path(person.state, "forks/one/record.json")
    edit = BROKEN[how]
    if edit is None:
        record.unlink()
    else:
        record.write_text(edit(record.read_text()), errors="surrogateescape")
    listed = hostfork(person, "list", check=0).stdout
    assert "one" in listed
    assert "broken" in listed
    lines = refused(hostfork, person, "fork.corrupt", "show", "one")
    assert str(record) in lines
    assert "hostfork discard one" in lines
    assert person.call(_answers, f"{person.home}/out") == ["FORK_CORRUPT"] * 3 + ["one"]
    assert record.exists() == (edit is not None)
    refused(hostfork, person, "fork.confirm", "discard", "one", status=2)
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)
    assert [here for here, _, files in os.walk(folder) if files or "one" in here] == []


def _answers(out):
    """What programs get of a broken fork: typed errors, and a place in list and recovery."""
    said = []
    for act in (
        lambda fork: fork.diff(),
        lambda fork: fork.patch(),
        lambda fork: fork.export(out, api.ExportForm.TREE),
    ):
        try:
            act(api.Fork.open("one"))
        except HostforkError as error:
            said.append(error.code.name)
    return said + [item.name for item in api.recover() if item.leftovers]


def test_a_later_version_is_named(hostfork, person, project):
    """A record of a version to come is not damaged: that is said."""
    keep(hostfork, person, project)
    record = Path(person.state, "forks/one/record.json")
    record.write_text(_changed(lambda content: content.update(schema=99))(record.read_text()))
    assert "schema 99" in refused(hostfork, person, "fork.corrupt", "show", "one")
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


@pytest.mark.parametrize("mode", MODES)
def test_lost_storage(hostfork, person, project, mode):
    """What changed is still known; the content is not, and that is said; the fork can go."""
    keep(hostfork, person, project, mode=mode)
    kind = "overlay" if mode else "copy"
    shutil.rmtree(f"{person.state}/pool/{kind}/one.0")
    assert "one" in hostfork(person, "list", check=0).stdout
    hostfork(person, "show", "one", check=0)
    entries = json.loads(hostfork(person, "diff", "one", "--json", check=0).stdout)["entries"]
    assert {entry["change"] for entry in entries} == {"created", "modified", "deleted"}
    for verb in (("diff", "one", "--patch"), ("export", "one", f"{person.home}/out")):
        assert "hostfork discard one" in refused(hostfork, person, "fork.lost", *verb)
    assert hostfork(person, "recover", check=0).stdout == ""
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


@pytest.mark.parametrize("mode", MODES)
def test_a_lost_list_of_changes(hostfork, person, project, mode):
    """A copy that was reduced says what still can be had; an overlay is read again."""
    keep(hostfork, person, project, mode=mode)
    os.unlink(f"{person.state}/forks/one/changes")
    if mode:
        entries = json.loads(hostfork(person, "diff", "one", "--json", check=0).stdout)["entries"]
        assert {entry["change"] for entry in entries} == {"created", "modified", "deleted"}
    else:
        refused(hostfork, person, "fork.corrupt", "diff", "one")
    Path(person.state, "forks/one/changes").write_text("[1, [[7]]]")
    refused(hostfork, person, "collect.failed", "diff", "one")
    hostfork(person, "show", "one", check=0)
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


def orphan(person, project, mode="", extra=(), group=True, name="one"):
    """A run whose owner and keeper were killed after the command had written, and the command too if `group`."""
    mark = f"{project}.mark"
    script = f"echo x >new; echo y >>a; rm b; echo >{mark}; exec sleep 1000"
    owner = person.popen(
        [PROGRAM, "run", "-q", "--name", name, "--private", project + mode, *extra, "--", "sh", "-c", script],
        cwd=project, start_new_session=True,
    )  # fmt: skip
    wait_for(mark)
    path = Path(person.state, f"forks/{name}/record.json")
    rigs.wait_until(lambda: json.loads(path.read_text())["activity"] == "running")
    record = json.loads(path.read_text())
    os.kill(record["keeper"]["pid"], signal.SIGSTOP)
    owner.kill()
    owner.wait()
    os.kill(record["keeper"]["pid"], signal.SIGKILL)
    if group:
        os.kill(record["command_process"]["pid"], signal.SIGKILL)
        rigs.wait_until(lambda: not os.path.exists(f"/proc/{record['command_process']['pid']}/ns/mnt"))
    os.unlink(mark)
    return record


def wait_for(path, seconds=30):
    rigs.wait_until(lambda: os.path.exists(path), seconds)


@pytest.mark.parametrize("mode", MODES)
def test_an_orphan_is_shown_and_recovered(hostfork, person, project, mode):
    """Without owner, keeper and command: listed as orphaned, its changes readable before and after recovery."""
    orphan(person, project, mode)
    done = hostfork(person, "list", check=0)
    assert "orphaned" in done.stdout
    assert "hostfork recover" in done.stdout
    before = hostfork(person, "diff", "one", "--json", check=0).stdout
    assert "3 changes are kept" in hostfork(person, "recover", check=0).stdout
    assert hostfork(person, "recover", check=0).stdout == ""
    assert hostfork(person, "diff", "one", "--json", check=0).stdout == before
    (listed,) = json.loads(hostfork(person, "list", "--json", check=0).stdout)["forks"]
    assert listed["activity"] == "idle"
    hostfork(person, "export", "one", f"{person.home}/out", check=0)
    assert sorted(os.listdir(f"{person.home}/out")) == ["a", "d", "new"]
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


def test_an_orphan_over_a_source_that_was_written_since(hostfork, person, project):
    """A live fork's base is the host's file: no patch is made against a later one."""
    orphan(person, project, ":live")
    Path(project, "a").write_text("the host's")
    hostfork(person, "recover", check=0)
    assert person.call(_gone_bases) == {"a": True, "b": False, "new": False}
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


def _gone_bases():
    return {os.path.basename(change.path): change.base_gone for change in api.Fork.open("one").diff().changes}


@pytest.mark.parametrize("mode", MODES)
def test_an_orphan_is_discarded_as_it_is(hostfork, person, project, mode):
    """Without a recovery first."""
    orphan(person, project, mode, group=False)
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


def test_an_orphan_without_its_storage(hostfork, person, project):
    """Recovery says what is missing each time; discard still ends it."""
    orphan(person, project)
    shutil.rmtree(f"{person.state}/pool/copy/one.0")
    for _ in range(2):
        done = hostfork(person, "recover", check=1)
        assert "is gone" in done.stderr
    refused(hostfork, person, "fork.lost", "diff", "one")
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


def test_an_orphan_without_its_record(hostfork, person, project):
    """Its command may have written: nothing is removed before somebody says so, and then all of it, processes too."""
    record = orphan(person, project, group=False)
    os.unlink(f"{person.state}/forks/one/record.json")
    done = hostfork(person, "recover", check=1)
    assert "hostfork discard one" in done.stderr
    assert os.path.exists(f"{person.state}/pool/copy/one.0/tree/new")
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)
    if record["cgroup"] is not None:
        assert not os.path.exists(record["cgroup"])


def test_a_broken_record_of_a_living_fork(hostfork, person, project):
    """Its owner knows it: nobody else ends or removes it, and at its end the record is whole again."""
    script = "echo x >new; echo ready; read line; exit 4"
    command = [PROGRAM, "run", "-q", "--name", "one", "--private", project, "--", "sh", "-c", script]
    with person.popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"ready\n"
        record = Path(person.state, "forks/one/record.json")
        rigs.wait_until(lambda: json.loads(record.read_text())["activity"] == "running")
        record.write_text("{")
        assert "broken" in hostfork(person, "list", check=0).stdout
        assert hostfork(person, "recover", check=0).stdout == ""
        refused(hostfork, person, "fork.busy", "discard", "one", "--yes")
        owner.communicate(b"go\n")
    assert owner.returncode == 4
    assert json.loads(record.read_text())["activity"] == "idle"
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


def test_one_name_in_two_state_folders(hostfork, person, project, ext4_disk):
    """The groups would be one: the second is refused, and the first lives on."""
    script = "echo ready; read line; echo x >new; exit 4"
    command = [PROGRAM, "run", "-q", "--name", "one", "--private", project, "--", "sh", "-c", script]
    with person.popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"ready\n"
        other = {"XDG_STATE_HOME": ext4_disk.folder(person)}
        same = ("run", "--name", "one", "--private", project, "--", "true")
        refused(hostfork, person, "workload.cgroup", *same, env=other)
        assert hostfork(person, "recover", env=other, check=0).stdout == ""
        assert hostfork(person, "list", env=other, check=0).stdout == ""
        first.communicate(b"go\n")
    assert first.returncode == 4
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


def test_an_orphan_without_its_cgroup(hostfork, person, project):
    """Removed by hand, or gone with a service."""
    record = orphan(person, project)
    assert record["cgroup"] is not None
    os.rmdir(record["cgroup"])
    hostfork(person, "list", check=0)
    assert "3 changes are kept" in hostfork(person, "recover", check=0).stdout
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


def test_another_boot(hostfork, person, project):
    """After a reboot nothing of the fork lives, whatever has its pids now; that it may be torn is said."""
    bystander = person.popen(["sleep", "1000"])
    try:
        orphan(person, project)
        path = Path(person.state, "forks/one/record.json")
        record = json.loads(path.read_text())
        assert Group(record["cgroup"]).wait_empty(10)
        Group(record["cgroup"]).remove()
        for who in ("owner", "keeper", "command_process"):
            record[who] = {"boot_id": "another", "pid": bystander.pid, "start_time": 1}
        record["boot_id"] = "another"
        path.write_text(json.dumps(record))
        assert "before they were surely on disk" in hostfork(person, "recover", check=0).stdout
        assert json.loads(path.read_text())["torn"] is True
        assert "torn" in hostfork(person, "show", "one", check=0).stdout
        assert bystander.poll() is None
        hostfork(person, "discard", "one", "--yes", check=0)
        nothing_left(person)
    finally:
        bystander.kill()
        bystander.wait()


# --- the helper: killed at each of its calls, and a kernel that lacks one ---------------------------------------------

KILLED_AT = [
    ("recvmsg", 1), ("pidfd_open", 1), ("unshare", 1), ("mount", 1), ("open_tree", 1), ("fsopen", 1), ("fsconfig", 1),
    ("fsmount", 1), ("openat2", 1), ("move_mount", 1), ("statfs", 1), ("chdir", 1),
    ("pipe2", 1), ("clone3", 1), ("setsid", 1), ("signalfd4", 1), ("sendmsg", 1), ("sendmsg", 2), ("sendmsg", 9),
    ("sendmsg", 10), ("sendmsg", 11), ("sendmsg", 12), ("poll", 1), ("poll", 2), ("poll", 3), ("wait4", 1),
    ("wait4", 2),
]  # fmt: skip


@pytest.mark.rig("strace")
@pytest.mark.parametrize(("call", "when"), KILLED_AT)
def test_the_helper_is_killed(leaves_nothing, person, project, call, when):
    """At each of its calls: one typed error or none, no recovery needed, and what the command had written is kept."""
    _is_killed(person, project, call, when)


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", ["capset", "prctl"])
def test_the_helper_is_killed_as_it_drops_capabilities(leaves_nothing, user, ext4_disk, call):
    """Which root's helper does not."""
    project = f"{ext4_disk.folder(user)}/proj"
    user.call(rigs.write_files, project, FILES)
    _is_killed(user, project, call, 1)


def _is_killed(person, project, call, when):
    mode = ":live" if call in ("fsopen", "fsconfig", "fsmount") or when % 2 else ""
    inject = f"inject={call}:signal=KILL:when={when}"
    error, wrote, kept = person.call(_traced_run, project + mode, f"{project}.mark", call, inject)
    if error is not None:
        assert error[0] in ("VIEW_HELPER", "WORKLOAD_KEEPER"), error
    if wrote:
        assert [sorted(changes) for changes in kept] == [["b", "new"]]


def _traced_run(private, mark, call, inject):
    """A run whose helper is traced; gives the error, whether the command wrote, and what is kept. Recovery is idle."""
    _trace_helper(mark, call, inject)
    project = private.removesuffix(":live")
    script = f"echo x >new; rm b; echo >{mark}; sleep 0.2"
    rules = api.RuleOptions(private=(private,), scratch=(f"{project}/d",))
    error = None
    try:
        api.run(api.Request(command=("sh", "-c", script), rules=rules, cwd=project))
    except HostforkError as raised:
        error = (raised.code.name, raised.step, raised.message, raised.errno, raised.details)
    wrote, kept = os.path.exists(mark), []
    assert api.recover() == ()
    for fork in api.Fork.all():
        kept.append([change.path[len(project) + 1 :] for change in fork.diff().changes])
        assert fork.discard() == ()
    assert rigs.left_in_state(state_folder()) == []
    log = Path(f"{mark}.log").read_text()
    assert "killed by SIGKILL" in log if "signal" in inject else "INJECTED" in log, log
    return error, wrote, kept


def _trace_helper(mark, call, inject):
    """Start the helper below strace, which keeps its pid (-D) and follows nothing that it forks."""
    wrapper = f"{mark}.helper"
    with open(wrapper, "w") as file:
        file.write(f'#!/bin/sh\nexec strace -D -o {mark}.log -e trace={call} -e {inject} {spawn.helper_path()} "$@"\n')
    os.chmod(wrapper, 0o755)
    os.environ["PATH"] += ":/usr/bin"
    spawn.helper_path = lambda: wrapper


LACKING = [
    ("pidfd_open", "ENOSYS", "plan"), ("open_tree", "ENOSYS", "view"), ("mount", "EPERM", "propagation"),
    ("openat2", "ENOSYS", "view"), ("move_mount", "ENOSYS", "view"), ("clone3", "ENOSYS", "cgroup"),
    ("clone3", "EACCES", "cgroup"), ("setsid", "EPERM", "exec"),
    ("fsopen", "ENOSYS", "view"), ("fsopen", "ENODEV", "view"), ("fsconfig", "EINVAL", "view"),
    ("fsmount", "ENOSYS", "view"), ("unshare", "ENOSPC", "namespaces"),
]  # fmt: skip


@pytest.mark.rig("strace")
@pytest.mark.parametrize(("call", "number", "step"), LACKING)
def test_a_kernel_that_lacks_something(leaves_nothing, person, project, call, number, step):
    """A typed error names the step and the kernel's number; the command did not run; nothing is left."""
    mode = ":live" if call.startswith("fs") else ""
    inject = f"inject={call}:error={number}"
    error, wrote, kept = person.call(_traced_run, project + mode, f"{project}.mark", call, inject)
    assert error is not None
    assert error[:2] == ("WORKLOAD_CGROUP" if step == "cgroup" else "VIEW_FAILED", step)
    assert error[3] == getattr(errno, number)
    assert ("the fork's cgroup cannot be entered" if step == "cgroup" else step) in error[2]
    assert (wrote, kept) == (False, []) or call == "setsid"


@pytest.mark.rig("strace")
def test_a_kernel_without_mount_setattr(leaves_nothing, person, project):
    """What is to be read-only would not be: nothing is started."""
    error = person.call(_read_only_run, project, f"{project}.mark")
    assert error[:2] == ("VIEW_FAILED", "view")
    assert error[2] == errno.ENOSYS


def _read_only_run(project, mark):
    _trace_helper(mark, "mount_setattr", "inject=mount_setattr:error=ENOSYS")
    rules = api.RuleOptions(private=(project,), read_only=(f"{project}/d",))
    try:
        api.run(api.Request(command=("touch", mark), rules=rules, cwd=project))
    except HostforkError as raised:
        assert not os.path.exists(mark)
        assert api.Fork.all() == ()
        return raised.code.name, raised.step, raised.errno


# --- pools and disks -------------------------------------------------------------------------------------------------


def test_no_room_for_the_copy(hostfork, person, project, make_disk):
    """Refused with sizes and remedies; nothing of the copy stays, and the source is as it was."""
    Path(project, "big").write_bytes(os.urandom(1 << 20) * 30)
    pool = make_disk("ext4", 24).folder(person)
    os.chmod(pool, 0o700)
    command = ("--private", project, "--pool", pool, "--", "touch", f"{project}.ran")
    lines = refused(hostfork, person, "storage.no-space", "run", *command)
    assert "--pool DIR" in lines
    assert "free" in lines
    assert not os.path.exists(f"{project}.ran")
    left = [name for _, folders, files in os.walk(pool) for name in folders + files if name != "copy"]
    assert [name for name in left if not name.startswith(".state-")] == []
    nothing_left(person)


@pytest.mark.parametrize("mode", MODES)
def test_no_room_during_the_run(hostfork, person, project, make_disk, mode):
    """The command sees it; what it had written is collected all the same."""
    pool = make_disk("ext4", 24).folder(person)
    os.chmod(pool, 0o700)
    command = ("sh", "-c", "echo first >first; dd if=/dev/zero of=big bs=64k 2>&1; echo then; exit 7")
    arguments = ("run", "--name", "one", "--private", project + mode, "--pool", pool, "--", *command)
    done = hostfork(person, *arguments, cwd=project, check=7)
    assert "No space left" in done.stdout
    assert "kept as one" in done.stderr
    entries = json.loads(hostfork(person, "diff", "one", "--json", check=0).stdout)["entries"]
    changed = {os.path.basename(entry["path"]): entry["change"] for entry in entries}
    assert changed["first"] == changed["big"] == "created"
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


@pytest.mark.parametrize("mode", MODES)
def test_no_room_for_the_record(hostfork, person, project, ext4_disk, make_disk, mode):
    """The state folder's disk fills up during the run: typed, nothing is lost, and recovery keeps it later."""
    small = make_disk("ext4", 16).folder(person)
    pool = ext4_disk.folder(person)
    os.chmod(pool, 0o700)
    environment = {"XDG_STATE_HOME": small}
    fill = f"echo x >new; rm b; dd if=/dev/zero of={small}/fill bs=64k; dd if=/dev/zero of={small}/more bs=512; exit 0"
    arguments = ("run", "--name", "one", "--private", project + mode, "--pool", pool, "--", "sh", "-c", fill)
    done = hostfork(person, *arguments, cwd=project, env=environment, check=125)
    assert "code fork.state" in done.stderr
    assert done.stderr.count("No space left") == 3
    assert "one" in hostfork(person, "list", check=0, env=environment).stdout
    os.unlink(f"{small}/fill")
    os.unlink(f"{small}/more")
    assert "2 changes are kept" in hostfork(person, "recover", check=0, env=environment).stdout
    entries = json.loads(hostfork(person, "diff", "one", "--json", check=0, env=environment).stdout)["entries"]
    assert [entry["change"] for entry in entries] == ["deleted", "created"]
    hostfork(person, "discard", "one", "--yes", check=0, env=environment)
    assert os.listdir(f"{small}/hostfork/forks") == []
    assert [files for _, _, files in os.walk(pool) if files] == []


@pytest.mark.parametrize("left", [0, 40 << 10])
def test_no_room_to_begin_with(hostfork, person, project, ext4_disk, make_disk, left):
    """The state folder's disk is full, or full once the tree is copied: typed, nothing is started, nothing is left."""
    small = make_disk("ext4", 16).folder(person)
    pool = ext4_disk.folder(person)
    os.chmod(pool, 0o700)
    person.call(_many_files, project)
    person.call(_fill, f"{small}/fill", left)
    arguments = ("run", "--private", project, "--pool", pool, "--", "touch", f"{project}.ran")
    lines = refused(hostfork, person, "fork.state", *arguments, env={"XDG_STATE_HOME": small})
    assert "No space left" in lines
    assert not os.path.exists(f"{project}.ran")
    # What takes longer than a moment is erased in the background.
    rigs.wait_until(lambda: not [files for kind in os.scandir(pool) for _, _, files in os.walk(kind) if files])
    assert [files for _, _, files in os.walk(f"{small}/hostfork") if files] == []


def _many_files(project):
    for number in range(3000):
        Path(project, "d", f"file{number}").touch()


def _fill(path, left):
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    for size in (1 << 20, 4096, 1):
        with contextlib.suppress(OSError):
            while os.write(file, b"x" * size):
                continue
    os.truncate(path, os.stat(path).st_size - left)


def test_pools_that_cannot_be_used(hostfork, person, project, root, user, ext4_disk, tmpfs_disk):
    """Another user's, one open to others, one that is a file, below a private path: each refused, nothing made."""
    other = ext4_disk.folder(user if person.uid == 0 else root)
    os.chmod(other, 0o700)
    opened = ext4_disk.folder(person)
    os.chmod(opened, 0o755)
    refusals = [(other, "belongs to user"), (opened, "open to others"), (f"{project}/a", "cannot be made")]
    if person.uid != 0:
        refusals.append((f"{other}/inside", "cannot be made"))
    for pool, why in refusals:
        command = ("run", "--private", project, "--pool", pool, "--", "touch", f"{project}.ran")
        lines = refused(hostfork, person, "storage.pool", *command)
        assert pool in lines
        assert why in lines
    assert not os.path.exists(f"{project}.ran")
    assert sorted(os.listdir(project)) == ["a", "b", "d"]
    nothing_left(person)


def test_a_pool_below_a_private_path(hostfork, person, project):
    """It is left out of the copy, covered in the view and absent in the changeset; the plan says so."""
    pool = f"{project}/pool"
    assert "left out" in hostfork(person, "plan", "--private", project, "--pool", pool, check=0).stdout
    for mode in MODES:
        command = ("sh", "-c", "ls pool; echo x >new")
        done = hostfork(person, "run", "--private", project + mode, "--name", "one", "--pool", pool, "--", *command,
                        cwd=project, check=0)  # fmt: skip
        assert done.stdout == ""
        entries = json.loads(hostfork(person, "diff", "one", "--json", check=0).stdout)["entries"]
        assert [os.path.basename(entry["path"]) for entry in entries] == ["new"]
        hostfork(person, "discard", "one", "--yes", check=0)
    assert [files for _, _, files in os.walk(pool) if files] == []
    nothing_left(person)


def test_a_pool_in_memory(hostfork, person, project, tmpfs_disk):
    """The state folder on tmpfs is no pool by itself; named, it is."""
    memory = tmpfs_disk.folder(person)
    environment = {"XDG_STATE_HOME": memory}
    lines = refused(hostfork, person, "storage.pool", "run", "--private", project, "--", "true", env=environment)
    assert "lies in memory" in lines
    assert "--pool DIR" in lines
    pool = f"{memory}/pool"
    keep(hostfork, person, project, extra=("--pool", pool))
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


@pytest.fixture
def read_only(leaves_nothing):
    """`read_only(folder)`: it can only be read from then on, by root too."""
    mounted = []

    def make(folder):
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        mounted.append(folder)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)

    yield make
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_pool_on_a_read_only_filesystem(hostfork, person, project, ext4_disk, read_only):
    """Said before anything is made."""
    pool = ext4_disk.folder(person)
    os.chmod(pool, 0o700)
    read_only(pool)
    command = ("run", "--private", project, "--pool", pool, "--", "true")
    assert "read-only" in refused(hostfork, person, "storage.pool", *command).lower()
    nothing_left(person)


def test_a_state_folder_that_can_only_be_read(hostfork, person, project, read_only):
    """What is there can be listed, shown, read and exported; what would change it is one typed error."""
    keep(hostfork, person, project)
    orphan(person, project, name="two")
    read_only(person.state)
    listed = hostfork(person, "list", check=0).stdout
    assert "idle" in listed
    assert "orphaned" in listed
    hostfork(person, "show", "one", check=0)
    assert len(json.loads(hostfork(person, "diff", "one", "--json", check=0).stdout)["entries"]) == 3
    hostfork(person, "export", "one", f"{person.home}/out", check=0)
    refused(hostfork, person, "fork.state", "discard", "one", "--yes")
    done = hostfork(person, "recover", check=1)
    assert "Traceback" not in done.stderr
    assert "Read-only file system" in done.stderr
    done = hostfork(person, "run", "--private", project, "--", "touch", f"{project}.ran", check=125)
    assert "ead-only" in done.stderr
    assert "internal.fault" not in done.stderr
    assert not os.path.exists(f"{project}.ran")
    subprocess.run(["umount", person.state], check=True)
    subprocess.run(["mount", "--bind", person.state, person.state], check=True)
    assert "kept" in hostfork(person, "recover", check=0).stdout
    hostfork(person, "discard", "one", "two", "--yes", check=0)
    nothing_left(person)


def test_a_state_folder_that_cannot_be_read(hostfork, user):
    """Not the same as no forks."""
    os.makedirs(f"{user.state}/forks", mode=0o700)
    for verb in (("list",), ("show", "one"), ("diff", "one"), ("recover",)):
        refused(hostfork, user, "fork.state", *verb)


# --- what else comes at the same time --------------------------------------------------------------------------------


WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(file, b"x" * (80 << 20), 0)
print(flush=True)
number = 0
while True:
    number += 1
    os.pwrite(file, b"%d" % number, number % (80 << 20))
"""


def test_files_that_keep_changing(hostfork, person, project):
    """Three tries, then the paths; the command does not run, nothing is left; a writer elsewhere is no matter."""
    busy = f"{project}/d/busy"
    writers = [person.popen([sys.executable, "-c", WRITER, busy], stdout=subprocess.PIPE) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        try:
            for writer in writers:
                stack.enter_context(writer)
                writer.stdout.readline()
            command = ("run", "--private", project, "--", "touch", f"{project}.ran")
            lines = refused(hostfork, person, "storage.unstable", *command)
            assert busy in lines
            assert "1 file " in lines
            assert not os.path.exists(f"{project}.ran")
            nothing_left(person)
        finally:
            for writer in writers:
                writer.kill()


def test_two_rules_for_one_path(hostfork, person, project):
    """Contradictions are refused with both places; the same rule twice is one."""
    for first, second in (("--private", "--read-only"), ("--hidden", "--private"), ("--scratch", "--shared")):
        refused(hostfork, person, "policy.conflict", "run", first, project, second, project, "--", "true")
    refused(
        hostfork, person, "policy.conflict", "run", "--private", project, "--private", f"{project}:live", "--", "true"
    )
    nothing_left(person)


def test_one_name_for_twenty_at_once(hostfork, person, project):
    """Exactly one wins; the others say who has it."""
    command = [PROGRAM, "run", "--name", "one", "--keep", "--private", project + ":live", "--", "sleep", "1"]
    runs = [person.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(20)]
    said = [run.communicate() for run in runs]
    assert sorted(run.returncode for run in runs) == [0] + [125] * 19, said
    assert sum("code fork.name-taken" in err for _, err in said) == 19
    hostfork(person, "discard", "one", "--yes", check=0)
    nothing_left(person)


def test_thirty_at_once(hostfork, person, project):
    """With names of chance, each with its own changes, while recovery runs over and over: nobody is disturbed."""
    recovery = person.popen(["sh", "-c", f"while :; do {PROGRAM} recover || echo failed; done"], stdout=subprocess.PIPE)
    try:
        runs = []
        for number in range(30):
            mode = MODES[number % 2]
            script = (
                f"for i in 1 2 3; do cat a >/dev/null || exit 9; sleep 0.05; done; echo {number} >own; exit {number}"
            )
            command = [PROGRAM, "run", "--private", project + mode, "--", "sh", "-c", script]
            runs.append(person.popen(command, cwd=project, stderr=subprocess.PIPE, text=True))
        said = [run.communicate()[1] for run in runs]
    finally:
        recovery.kill()
        told = recovery.communicate()[0]
    assert [run.returncode for run in runs] == list(range(30)), said
    assert told == b""
    forks = json.loads(hostfork(person, "list", "--json", check=0).stdout)["forks"]
    assert len(forks) == 30
    assert person.call(_own_files) == list(range(30))
    hostfork(person, "discard", "--all", "--yes", check=0)
    nothing_left(person)


def _own_files():
    found = []
    for fork in api.Fork.all():
        (change,) = fork.diff().changes
        out = os.path.join(os.environ["HOME"], f"out-{fork.name}")
        fork.export(out, api.ExportForm.CHANGES_ONLY)
        found.append(int(Path(out, os.path.basename(change.path)).read_text()))
    return sorted(found)
