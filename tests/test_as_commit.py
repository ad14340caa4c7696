"""`apply --as-commit`: a commit of a fork's content on a new branch, with the host's repository otherwise untouched."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from hostfork.policy.repository import head_of, repository_of
from rigs import Disk, Person

Run = Callable[..., Any]
GIT = "git -c user.name=n -c user.email=e@x"
MAKE = (
    "git init -q -b main .; printf 'out/\\n*.log\\n' >.gitignore; echo a >a; echo b >b; mkdir src; echo c >src/c;"
    "echo kept >kept.log; git add -f kept.log; git add .;"
    f"{GIT} commit -q -m first; echo dirty >>b; echo staged >s; git add s; echo x >x.log"
)
AUTHOR = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "e@x", "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "e@x"}
SCRIPT = (
    "echo more >>a; rm src/c; mkdir out; echo o >out/o; echo y >y.log; echo new >new; chmod +x b; echo k >>kept.log;"
    f"ln -s a link; git add -A; {GIT} commit -q -m inside"
)
MODES = ["", ":live"]


@pytest.fixture
def project(person: Person, ext4_disk: Disk) -> str:
    source = ext4_disk.folder(person)
    person.run(["sh", "-c", MAKE], cwd=source, check=True)
    return source


def git(person: Person, project: str, *words: str) -> str:
    return str(person.run(["git", *words], cwd=project, check=True).stdout)


def keep(hostfork: Run, person: Person, project: str, *more: str, script: str = SCRIPT) -> None:
    run = ["run", "--name", "f", "--cwd", project, *(more or ("--private", project)), "--", "sh", "-ec", script]
    hostfork(person, *run, check=0)


def commit(hostfork: Run, person: Person, *more: str, check: int = 0) -> Any:
    return hostfork(person, "apply", "f", "--as-commit", "A message", *more, check=check, env=AUTHOR)


def host(person: Person, project: str) -> tuple[object, ...]:
    """What must stay as it is: HEAD, index, work tree, branches but new ones."""
    with open(f"{project}/.git/index", "rb") as file:
        index = file.read()
    names = sorted(os.listdir(project))
    return git(person, project, "rev-parse", "HEAD"), index, names, git(person, project, "status", "--porcelain")


@pytest.mark.parametrize("mode", MODES)
def test_the_content_is_on_a_new_branch(hostfork: Run, person: Person, project: str, mode: str) -> None:
    keep(hostfork, person, project, "--private", project + mode)
    before = host(person, project)
    told = json.loads(commit(hostfork, person, "--json", "--tag", "why=test").stdout)
    assert host(person, project) == before
    assert told["branch"] == "hostfork/f"
    assert told["base"] == git(person, project, "rev-parse", "main").strip()
    assert told["commit"] == git(person, project, "rev-parse", "hostfork/f").strip()
    assert git(person, project, "rev-parse", "hostfork/f^").strip() == told["base"]
    files = git(person, project, "ls-tree", "-r", "hostfork/f").splitlines()
    assert {line.split("\t")[1]: line.split()[0] for line in files} == {
        ".gitignore": "100644", "a": "100644", "b": "100755", "kept.log": "100644", "link": "120000", "new": "100644",
        "s": "100644",
    }  # fmt: skip
    assert git(person, project, "show", "hostfork/f:b") == "b\ndirty\n"
    assert git(person, project, "show", "hostfork/f:kept.log") == "kept\nk\n"
    message = git(person, project, "log", "-1", "--format=%B", "hostfork/f")
    assert message.startswith("A message\n\n")
    assert f"Hostfork-Receipt: {told['receipt']}\n" in message
    receipt = json.loads(hostfork(person, "show", "f", "--receipt", "--json", check=0).stdout)["receipt"]
    assert receipt == told["receipt"]
    git(person, project, "fsck", "--strict")
    again = commit(hostfork, person, check=125)
    assert "there is a branch hostfork/f already" in again.stderr
    assert commit(hostfork, person, "--branch", "other").returncode == 0
    last = hostfork(person, "log", "f", "--json", check=0).stdout.splitlines()[-1]
    assert json.loads(last)["event"] == "committed"
    hostfork(person, "discard", "f", "--yes", check=0)


def test_only_some_paths_and_a_folder_of_the_repository(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project, "--private", f"{project}/src", script="echo 1 >src/c; echo 2 >src/d")
    commit(hostfork, person, "--branch", "all")
    commit(hostfork, person, f"{project}/src/d", "--branch", "some")
    assert git(person, project, "diff", "--name-only", "main", "all").split() == ["src/c", "src/d"]
    assert git(person, project, "diff", "--name-only", "main", "some").split() == ["src/d"]
    assert "does not lie in" in commit(hostfork, person, f"{project}/a", "--branch", "none", check=125).stderr
    hostfork(person, "discard", "f", "--yes", check=0)


def test_the_host_went_on(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project, "--private", f"{project}:live", script="echo 1 >a")
    person.run(["sh", "-c", f"{GIT} commit -q -a -m second"], cwd=project, check=True)
    base = git(person, project, "rev-parse", "main^").strip()
    done = commit(hostfork, person)
    assert git(person, project, "rev-parse", "hostfork/f^").strip() == base, done.stdout
    hostfork(person, "discard", "f", "--yes", check=0)


REFUSED = {
    "a bad name": (["--branch", "a..b"], "cannot be the name of a branch"),
    "an option": (["--branch", "-d"], "cannot be the name of a branch"),
    "a folder of branches": (["--branch", "main/x"], "git update-ref did not work"),
    "a branch": (["--branch", "main"], "there is a branch main already"),
    "ignored": (["--ignored"], "contradict each other"),
    "active": (["--allow-active"], "contradict each other"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_changes_nothing(hostfork: Run, person: Person, project: str, why: str) -> None:
    keep(hostfork, person, project)
    before = host(person, project)
    options, said = REFUSED[why]
    done = hostfork(person, "apply", "f", "--as-commit", "A message", *options, env=AUTHOR)
    assert done.returncode in (2, 125)
    assert said in done.stderr
    assert host(person, project) == before
    assert git(person, project, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    hostfork(person, "discard", "f", "--yes", check=0)


def test_without_a_repository_or_a_change(hostfork: Run, person: Person, project: str, ext4_disk: Disk) -> None:
    keep(hostfork, person, project, script="echo z >z.log")
    person.run(["sh", "-c", "git reset -q --hard; rm -f s"], cwd=project, check=True)
    hostfork(person, "discard", "f", "--yes", check=0)
    keep(hostfork, person, project, script="echo z >z.log")
    assert "none was made" in commit(hostfork, person).stdout
    hostfork(person, "discard", "f", "--yes", check=0)
    other = ext4_disk.folder(person)
    keep(hostfork, person, other, script="echo z >z")
    assert "no private path lies in a git work tree" in commit(hostfork, person, check=125).stderr
    hostfork(person, "discard", "f", "--yes", check=0)


def test_hooks_and_monitors_of_the_repository_are_not_run(hostfork: Run, person: Person, project: str) -> None:
    script = "#!/bin/sh\necho ran >>../ran\n"
    for name in ("reference-transaction", "pre-commit", "post-index-change", "fsmonitor-watchman"):
        person.run(["sh", "-c", f"printf '%s' '{script}' >.git/hooks/{name}; chmod +x .git/hooks/{name}"],
                   cwd=project, check=True)  # fmt: skip
    git(person, project, "config", "core.fsmonitor", ".git/hooks/fsmonitor-watchman")
    keep(hostfork, person, project, script="echo 1 >a")
    ran = [f"{project}/ran", f"{os.path.dirname(project)}/ran"]
    for one in ran:
        if os.path.exists(one):
            os.unlink(one)
    commit(hostfork, person)
    assert not any(map(os.path.exists, ran))
    hostfork(person, "discard", "f", "--yes", check=0)


def test_a_linked_worktree_and_a_submodule(hostfork: Run, person: Person, project: str, ext4_disk: Disk) -> None:
    module, linked = ext4_disk.folder(person), f"{ext4_disk.folder(person)}/linked"
    make = f"git init -q -b main .; echo m >m; git add m; {GIT} commit -q -m m"
    person.run(["sh", "-c", make], cwd=module, check=True)
    person.run(
        ["sh", "-ec", f"git -c protocol.file.allow=always submodule --quiet add {module} mod; {GIT} commit -q -m sub;"
                      f"git worktree add -q {linked} -b linked"], cwd=project, check=True,
    )  # fmt: skip
    keep(hostfork, person, linked, "--private", linked, script="echo l >>a")
    commit(hostfork, person)
    assert git(person, project, "rev-parse", "hostfork/f^") == git(person, project, "rev-parse", "linked")
    assert git(person, project, "diff", "--name-only", "linked", "hostfork/f").split() == ["a"]
    hostfork(person, "discard", "f", "--yes", check=0)
    keep(hostfork, person, project, script="echo m2 >mod/m; echo q >>a")
    commit(hostfork, person, "--branch", "with")
    assert git(person, project, "diff", "--name-only", "main", "with").split() == ["a", "b"]
    hostfork(person, "discard", "f", "--yes", check=0)


@pytest.mark.parametrize("delay", [0.15, 0.25, 0.35, 0.5])
def test_killed_at_any_moment(hostfork: Run, person: Person, project: str, delay: float) -> None:
    keep(hostfork, person, project)
    before = host(person, project)
    program = os.path.join(sys.prefix, "bin", "hostfork")
    running = person.popen([program, "apply", "f", "--as-commit", "m"], env=AUTHOR, start_new_session=True)
    time.sleep(delay)
    running.send_signal(signal.SIGKILL)
    running.wait()
    time.sleep(0.3)  # a git that it had started comes to its own end
    hostfork(person, "recover", check=0)
    assert host(person, project) == before
    git(person, project, "fsck", "--strict")
    left = os.path.join(person.state, "pool")
    assert [name for name in os.listdir(left) if name.startswith(".hostfork")] == []
    commit(hostfork, person, "--branch", "after")
    assert "new" in git(person, project, "ls-tree", "--name-only", "after").split()
    hostfork(person, "discard", "f", "--yes", check=0)


def test_where_git_keeps_what(person: Person, project: str) -> None:
    found = repository_of(f"{project}/src")
    assert found is not None
    assert (found.top, found.folder, found.common) == (project, f"{project}/.git", f"{project}/.git")
    head = git(person, project, "rev-parse", "HEAD").strip()
    assert head_of(found) == head
    git(person, project, "pack-refs", "--all")
    assert head_of(found) == head
    git(person, project, "checkout", "-q", "--detach")
    assert head_of(found) == head
    git(person, project, "checkout", "-q", "--orphan", "none")
    assert head_of(found) is None
    assert repository_of("/") is None
