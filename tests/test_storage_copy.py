"""The mechanism `copy`: faithfulness in detail, people's rights, changing sources, full disks, workers."""

import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rigs
from hostfork.errors import Code, StorageError
from hostfork.storage import crew, replicate
from hostfork.storage.contract import KeyStage, KeyState, Offer, Prepared, Refusal, Removal, Source
from hostfork.storage.copy import Copy
from hostfork.storage.entry import Outcome, Taken
from rigs import Bench, Disk, Person
from storage_cases import ACCESS, DEFAULT, acl, build, facts, prepared, sample, write

STORAGE = Copy()


def copied(source: str, pool: str, **fields: Any) -> Prepared:
    return STORAGE.prepare("k", Source(source, **fields), pool)


def tree_of(pool: str) -> str:
    return os.path.join(pool, "copy/k/tree")


def empty(path: str) -> None:
    """A source that the test fills itself."""


# --- faithfulness ----------------------------------------------------------------------------------------------------


def test_holes_stay_holes(disk: Disk, user: Person) -> None:
    source, pool = sample(user, disk)
    done = user.call(copied, source, pool)
    found = os.stat(f"{tree_of(pool)}/holes")
    assert found.st_size == 1 << 30
    assert found.st_blocks * 512 < 1 << 20
    assert done.bytes_copied < 2 << 20
    with open(f"{tree_of(pool)}/holes", "rb") as file:
        file.seek((1 << 20) - 3)
        assert file.read(9) == b"\0\0\0middle"


@pytest.mark.slow
def test_a_file_of_a_gibibyte(root: Person, bench: Bench) -> None:
    disk = rigs.make_disk(bench, "ext4", 3000)
    block = os.urandom(1 << 20)

    def make(path: str) -> None:
        with open(f"{path}/big", "wb") as file:
            for number in range(1024):
                file.write(number.to_bytes(8, "big") + block[8:])

    source, pool = sample(root, disk, make)
    done = root.call(copied, source, pool)
    assert done.bytes_copied == 1 << 30
    with open(f"{source}/big", "rb") as one, open(f"{tree_of(pool)}/big", "rb") as other:
        assert hashlib.file_digest(one, "sha256").digest() == hashlib.file_digest(other, "sha256").digest()


def test_hard_links_have_the_original_number(disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)
    person.call(copied, source, pool)
    tree = tree_of(pool)
    assert os.stat(f"{tree}/two").st_nlink == 3
    assert os.stat(f"{tree}/half-outside").st_nlink == 1
    assert os.listdir(f"{pool}/copy/k") == ["tree"]


def test_as_many_links_as_the_filesystem_allows(ext4_disk: Disk, user: Person) -> None:
    def make(path: str) -> None:
        write(f"{path}/0", b"many")
        for number in range(1, 65_000):  # EXT4_LINK_MAX
            os.link(f"{path}/0", f"{path}/{number}")

    source, pool = sample(user, ext4_disk, make)
    user.call(copied, source, pool)
    assert os.stat(f"{tree_of(pool)}/64999").st_nlink == 65_000
    assert user.call(STORAGE.remove, "k", pool) is Removal.GONE


@pytest.mark.parametrize("kind", ["file", "symlink", "fifo"])
def test_a_single_entry(disk: Disk, person: Person, kind: str) -> None:
    source, pool = sample(person, disk)
    path = f"{source}/{({'file': 'two', 'symlink': 'dangling', 'fifo': 'fifo'})[kind]}"

    def life() -> Any:
        done, seen = prepared(STORAGE, Source(path), pool)
        tree = STORAGE.mounts("k", pool).source
        equal = facts(path)[b""][:6] == facts(tree)[b""][:6]
        usage = STORAGE.usage("k", pool)
        STORAGE.reduce("k", pool, [b""])
        kept = os.path.lexists(tree)
        STORAGE.reduce("k", pool, [])
        STORAGE.reduce("k", pool, [])
        return equal, list(seen), done.files, usage.inodes, kept, os.path.lexists(tree)

    assert person.call(life) == (True, [b""], 1, 2, True, False)


def test_the_umask_and_the_pools_own_acl_do_not_reach_the_copy(ext4_disk: Disk, person: Person) -> None:
    source, pool = sample(person, ext4_disk)

    def life() -> Any:
        os.setxattr(pool, DEFAULT, acl(4711, 7))
        os.chmod(pool, 0o2700)
        os.umask(0o077)
        copied(source, pool)
        return facts(source), facts(tree_of(pool))

    before, after = person.call(life)
    assert after == before


def test_the_pool_below_the_source_is_left_out(ext4_disk: Disk, person: Person) -> None:
    source, _ = sample(person, ext4_disk)
    pool = f"{source}/plain/pool"

    def life() -> list[str]:
        os.mkdir(pool, 0o700)
        copied(source, pool)
        return os.listdir(f"{tree_of(pool)}/plain/pool/copy/new-k")

    # Not named in `omit`: the copy does not copy itself for ever.
    assert "tree" not in person.call(life)


def test_omitted_paths_become_stand_ins(disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)
    omit = ("plain", "sticky/inside", "fifo", "set-gid", "not-there")

    def life() -> Any:
        done, seen = prepared(STORAGE, Source(source, omit), pool)
        return done, sorted(seen), facts(source), facts(tree_of(pool))

    done, seen, before, after = person.call(life)
    left_out = {name for name in before if name.split(b"/")[0] in (b"plain", b"set-gid")} | {b"sticky/inside", b"fifo"}
    assert seen == sorted(set(before) - left_out)
    assert done.files == len(seen)
    assert set(after) == set(seen) | {b"plain", b"set-gid", b"sticky/inside", b"fifo"}
    for name in (b"plain", b"set-gid", b"sticky/inside", b"fifo"):
        assert stat.S_IMODE(after[name][0]) == stat.S_IMODE(before[name][0])
        assert after[name][1:3] == before[name][1:3]
    assert stat.S_ISREG(after[b"fifo"][0])
    assert after[b"sticky/inside"][3] == 0


def test_an_omitted_folder_that_shows_nothing(ext4_disk: Disk, user: Person, root: Person) -> None:
    """As a FUSE mount of somebody else's: the name is there, its stat is refused."""
    source, pool = sample(user, ext4_disk, empty)

    def make() -> None:
        os.makedirs(f"{source}/dark/mount")
        os.chmod(f"{source}/dark", 0o744)

    root.call(make)
    user.call(STORAGE.prepare, "k", Source(source, ("dark/mount",)), pool)
    assert root.call(os.listdir, f"{tree_of(pool)}/dark") == ["mount"]


# --- rights ----------------------------------------------------------------------------------------------------------


def foreign(source: str) -> Callable[[], None]:
    """Root's entries in a user's source: readable ones."""

    def make() -> None:
        write(f"{source}/roots", b"r", 0o644)
        write(f"{source}/roots-program", b"p", 0o4755)
        write(f"{source}/for-all", b"a", 0o606)
        write(f"{source}/by-acl", b"a", 0o640)
        os.setxattr(f"{source}/by-acl", ACCESS, acl(os.stat(source).st_uid, 6))
        os.mkdir(f"{source}/roots-folder", 0o755)
        write(f"{source}/roots-folder/inside", b"i", 0o644)
        os.mkfifo(f"{source}/roots-fifo")
        os.chmod(f"{source}/roots-fifo", 0o644)
        os.symlink("roots", f"{source}/roots-link")

    return make


def test_what_a_user_could_not_write_stays_unwritable(disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, disk, empty)
    root.call(foreign(source))
    done = user.call(copied, source, pool)
    assert done.unwritable == ("roots", "roots-fifo", "roots-folder", "roots-folder/inside", "roots-program")
    tree = tree_of(pool)

    def trial() -> dict[str, bool]:
        found = {}
        for name in (*done.unwritable, "for-all", "by-acl", "roots-link"):
            assert os.lstat(f"{tree}/{name}").st_uid == user.uid
            found[name] = os.access(f"{tree}/{name}", os.W_OK, follow_symlinks=False)
        return found

    can = user.call(trial)
    assert [name for name in done.unwritable if can[name]] == []
    assert can["for-all"]
    assert can["by-acl"]
    assert stat.S_IMODE(os.stat(f"{tree}/roots").st_mode) == 0o444
    assert stat.S_IMODE(os.stat(f"{tree}/roots-program").st_mode) == 0o555
    assert stat.S_IMODE(os.stat(f"{tree}/roots-folder").st_mode) == 0o555
    with pytest.raises(PermissionError):
        user.call(write, f"{tree}/roots-folder/new")
    assert user.call(STORAGE.remove, "k", pool) is Removal.GONE


def test_root_can_write_everything(ext4_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, ext4_disk, empty)
    root.call(foreign(source))
    pool = ext4_disk.folder(root, "rootpool")
    assert root.call(copied, source, pool).unwritable == ()


def test_own_files_with_a_foreign_group(ext4_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, ext4_disk, lambda path: write(f"{path}/file", b"x", 0o640))
    root.call(lambda: (os.chown(f"{source}/file", user.uid, 54321), os.chmod(f"{source}/file", 0o2750)))
    user.call(copied, source, pool)
    found = os.stat(f"{tree_of(pool)}/file")
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (user.uid, user.gid, 0o750)


def test_a_group_that_the_user_is_in_is_kept(ext4_disk: Disk, root: Person) -> None:
    """A supplementary group; needs a person who has one."""
    top = ext4_disk.folder(root)

    def life() -> Any:
        write(f"{top}/file", b"x")
        os.chmod(top, 0o777)
        os.chown(f"{top}/file", 4321, 7001)
        os.chmod(f"{top}/file", 0o2755)
        os.mkdir(f"{top}/pool")
        os.chown(f"{top}/pool", 4321, 4321)
        os.setgroups([7001])
        os.setresgid(4321, 4321, 4321)
        os.setresuid(4321, 4321, 4321)
        STORAGE.prepare("k", Source(f"{top}/file"), f"{top}/pool")
        found = os.stat(tree_of(f"{top}/pool"))
        return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)

    assert root.call(life) == (4321, 7001, 0o2755)


def test_what_a_user_cannot_read_is_refused_by_name(ext4_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, ext4_disk)

    def make() -> None:
        write(f"{source}/secret", b"s", 0o600)
        os.mkdir(f"{source}/dark", 0o700)
        os.mkdir(f"{source}/names-only", 0o744)
        write(f"{source}/names-only/file", b"n")
        write(f"{source}/names-only/two", b"n")
        os.mknod(f"{source}/device", stat.S_IFCHR | 0o666, os.makedev(1, 3))

    root.call(make)
    with pytest.raises(StorageError) as refused:
        user.call(copied, source, pool)
    error = refused.value
    assert error.code is Code.STORAGE_SOURCE
    names = ("dark", "device", "names-only/file", "names-only/two", "secret")
    assert error.details == tuple(f"{source}/{name}" for name in names)
    assert error.hint is not None
    assert user.call(STORAGE.keys, pool) == ()
    assert isinstance(user.call(STORAGE.probe, Source(source), pool), Refusal)
    offer = user.call(STORAGE.probe, Source(source, (*names, "names-only")), pool)
    assert isinstance(offer, Offer), offer


@pytest.mark.parametrize("name", ["secret", "dark", "names-only", "device"])
def test_probe_finds_what_cannot_be_read(ext4_disk: Disk, user: Person, root: Person, name: str) -> None:
    source, pool = sample(user, ext4_disk, empty)

    def make() -> None:
        if name == "secret":
            write(f"{source}/{name}", b"", 0o600)
        elif name == "device":
            os.mknod(f"{source}/{name}", stat.S_IFBLK | 0o666, os.makedev(7, 0))
        else:
            os.mkdir(f"{source}/{name}", 0o700 if name == "dark" else 0o744)
            write(f"{source}/{name}/inside")

    root.call(make)
    refusal = user.call(STORAGE.probe, Source(source), pool)
    assert isinstance(refusal, Refusal)
    assert f"{source}/{name}" in refusal.reason
    for path in (f"{source}/secret",) if name == "secret" else (f"{source}/dark",) if name == "dark" else ():
        assert isinstance(user.call(STORAGE.probe, Source(path), pool), Refusal)
    assert isinstance(root.call(STORAGE.probe, Source(source), pool), Offer)


def test_very_many_unreadable_files_end_the_walk(ext4_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, ext4_disk, empty)
    root.call(lambda: [write(f"{source}/{number}", b"", 0o600) for number in range(1500)])
    with pytest.raises(StorageError) as refused:
        user.call(copied, source, pool)
    assert "1000 entries" in refused.value.message
    assert refused.value.details[-1] == "and 980 more"
    assert user.call(STORAGE.keys, pool) == ()


# --- sources that change ---------------------------------------------------------------------------------------------

_PROGRAM = """
import sys
from hostfork.errors import HostforkError
from hostfork.storage.contract import Source
from hostfork.storage.copy import Copy
from hostfork.storage.entry import Outcome, Taken
try:
    print(Copy().prepare("k", Source(sys.argv[1]), sys.argv[2]).files)
except HostforkError as error:
    print(error.code.text, *error.details, sep="\\n")
"""


def slowed(
    person: Person, source: str, pool: str, call: str = "readv", delay: str = "400ms"
) -> "subprocess.Popen[str]":
    """A copy whose calls of one name are held up, so that a writer surely comes between."""
    inject = f"inject={call}:delay_enter={delay}"
    command = ["strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject]
    return person.popen([*command, sys.executable, "-c", _PROGRAM, source, pool], stdout=subprocess.PIPE, text=True)


@pytest.mark.rig("strace")
def test_a_file_that_keeps_changing_is_unstable(disk: Disk, user: Person) -> None:
    source, pool = sample(user, disk, lambda path: (write(f"{path}/busy", b"x" * 100), write(f"{path}/quiet", b"y"))[0])
    loop = "i=0; while :; do echo $i >> busy; i=$((i+1)); sleep 0.01; done"
    with user.popen(["sh", "-c", loop], cwd=source) as writer:
        with slowed(user, source, pool) as copy:
            out, _ = copy.communicate(timeout=60)
        writer.kill()
    assert out.splitlines() == ["storage.unstable", f"{source}/busy"]
    assert user.call(STORAGE.keys, pool) == ()


@pytest.mark.rig("strace")
def test_a_file_that_changed_once_is_read_again(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk, lambda path: write(f"{path}/file", b"old"))
    with slowed(user, source, pool, delay="2s") as copy:
        wait_for(lambda: os.path.exists(f"{pool}/copy/new-k/tree/file"))
        user.call(write, f"{source}/file", b"and new")
        out, _ = copy.communicate(timeout=60)
    assert out.splitlines() == ["2"]
    with open(f"{tree_of(pool)}/file", "rb") as file:
        assert file.read() == b"and new"


@pytest.mark.rig("strace")
@pytest.mark.parametrize("becomes", ["nothing", "symlink", "fifo", "folder"])
def test_a_file_that_vanishes_is_gone(ext4_disk: Disk, user: Person, becomes: str) -> None:
    source, pool = sample(user, ext4_disk, lambda path: write(f"{path}/file", b"old"))
    with slowed(user, source, pool, delay="2s") as copy:
        wait_for(lambda: os.path.exists(f"{pool}/copy/new-k/tree/file"))

        def change() -> None:
            os.unlink(f"{source}/file")
            if becomes == "symlink":
                os.symlink("/etc/passwd", f"{source}/file")
            elif becomes == "fifo":
                os.mkfifo(f"{source}/file")
            elif becomes == "folder":
                os.mkdir(f"{source}/file")

        user.call(change)
        out, _ = copy.communicate(timeout=60)
    if becomes == "nothing":
        assert out.splitlines() == ["1"]
        assert os.listdir(tree_of(pool)) == []
    else:
        assert out.splitlines() == ["storage.unstable", f"{source}/file"]


@pytest.mark.rig("strace")
@pytest.mark.parametrize("becomes", ["nothing", "symlink", "file"])
def test_a_folder_that_vanishes(ext4_disk: Disk, user: Person, becomes: str) -> None:
    """The folder's entry is listed; while another folder is being copied it goes."""

    def make(path: str) -> None:
        for name in ("one", "two"):
            os.mkdir(f"{path}/{name}")
            write(f"{path}/{name}/file", b"x")

    source, pool = sample(user, ext4_disk, make)
    with slowed(user, source, pool, delay="2s") as copy:
        first = wait_for(lambda: next(iter(os.listdir(f"{pool}/copy/new-k/tree")), None))
        other = {"one": "two", "two": "one"}[first]

        def change() -> None:
            os.rename(f"{source}/{other}", f"{source}/../moved")
            if becomes == "symlink":
                os.symlink("../moved", f"{source}/{other}")
            elif becomes == "file":
                write(f"{source}/{other}")

        user.call(change)
        out, _ = copy.communicate(timeout=60)
    if becomes == "nothing":
        assert out.splitlines() == ["3"]
        assert os.listdir(tree_of(pool)) == [first]
    else:
        assert out.splitlines() == ["storage.unstable", f"{source}/{other}"]


def test_a_file_under_a_lease_is_unstable(ext4_disk: Disk, user: Person) -> None:
    """Opening it would block until the holder gives it up."""
    source, pool = sample(user, ext4_disk, lambda path: write(f"{path}/leased", b"x"))

    def life() -> None:
        pid, ready = os.getpid(), os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            file = os.open(f"{source}/leased", os.O_RDWR)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            os.write(ready[1], b"x")
            while os.getppid() == pid:
                time.sleep(0.05)
            os._exit(0)
        os.read(ready[0], 1)
        try:
            copied(source, pool)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    with pytest.raises(StorageError) as refused:
        user.call(life)
    assert refused.value.code is Code.STORAGE_UNSTABLE
    assert refused.value.details == (f"{source}/leased",)


def wait_for(question: Callable[[], Any]) -> Any:
    """Until the answer is true; a copy that never gets there fails the test by its own time limit."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            answer = question()
        except FileNotFoundError:
            answer = None
        if answer:
            return answer
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def test_a_folder_moved_from_under_the_walk(ext4_disk: Disk, user: Person) -> None:
    """Deep down the way up is found by `..`: where that leads elsewhere, the copy stops."""

    def make(path: str) -> None:
        os.makedirs(f"{path}/top/" + "d/" * 150)
        os.mkdir(f"{path}/elsewhere")

    source, pool = sample(user, ext4_disk, make)
    middle = "top/" + "d/" * 5

    def life() -> None:
        def witness(relative: bytes, before: os.stat_result, copy: os.stat_result) -> None:
            if relative.endswith(b"/d" * 150):
                os.rename(f"{source}/{middle}", f"{source}/elsewhere/d")

        STORAGE.prepare("k", Source(source), pool, witness)

    with pytest.raises(StorageError) as refused:
        user.call(life)
    assert refused.value.code is Code.STORAGE_UNSTABLE
    assert user.call(STORAGE.keys, pool) == ()


# --- full and broken disks -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_disk(bench: Bench) -> Iterator[Disk]:
    return rigs.make_disk(bench, "tmpfs", 8)


@pytest.mark.rig("root")
def test_no_space_is_known_before_anything_is_made(small_disk: Disk, ext4_disk: Disk, person: Person) -> None:
    source, _ = sample(person, ext4_disk, lambda path: write(f"{path}/big", b"x" * (12 << 20)))
    pool = small_disk.folder(person)
    made: list[str] = []

    def life() -> None:
        STORAGE.prepare("k", Source(source), pool, lambda *_: made.append("x"))

    with pytest.raises(StorageError) as refused:
        person.call(life)
    error = refused.value
    assert error.code is Code.STORAGE_NO_SPACE
    assert error.details[-1] == "the copy needs about 12 MiB"
    assert error.hint is not None
    assert os.listdir(pool) == []


@pytest.mark.rig("root")
def test_no_space_on_the_way_leaves_nothing(small_disk: Disk, ext4_disk: Disk, person: Person) -> None:
    """3,000 small files are small by their sizes; each takes a page of the pool."""

    def make(path: str) -> None:
        for number in range(3000):
            write(f"{path}/{number}", b"x" * 100)

    source, _ = sample(person, ext4_disk, make)
    pool = small_disk.folder(person)
    with pytest.raises(StorageError) as refused:
        person.call(copied, source, pool)
    assert refused.value.code is Code.STORAGE_NO_SPACE
    assert person.call(STORAGE.keys, pool) == ()
    assert os.listdir(f"{pool}/copy") == []
    os.rmdir(f"{pool}/copy")


@pytest.mark.rig("strace")
def test_a_read_error_names_the_file(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk, lambda path: write(f"{path}/bad", b"x"))
    command = ["strace", "-o", "/dev/null", "-e", "trace=readv", "-e", "inject=readv:error=EIO"]
    done = user.run([*command, sys.executable, "-c", _PROGRAM.replace("*error.details", "error.message"), source, pool])
    assert done.stdout.splitlines() == ["storage.failed", f"{source}/bad could not be copied into {pool}"]
    assert user.call(STORAGE.keys, pool) == ()


@pytest.mark.rig("strace")
def test_an_undo_that_fails_is_told(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk, lambda path: write(f"{path}/bad", b"x"))
    inject = [
        "-e",
        "trace=readv,rmdir,unlinkat",
        "-e",
        "inject=readv:error=EIO",
        "-e",
        "inject=rmdir,unlinkat:error=EIO",
    ]
    done = user.run(["strace", "-o", "/dev/null", *inject, sys.executable, "-c", _PROGRAM, source, pool])
    assert done.stdout.splitlines()[0] == "storage.failed"
    assert "what was made could not be removed" in done.stdout
    assert [state.stage for state in user.call(STORAGE.keys, pool)] == [KeyStage.HALF_REMOVED]
    assert user.call(STORAGE.remove, "k", pool) is Removal.GONE


def test_a_mount_in_the_way_is_busy(ext4_disk: Disk, root: Person) -> None:
    source, pool = sample(root, ext4_disk)

    def life() -> None:
        copied(source, pool)
        tree = f"{tree_of(pool)}/plain"
        subprocess.run(["mount", "-t", "tmpfs", "none", tree], check=True)
        try:
            STORAGE.remove("k", pool)
        finally:
            subprocess.run(["umount", f"{pool}/copy/rm-k/tree/plain"], check=True)

    with pytest.raises(StorageError) as refused:
        root.call(life)
    assert refused.value.code is Code.STORAGE_BUSY
    assert root.call(STORAGE.keys, pool) == (KeyState("k", KeyStage.HALF_REMOVED),)
    assert root.call(STORAGE.remove, "k", pool) is Removal.GONE


@pytest.mark.rig("attr tools")
def test_immutable_files_are_removed(ext4_disk: Disk, root: Person) -> None:
    source, pool = sample(root, ext4_disk)
    root.call(copied, source, pool)
    tree = tree_of(pool)
    subprocess.run(["chattr", "+i", f"{tree}/small", f"{tree}/plain"], check=True)
    subprocess.run(["chattr", "+a", f"{tree}/sticky"], check=True)
    assert root.call(STORAGE.remove, "k", pool) is Removal.GONE


# --- large trees: workers --------------------------------------------------------------------------------------------


def large(path: str) -> None:
    """Enough files for workers, in folders of all sizes, with all that files can be among them."""
    build(path)
    for folder in range(60):
        os.makedirs(f"{path}/many/{folder % 7}/{folder}")
        for number in range(folder):
            write(f"{path}/many/{folder % 7}/{folder}/{number}", os.urandom(folder * number), 0o600 + folder)
            if number % 9 == 0:
                os.link(
                    f"{path}/many/{folder % 7}/{folder}/{number}", f"{path}/many/{folder % 7}/linked-{folder}-{number}"
                )
        os.utime(f"{path}/many/{folder % 7}/{folder}", ns=(folder, folder))
        os.chmod(f"{path}/many/{folder % 7}/{folder}", 0o555 if folder % 2 else 0o750)


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> int:
    """As on a machine with two idle processors, whatever else runs on this one."""
    monkeypatch.setattr(crew, "idle_processors", lambda: 2)
    return 2


def children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return {int(word) for word in file.read().split()}


def test_a_large_tree_is_copied_by_workers_too(disk: Disk, person: Person, two_workers: int) -> None:
    source, pool = sample(person, disk, large)

    def life() -> Any:
        workers: set[int] = set()
        told: list[tuple[int, int]] = []
        stats: dict[bytes, tuple[int, int]] = {}

        def witness(relative: bytes, before: os.stat_result, copy: os.stat_result) -> None:
            workers.update(children())
            assert relative not in stats
            stats[relative] = copy.st_ino, copy.st_ctime_ns

        done = STORAGE.prepare("k", Source(source), pool, witness, lambda files, size: told.append((files, size)))
        tree = os.fsencode(tree_of(pool))
        wrong = [
            name
            for name, known in stats.items()
            if (found := os.lstat(tree + b"/" + name if name else tree)) and (found.st_ino, found.st_ctime_ns) != known
        ]
        return len(workers), children(), facts(source), facts(tree_of(pool)), sorted(stats), wrong, done, told

    workers, left, before, after, seen, wrong, done, told = person.call(life)
    assert workers == two_workers
    assert left == set()
    assert after == before
    assert seen == sorted(before)
    assert wrong == []
    assert done.files == len(before)
    assert told == sorted(told)
    assert told[-1][0] > done.files - 300


def test_without_an_idle_processor(ext4_disk: Disk, person: Person) -> None:
    source, pool = sample(person, ext4_disk, large)

    def life() -> Any:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the one that we keep busy
        assert crew.idle_processors() == 0
        workers: set[int] = set()
        STORAGE.prepare("k", Source(source), pool, lambda *_: workers.update(children()))
        return workers, facts(source) == facts(tree_of(pool))

    assert person.call(life) == (set(), True)


def test_stats_that_came_from_a_worker_are_whole(ext4_disk: Disk, user: Person) -> None:
    source, _ = sample(user, ext4_disk)
    found = os.stat(f"{source}/small")
    taken = Taken(Outcome.DONE, found, None, 5, True)
    again = crew._taken(crew.packed(taken))
    assert again.source == found
    names = [name for name in dir(found) if name.startswith("st_")]
    assert {name: getattr(again.source, name) for name in names} == pytest.approx({n: getattr(found, n) for n in names})
    assert again.source is not None
    assert (again.source.st_ctime_ns, again.source.st_ino) == (found.st_ctime_ns, found.st_ino)
    assert (again.outcome, again.copy, again.bytes, again.unwritable) == (Outcome.DONE, None, 5, True)


def test_unreadable_and_foreign_files_in_a_large_tree(
    ext4_disk: Disk, user: Person, root: Person, two_workers: int
) -> None:
    source, pool = sample(user, ext4_disk, large)
    root.call(lambda: [write(f"{source}/many/3/roots-{number}", b"r", 0o644) for number in range(40)])
    done = user.call(copied, source, pool)
    assert len(done.unwritable) == 40
    assert user.call(STORAGE.remove, "k", pool) is Removal.GONE
    root.call(lambda: [os.chmod(f"{source}/many/3/roots-{number}", 0o600) for number in range(40)])
    with pytest.raises(StorageError) as refused:
        user.call(copied, source, pool)
    assert "40 entries" in refused.value.message


def test_a_worker_that_dies_ends_the_copy(ext4_disk: Disk, person: Person, two_workers: int) -> None:
    source, pool = sample(person, ext4_disk, large)

    def life() -> None:
        killed: set[int] = set()

        def witness(relative: bytes, before: os.stat_result, copy: os.stat_result) -> None:
            for pid in children() - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)

        STORAGE.prepare("k", Source(source), pool, witness)

    with pytest.raises(StorageError) as refused:
        person.call(life)
    assert refused.value.code is Code.STORAGE_FAILED
    assert person.call(STORAGE.keys, pool) == ()


def test_workers_end_with_an_interrupt_and_with_their_owner(ext4_disk: Disk, person: Person, two_workers: int) -> None:
    source, pool = sample(person, ext4_disk, large)

    def interrupted() -> Any:
        def witness(relative: bytes, before: os.stat_result, copy: os.stat_result) -> None:
            if children():
                raise KeyboardInterrupt

        try:
            STORAGE.prepare("k", Source(source), pool, witness)
        except KeyboardInterrupt:
            return children(), STORAGE.keys(pool)

    assert person.call(interrupted) == (set(), ())

    def killed() -> list[int]:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:

            def witness(relative: bytes, before: os.stat_result, copy: os.stat_result) -> None:
                if children():
                    os.write(writer, " ".join(map(str, children())).encode())
                    os.kill(os.getpid(), signal.SIGKILL)

            STORAGE.prepare("k", Source(source), pool, witness)
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        with open(reader, "rb") as pipe:
            return [int(word) for word in pipe.read().split()]

    workers = person.call(killed)
    assert workers
    wait_for(lambda: not any(rigs.is_alive(pid) for pid in workers))
    assert person.call(STORAGE.keys, pool) == (KeyState("k", KeyStage.HALF_MADE),)
    assert person.call(STORAGE.remove, "k", pool) is Removal.GONE


@pytest.mark.rig("root")
def test_a_worker_reports_a_full_disk(small_disk: Disk, ext4_disk: Disk, user: Person) -> None:
    """Given to a worker alone: its error is the copy's error."""
    source, _ = sample(user, ext4_disk, lambda path: write(f"{path}/big", b"x" * (12 << 20)))
    pool = small_disk.folder(user)

    def life() -> int | None:
        worker = crew.Worker()
        folders = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, pool)]
        try:
            worker.give([crew.Part(None, *folders, ["big"])])
            worker.take(wait=True)
        except OSError as error:
            return error.errno
        finally:
            worker.end()
            os.unlink(f"{pool}/big")
        return None

    import errno

    assert user.call(life) == errno.ENOSPC


def test_sigchld_ignored_by_the_caller(ext4_disk: Disk, user: Person, two_workers: int) -> None:
    source, pool = sample(user, ext4_disk, large)

    def life() -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        return copied(source, pool).files

    assert user.call(life) > replicate._CREW_FROM


# --- estimates -------------------------------------------------------------------------------------------------------


def test_the_estimate_is_exact_for_a_small_tree(disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)

    def life() -> Any:
        return STORAGE.probe(Source(source, ("plain",)), pool), STORAGE.prepare("k", Source(source, ("plain",)), pool)

    offer, done = person.call(life)
    assert offer.files_estimate == done.files - 1  # the top
    assert done.bytes_copied <= offer.bytes_estimate + (1 << 16)


def test_no_estimate_for_a_large_tree(ext4_disk: Disk, user: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    from hostfork.storage import measure

    source, pool = sample(user, ext4_disk)
    monkeypatch.setattr(measure, "_ENTRIES", 5)
    offer = user.call(STORAGE.probe, Source(source), pool)
    assert (offer.bytes_estimate, offer.files_estimate) == (None, None)
    assert user.call(copied, source, pool).files > 5


def test_bad_keys_are_a_mistake_of_the_caller(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk)
    for key in ("", ".", "..", "a/b", "new-x", "rm-x"):
        with pytest.raises(ValueError, match="not a key"):
            user.call(STORAGE.prepare, key, Source(source), pool)
