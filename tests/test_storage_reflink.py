"""The mechanism `reflink`: blocks really shared or a typed error, what rules it out, changing sources, full disks."""

import errno
import fcntl
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hostfork.errors import Code, StorageError
from hostfork.storage import crew, reflink
from hostfork.storage.choose import choose
from hostfork.storage.clone import clone
from hostfork.storage.contract import (
    Delta,
    FullTree,
    KeyStage,
    KeyState,
    Offer,
    Prepared,
    Refusal,
    Removal,
    Source,
)
from hostfork.storage.copy import Copy
from hostfork.storage.filesystem import filesystem_of
from hostfork.storage.reflink import Reflink
from hostfork.vocabulary import BaseContent, Guarantee, Mechanism
from rigs import Disk, Person
from storage_cases import build, facts, killed_in_prepare, prepared, sample, write
from test_storage_copy import children, empty, foreign, large, wait_for

STORAGE = Reflink()


@pytest.fixture(params=["xfs", "btrfs"])
def sharing(request: pytest.FixtureRequest) -> Disk:
    """Each kind of disk that shares blocks."""
    found: Disk = request.getfixturevalue(f"{request.param}_disk")
    return found


@pytest.fixture(params=["ext4", "tmpfs"])
def plain(request: pytest.FixtureRequest) -> Disk:
    """Each kind of disk that does not."""
    found: Disk = request.getfixturevalue(f"{request.param}_disk")
    return found


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> int:
    """As on a machine with two idle processors, whatever else runs on this one."""
    monkeypatch.setattr(crew, "idle_processors", lambda: 2)
    return 2


def cloned(source: str, pool: str, **fields: Any) -> Prepared:
    return STORAGE.prepare("k", Source(source, **fields), pool)


def tree_of(pool: str) -> str:
    return os.path.join(pool, "reflink/k/tree")


def refused(person: Person, source: str, pool: str, **fields: Any) -> Refusal:
    """The answer of a probe, which left nothing in the pool."""
    answer = person.call(STORAGE.probe, Source(source, **fields), pool)
    assert isinstance(answer, Refusal), answer
    assert answer.mechanism is Mechanism.REFLINK
    assert os.listdir(pool) == []
    return answer


def offered(person: Person, source: str, pool: str, **fields: Any) -> Offer:
    answer = person.call(STORAGE.probe, Source(source, **fields), pool)
    assert isinstance(answer, Offer), answer
    assert os.listdir(pool) == []
    return answer


def extents(path: str) -> list[tuple[int, bool]]:
    """Where each extent of a file lies on the disk, and whether it is shared (fiemap.rst)."""
    answer = bytearray(struct.pack("<QQIIII", 0, 2**64 - 1, 1, 0, 100, 0) + bytes(100 * 56))  # FIEMAP_FLAG_SYNC
    with open(path, "rb") as file:
        fcntl.ioctl(file, 0xC020660B, answer)
    count = struct.unpack_from("<I", answer, 20)[0]
    found = [struct.unpack_from("<QQQQQI", answer, 32 + 56 * number) for number in range(count)]
    return [(physical, bool(flags & 0x2000)) for _, physical, _, _, _, flags in found]


def stamps(top: str) -> dict[str, tuple[int, int, int]]:
    found = {}
    for _ in range(2):  # the first look into a folder gives it an access time, where that is kept
        for folder, names, files in os.walk(top):
            for name in ("", *names, *files):
                entry = os.lstat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = entry.st_atime_ns, entry.st_mtime_ns, entry.st_ctime_ns
    return found


# --- clones that are equal -------------------------------------------------------------------------------------------


def test_a_clone_equals_the_source_and_a_copy(sharing: Disk, person: Person) -> None:
    source, pool = sample(person, sharing)
    before, times = person.call(facts, source), person.call(stamps, source)

    def life() -> Any:
        done, seen = prepared(STORAGE, Source(source), pool)
        Copy().prepare("k", Source(source), pool)
        copy = os.path.join(pool, "copy/k/tree")
        blocks = {name: os.stat(f"{tree}/holes").st_blocks for name, tree in (("r", tree_of(pool)), ("c", copy))}
        return done, seen, facts(tree_of(pool)), facts(copy), blocks

    done, seen, there, copy, blocks = person.call(life)
    assert there == before
    assert there == copy
    assert sorted(seen) == sorted(before)
    assert (done.mechanism, done.files, done.bytes_copied) == (Mechanism.REFLINK, len(before), 0)
    assert blocks["r"] <= blocks["c"]
    assert person.call(stamps, source) == times


def test_the_witness_sees_final_stats(sharing: Disk, person: Person) -> None:
    source, pool = sample(person, sharing)

    def life() -> Any:
        _, seen = prepared(STORAGE, Source(source), pool)
        wrong = []
        for relative, pair in seen.items():
            for top, known in zip((source, tree_of(pool)), pair, strict=True):
                now = os.lstat(os.path.join(os.fsencode(top), relative) if relative else top)
                if (now.st_ino, now.st_ctime_ns, now.st_size) != (known.st_ino, known.st_ctime_ns, known.st_size):
                    wrong.append((top, relative))
        return wrong

    assert person.call(life) == []


def test_blocks_are_shared_until_they_are_written(sharing: Disk, person: Person) -> None:
    source, pool = sample(person, sharing, lambda path: write(f"{path}/file", b"x" * (1 << 20)))

    def life() -> Any:
        cloned(source, pool)
        shared = extents(f"{source}/file"), extents(f"{tree_of(pool)}/file")
        write(f"{tree_of(pool)}/file", b"y" * (1 << 20))
        with open(f"{source}/file", "rb") as file:
            return shared, extents(f"{tree_of(pool)}/file"), file.read() == b"x" * (1 << 20)

    (one, other), written, untouched = person.call(life)
    assert one == other
    assert one
    assert all(is_shared for _, is_shared in one)
    assert not any(is_shared for _, is_shared in written)
    assert untouched


@pytest.mark.parametrize("kind", ["file", "empty", "symlink", "fifo"])
def test_a_single_entry(sharing: Disk, person: Person, kind: str) -> None:
    source, pool = sample(person, sharing)
    path = f"{source}/{({'file': 'two', 'empty': 'empty', 'symlink': 'dangling', 'fifo': 'fifo'})[kind]}"
    offered(person, path, pool)

    def life() -> Any:
        cloned(path, pool)
        return facts(path)[b""][:6], facts(STORAGE.mounts("k", pool).source)[b""][:6]

    before, after = person.call(life)
    assert after == before


def test_a_large_tree_is_cloned_by_workers_too(sharing: Disk, person: Person, two_workers: int) -> None:
    source, pool = sample(person, sharing, large)

    def life() -> Any:
        workers: set[int] = set()
        done = STORAGE.prepare("k", Source(source), pool, lambda *_: workers.update(children()))
        big = (
            f"{tree_of(pool)}/large",
            max(
                (os.path.join(folder, name) for folder, _, files in os.walk(f"{tree_of(pool)}/many") for name in files),
                key=os.path.getsize,
            ),
        )
        shared = [all(is_shared for _, is_shared in extents(path)) for path in big]
        return len(workers), children(), facts(source), facts(tree_of(pool)), done, shared

    workers, left, before, after, done, shared = person.call(life)
    assert workers == two_workers
    assert left == set()
    assert after == before
    assert (done.files, done.bytes_copied) == (len(before), 0)
    assert shared == [True, True]
    assert person.call(STORAGE.remove, "k", pool) is Removal.GONE


def test_omitted_paths_become_stand_ins(sharing: Disk, person: Person) -> None:
    source, pool = sample(person, sharing)

    def life() -> Any:
        cloned(source, pool, omit=("plain", "small"))
        return os.listdir(f"{tree_of(pool)}/plain"), os.stat(f"{tree_of(pool)}/small").st_size

    assert person.call(life) == ([], 0)


# --- offers ----------------------------------------------------------------------------------------------------------


def test_an_offer(sharing: Disk, person: Person) -> None:
    source, pool = sample(person, sharing)
    offer = offered(person, source, pool)
    done = person.call(cloned, source, pool)
    assert (offer.mechanism, offer.bytes_estimate) == (Mechanism.REFLINK, 0)
    assert offer.files_estimate == done.files - 1  # the top
    assert offer.guarantees.guarantee is Guarantee.INDEPENDENT
    assert offer.guarantees.base_content is BaseContent.WHILE_SOURCE_UNCHANGED


def test_the_default_on_xfs(xfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, xfs_disk)
    choice = person.call(choose, Source(source), pool)
    assert choice.offer is not None
    assert choice.offer.mechanism is Mechanism.REFLINK
    assert os.listdir(pool) == []


def test_a_source_without_a_file_to_try(sharing: Disk, person: Person) -> None:
    source, pool = sample(person, sharing, lambda path: (os.mkdir(f"{path}/folder"), write(f"{path}/empty"))[0])
    offered(person, source, pool)
    assert person.call(cloned, source, pool).files == 3


def test_the_probe_looks_at_so_many_entries(xfs_disk: Disk, user: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    source, pool = sample(user, xfs_disk)
    monkeypatch.setattr(reflink, "_LOOKED", 0)
    assert user.call(reflink._sample, Source(source), os.lstat(source)) == (None, source)
    offered(user, source, pool)


def test_the_probe_passes_over_what_it_cannot_open(xfs_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, xfs_disk, empty)
    root.call(write, f"{source}/secret", b"s", 0o600)
    assert user.call(reflink._sample, Source(source), os.lstat(source)) == (None, source)
    assert f"{source}/secret cannot be read by this user" in refused(user, source, pool).reason
    offered(root, source, root_pool(root, xfs_disk))
    offered(user, source, pool, omit=("secret",))


def root_pool(root: Person, disk: Disk) -> str:
    return disk.folder(root, "rootpool")


def test_a_source_that_cannot_be_read(xfs_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, xfs_disk)
    assert refused(user, f"{source}/nothing", pool).errno == errno.ENOENT
    root.call(lambda: (os.mkdir(f"{source}/dark", 0o700), write(f"{source}/secret", b"s", 0o600))[0])
    for name in ("dark", "secret"):
        answer = refused(user, f"{source}/{name}", pool)
        assert answer.reason == f"{source}/{name} cannot be read"
        assert answer.errno == errno.EACCES


def test_a_pool_that_cannot_be_written(xfs_disk: Disk, user: Person, root: Person) -> None:
    source, _ = sample(user, xfs_disk)
    pool = root_pool(root, xfs_disk)
    answer = refused(user, source, pool)
    assert (answer.reason, answer.errno) == (f"nothing can be made in the pool {pool}", errno.EACCES)


def test_filesystems_that_do_not_share_blocks(plain: Disk, person: Person) -> None:
    source, pool = sample(person, plain)
    times = person.call(stamps, source)
    for path in (source, f"{source}/large", f"{source}/empty-folder"):
        answer = refused(person, path, pool)
        assert answer.reason.endswith("does not share blocks")
        assert answer.reason.startswith(f"{plain.kind}" if plain.kind == "tmpfs" else f"{plain.kind} on /dev/")
        assert answer.errno == errno.EOPNOTSUPP
    choice = person.call(choose, Source(source), pool, Mechanism.REFLINK)
    assert choice.offer is None
    assert [one.mechanism for one in choice.refused] == [Mechanism.REFLINK]
    with pytest.raises(StorageError) as failure:
        person.call(cloned, source, pool)
    assert failure.value.code is Code.STORAGE_FAILED
    assert failure.value.errno == errno.EOPNOTSUPP
    assert person.call(STORAGE.keys, pool) == ()
    assert person.call(stamps, source) == times


def test_the_pool_on_another_filesystem(xfs_disk: Disk, btrfs_disk: Disk, ext4_disk: Disk, person: Person) -> None:
    pools = {disk.kind: sample(person, disk) for disk in (xfs_disk, btrfs_disk, ext4_disk)}
    for kind, (source, _) in pools.items():
        for other, (_, pool) in pools.items():
            for path in (source, f"{source}/empty-folder", f"{source}/fifo") if kind != other else ():
                answer = refused(person, path, pool)
                assert answer.reason.startswith(f"the pool {pool} is on another filesystem ({other} on /dev/")
                assert f", not {kind} on /dev/" in answer.reason
                assert answer.errno == errno.EXDEV


@pytest.mark.rig("cgroup")
@pytest.mark.parametrize("where", ["ext4", "xfs-pool"])
def test_asked_for_by_name_and_not_there(
    hostfork: Any, ext4_disk: Disk, xfs_disk: Disk, person: Person, where: str
) -> None:
    source, _ = sample(person, ext4_disk)
    _, pool = sample(person, ext4_disk if where == "ext4" else xfs_disk)
    times = person.call(stamps, source)
    done = hostfork(person, "run", "--pool", pool, "--private", f"{source}:reflink", "--", "touch", f"{source}/ran")
    assert done.returncode == 125
    assert ("does not share blocks" if where == "ext4" else "is on another filesystem") in done.stderr
    assert "code storage.unsupported" in done.stderr
    assert person.call(stamps, source) == times
    assert [
        name for name in os.listdir(pool) if not name.startswith(".state-")
    ] == []  # a link back to the state folder


@pytest.mark.rig("cgroup")
def test_a_run_on_xfs(hostfork: Any, xfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, xfs_disk)
    before = person.call(facts, source)
    line = "echo more >> small; rm large; cat small"
    done = hostfork(
        person,
        "run",
        "-v",
        "--name",
        "kept",
        "--pool",
        pool,
        "--private",
        source,
        "--",
        "sh",
        "-c",
        line,
        cwd=source,
        check=0,
    )
    assert done.stdout == "small\nmore\n"
    assert "reflink" in done.stderr
    assert person.call(facts, source) == before
    shown = hostfork(person, "diff", "kept", check=0).stdout
    assert "small" in shown
    assert "large" in shown
    hostfork(person, "discard", "--yes", "kept", check=0)
    wait_for(lambda: os.listdir(pool) and not os.listdir(f"{pool}/reflink"))  # it goes in the background


# --- Btrfs -----------------------------------------------------------------------------------------------------------


def test_across_subvolumes(btrfs_disk: Disk, person: Person) -> None:
    """The pool in one, the source in another with one more inside: `rename` would be EXDEV, a clone is not."""
    top = btrfs_disk.folder(person)

    def make() -> None:
        for name in ("source", "source/inner", "pool"):
            subprocess.run(["btrfs", "subvolume", "create", f"{top}/{name}"], check=True, capture_output=True)
        os.chmod(f"{top}/pool", 0o700)
        for name in ("file", "inner/file"):
            write(f"{top}/source/{name}", b"x" * 100_000)

    person.call(make)
    offered(person, f"{top}/source", f"{top}/pool")
    assert person.call(cloned, f"{top}/source", f"{top}/pool").files == 4
    tree = tree_of(f"{top}/pool")
    for name in ("file", "inner/file"):
        assert extents(f"{tree}/{name}") == extents(f"{top}/source/{name}")


def test_across_mounts_of_one_filesystem(sharing: Disk, root: Person) -> None:
    source, pool = sample(root, sharing)
    device = filesystem_of(sharing.path).device
    place = os.path.join(root.home, "again")
    os.mkdir(place)
    subprocess.run(["mount", device, place], check=True)
    try:
        again = place + source.removeprefix(sharing.path)
        for path in (again, f"{again}/empty-folder"):
            offered(root, path, pool)
        root.call(cloned, again, pool)
        assert root.call(facts, tree_of(pool)) == root.call(facts, source)
    finally:
        subprocess.run(["umount", place], check=True)


def flags_of(path: str) -> int:
    with open(path, "rb") as file:
        return struct.unpack("l", fcntl.ioctl(file, 0x80086601, bytes(8)))[0] & 0x00800000


@pytest.mark.rig("attr tools")
def test_files_without_checksums(btrfs_disk: Disk, person: Person) -> None:
    """Btrfs clones them only into each other: EINVAL."""

    def make(path: str) -> None:
        for name in ("checked", "bare"):
            os.mkdir(f"{path}/{name}")
            if name == "bare":
                subprocess.run(["chattr", "+C", f"{path}/{name}"], check=True)
            write(f"{path}/{name}/file", os.urandom(100_000))

    source, pool = sample(person, btrfs_disk, make)
    bare_pool = os.path.join(os.path.dirname(pool), "bare-pool")
    person.call(lambda: (os.mkdir(bare_pool, 0o700), subprocess.run(["chattr", "+C", bare_pool], check=True))[0])
    assert (flags_of(f"{source}/checked/file"), flags_of(f"{source}/bare/file")) == (0, 0x00800000)
    for place in (pool, bare_pool):
        for path in (source, f"{source}/checked", f"{source}/bare", f"{source}/bare/file"):
            offered(person, path, place)
        person.call(cloned, source, place)
        assert person.call(facts, tree_of(place)) == person.call(facts, source)
        for name in ("checked", "bare"):
            assert flags_of(f"{tree_of(place)}/{name}/file") == flags_of(f"{source}/{name}/file")
            assert extents(f"{tree_of(place)}/{name}/file") == extents(f"{source}/{name}/file")


def test_small_files_lie_in_the_metadata(btrfs_disk: Disk, person: Person) -> None:
    """Inline extents have no blocks to share; FICLONE takes their content with the same call."""
    source, pool = sample(person, btrfs_disk, lambda path: write(f"{path}/small", b"inline"))
    offered(person, source, pool)
    person.call(cloned, source, pool)
    with open(f"{tree_of(pool)}/small", "rb") as file:
        assert file.read() == b"inline"


# --- files that cannot be cloned -------------------------------------------------------------------------------------


def test_a_clone_that_the_kernel_refuses(sharing: Disk, user: Person) -> None:
    """A file onto itself, and a FIFO: EINVAL, and no flag to blame."""
    source, _ = sample(user, sharing)

    def life() -> list[Any]:
        answers: list[Any] = []
        both = os.open(f"{source}/large", os.O_RDWR)
        fifo = os.open(f"{source}/fifo", os.O_RDONLY | os.O_NONBLOCK)
        for file in (both, fifo):
            try:
                clone(file, both)
            except OSError as error:
                answers.append(error.errno)
        return answers

    before = user.call(facts, source)
    assert user.call(life) == [errno.EINVAL, errno.EINVAL]
    assert user.call(facts, source) == before


@pytest.mark.parametrize("by_worker", [False, True])
def test_a_file_of_another_filesystem_below(
    xfs_disk: Disk, root: Person, monkeypatch: pytest.MonkeyPatch, by_worker: bool
) -> None:
    """A mount that nobody left out: the mechanism fails and names the file; it never reads it."""
    source, pool = sample(root, xfs_disk, large if by_worker else build)
    monkeypatch.setattr(crew, "idle_processors", lambda: 2 * by_worker)
    place = f"{source}/empty-folder"

    def life() -> None:
        from hostfork.helper import syscalls

        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.set_propagation("/", syscalls.MS_REC | syscalls.MS_PRIVATE)
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
        for number in range(200):
            write(f"{place}/{number:03}", b"alien")
        assert isinstance(STORAGE.probe(Source(source), pool), Offer)
        cloned(source, pool)

    with pytest.raises(StorageError) as failure:
        root.call(life)
    error = failure.value
    assert error.code is Code.STORAGE_FAILED
    assert error.errno == errno.EXDEV
    assert error.path is not None
    assert error.path.startswith(f"{place}/")
    assert error.path.removeprefix(f"{place}/").isdigit()
    assert error.message == f"{error.path} cannot be cloned into {pool}"
    assert f"--private {source}:copy" in (error.hint or "")
    assert root.call(STORAGE.keys, pool) == ()


@pytest.mark.rig("strace")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [("EOPNOTSUPP", "cannot be cloned into"), ("EIO", "could not be copied into"), ("ENOSPC", "there is no room for")],
)
def test_the_kernels_answers(xfs_disk: Disk, user: Person, name: str, sentence: str) -> None:
    source, pool = sample(user, xfs_disk, lambda path: write(f"{path}/bad", b"x"))
    done = traced(user, ["-e", "trace=ioctl", "-e", f"inject=ioctl:error={name}"], source, pool)
    assert sentence in done.stdout
    assert user.call(STORAGE.keys, pool) == ()


@pytest.mark.rig("strace")
def test_an_odd_answer_to_the_probe(xfs_disk: Disk, user: Person) -> None:
    """As for a swap file, the first file that is found."""
    source, pool = sample(user, xfs_disk, lambda path: write(f"{path}/bad", b"x"))
    program = (
        "import sys\nfrom hostfork.storage.contract import Source\nfrom hostfork.storage.reflink import Reflink\n"
        "print(Reflink().probe(Source(sys.argv[1]), sys.argv[2]))\n"
    )
    command = ["strace", "-o", "/dev/null", "-e", "trace=ioctl", "-e", "inject=ioctl:error=ETXTBSY"]
    done = user.run([*command, sys.executable, "-c", program, source, pool], check=True)
    assert f"{source}/bad cannot be cloned into the pool {pool}" in done.stdout
    assert f"errno={errno.ETXTBSY}" in done.stdout


_PROGRAM = """
import sys
from hostfork.errors import HostforkError
from hostfork.storage.contract import Source
from hostfork.storage.reflink import Reflink
try:
    print(Reflink().prepare("k", Source(sys.argv[1]), sys.argv[2]).files)
except HostforkError as error:
    print(error.code.text, error.message, *error.details, sep="\\n")
"""


def traced(person: Person, options: list[str], source: str, pool: str) -> Any:
    command = ["strace", "-o", "/dev/null", *options]
    return person.run([*command, sys.executable, "-c", _PROGRAM, source, pool], check=True)


# --- sources that change ---------------------------------------------------------------------------------------------


def slowed(person: Person, source: str, pool: str, name: str, delay: str) -> "subprocess.Popen[str]":
    """A reflink whose clone of one file is held up, so that a writer surely comes between."""
    options = [
        "-P",
        f"{pool}/reflink/new-k/tree/{name}",
        "-e",
        "trace=ioctl",
        "-e",
        f"inject=ioctl:delay_enter={delay}",
    ]
    command = ["strace", "-o", "/dev/null", *options, sys.executable, "-c", _PROGRAM, source, pool]
    return person.popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.rig("strace")
def test_a_file_that_keeps_changing_is_unstable(sharing: Disk, user: Person) -> None:
    def make(path: str) -> None:
        write(f"{path}/busy", b"x" * 100)
        write(f"{path}/quiet", b"y")

    source, pool = sample(user, sharing, make)
    loop = "i=0; while :; do echo $i >> busy; i=$((i+1)); sleep 0.01; done"
    with user.popen(["sh", "-c", loop], cwd=source) as writer:
        with slowed(user, source, pool, "busy", "400ms") as run:
            out, _ = run.communicate(timeout=60)
        writer.kill()
    assert out.splitlines()[0] == "storage.unstable"
    assert out.splitlines()[2:] == [f"{source}/busy"]
    assert user.call(STORAGE.keys, pool) == ()


@pytest.mark.rig("strace")
def test_a_file_that_changed_once_is_cloned_again(xfs_disk: Disk, user: Person) -> None:
    source, pool = sample(user, xfs_disk, lambda path: write(f"{path}/file", b"old"))
    with slowed(user, source, pool, "file", "2s") as run:
        wait_for(lambda: os.path.exists(f"{pool}/reflink/new-k/tree/file"))
        user.call(write, f"{source}/file", b"and new")
        out, _ = run.communicate(timeout=60)
    assert out.splitlines() == ["2"]
    with open(f"{tree_of(pool)}/file", "rb") as file:
        assert file.read() == b"and new"


# --- rights ----------------------------------------------------------------------------------------------------------


def test_what_a_user_could_not_write_stays_unwritable(sharing: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, sharing, empty)
    root.call(foreign(source))
    done = user.call(cloned, source, pool)
    copied = user.call(Copy().prepare, "k", Source(source), pool)
    assert done.unwritable == copied.unwritable != ()
    assert user.call(facts, tree_of(pool)) == user.call(facts, f"{pool}/copy/k/tree")


def test_what_a_user_cannot_read_is_refused_by_name(xfs_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, xfs_disk)
    root.call(lambda: (write(f"{source}/secret", b"s", 0o600), os.mkdir(f"{source}/dark", 0o700))[0])
    with pytest.raises(StorageError) as failure:
        user.call(cloned, source, pool)
    assert failure.value.code is Code.STORAGE_SOURCE
    assert failure.value.details == (f"{source}/dark", f"{source}/secret")
    assert user.call(STORAGE.keys, pool) == ()


# --- the life of a key -----------------------------------------------------------------------------------------------


def test_content_reduce_and_usage(sharing: Disk, person: Person) -> None:
    def make(path: str) -> None:
        for name in "abc":
            write(f"{path}/{name}", b"x" * 50_000)

    source, pool = sample(person, sharing, make)

    def life() -> Any:
        cloned(source, pool)
        content, usage = STORAGE.content("k", pool), STORAGE.usage("k", pool)
        write(f"{tree_of(pool)}/b", b"changed")
        STORAGE.reduce("k", pool, [b"b"])
        return content, usage, STORAGE.content("k", pool), os.listdir(tree_of(pool)), STORAGE.usage("k", pool)

    content, usage, reduced, names, after = person.call(life)
    assert content == FullTree(tree_of(pool))
    assert reduced == Delta(tree_of(pool))
    assert names == ["b"]
    assert usage.upper_bound
    assert usage.bytes > 150_000
    assert usage.inodes == 5
    assert after.upper_bound
    with pytest.raises(StorageError):
        person.call(STORAGE.mounts, "k", pool)


@pytest.mark.rig("strace")
@pytest.mark.parametrize(
    ("call", "when"),
    [
        ("ioctl", 1),
        ("utimensat", 1),
        ("utimensat", 9),
        ("linkat", 1),
        ("mkdir", 2),
        ("mkdir", 5),
        ("rename", 1),
        ("rename", 2),
        ("unlink", 3),
        ("rmdir", 4),
    ],
)
def test_sigkill_leaves_only_what_keys_reports(sharing: Disk, person: Person, call: str, when: int) -> None:
    source, pool = sample(person, sharing)
    program = _PROGRAM + "Reflink().remove('k', sys.argv[2])\n"
    calls = {"mkdir": "mkdir,mkdirat", "rename": "rename,renameat,renameat2", "unlink": "unlink,unlinkat"}
    calls |= {"rmdir": "rmdir,unlinkat"}
    traced_calls = calls.get(call, call)
    options = ["-e", f"trace={traced_calls}", "-e", f"inject={traced_calls}:signal=SIGKILL:when={when}"]
    if call == "ioctl":  # Python makes many as it starts
        options += ["-P", f"{pool}/reflink/new-k/tree/large"]
    done = person.run(["strace", "-f", "-o", "/dev/null", *options, sys.executable, "-c", program, source, pool])
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done
    kind = os.path.join(pool, "reflink")
    there = os.listdir(kind) if os.path.exists(kind) else []
    states = person.call(STORAGE.keys, pool)
    assert len(states) == len(there) <= 1
    if states and states[0].stage is KeyStage.LIVE:
        assert person.call(facts, tree_of(pool)) == person.call(facts, source)
    assert person.call(STORAGE.remove, "k", pool) is Removal.GONE
    assert person.call(STORAGE.keys, pool) == ()


@pytest.mark.parametrize("at", [1, 20])
def test_sigkill_during_the_walk(sharing: Disk, person: Person, at: int) -> None:
    source, pool = sample(person, sharing)

    assert person.call(killed_in_prepare, STORAGE, source, pool, at) == -signal.SIGKILL
    assert person.call(STORAGE.keys, pool) == (KeyState("k", KeyStage.HALF_MADE),)
    assert person.call(STORAGE.remove, "k", pool) is Removal.GONE
    assert person.call(STORAGE.keys, pool) == ()


def test_a_full_disk(make_disk: Callable[..., Disk], user: Person) -> None:
    """Blocks are shared, inodes and the disk's own trees are not: with nothing left they do not fit."""
    disk = make_disk("xfs", 320)

    def make(path: str) -> None:
        for number in range(8000):
            write(f"{path}/{number}", b"x")

    source, pool = sample(user, disk, make)

    def fill() -> None:
        subprocess.run(["sync", "-f", source], check=True)  # files that are only in memory hold more than they need
        with open(os.path.join(os.path.dirname(source), "filler"), "wb") as file:
            room = os.statvfs(pool)
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - (2 << 20))

    user.call(fill)
    with pytest.raises(StorageError) as failure:
        user.call(cloned, source, pool)
    assert failure.value.code is Code.STORAGE_NO_SPACE
    assert failure.value.errno == errno.ENOSPC
    assert user.call(STORAGE.keys, pool) == ()
    assert os.listdir(f"{pool}/reflink") == []
    assert stat.S_ISREG(os.lstat(f"{source}/0").st_mode)
