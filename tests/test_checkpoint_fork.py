"""Checkpoints of forks: made, listed, restored, by every mechanism; running forks; what kills and damage leave."""

import json
import os
import signal
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
truncate -s 1M holes; touch -d @1000000000 d/c; echo new >'odd
name'
"""
SECOND = """
echo three >edit; rm hard link; rm -r type; echo file >type; echo back >gone; mkdir -p d/e; echo 3 >d/e/f
chmod 700 closed; rm -r closed; chmod 600 exec; echo more >same; rm pipe; mkdir pipe; rm -r src
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

    def holds(self) -> dict[str, Any]:
        """What a whole export holds."""
        out = os.path.join(self.disk.folder(self.person, "out"), f"{time.monotonic_ns()}")
        self("export", "it", out)
        return self.person.call(visible, out)  # type: ignore[no-any-return]


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
        boundary.passed = Killed(at, number)  # type: ignore[assignment]
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
