"""What crashes leave, and that recovery puts all of it right: nothing stays behind, and no evidence is lost."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rigs
from hostfork import api
from hostfork.lifecycle import release
from hostfork.lifecycle.store import Store, state_folder
from hostfork.values import replace

# What a kill leaves is judged by the cgroup that owned it.
pytestmark = pytest.mark.rig("cgroup")

PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
KILLER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kill_runs.py")
MODES = ("", ":live", ":overlay")
FILES = {"a": "a", "b": "b", "d/c": "d/c", "d/e/f": "d/e/f", "scratch/": ""}


@pytest.fixture
def project(person, ext4_disk):
    """A small project of the person's."""
    return rigs.make_project(person, ext4_disk.folder(person), FILES)


def kill(person, how, project, mode, rounds, seed=1, **options):
    """Let the program kill that often; gives its rounds. A round that left something is told whole."""
    done = person.run([sys.executable, KILLER, how, project, mode, str(rounds), str(seed)], timeout=150, **options)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{done.stderr}\n" + (json.dumps(told[-1], indent=1) if told else "")
    assert rounds in (0, len(told))
    return told


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("how", "rounds"),
    [("times", 40), ("group", 25), ("calls", 60), ("program", 15), ("life", 15), ("keeper", 25), ("command", 10)],
)
def test_a_kill_at_any_moment(leaves_nothing, person, project, mode, how, rounds):
    """Five hundred and more kills (CASES 21): no process, no mount, no storage, no group, no lost evidence."""
    kill(person, how, project, mode, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*MODES, "relocated"])
@pytest.mark.parametrize(("how", "rounds"), [("times", 10), ("group", 10), ("calls", 15), ("keeper", 15), ("steps", 0)])
def test_a_kill_where_no_cgroup_owns_the_tree(leaves_nothing, user, ext4_disk, mode, how, rounds):
    """The keeper as subreaper, and in recovery variables and view alone, end all of it."""
    project = os.path.join(ext4_disk.folder(user), "proj")
    user.call(rigs.write_files, project, FILES)
    kill(user, how, project, mode, rounds, delegated=False)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "rounds"), [("times", 10), ("calls", 15), ("keeper", 10), ("steps", 0)])
def test_a_kill_of_a_relocated_run(leaves_nothing, person, project, how, rounds):
    """Without a view there is no namespace to look in."""
    kill(person, how, project, "relocated", rounds)


def test_a_kill_in_the_middle_of_a_large_copy(hostfork, person, project):
    """Its workers end with their owner; recovery right after it removes the half copy whole."""
    person.call(_many_files, project)
    for delay in (0, 0.01, 0.02, 0.04, 0.08):
        command = [PROGRAM, "run", "-q", "--private", project + ":copy", "--", "true"]
        owner = person.popen(command, cwd=project)
        rigs.wait_until(lambda: list(Path(person.state).glob("pool/copy/new-*/tree/d/file*")))
        time.sleep(delay)
        owner.kill()
        owner.wait()
        hostfork(person, "recover", check=0)
        assert os.listdir(f"{person.state}/forks") == []
        pool = f"{person.state}/pool"
        assert [name for kind in os.listdir(pool) for name in os.listdir(f"{pool}/{kind}")] == []


def _many_files(project):
    for number in range(6000):
        Path(project, "d", f"file{number}").write_bytes(b"x" * 5000)


def test_a_fork_that_is_being_made_is_not_broken(leaves_nothing, person):
    """Between its name and its record it is nobody's to see; without an owner it can be seen, and removed."""
    assert person.call(_being_made) == ([], ["one"], ["was never made; removed"])


def _being_made():
    store = Store(state_folder())
    folder = store.create("one")
    during = [fork.name for fork in api.Fork.all()]
    assert api.recover() == ()
    folder.close()
    after = [fork.name for fork in api.Fork.all()]
    return during, after, [item.what for item in api.recover()]


def test_a_kill_before_and_after_every_step(leaves_nothing, person, project):
    """Every write of record and journal, every group, key and step of the end: killed before it, and after it."""
    for mode in MODES:
        told = kill(person, "steps", project, mode, 0)
        assert len(told) > 40
        assert any(not one["wrote"] for one in told)
        assert any(one["wrote"] for one in told)
        assert any("kept" in line for one in told for line in one["recovered"])
        assert any("released" in line for one in told for line in one["recovered"])


def test_a_kill_of_recovery_itself(leaves_nothing, person, project):
    """Before and after each of its steps: the next recovery does the rest, and the changes are still there."""
    for mode in MODES:
        told = kill(person, "recover", project, mode, 0)
        assert len(told) > 20
        assert all(one["wrote"] and len(one["kept"]) == 1 for one in told)


def test_a_kill_of_a_discard(leaves_nothing, person, project):
    """The fork is there as it was, or recovery finishes what was begun."""
    for mode in MODES:
        told = kill(person, "discard", project, mode, 0)
        assert len(told) > 8
        assert {len(one["kept"]) for one in told} == {0, 1}
        assert any("released" in line for one in told for line in one["recovered"])


def start(person, project, script, *, mode="", name="one", extra=()):
    """`hostfork run` of a script that says on stdout when it is ready; gives the process and the record."""
    command = [PROGRAM, "run", "-q", "--name", name, "--private", project + mode, *extra, "--", "sh", "-c", script]
    owner = person.popen(command, cwd=project, start_new_session=True, stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"ready\n"
    path = Path(person.state, f"forks/{name}/record.json")
    rigs.wait_until(lambda: json.loads(path.read_text())["activity"] == "running")
    return owner, json.loads(path.read_text())


def ended(owner):
    """Wait for it alone: what it left running may hold its end of the pipe."""
    owner.wait(60)
    owner.stdout.close()


def lives(pid):
    """Whether a process is there and not a zombie."""
    return rigs.is_alive(pid)


def discard(person, project):
    """What the only fork changed; then it is thrown away and nothing is left."""
    return person.call(_discard, project)


def _discard(project):
    (fork,) = api.Fork.all()
    changed = {change.path[len(project) + 1 :]: change.change.value for change in fork.diff().changes}
    assert fork.discard() == ()
    # baselines stay, and so does what its log tells
    kept = tuple(os.path.join(state_folder(), name) for name in ("pool/baseline", "logs"))
    assert [files for place, _, files in os.walk(state_folder()) if files and not place.startswith(kept)] == []
    return changed


@pytest.mark.parametrize("who", ["owner", "group"])
def test_the_owner_is_killed(hostfork, person, project, who):
    """SIGKILL to it or to the caller's whole process group: the keeper ends the tree, and writes down what happened."""
    script = "trap '' TERM HUP; echo x >new; setsid sleep 1000 & echo $! >pid; echo ready; sleep 1000"
    owner, record = start(person, project, script)
    inside = [record["command_process"]["pid"], *rigs.pids_below(record["cgroup"])]
    assert len(inside) > 2
    os.kill(owner.pid, signal.SIGKILL) if who == "owner" else os.killpg(owner.pid, signal.SIGKILL)
    rigs.wait_until(lambda: not any(map(lives, [*inside, record["keeper"]["pid"]])))
    ended(owner)
    journal = Path(person.state, "forks/one/journal.jsonl").read_text().splitlines()
    assert json.loads(journal[-1])["event"] == "ended-without-owner"
    (line,) = hostfork(person, "recover", check=0).stdout.splitlines()
    assert "2 changes are kept" in line
    assert discard(person, project) == {"new": "created", "pid": "created"}


def test_the_status_is_known_although_the_owner_died(hostfork, person, project):
    """The keeper saw the command's end before it saw the owner's."""
    owner, record = start(person, project, "echo x >new; echo ready; sleep 0.3; exit 7")
    os.kill(owner.pid, signal.SIGSTOP)
    rigs.wait_until(lambda: not lives(record["command_process"]["pid"]))
    owner.kill()
    ended(owner)
    rigs.wait_until(lambda: not lives(record["keeper"]["pid"]))
    journal = Path(person.state, "forks/one/journal.jsonl").read_text()
    hostfork(person, "recover", check=0)
    shown = json.loads(hostfork(person, "show", "one", "--json", check=0).stdout)
    assert shown["status"] is not None, journal
    assert shown["status"]["exit"] == 7
    assert discard(person, project) == {"new": "created"}


def test_the_keeper_is_killed(hostfork, person, project):
    """The owner ends the tree, says what is not known, and keeps the changes."""
    script = "setsid sleep 1000 & echo x >new; echo ready; sleep 1000"
    owner, record = start(person, project, script)
    inside = rigs.pids_below(record["cgroup"])
    os.kill(record["keeper"]["pid"], signal.SIGKILL)
    ended(owner)
    assert owner.returncode == 125
    assert not any(map(lives, inside))
    assert hostfork(person, "recover", check=0).stdout == ""
    assert discard(person, project) == {"new": "created"}


def test_a_keeper_that_hangs_is_no_obstacle(hostfork, person, project):
    """Stopped, with its owner dead: recovery ends the tree and the keeper."""
    owner, record = start(person, project, "echo x >new; echo ready; sleep 1000")
    os.kill(record["keeper"]["pid"], signal.SIGSTOP)
    owner.kill()
    ended(owner)
    assert "1 change is kept" in hostfork(person, "recover", check=0).stdout
    assert not lives(record["keeper"]["pid"])
    assert discard(person, project) == {"new": "created"}


ESCAPE = (
    "g=$(sed -n 's/^0:://p' /proc/self/cgroup); m=$(awk '/ - cgroup2 /{print $5}' /proc/self/mountinfo);"
    "(echo 0 >$m${g%/*}/elsewhere/cgroup.procs && exec env -i setsid sleep 1000) & p=$!;"
    "while ! grep -q /elsewhere$ /proc/$p/cgroup || ! grep -q sleep /proc/$p/comm; do sleep 0.01; done;"
    "echo $p >escaped; echo ready;"
)


@pytest.fixture
def elsewhere(person):
    """A group beside the fork's that belongs to the person too."""
    path = os.path.join(person.cgroup, "elsewhere")
    person.call(os.mkdir, path)
    yield path
    rigs.wait_until(lambda: not rigs.pids_below(path))
    os.rmdir(path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dead", ["nobody", "keeper", "owner and keeper"])
def test_a_process_that_moved_itself_away(hostfork, person, project, elsewhere, mode, dead):
    """In another group of the user's, without any variable: found by the view that it sees, whoever still lives."""
    end = "exit 0" if dead == "nobody" else "sleep 1000"
    owner, record = start(person, project, ESCAPE + end, mode=mode)
    (escaped,) = rigs.pids_below(elsewhere) or (0,)
    if dead == "owner and keeper":
        os.kill(record["keeper"]["pid"], signal.SIGSTOP)
        owner.kill()
        owner.wait()
        assert lives(escaped)
    if dead != "nobody":
        os.kill(record["keeper"]["pid"], signal.SIGKILL)
    ended(owner)
    recovered = hostfork(person, "recover", check=0).stdout
    assert ("1 change is kept" in recovered) == (dead == "owner and keeper")
    assert not lives(escaped)
    assert discard(person, project) == {"escaped": "created"}


def test_a_sibling_does_not_end_with_a_dead_fork(hostfork, person, project):
    """Two forks of one project: one loses owner, keeper and command; its recovery leaves the other alone."""
    owner, record = start(person, project, "echo x >new; echo ready; sleep 1000", name="dead")
    other, living = start(person, project, "echo ready; exec sleep 1000", name="alive")
    os.kill(record["keeper"]["pid"], signal.SIGKILL)
    owner.kill()
    ended(owner)
    for _ in range(3):
        hostfork(person, "recover", check=0)
    assert lives(living["command_process"]["pid"])
    hostfork(person, "discard", "dead", "--yes", check=0)
    assert "is running" in hostfork(person, "export", "alive", "x", check=125).stderr
    os.kill(living["command_process"]["pid"], signal.SIGTERM)
    ended(other)
    assert other.returncode == 128 + signal.SIGTERM


SIBLING = """
import os, sys, threading, time
from hostfork import api
def forking(event):
    if type(event).__name__ == "StartedCommand" and os.fork() == 0:
        time.sleep(1000)
rules = api.RuleOptions(private=(sys.argv[1],))
outcome = api.run(api.Request(("sh", "-c", sys.argv[2]), rules=rules, cwd=sys.argv[1], name="one"), on_event=forking)
print(outcome.kept, flush=True)
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_process_forked_by_the_owner_holds_nothing_up(hostfork, person, project, killed):
    """It has the lock's descriptor and the channel's: that keeps neither a discard nor a recovery from its work."""
    script = "echo x >new; sleep 1000" if killed else "echo x >new"
    owner = person.popen([sys.executable, "-c", SIBLING, project, script], stdout=subprocess.PIPE)
    if killed:
        path = Path(person.state, "forks/one/record.json")
        rigs.wait_until(lambda: path.exists() and json.loads(path.read_text())["activity"] == "running")
        siblings = Path(f"/proc/{owner.pid}/task/{owner.pid}/children")
        rigs.wait_until(lambda: len(siblings.read_text().split()) == 2)
        owner.kill()
        owner.wait()
        assert "1 change is kept" in hostfork(person, "recover", check=0).stdout
    else:
        assert owner.stdout.readline() == b"True\n"
    assert discard(person, project) == {"new": "created"}
    _end_python(person, owner)


def _end_python(person, owner):
    """End the program and what it forked."""
    for pid in [owner.pid, *rigs.pids_below(person.cgroup)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended(owner)


def test_what_nobody_owns_in_the_pool(hostfork, person, project):
    """Half made, half removed, and what a killed trial left: removed; what a fork owns stays, and what is not ours."""
    hostfork(person, "run", "-q", "--name", "one", "--private", project, "--", "touch", f"{project}/new", check=0)
    person.call(_litter, f"{person.state}/pool")
    done = hostfork(person, "recover", check=0)
    assert "7 pieces of private storage" in done.stdout
    assert hostfork(person, "recover", check=0).stdout == ""
    assert sorted(os.listdir(f"{person.state}/pool")) == ["copy", "mine", "overlay", "scratch"]
    assert os.listdir(f"{person.state}/pool/copy") == ["one.0"]
    assert discard(person, project) == {"new": "created"}


def _litter(pool):
    for name in ("copy/new-two.0", "copy/two.0", "copy/rm-two.1", "overlay/three.0", "scratch/new-one-more.0"):
        os.makedirs(f"{pool}/{name}/tree/d")
        os.chmod(f"{pool}/{name}/tree", 0)
    os.mkdir(f"{pool}/.probe-{2**22 + 1}-7")
    Path(f"{pool}/probe-{2**22 + 1}-8").touch()
    os.mkdir(f"{pool}/mine")


def test_a_fork_of_another_pool_with_the_same_name_is_nobodys(hostfork, person, project, tmp_path):
    """The kernel gives the number of a namespace again: then only the place of its storage tells whose a process is."""
    for mode in MODES:
        owner, _ = start(person, project, "echo ready; exec sleep 1000", mode=mode)
        (fork,) = person.call(api.Fork.all)
        own, other = fork.record, replace(fork.record, pool=str(tmp_path))
        table = Path(f"/proc/{own.command_process.pid}/mountinfo").read_text()
        assert any(place in table for place in release.places(own)), mode
        assert not any(place in table for place in release.places(other)), mode
        os.kill(own.command_process.pid, signal.SIGKILL)
        ended(owner)
        hostfork(person, "discard", "--all", "--yes")
