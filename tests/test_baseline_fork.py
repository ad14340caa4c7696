"""Baselines of what a fork holds at last, and of mounted trees of any filesystem."""

import json
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rigs
from rigs import Disk, Person

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
FILES = {"a": "a\n" * 3, "b": "b\n", "src/c": "c\n", "src/deep/d": "d\n", "empty/": ""}
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
LISTING = (
    "import json, os, sys\n"
    "def seen(path):\n    found = os.lstat(path)\n    return found.st_mode, found.st_mtime_ns, found.st_size\n"
    "print(json.dumps([[path, seen(path), [(name, seen(os.path.join(path, name))) for name in sorted(names)]]\n"
    "                  for path, _, names in sorted(os.walk(sys.argv[1]))]))\n"
)
CHANGE = "echo more >>a; rm b; mkdir new; echo n >new/n; ln -s a link; chmod 751 src; rm -r src/deep; chmod 4711 new/n"


def document(hostfork: Run, person: Person, *arguments: str) -> Any:
    return json.loads(hostfork(person, "baseline", *arguments, "--json", check=0).stdout)


def lines_of(person: Person) -> list[str]:
    """But for what is being erased."""
    folder = Path(f"{person.state}/pool/baseline")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in names if not name.startswith("rm-"))


@pytest.mark.parametrize("mechanism", ["copy", "overlay", "live", "native"])
def test_what_a_fork_holds_at_last(
    mechanism: str, hostfork: Run, person: Person, make_home: Callable[[str], None]
) -> None:
    """On every mechanism, with what an export leaves out; it stays when the fork goes."""
    make_home("btrfs" if mechanism == "native" else "ext4")
    project = rigs.make_project(person, person.home, FILES)
    path = project if mechanism == "native" else f"{project}:{mechanism}"
    hostfork(person, "run", "--private", path, "--name", "f", "--cwd", project, "--", "sh", "-c", CHANGE, check=0)
    wanted = document(hostfork, person, "create", "x", "--from-fork", "f")["baseline"]
    assert (wanted["origin"], wanted["place"], wanted["trees"][0]["path"]) == ("fork", "f", project)
    hostfork(person, "discard", "f", "--yes", check=0)
    script = "cat a new/n; readlink link; ls; stat -c %a src new/n"
    done = hostfork(person, "run", "--base", "x", "--cwd", project, "--", "sh", "-c", script, check=0)
    assert done.stdout.split() == ["a", "a", "a", "more", "n", "a", "a", "empty", "link", "new", "src", "751", "4711"]
    assert os.path.exists(f"{project}/b")
    done = hostfork(person, "baseline", "refresh", "x", check=125)
    assert "code baseline.origin" in done.stderr
    assert "f" in done.stderr
    hostfork(person, "baseline", "remove", "x", check=0)


@pytest.fixture
def make_home(request: pytest.FixtureRequest, person: Person) -> Callable[[str], None]:
    """Put the home's content on a disk of a kind: a home is on ext4."""

    def make(kind: str) -> None:
        if kind != "ext4":
            found: Disk = request.getfixturevalue(f"{kind}_disk")
            object.__setattr__(person, "home", found.folder(person, "home"))

    return make


def test_several_paths_one_inside_the_other(hostfork: Run, person: Person) -> None:
    project, other = rigs.make_project(person, person.home, FILES), f"{person.home}/other"
    person.call(rigs.write_files, other, {"x": "x\n"})
    inner = f"{project}/src/deep"
    arguments = ("--private", f"{project}:copy", "--shared", f"{project}/src", "--private", f"{inner}:copy")
    script = f"echo 1 >>{project}/a; echo 2 >>{inner}/d; echo 3 >>{other}/x"
    run = ("run", *arguments, "--private", f"{other}:copy", "--name", "f", "--")
    hostfork(person, *run, "sh", "-c", script, check=0)
    assert len(document(hostfork, person, "create", "x", "--from-fork", "f")["baseline"]["trees"]) == 3
    script = f"tail -qn1 {project}/a {inner}/d {other}/x"
    done = hostfork(person, "run", "--base", "x", "--", "sh", "-c", script, check=0)
    assert done.stdout == "1\n2\n3\n"
    done = hostfork(person, "baseline", "create", "y", "--from-fork", "f", "--at", other, check=2)
    assert "3 private paths" in done.stderr


def test_a_baseline_inside_a_private_folder(hostfork: Run, person: Person) -> None:
    """Each has its own; at one path they contradict each other."""
    project = rigs.make_project(person, person.home, FILES)
    hostfork(person, "baseline", "create", "x", "--from", f"{project}/src", check=0)
    person.call(Path(f"{project}/src/c").write_text, "the host's\n")
    run = ("run", "--base", "x", "--cwd", project, "--private")
    done = hostfork(person, *run, f"{project}:copy", "--", "cat", "a", "src/c", check=0)
    assert done.stdout == FILES["a"] + "c\n"
    done = hostfork(person, *run, f"{project}/src", "--", "true")
    assert "code policy.conflict" in done.stderr


def test_a_fork_of_a_fork_and_what_changed_since(hostfork: Run, person: Person) -> None:
    """A fork that lies over a baseline becomes one. A later fork of the same name is another one."""
    project = rigs.make_project(person, person.home, FILES)
    hostfork(person, "baseline", "create", "one", "--from", project, check=0)
    run = ("run", "--base", "one", "--cwd", project, "--name", "f", "--")
    hostfork(person, *run, "sh", "-c", CHANGE, check=0)
    document(hostfork, person, "create", "two", "--from-fork", "f")
    assert document(hostfork, person, "refresh", "two")["files_copied"] == 0
    hostfork(person, "discard", "f", "--yes", check=0)
    hostfork(person, *run, "sh", "-c", "echo other >a", check=0)
    assert "baseline.origin" in hostfork(person, "baseline", "refresh", "two", check=125).stderr
    done = hostfork(person, "run", "--base", "two", "--cwd", project, "--", "tail", "-n1", "a", check=0)
    assert done.stdout == "more\n"


@pytest.mark.parametrize(("arguments", "code"), [(("--from-fork", "nobody"), "fork.not-found"),
                                                 (("--from-fork", "g"), "baseline.origin"),
                                                 (("--from-fork", "g", "--ref", "x"), "policy.usage")])  # fmt: skip
def test_what_cannot_be(arguments: tuple[str, ...], code: str, hostfork: Run, user: Person) -> None:
    """A fork of a single file is no tree; nothing is left."""
    project = rigs.make_project(user, user.home, FILES)
    hostfork(
        user, "run", "--private", f"{project}/a", "--name", "g", "--", "sh", "-c", f"echo 1 >>{project}/a", check=0
    )
    done = hostfork(user, "baseline", "create", "x", *arguments)
    assert f"code {code}" in done.stderr
    assert lines_of(user) == []


def test_a_running_fork_is_busy(hostfork: Run, user: Person) -> None:
    project = rigs.make_project(user, user.home, FILES)
    command = [PROGRAM, "run", "--private", f"{project}:copy", "--name", "f", "--", "sh", "-c", "echo ready; read x"]
    process = user.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    done = hostfork(user, "baseline", "create", "x", "--from-fork", "f", check=125)
    process.communicate("\n")
    assert "code fork.busy" in done.stderr
    assert lines_of(user) == []


def test_a_fork_writes_nothing_outside_by_what_it_becomes(hostfork: Run, user: Person) -> None:
    """Where something is mounted beneath, a fork that made the way there a symlink does not lead out."""
    project, victim = rigs.make_project(user, user.home, FILES), f"{user.home}/victim"
    user.call(os.mkdir, victim)
    arguments = ("--private", f"{project}:copy", "--shared", f"{project}/src/deep")
    script = f"mv src old; ln -s {victim} src"
    hostfork(user, "run", *arguments, "--name", "f", "--cwd", project, "--", "sh", "-c", script)
    hostfork(user, "baseline", "create", "x", "--from-fork", "f")
    assert os.listdir(victim) == []


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", ["mkdir,mkdirat", "rename,renameat,renameat2", "symlink,symlinkat", "utimensat"])
def test_killed_at_any_step(call: str, hostfork: Run, user: Person) -> None:
    project = rigs.make_project(user, user.home, FILES)
    hostfork(
        user, "run", "--private", f"{project}:copy", "--name", "f", "--cwd", project, "--", "sh", "-c", CHANGE, check=0
    )
    for when in (1, 2, 4, 8):
        user.run(["strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={when}",
                  PROGRAM, "baseline", "create", "x", "--from-fork", "f"])  # fmt: skip
        hostfork(user, "recover", check=0)
        listed = document(hostfork, user, "list")["baselines"]
        assert lines_of(user) == ["x.0" for _ in listed]
        if listed:
            done = hostfork(user, "run", "--base", "x", "--cwd", project, "--", "tail", "-n1", "a", check=0)
            assert done.stdout == "more\n"
            hostfork(user, "baseline", "remove", "x", check=0)


# --- mounted trees ---------------------------------------------------------------------------------------------------


def test_a_tree_in_memory_is_read_again(hostfork: Run, person: Person, tmpfs_disk: Disk) -> None:
    """There a write through a mapping moves no ctime: what a stat would call unchanged is seen all the same."""
    project = rigs.make_project(person, tmpfs_disk.folder(person), FILES | {"big": "x" * 300_000})
    person.call(os.link, f"{project}/src/c", f"{project}/src/second")
    hostfork(person, "baseline", "create", "x", "--from", project, check=0)
    assert document(hostfork, person, "refresh", "x")["files_copied"] == 0
    with open(f"{project}/big", "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        before = os.stat(f"{project}/big")
        mapped[100:105] = b"wrote"
        mapped[200_000:200_005] = b"wrote"
    after = os.stat(f"{project}/big")
    os.utime(f"{project}/a", ns=(1, os.stat(f"{project}/a").st_mtime_ns))
    found = document(hostfork, person, "refresh", "x")
    assert (found["files_copied"], found["bytes_copied"]) == (1, 300_000), (before, after)
    mapped.close()
    script = f"head -c 105 {project}/big | tail -c 5; stat -c %h {project}/src/second"
    done = hostfork(person, "run", "--base", "x", "--", "sh", "-c", script, check=0)
    assert done.stdout == "wrote2\n"


def test_whatever_changes_in_memory_is_in_the_next_generation(hostfork: Run, user: Person, tmpfs_disk: Disk) -> None:
    """Kinds, modes, times, attributes, names: as a new baseline would have it."""
    project = rigs.make_project(
        user, tmpfs_disk.folder(user), FILES | {"gone/x": "x", "kind": "k", "mode": "m", "t": "t"}
    )
    user.call(os.link, f"{project}/b", f"{project}/b2")
    hostfork(user, "baseline", "create", "x", "--from", project, check=0)

    def change() -> None:
        shutil.rmtree(f"{project}/gone")
        os.unlink(f"{project}/kind")
        os.symlink("a", f"{project}/kind")
        os.chmod(f"{project}/mode", 0o700)
        os.utime(f"{project}/t", ns=(5, 5))
        os.chmod(f"{project}/src", 0o710)
        os.utime(f"{project}/empty", ns=(7, 7))
        os.unlink(f"{project}/b2")
        Path(f"{project}/b2").write_text("alone\n")
        os.mkfifo(f"{project}/fifo")
        Path(f"{project}/src/deep/d").write_text("D\n")  # of the same size

    user.call(change)
    document(hostfork, user, "refresh", "x")
    hostfork(user, "baseline", "create", "fresh", "--from", project, check=0)
    seen = []
    for name in ("x", "fresh"):
        done = hostfork(user, "run", "--base", name, "--", sys.executable, "-c", LISTING, project, check=0)
        seen.append(json.loads(done.stdout))
    assert seen[0] == seen[1]
    assert len(seen[0]) == 4


def test_mounts_of_any_kind(hostfork: Run, root: Person, tmpfs_disk: Disk) -> None:
    """A folder that is a mount itself: read-only, an overlay, a bind of another."""
    folder = tmpfs_disk.folder(root)
    for name in ("lower", "upper", "work", "over", "bound"):
        os.mkdir(f"{folder}/{name}")
    rigs.write_files(f"{folder}/lower", FILES)
    mount = ["mount", "-t", "overlay", "-o", f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"]
    subprocess.run([*mount, "overlay", f"{folder}/over"], check=True)
    try:
        Path(f"{folder}/over/a").write_text("changed\n")
        subprocess.run(["mount", "--bind", f"{folder}/lower", f"{folder}/bound"], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", f"{folder}/bound"], check=True)
            for name, text in (("over", "changed\n"), ("bound", FILES["a"])):
                hostfork(root, "baseline", "create", name, "--from", f"{folder}/{name}", check=0)
                assert document(hostfork, root, "refresh", name)["files_copied"] == 0
                place = f"{folder}/place-{name}"
                os.mkdir(place)
                script = f"cat {place}/a; echo more >{place}/n"
                done = hostfork(root, "run", "--base", name, "--at", place, "--rm", "--", "sh", "-c", script, check=0)
                assert done.stdout == text
        finally:
            subprocess.run(["umount", f"{folder}/bound"], check=True)
    finally:
        subprocess.run(["umount", f"{folder}/over"], check=True)


@pytest.fixture
def fuse(root: Person, person: Person, ext4_disk: Disk) -> Iterator[str]:
    """Where a FUSE filesystem with the file `hello` is mounted, which shows one time for all."""
    place = ext4_disk.folder(person, "fuse")
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuse_rig.py")
    command = [sys.executable, program, place, str(person.uid), str(person.gid)]
    with root.popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        if server.stdout.readline() != "up\n":
            raise rigs.Missing("no FUSE here")
        try:
            yield place
        finally:
            subprocess.run(["umount", place], check=True)


def test_a_filesystem_in_user_space(hostfork: Run, person: Person, fuse: str) -> None:
    """Taken, and read again by a refresh; without a stamp that could tell."""
    hostfork(person, "baseline", "create", "x", "--from", fuse, check=0)
    assert document(hostfork, person, "refresh", "x")["files_copied"] == 0
    place = f"{person.home}/place"
    person.call(os.mkdir, place)
    done = hostfork(person, "run", "--base", "x", "--at", place, "--", "cat", f"{place}/hello", check=0)
    assert done.stdout == "from a fuse filesystem\n"
