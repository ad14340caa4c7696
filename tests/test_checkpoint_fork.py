"""Checkpoints of forks: made, listed, restored, by every mechanism; running forks; what kills and damage leave."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from hostfork import api
from hostfork.checkpoint import boundary
from hostfork.checkpoint.boundary import Boundary
from hostfork.collect.scan import full_manifest
from rigs import Disk, Person, make_project, wait_until, write_files
from storage_cases import make_subvolume

MECHANISMS = [
    ("btrfs", "btrfs"), ("btrfs", "overlay"), ("btrfs", "reflink"), ("xfs", "reflink"), ("ext4", "overlay"),
    ("ext4", "live"), ("ext4", "copy"), ("xfs", "overlay"),
]  # fmt: skip
FILES = {
    "same": "s", "edit": "one\n", "gone": "g", "d/a": "1", "d/b": "2", "d/e/f": "3", "type": "file", "exec": "x",
    "src/deep/er/file": "content\n",
}  # fmt: skip
FIRST = """
echo two >edit; rm gone; rm -r d; mkdir d; echo c >d/c; rm type; mkdir type; echo t >type/t; chmod 755 exec
mkfifo pipe; ln -s edit link; ln edit hard; mkdir -m 700 closed; echo x >closed/y; chmod 500 closed
echo secret >shut; chmod 0 shut
truncate -s 1M holes; touch -d @1000000000 d/c; echo new >'odd
name'
"""
SECOND = """
echo three >edit; rm hard link; rm -r type; echo file >type; echo back >gone; mkdir -p d/e; echo 3 >d/e/f
chmod 700 closed; rm -rf closed shut; chmod 600 exec; echo more >same; rm pipe; mkdir pipe; rm -r src
"""


@pytest.fixture(params=MECHANISMS, ids=lambda pair: "-".join(pair))
def place(request: pytest.FixtureRequest) -> tuple[Disk, str]:
    kind, mechanism = request.param
    disk: Disk = request.getfixturevalue(f"{kind}_disk")
    return disk, mechanism


def visible(path: str) -> dict[str, Any]:
    """Everything below it with times of files, owners and links."""
    found = full_manifest(path, ours=True)
    times = {
        name: os.lstat(os.path.join(path, name)).st_mtime_ns for name, entry in found.entries.items() if name
    }  # fmt: skip
    return {
        "entries": {name: (one.facts, one.digest, one.attributes) for name, one in found.entries.items()},
        "links": sorted(found.hard_links()), "times": times,
    }  # fmt: skip


class Lasting:
    """A fork that is there to be entered, of a project with these files."""

    def __init__(self, hostfork: Callable[..., Any], person: Person, disk: Disk, mechanism: str) -> None:
        self._hostfork, self.person = hostfork, person
        self.project = f"{disk.folder(person)}/proj"
        if mechanism == "btrfs":
            person.call(make_subvolume, self.project)
            person.call(write_files, self.project, FILES)
        else:
            make_project(person, os.path.dirname(self.project), FILES)
        self.disk = disk
        self.pool = os.path.join(disk.folder(person, "pools"), "pool")
        self.options = ("--private", f"{self.project}:{mechanism}", "--pool", self.pool)
        self("create", "it", *self.options)

    def __call__(self, *args: str, check: int | None = 0, **options: Any) -> Any:
        return self._hostfork(self.person, *args, check=check, **options)

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "--json").stdout)

    def do(self, script: str, check: int = 0) -> None:
        self("exec", "it", "--", "sh", "-c", f"cd {self.project} && {script}", check=check)

    def start(self, script: str) -> "subprocess.Popen[Any]":
        """A command that goes on."""
        program = os.path.join(sys.prefix, "bin", "hostfork")
        return self.person.popen([program, "exec", "it", "--", "sh", "-c", f"cd {self.project} && {script}"])

    def holds(self, name: str = "it") -> dict[str, Any]:
        """What a whole export holds."""
        out = os.path.join(self.disk.folder(self.person, "out"), f"{time.monotonic_ns()}")
        self("export", name, out)
        found: dict[str, Any] = self.person.call(visible, out)
        return found


SHOWN = """
find . ! -type d -printf '%p %y %m %s %T@ %l\\n' 2>/dev/null | sort
find . -type d -printf '%p %m\\n' 2>/dev/null | sort
find . -type f -perm -400 -exec sha256sum {} + 2>/dev/null | sort
chmod u+rwx closed shut; find closed shut -type f -exec sha256sum {} + | sort
"""
"""All that a fork shows to who is in it, and then what it keeps closed to that user."""


@pytest.mark.parametrize("who", ["root", "user"])
def test_a_fork_goes_back_and_forth_between_its_checkpoints(
    who: str, place: tuple[Disk, str], hostfork: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    fork = Lasting(hostfork, request.getfixturevalue(who), *place)
    known = {}
    for script in ("true", FIRST, SECOND):
        fork.do(script)
        made = fork.json("checkpoint", "it", "-m", script[:5])
        assert made["new"]
        assert not fork.json("checkpoint", "it")["new"]
        known[made["checkpoint"]] = fork.holds(), fork.json("diff", "it")["entries"]
    ids = list(known)
    assert [one["checkpoint"] for one in fork.json("checkpoints", "it")["checkpoints"]] == ids
    for wanted in (ids[0], ids[2], ids[1], ids[0]):
        done = fork.json("restore", "it", wanted[:10])
        assert (done["checkpoint"], done["changed"], done["incomplete"]) == (wanted, True, [])
        assert (fork.holds(), fork.json("diff", "it")["entries"]) == known[wanted]
        assert fork.json("checkpoint", "it")["checkpoint"] == wanted
        assert not fork.json("restore", "it", wanted)["changed"]
    # A baseline of one of them holds the same, and so does a fork of that.
    fork("baseline", "create", "kept", "--from-checkpoint", f"it@{ids[1]}", "--pool", fork.pool)
    fork("create", "other", "--base", "kept", "--pool", fork.pool)
    fork("restore", "it", ids[1])
    shown = [fork("exec", name, "--", "sh", "-c", f"cd {fork.project}; {SHOWN}").stdout for name in ("it", "other")]
    assert shown[0] == shown[1]
    assert "closed" in shown[0]
    fork("discard", "other", "--yes")
    fork("create", "other", "--base", "kept", "--pool", fork.pool)
    if who == "root":  # a user's export leaves out what a base keeps closed
        assert fork.holds("other") == known[ids[1]][0]
    fork("discard", "other", "--yes")
    fork("baseline", "remove", "kept")
    # It can be entered again, and is undone.
    fork.do("echo unsaved >unsaved")
    done = fork.json("restore", "it", ids[0])
    fork("restore", "it", done["before"])
    assert "unsaved" in fork.holds()["entries"]
    assert len(fork.json("checkpoints", "it")["checkpoints"]) == 4
    fork("discard", "it", "--yes")


class Killed:
    """Ends the calling process at the n-th time that a boundary is passed."""

    def __init__(self, at: Boundary, time: int) -> None:
        self._at, self._left = at, time

    def __call__(self, passed: Boundary) -> None:
        self._left -= passed is self._at
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(person: Person, at: Boundary, number: int, act: Callable[[], object]) -> bool:
    """Do it in a process that ends at a boundary; whether it came to that."""

    def child() -> None:
        os.environ["XDG_STATE_HOME"] = os.path.dirname(person.state)
        os.environ["HOME"] = person.home
        pytest.MonkeyPatch().setattr(boundary, "passed", Killed(at, number))
        act()

    try:
        person.call(child)
    except ChildProcessError:
        return True
    return False


MAKING = [one for one in Boundary if list(Boundary).index(one) <= list(Boundary).index(Boundary.LISTED)]
RESTORING = [one for one in Boundary if one not in MAKING]


@pytest.mark.parametrize(("kind", "mechanism"), [("btrfs", "btrfs"), ("ext4", "overlay"), ("ext4", "copy")])
def test_a_checkpoint_that_is_killed_anywhere_is_there_whole_or_not_at_all(
    kind: str, mechanism: str, user: Person, hostfork: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    fork = Lasting(hostfork, user, request.getfixturevalue(f"{kind}_disk"), mechanism)
    first = fork.json("checkpoint", "it")["checkpoint"]
    passed = set()
    for number, at in enumerate(MAKING):
        fork.do(f"echo {number} >edit; echo {number} >new; echo same >d/{number}")
        before = fork.holds()
        known = fork.json("checkpoints", "it")["checkpoints"]
        if not killed(user, at, 1, lambda: api.checkpoint("it")):
            continue
        passed.add(at)
        fork("recover")
        now = fork.json("checkpoints", "it")["checkpoints"]
        assert now[: len(known)] == known
        assert len(now) == len(known) + (at is Boundary.LISTED)
        assert fork.holds() == before
        assert fork.json("checkpoint", "it")["new"] is (at is not Boundary.LISTED)
        assert fork("checkpoints", "it", "--verify").stdout
    expected = {Boundary.OBJECT_STAGED, Boundary.OBJECTS_SYNCED, Boundary.OBJECT_LINKED, Boundary.TREE_WRITTEN,
                Boundary.TREE_PUBLISHED, Boundary.LISTED}  # fmt: skip
    assert passed - {Boundary.FROZEN} == expected | ({Boundary.SNAPSHOT_TAKEN} if mechanism == "btrfs" else set())
    # What was begun and left goes, and nothing else.
    fork("gc")
    pool = f"{fork.pool}/checkpoints"
    assert not [name for _, _, names in os.walk(pool) for name in names if name.startswith("new-")]
    fork("restore", "it", first)
    assert fork.json("checkpoint", "it")["checkpoint"] == first


@pytest.mark.parametrize(("kind", "mechanism"), [("btrfs", "btrfs"), ("ext4", "overlay"), ("ext4", "copy")])
def test_a_restore_that_is_killed_anywhere_is_completed_by_recover_or_never_began(
    kind: str, mechanism: str, user: Person, hostfork: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    fork = Lasting(hostfork, user, request.getfixturevalue(f"{kind}_disk"), mechanism)
    known = {}
    for script in (FIRST, SECOND):
        fork.do(script)
        known[fork.json("checkpoint", "it")["checkpoint"]] = fork.holds()
    target, present = known
    passed = set()
    for at, number in [(one, 1) for one in RESTORING] + [(Boundary.ENTRY_WRITTEN, 5), (Boundary.ENTRY_REMOVED, 3)]:
        if not killed(user, at, number, lambda: api.restore("it", target)):
            fork("restore", "it", present)
            continue
        passed.add(at)
        if at is not Boundary.RECORD_SAVED:
            assert "recover" in fork("exec", "it", "--", "true", check=125).stderr
        assert "is complete" in fork("recover").stdout
        assert fork.holds() == known[target]
        assert fork.json("checkpoint", "it")["checkpoint"] == target
        fork("restore", "it", present)
        assert fork.holds() == known[present]
    entries = {Boundary.ENTRY_REMOVED, Boundary.ENTRY_WRITTEN}
    swapped = {Boundary.TREE_SWAPPED}
    assert passed == set(RESTORING) - (entries if mechanism == "btrfs" else swapped)


WRITER = """
import os, sqlite3, sys, time
base = sqlite3.connect("data.db")
base.execute("pragma journal_mode=wal")
base.execute("create table if not exists t (a, b)")
open("ready", "w").close()
n = 0
while True:
    n += 1
    with base:
        base.execute("insert into t values (?, ?)", (n, "x" * 3000))
        base.execute("insert into t values (?, ?)", (-n, "y"))
    one, two = open("one", "w"), open("two", "w")
    one.write(str(n)); two.write(str(n)); one.close(); two.close()
"""


@pytest.mark.parametrize(("kind", "mechanism"), [("btrfs", "btrfs"), ("ext4", "overlay"), ("xfs", "reflink")])
def test_a_running_fork_is_held_still_for_a_moment_and_what_is_kept_is_of_one(
    kind: str, mechanism: str, user: Person, hostfork: Callable[..., Any], request: pytest.FixtureRequest,
    delegated_cgroup: str,
) -> None:  # fmt: skip
    fork = Lasting(hostfork, user, request.getfixturevalue(f"{kind}_disk"), mechanism)
    writer = fork.start(f"exec python3 -c '{WRITER}'")
    try:
        wait_until(lambda: user.call(_ready, fork))
        made = [fork.json("checkpoint", "it", "-m", "while it runs") for _ in range(3)]
        assert all(one["new"] and one["running"] and one["status"] is None for one in made)
        assert all(0 < one["pause_seconds"] < 5 for one in made)
        assert fork.json("list")["forks"][0]["activity"] == "running"
        refused = fork("restore", "it", made[0]["checkpoint"], check=125)
        assert "code fork.busy" in refused.stderr
        assert "hostfork stop it" in refused.stderr
    finally:
        fork("stop", "it")
        writer.wait()
    assert fork.json("show", "it")["activity"] == "idle"
    for one in made:
        fork("restore", "it", one["checkpoint"])
        checks = 'python3 -c \'import sqlite3; print(*sqlite3.connect("data.db").execute("pragma integrity_check"))\''
        fork.do(f"{checks} | grep -q ok")
    assert fork("checkpoints", "it").stdout.count("running") == 3


def _ready(fork: Lasting) -> bool:
    return any(names.count("ready") for _, _, names in os.walk(fork.pool))


def test_what_does_not_stop_is_named_and_runs_on(
    user: Person, ext4_disk: Disk, make_disk: Callable[[str], Disk], hostfork: Callable[..., Any],
    delegated_cgroup: str,
) -> None:  # fmt: skip
    fork, other = Lasting(hostfork, user, ext4_disk, "overlay"), make_disk("ext4")
    there = other.folder(user)
    script = f"touch ready; while [ ! -e go ]; do sleep 0.1; done; echo $$ >pid; exec cp edit {there}/x"
    waiting = fork.start(script)
    try:
        wait_until(lambda: user.call(_ready, fork))
        # Who writes to a filesystem that is frozen waits in the kernel.
        subprocess.run(["fsfreeze", "-f", other.path], check=True)
        try:
            fork.do("touch go")
            wait_until(lambda: user.call(_waits, "cp"))
            refused = fork("checkpoint", "it", check=125)
        finally:
            subprocess.run(["fsfreeze", "-u", other.path], check=True)
        assert "code checkpoint.busy" in refused.stderr
        assert re.search(r"waiting in the kernel: \d+", refused.stderr)
        assert waiting.wait() == 0
        assert fork.json("checkpoint", "it")["new"]
    finally:
        fork("stop", "it", check=None)
        waiting.wait()


def _waits(name: str) -> bool:
    """Whether a process of that name waits in the kernel."""
    done = subprocess.run(["ps", "-C", name, "-o", "stat="], capture_output=True, text=True, check=False)
    return "D" in done.stdout


def test_a_killed_checkpoint_leaves_no_fork_frozen(
    user: Person, ext4_disk: Disk, hostfork: Callable[..., Any], delegated_cgroup: str
) -> None:
    fork = Lasting(hostfork, user, ext4_disk, "overlay")
    sleeper = fork.start("touch ready && exec sleep 600")
    try:
        wait_until(lambda: user.call(_ready, fork))
        group = fork.json("show", "it")["cgroup"]
        assert killed(user, Boundary.FROZEN, 1, lambda: api.checkpoint("it"))
        wait_until(lambda: not _is_frozen(group))  # its guard did that
        # With its guard: recovery does it, and says so.
        assert killed(user, Boundary.FROZEN, 1, _without_guard)
        assert _is_frozen(group)
        assert "runs on" in fork("recover").stdout
        assert not _is_frozen(group)
        assert fork("recover").stdout == "nothing to put right\n" or "runs on" not in fork("recover").stdout
        assert fork.json("checkpoint", "it")["new"]
    finally:
        fork("stop", "it")
        sleeper.wait()


def _is_frozen(group: str) -> bool:
    with open(f"{group}/cgroup.events", encoding="ascii") as file:
        return "frozen 1" in file.read()


def _without_guard() -> None:
    """Make a checkpoint; as soon as the fork stands still its guard is killed."""
    at = boundary.passed

    def passed(here: Boundary) -> None:
        if here is Boundary.FROZEN:
            for pid in os.listdir("/proc"):
                if pid.isdigit() and _is_guard(pid):
                    os.kill(int(pid), signal.SIGKILL)
        at(here)

    pytest.MonkeyPatch().setattr(boundary, "passed", passed)
    api.checkpoint("it")


def _is_guard(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file, open(f"/proc/{pid}/stat", "rb") as about:
            ours = int(about.read().rpartition(b")")[2].split()[1]) == os.getpid()
            return ours and b"hostfork-guard" in file.read()
    except OSError:
        return False


def test_damage_is_found_by_its_fork_and_restores_nothing(
    user: Person, ext4_disk: Disk, hostfork: Callable[..., Any]
) -> None:
    fork = Lasting(hostfork, user, ext4_disk, "overlay")
    made = []
    for script in (FIRST, SECOND):
        fork.do(script)
        made.append(fork.json("checkpoint", "it")["checkpoint"])
    assert fork.json("checkpoints", "--verify")["damage"] == []
    before = fork.holds()
    objects = [os.path.join(at, name) for at, _, names in os.walk(f"{fork.pool}/checkpoints/objects") for name in names]
    for path in objects:
        os.rename(path, f"{path}.away")
    found = fork("checkpoints", "it", "--verify", "--json", check=1)
    assert {one["path"] for one in json.loads(found.stdout)["damage"]} == set(objects)
    assert {one["fault"] for one in json.loads(found.stdout)["damage"]} == {"missing"}
    assert "code checkpoint.damaged" in fork("restore", "it", made[0], check=125).stderr
    assert "code checkpoint.damaged" in fork("checkpoints", "--verify", check=1).stderr
    for path in objects:
        os.rename(f"{path}.away", path)
    assert fork.holds() == before
    fork("restore", "it", made[0])
    # What its fork's going leaves, goes.
    pool = f"{fork.pool}/checkpoints"
    assert json.loads(fork("usage", "--json").stdout)["pools"][-1]["checkpoints"] > 0
    fork("discard", "it", "--yes")
    assert not [name for _, _, names in os.walk(pool) for name in names if name != "lock"]


def test_ids_are_completed_and_unknown_ones_are_named(
    user: Person, ext4_disk: Disk, hostfork: Callable[..., Any]
) -> None:
    fork = Lasting(hostfork, user, ext4_disk, "copy")
    assert "no checkpoints" in fork("checkpoints", "it").stderr
    made = fork.json("checkpoint", "it", "-m", "a note")
    assert fork("restore", "it", f"it@{made['checkpoint'][:6]}").stdout == "it holds that already\n"
    assert "code checkpoint.not-found" in fork("restore", "it", "zz", check=125).stderr
    assert "a note" in fork("checkpoints", "it").stdout
    assert "code policy.usage" in fork("checkpoints", check=2).stderr


@pytest.mark.parametrize("who", ["root", "user"])
def test_a_checkpoint_is_looked_at_exported_and_compared_like_a_fork(
    who: str, place: tuple[Disk, str], hostfork: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    fork = Lasting(hostfork, request.getfixturevalue(who), *place)
    known: dict[str, Any] = {}
    for name, script in (("first", FIRST), ("second", SECOND)):
        fork.do(script)
        patch = fork("diff", "it", "--patch").stdout
        changes = [{**one, "ignored_by": None} for one in fork.json("diff", "it")["entries"]]
        known[name] = fork.json("checkpoint", "it")["checkpoint"][:10], fork.holds(), changes, patch
    fork.do("echo last >last; rm -r d")
    for number, holds, changes, patch in known.values():
        assert fork("diff", f"it@{number}", "--patch").stdout == patch
        assert fork.json("diff", number)["entries"] == changes
        out = os.path.join(fork.disk.folder(fork.person, "out"), f"{time.monotonic_ns()}")
        fork("export", number, out)
        assert fork.person.call(visible, out) == holds
    first, second = known["first"][0], known["second"][0]

    def differs(one: str, other: str) -> dict[str, str]:
        entries = fork.json("diff", one, other)["entries"]
        return {entry["path"][len(fork.project) + 1 :]: entry["change"] for entry in entries}

    assert differs(f"it@{first}", f"it@{first}") == {}
    assert differs("it@base", "it@host") == {}
    assert differs("it@base", f"it@{first}") == {
        one["path"][len(fork.project) + 1 :]: one["change"] for one in known["first"][2]
    }
    assert differs(f"it@{second}", "it@now") == {"last": "created", "d": "deleted", "d/c": "deleted",
                                                 "d/e": "deleted", "d/e/f": "deleted"}  # fmt: skip
    back, forth = differs(f"it@{second}", f"it@{first}"), differs(f"it@{first}", f"it@{second}")
    assert back.keys() == forth.keys()
    assert (forth["edit"], forth["hard"], forth["gone"], back["hard"]) == ("modified", "deleted", "created", "created")
    assert "+three" in fork("diff", f"it@{first}", f"it@{second}", "--patch").stdout
    fork.person.call(write_files, fork.project, {"same": "another on the host", "new on host": ""})
    if place[1] in ("copy", "reflink"):
        assert "code base.gone" in fork("diff", "it@base", "it@host", check=125).stderr
    elif place[1] != "live":
        assert differs("it@base", "it@host") == {"same": "modified", "new on host": "created"}
    if place[1] != "live":  # over which the host's own shows
        assert differs(f"it@{first}", "it@host")["new on host"] == "created"
    assert not [name for name in os.listdir(f"{fork.pool}/checkpoints") if name.startswith("view-")]


@pytest.mark.parametrize("mechanism", ["copy", "overlay", "live"])
def test_a_fork_that_a_run_left_goes_back_too_also_one_of_several_paths(
    mechanism: str, user: Person, ext4_disk: Disk, hostfork: Callable[..., Any]
) -> None:
    folder = ext4_disk.folder(user)
    one = make_project(user, folder, FILES)
    other = f"{folder}/other"
    user.call(write_files, other, FILES)
    private = [word for path in (one, other) for word in ("--private", f"{path}:{mechanism}")]
    script = f"cd {one}; {FIRST} cd {other}; {FIRST} exit 3"
    options = ("--name", "it", "--pool", os.path.join(ext4_disk.folder(user, "pools"), "pool"), *private)
    hostfork(user, "run", *options, "--", "sh", "-c", script, check=3)

    def changes() -> Any:
        return json.loads(hostfork(user, "diff", "it", "--json", check=0).stdout)["entries"]

    before, patch = changes(), hostfork(user, "diff", "it", "--patch", check=0).stdout
    made = json.loads(hostfork(user, "checkpoint", "it", "--json", check=0).stdout)
    assert made["status"] == {"exit": 3, "signal": None, "timed_out": False}
    # Somebody damages what the fork holds.
    user.call(_damage, os.path.join(ext4_disk.path, os.path.relpath(options[3], ext4_disk.path)))
    hostfork(user, "restore", "it", "last", check=None)
    assert (changes(), hostfork(user, "diff", "it", "--patch", check=0).stdout) == (before, patch)
    out = f"{folder}/out"
    hostfork(user, "export", "it@last", out, "--changes-only", check=0)
    assert sorted(os.listdir(out + other)) == sorted(os.listdir(out + one))
    hostfork(user, "discard", "it", "--yes", check=0)


def _damage(pool: str) -> None:
    """Write over every `edit` below a fork's storage."""
    for at, folders, names in os.walk(pool):
        folders[:] = [name for name in folders if name not in ("checkpoints", "baseline")]
        if "edit" in names and os.stat(f"{at}/edit").st_size == len("two\n"):
            with open(f"{at}/edit", "w", encoding="ascii") as file:
                file.write("damaged\n")


def test_a_full_disk_leaves_the_checkpoints_and_the_fork_as_they_were(
    user: Person, make_disk: Callable[..., Disk], hostfork: Callable[..., Any]
) -> None:
    fork = Lasting(hostfork, user, make_disk("ext4", 60), "overlay")
    fork.do("dd if=/dev/urandom of=large bs=1M count=20 status=none")
    before = fork.json("checkpoint", "it")["checkpoint"]
    fork.do("dd if=/dev/urandom of=large bs=1M count=14 status=none")
    holds = fork.json("diff", "it")["entries"]
    refused = fork("checkpoint", "it", check=125)
    assert "code checkpoint.no-space" in refused.stderr
    assert [one["checkpoint"] for one in fork.json("checkpoints", "it")["checkpoints"]] == [before]
    refused = fork("restore", "it", before, check=125)
    assert "code checkpoint.no-space" in refused.stderr
    assert fork.json("diff", "it")["entries"] == holds
    fork("checkpoints", "--verify")
