"""Where private storage lies if nobody said it: in the state folder, or on the disk of what it is of."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rigs import Disk, Person, wait_until
from test_run import changed, leftovers, make_project, names

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
MECHANISMS = {"ext4": "copy", "xfs": "reflink", "btrfs": "btrfs"}


@pytest.fixture(params=sorted(MECHANISMS))
def other(request: Any, make_disk: Callable[..., Disk], root: Person) -> Disk:
    """A disk on which no state folder lies."""
    return make_disk(request.param, 320)


@pytest.fixture
def project(other: Disk, person: Person) -> str:
    path = f"{other.folder(person)}/p"
    person.call(make_project, path)
    return path


def place(disk: Disk, person: Person) -> str:
    return f"{disk.path}/.hostfork-{person.uid}"


def pool_of(hostfork: Run, person: Person, *arguments: str, **options: Any) -> str:
    done = hostfork(person, "plan", "--json", *arguments, check=0, **options)
    return str(json.loads(done.stdout)["pool"])


def stored(pool: str) -> list[str]:
    """The files of forks in a pool."""
    kinds = [kind.path for kind in os.scandir(pool) if kind.is_dir(follow_symlinks=False)]
    return [f"{folder}/{name}" for kind in kinds for folder, _, files in os.walk(kind) for name in files]


def test_it_is_a_closed_folder_on_the_sources_disk(hostfork: Run, person: Person, other: Disk, project: str) -> None:
    """What needs the source's filesystem is had there; lists know it, and nothing of the fork is left in it."""
    hostfork(person, "run", "--name", "one", "--private", project, "--", "sh", "-c", "echo x >x", cwd=project, check=0)
    found = os.lstat(place(other, person))
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, person.uid)
    shown = json.loads(hostfork(person, "show", "one", "--json", check=0).stdout)
    (mechanism,) = (path["mechanism"] for path in shown["paths"] if path["access"] == "private")
    # An ordinary user has no snapshot of root's subvolume.
    expected = "reflink" if (other.kind, person.uid != 0) == ("btrfs", True) else MECHANISMS[other.kind]
    assert (shown["pool"], mechanism) == (place(other, person), expected)
    assert changed(hostfork, person, "one", project) == {"x": "created"}
    assert place(other, person) in hostfork(person, "usage", "--json", check=0).stdout
    hostfork(person, "discard", "one", "--yes", check=0)
    wait_until(lambda: stored(place(other, person)) == [])
    assert not os.path.exists(f"{person.state}/pool/{mechanism}")


def test_recover_finds_what_a_killed_run_left_there(hostfork: Run, person: Person, other: Disk, project: str) -> None:
    process = person.popen([PROGRAM, "run", "--private", project, "--", "sh", "-c", "echo up; sleep 1000"],
                           cwd=project, stdout=subprocess.PIPE, text=True)  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
    hostfork(person, "recover", check=0)
    assert (names(hostfork, person), leftovers(person), stored(place(other, person))) == ([], [], [])
    person.call(os.makedirs, f"{place(other, person)}/copy/gone.0/tree")
    assert "gone" not in hostfork(person, "list", check=0).stdout
    hostfork(person, "recover", check=0)
    assert os.listdir(f"{place(other, person)}/copy") == []


def test_no_view_shows_it(hostfork: Run, person: Person, other: Disk, project: str) -> None:
    """Of the fork itself and of one that lies elsewhere; nobody can change what others hold there."""
    hostfork(person, "run", "--name", "one", "--private", project, "--", "touch", f"{project}/x", check=0)
    for private in (project, person.home):
        for found in (place(other, person), f"{person.state}/pool"):  # root sees an empty folder, others not even that
            done = hostfork(person, "run", "--rm", "--private", private, "--", "ls", "-A", found)
            assert (done.stdout, done.returncode in (0, 2)) == ("", True), done.stderr
    refused = hostfork(person, "run", "--private", project, "--shared", place(other, person), "--", "true", check=125)
    assert "own pool" in refused.stderr
    hostfork(person, "discard", "one", "--yes", check=0)


def test_a_private_mount_has_none_made_in_it(hostfork: Run, root: Person, other: Disk) -> None:
    """The disk itself is the user's own tree. One that is there already is covered and left out of what is taken."""
    project = f"{other.folder(root)}/p"
    root.call(make_project, project)
    whole = ("--private", f"{other.path}:copy")
    before = os.listdir(other.path)
    hostfork(root, "run", "--rm", *whole, "--", "true", check=0)
    assert os.listdir(other.path) == before
    hostfork(root, "run", "--name", "one", "--private", project, "--", "touch", f"{project}/x", check=0)
    done = hostfork(root, "run", "--name", "two", *whole, "--", "sh", "-c", f"ls -A {place(other, root)}; touch y",
                    cwd=other.path, check=0)  # fmt: skip
    assert done.stdout == ""
    assert changed(hostfork, root, "two", other.path) == {"y": "created"}
    (two,) = (path for path in stored(f"{root.state}/pool") if path.endswith("/y"))
    assert not os.path.exists(f"{os.path.dirname(two)}/.hostfork-0/copy")
    for name in ("one", "two"):
        hostfork(root, "discard", name, "--yes", check=0)


def test_who_may_not_make_it_has_the_state_folders(hostfork: Run, user: Person, other: Disk) -> None:
    project = f"{other.folder(user)}/p"
    user.call(make_project, project)
    os.chmod(other.path, 0o755)
    hostfork(user, "run", "--name", "one", "--private", project, "--", "touch", f"{project}/x", check=0)
    assert changed(hostfork, user, "one", project) == {"x": "created"}
    assert not os.path.lexists(place(other, user))
    assert json.loads(hostfork(user, "show", "one", "--json", check=0).stdout)["pool"] == f"{user.state}/pool"
    hostfork(user, "discard", "one", "--yes", check=0)


def test_a_disk_that_cannot_be_written_is_a_source(hostfork: Run, person: Person, other: Disk, project: str) -> None:
    """As a squashfs or a CD: what is private is a copy elsewhere, and can be written."""
    subprocess.run(["mount", "-o", "remount,ro", other.path], check=True)
    done = hostfork(person, "run", "--name", "one", "--private", project, "--", "sh", "-c", "echo x >x; cat x",
                    cwd=project, check=0)  # fmt: skip
    assert done.stdout == "x\n"
    assert changed(hostfork, person, "one", project) == {"x": "created"}
    assert json.loads(hostfork(person, "show", "one", "--json", check=0).stdout)["pool"] == f"{person.state}/pool"
    hostfork(person, "discard", "one", "--yes", check=0)
    subprocess.run(["mount", "-o", "remount,rw", other.path], check=True)


def _trap(kind: str, where: str, folder: str) -> None:
    if kind == "symlink":
        os.mkdir(f"{folder}/mine", 0o700)
        os.symlink(f"{folder}/mine", where)
    elif kind == "open to others":
        os.mkdir(where)
        os.chmod(where, 0o755)
    else:
        open(where, "w").close()


@pytest.mark.parametrize("kind", ["symlink", "open to others", "a file"])
def test_what_is_in_its_place_is_not_used(hostfork: Run, person: Person, other: Disk, project: str, kind: str) -> None:
    folder = os.path.dirname(project)
    person.call(_trap, kind, place(other, person), folder)
    assert pool_of(hostfork, person, "--private", project) == f"{person.state}/pool"
    assert not os.path.isdir(f"{folder}/mine") or os.listdir(f"{folder}/mine") == []


@pytest.fixture
def bound(project: str, root: Person, ext4_disk: Disk) -> Iterator[str]:
    """The project is a mount of its own, as in a container that was given it."""
    target = ext4_disk.folder(root)
    subprocess.run(["mount", "--bind", project, target], check=True)
    yield target
    subprocess.run(["umount", target], check=True)


def test_a_project_that_is_a_mount_stays_as_it_is(hostfork: Run, person: Person, bound: str) -> None:
    before = sorted(os.listdir(bound))
    hostfork(person, "run", "--rm", "--private", bound, "--", "true", check=0)
    assert sorted(os.listdir(bound)) == before


def test_several_disks_and_the_state_folders_own(hostfork: Run, person: Person, other: Disk, project: str) -> None:
    """A fork has one pool: where one of its paths lies with the state folder, it is there."""
    both = ("--private", project, "--private", person.home)
    assert pool_of(hostfork, person, *both) == f"{person.state}/pool"
    assert not os.path.lexists(place(other, person))
    assert pool_of(hostfork, person, "--private", project) == place(other, person)


def test_a_baseline_lies_there_and_its_forks(hostfork: Run, person: Person, other: Disk, project: str) -> None:
    hostfork(person, "baseline", "create", "mono", "--from", project, check=0)
    assert place(other, person) in hostfork(person, "baseline", "show", "mono", check=0).stdout
    done = hostfork(person, "run", "--base", "mono", "--rm", "--", "ls", cwd=project, check=0)
    assert done.stdout.split() == sorted(os.listdir(project))
    hostfork(person, "baseline", "remove", "mono", check=0)
