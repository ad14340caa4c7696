"""The main job: `hostfork run`, as root and as an ordinary user, on real disks, through the command line."""

import json
import os
import re
import signal
import socket
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
MODES = ("", ":live")


@pytest.fixture
def project(person: Person, ext4_disk: Disk) -> str:
    """A small project of the person's."""
    folder = os.path.join(ext4_disk.folder(person), "proj")
    person.call(make_project, folder)
    return folder


def make_project(folder: str) -> None:
    """Files, a folder, a link, a nested folder."""
    os.makedirs(f"{folder}/src/deep")
    os.makedirs(f"{folder}/cache")
    for name in ("a", "b", "src/c", "src/deep/d", "cache/e"):
        Path(f"{folder}/{name}").write_text(f"{name}\n" * 3)
    os.symlink("src/c", f"{folder}/link")


def picture(folder: str) -> dict[str, str]:
    """Everything of a tree that a change could show in, times included."""
    found = {}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(here, name)
            stat = os.lstat(path)
            content = os.readlink(path) if os.path.islink(path) else ""
            if os.path.isfile(path) and not os.path.islink(path):
                content = Path(path).read_text(errors="surrogateescape")
            found[os.path.relpath(path, folder)] = f"{stat.st_mode:o} {stat.st_uid} {stat.st_mtime_ns} {content}"
    return found


def names(hostfork: Run, person: Person) -> list[str]:
    """The forks that exist."""
    return [fork["name"] for fork in json.loads(hostfork(person, "list", "--json", check=0).stdout)["forks"]]


def changed(hostfork: Run, person: Person, name: str, folder: str) -> dict[str, str]:
    """The changes of a fork: relative path to kind of change."""
    document = json.loads(hostfork(person, "diff", name, "--json", check=0).stdout)
    return {os.path.relpath(entry["path"], folder): entry["change"] for entry in document["entries"]}


@pytest.mark.parametrize("mode", MODES)
def test_the_main_job(hostfork: Run, person: Person, project: str, mode: str) -> None:
    """The command sees and changes its own tree; the host's is as it was; the changes are kept, shown, thrown away."""
    before = picture(project)
    script = "cat a; echo new >n; echo more >>a; rm b; mkdir f; mv src/c f/c; chmod 600 cache/e; pwd"
    done = hostfork(person, "run", "--name", "one", "--private", project + mode, "--", "sh", "-c", script, cwd=project)
    assert (done.returncode, done.stdout) == (0, "a\na\na\n" + project + "\n")
    assert picture(project) == before
    assert "kept as one" in done.stderr
    assert "diff one" in done.stderr
    assert "hostfork apply one" in done.stderr
    assert changed(hostfork, person, "one", project) == {
        "n": "created", "a": "modified", "b": "deleted", "f": "created", "f/c": "created", "src/c": "deleted",
        "cache/e": "metadata",
    }  # fmt: skip
    assert names(hostfork, person) == ["one"]
    hostfork(person, "discard", "one", "--yes", check=0)
    assert names(hostfork, person) == []
    assert leftovers(person) == []


def leftovers(person: Person) -> list[str]:
    """What is left in the state folder."""
    return rigs.left_in_state(person.state)


@pytest.mark.parametrize("mode", MODES)
def test_no_change_says_nothing_and_leaves_nothing(hostfork: Run, person: Person, project: str, mode: str) -> None:
    """Reading, touching and rewriting with equal content are no changes."""
    script = "cat a >/dev/null; touch b; cp a x; cat x >a; rm x"
    done = hostfork(person, "run", "--private", project + mode, "--", "sh", "-c", script, cwd=project)
    assert (done.returncode, done.stdout, promises(done.stderr)) == (0, "", "")
    assert names(hostfork, person) == []
    assert leftovers(person) == []


def promises(stderr: str) -> str:
    """What was said beyond what is weaker on this host."""
    return "\n".join(line for line in stderr.splitlines() if "no cgroup owns" not in line)


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_the_status_is_the_commands(hostfork: Run, person: Person, project: str, script: str, status: int) -> None:
    """Its own, or 128+N when signal N ended it."""
    hostfork(person, "run", "--private", project + ":live", "--", "sh", "-c", script, check=status)


def test_hostforks_own_failures(hostfork: Run, person: Person, project: str, ext4_disk: Disk) -> None:
    """127, 126, 125 with a code, what and where, and a hint; and nothing is left."""
    plain = f"{project}/a"
    for arguments, status, code in (
        (("--private", project, "--", "no-such-program"), 127, "command.not-found"),
        (("--private", project, "--", plain), 126, "command.not-executable"),
        (("--private", project, "--", project), 126, "command.not-executable"),
        (("--private", project + "/none", "--", "true"), 125, "policy.bad-path"),
        (("--private", "/", "--", "true"), 125, "policy.bad-path"),
        (("--", "true"), 125, "policy.nothing-private"),
        (("--private", project, "--hidden", project, "--", "true"), 125, "policy.conflict"),
        (("--private", project + ":btrfs", "--", "true"), 125, "storage.unsupported"),
        (("--private", project, "--require", "native-watchers", "--private", project + "/src:live", "--", "true"),
         125, "policy.require"),
        (("--private", project, "--name", "../x", "--", "true"), 125, "fork.bad-name"),
        (("--private", project, "--name", "new-x", "--", "true"), 125, "fork.bad-name"),
        (("--private", project, "--fd", "77", "--", "true"), 125, "command.context"),
        (("--private", project, "--cwd", project + "/none", "--", "true"), 125, "command.context"),
    ):  # fmt: skip
        result = f"{ext4_disk.folder(person)}/result"
        done = hostfork(person, "run", "--result", result, *arguments, check=status)
        assert done.stderr.startswith("hostfork: "), done.stderr
        assert f"code {code}" in done.stderr
        assert f"status {status}" in done.stderr
        assert "Traceback" not in done.stderr
        document = json.loads(Path(result).read_text())
        assert document["status"]["error"]["code"] == code
        assert leftovers(person) == []
    assert names(hostfork, person) == []


def test_a_name_is_taken_once(hostfork: Run, person: Person, project: str) -> None:
    """And the first fork is untouched by the refusal."""
    hostfork(person, "run", "--keep", "--name", "n", "--private", project, "--", "true", check=0)
    done = hostfork(person, "run", "--name", "n", "--private", project, "--", "true", check=125)
    assert "code fork.name-taken" in done.stderr
    assert names(hostfork, person) == ["n"]
    hostfork(person, "discard", "n", "--yes", check=0)


def test_rm_keep_and_export(hostfork: Run, person: Person, project: str, ext4_disk: Disk) -> None:
    """`--rm` throws away, `--keep` keeps without a change, `--export` collects the final content."""
    edit = ("--", "sh", "-c", "echo new >n; rm b")
    hostfork(person, "run", "--rm", "--private", project, *edit, cwd=project, check=0)
    assert (names(hostfork, person), leftovers(person)) == ([], [])
    hostfork(person, "run", "--keep", "--name", "k", "--private", project, "--", "true", check=0)
    assert names(hostfork, person) == ["k"]
    hostfork(person, "discard", "k", "--yes", check=0)
    for mode in MODES:
        target = f"{ext4_disk.folder(person)}/out"
        hostfork(person, "run", "--export", target, "--private", project + mode, *edit, cwd=project, check=0)
        assert sorted(os.listdir(target)) == ["a", "cache", "link", "n", "src"]
        assert Path(f"{target}/src/deep/d").read_text() == Path(f"{project}/src/deep/d").read_text()
        assert (names(hostfork, person), leftovers(person)) == ([], [])


def test_arguments_and_environment_arrive_byte_for_byte(hostfork: Run, person: Person, project: str) -> None:
    """CASES 19."""
    odd = ["a b", "*", "new\nline", "", "\udcff\udc80", "--private", "-x", "'\""]
    show = "import os,sys; print(ascii(sys.argv[1:])); print(ascii(os.environ['ODD']), os.environ.get('HOME', 'none'))"
    done = hostfork(
        person, "run", "--private", project, "--clear-env", "--env", "ODD=x\udcfe\ny", "--env", "PATH=/usr/bin:/bin",
        "--", sys.executable, "-c", show, *odd, check=0,
    )  # fmt: skip
    assert done.stdout.splitlines() == [ascii(odd), ascii("x\udcfe\ny") + " none"]
    first = hostfork(person, "run", "--private", project, "bash", "-c", "echo a; echo $HOSTFORK", check=0)
    assert first.stdout == "a\n1\n"


def test_nested_rules(hostfork: Run, person: Person, project: str) -> None:
    """A shared cache inside a private tree, a private tree inside a read-only one, hidden and scratch beside."""
    script = (
        "echo x >cache/shared; echo x >mine; ls -A src/deep | wc -l; cat src/c 2>/dev/null || echo no-c;"
        "ls -A scratch; echo s >scratch/s"
    )
    os.makedirs(f"{project}/scratch", exist_ok=True)
    os.chown(f"{project}/scratch", person.uid, person.gid)
    done = hostfork(
        person, "run", "--name", "n", "--private", project, "--shared", f"{project}/cache",
        "--hidden", f"{project}/src/deep", "--hidden", f"{project}/src/c", "--scratch", f"{project}/scratch",
        "--", "sh", "-c", script, cwd=project, check=0,
    )  # fmt: skip
    assert done.stdout.split() in (["0", "no-c"], ["0"])
    assert Path(f"{project}/cache/shared").read_text() == "x\n"
    assert changed(hostfork, person, "n", project) == {"mine": "created"}
    hostfork(person, "discard", "n", "--yes", check=0)
    done = hostfork(
        person, "run", "--rm", "--read-only", project, "--private", f"{project}/src",
        "--", "sh", "-c", "echo y >src/y; echo z >z", cwd=project, check=2,
    )  # fmt: skip
    assert "Read-only" in done.stderr
    assert not os.path.exists(f"{project}/src/y")


def test_a_read_only_root(hostfork: Run, person: Person, project: str) -> None:
    """Everything read-only but the private tree and what the kernel's own views need."""
    script = (
        f"echo x >{project}/x && echo private; touch {person.home}/no 2>/dev/null || echo fixed;"
        "echo >/dev/null && echo dev"
    )
    done = hostfork(person, "run", "--rm", "--read-only", "/", "--private", project, "--", "sh", "-c", script, check=0)
    assert done.stdout.split() == ["private", "fixed", "dev"]


def test_a_private_home(hostfork: Run, person: Person) -> None:
    """The pool lies below it, on one filesystem: left out of the copy, covered in the view, absent in the changeset."""
    for mode in MODES:
        done = hostfork(
            person, "run", "--name", "h", "--private", person.home + mode,
            "--", "sh", "-c", "echo x >~/x; ls -A ~/.local/state/hostfork; echo y >~/.local/state/hostfork/y",
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert changed(hostfork, person, "h", person.home) == {"x": "created"}
        hostfork(person, "discard", "h", "--yes", check=0)
        assert leftovers(person) == []


def test_a_private_file(hostfork: Run, person: Person, project: str) -> None:
    """A single file can be private; that it cannot be replaced by rename is said."""
    plan = hostfork(person, "plan", "--private", f"{project}/a", check=0)
    assert "rename" in plan.stdout
    script = "echo in >a; cat a; mv b a 2>/dev/null || echo busy"
    done = hostfork(person, "run", "--name", "f", "--private", f"{project}/a", "--", "sh", "-c", script, cwd=project)
    assert done.stdout.split() == ["in", "busy"]
    assert Path(f"{project}/a").read_text() == "a\n" * 3
    assert changed(hostfork, person, "f", project) == {"a": "modified"}
    hostfork(person, "discard", "f", "--yes", check=0)


def test_live_endpoints_stay_connected(hostfork: Run, person: Person, project: str) -> None:
    """A listener and an open FIFO under a private path reach their host peers, and are listed."""
    server = person.popen(
        [sys.executable, "-c",
         "import os,socket; s=socket.socket(socket.AF_UNIX); s.bind('sock'); s.listen(); os.mkfifo('fifo');"
         "f=os.open('fifo', os.O_RDWR); print('up', flush=True);"
         "c,_=s.accept(); c.sendall(b'hello'); print(os.read(f, 10).decode(), flush=True)"],
        cwd=project, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    plan = hostfork(person, "plan", "--private", project, check=0).stdout
    assert "sock" in plan
    assert "fifo" in plan
    talk = (
        "import socket; s=socket.socket(socket.AF_UNIX); s.connect('sock'); print(s.recv(10));"
        "open('fifo','w').write('there')"
    )
    done = hostfork(person, "run", "--private", project, "--", sys.executable, "-c", talk, cwd=project)
    assert (done.stdout, done.returncode) == ("b'hello'\n", 0), done.stderr
    assert server.stdout.readline() == "there\n"
    server.stdout.close()
    server.wait()
    assert names(hostfork, person) == []


def test_host_mounts_beneath_are_put_back(hostfork: Run, person: Person, project: str, root: Person) -> None:
    """A tmpfs, a bind and a bound file below a private path stay the host's, and are listed (CASES 5)."""
    mounts = [("tmpfs", "tmpfs", f"{project}/cache"), ("--bind", f"{project}/src", f"{project}/src/deep"),
              ("--bind", f"{project}/a", f"{project}/b")]  # fmt: skip
    for first, source, target in mounts:
        kind = ["-t", first] if first == "tmpfs" else [first]
        subprocess.run(["mount", *kind, source, target], check=True)
    try:
        os.chmod(f"{project}/cache", 0o777)
        plan = json.loads(hostfork(person, "plan", "--json", "--private", project, check=0).stdout)
        assert {mount["path"] for mount in plan["nested_mounts"]} == {target for _, _, target in mounts}
        script = "echo x >cache/x; echo y >src/y; cat b | head -1; ls src/deep"
        done = hostfork(person, "run", "--name", "m", "--private", project, "--", "sh", "-c", script, cwd=project)
        assert done.stdout.split() == ["a", "c", "deep"], done.stderr
        assert os.path.exists(f"{project}/cache/x")
        assert changed(hostfork, person, "m", project) == {"src/y": "created"}
        hostfork(person, "discard", "m", "--yes", check=0)
        if person.uid != 0:
            done = hostfork(person, "run", "--private", project + ":live", "--", "true", check=125)
            assert "storage.unsupported" in done.stderr
            assert any(target in done.stderr for _, _, target in mounts)
    finally:
        for _, _, target in reversed(mounts):
            subprocess.run(["umount", target], check=True)


def test_no_survivors(hostfork: Run, person: Person, project: str) -> None:
    """Daemons in sessions of their own, a double-fork storm: the status is the command's, the tree ends (CASES 8)."""
    script = (
        "setsid sh -c 'while :; do date >>f; done' &"
        "for i in 1 2 3 4 5 6 7 8; do (setsid sleep 1000 & setsid sleep 1000 &) ; done;"
        "while [ ! -s f ]; do sleep 0.01; done; exit 0"
    )
    done = hostfork(
        person, "run", "--name", "s", "--private", project, "--", "sh", "-c", script, cwd=project, timeout=60
    )
    assert done.returncode == 0
    assert changed(hostfork, person, "s", project) == {"f": "created"}
    export = f"{project}.out"
    hostfork(person, "export", "s", export, check=0)
    size = os.path.getsize(f"{export}/f")
    time.sleep(0.1)
    assert os.path.getsize(f"{export}/f") == size > 0
    hostfork(person, "discard", "s", "--yes", check=0)


def test_a_command_that_freezes_itself_ends(hostfork: Run, root: Person, ext4_disk: Disk) -> None:
    """A child that freezes its own cgroup: cgroup.kill reaches frozen processes."""
    project = f"{ext4_disk.folder(root)}/p"
    make_project(project)
    script = (
        "g=$(sed -n 's/^0:://p' /proc/self/cgroup); m=$(awk '/ - cgroup2 /{print $5}' /proc/self/mountinfo);"
        "mkdir $m$g/inner; (echo 0 >$m$g/inner/cgroup.procs; exec sleep 1000) & sleep 0.2;"
        "echo 1 >$m$g/inner/cgroup.freeze; exit 3"
    )
    hostfork(root, "run", "--private", project, "--", "sh", "-c", script, check=3, timeout=60)


def test_descriptors_and_working_folder(hostfork: Run, person: Person, project: str) -> None:
    """Only 0, 1, 2 and the named ones; the working folder is the view's; a deleted one is refused (CASES 18)."""
    lines = f"cd {project}; exec 9<{project} 8<a; "
    program = os.path.join(sys.prefix, "bin", "hostfork")
    script = 'ls /proc/self/fd | tr "\\n" " "; head -1 <&8; echo in >w'
    run = f"{program} run --fd 8 --private {project} -- sh -c '{script}'"
    done = person.run(["sh", "-c", lines + run])
    assert done.stdout.startswith("0 1 2 3 8"), done.stdout + done.stderr
    assert not os.path.exists(f"{project}/w")
    gone = f"mkdir {project}/gone; cd {project}/gone; rmdir {project}/gone; {program} run --private {project} -- true"
    done = person.run(["sh", "-c", gone])
    assert done.returncode == 125
    assert "working directory was deleted" in done.stderr
    for fork in names(hostfork, person):
        hostfork(person, "discard", fork, "--yes", check=0)


def test_the_time_limit(hostfork: Run, person: Person, project: str) -> None:
    """124; a command that ignores SIGTERM is ended all the same."""
    done = hostfork(
        person, "run", "--timeout", "300ms", "--private", project,
        "--", "sh", "-c", "trap '' TERM; echo x >x; sleep 100; sleep 100",
        cwd=project, check=124, timeout=60,
    )  # fmt: skip
    assert "time limit" in done.stderr
    (name,) = names(hostfork, person)
    assert changed(hostfork, person, name, project) == {"x": "created"}
    hostfork(person, "discard", name, "--yes", check=0)


def test_relocated(hostfork: Run, person: Person, project: str) -> None:
    """No namespaces: the copy lies elsewhere, the working folder moves there, the rest is the same."""
    before = picture(project)
    script = 'echo x >x; pwd; echo "$HOSTFORK_ROOT"'
    done = hostfork(
        person, "run", "--relocated", "--name", "r", "--private", project, "--", "sh", "-c", script,
        cwd=f"{project}/src", namespaces=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    where, root = done.stdout.split()
    assert where == f"{root}/src" != f"{project}/src"
    assert picture(project) == before
    assert changed(hostfork, person, "r", project) == {"src/x": "created"}
    assert json.loads(hostfork(person, "show", "r", "--json", check=0).stdout)["same_paths"] is False
    hostfork(person, "discard", "r", "--yes", check=0)
    refused = ("run", "--relocated", "--require", "same-paths", "--private", project, "--", "true")
    assert "policy.require" in hostfork(person, *refused, check=125).stderr


def test_denied_namespaces_are_one_message(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    """The command never starts; the setting, what still works and `hostfork setup` are named (CASES 9)."""
    project = f"{ext4_disk.folder(user)}/p"
    user.call(make_project, project)
    done = hostfork(user, "run", "--private", project, "--", "touch", f"{project}/no", check=125, namespaces=False)
    assert "code host.namespaces" in done.stderr
    assert "user.max_user_namespaces=0" in done.stderr
    assert "--relocated" in done.stderr
    assert "hostfork setup" in done.stderr
    assert not os.path.exists(f"{project}/no")


@pytest.mark.rig("cgroup")
def test_without_a_cgroup_it_is_said(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    """`ownership: subreaper`, one line in every run, and `--require cgroup` refuses."""
    project = f"{ext4_disk.folder(user)}/p"
    user.call(make_project, project)
    done = hostfork(
        user, "run", "--private", project, "--", "sh", "-c", "setsid sleep 1000 &", delegated=False, check=0
    )
    assert "no cgroup owns" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    refused = ("run", "--require", "cgroup", "--private", project, "--", "true")
    assert "policy.require" in hostfork(user, *refused, delegated=False, check=125).stderr
    done = hostfork(user, *refused, check=0)
    assert done.stderr == ""


def test_later_host_mounts_appear_and_ours_never_leave(
    hostfork: Run, person: Person, project: str, root: Person, ext4_disk: Disk
) -> None:
    """Slave propagation in the workspace policy."""
    place = ext4_disk.folder(root)
    before = Path("/proc/self/mountinfo").read_text()
    script = f"echo ready; read line; grep -c ' {place} ' /proc/self/mountinfo"
    program = os.path.join(sys.prefix, "bin", "hostfork")
    process = person.popen(
        [program, "run", "--private", project, "--", "sh", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    assert Path("/proc/self/mountinfo").read_text() == before
    subprocess.run(["mount", "-t", "tmpfs", "later", place], check=True)
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "1\n"
    finally:
        process.communicate()
        subprocess.run(["umount", place], check=True)


def test_callers_with_odd_signals_and_descriptors(hostfork: Run, person: Person, project: str) -> None:
    """SIGCHLD ignored, signals blocked, stdin closed: the right status all the same (CASES 35)."""
    program = os.path.join(sys.prefix, "bin", "hostfork")
    caller = (
        "import os,signal,subprocess,sys\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])\n"
        "os.close(0)\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    show = "ls /proc/self/fd/0 2>/dev/null || echo closed; grep -E 'SigBlk|SigIgn' /proc/self/status; exit 9"
    done = person.run([sys.executable, "-c", caller, program, "run", "--private", project, "--", "bash", "-c", show])
    assert done.returncode == 9, done.stderr
    blocked = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGUSR1 - 1)
    assert "closed" in done.stdout
    assert int(re.search(r"SigBlk:\s*(\w+)", done.stdout)[1], 16) == blocked  # type: ignore[index]
    assert int(re.search(r"SigIgn:\s*(\w+)", done.stdout)[1], 16) & ~(3 << 31) == 1 << (signal.SIGCHLD - 1)  # type: ignore[index]


@pytest.mark.rig("root")
def test_what_a_user_cannot_write_stays_so(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    """A user's copy of root's file is not writable in the fork either (CASES 13)."""
    folder = f"{ext4_disk.folder(user)}/p"
    user.call(make_project, folder)
    os.chown(f"{folder}/a", 0, 0)
    os.chmod(f"{folder}/a", 0o644)
    options = ("-v", "--keep", "--name", "u", "--private", folder)
    done = hostfork(user, "run", *options, "--", "sh", "-c", "echo x >>a", cwd=folder)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
    assert "not yours to write on the host, nor inside: a\n" in done.stderr
    (private, *_) = json.loads(hostfork(user, "show", "u", "--json", check=0).stdout)["paths"]
    assert private["unwritable"] == ["a"]
    assert "read-only as on the host: a" in hostfork(user, "show", "u", check=0).stdout
    hostfork(user, "discard", "u", "--yes", check=0)


def test_sockets_of_the_network_are_shared(hostfork: Run, person: Person, project: str) -> None:
    """Same network: a server of the host's answers inside."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = hostfork(
            person, "run", "--private", project,
            "--", "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected",
        )  # fmt: skip
    assert done.stdout == "connected\n"


def test_show_names_what_runs_in_a_fork(hostfork: Run, person: Person, project: str) -> None:
    """While it runs: every process, not the keeper; afterwards none."""
    program = os.path.join(sys.prefix, "bin", "hostfork")
    script = "sleep 1000 & echo up; wait"
    for delegated in (True, False) if person.uid else (True,):
        process = person.popen(
            [program, "run", "--keep", "--name", "p", "--private", project, "--", "sh", "-c", script],
            stdout=subprocess.PIPE, text=True, delegated=delegated, cwd=project,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        shown = json.loads(hostfork(person, "show", "p", "--json", check=0, delegated=delegated).stdout)
        found = {one["name"]: one["pid"] for one in shown["processes"]}
        assert set(found) == {"sh", "sleep"}
        assert "sleep" in hostfork(person, "show", "p", check=0, delegated=delegated).stdout
        os.kill(found["sh"], signal.SIGTERM)
        process.communicate()
        shown = json.loads(hostfork(person, "show", "p", "--json", check=0, delegated=delegated).stdout)
        assert (shown["processes"], shown["status"]["signal"]) == ([], signal.SIGTERM)
        hostfork(person, "discard", "p", "--yes", check=0)
