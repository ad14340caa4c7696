"""What the host runs by itself: marked where changes are shown, refused by apply unless it is meant or trusted."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from rigs import Disk, Person

Run = Callable[..., Any]
SCRIPT = "mkdir -p .github/workflows tools; echo x >.github/workflows/ci.yml; echo y >.envrc; echo z >a"
POLICY = 'schema = 1\n[apply]\ntrust = [".github/*", ".env?c"]\n'


@pytest.fixture
def project(person: Person, ext4_disk: Disk) -> str:
    source = ext4_disk.folder(person)
    person.run(["sh", "-c", "echo a >a"], cwd=source, check=True)
    return source


def keep(hostfork: Run, person: Person, project: str, *more: str, script: str = SCRIPT) -> Any:
    run = ["run", "--name", "f", "--private", project, "--cwd", project, *more, "--", "sh", "-c", script]
    return hostfork(person, *run, check=0)


def test_it_is_marked_in_every_place(hostfork: Run, person: Person, project: str) -> None:
    result = os.path.join(person.home, "result")
    done = keep(hostfork, person, project, "--result", result)
    assert f"! {project}/.envrc and 1 more   runs on your host by itself" in done.stderr
    with open(result) as file:
        assert json.load(file)["active"] == [f"{project}/.envrc", f"{project}/.github/workflows/ci.yml"]
    lines = hostfork(person, "diff", "f", check=0).stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("!")] == [".envrc", ".github/workflows/ci.yml"]
    assert "!        " not in hostfork(person, "show", "f", "--receipt", check=0).stdout.split("content")[0]
    assert f"!  0644  {project}/.envrc" in hostfork(person, "show", "f", "--receipt", check=0).stdout
    hostfork(person, "discard", "f", "--yes", check=0)


def test_it_is_applied_only_if_that_is_meant(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project)
    refused = hostfork(person, "apply", "f", "--yes", check=1)
    assert ".envrc" in refused.stderr
    assert sorted(os.listdir(project)) == ["a"]
    hostfork(person, "apply", "f", "--yes", "--allow-active", check=0)
    assert os.path.exists(f"{project}/.github/workflows/ci.yml")
    hostfork(person, "discard", "f", "--yes", check=0)


def test_what_the_policy_trusts_is_applied(hostfork: Run, person: Person, project: str) -> None:
    policy = os.path.join(person.home, "policy.toml")
    person.run(["sh", "-c", 'printf %s "$1" >"$2"', "-", POLICY, policy], check=True)
    keep(hostfork, person, project, "--policy", policy)
    hostfork(person, "apply", "f", "--yes", check=0)
    assert os.path.exists(f"{project}/.github/workflows/ci.yml")
    assert os.path.exists(f"{project}/.envrc")
    hostfork(person, "discard", "f", "--yes", check=0)
    keep(hostfork, person, project, "--policy", policy, script="echo x >.bashrc; echo q >a")
    assert ".bashrc" in hostfork(person, "apply", "f", "--yes", check=1).stderr
    hostfork(person, "discard", "f", "--yes", check=0)
