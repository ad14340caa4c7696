"""`--quiesce`, `--unquiesce`, `--freeze-cgroup`: writers hold still while private paths are taken, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rigs import Person, is_alive

PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")


@pytest.fixture
def place(person: Person) -> str:
    """A folder of the person's with a project in it."""
    folder = os.path.join(person.home, "quiet")
    person.run(["sh", "-c", f"mkdir -p {folder}/proj; echo one > {folder}/proj/a"], check=True)
    return folder


@pytest.fixture
def writer_group(root: Person) -> Iterator[tuple[str, int]]:
    """A cgroup with one process that appends to a file without end, and that process."""
    from hostfork.workload.cgroup import find_place

    parent = find_place().parent
    if parent is None:
        pytest.skip("rig missing: cgroup")
    group = f"{parent}/hostfork-test-writers-{os.getpid()}"
    os.mkdir(group)
    file = os.path.join(root.home, "written")
    writer = subprocess.Popen(["sh", "-c", 'while :; do echo x; sleep 0.001; done >"$1"', "sh", file])
    with open(f"{group}/cgroup.procs", "w") as procs:
        procs.write(str(writer.pid))
    yield group, writer.pid
    with open(f"{group}/cgroup.freeze", "w") as frozen:
        frozen.write("0")
    writer.kill()
    writer.wait()
    deadline = time.monotonic() + 5
    while "populated 1" in text(f"{group}/cgroup.events") and time.monotonic() < deadline:
        time.sleep(0.01)
    os.rmdir(group)


def text(path: str) -> str:
    """What a file holds; nothing where it is not there."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def log(place: str) -> list[str]:
    return text(f"{place}/log").split()


def wait_for(true: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def quiescing(person: Person, place: str, *prefix: str) -> subprocess.Popen[Any]:
    """A run in the middle of a command that quiesces; the guard's pid is in the file `pid`."""
    argv = [
        *prefix, PROGRAM, "run", "--private", f"{place}/proj", "--quiesce", f"echo $PPID > {place}/pid; sleep 60",
        "--unquiesce", f"echo undone >> {place}/log", "--", "true",
    ]  # fmt: skip
    owner = person.popen(argv)
    wait_for(lambda: text(f"{place}/pid").strip())
    return owner


def test_the_commands_stand_around_the_taking(hostfork: Any, person: Person, place: str) -> None:
    """Quiesced before anything is copied, undone before the command starts; their output is not the command's."""
    done = hostfork(
        person, "run", "--private", f"{place}/proj", "--rm",
        "--quiesce", f"echo said; echo before >> {place}/log; echo two > {place}/proj/a",
        "--unquiesce", f"echo after >> {place}/log; echo three > {place}/proj/a",
        "--", "sh", "-c", f"echo command >> {place}/log; cat {place}/proj/a", check=0,
    )  # fmt: skip
    assert done.stdout == "two\n"
    assert "said" in done.stderr
    assert log(place) == ["before", "after", "command"]
    with open(f"{place}/proj/a") as file:
        assert file.read() == "three\n"


def test_where_quiescing_fails_nothing_is_made_and_it_is_undone(hostfork: Any, person: Person, place: str) -> None:
    done = hostfork(
        person, "run", "--private", f"{place}/proj", "--quiesce", "exit 7",
        "--unquiesce", f"echo undone >> {place}/log", "--", "touch", f"{place}/ran", check=125,
    )  # fmt: skip
    assert "`exit 7` did not quiesce the host" in done.stderr
    assert "status 7" in done.stderr
    assert "host.quiesce" in done.stderr
    assert log(place) == ["undone"]
    assert not os.path.exists(f"{place}/ran")
    assert hostfork(person, "list", check=0).stdout == ""


def test_where_undoing_fails_the_command_does_not_start(hostfork: Any, person: Person, place: str) -> None:
    """Somebody's service may stand still: that is no warning to overlook."""
    done = hostfork(
        person, "run", "--private", f"{place}/proj", "--quiesce", "true", "--unquiesce", "exit 3",
        "--", "touch", f"{place}/ran", check=125,
    )  # fmt: skip
    assert "`exit 3` failed: what was quiesced may still stand still" in done.stderr
    assert not os.path.exists(f"{place}/ran")
    assert hostfork(person, "list", check=0).stdout == ""


def test_an_undoing_of_nothing_is_refused(hostfork: Any, person: Person, place: str) -> None:
    done = hostfork(person, "run", "--private", f"{place}/proj", "--unquiesce", "true", "--", "true", check=125)
    assert "policy.usage" in done.stderr


def test_a_policy_file_says_the_same(hostfork: Any, person: Person, place: str) -> None:
    policy = f"{place}/p.toml"
    text = (
        f'schema = 1\nprefer = "memory"\n[quiesce]\ncommand = "echo before >> {place}/log"\n'
        f'undo = "echo after >> {place}/log"\n[[rule]]\npath = "{place}/proj"\naccess = "private"\n'
    )
    person.call(_write, policy, text)
    hostfork(person, "run", "--policy", policy, "--", "true", check=0)
    assert log(place) == ["before", "after"]
    shown = hostfork(person, "policy", "show", "--resolved", policy, check=0).stdout
    assert 'prefer = "memory"' in shown
    assert "[quiesce]" in shown
    person.call(_write, f"{place}/again.toml", shown)
    assert hostfork(person, "policy", "show", "--resolved", f"{place}/again.toml", check=0).stdout == shown


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def test_it_is_undone_when_the_owner_is_killed(hostfork: Any, person: Person, place: str) -> None:
    """SIGKILL while it is quiesced: the guard undoes it by itself, before any recovery."""
    owner = quiescing(person, place)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    guard = int(text(f"{place}/pid"))
    os.killpg(guard, signal.SIGTERM)  # the command that hangs; the guard lives through it
    wait_for(lambda: log(place) == ["undone"])
    wait_for(lambda: not is_alive(guard))
    hostfork(person, "recover", check=0)
    assert log(place) == ["undone"]
    assert hostfork(person, "list", check=0).stdout == ""


def test_recovery_undoes_what_a_killed_guard_left(hostfork: Any, person: Person, place: str) -> None:
    owner = quiescing(person, place)
    guard = int(text(f"{place}/pid"))
    os.killpg(guard, signal.SIGSTOP)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    done = hostfork(person, "recover")
    said = done.stdout + done.stderr
    assert "still going on" in said
    os.killpg(guard, signal.SIGKILL)
    wait_for(lambda: not is_alive(guard))
    assert log(place) == []
    hostfork(person, "recover", check=0)
    assert log(place) == ["undone"]
    assert hostfork(person, "list", check=0).stdout == ""


def test_an_interrupt_ends_a_command_that_hangs_and_undoes(hostfork: Any, person: Person, place: str) -> None:
    owner = quiescing(person, place)
    owner.send_signal(signal.SIGINT)
    assert owner.wait(20) == 130
    assert log(place) == ["undone"]
    assert hostfork(person, "list", check=0).stdout == ""


@pytest.mark.rig("strace")
def test_an_interrupt_right_after_the_guard_started(hostfork: Any, person: Person, place: str) -> None:
    """Before the owner has even written down which process it is."""
    slow = ("strace", "-D", "-o", "/dev/null", "-e", "trace=write", "-e", "inject=write:delay_enter=1000000")
    owner = quiescing(person, place, *slow)
    owner.send_signal(signal.SIGINT)
    assert owner.wait(50) == 130
    assert log(place) == ["undone"]
    hostfork(person, "recover", check=0)
    assert hostfork(person, "list", check=0).stdout == ""


@pytest.mark.rig("cgroup")
def test_a_frozen_cgroup_stands_still_while_paths_are_taken(
    hostfork: Any, root: Person, writer_group: tuple[str, int]
) -> None:
    """Its process writes without end, and yet `stable` is kept; afterwards it goes on."""
    group, writer = writer_group
    os.makedirs(f"{root.home}/busy/d")
    wait_for(lambda: os.path.exists(f"{root.home}/written"))
    # its file lies in the private path, open for writing
    os.rename(f"{root.home}/written", f"{root.home}/busy/written")
    refused = hostfork(root, "run", "--private", f"{root.home}/busy:copy", "--require", "stable", "--", "true",
                       check=125)  # fmt: skip
    assert "policy.require" in refused.stderr
    assert f"(pid {writer})" in refused.stderr
    for name in (group, group.removeprefix(_root_of(group))):
        done = hostfork(
            root, "run", "--private", f"{root.home}/busy:copy", "--require", "stable", "--rm", "--freeze-cgroup", name,
            "--", "true", check=0,
        )  # fmt: skip
        assert "written" not in done.stderr
    assert "frozen 0" in text(f"{group}/cgroup.events")
    size = os.path.getsize(f"{root.home}/busy/written")
    wait_for(lambda: os.path.getsize(f"{root.home}/busy/written") > size)


def _root_of(group: str) -> str:
    from hostfork.workload.cgroup import mount_point

    return mount_point()


@pytest.mark.rig("cgroup")
def test_a_cgroup_that_somebody_froze_stays_frozen(hostfork: Any, root: Person, writer_group: tuple[str, int]) -> None:
    group, _writer = writer_group
    with open(f"{group}/cgroup.freeze", "w") as file:
        file.write("1")
    wait_for(lambda: "frozen 1" in text(f"{group}/cgroup.events"))
    os.mkdir(f"{root.home}/p")
    hostfork(root, "run", "--private", f"{root.home}/p:copy", "--freeze-cgroup", group, "--", "true", check=0)
    assert "frozen 1" in text(f"{group}/cgroup.events")


@pytest.mark.rig("cgroup")
def test_a_killed_owner_leaves_no_cgroup_frozen(hostfork: Any, root: Person, writer_group: tuple[str, int]) -> None:
    """Killed while the cgroup is frozen: held there by a system call that takes its time."""
    group, _writer = writer_group
    os.mkdir(f"{root.home}/p")
    owner = root.popen(
        ["strace", "-qq", "-o", "/dev/null", "-e", "trace=rename,renameat", "-e", "inject=rename:delay_enter=30s",
         PROGRAM, "run", "--private", f"{root.home}/p:copy", "--freeze-cgroup", group, "--", "true"]
    )  # fmt: skip
    wait_for(lambda: "frozen 1" in text(f"{group}/cgroup.events"))
    pid = int(subprocess.run(["pgrep", "-P", str(owner.pid)], capture_output=True, text=True).stdout.split()[0])
    os.kill(pid, signal.SIGKILL)
    owner.kill()
    owner.wait()
    wait_for(lambda: "frozen 0" in text(f"{group}/cgroup.events"))
    hostfork(root, "recover", check=0)


@pytest.mark.rig("cgroup")
def test_hostfork_does_not_freeze_itself_or_what_is_none(hostfork: Any, root: Person, place: str) -> None:
    from hostfork.workload.cgroup import mount_point, own_folder

    for name, why in (
        (own_folder() or "", "is in it"),
        ("no/such", "there is no cgroup"),
        (mount_point(), "no cgroup"),
    ):
        done = hostfork(root, "run", "--private", root.home, "--freeze-cgroup", name, "--", "true", check=125)
        assert "cannot be frozen" in done.stderr
        assert why in done.stderr
