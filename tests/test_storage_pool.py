"""The pool, scratch in it, the choice of a mechanism, and which filesystem a path lies on."""

import errno
import os
import stat
import subprocess
import sys
from typing import Any

import pytest

from hostfork.errors import Code, StorageError
from hostfork.storage import scratch
from hostfork.storage.choose import all_keys, choose, storage_of
from hostfork.storage.contract import KeyStage, KeyState, Removal, Source
from hostfork.storage.filesystem import filesystem_of
from hostfork.storage.pool import make_own, open_pool
from hostfork.vocabulary import Guarantee, Mechanism, Prefer, StorageKind
from rigs import Disk, Person
from storage_cases import enter_namespaces, sample, write


def refused(person: Person, path: str, asked: bool = False) -> StorageError:
    with pytest.raises(StorageError) as error:
        person.call(open_pool, path, asked)
    assert error.value.code is Code.STORAGE_POOL
    assert error.value.hint is not None
    return error.value


def test_a_pool_is_made_for_its_owner_alone(ext4_disk: Disk, person: Person) -> None:
    path = f"{ext4_disk.folder(person)}/a/po:ol,\n\\"
    for _ in range(2):
        assert person.call(open_pool, path) == path
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert os.stat(path).st_uid == person.uid


def test_a_pool_by_a_symlink_is_resolved(ext4_disk: Disk, user: Person) -> None:
    top = ext4_disk.folder(user)
    user.call(os.mkdir, f"{top}/real", 0o700)
    user.call(os.symlink, "real", f"{top}/link")
    assert user.call(open_pool, f"{top}/link") == f"{top}/real"


def test_pools_that_are_refused(ext4_disk: Disk, user: Person, root: Person) -> None:
    top = ext4_disk.folder(user)
    user.call(os.mkdir, f"{top}/open", 0o755)
    assert "open to others" in refused(user, f"{top}/open").message
    root.call(os.mkdir, f"{top}/roots", 0o700)
    assert "belongs to user 0" in refused(user, f"{top}/roots").message
    user.call(write, f"{top}/file")
    assert "cannot be made" in refused(user, f"{top}/file").message
    user.call(os.mkdir, f"{top}/shut", 0o500)
    assert "cannot be written" in refused(user, f"{top}/shut").message
    assert "cannot be made" in refused(user, f"{top}/shut/inner").message


def test_memory_only_if_asked_for(tmpfs_disk: Disk, person: Person) -> None:
    path = f"{tmpfs_disk.folder(person)}/pool"
    assert "lies in memory" in refused(person, path).message
    assert person.call(open_pool, path, True) == path


def test_a_read_only_pool(ext4_disk: Disk, root: Person) -> None:
    path = ext4_disk.folder(root)

    def inside() -> None:
        os.chmod(path, 0o700)
        enter_namespaces()
        subprocess.run(["mount", "--bind", path, path], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
        open_pool(path)

    with pytest.raises(StorageError, match="read-only"):
        root.call(inside)


# --- scratch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mode"), [("sticky", 0o1777), ("closed", 0o555), ("set-gid", 0o2775), ("small", 0o640)]
)
def test_scratch_is_empty_and_looks_like_the_original(disk: Disk, person: Person, name: str, mode: int) -> None:
    source, pool = sample(person, disk)

    def life() -> Any:
        tree = scratch.prepare("s", f"{source}/{name}", pool)
        assert tree == scratch.mounts("s", pool)
        found = os.stat(tree.source)
        folder = stat.S_ISDIR(found.st_mode)
        content = os.listdir(tree.source) if folder else found.st_size
        write(f"{tree.source}/new" if folder else tree.source, b"new")
        return content, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid

    content, got, uid, gid = person.call(life)
    assert content in ([], 0)
    assert got == (mode if person.uid == 0 else mode & 0o1777 | (0o600 if name == "small" else 0o700))
    assert (uid, gid) == (person.uid, person.gid)
    assert person.call(scratch.keys, pool) == (KeyState("s", KeyStage.LIVE),)
    assert person.call(scratch.remove, "s", pool) is Removal.GONE
    assert person.call(scratch.remove, "s", pool) is Removal.GONE
    assert person.call(scratch.keys, pool) == ()


def test_scratch_of_a_foreign_folder_is_the_users(ext4_disk: Disk, user: Person, root: Person) -> None:
    _, pool = sample(user, ext4_disk)
    foreign = ext4_disk.folder(root)
    tree = user.call(scratch.prepare, "s", foreign, pool).source
    assert os.stat(tree).st_uid == user.uid
    assert stat.S_IMODE(os.stat(tree).st_mode) == 0o755
    roots = ext4_disk.folder(root, "pool")
    owned = ext4_disk.folder(user)
    assert os.stat(root.call(scratch.prepare, "s", owned, roots).source).st_uid == user.uid


def test_scratch_errors(ext4_disk: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, ext4_disk)
    for path, code in ((f"{source}/nothing", Code.STORAGE_SOURCE), (f"{source}/plain", Code.STORAGE_EXISTS)):
        if code is Code.STORAGE_EXISTS:
            user.call(scratch.prepare, "s", path, pool)
        with pytest.raises(StorageError) as error:
            user.call(scratch.prepare, "s", path, pool)
        assert error.value.code is code
    shut = ext4_disk.folder(root, "shut")
    with pytest.raises(StorageError) as error:
        user.call(scratch.prepare, "s", source, shut)
    assert error.value.code is Code.STORAGE_FAILED
    with pytest.raises(StorageError) as error:
        user.call(scratch.mounts, "other", pool)
    assert error.value.code is Code.STORAGE_FAILED


@pytest.mark.rig("strace")
@pytest.mark.parametrize(("number", "code"), [("ENOSPC", "storage.no-space"), ("EIO", "storage.failed")])
def test_scratch_that_cannot_be_made_leaves_nothing(ext4_disk: Disk, user: Person, number: str, code: str) -> None:
    source, pool = sample(user, ext4_disk)
    program = (
        "import sys\nfrom hostfork.errors import HostforkError\nfrom hostfork.storage import scratch\n"
        "try:\n scratch.prepare('s', sys.argv[1], sys.argv[2])\n"
        "except HostforkError as error:\n print(error.code.text)\n"
    )
    inject = ["-e", "trace=mkdir", "-e", f"inject=mkdir:error={number}:when=3"]
    done = user.run(["strace", "-o", "/dev/null", *inject, sys.executable, "-c", program, source, pool])
    assert done.stdout.strip() == code, done
    assert user.call(scratch.keys, pool) == ()


# --- the choice ------------------------------------------------------------------------------------------------------


BEST = {
    ("btrfs", "root"): Mechanism.BTRFS,
    ("btrfs", "user"): Mechanism.BTRFS,  # the subvolume is theirs
    ("xfs", "root"): Mechanism.REFLINK,
    ("xfs", "user"): Mechanism.REFLINK,
}
"""What serves best on these disks; on the others it is a copy."""


def best(disk: Disk, person: Person) -> Mechanism:
    return BEST.get((disk.kind, "root" if person.uid == 0 else "user"), Mechanism.COPY)


def test_the_default_is_the_best_that_is_independent(disk: Disk, person: Person) -> None:
    """What was tried before it is named with its reason."""
    source, pool = sample(person, disk)
    for asked in ((None, None), (None, Guarantee.INDEPENDENT)):
        choice = person.call(choose, Source(source), pool, *asked)
        assert choice.offer is not None
        assert choice.offer.mechanism is best(disk, person)
        assert choice.offer.guarantees.guarantee.keeps(Guarantee.INDEPENDENT)
        order = [Mechanism.BTRFS, Mechanism.REFLINK, Mechanism.COPY]
        tried = order[: order.index(choice.offer.mechanism)]
        overlay = [Mechanism.OVERLAY] if choice.offer.mechanism is Mechanism.COPY else []
        assert [refusal.mechanism for refusal in choice.refused] == tried + overlay


def test_memory_prefers_an_overlay_over_a_frozen_tree(disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)
    choice = person.call(lambda: choose(Source(source), pool, prefer=Prefer.MEMORY))
    assert choice.offer is not None
    if best(disk, person) is Mechanism.BTRFS:
        assert choice.offer.mechanism is Mechanism.OVERLAY
        assert choice.offer.guarantees.guarantee is Guarantee.SNAPSHOT
        assert choice.refused == ()
    else:
        stamped = disk.kind != "tmpfs"
        assert choice.offer.kind is (StorageKind.RETAINED if stamped else StorageKind.COPY)
        assert choice.refused[0].mechanism is Mechanism.OVERLAY


def test_a_copy_is_there_where_it_is_asked_for(disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)
    choice = person.call(choose, Source(source), pool, Mechanism.COPY)
    assert choice.offer is not None
    assert choice.offer.mechanism is Mechanism.COPY
    assert choice.refused == ()


def test_live_is_an_overlay(disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)
    choice = person.call(choose, Source(source), pool, None, Guarantee.LIVE)
    assert choice.offer is not None
    assert choice.offer.mechanism is Mechanism.OVERLAY
    assert choice.refused == ()


@pytest.mark.parametrize(
    ("mechanism", "guarantee", "tried"),
    [
        (Mechanism.BTRFS, None, [Mechanism.BTRFS]),
        (Mechanism.REFLINK, None, [Mechanism.REFLINK]),
        (None, Guarantee.SNAPSHOT, [Mechanism.BTRFS, Mechanism.OVERLAY]),
    ],
)
def test_what_there_is_not_is_refused_never_swapped(
    ext4_disk: Disk, person: Person, mechanism: Mechanism | None, guarantee: Guarantee | None, tried: list[Mechanism]
) -> None:
    source, pool = sample(person, ext4_disk)
    for prefer in Prefer:
        choice = person.call(lambda prefer=prefer: choose(Source(source), pool, mechanism, guarantee, prefer=prefer))
        assert choice.offer is None
        assert {refusal.mechanism for refusal in choice.refused} == set(tried)
        assert all(refusal.reason for refusal in choice.refused)


def test_nothing_that_needs_a_mount_is_taken_for_another_place(btrfs_disk: Disk, root: Person) -> None:
    source, pool = sample(root, btrfs_disk)
    choice = root.call(lambda: choose(Source(source), pool, prefer=Prefer.MEMORY, elsewhere=True))
    assert choice.offer is not None
    assert choice.offer.mechanism is Mechanism.BTRFS
    assert "needs a mount" in choice.refused[0].reason


def test_a_source_that_is_not_there_is_refused_with_every_reason(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk)
    choice = user.call(choose, Source(f"{source}/nothing"), pool)
    assert choice.offer is None
    assert [refusal.mechanism for refusal in choice.refused] == [
        Mechanism.BTRFS,
        Mechanism.REFLINK,
        Mechanism.COPY,
    ]
    assert [refusal.errno for refusal in choice.refused] == [errno.ENOENT] * 3


def test_all_keys(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk)

    def life() -> Any:
        for kind in (StorageKind.COPY, StorageKind.LIVE):
            storage_of(kind).prepare("k", Source(source), pool)
        scratch.prepare("s", source, pool)
        os.rename(f"{pool}/copy/k", f"{pool}/copy/rm-k")
        return {(getattr(owner, "mechanism", None), state) for owner, state in all_keys(pool)}

    assert user.call(life) == {
        (Mechanism.COPY, KeyState("k", KeyStage.HALF_REMOVED)),
        (Mechanism.OVERLAY, KeyState("k", KeyStage.LIVE)),
        (None, KeyState("s", KeyStage.LIVE)),
    }


# --- filesystems -----------------------------------------------------------------------------------------------------


def test_the_filesystem_of_a_path(disk: Disk, root: Person) -> None:
    folder = disk.folder(root)
    found = filesystem_of(folder)
    assert (found.kind, found.point) == (disk.kind, disk.path)
    assert str(found) == disk.kind if disk.kind == "tmpfs" else str(found).startswith(f"{disk.kind} on /dev/loop")


def test_a_mount_point_with_an_odd_name(ext4_disk: Disk, root: Person) -> None:
    place = os.path.join(ext4_disk.folder(root), os.fsdecode(b"a b\tc\nd\\e\xff"))

    def inside() -> Any:
        enter_namespaces()
        os.mkdir(place)
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
        return filesystem_of(place)

    found = root.call(inside)
    assert (found.kind, found.point) == ("tmpfs", place)


def test_a_detached_mount_is_unknown(ext4_disk: Disk, root: Person) -> None:
    """A descriptor of a mount that is in no namespace has no line in mountinfo."""
    folder = ext4_disk.folder(root)

    def inside() -> Any:
        from hostfork.helper import syscalls

        detached = syscalls.open_tree(folder)
        return filesystem_of(f"/proc/self/fd/{detached}")

    assert root.call(inside).kind == "unknown"


# --- a pool that is a subvolume ---------------------------------------------------------------------------------------


def test_a_pool_on_btrfs_is_a_subvolume(disk: Disk, person: Person) -> None:
    pool = os.path.join(disk.folder(person), "above", "pool")
    assert person.call(open_pool, pool, True) == pool
    found = os.stat(pool)
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, person.uid)
    assert (found.st_ino == 256) is (disk.kind == "btrfs")
    assert person.call(open_pool, pool, True) == pool
    person.call(os.rmdir, pool)


def test_a_pool_that_somebody_makes_meanwhile(btrfs_disk: Disk, person: Person) -> None:
    folder = btrfs_disk.folder(person)
    person.call(os.mkdir, f"{folder}/there", 0o700)
    person.call(make_own, f"{folder}/there")
    person.call(write, f"{folder}/file")
    for path in (f"{folder}/file", f"{folder}/file/pool"):
        with pytest.raises(StorageError) as error:
            person.call(open_pool, path)
        assert error.value.code is Code.STORAGE_POOL
