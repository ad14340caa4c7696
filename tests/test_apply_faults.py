"""Applying and undoing that are killed, refused by the kernel or met by a host write: all of it or none of it, never a
mix, and nothing of anybody's is lost."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from apply_rig import (
    Run,
    apply,
    apply_here,
    differing,
    fork,
    kill_at,
    make,
    nothing_left,
    picture,
    records,
    undo,
    undo_here,
    with_notes,
)
from kill_steps import die_at
from rigs import Disk, Person

PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
SMALL = "echo 1 >> src/keep; chmod 755 run.sh; rm -r gone; mkdir -p new/a; echo n > new/a/n; chmod 755 closed; "
SMALL += "echo 2 > closed/in; chmod 555 closed new/a; rm kind/file; mkdir kind/file; echo t >> twin1"


def settled(hostfork: Run, person: Person, project: str, before: Any, after: Any) -> bool:
    """After a crash: put right by the next command; whether the host is as after the apply."""
    hostfork(person, "list", check=0)
    now = picture(project)
    assert now in (before, after), (differing(now, before), differing(now, after))
    nothing_left(person, project)
    assert json.loads(hostfork(person, "recover", "--json", check=0).stdout).get("recovered", []) == []
    return bool(now == after)


@pytest.mark.slow
def test_killed_at_every_record_of_the_journal(hostfork: Run, person: Person, disk: Disk) -> None:
    """CASES 14, last part: an apply and an undo, killed right before and right after each record by name."""
    project = make(person, disk.folder(person))
    fork(hostfork, person, project, SMALL)
    before = picture(project)
    names = records(person, apply_here)
    after = picture(project)
    back = records(person, undo_here)
    assert {"started", "stage", "ready", "step-0", "moved", "kept", "committed", "done"} <= set(names)
    assert {"undoing", "step-0", "moved", "undone"} <= set(back)
    assert picture(project) == before
    for record in dict.fromkeys(names):
        for written in (False, True):
            kill_at(person, record, written, apply_here)
            applied = settled(hostfork, person, project, before, after)
            assert applied is (record in ("done",) or (record == "committed" and written)), record
            if applied:
                assert not apply(hostfork, person)["written"]
                undo(hostfork, person)
            assert differing(picture(project), before) == []
    apply(hostfork, person)
    for record in dict.fromkeys(back):
        for written in (False, True):
            kill_at(person, record, written, undo_here)
            if not settled(hostfork, person, project, before, after):
                assert apply(hostfork, person)["written"]
            assert differing(picture(project), after) == []


@pytest.mark.parametrize("function", [apply_here, undo_here])
def test_killed_while_it_is_put_back(
    hostfork: Run, user: Person, ext4_disk: Disk, function: Callable[[], bool]
) -> None:
    """Settling itself may be killed at each of its own renames."""
    project = make(user, ext4_disk.folder(user))
    fork(hostfork, user, project, SMALL)
    before = picture(project)
    apply(hostfork, user)
    after = picture(project)
    if function is apply_here:
        undo(hostfork, user)
    kill_at(user, "moved", False, function)
    for number in range(40):

        def recover(number: int = number) -> None:
            from hostfork.apply import transaction

            die_at(number + 1, (transaction, ("renameat2",)))
            from hostfork import api

            api.settle_applies()

        try:
            user.call(recover)
        except ChildProcessError:
            continue
        break
    assert 0 < number < 39
    assert settled(hostfork, user, project, before, after) is (function is undo_here)


CALLS = [
    ("renameat2", "error=EACCES"), ("renameat2", "error=ENOSPC"), ("renameat2", "error=EXDEV"), ("fsync", "error=EIO"),
    ("fsync", "error=ENOSPC"), ("renameat2", "signal=KILL"), ("openat2", "error=EACCES"), ("mkdirat", "error=ENOSPC"),
    ("mkdir", "error=ENOSPC"), ("write", "error=ENOSPC"), ("fchmodat", "error=EPERM"), ("renameat2", "signal=INT"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.rig("strace")
@pytest.mark.parametrize(("call", "fault"), CALLS)
@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_a_fault_of_the_kernel_at_each_call(
    hostfork: Run, user: Person, ext4_disk: Disk, tmpfs_disk: Disk, call: str, fault: str, kind: str
) -> None:
    disk = ext4_disk if kind == "ext4" else tmpfs_disk
    project = make(user, disk.folder(user))
    fork(hostfork, user, project, SMALL)
    before = picture(project)
    apply(hostfork, user)
    after = picture(project)
    undo(hostfork, user)
    for number in range(1, 40):
        mark = os.path.join(user.home, f"trace{number}")
        inject = f"inject={call}:{fault}:when={number}"
        words = ["strace", "-f", "-o", mark, "-e", f"trace={call}", "-e", inject, PROGRAM, "apply", "f", "--yes"]
        done = user.run(words)
        with open(mark) as file:
            injected = "INJECTED" in (text := file.read()) or "+++ killed" in text or "--- SIGINT" in text
        if not injected:
            assert done.returncode == 0, done.stderr
            assert number > 1
            return
        assert "internal.fault" not in done.stderr, done.stderr
        if settled(hostfork, user, project, before, after):
            undo(hostfork, user)
        assert differing(picture(project), before) == []
    pytest.fail("there are more calls than were tried")


@pytest.mark.rig("root")
@pytest.mark.parametrize("kind", ["ext4", "btrfs", "xfs", "tmpfs"])
def test_a_full_disk_leaves_the_host_as_it_was(
    hostfork: Run, user: Person, make_disk: Callable[..., Disk], kind: str
) -> None:
    disk = make_disk(kind, 300)
    project = make(user, disk.folder(user))
    pool = f"{user.home}/pool"
    fork(hostfork, user, project, "head -c 8000000 /dev/urandom > big; echo x >> src/keep", "f", "--pool", pool)
    before = picture(project, inodes=True)
    with open(f"{disk.path}/filler", "wb", buffering=0) as filler:
        left = os.statvfs(disk.path).f_bavail * os.statvfs(disk.path).f_frsize
        os.posix_fallocate(filler.fileno(), 0, max(left - 3_000_000, 1))
        try:
            while True:
                filler.write(b"x" * 65536)
        except OSError:
            pass
    done = hostfork(user, "apply", "f", "--yes")
    assert done.returncode == 125, done.stdout
    assert "apply.failed" in done.stderr
    assert picture(project, inodes=True) == before
    nothing_left(user, project)
    os.unlink(f"{disk.path}/filler")
    os.sync()
    assert apply(hostfork, user)["written"]


def over_the_host(hook: Callable[[str, bool], None]) -> list[str]:
    """Apply with the fork's side in conflicts, while the hook is told; the kinds of conflicts that there were."""
    from hostfork import api
    from hostfork.apply.values import OnConflict, Resolution

    choice = api.Choice(resolution=Resolution(OnConflict.FORK))
    return [one.kind.value for one in with_notes(hook, lambda: api.apply("f", choice)).conflicts]


@pytest.mark.slow
def test_a_host_write_at_every_step_is_a_conflict_and_is_kept(hostfork: Run, person: Person, disk: Disk) -> None:
    """Another program writes a file while others are exchanged: its bytes stay, and the rest is put back."""
    project = make(person, disk.folder(person))
    fork(hostfork, person, project, SMALL)
    steps = [name for name in records(person, apply_here) if name.startswith("step")]
    undo(hostfork, person)
    moved = 0
    for target in ("src/keep", "gone/inner/f", "twin2", "kind/file"):
        path = os.path.join(project, target)
        for step in steps:
            before, seen = picture(project), os.stat(path)

            def write(record: str, written: bool, step: str = step, path: str = path) -> None:
                if record == step and written and os.path.isfile(path):
                    with open(path, "ab") as file:
                        file.write(b"host\n")

            kinds = person.call(over_the_host, write)
            nothing_left(person, project)
            now = picture(project)
            if kinds:
                assert kinds == ["moved"]
                also = ["twin1"] if target == "twin2" else []
                assert differing(now, before) == [*also, target]
                assert os.stat(path).st_size == seen.st_size + len(b"host\n")
                moved += 1
                continue
            if os.path.isfile(path) and os.stat(path).st_size > 5:
                with open(path, "rb") as file:
                    assert file.read().endswith(b"host\n") or target == "twin2"
            hostfork(person, "undo", "f", "--yes")
            if picture(project) != before:  # somebody changed what was applied: that stays
                os.truncate(path, os.stat(path).st_size - len(b"host\n"))
                kinds = [one["kind"] for one in undo(hostfork, person, check=1)["conflicts"]]
                assert set(kinds) == {"both-edited"}
                restore(person, project, path)
                assert undo(hostfork, person)["written"]
    assert moved > len(steps)


def restore(person: Person, project: str, path: str) -> None:
    """Give a file that was applied the time that the plan says, as if nobody had written it."""
    applies = os.path.join(person.state, "applies")
    for name in os.listdir(applies):
        with open(os.path.join(applies, name, "plan.json")) as file:
            for _, _, _, step, _, _, new, *_ in json.load(file)["steps"]:
                if new and os.path.join(project, step) == path:
                    os.utime(path, ns=(new[0][7], new[0][7]))


def test_a_writer_with_the_old_file_open_is_noticed_until_the_commit(
    hostfork: Run, person: Person, ext4_disk: Disk
) -> None:
    project = make(person, ext4_disk.folder(person))
    fork(hostfork, person, project, SMALL)
    before = picture(project)

    def call() -> list[str]:
        from hostfork import api

        with open(f"{project}/src/keep", "ab", buffering=0) as held:

            def write(record: str, _written: bool) -> None:
                if record == "moved":
                    held.write(b"late\n")

            result = with_notes(write, lambda: api.apply("f"))
        return [os.path.relpath(one.path, project) for one in result.conflicts]

    assert person.call(call) == ["src/keep"]
    assert differing(picture(project), before) == ["src/keep"]
    with open(f"{project}/src/keep") as file:
        assert file.read() == "keep\nlate\nlate\n"


def test_a_folder_that_is_renamed_meanwhile_is_a_conflict(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    project = make(user, ext4_disk.folder(user))
    fork(hostfork, user, project, SMALL)

    def call() -> int:
        from hostfork import api

        def rename(record: str, after: bool) -> None:
            if record == "moved" and not after:
                os.rename(f"{project}/src", f"{project}/elsewhere")

        return len(with_notes(rename, lambda: api.apply("f")).conflicts)

    assert user.call(call) == 1
    with open(f"{project}/run.sh"):
        assert os.stat(f"{project}/run.sh").st_mode & 0o100 == 0
    assert sorted(os.listdir(f"{project}/gone")) == ["g", "inner"]


def test_interrupted_in_the_middle_it_puts_back(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    project = make(user, ext4_disk.folder(user))
    fork(hostfork, user, project, SMALL)
    before = picture(project, inodes=True)

    def call() -> bool:
        from hostfork import api

        def interrupt(record: str, after: bool) -> None:
            if record == "step-2" and after:
                raise KeyboardInterrupt

        try:
            with_notes(interrupt, lambda: api.apply("f"))
        except KeyboardInterrupt:
            return True
        return False

    assert user.call(call)
    assert differing(picture(project, inodes=True), before) == []
    nothing_left(user, project)
    assert apply(hostfork, user)["written"]


def test_two_at_once_are_one_after_the_other(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    project = make(user, ext4_disk.folder(user))
    for name in ("one", "two"):
        fork(hostfork, user, project, f"echo {name} > {name}; echo x >> src/keep; chmod 600 run.sh", name)
    words = [[PROGRAM, "apply", name, "--yes", "--on-conflict", "fork"] for name in ("one", "two")]
    started = [user.popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for line in words]
    ends = [(process.communicate()[1], process.returncode) for process in started]
    assert [status for _, status in ends] == [0, 0], ends
    assert {"one", "two"} <= set(os.listdir(project))
    nothing_left(user, project)


def test_list_does_not_wait_for_an_apply_at_work(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    project = make(user, ext4_disk.folder(user))
    fork(hostfork, user, project, SMALL)
    after: list[float] = []

    def call() -> int:
        from hostfork import api

        def look(record: str, written: bool) -> None:
            if record == "moved" and not written:
                started = time.monotonic()
                done = subprocess.run([PROGRAM, "list"], check=False, capture_output=True)
                assert done.returncode == 0
                after.append(time.monotonic() - started)

        return int(with_notes(look, lambda: api.apply("f")).written)

    assert user.call(call) == 1
