"""Whole runs where home, state folder and project lie in one Btrfs subvolume of the person's own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rigs
from rigs import Disk, Person
from storage_cases import make_subvolume

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
KILLER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kill_runs.py")
FILES = {"a": "a\n" * 3, "b": "b\n", "src/c": "c\n", "src/deep/d": "d\n", "cache/e": "e\n", "scratch/": ""}
MODES = ("", ":btrfs", ":snapshot", ":overlay")


@pytest.fixture
def at_home(btrfs_disk: Disk, person: Person) -> Person:
    """The person with a home on Btrfs."""
    top = f"{btrfs_disk.folder(person)}/volume"
    person.call(make_subvolume, top)
    return replace(person, home=rigs.make_home(top, person.uid, person.gid))


@pytest.fixture
def project(at_home: Person) -> str:
    return rigs.make_project(at_home, at_home.home, FILES)


def picture(folder: str) -> dict[str, tuple[int, int, str]]:
    """Modes, times and content."""
    return {
        os.path.relpath(path, folder): (path.stat().st_mode, path.stat().st_mtime_ns, text(path))
        for path in Path(folder).rglob("*")
    }


def text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def paths_of(hostfork: Run, person: Person, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(hostfork(person, "show", name, "--json", check=0).stdout)["paths"]
    return found


def changes(hostfork: Run, person: Person, name: str, folder: str) -> dict[str, str]:
    document = json.loads(hostfork(person, "diff", name, "--json", check=0).stdout)
    return {os.path.relpath(entry["path"], folder): entry["change"] for entry in document["entries"]}


def left(person: Person) -> list[str]:
    """What is in the pool."""
    return [str(path) for path in Path(f"{person.state}/pool").glob("*/*")]


@pytest.mark.parametrize("mode", MODES)
def test_the_main_job(hostfork: Run, at_home: Person, project: str, mode: str) -> None:
    before = picture(project)
    script = "cat a; echo new >n; echo more >>a; rm b; mkdir f; mv src/c f/c; chmod 600 cache/e; pwd"
    rule = project + mode
    done = hostfork(at_home, "run", "--name", "one", "--private", rule, "--", "sh", "-c", script, cwd=project)
    assert (done.returncode, done.stdout) == (0, "a\na\na\n" + project + "\n"), done.stderr
    assert picture(project) == before
    assert "kept as one" in done.stderr
    path = next(one for one in paths_of(hostfork, at_home, "one") if one["path"] == project)
    assert path["mechanism"] == ("overlay" if mode == ":overlay" else "btrfs")
    assert (path["guarantee"], path["base_content"]) == ("snapshot", "kept")
    assert changes(hostfork, at_home, "one", project) == {
        "n": "created", "a": "modified", "b": "deleted", "f": "created", "f/c": "created", "src/c": "deleted",
        "cache/e": "metadata",
    }  # fmt: skip
    # The base is the fork's own: later host writes are no part of a patch.
    at_home.call(Path(f"{project}/a").write_text, "the host's\n")
    patch = hostfork(at_home, "diff", "one", "--patch", check=0).stdout
    assert "+more" in patch
    assert "the host's" not in patch
    export = f"{at_home.home}/out"
    hostfork(at_home, "export", "one", export, check=0)
    assert Path(f"{export}/a").read_text() == "a\na\na\nmore\n"
    assert not os.path.exists(f"{export}/b")
    hostfork(at_home, "discard", "one", "--yes", check=0)
    assert json.loads(hostfork(at_home, "list", "--json", check=0).stdout)["forks"] == []
    hostfork(at_home, "recover", check=0)
    assert left(at_home) == []


@pytest.mark.parametrize("mode", MODES)
def test_no_change_leaves_nothing(hostfork: Run, at_home: Person, project: str, mode: str) -> None:
    done = hostfork(at_home, "run", "--private", project + mode, "--", "cat", "a", cwd=project, check=0)
    assert done.stderr == ""
    assert left(at_home) == []


def test_a_private_home_holds_no_pool(hostfork: Run, at_home: Person, project: str) -> None:
    """The state folder and its pool, a subvolume, lie below it: covered, and no change."""
    script = "echo x >>proj/a; ls -A .local/state/hostfork; ls -A .local/state/hostfork/pool 2>/dev/null | wc -l"
    home = at_home.home
    hostfork(at_home, "run", "--private", f"{home}/proj", "--", "sh", "-c", "echo y >>b", cwd=project, check=0)
    done = hostfork(at_home, "run", "--name", "home", "--private", home, "--", "sh", "-c", script, cwd=home, check=0)
    assert done.stdout.split()[-1] == "0"
    path = next(one for one in paths_of(hostfork, at_home, "home") if one["path"] == home)
    assert (path["mechanism"], path["guarantee"]) == ("btrfs", "snapshot")
    assert changes(hostfork, at_home, "home", home) == {"proj/a": "modified"}
    for name in [fork["name"] for fork in json.loads(hostfork(at_home, "list", "--json").stdout)["forks"]]:
        hostfork(at_home, "discard", name, "--yes", check=0)
    hostfork(at_home, "recover", check=0)
    assert left(at_home) == []


def test_rules_inside_a_private_path(hostfork: Run, at_home: Person, project: str) -> None:
    """What is covered there is no change, and cannot be read where it is hidden."""
    script = "cat src/deep/d; echo s >cache/new; cat b || echo hidden; echo c >>a"
    rules = ["--private", project, "--scratch", f"{project}/cache", "--hidden", f"{project}/b"]
    done = hostfork(at_home, "run", "--name", "in", *rules, "--", "sh", "-c", script, cwd=project, check=0)
    assert done.stdout == ("d\n" if at_home.uid == 0 else "d\nhidden\n")  # root may read it: it is empty
    assert changes(hostfork, at_home, "in", project) == {"a": "modified"}


def test_what_is_hidden_gets_into_no_changeset_by_a_rename(hostfork: Run, at_home: Person, project: str) -> None:
    rules = ["--private", project, "--hidden", f"{project}/src/deep"]
    hostfork(at_home, "run", "--name", "r", *rules, "--", "mv", "src", "moved", cwd=project, check=0)
    assert changes(hostfork, at_home, "r", project) == {
        "src/c": "deleted", "src": "deleted", "moved": "created", "moved/c": "created", "moved/deep": "created",
    }  # fmt: skip


@pytest.mark.parametrize("how", ["mount", "socket"])
def test_the_hosts_mounts_and_endpoints_beneath(
    hostfork: Run, at_home: Person, project: str, root: Person, how: str
) -> None:
    """Put back in the fork; a user may not be able to remove what a mount hides, and gets a clone then."""
    if how == "socket":
        with at_home.popen([sys.executable, "-c", SERVER, f"{project}/s"], stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            script = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{project}/s'); print(s.recv(9))"
            done = hostfork(at_home, "run", "--private", project, "--", sys.executable, "-c", script, cwd=project)
            server.kill()
        assert done.stdout == "b'hello'\n", done.stderr
        return
    subprocess.run(["mount", "-t", "tmpfs", "none", f"{project}/cache"], check=True)
    try:
        Path(f"{project}/cache/there").touch()
        done = hostfork(at_home, "run", "--private", project, "--", "ls", "cache", cwd=project, check=0)
    finally:
        rigs.unmount(f"{project}/cache")
    assert done.stdout == "there\n"


SERVER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
listener.accept()[0].sendall(b"hello")
"""


@pytest.mark.parametrize("mode", ["", ":overlay"])
def test_nested_subvolumes(hostfork: Run, at_home: Person, project: str, mode: str) -> None:
    at_home.call(make_subvolume, f"{project}/nested")
    at_home.call(Path(f"{project}/nested/file").write_text, "nested\n")
    script = "cat nested/file; echo more >>nested/file; echo n >nested/new"
    rule = project + mode
    done = hostfork(at_home, "run", "--name", "n", "--private", rule, "--", "sh", "-c", script, cwd=project, check=0)
    assert done.stdout == "nested\n"
    assert Path(f"{project}/nested/file").read_text() == "nested\n"
    path = next(one for one in paths_of(hostfork, at_home, "n") if one["path"] == project)
    assert path["guarantee"] == "independent"
    assert changes(hostfork, at_home, "n", project) == {"nested/file": "modified", "nested/new": "created"}
    refused = hostfork(at_home, "run", "--private", f"{project}:snapshot", "--", "true", cwd=project)
    assert refused.returncode == 125
    assert "not one instant" in refused.stderr


def test_a_single_private_file(hostfork: Run, at_home: Person, project: str) -> None:
    script = "echo more >>a; cat a b"
    rules = ["--private", f"{project}/a"]
    done = hostfork(at_home, "run", "--name", "f", *rules, "--", "sh", "-c", script, cwd=project, check=0)
    assert done.stdout == "a\na\na\nmore\nb\n"
    assert Path(f"{project}/a").read_text() == "a\na\na\n"
    assert changes(hostfork, at_home, "f", project) == {"a": "modified"}


def test_a_private_file_where_it_cannot_be_had(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    """Case 12: refused with the reason, nothing copied, the status 125."""
    folder = rigs.make_project(person, ext4_disk.folder(person), FILES)
    before = picture(folder)
    for mode in (":btrfs", ":snapshot"):
        done = hostfork(person, "run", "--private", folder + mode, "--", "true", cwd=folder)
        assert done.returncode == 125
        assert "not on Btrfs" in done.stderr
    assert picture(folder) == before
    assert left(person) == []


@pytest.mark.slow
@pytest.mark.rig("cgroup")
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", ["", ":overlay"])
@pytest.mark.parametrize(("how", "rounds"), [("times", 10), ("calls", 15), ("keeper", 5), ("steps", 0)])
def test_a_kill_at_any_moment(leaves_nothing: None, at_home: Person, mode: str, how: str, rounds: int) -> None:
    files = {"a": "a", "b": "b", "d/c": "d/c", "d/e/f": "d/e/f", "scratch/": ""}
    project = rigs.make_project(at_home, at_home.home, files)
    done = at_home.run([sys.executable, KILLER, how, project, mode, str(rounds), "1"], timeout=150)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{done.stderr}\n" + (json.dumps(told[-1], indent=1) if told else "")
