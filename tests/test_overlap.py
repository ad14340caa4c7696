"""Where forks meet: what two of them, or one and the host, both changed; and the number of that in a list."""

import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from hostfork import api
from hostfork.collect.changeset import Change, Changeset
from hostfork.collect.store import read_places, write_changeset
from hostfork.vocabulary import ChangeKind, EntryKind
from rigs import Disk, Person

Run = Callable[..., Any]
MODES = ["", ":live"]
MAKE = "echo a >a; echo b >b; echo c >c; mkdir d e; echo x >d/x; echo y >e/y"


@pytest.fixture
def project(person: Person, ext4_disk: Disk) -> str:
    source = ext4_disk.folder(person)
    person.run(["sh", "-c", MAKE], cwd=source, check=True)
    return source


def keep(hostfork: Run, person: Person, project: str, name: str, script: str, mode: str = "") -> None:
    run = ["run", "--name", name, "--private", project + mode, "--cwd", project, "--", "sh", "-c", script]
    hostfork(person, *run, check=0)


def overlap(hostfork: Run, person: Person, project: str, *names: str) -> dict[str, tuple[Any, Any, bool]]:
    """What each side did, by path."""
    done = hostfork(person, "overlap", *names, "--json")
    entries = json.loads(done.stdout)["entries"]
    assert done.returncode == int(bool(entries))

    def did(one: Any) -> Any:
        return one and one["change"]

    return {one["path"][len(project) + 1 :]: (did(one["one"]), did(one["other"]), one["same"]) for one in entries}


def meets(hostfork: Run, person: Person) -> dict[str, int | None]:
    forks = json.loads(hostfork(person, "list", "--json", check=0).stdout)["forks"]
    return {fork["name"]: fork["meets"] for fork in forks}


@pytest.mark.parametrize("mode", MODES)
def test_two_forks(hostfork: Run, person: Person, project: str, mode: str) -> None:
    keep(hostfork, person, project, "f", "echo 1 >a; echo 2 >b; echo n >new; rm -r d; rm c", mode)
    keep(hostfork, person, project, "g", "echo 9 >a; echo 2 >b; echo m >e/z; echo z >d/new; rm c", mode)
    assert overlap(hostfork, person, project, "f", "g") == {
        "a": ("modified", "modified", False),
        "b": ("modified", "modified", True),
        "c": ("deleted", "deleted", True),
        "d/new": ("deleted", "created", False),
    }
    assert overlap(hostfork, person, project, "g", "f")["d/new"] == ("created", "deleted", False)
    lines = hostfork(person, "overlap", "f", "g", check=1).stdout.splitlines()
    assert lines[0].split() == ["PATH", "f", "g"]
    assert [line.split()[1:] for line in lines[2:4]] == [["edited", "edited", "same"], ["deleted", "deleted", "same"]]
    assert meets(hostfork, person) == {"f": 4, "g": 4}
    assert "MEETS" in hostfork(person, "list", check=0).stdout
    hostfork(person, "discard", "--all", "--yes", check=0)


def test_forks_that_do_not_meet(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project, "f", "echo 1 >a; echo n >d/new")
    keep(hostfork, person, project, "g", "echo 9 >b; echo m >d/other")
    assert hostfork(person, "overlap", "f", "g", check=0).stdout == ""
    assert meets(hostfork, person) == {"f": 0, "g": 0}
    assert "MEETS" not in hostfork(person, "list", check=0).stdout
    hostfork(person, "discard", "--all", "--yes", check=0)


@pytest.mark.parametrize("mode", MODES)
def test_a_fork_and_the_host(hostfork: Run, person: Person, project: str, mode: str) -> None:
    keep(hostfork, person, project, "f", "echo 1 >a; echo 2 >b; rm c; echo n >new; echo k >d/k; mkdir dir", mode)
    assert overlap(hostfork, person, project, "f") == {}
    assert meets(hostfork, person) == {"f": 0}
    person.run(["sh", "-c", "echo 3 >a; rm b; echo h >new; mkdir dir; echo o >d/other"], cwd=project, check=True)
    assert overlap(hostfork, person, project, "f") == {
        "a": ("modified", None, False),
        "b": ("modified", None, False),
        "new": ("created", None, False),
        "dir": ("created", None, False),
    }
    assert meets(hostfork, person) == {"f": 4}
    hostfork(person, "discard", "f", "--yes", check=0)


def test_a_write_right_after_the_copy_counts(hostfork: Run, person: Person, project: str) -> None:
    """The clock of files may be behind that of programs."""
    out = os.path.join(project, "a")
    for number in range(5):
        keep(hostfork, person, project, f"f{number}", f"echo {number} >a", ":copy")
        with open(out, "a") as file:
            file.write("more\n")
    assert all(meets(hostfork, person).values())
    hostfork(person, "discard", "--all", "--yes", check=0)


def test_what_runs_is_not_known_and_many_changes_are_not_compared(hostfork: Run, person: Person, project: str) -> None:
    keep(hostfork, person, project, "f", "i=0; while [ $i -lt 5001 ]; do : >n$i; i=$((i+1)); done", ":live")
    keep(hostfork, person, project, "g", "echo >n1")
    assert meets(hostfork, person) == {"f": None, "g": 0}
    assert overlap(hostfork, person, project, "f", "g") == {"n1": ("created", "created", False)}
    hostfork(person, "discard", "--all", "--yes", check=0)


def test_places_are_those_of_the_changeset(tmp_path: Any) -> None:
    changes = (
        Change("/p/a", ChangeKind.CREATED, EntryKind.FOLDER),
        Change("/p/b", ChangeKind.DELETED, EntryKind.FOLDER, EntryKind.FOLDER),
        Change("/p/c\udcff", ChangeKind.TYPE, EntryKind.FILE, EntryKind.FOLDER),
    )
    write_changeset(str(tmp_path / "changes"), Changeset(changes))
    assert read_places(str(tmp_path / "changes")) == {
        "/p/a": (False, True), "/p/b": (True, False), "/p/c\udcff": (True, False),
    }  # fmt: skip


def _meets() -> float:
    start = time.monotonic()
    assert len(api.meets()) == 20
    return time.monotonic() - start


@pytest.mark.slow
def test_a_list_of_twenty_forks(hostfork: Run, person: Person, project: str) -> None:
    """What MEETS costs there is printed with `-s`."""
    for number in range(20):
        keep(hostfork, person, project, f"f{number}", "for i in $(seq 300); do echo >n$i; done", ":live")
    print(f"20 forks of 300 changes: {person.call(_meets) * 1000:.0f} ms")
    assert set(meets(hostfork, person).values()) == {300}
    hostfork(person, "discard", "--all", "--yes", check=0)
