"""Forks of baselines on disks that share blocks: as overlays and as writable snapshots, of snapshots and of clones."""

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rigs
from rigs import Disk, Person, find_program
from test_baseline_run import FILES, PROGRAM, result, write
from test_baseline_stored import subvolumes

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
BTRFS = find_program("btrfs") or "btrfs"


class Place:
    """A person's folder on a disk: a project, and a pool."""

    def __init__(self, disk: Disk, person: Person, own: bool) -> None:
        self.disk, self.person = disk, person
        self.folder = disk.folder(person)
        if own:
            person.run([BTRFS, "subvolume", "create", f"{self.folder}/own"], check=True)
        self.project = rigs.make_project(person, f"{self.folder}/own" if own else self.folder, FILES)
        self.pool = f"{self.folder}/pool"

    def plan(self, hostfork: Run, *options: str) -> dict[str, Any]:
        """The plan's entry of the project."""
        done = hostfork(self.person, "plan", "--pool", self.pool, "--base", "mono", *options, "--json", check=0)
        found: dict[str, Any] = next(one for one in json.loads(done.stdout)["paths"] if one["path"] == self.project)
        return found

    def run(self, hostfork: Run, *arguments: str, **options: Any) -> Any:
        return hostfork(
            self.person, "run", "--pool", self.pool, "--base", "mono", "--cwd", self.project, *arguments, **options
        )

    def create(self, hostfork: Run) -> dict[str, Any]:
        options = ("--from", self.project, "--pool", self.pool, "--json")
        done = hostfork(self.person, "baseline", "create", "mono", *options, check=0)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def looked_up(self, hostfork: Run) -> None:
        """Wait until it is known whether an overlay can show it."""
        end = time.monotonic() + 20
        while not any("fit" in os.listdir(one) for one in Path(self.pool).glob("baseline/mono.0/g*")):
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.fixture(params=["root-snapshot", "user-snapshot", "user-clone"])
def place(request: pytest.FixtureRequest, btrfs_disk: Disk) -> Place:
    """On Btrfs: a project in a subvolume that its owner may take snapshots of, and one in another's.

    Root may take them of every subvolume.
    """
    name, _, how = request.param.partition("-")
    return Place(btrfs_disk, request.getfixturevalue(name), how == "snapshot")


def test_a_writable_snapshot(hostfork: Run, place: Place) -> None:
    """Folders can be renamed and hard links hold; the changes come out; the baseline may go before the fork."""
    made = place.create(hostfork)
    assert made["bytes_copied"] == 0
    before = subvolumes(place.disk)
    file = f"{place.person.home}/result.json"
    script = f"mv src moved; ln a c; echo x >>c; rm b; {BTRFS} -q subvolume create sub; echo s >sub/file"
    done = place.run(
        hostfork, "--prefer", "native", "--name", "one", "--result", file, "--", "sh", "-c", script, check=0
    )
    assert "kept as one" in done.stderr
    told = result(place.person)
    assert told["paths"][0]["mechanism"] == "btrfs"
    document = json.loads(hostfork(place.person, "diff", "one", "--json", check=0).stdout)
    changes = {(entry["change"], os.path.relpath(entry["path"], place.project)) for entry in document["entries"]}
    assert {
        ("modified", "a"),
        ("deleted", "b"),
        ("created", "c"),
        ("created", "moved/c"),
        ("deleted", "src/c"),
    } <= changes
    assert Path(f"{place.project}/a").read_text() == FILES["a"]
    shown = json.loads(hostfork(place.person, "baseline", "show", "mono", "--json", check=0).stdout)["baseline"]
    assert shown["forks"] == []
    write(place.person, f"{place.project}/a", "the host's\n")
    hostfork(place.person, "baseline", "refresh", "mono", check=0)
    assert place.run(hostfork, "--prefer", "native", "--", "cat", "a", check=0).stdout == "the host's\n"
    hostfork(place.person, "baseline", "remove", "mono", check=0)
    assert "+x" in hostfork(place.person, "diff", "one", "--patch", check=0).stdout
    hostfork(place.person, "discard", "one", "--yes", check=0)
    hostfork(place.person, "recover", check=0)
    gone = [name for name in subvolumes(place.disk) if "/pool/" in name]
    assert gone == [], before


def test_an_overlay_is_the_default_once_it_is_known_to_show_all(hostfork: Run, place: Place) -> None:
    place.create(hostfork)
    if "/own/" in place.project:
        place.looked_up(hostfork)
    found = place.plan(hostfork)
    assert found["mechanism"] == "overlay"
    assert place.plan(hostfork, "--require", "folder-rename")["mechanism"] == "btrfs"
    assert found["offer"]["unique_inodes"]
    done = place.run(
        hostfork, "--name", "two", "--", "sh", "-c", "echo x >>a; mkdir new; stat -c %d:%i a b src new", check=0
    )
    assert len(set(done.stdout.split())) == 4
    done = hostfork(place.person, "baseline", "remove", "mono", check=125)
    assert "used by two" in done.stderr
    hostfork(place.person, "discard", "two", "--yes", check=0)
    hostfork(place.person, "baseline", "remove", "mono", check=0)
    hostfork(place.person, "recover", check=0)
    assert [name for name in subvolumes(place.disk) if "/pool/" in name] == []


def test_until_that_is_known_forks_are_writable_snapshots(hostfork: Run, btrfs_disk: Disk, person: Person) -> None:
    place = Place(btrfs_disk, person, own=True)
    place.create(hostfork)
    place.looked_up(hostfork)
    (generation,) = Path(place.pool).glob("baseline/mono.0/g*")
    os.unlink(generation / "fit")
    with open(generation / "looking", "w") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        found = place.plan(hostfork)
        assert found["mechanism"] == "btrfs"
        assert "still being looked up" in json.dumps(found["refused"])
        assert place.run(hostfork, "--", "cat", "a", check=0).stdout == FILES["a"]
    place.plan(hostfork)  # nobody is at it: it is begun again
    place.looked_up(hostfork)
    assert place.plan(hostfork)["mechanism"] == "overlay"
    hostfork(person, "baseline", "remove", "mono", check=0)


@pytest.mark.parametrize("make", ["mknod x c 0 0", "setfattr -n user.overlay.opaque -v y src"])
def test_what_no_overlay_can_show_is_a_writable_snapshot(
    make: str, hostfork: Run, btrfs_disk: Disk, person: Person
) -> None:
    """Found by a look at what was taken; the plan says so."""
    place = Place(btrfs_disk, person, own=True)
    person.run(["sh", "-c", make], cwd=place.project, check=True)
    place.create(hostfork)
    place.looked_up(hostfork)
    found = place.plan(hostfork)
    assert found["mechanism"] == "btrfs"
    assert "overlayfs's own" in json.dumps(found["refused"])
    assert place.run(hostfork, "--", "cat", "src/c", check=0).stdout == "c\n"
    hostfork(person, "baseline", "remove", "mono", check=0)


def test_elsewhere_native_is_the_overlay(hostfork: Run, xfs_disk: Disk, person: Person) -> None:
    """A clone of every file would not take constant time: the plan says what was asked for and cannot be had."""
    place = Place(xfs_disk, person, own=False)
    assert place.create(hostfork)["bytes_copied"] == 0
    found = place.plan(hostfork, "--prefer", "native")
    assert found["mechanism"] == "overlay"
    assert "not on Btrfs" in json.dumps(found["refused"])
    assert place.run(hostfork, "--prefer", "native", "--", "cat", "a", check=0).stdout == FILES["a"]
    hostfork(person, "baseline", "remove", "mono", check=0)


def test_subvolumes_beneath_and_what_is_left_out(hostfork: Run, btrfs_disk: Disk, person: Person) -> None:
    """Each gets a snapshot of its own, in forks too; the pool, below the project here, is in none."""
    place = Place(btrfs_disk, person, own=True)
    person.run([BTRFS, "subvolume", "create", f"{place.project}/inner"], check=True)
    write(person, f"{place.project}/inner/file", "inner\n")
    place.pool = f"{place.project}/.pool"
    place.create(hostfork)
    script = "cat inner/file; ls -A .pool; echo more >>inner/file"
    done = place.run(hostfork, "--prefer", "native", "--name", "one", "--", "sh", "-c", script, check=0)
    assert done.stdout == "inner\n"
    assert "+more" in hostfork(person, "diff", "one", "--patch", check=0).stdout
    place.looked_up(hostfork)
    assert place.run(hostfork, "--", "cat", "inner/file", check=0).stdout == "inner\n"
    hostfork(person, "discard", "one", "--yes", check=0)
    hostfork(person, "baseline", "remove", "mono", check=0)
    hostfork(person, "recover", check=0)
    assert [name for name in subvolumes(btrfs_disk) if "/.pool/" in name] == []


@pytest.mark.rig("strace")
@pytest.mark.parametrize("when", [1, 2, 4, 6, 8, 12])
def test_killed_while_it_makes_one(when: int, hostfork: Run, btrfs_disk: Disk, user: Person) -> None:
    """At a call to Btrfs: recovery leaves no subvolume and no name."""
    place = Place(btrfs_disk, user, own=True)
    before = subvolumes(btrfs_disk)
    traced = ["strace", "-f", "-o", "/dev/null", "-e", "trace=ioctl", "-e", f"inject=ioctl:signal=SIGKILL:when={when}"]
    done = user.run([*traced, PROGRAM, "baseline", "create", "mono", "--from", place.project, "--pool", place.pool])
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL, 0)
    if json.loads(hostfork(user, "baseline", "list", "--json", check=0).stdout)["baselines"]:
        hostfork(user, "baseline", "remove", "mono", check=0)
    hostfork(user, "recover", check=0)
    left = [name for name in subvolumes(btrfs_disk) if name not in before and not name.endswith("/pool")]
    assert left == []


def test_it_is_said_how_each_is_stored(hostfork: Run, disk: Disk, person: Person) -> None:
    """A snapshot on Btrfs where one can be had, a clone where blocks are shared, else a copy."""
    place = Place(disk, person, own=disk.kind == "btrfs")
    wanted = {"btrfs": "snapshot", "xfs": "reflink"}.get(disk.kind, "copy")
    made = place.create(hostfork)
    assert [tree["stored"] for tree in made["baseline"]["trees"]] == [wanted]
    assert made["bytes_copied"] == (0 if wanted != "copy" else sum(map(len, FILES.values())))
    done = hostfork(person, "baseline", "show", "mono", check=0)
    assert f"stored      {wanted}\n" in done.stdout
    write(person, f"{place.project}/a", "more\n")
    done = hostfork(person, "baseline", "refresh", "mono", check=0)
    assert done.stdout.startswith("mono  is up to date   " + ("a snapshot" if wanted == "snapshot" else "1 file, "))
    hostfork(person, "baseline", "remove", "mono", check=0)
