"""Bad input and real faults: every one is a typed error that says where, and nothing is left behind."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from hostfork import api
from hostfork.errors import HostforkError

PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
MODES = ("", ":live")
CHANGE = ("--", "sh", "-c", "echo x >new; echo y >>a; rm b")


@pytest.fixture
def project(person, ext4_disk):
    """A small project of the person's."""
    folder = os.path.join(ext4_disk.folder(person), "proj")
    person.call(make_project, folder)
    return folder


def make_project(folder):
    os.makedirs(f"{folder}/d/e")
    for name in ("a", "b", "d/c", "d/e/f"):
        Path(folder, name).write_text(name)


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
    found = []
    for here, _folders, files in os.walk(person.state):
        found += [os.path.join(here, name) for name in files]
        if os.path.basename(os.path.dirname(here)) in ("copy", "overlay", "scratch", "forks"):
            found.append(here)
    assert found == []


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


def orphan(person, project, mode="", extra=(), group=True):
    """A run whose owner, keeper and command were all killed after the command had written."""
    mark = f"{project}.mark"
    script = f"echo x >new; echo y >>a; rm b; echo >{mark}; exec sleep 1000"
    owner = person.popen(
        [PROGRAM, "run", "-q", "--name", "one", "--private", project + mode, *extra, "--", "sh", "-c", script],
        cwd=project, start_new_session=True,
    )  # fmt: skip
    wait_for(mark)
    path = Path(person.state, "forks/one/record.json")
    wait_until(lambda: json.loads(path.read_text())["activity"] == "running")
    record = json.loads(path.read_text())
    os.kill(record["keeper"]["pid"], signal.SIGSTOP)
    owner.kill()
    owner.wait()
    os.kill(record["keeper"]["pid"], signal.SIGKILL)
    if group:
        os.kill(record["command_process"]["pid"], signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{record['command_process']['pid']}/ns/mnt"))
    os.unlink(mark)
    return record


def wait_for(path, seconds=30):
    wait_until(lambda: os.path.exists(path), seconds)


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


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
        os.rmdir(record["cgroup"])
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
