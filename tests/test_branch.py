"""Branches of forks: by every mechanism, idle and running, as root and as an ordinary user; `list --tree`."""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rigs
from hostfork import api
from hostfork.lifecycle.store import Store, state_folder
from hostfork.storage import branching
from kill_steps import die_at
from rigs import Disk, Person

MECHANISMS = [
    ("ext4", ":copy"), ("ext4", ":live"), ("ext4", ":overlay"),
    ("btrfs", ":btrfs"), ("btrfs", ":reflink"), ("btrfs", ":overlay"), ("xfs", ":reflink"), ("xfs", ":overlay"),
]  # fmt: skip
FILES = {"a.txt": "one\n", "d/b": "b\n", "d/e/c": "c\n", "old": "old\n"}
CHANGE = "echo two >> a.txt; rm old; rm -r d; mkdir d; echo n > d/new; ln a.txt hard; touch closed; chmod 0 closed"
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")


class Project:
    """A person with a project and forks of it."""

    def __init__(self, person: Person, hostfork: Callable[..., Any], folder: str, private: str) -> None:
        self.person, self.hostfork, self.folder, self.private = person, hostfork, folder, private

    def __call__(self, *words: str, **options: Any) -> Any:
        return self.hostfork(self.person, *words, **{"cwd": self.folder, "check": 0, **options})

    def create(self, name: str, command: str = CHANGE) -> None:
        """A fork that is there to be entered, with changes."""
        self("create", name, "--private", f".{self.private}")
        self("exec", name, "--", "sh", "-c", command)

    def sees(self, name: str) -> str:
        """What a command in the fork sees: every name, and what the files hold."""
        script = "find . | sort; find . -type f -printf '%p %m %s\\n' | sort; grep -r '' . 2>/dev/null | sort"
        found: str = self("exec", name, "--", "sh", "-c", script).stdout
        return found

    def changes(self, name: str) -> dict[str, str]:
        """What the fork changed."""
        entries = json.loads(self("diff", name, "--json", check=None).stdout)["entries"]
        return {os.path.relpath(one["path"], os.path.realpath(self.folder)): one["change"] for one in entries}

    def record(self, name: str) -> Any:
        """The fork's record."""

        def load() -> Any:
            with Store(state_folder()).open(name) as folder:
                return folder.load()

        return self.person.call(load)

    def storage(self) -> list[str]:
        """What the pool holds of forks."""

        def look() -> list[str]:
            pool = Path(state_folder(), "pool")
            kinds = [pool / kind for kind in ("overlay", "frozen", "retained", "btrfs", "reflink", "copy")]
            return [str(one) for kind in kinds if kind.is_dir() for one in kind.iterdir()]

        found: list[str] = self.person.call(look)
        return found


@pytest.fixture(params=MECHANISMS, ids=lambda pair: f"{pair[0]}-{pair[1][1:]}")
def project(request: pytest.FixtureRequest, person: Person, hostfork: Callable[..., Any]) -> Any:
    kind, private = request.param
    yield from _project(request, person, hostfork, kind, private)


@pytest.fixture
def overlay(request: pytest.FixtureRequest, person: Person, hostfork: Callable[..., Any]) -> Any:
    yield from _project(request, person, hostfork, "ext4", ":overlay")


def _project(
    request: pytest.FixtureRequest, person: Person, hostfork: Callable[..., Any], kind: str, private: str
) -> Any:
    disk: Disk = request.getfixturevalue(f"{kind}_disk")
    top = disk.folder(person)
    if kind == "btrfs":
        from storage_cases import make_subvolume

        person.call(make_subvolume, f"{top}/volume")
        top += "/volume"
    made = Project(person, hostfork, rigs.make_project(person, top, FILES), private)
    yield made
    made("discard", "--all", "--yes", check=None)
    assert made.storage() == []


def test_a_branch_begins_as_its_fork_is_and_counts_only_its_own(project: Project) -> None:
    project.create("one")
    assert project("branch", "one", "two").stdout == "two\n"
    assert project.changes("two") == {}
    record, parent = project.record("two"), project.record("one")
    assert (record.parent.name, record.parent.id) == ("one", parent.id)
    assert [(path.mechanism, path.guarantee, path.path) for path in record.paths] == [
        (path.mechanism, path.guarantee, path.path) for path in parent.paths
    ]
    assert project.sees("two") == project.sees("one")
    project("exec", "two", "--", "sh", "-c", "echo three >> a.txt; rm d/new; echo x > mine")
    assert project.changes("two") == {"a.txt": "modified", "d/new": "deleted", "mine": "created"} | (
        {} if project("diff", "two", check=None).stdout.count("hard") == 0 else {"hard": "modified"}
    )
    assert set(project.changes("one")) == {"a.txt", "old", "d/b", "d/e", "d/e/c", "d/new", "hard", "closed"}
    assert "three" not in project.sees("one")
    project("exec", "one", "--", "sh", "-c", "echo of-one > other")
    assert "of-one" not in project.sees("two")
    assert Path(project.folder, "a.txt").read_text() == "one\n"


def test_patches_and_exports_of_a_branch_have_its_fork_as_base(project: Project, tmp_path: Path) -> None:
    project.create("one")
    project("branch", "one", "two")
    project("exec", "two", "--", "sh", "-c", "echo three >> a.txt; rm d/new")
    patch = project("diff", "two", "--patch", check=None).stdout
    assert "+three" in patch, patch
    assert " two" in patch, patch
    assert "+two" not in patch, patch
    destination = os.path.join(project.folder, "..", "exported")
    project("export", "two", destination)
    read = project.person.call(lambda: Path(destination, "a.txt").read_text())
    assert read == "one\ntwo\nthree\n"
    assert project.person.call(lambda: sorted(os.listdir(f"{destination}/d"))) == []


@pytest.mark.parametrize("order", list(itertools.permutations(("one", "two", "deep")))[::2], ids="-".join)
def test_forks_and_branches_go_in_any_order(overlay: Project, order: tuple[str, ...]) -> None:
    overlay.create("one")
    overlay("branch", "one", "two")
    overlay("exec", "two", "--", "sh", "-c", "echo deep > deep")
    overlay("branch", "two", "deep")
    seen = {name: overlay.sees(name) for name in order}
    left = set(order)
    for name in order:
        overlay("discard", name, "--yes")
        left.remove(name)
        assert {one: overlay.sees(one) for one in left} == {one: seen[one] for one in left}


def test_a_running_fork_is_branched_as_it_is_at_that_moment(project: Project) -> None:
    project("create", "one", "--private", f".{project.private}")
    script = "echo two >> a.txt; echo ready > ready; i=0; while :; do i=$((i+1)); echo $i > n; cp n m; done"
    process = project.person.popen([PROGRAM, "exec", "one", "--", "sh", "-c", script], cwd=project.folder)
    try:
        rigs.wait_until(lambda: project("exec", "one", "--", "test", "-s", "m", check=None).returncode == 0)
        document = json.loads(project("branch", "one", "two", "--json").stdout)
        snapshots = project.private == ":btrfs"
        assert (document["pause"] is None) == (snapshots or project.record("one").cgroup is None)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    sees = project("exec", "two", "--", "sh", "-c", "cat a.txt; cat n m").stdout.split()
    assert sees[:2] == ["one", "two"]
    assert int(sees[2]) - int(sees[-1]) in (0, 1)
    assert project.changes("two") == {}


def test_what_a_run_kept_is_branched_and_its_branch_entered(project: Project) -> None:
    project("run", "--name", "one", "--private", f".{project.private}", "--", "sh", "-c", CHANGE)
    before = project.changes("one")
    project("branch", "one", "two")
    assert project.changes("one") == before
    assert project("exec", "two", "--", "sh", "-c", "cat a.txt d/new; test ! -e old").stdout == "one\ntwo\nn\n"
    assert project.changes("two") == {}
    project("discard", "one", "--yes")
    assert project("exec", "two", "--", "cat", "a.txt").stdout == "one\ntwo\n"


def test_a_branch_of_a_live_fork_is_entered_while_the_host_leaves_its_folder(
    request: pytest.FixtureRequest, person: Person, hostfork: Callable[..., Any]
) -> None:
    for project in _project(request, person, hostfork, "ext4", ":live"):
        project.create("one")
        project("branch", "one", "two")
        assert project("exec", "two", "--", "cat", "a.txt").stdout == "one\ntwo\n"
        project("exec", "two", "--", "sh", "-c", "echo x >> d/new")
        assert "+x" in project("diff", "two", "--patch", check=None).stdout
        person.call(lambda folder=project.folder: Path(folder, "d/e/c").write_text("host"))
        assert "base.gone" in project("exec", "two", "--", "true", check=125).stderr


def test_the_tree_shows_branches_below_their_forks(overlay: Project) -> None:
    overlay.create("one")
    for name, of in (("two", "one"), ("deep", "two"), ("also", "one")):
        overlay("branch", of, name)
    assert [line.split(" idle")[0].rstrip() for line in overlay("list", "--tree").stdout.splitlines()[1:]] == [
        "one", "  also", "  two", "    deep"
    ]  # fmt: skip
    parents = {fork["name"]: fork["parent"] for fork in json.loads(overlay("list", "--json").stdout)["forks"]}
    assert parents == {"one": None, "two": "one", "deep": "two", "also": "one"}
    overlay("discard", "one", "--yes")
    overlay("create", "one", "--private", ".:overlay")
    assert [line.split(" idle")[0].rstrip() for line in overlay("list", "--tree").stdout.splitlines()[1:]] == [
        "also", "one", "two", "  deep"
    ]  # fmt: skip


def test_space_that_forks_share_is_counted_as_shared(overlay: Project) -> None:
    overlay.create("one", "head -c 300000 /dev/zero > big")
    overlay("branch", "one", "two")

    def takes() -> dict[str, tuple[bool, bool]]:
        holders = json.loads(overlay("usage", "--json").stdout)["holders"]
        return {
            one["name"]: (one["space"]["exclusive"] > 200000, one["space"]["shared"] > 200000)
            for one in holders if one["kind"] == "fork"
        }  # fmt: skip

    assert takes() == {"one": (False, True), "two": (False, True)}
    overlay("discard", "one", "--yes")
    assert takes() == {"two": (True, False)}


def test_checkpoints_of_a_branch_tell_its_base(project: Project) -> None:
    project.create("one")
    project("branch", "one", "two")
    project("create", "fresh", "--private", f".{project.private}")
    ids = [json.loads(project("checkpoint", name, "--json").stdout)["checkpoint"] for name in ("two", "fresh", "one")]
    assert len(set(ids)) == 3
    seen = project.sees("two")
    for name in ("one", "two"):
        project("exec", name, "--", "sh", "-c", "echo later > later; rm a.txt")
    project("restore", "two", ids[0])
    assert project.sees("two") == seen
    project("restore", "one", ids[2])
    assert project.sees("one") == seen
    assert project.changes("two") == {}


def test_a_restored_fork_is_not_seen_in_its_branch(project: Project) -> None:
    project("create", "one", "--private", f".{project.private}")
    begun = json.loads(project("checkpoint", "one", "--json").stdout)["checkpoint"]
    project("exec", "one", "--", "sh", "-c", CHANGE)
    project("branch", "one", "two")
    seen = project.sees("two")
    project("restore", "one", begun)
    assert project.changes("one") == {}
    assert project.sees("two") == seen


def test_what_cannot_be_branched_is_said(overlay: Project) -> None:
    assert "fork.not-found" in overlay("branch", "none", check=125).stderr
    overlay.create("one")
    overlay("create", "two", "--private", ".:overlay")
    assert "fork.name-taken" in overlay("branch", "one", "two", check=125).stderr
    assert overlay.changes("one")
    overlay("seal", "one")
    assert "two" in overlay("exec", overlay("branch", "one").stdout.strip(), "--", "cat", "a.txt").stdout


# --- killed ----------------------------------------------------------------------------------------------------------

_STEPS = ("mkdir", "link", "symlink", "rename", "unlink", "rmdir", "chmod", "write", "fsync")


def _dies(at: int, new: str) -> bool:
    """Branch `one` in a process that is killed before the so-many-th step; whether it was."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    try:
        die_at(at, (os, _STEPS), (branching, ("renameat2",)))
        api.branch("one", new)
        os._exit(0)
    finally:
        os._exit(1)


def test_whatever_is_killed_when_recover_puts_it_right(project: Project) -> None:
    project.create("one")
    seen, there = project.sees("one"), len(project.storage())
    at, step = 1, 3 if project.private in (":copy", ":reflink", ":btrfs") else 1
    while project.person.call(_dies, at, "two"):
        project("recover")
        names = {fork["name"] for fork in json.loads(project("list", "--json").stdout)["forks"]}
        if "two" in names:  # it was there already
            assert project.sees("two") == seen
            project("discard", "two", "--yes")
        assert project.sees("one") == seen
        assert len(project.storage()) == there, project.storage()
        at += step
    assert at > 10
    assert project.sees("two") == seen
