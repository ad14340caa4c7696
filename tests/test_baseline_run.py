"""Whole runs over baselines: those that `--private` makes by itself, and those with a name."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rigs
from rigs import Disk, Person

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
FILES = {"a": "a\n" * 3, "b": "b\n", "src/c": "c\n", "src/deep/d": "d\n", "empty/": ""}
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")


@pytest.fixture
def project(person: Person) -> str:
    return rigs.make_project(person, person.home, FILES)


def picture(folder: str) -> dict[str, tuple[int, int, str]]:
    """Modes, times and content."""
    return {
        os.path.relpath(path, folder): (path.stat().st_mode, path.stat().st_mtime_ns,
                                        path.read_text() if path.is_file() else "")
        for path in Path(folder).rglob("*")
    }  # fmt: skip


def many(folder: str, number: int) -> None:
    """Small files, so many that a copy of them takes long."""
    for index in range(number):
        if index % 500 == 0:
            os.mkdir(f"{folder}/d{index // 500}")
        with open(f"{folder}/d{index // 500}/{index}", "w") as file:
            file.write(str(index))


def write(person: Person, path: str, text: str) -> None:
    person.call(Path(path).write_text, text)


def result(person: Person) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{person.home}/result.json").read_text())
    return found


def lines_of(person: Person) -> list[str]:
    folder = Path(f"{person.state}/pool/baseline")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def started(person: Person, *arguments: str) -> "subprocess.Popen[Any]":
    """A run that lasts until its stdin is closed; its command has begun."""
    process = person.popen([PROGRAM, "run", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


SHOW = "echo ready; read line; cat a src/c b 2>&1"


def finished(process: "subprocess.Popen[Any]") -> str:
    out, _ = process.communicate("\n")
    return str(out)


def test_what_takes_long_to_copy_is_kept(hostfork: Run, person: Person, project: str) -> None:
    """By itself: the first run makes the baseline, later ones copy what changed; what is small is copied each time."""
    result_file = f"--result={person.home}/result.json"
    hostfork(person, "run", "--rm", "--private", project, result_file, "--", "true", cwd=project, check=0)
    assert result(person)["paths"][0]["mechanism"] == "copy"
    assert lines_of(person) == []
    person.call(many, project, 12_000)
    before = picture(project)
    script = "cat d3/1600; echo new >d3/1600; rm -r d4; echo >n"
    copied = []
    for _ in range(2):
        done = hostfork(person, "run", "--rm", "--private", project, result_file, "--", "sh", "-c", script, cwd=project)
        assert (done.returncode, done.stdout) == (0, "1600"), done.stderr
        path = result(person)["paths"][0]
        assert (path["mechanism"], path["guarantee"], path["base_content"]) == ("overlay", "independent", "kept")
        copied.append(path["bytes_copied"])
    assert copied[0] > 12_000 * 3
    assert copied[1] == 0
    assert picture(project) == before
    plan = hostfork(person, "plan", "--private", project, cwd=project, check=0).stdout
    assert "over its baseline" in plan
    write(person, f"{project}/d3/1600", "host")
    done = hostfork(person, "run", "--rm", "--private", project, result_file, "--", "cat", "d3/1600", cwd=project)
    assert done.stdout == "host"
    assert result(person)["paths"][0]["bytes_copied"] == 4


def test_two_live_the_host_changes_and_a_third_starts(hostfork: Run, person: Person, project: str) -> None:
    """A and B show the old state, C the new one; and B what it was after A has gone, and layers were merged."""
    old = "a\na\na\nc\nb\n"
    a = started(person, "--private", f"{project}:overlay", "--cwd", project, "--", "sh", "-c", SHOW)
    b = started(person, "--private", f"{project}:overlay", "--cwd", project, "--", "sh", "-c", SHOW)
    write(person, f"{project}/a", "changed\n")
    person.call(os.unlink, f"{project}/b")
    person.call(shutil.rmtree, f"{project}/src")
    c = started(person, "--private", f"{project}:overlay", "--cwd", project, "--", "sh", "-c", SHOW)
    assert finished(a) == old
    write(person, f"{project}/b", "again\n")
    d = started(person, "--private", f"{project}:overlay", "--cwd", project, "--", "sh", "-c", SHOW)
    assert finished(b) == old
    new = finished(c)
    assert new.startswith("changed\n")
    assert new.count("No such file") == 2
    assert finished(d).endswith("again\n")
    hostfork(person, "recover", check=0)  # what is set aside and not erased yet still lies over its generation
    hostfork(person, "run", "--private", f"{project}:overlay", "--", "true", cwd=project, check=0)
    (line,) = lines_of(person)
    folder = Path(f"{person.state}/pool/baseline/{line}")
    assert len(list(folder.glob("t[0-9]*"))) == 1  # nobody lies over the old ones any more
    hostfork(person, "recover", check=0)
    assert lines_of(person) == [line]


def test_changes_over_layers_are_kept_and_come_out(hostfork: Run, person: Person, project: str) -> None:
    """A kept fork over two layers: diff, patch and export read the stack, whatever the host does meanwhile."""
    hostfork(person, "run", "--keep", "--name", "first", "--private", f"{project}:overlay", "--", "true", cwd=project)
    write(person, f"{project}/a", "second\n")
    person.call(os.unlink, f"{project}/src/c")
    script = "echo more >>a; rm b; echo new >src/n; mv src/deep/d src/deep/e"
    done = hostfork(person, "run", "--name", "two", "--private", f"{project}:overlay", "--", "sh", "-c", script,
                    cwd=project, check=0)  # fmt: skip
    assert "kept as two" in done.stderr
    write(person, f"{project}/a", "later\n")
    document = json.loads(hostfork(person, "diff", "two", "--json", check=0).stdout)
    assert {os.path.relpath(entry["path"], project): entry["change"] for entry in document["entries"]} == {
        "a": "modified", "b": "deleted", "src/n": "created", "src/deep/d": "deleted", "src/deep/e": "created",
    }  # fmt: skip
    patch = hostfork(person, "diff", "two", "--patch", check=0).stdout
    assert " second\n+more\n" in patch
    assert "later" not in patch
    out = f"{person.home}/out"
    hostfork(person, "export", "two", out, check=0)
    assert Path(f"{out}/a").read_text() == "second\nmore\n"
    assert sorted(str(path.relative_to(out)) for path in Path(out).rglob("*")) == [
        "a", "empty", "src", "src/deep", "src/deep/e", "src/n",
    ]  # fmt: skip
    hostfork(person, "discard", "--all", "--yes", check=0)


def test_what_no_overlay_can_show_is_copied_instead(hostfork: Run, person: Person, project: str) -> None:
    """Only taking it tells: by itself it is copied, by name it is refused; both say which path."""
    person.call(many, project, 12_000)
    person.call(os.mknod, f"{project}/src/hole", 0o020000, 0)
    argument = f"--result={person.home}/result.json"
    script = "test -c src/hole && cat b"
    for _ in range(2):
        done = hostfork(person, "run", "--rm", "--private", project, argument, "--", "sh", "-c", script, cwd=project)
        assert (done.returncode, done.stdout) == (0, "b\n"), done.stderr
        assert result(person)["paths"][0]["mechanism"] == "copy"
    assert "src/hole" in hostfork(person, "plan", "--private", project, cwd=project).stdout
    for _ in range(2):
        done = hostfork(person, "run", "--private", f"{project}:overlay", "--", "true", cwd=project, check=125)
        assert f"{project}/src/hole" in done.stderr
        assert "storage.unsupported" in done.stderr
    person.call(os.unlink, f"{project}/src/hole")
    hostfork(person, "run", "--rm", "--private", project, argument, "--", "true", cwd=project, check=0)
    assert result(person)["paths"][0]["mechanism"] == "overlay"


def test_a_baseline_by_name(hostfork: Run, person: Person, project: str) -> None:
    """Made, used, brought up to date beside a fork, kept while one lies over it, removed."""
    done = hostfork(person, "baseline", "create", "mono", "--from", project, check=0)
    assert done.stdout == "mono  kept   8 files, 12 B copied\n"
    write(person, f"{project}/a", "the host's\n")
    run = ("run", "--base", "mono", "--cwd", project)
    done = hostfork(person, *run, "--name", "old", "--", "sh", "-c", "cat a; echo x >>a", check=0)
    assert done.stdout == "a\na\na\n"
    assert Path(f"{project}/a").read_text() == "the host's\n"
    done = hostfork(person, "baseline", "remove", "mono", check=125)
    assert "used by old" in done.stderr
    assert "baseline.in-use" in done.stderr
    assert hostfork(person, "baseline", "refresh", "mono", check=0).stdout.startswith("mono  is up to date   1 file, ")
    assert hostfork(person, *run, "--", "cat", "a", check=0).stdout == "the host's\n"
    document = json.loads(hostfork(person, "diff", "old", "--json", check=0).stdout)
    assert [entry["change"] for entry in document["entries"]] == ["modified"]
    assert "+x" in hostfork(person, "diff", "old", "--patch", check=0).stdout
    shown = json.loads(hostfork(person, "baseline", "show", "mono", "--json", check=0).stdout)["baseline"]
    assert ([tree["path"] for tree in shown["trees"]], shown["forks"], shown["state"]) == ([project], ["old"], "kept")
    hostfork(person, "recover", check=0)
    assert lines_of(person) == ["mono.0"]
    hostfork(person, "discard", "old", "--yes", check=0)
    assert hostfork(person, "baseline", "remove", "mono", check=0).stdout == "mono  removed\n"
    assert json.loads(hostfork(person, "baseline", "list", "--json", check=0).stdout)["baselines"] == []
    hostfork(person, "recover", check=0)
    assert lines_of(person) == []


def test_at_another_path(hostfork: Run, person: Person, project: str) -> None:
    hostfork(person, "baseline", "create", "mono", "--from", project, check=0)
    place = f"{person.home}/elsewhere"
    person.call(os.mkdir, place)
    done = hostfork(person, "run", "--base", "mono", "--at", place, "--", "cat", f"{place}/src/c", check=0)
    assert done.stdout == "c\n"
    assert os.listdir(place) == []
    done = hostfork(person, "run", "--base", "mono", "--at", f"{place}/nothing", "--", "true", check=125)
    assert "policy.bad-path" in done.stderr
    done = hostfork(person, "run", "--at", place, "--private", place, "--", "true", check=125)
    assert "--base" in done.stderr


def test_several_folders(hostfork: Run, person: Person, project: str) -> None:
    other = f"{person.home}/other"
    person.call(rigs.write_files, other, {"x": "x\n"})
    hostfork(person, "baseline", "create", "both", "--from", project, "--from", other, check=0)
    write(person, f"{other}/x", "y\n")
    done = hostfork(person, "run", "--base", "both", "--", "cat", f"{project}/b", f"{other}/x", check=0)
    assert done.stdout == "b\nx\n"
    done = hostfork(person, "run", "--base", "both", "--at", project, "--", "true", check=125)
    assert "2 folders" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("create", "x"), "policy.usage"),
        (("create", "x/y", "--from", "."), "fork.bad-name"),
        (("create", "x", "--from", "nowhere"), "policy.bad-path"),
        (("create", "x", "--from", "a"), "policy.bad-path"),
        (("create", "x", "--from", "/proc"), "policy.bad-path"),
        (("create", "there", "--from", "."), "baseline.name-taken"),
        (("refresh", "x"), "baseline.not-found"),
        (("show", "x"), "baseline.not-found"),
        (("remove", "x"), "baseline.not-found"),
        (("list", "x"), "policy.usage"),
        (("show", "there", "other"), "policy.usage"),
        (("show", "there", "--from", "."), "policy.usage"),
    ],
)
def test_what_cannot_be_is_one_error_and_leaves_nothing(
    arguments: tuple[str, ...], code: str, hostfork: Run, person: Person, project: str
) -> None:
    hostfork(person, "baseline", "create", "there", "--from", project, check=0)
    done = hostfork(person, "baseline", *arguments, cwd=project)
    assert done.returncode in (2, 125)
    assert f"code {code}" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert lines_of(person) == ["there.0"]


def test_a_source_that_changes_all_the_time_leaves_none(hostfork: Run, user: Person) -> None:
    project = rigs.make_project(user, user.home, FILES)
    write(user, f"{project}/big", "x" * 60_000_000)
    program = (
        "import os, sys\nfile = os.open(sys.argv[1], os.O_RDWR)\nwhile True: os.pwrite(file, os.urandom(999), 0)\n"
    )
    with user.popen([sys.executable, "-c", program, f"{project}/big"]) as writer:
        try:
            time.sleep(0.3)
            done = hostfork(user, "baseline", "create", "x", "--from", project, check=125)
        finally:
            writer.kill()
    assert "storage.unstable" in done.stderr
    assert f"{project}/big" in done.stderr
    assert json.loads(hostfork(user, "baseline", "list", "--json", check=0).stdout)["baselines"] == []
    hostfork(user, "recover", check=0)
    assert lines_of(user) == []


def test_storage_that_is_gone_is_lost(hostfork: Run, person: Person, project: str) -> None:
    """A typed error, never an empty tree: for the baseline, and for a fork over it."""
    hostfork(person, "baseline", "create", "mono", "--from", project, check=0)
    hostfork(person, "run", "--base", "mono", "--name", "one", "--", "sh", "-c", f"echo x >{project}/n", check=0)
    shutil.rmtree(f"{person.state}/pool/baseline/mono.0")
    done = hostfork(person, "run", "--base", "mono", "--", "ls", project, check=125)
    assert "code baseline.lost" in done.stderr
    for arguments in (("diff", "one", "--patch"), ("export", "one", f"{person.home}/out")):
        done = hostfork(person, *arguments, check=125)
        assert "code fork.lost" in done.stderr, done.stderr
    assert "lost" in hostfork(person, "baseline", "list", check=0).stdout
    hostfork(person, "discard", "one", "--yes", check=0)
    hostfork(person, "baseline", "remove", "mono", check=0)


@pytest.mark.rig("strace")
@pytest.mark.parametrize(
    "call", ["mkdir,mkdirat", "rename,renameat,renameat2", "link,linkat", "symlink,symlinkat", "fsync"]
)
def test_killed_while_it_makes_one(call: str, hostfork: Run, user: Person) -> None:
    """Then `recover` leaves nothing of it, or it is there whole."""
    project = rigs.make_project(user, user.home, FILES)
    inject = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}"]
    for when in (1, 2, 3, 4, 6, 8):
        command = [*inject, "-e", f"inject={call}:signal=SIGKILL:when={when}", PROGRAM, "baseline", "create", "x"]
        user.run([*command, "--from", project])
        hostfork(user, "recover", check=0)
        names = [one["name"] for one in json.loads(hostfork(user, "baseline", "list", "--json").stdout)["baselines"]]
        assert lines_of(user) == [f"{name}.0" for name in names]
        if names:
            done = hostfork(user, "run", "--base", "x", "--", "cat", f"{project}/src/c", check=0)
            assert done.stdout == "c\n"
            hostfork(user, "baseline", "remove", "x", check=0)
        hostfork(user, "baseline", "create", "x", "--from", project, check=0)
        hostfork(user, "baseline", "remove", "x", check=0)


def test_interrupted_while_it_makes_one(hostfork: Run, user: Person) -> None:
    project = rigs.make_project(user, user.home, FILES)
    user.call(many, project, 15_000)
    process = user.popen([PROGRAM, "baseline", "create", "x", "--from", project], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not os.path.isdir(f"{user.state}/pool/baseline/x.0/t1/tree") and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert lines_of(user) in ([], ["rm-x.0"]) or lines_of(user)[0].startswith("rm-")
    hostfork(user, "recover", check=0)
    assert lines_of(user) == []


def test_another_pool(hostfork: Run, person: Person, project: str, xfs_disk: Disk) -> None:
    """A baseline lies where it was told to; its forks must too."""
    pool = f"{xfs_disk.folder(person)}/pool"
    hostfork(person, "baseline", "create", "mono", "--from", project, "--pool", pool, check=0)
    own = f"{person.state}/pool"
    done = hostfork(person, "run", "--base", "mono", "--pool", own, "--", "true", check=125)
    assert f"--pool {pool}" in done.stderr
    done = hostfork(person, "run", "--base", "mono", "--", "cat", f"{project}/b", check=0)
    assert done.stdout == "b\n"
    hostfork(person, "recover", check=0)
    assert os.listdir(f"{pool}/baseline") == ["mono.0"]
    hostfork(person, "baseline", "remove", "mono", check=0)


def test_a_base_that_was_not_on_disk_is_never_patched_against(hostfork: Run, person: Person, project: str) -> None:
    """After a crash of the machine: what the fork changed comes out, and what it held at first does not."""
    hostfork(
        person, "run", "--name", "one", "--private", f"{project}:overlay", "--", "sh", "-c", f"echo x >>{project}/a"
    )
    (line,) = lines_of(person)
    folder = Path(f"{person.state}/pool/baseline/{line}")
    rigs.wait_until(lambda: list(folder.glob("g*/durable")))
    assert "+x" in hostfork(person, "diff", "one", "--patch", check=0).stdout
    for generation in folder.glob("g[0-9]*"):
        os.unlink(generation / "durable")
        facts = json.loads((generation / "facts").read_text())
        (generation / "facts").write_text(json.dumps(facts | {"boot": "another"}))
    for arguments in (("diff", "one", "--patch"), ("export", "one", f"{person.home}/out")):
        done = hostfork(person, *arguments, check=125)
        assert "code fork.lost" in done.stderr
    hostfork(person, "export", "one", f"{person.home}/out", "--changes-only", check=0)
    assert Path(f"{person.home}/out/a").read_text() == FILES["a"] + "x\n"
    hostfork(person, "run", "--rm", "--private", f"{project}:overlay", "--", "true", check=0)  # taken anew
    hostfork(person, "discard", "one", "--yes", check=0)


@pytest.mark.parametrize("unfit", [False, True])
def test_a_refresh_that_cannot_be_done_leaves_what_is_there(
    unfit: bool, hostfork: Run, person: Person, project: str
) -> None:
    """Also where all would have to be taken anew."""
    hostfork(person, "baseline", "create", "mono", "--from", project, check=0)
    if unfit:
        person.call(os.mknod, f"{project}/src/hole", 0o020000, 0)
    else:
        person.call(os.rename, project, f"{project}-away")
        person.call(write_as_file, project)
    (manifest,) = Path(f"{person.state}/pool/baseline/mono.0").glob("g[0-9]*/manifest")
    manifest.unlink()
    hostfork(person, "baseline", "refresh", "mono", check=125)
    place = f"{person.home}/at"
    person.call(os.mkdir, place)
    done = hostfork(person, "run", "--base", "mono", "--at", place, "--", "cat", f"{place}/src/c", check=0)
    assert done.stdout == "c\n"
    hostfork(person, "recover", check=0)
    assert lines_of(person) == ["mono.0"]


def write_as_file(path: str) -> None:
    Path(path).write_text("no folder any more")


def test_a_baseline_that_cannot_be_made_names_what_needs_none(hostfork: Run, person: Person, project: str) -> None:
    """Something lies where baselines do: one error, with a command that works."""
    pool = f"{person.state}/pool"
    person.call(os.makedirs, pool, 0o700)
    person.call(Path(f"{pool}/baseline").touch)
    refused = hostfork(person, "run", "--private", f"{project}:overlay", "--", "true", check=125)
    assert f"--private {project}:copy" in refused.stderr
    hostfork(person, "run", "--rm", "--private", f"{project}:copy", "--", "true", check=0)
