"""The rigs themselves: a rig that is not what it says makes every other test worthless."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import rigs
from hostfork.errors import Code, StorageError
from rigs import Bench, Disk, Leftovers, Person

MS_PRIVATE = 0x40000


def test_disk_is_of_its_kind_and_lends_folders(disk: Disk, person: Person) -> None:
    folder = disk.folder(person)
    assert os.listdir(folder) == []
    assert os.stat(folder).st_uid == person.uid
    assert rigs.filesystem_of(folder) == disk.kind
    if os.geteuid() != 0:
        return  # a folder on a disk of the machine, mounted as it is
    options = next(line for line in rigs.mountinfo() if line.split(" ")[4] == disk.path).split(" ")[5]
    assert "noatime" in options


def test_xfs_shares_blocks(xfs_disk: Disk, root: Person) -> None:
    folder = xfs_disk.folder(root)
    with open(f"{folder}/a", "wb") as file:
        file.write(b"x" * 65536)
    root.run(["cp", "--reflink=always", f"{folder}/a", f"{folder}/b"], check=True)


def test_small_disk_gets_full(make_disk: Callable[..., Disk], root: Person) -> None:
    folder = make_disk("ext4", 16).folder(root)
    with pytest.raises(OSError, match="No space") as caught, open(f"{folder}/big", "wb") as file:
        file.write(b"x" * (32 << 20))
    assert caught.value.errno == errno.ENOSPC


def test_disks_are_not_seen_by_the_machine(ext4_disk: Disk, root: Person) -> None:
    with open("/proc/1/mountinfo", encoding="utf-8") as file:
        assert ext4_disk.path not in file.read()


def test_person_is_that_person(person: Person) -> None:
    assert person.call(os.getresuid) == (person.uid,) * 3
    assert person.call(os.getresgid) == (person.gid,) * 3
    done = person.run(["sh", "-c", 'id -u; pwd; echo "$HOME"; touch "$XDG_STATE_HOME/x" && command -v hostfork'])
    uid, cwd, home, program = done.stdout.splitlines()
    assert (int(uid), cwd, home) == (person.uid, person.home, person.home)
    assert program == os.path.join(sys.prefix, "bin", "hostfork")


def test_ordinary_user_has_no_powers(user: Person) -> None:
    status = user.run(["cat", "/proc/self/status"], check=True).stdout
    assert "CapEff:\t0000000000000000" in status
    assert user.run(["touch", "/etc/hostfork-test"]).returncode != 0


def test_call_brings_back_errors_with_all_they_say(user: Person) -> None:
    def fails() -> None:
        try:
            os.mkdir("/etc/hostfork-test")
        except OSError as error:
            raise StorageError(Code.STORAGE_POOL, "no pool", path="/etc", errno=error.errno) from error

    with pytest.raises(StorageError) as caught:
        user.call(fails)
    assert (caught.value.code, caught.value.path, caught.value.errno) == (Code.STORAGE_POOL, "/etc", errno.EACCES)
    assert isinstance(caught.value.__cause__, PermissionError)
    assert caught.value.__cause__.filename == "/etc/hostfork-test"


def test_call_that_dies_is_an_error(person: Person) -> None:
    with pytest.raises(ChildProcessError):
        person.call(os._exit, 3)


def test_names_that_are_not_utf8_come_back(person: Person) -> None:
    os.mkdir(os.fsencode(person.home) + b"/a\xff\n:,\\")
    done = person.run(["ls", "-N", "-b", "."])
    assert "\\377" in done.stdout
    assert b"a\xff" in person.run(["ls", "-N"], binary=True).stdout


def test_user_owns_the_cgroup_that_programs_start_in(user: Person, delegated_cgroup: str) -> None:
    def moves_into_a_group_of_its_own() -> str:
        group = os.path.join(rigs.own_cgroup(), "mine")
        os.mkdir(group)
        child = subprocess.Popen(["sleep", "60"])
        with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(child.pid))
        with open(f"{group}/cgroup.kill", "w", encoding="ascii") as file:
            file.write("1")
        child.wait()
        os.rmdir(group)
        return rigs.own_cgroup()

    assert user.call(moves_into_a_group_of_its_own) == delegated_cgroup


def test_user_outside_a_delegated_cgroup_can_make_none(user: Person) -> None:
    with pytest.raises(PermissionError):
        user.call(lambda: os.mkdir(os.path.join(rigs.own_cgroup(), "mine")), delegated=False)


@pytest.mark.rig("user namespaces")
def test_denied_namespaces_are_denied(user: Person) -> None:
    command = ["unshare", "--user", "--map-current-user", "--mount", "true"]
    assert user.run(command).returncode == 0
    denied = user.run(command, namespaces=False)
    assert denied.returncode != 0
    assert "No space left on device" in denied.stderr
    with open("/proc/sys/user/max_user_namespaces", encoding="ascii") as file:
        assert int(file.read()) > 0


def test_leftovers_are_seen_and_removed(bench: Bench, root: Person, tmpfs_disk: Disk) -> None:
    before = Leftovers.look(bench)
    place = tmpfs_disk.folder(root)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    assert root.cgroup is not None
    group = os.path.join(root.cgroup, "left")
    os.mkdir(group)
    # Nobody waits for it: it is a child of a child that has ended.
    done = root.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"])
    left = rigs.settle(bench, before, seconds=0)
    assert {name.rpartition(" ")[0] for name in left.mounts} == {place}
    assert left.cgroups == {group}
    assert left.pids == {int(done.stdout)}
    left.remove()
    assert not rigs.settle(bench, before)


@pytest.mark.rig("cgroup")
def test_a_tree_goes_while_others_delete_below_it(tmp_path: Any) -> None:
    """As an eraser does, in the same order and in another."""
    for names in ("ls -f", "ls -r"):
        for folder in range(100):
            os.makedirs(f"{tmp_path}/tree/{folder}")
            for name in range(40):
                os.close(os.open(f"{tmp_path}/tree/{folder}/{name}", os.O_CREAT, 0o666))
        script = f"{names} | while read name; do rm -rf ./$name; done 2>/dev/null"
        with subprocess.Popen(["sh", "-c", script], cwd=f"{tmp_path}/tree") as other:
            rigs.remove_tree(f"{tmp_path}/tree")
            other.wait()
        assert not os.path.lexists(f"{tmp_path}/tree")


def test_a_process_of_the_same_number_elsewhere_has_a_place_of_its_own(bench: Bench, tmp_path: Any) -> None:
    """As in a container that shares the machine's cgroups: each has its folders, and the numbers begin anew."""

    def elsewhere() -> tuple[str, str]:
        os.environ["HOSTFORK_TEST_DIR"] = str(tmp_path)
        first = Bench.open()
        try:
            second = Bench.open()
            second.close()
        finally:
            first.close()
        return first.folder, second.folder

    first, second = rigs.in_child(elsewhere)
    assert first != second
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("shared", [True, False])
def test_what_others_mount_meanwhile_is_not_left_behind(root: Person, tmp_path: Any, shared: bool) -> None:
    """On a machine whose mounts are shared, as systemd does it, and on one where nothing arrives and nothing goes."""
    early, late = f"{tmp_path}/early", f"{tmp_path}/late"
    os.mkdir(early)
    os.mkdir(late)
    mount = ["mount", "-t", "tmpfs", "tmpfs"]

    def machine() -> tuple[bool, bool, set[str]]:
        rigs._check(rigs._libc.unshare(rigs.CLONE_NEWNS), "unshare")
        kind = rigs.MS_SHARED if shared else MS_PRIVATE
        rigs._check(rigs._libc.mount(b"none", b"/", None, rigs.MS_REC | kind, None), "mount")
        subprocess.run([*mount, early], check=True)
        others = subprocess.Popen(["sleep", "600"])
        bench = Bench.open()
        try:
            before = Leftovers.look(bench)
            elsewhere = ["nsenter", f"--mount=/proc/{others.pid}/ns/mnt"]
            subprocess.run([*elsewhere, "umount", early], check=True)
            subprocess.run([*elsewhere, *mount, late], check=True)
            arrived = any(line.split(" ")[4] == late for line in rigs.mountinfo())
            quiet = not Leftovers.look(bench).beyond(before).mounts
            subprocess.run([*mount, late], check=True)
            seen = Leftovers.look(bench).beyond(before).mounts
            subprocess.run(["umount", late], check=True)
            return arrived, quiet, {name.partition(" ")[0] for name in seen}
        finally:
            others.kill()
            others.wait()
            bench.close()

    assert rigs.in_child(machine) == (shared, True, {late})


def test_dev_installs_what_the_rigs_need() -> None:
    with open(
        os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dev"), encoding="utf-8"
    ) as file:
        listed = {line.split(" ")[0] for line in file.read().partition("done <<'END'")[2].splitlines()}
    assert {*rigs.PROGRAMS.values(), *rigs._MAKERS.values(), "useradd", "mount"} <= listed


@pytest.mark.parametrize("option", [[], ["--require-all"]])
def test_missing_rig_is_named_and_fails_when_all_are_required(tmp_path: Any, option: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom conftest import *\n@pytest.mark.rig('strace')\ndef test_it(): pass\n"
    )
    folder = os.path.dirname(os.path.abspath(__file__))
    plugin = tmp_path / "lacking.py"
    plugin.write_text("import rigs\nrigs.PROGRAMS['strace'] = 'no-such-program'\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "lacking", "-p", "conftest", "-rs", *option, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{folder}:{tmp_path}"},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "rig missing: strace: no program no-such-program" in done.stdout
    assert ("1 error" if option else "1 skipped") in done.stdout
    assert done.returncode == (1 if option else 0)


def test_a_rig_that_a_fixture_misses_skips_every_test_of_it(tmp_path: Any) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest, rigs\n"
        "@pytest.fixture(scope='module')\n"
        "def disk(): raise rigs.Missing('nobody can make it')\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_it(disk, number): pass\n"
        "def test_asks_itself(): raise rigs.Missing('nobody can make it')\n"
    )
    folder = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-rs", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": folder},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "rig missing: nobody can make it" in done.stdout
    assert "3 skipped" in done.stdout
    assert done.returncode == 0
