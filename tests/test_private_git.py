"""Where a private work tree's repository lies elsewhere: it is named, refused, or private too."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from rigs import Disk, Person

Run = Callable[..., Any]
GIT = "git -c user.name=n -c user.email=e@x"
COMMIT = f"echo more >>a; {GIT} commit -q -a -m inside; git branch made-inside; git rev-parse HEAD"
KINDS = ["worktree", "submodule", "folder"]


@pytest.fixture
def main(person: Person, ext4_disk: Disk) -> str:
    """A repository with a linked worktree `linked` beside its work tree, a submodule `mod`, and a folder `src`."""
    place = ext4_disk.folder(person)
    make = (
        f"git init -q -b main mod.git; cd mod.git; echo a >a; git add a; {GIT} commit -q -m m; cd ..;"
        "git init -q -b main main; cd main; mkdir src; echo a >a; echo a >src/a; git add .;"
        "git -c protocol.file.allow=always submodule --quiet add ../mod.git mod;"
        f"{GIT} commit -q -m first; git worktree add -q ../linked -b linked"
    )
    person.run(["sh", "-ec", make], cwd=place, check=True)
    return f"{place}/main"


def place_of(main: str, kind: str) -> tuple[str, str]:
    """The private work tree of that kind, and where git keeps what belongs to it."""
    if kind == "worktree":
        return f"{os.path.dirname(main)}/linked", f"{main}/.git"
    return (f"{main}/mod", f"{main}/.git/modules/mod") if kind == "submodule" else (f"{main}/src", f"{main}/.git")


def state(person: Person, main: str) -> str:
    """All that git's folder holds: names and contents."""
    words = ["sh", "-c", "find .git -type f | sort | xargs sha1sum"]
    return str(person.run(words, cwd=main, check=True).stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_named_and_refused(hostfork: Run, person: Person, main: str, kind: str) -> None:
    tree, common = place_of(main, kind)
    plan = json.loads(hostfork(person, "plan", "--private", tree, "--json", check=0).stdout)
    notice = next(one for one in plan["notices"] if one["kind"].startswith("git-"))
    assert notice["path"] == common
    assert notice["weaker"] is (kind != "folder")
    shown = hostfork(person, "plan", "--private", tree, check=0).stdout
    assert "which stays the host's" in " ".join(shown.split())
    done = hostfork(person, "run", "--private", tree, "--require", "private-git", "--", "true", check=125)
    assert "policy.require" in done.stderr
    assert f"its repository {common} stays the host's" in done.stderr
    told = hostfork(person, "run", "--private", tree, "--", "true", check=0).stderr
    assert (common in told) is (kind != "folder")


@pytest.mark.parametrize("mode", ["", ":live"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_private_too(hostfork: Run, person: Person, main: str, kind: str, mode: str) -> None:
    tree, common = place_of(main, kind)
    # an overlay is another filesystem, at whose border git stops
    across = ["--env", "GIT_DISCOVERY_ACROSS_FILESYSTEM=1"]
    run = [
        "run",
        *across,
        "--private",
        tree + mode,
        "--private-git",
        "--require",
        "private-git",
        "--cwd",
        tree,
        "--name",
        "f",
    ]
    before = state(person, main)
    inside = hostfork(person, *run, "--", "sh", "-ec", COMMIT, check=0).stdout.strip()
    assert state(person, main) == before
    assert person.run(["git", "cat-file", "-e", inside], cwd=tree).returncode != 0
    record = json.loads(hostfork(person, "show", "f", "--json", check=0).stdout)
    assert {path["path"] for path in record["paths"] if path["access"] == "private"} == {tree, common}
    entries = json.loads(hostfork(person, "diff", "f", "--json", check=0).stdout)["entries"]
    written = [one for one in entries if "/objects/" in one["path"]]
    assert written
    assert {one["class"] for one in written} == {"generated"}
    env = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "e", "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "e"}
    hostfork(person, "apply", "f", "--as-commit", "from outside", check=0, env=env)
    show = ["git", "show", "--stat", "--format=%s", "hostfork/f"]
    assert "from outside" in person.run(show, cwd=tree, check=True).stdout
    hostfork(person, "discard", "f", "--yes", check=0)


def test_a_whole_repository_needs_nothing(hostfork: Run, person: Person, main: str) -> None:
    for more in ((), ("--private-git",)):
        plan = hostfork(person, "plan", "--private", main, "--require", "private-git", *more, "--json", check=0)
        found = json.loads(plan.stdout)
        assert not [one for one in found["notices"] if one["kind"].startswith("git-")]
        assert len([path for path in found["paths"] if path["access"] == "private"]) == 1


def test_both_private_is_enough(hostfork: Run, person: Person, main: str) -> None:
    tree, common = place_of(main, "worktree")
    hostfork(person, "run", "--private", tree, "--private", common, "--require", "private-git", "--", "true", check=0)


def test_a_policy_says_it(hostfork: Run, person: Person, main: str) -> None:
    tree, common = place_of(main, "worktree")
    policy = os.path.join(person.home, "policy.toml")
    person.run(["sh", "-c", 'printf "schema = 1\\nprivate-git = true\\n" >"$1"', "-", policy], check=True)
    plan = json.loads(hostfork(person, "plan", "--policy", policy, "--private", tree, "--json", check=0).stdout)
    assert common in [path["path"] for path in plan["paths"] if path["access"] == "private"]
