"""Cases from the field that belong to the main job: odd names, foreign owners, ssh, symlinked rules, nesting."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rigs import Disk, Person
from test_run import changed, leftovers, make_project, names, picture

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
ODD = ["a:b", "a,b", "a\\b", "new\nline", "sp ace", "\udcff\udcfe", "upperdir=x", "tail:live", "*?[x]", "ü", "x:"]


@pytest.mark.parametrize("mode", [":copy", ":live"])
def test_odd_names_work_everywhere(hostfork: Run, person: Person, disk: Disk, mode: str) -> None:
    """Private paths, a pool with a long path, and names of any bytes, on every disk and mechanism (CASES 6)."""
    pool_disk = person.home if disk.kind == "tmpfs" and mode == ":live" else disk.folder(person)
    pool = os.path.join(pool_disk, "p" * 200, "q:,\\ ")
    person.call(os.makedirs, pool, 0o700)
    folder = disk.folder(person)
    for odd in ODD:
        project = f"{folder}/{odd}"
        person.call(make_project, project)
        script = 'echo x >"$1"; mkdir "d$1"; echo y >"d$1/$1"; rm a'
        done = hostfork(
            person, "run", "--name", "odd", "--pool", pool, "--private", project + mode,
            "--", "sh", "-c", script, "sh", odd, cwd=project,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(hostfork(person, "diff", "odd", "--json", check=0).stdout)["entries"]
        shown = {entry["change"] for entry in found}
        assert (len(found), shown) == (4, {"created", "deleted"})
        assert sorted(os.listdir(project)) == ["a", "b", "cache", "link", "src"]
        hostfork(person, "discard", "odd", "--yes", check=0)
    assert [kind.name for kind in os.scandir(pool) if not kind.is_symlink() and os.listdir(kind)] == []


@pytest.mark.rig("root")
def test_files_of_other_owners(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    """Owner and mode are said in the plan; rewriting beside works; never a bare EOVERFLOW (CASES 13)."""
    project = f"{ext4_disk.folder(user)}/p"
    user.call(make_project, project)
    os.chown(f"{project}/a", 0, 0)
    os.chown(f"{project}/src/c", 0, user.gid)
    os.chmod(f"{project}/src/c", 0o664)
    plan = hostfork(user, "plan", "--private", project, check=0).stdout
    assert "show as nobody" in plan, plan
    script = "echo x >beside; cp a b; mv a a2 && cat a2 >a; echo y >>src/c; tar -cf /dev/null ."
    for mode in ("", ":live"):
        done = hostfork(user, "run", "--name", "o", "--private", project + mode, "--", "sh", "-c", script, cwd=project)
        said = "Value too large for defined data type" in hostfork(user, "plan", "--private", project + mode).stdout
        assert ("too large for defined data type" in done.stderr) == said == (mode == ":live")
        found = changed(hostfork, user, "o", project)
        assert found["beside"] == "created"
        hostfork(user, "discard", "o", "--yes", check=0)


@pytest.fixture
def ssh_config(root: Person, ext4_disk: Disk) -> Iterator[str]:
    """An /etc/ssh of root's with a file in ssh_config.d, in this test process's mount namespace alone."""
    folder = ext4_disk.folder(root)
    os.chmod(folder, 0o755)
    os.mkdir(f"{folder}/ssh_config.d", 0o755)
    Path(f"{folder}/ssh_config").write_text("Include /etc/ssh/ssh_config.d/*.conf\n")
    Path(f"{folder}/ssh_config.d/x.conf").write_text("Host *\n    User somebody\n")
    subprocess.run(["mount", "--bind", folder, "/etc/ssh"], check=True)
    yield folder
    subprocess.run(["umount", "/etc/ssh"], check=True)


@pytest.mark.rig("ssh")
def test_ssh_reads_roots_configuration(ssh_config: str, hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    """In a user namespace ssh takes root's files for badly owned: private copies stand there (CASES 23)."""
    project = f"{ext4_disk.folder(person)}/p"
    person.call(make_project, project)
    done = hostfork(person, "run", "--private", project, "--", "ssh", "-G", "host")
    assert (done.returncode, "user somebody" in done.stdout) == (0, True), done.stderr
    if person.uid != 0:
        assert "ssh" in hostfork(person, "plan", "--private", project, check=0).stdout
        policy = f"{person.home}/off.toml"
        person.call(Path(policy).write_text, "schema = 1\n[ssh]\nconfig-copies = false\n")
        done = hostfork(person, "run", "--policy", policy, "--private", project, "--", "ssh", "-G", "host")
        assert "Bad owner" in done.stderr


def _paths(folder: str) -> None:
    make_project(f"{folder}/real")
    os.symlink("real", f"{folder}/link")
    os.symlink("none", f"{folder}/dangling")
    os.symlink(f"{folder}", f"{folder}/real/up")


def test_rules_through_symlinks_are_resolved_once(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    """A rule's path is a symlink, dangling, or below a symlinked folder (CASES 25)."""
    folder = ext4_disk.folder(person)
    person.call(_paths, folder)
    assert f"{folder}/real" in hostfork(person, "plan", "--private", f"{folder}/link", check=0).stdout
    for path in (f"{folder}/link", f"{folder}/link/src", f"{folder}/real/up/real"):
        before = picture(f"{folder}/real")
        done = hostfork(person, "run", "--rm", "--private", path, "--", "sh", "-c", "echo x >x; ls", cwd=path, check=0)
        assert "x" in done.stdout.split()
        assert picture(f"{folder}/real") == before
    refused = hostfork(person, "run", "--private", f"{folder}/dangling", "--", "true", check=125)
    assert "policy.bad-path" in refused.stderr
    assert "dangling" in refused.stderr


@pytest.mark.rig("git")
def test_a_repository_stays_clean(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    """`git status` is clean during and after a run, a killed one too; no new file in the home folder (CASES 25)."""
    project = f"{ext4_disk.folder(person)}/p"
    person.call(os.mkdir, project)
    person.run(["git", "init", "-q"], cwd=project, check=True)
    home = set(os.listdir(person.home))
    process = person.popen(
        [PROGRAM, "run", "--private", project, "--", "sh", "-c", "echo up; sleep 1000"],
        cwd=project, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert person.run(["git", "status", "--porcelain"], cwd=project, check=True).stdout == ""
    process.kill()
    process.wait()
    process.stdout.close()
    hostfork(person, "recover", check=0)
    assert person.run(["git", "status", "--porcelain"], cwd=project, check=True).stdout == ""
    assert os.listdir(project) == [".git"]
    assert set(os.listdir(person.home)) == home
    assert (names(hostfork, person), leftovers(person)) == ([], [])


@pytest.mark.rig("bubblewrap")
@pytest.mark.parametrize("mode", ["", ":live"])
def test_sandboxes_nest(hostfork: Run, user: Person, ext4_disk: Disk, mode: str) -> None:
    """Agents' own sandboxes run inside the workspace profile (CASES 34). Only as a user, over a folder."""
    project = f"{ext4_disk.folder(user)}/p"
    user.call(make_project, project)
    script = (
        "unshare -Urm sh -c 'mount -t tmpfs x cache && touch cache/y' && ls cache &&"
        "bwrap --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64"
        " --proc /proc --dev /dev --bind . /w --chdir /w --unshare-all sh -c 'echo in >inner; cat a | head -1'"
    )
    done = hostfork(user, "run", "--name", "b", "--private", project + mode, "--", "sh", "-c", script, cwd=project)
    assert done.stdout.split() == ["e", "a"], done.stderr
    assert changed(hostfork, user, "b", project) == {"inner": "created"}
    hostfork(user, "discard", "b", "--yes", check=0)


def test_hostfork_nests(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    """A fork inside a fork: the inner one has a state folder of its own and changes the outer one's tree only."""
    project = f"{ext4_disk.folder(person)}/p"
    person.call(make_project, project)
    inner = (
        f"{PROGRAM} run -q --rm --private {project} -- sh -c 'echo inner >n; cat n' && ls n 2>/dev/null; echo outer >o"
    )
    done = hostfork(
        person, "run", "--name", "outer", "--private", project, "--", "sh", "-c", inner, cwd=project, check=0
    )
    assert done.stdout == "inner\n", done.stderr
    assert changed(hostfork, person, "outer", project) == {"o": "created"}
    hostfork(person, "discard", "outer", "--yes", check=0)


def test_the_build_policy(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    """Home read-only, known caches private, /tmp scratch."""
    project = f"{ext4_disk.folder(person)}/p"
    person.call(make_project, project)
    script = "touch ~/x 2>/dev/null || echo fixed; ls -A /tmp | wc -l; echo t >/tmp/t && echo p >p"
    done = hostfork(
        person, "run", "--rm", "--policy", "build", "--private", project, "--", "sh", "-c", script, cwd=project,
    )  # fmt: skip
    assert done.stdout.split()[:2] == ["fixed", "0"], done.stderr
    assert not os.path.exists(f"{person.home}/x")
    assert not os.path.exists("/tmp/t")


@pytest.mark.rig("root")
def test_a_folder_of_a_foreign_group_is_no_change(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    """What hostfork could not give its own folder is not the command's doing."""
    project = f"{ext4_disk.folder(user)}/p"
    user.call(make_project, project)
    os.chown(project, user.uid, 0)
    os.chown(f"{project}/src", 0, 0)
    for mode in ("", ":live"):
        for path in (project, f"{project}/src"):
            hostfork(user, "run", "--private", path + mode, "--", "ls", path, check=0)
            assert names(hostfork, user) == []


@pytest.mark.parametrize("mode", ["", ":live"])
def test_no_patch_is_made_against_a_later_host_file(hostfork: Run, person: Person, ext4_disk: Disk, mode: str) -> None:
    """The base's content is readable while the source is unchanged; afterwards that is said (DESIGN part 3)."""
    project = f"{ext4_disk.folder(person)}/p"
    person.call(make_project, project)
    script = 'echo in >>a; echo in >>b; echo host >>"$0"/../outside'
    hostfork(person, "run", "--name", "g", "--private", project + mode, "--", "sh", "-c", script, project, cwd=project)
    before = hostfork(person, "diff", "g", "--patch", check=0).stdout
    assert before.count("@@ -") == 2
    person.call(Path(f"{project}/a").write_text, "the host was here\n")
    after = hostfork(person, "diff", "g", "--patch", check=0).stdout
    assert after.count("@@ -") == 1
    assert "the host was here" not in after
    hostfork(person, "discard", "g", "--yes", check=0)


def test_what_the_host_wrote_during_a_live_run_is_no_base(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    """It is said at the end, and no patch is made of it."""
    project = f"{ext4_disk.folder(person)}/p"
    person.call(make_project, project)
    process = person.popen(
        [PROGRAM, "run", "--name", "w", "--private", project + ":live", "--",
         "sh", "-c", "echo up; read x; echo in >>b"],
        cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    person.call(Path(f"{project}/b").write_text, "the host was here\n")
    _, said = process.communicate("go\n")
    if "was not checked" not in said:  # the disk may have been too busy for a stamp at the start
        assert "the host changed" in said
        assert "the host was here" not in hostfork(person, "diff", "w", "--patch", check=0).stdout
    hostfork(person, "discard", "w", "--yes", check=0)


def test_host_writes_are_looked_for_where_something_is_kept(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    """A policy for a whole system has large folders in which the command changes nothing."""
    folder = ext4_disk.folder(person)
    for name in ("one", "two"):
        person.call(os.mkdir, f"{folder}/{name}")
    script = f"touch {folder}/two/of-the-fork; echo up; read x"
    process = person.popen(
        [PROGRAM, "run", "--name", "w", "--private", f"{folder}/one:live", "--private", f"{folder}/two:live", "--",
         "sh", "-c", script],
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    for name in ("one", "two"):
        person.call(Path(f"{folder}/{name}/of-the-host").write_text, "x\n")
    _, said = process.communicate("go\n")
    assert f"{folder}/two" in said
    assert f"{folder}/one" not in said
    paths = json.loads(hostfork(person, "show", "w", "--json", check=0).stdout)["paths"]
    states = {os.path.basename(path["path"]): path["source_changed"] for path in paths}
    assert states["one"] == "not-checked"
    assert states["two"] == ("not-checked" if "was not checked" in said else "changed")
    hostfork(person, "discard", "w", "--yes", check=0)


def test_a_folder_in_shared_memory_can_be_private(hostfork: Run, person: Person) -> None:
    """/dev shows devices, but what lies in /dev/shm are files."""
    folder = f"/dev/shm/hostfork-test-{os.getpid()}-{person.uid}"
    person.call(make_project, folder)
    try:
        hostfork(person, "run", "--rm", "--private", folder, "--", "sh", "-c", "echo x >x", cwd=folder, check=0)
        assert sorted(os.listdir(folder)) == ["a", "b", "cache", "link", "src"]
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
