"""The mechanism `btrfs`: nested subvolumes, other mounts, owners, a user's removal, what changed, death at any call."""

import contextlib
import fcntl
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rigs
from hostfork.errors import Code, StorageError
from hostfork.storage import ioctls, snapshot, subvolume
from hostfork.storage.btrfs import Btrfs
from hostfork.storage.choose import choose
from hostfork.storage.contract import FullTree, KeyStage, KeyState, Offer, Refusal, Removal, Source
from hostfork.storage.filesystem import filesystem_of
from hostfork.storage.pool import open_pool, sweep_probes
from hostfork.storage.tree import remove_tree
from hostfork.vocabulary import Guarantee, Mechanism
from rigs import Bench, Disk, Person
from storage_cases import enter_namespaces, facts, make_subvolume, sample, write

STORAGE = Btrfs()
REMOVABLE = "user_subvol_rm_allowed"


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def refused(person: Person, source: str, pool: str, **options: Any) -> Refusal:
    answer = person.call(STORAGE.probe, Source(source, **options), pool)
    assert isinstance(answer, Refusal), answer
    assert os.listdir(pool) == []
    return answer


def offered(person: Person, source: str, pool: str, **options: Any) -> Offer:
    answer = person.call(STORAGE.probe, Source(source, **options), pool)
    assert isinstance(answer, Offer), answer
    assert os.listdir(pool) == []
    return answer


def remount(disk: Disk, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk.path], check=True)


@pytest.fixture
def own_btrfs(make_disk: Callable[..., Disk]) -> Disk:
    """A Btrfs for this test alone."""
    return make_disk("btrfs")


@pytest.fixture
def removable_btrfs(own_btrfs: Disk) -> Disk:
    """One whose users may delete subvolumes."""
    remount(own_btrfs, REMOVABLE)
    return own_btrfs


def subvolumes(disk: Disk) -> set[int]:
    """The numbers of all subvolumes of the disk that are on its list."""

    def below(root: str) -> Iterator[int]:
        with opened(root) as descriptor:
            for reference in ioctls.nested(descriptor):
                yield reference.number
                yield from below(os.path.join(root, ioctls.place_of(reference, descriptor)))

    return set(below(disk.path))


# --- the ioctls -------------------------------------------------------------------------------------------------------


def test_more_nested_subvolumes_than_one_answer_holds(btrfs_disk: Disk, root: Person) -> None:
    top = btrfs_disk.folder(root)
    make_subvolume(f"{top}/outer")
    os.mkdir(f"{top}/outer/in")
    for number in range(300):
        make_subvolume(f"{top}/outer/in/{number}")
    with opened(f"{top}/outer") as outer:
        names = {ioctls.place_of(reference, outer) for reference in ioctls.nested(outer)}
        assert names == {f"in/{number}" for number in range(300)}
        assert len(subvolume.nested_below(outer, "in")) == 300
        assert subvolume.nested_below(outer, "in/7") == ()


def test_what_is_not_btrfs_answers_so(ext4_disk: Disk, root: Person) -> None:
    folder = ext4_disk.folder(root)
    with opened(folder) as descriptor, pytest.raises(OSError, match="Inappropriate ioctl"):
        ioctls.subvolume(descriptor)


def test_sync_brings_the_space_back(own_btrfs: Disk, root: Person) -> None:
    """Fact 18: the deletion is committed, then the cleaner works, then that is committed."""
    source, pool = sample(root, own_btrfs, lambda path: write(f"{path}/large", os.urandom(40 << 20)))
    STORAGE.prepare("k", Source(source), pool)
    write(f"{STORAGE.mounts('k', pool).source}/large", os.urandom(40 << 20))
    with opened(own_btrfs.path) as disk:
        ioctls.sync(disk)
        before = os.statvfs(disk).f_bfree * 4096
        assert STORAGE.remove("k", pool) is Removal.RECLAIMING
        deadline = time.monotonic() + 60
        while os.statvfs(disk).f_bfree * 4096 < before + (35 << 20):
            assert time.monotonic() < deadline, "the space did not come back"
            ioctls.sync(disk)
            time.sleep(0.002)


# --- where it can be had ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs"])
def test_another_filesystem_is_refused(request: pytest.FixtureRequest, person: Person, kind: str) -> None:
    source, pool = sample(person, request.getfixturevalue(f"{kind}_disk"))
    assert f"is on {kind}" in refused(person, source, pool).reason


def test_a_pool_elsewhere_is_refused(btrfs_disk: Disk, ext4_disk: Disk, own_btrfs: Disk, person: Person) -> None:
    source, _ = sample(person, btrfs_disk)
    for other in (ext4_disk, own_btrfs):
        _, pool = sample(person, other)
        answer = refused(person, source, pool)
        assert f"the pool {pool} is on {other.kind}" in answer.reason
        assert "--pool" in answer.reason
        with pytest.raises(StorageError) as error:
            person.call(STORAGE.prepare, "k", Source(source), pool)
        assert error.value.code is Code.STORAGE_FAILED
        assert person.call(STORAGE.keys, pool) == ()


def test_a_subvolume_of_roots_is_refused_to_a_user(btrfs_disk: Disk, user: Person) -> None:
    """The usual layout with a root-owned @home."""
    source = btrfs_disk.folder(user)
    pool = btrfs_disk.folder(user, "pool")
    os.chmod(pool, 0o700)
    answer = refused(user, source, pool)
    assert "belongs to user 0: only its owner and root" in answer.reason
    assert answer.errno == 1
    with pytest.raises(StorageError) as error:
        user.call(STORAGE.prepare, "k", Source(source), pool)
    assert "belongs to another user" in error.value.message
    assert user.call(STORAGE.keys, pool) == ()


def test_a_pool_that_takes_no_subvolume_is_refused(btrfs_disk: Disk, user: Person) -> None:
    source, pool = sample(user, btrfs_disk)
    user.call(os.chmod, pool, 0o500)
    answer = refused(user, source, pool)
    assert "no subvolume can be made in the pool" in answer.reason
    assert answer.errno == 13


def test_a_path_that_would_be_too_long_in_the_pool_is_refused(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, lambda _: None)
    long = "/".join(["d" * 248] * 16)
    person.call(os.makedirs, f"{source}/{long}")
    assert "too long" in refused(person, f"{source}/{long}", pool).reason


def test_a_swap_file_in_use_is_refused(own_btrfs: Disk, root: Person) -> None:
    source, pool = sample(root, own_btrfs, lambda _: None)
    swap = f"{source}/swap file"
    subprocess.run(["btrfs", "filesystem", "mkswapfile", "--size", "16m", swap], check=True, capture_output=True)
    subprocess.run(["swapon", swap], check=True)
    try:
        answer = refused(root, source, pool)
        assert swap in answer.reason
        with pytest.raises(StorageError) as error:
            STORAGE.prepare("k", Source(source), pool)
        assert "swap file" in error.value.message
    finally:
        subprocess.run(["swapoff", swap], check=True)
    assert STORAGE.keys(pool) == ()


@pytest.mark.slow
def test_a_full_disk_leaves_nothing(make_disk: Callable[..., Disk], root: Person) -> None:
    source, pool = sample(root, make_disk("btrfs", 128), lambda path: os.mkdir(f"{path}/in"))
    with contextlib.suppress(OSError), open(f"{source}/filler", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
    # Metadata too: small files lie in it.
    with contextlib.suppress(OSError):
        for number in range(10**6):
            write(f"{source}/in/{number}", b"x" * 2000)

    def fork_on() -> None:
        for number in range(3000):
            STORAGE.prepare(f"k{number}", Source(source), pool)

    with pytest.raises(StorageError) as error:
        fork_on()
    assert error.value.code is Code.STORAGE_NO_SPACE
    # On a disk that is full to the last block not even a removal goes: it is said, and listed.
    half = [state for state in STORAGE.keys(pool) if state.stage is not KeyStage.LIVE]
    assert len(half) <= 1
    assert not half or "could not be removed" in " ".join(error.value.details)
    os.truncate(f"{source}/filler", 0)
    os.sync()
    for key in {state.key for state in STORAGE.keys(pool)}:
        STORAGE.remove(key, pool)
    assert STORAGE.keys(pool) == ()


def test_the_source_of_another_mount_of_the_same_disk(own_btrfs: Disk, bench: Bench, root: Person) -> None:
    """A bind of a part of a subvolume: its root is found through another mount; where there is none it is refused."""
    source, pool = sample(root, own_btrfs)
    place = f"{bench.folder}/bound"
    os.makedirs(place, exist_ok=True)

    def inside() -> Any:
        enter_namespaces()
        subprocess.run(["mount", "--bind", source, place], check=True)
        found = snapshot.find(Source(f"{place}/plain"), filesystem_of(f"{place}/plain"))
        subprocess.run(["mount", "--bind", pool, "/mnt"], check=True)
        subprocess.run(["umount", "-l", own_btrfs.path], check=True)
        return found, STORAGE.probe(Source(f"{place}/plain"), "/mnt")

    found, answer = root.call(inside)
    assert found.place.root == os.path.dirname(source)
    assert found.place.inside == "source/plain"
    assert isinstance(answer, Refusal)
    assert "reached through no mount" in answer.reason


def test_a_mount_of_the_subvolume_inside_itself_is_not_mistaken(own_btrfs: Disk, root: Person) -> None:
    """`top/x` is a bind of `top/a/b`: its place is `a/b`, not `x`."""
    source, pool = sample(root, own_btrfs)

    def inside() -> Any:
        os.makedirs(f"{source}/a/b")
        write(f"{source}/a/b/mark", b"m")
        os.mkdir(f"{source}/x")
        enter_namespaces()
        subprocess.run(["mount", "--bind", f"{source}/a/b", f"{source}/x"], check=True)
        STORAGE.prepare("k", Source(f"{source}/x"), pool)
        tree = STORAGE.mounts("k", pool).source
        return tree, os.listdir(tree)

    tree, names = root.call(inside)
    assert tree.endswith("/tree/source/a/b")
    assert names == ["mark"]


def test_a_read_only_subvolume_gives_a_writable_fork(btrfs_disk: Disk, person: Person) -> None:
    source, _ = sample(person, btrfs_disk)

    def freeze(wanted: bool) -> None:
        with opened(os.path.dirname(source)) as descriptor:
            ioctls.set_read_only(descriptor, wanted)

    # The pool lies in it: another one.
    def elsewhere() -> Any:
        make_subvolume(f"{os.path.dirname(source)}/other")
        other = f"{os.path.dirname(source)}/other"
        freeze(True)
        try:
            offer = STORAGE.probe(Source(source), other)
            STORAGE.prepare("k", Source(source), other)
            write(f"{STORAGE.mounts('k', other).source}/small", b"changed")
            return offer, STORAGE.remove("k", other)
        finally:
            freeze(False)

    offer, _ = person.call(elsewhere)
    assert isinstance(offer, Offer)


def test_a_single_file(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)

    def life() -> Any:
        offer = STORAGE.probe(Source(f"{source}/small"), pool)
        STORAGE.prepare("k", Source(f"{source}/small"), pool)
        tree = STORAGE.mounts("k", pool).source
        before, quiet = STORAGE.usage("k", pool), STORAGE.touched("k", pool)
        write(tree, b"other" * 1000)
        content = STORAGE.content("k", pool)
        with open(content.base or "", "rb") as base:
            return offer, before, quiet, STORAGE.usage("k", pool), base.read(), STORAGE.touched("k", pool)

    offer, before, quiet, after, base, touched = person.call(life)
    assert offer.guarantees.guarantee is Guarantee.SNAPSHOT
    assert (before.bytes, base) == (0, b"small\n")
    assert after.bytes > 0
    assert (quiet, touched) == (((), (b"",)) if person.uid == 0 else (None, None))


def test_the_whole_subvolume(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)

    def life() -> Any:
        make_subvolume(f"{source}/../whole")
        whole = os.path.realpath(f"{source}/../whole")
        write(f"{whole}/file", b"x")
        STORAGE.prepare("k", Source(whole), pool)
        content = STORAGE.content("k", pool)
        write(f"{content.tree}/new")
        return content, os.listdir(content.tree), os.listdir(content.base or ""), STORAGE.touched("k", pool)

    content, names, base, touched = person.call(life)
    assert content == FullTree(f"{pool}/btrfs/k/tree", f"{pool}/btrfs/k/base")
    assert (sorted(names), base) == (["file", "new"], ["file"])
    assert touched == ((b"", b"new") if person.uid == 0 else None)


def test_the_base_is_of_the_same_instant_and_read_only(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)

    def life() -> Any:
        STORAGE.prepare("k", Source(source), pool)
        content = STORAGE.content("k", pool)
        assert content.base is not None
        write(f"{source}/small", b"the host's")
        os.unlink(f"{content.tree}/small")
        with pytest.raises(OSError, match="Read-only"):
            write(f"{content.base}/new")
        numbers = [{name: os.lstat(f"{top}/{name}").st_ino for name in ("plain", "two")} for top in
                   (source, content.tree, content.base)]  # fmt: skip
        return facts(content.base), numbers

    before = person.call(facts, source)
    base, numbers = person.call(life)
    assert base == before
    assert numbers[0] == numbers[1] == numbers[2]


# --- nested subvolumes ------------------------------------------------------------------------------------------------


def nest(source: str) -> None:
    """`plain/in` with a file, `plain/in/deep/er` in it, `beside` next to it, one outside."""
    for path in ("plain/in", "plain/in/deep/er", "beside", "../elsewhere"):
        os.makedirs(os.path.dirname(f"{source}/{path}"), exist_ok=True)
        make_subvolume(f"{source}/{path}")
        write(f"{source}/{path}/file", path.encode())
    os.utime(f"{source}/plain", ns=(5, 7))


def test_nested_subvolumes_are_in_the_fork_and_its_base(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    person.call(nest, source)
    before = person.call(facts, source)
    offer = offered(person, source, pool)
    assert offer.guarantees.guarantee is Guarantee.INDEPENDENT
    assert "not one instant" in offer.reason
    assert f"{source}/plain/in" in offer.reason
    assert offered(person, f"{source}/sticky", pool).guarantees.guarantee is Guarantee.SNAPSHOT

    def life() -> Any:
        STORAGE.prepare("k", Source(source), pool)
        content = STORAGE.content("k", pool)
        assert content.base is not None
        found = facts(content.tree), facts(content.base)
        write(f"{content.tree}/plain/in/deep/er/new", b"n")
        for path in ("new", "plain/in/new", "plain/in/deep/er/new"):
            with pytest.raises(OSError, match="Read-only"):
                write(f"{content.base}/{path}")
        return found, STORAGE.touched("k", pool), STORAGE.remove("k", pool), STORAGE.keys(pool)

    (tree, base), touched, _, keys = person.call(life)
    assert tree == before
    assert base == before
    assert keys == ()
    if person.uid == 0:
        assert touched == (b"plain/in/deep/er", b"plain/in/deep/er/new")
    assert person.call(facts, source) == before


def test_snapshot_asked_for_by_name_is_not_several(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    for guarantee in (None, Guarantee.SNAPSHOT):
        choice = person.call(choose, Source(source), pool, None, guarantee)
        assert choice.offer is not None
        assert choice.offer.mechanism is Mechanism.BTRFS
    person.call(nest, source)
    choice = person.call(choose, Source(source), pool, None, Guarantee.SNAPSHOT)
    assert choice.offer is None
    assert "not one instant" in choice.refused[0].reason
    choice = person.call(choose, Source(source), pool)
    assert choice.offer is not None
    assert choice.offer.mechanism is Mechanism.BTRFS


def test_omitted_subvolumes_and_files(btrfs_disk: Disk, person: Person) -> None:
    """A subvolume that is covered becomes an empty folder like it, one below a covered folder nothing; files empty."""
    source, pool = sample(person, btrfs_disk)
    person.call(nest, source)
    person.call(os.chmod, f"{source}/beside", 0o751)
    omit = ("beside", "plain/in/deep", "small", "sticky", "none")

    def life() -> Any:
        offer = STORAGE.probe(Source(source, omit), pool)
        STORAGE.prepare("k", Source(source, omit), pool)
        found = []
        content = STORAGE.content("k", pool)
        for top in (content.tree, content.base):
            beside, small = os.stat(f"{top}/beside"), os.stat(f"{top}/small")
            times = os.stat(f"{top}/plain").st_mtime_ns, os.stat(f"{top}").st_mtime_ns
            found.append((
                stat.S_IMODE(beside.st_mode), beside.st_ino, os.listdir(f"{top}/beside"),
                small.st_size, stat.S_IMODE(small.st_mode), os.listdir(f"{top}/plain/in/deep/er"),
                os.listdir(f"{top}/sticky"), times,
            ))  # fmt: skip
        return offer, found, STORAGE.touched("k", pool)

    times = 7, os.stat(source).st_mtime_ns
    offer, found, touched = person.call(life)
    assert offer.guarantees.guarantee is Guarantee.INDEPENDENT
    for mode, inode, names, size, file_mode, deeper, sticky, kept in found:
        assert (mode, names, size, file_mode, sticky) == (0o751, [], 0, 0o640, [])
        assert inode not in (ioctls.STUB_INODE, ioctls.ROOT_INODE)
        assert deeper == []  # in a nested subvolume, out of which nothing can be moved
        assert kept == times
    assert touched == (() if person.uid == 0 else None)


def test_omitted_folders_of_a_whole_subvolume_stay(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    whole = os.path.dirname(source)

    def life() -> Any:
        STORAGE.prepare("k", Source(whole, ("pool", "source/plain")), pool)
        return os.listdir(f"{STORAGE.mounts('k', pool).source}/source/plain")

    assert "inside" in person.call(life)


def test_a_link_in_the_way_leads_nowhere(btrfs_disk: Disk, person: Person) -> None:
    """A folder on the way to an omitted file became a link to a folder outside: nothing there is touched."""
    source, pool = sample(person, btrfs_disk)
    person.call(os.symlink, f"{source}/plain", f"{source}/way")
    person.call(STORAGE.prepare, "k", Source(source, ("way/inside", "folder-link/one")), pool)
    with open(f"{source}/plain/inside", "rb") as file:
        assert file.read() == b"plain"
    with open(f"{STORAGE.mounts('k', pool).source}/plain/one", "rb") as file:
        assert file.read() == b"several names"


def test_what_a_mount_hides_beneath_is_refused(btrfs_disk: Disk, root: Person) -> None:
    """A nested subvolume that cannot be reached since something is mounted over it."""
    source, pool = sample(root, btrfs_disk)
    nest(source)

    def inside() -> Any:
        enter_namespaces()
        subprocess.run(["mount", "-t", "tmpfs", "none", f"{source}/beside"], check=True)
        return STORAGE.probe(Source(source), pool), STORAGE.probe(Source(source, ("beside",)), pool)

    answer, covered = root.call(inside)
    assert isinstance(answer, Refusal)
    assert "beside" in answer.reason
    assert isinstance(covered, Offer)


def test_a_subvolume_of_somebody_elses_beneath_is_refused(removable_btrfs: Disk, user: Person, root: Person) -> None:
    source, pool = sample(user, removable_btrfs)
    make_subvolume(f"{source}/theirs")
    answer = refused(user, source, pool)
    assert f"{source}/theirs" in answer.reason
    assert "belongs to another user" in answer.reason
    assert isinstance(user.call(STORAGE.probe, Source(source, ("theirs",)), pool), Offer)
    os.chmod(f"{source}/theirs", 0o700)
    assert "cannot be read" in refused(user, source, pool).reason


def test_a_subvolume_in_a_folder_of_somebody_elses_is_refused(
    removable_btrfs: Disk, user: Person, root: Person
) -> None:
    source, pool = sample(user, removable_btrfs)
    os.makedirs(f"{source}/theirs/deep")
    make_subvolume(f"{source}/theirs/deep/in")
    os.chown(f"{source}/theirs/deep/in", user.uid, user.gid)
    assert f"the folder of the Btrfs subvolume {source}/theirs/deep/in" in refused(user, source, pool).reason
    os.chmod(f"{source}/theirs", 0o700)
    assert "may not look" in refused(user, source, pool).reason


def remove_by_root(path: str) -> None:
    above = os.open(os.path.dirname(path), os.O_RDONLY)
    remove_tree(os.path.basename(path), above)
    os.close(above)


def test_the_stand_in_of_a_subvolume_is_no_source(btrfs_disk: Disk, root: Person) -> None:
    source, pool = sample(root, btrfs_disk)
    nest(source)
    STORAGE.prepare("k", Source(f"{source}/plain"), pool)
    stub = f"{pool}/btrfs/k/tree/source/beside"
    answer = STORAGE.probe(Source(stub), pool)
    assert isinstance(answer, Refusal)
    assert "stand-in" in answer.reason


# --- removal ----------------------------------------------------------------------------------------------------------


def fork_fifty(source: str, pool: str) -> None:
    for number in range(50):
        STORAGE.prepare(f"k{number}", Source(source), pool)
        tree = STORAGE.mounts(f"k{number}", pool).source
        make_subvolume(f"{tree}/x")
        write(f"{tree}/x/file", b"x")
        if not number % 10:
            with opened(f"{tree}/x") as inner:
                ioctls.set_read_only(inner, True)


@pytest.mark.parametrize("removable", [False, True])
def test_fifty_forks_leave_no_subvolume(own_btrfs: Disk, person: Person, removable: bool) -> None:
    """Case 11: with subvolumes made inside the forks, with and without `user_subvol_rm_allowed`."""
    if removable:
        remount(own_btrfs, REMOVABLE)
    source, pool = sample(person, own_btrfs)
    person.call(lambda: (STORAGE.prepare("first", Source(source), pool), STORAGE.remove("first", pool)))
    before = subvolumes(own_btrfs)
    person.call(fork_fifty, source, pool)
    assert len(subvolumes(own_btrfs) - before) == 150

    def remove_all() -> Any:
        return {STORAGE.remove(f"k{number}", pool) for number in range(50)}, STORAGE.keys(pool)

    expected = Removal.RECLAIMING if removable or person.uid == 0 else Removal.GONE
    assert person.call(remove_all) == ({expected}, ())
    assert subvolumes(own_btrfs) == before


def test_folders_of_others_are_refused_where_they_could_not_be_removed(own_btrfs: Disk, user: Person) -> None:
    source, pool = sample(user, own_btrfs)
    os.mkdir(f"{source}/plain/theirs")
    write(f"{source}/plain/theirs/file", b"x")
    answer = refused(user, source, pool)
    assert f"{source}/plain/theirs" in answer.reason
    assert REMOVABLE in answer.reason
    remount(own_btrfs, REMOVABLE)
    assert isinstance(offered(user, source, pool), Offer)

    def life() -> Any:
        STORAGE.prepare("k", Source(source), pool)
        return STORAGE.remove("k", pool), STORAGE.keys(pool)

    assert user.call(life) == (Removal.RECLAIMING, ())


def test_a_folder_of_others_in_a_nested_subvolume_is_refused(own_btrfs: Disk, user: Person) -> None:
    source, pool = sample(user, own_btrfs)
    user.call(nest, source)
    os.mkdir(f"{source}/plain/in/deep/theirs")
    assert "plain/in/deep/theirs" in refused(user, source, pool).reason


def test_a_closed_folder_is_refused_to_a_user(own_btrfs: Disk, user: Person) -> None:
    source, pool = sample(user, own_btrfs)
    user.call(os.chmod, f"{source}/plain", 0o000)
    assert f"{source}/plain" in refused(user, source, pool).reason


def test_a_mount_beneath_the_subvolume_hides_what_a_user_could_not_remove(own_btrfs: Disk, user: Person) -> None:
    source, pool = sample(user, own_btrfs)
    subprocess.run(["mount", "-t", "tmpfs", "none", f"{source}/plain"], check=True)
    try:
        assert f"{source}/plain" in refused(user, source, pool).reason
    finally:
        rigs.unmount(f"{source}/plain")
    offered(user, source, pool)


def test_too_many_folders_to_look_at_are_refused(
    own_btrfs: Disk, user: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, pool = sample(user, own_btrfs)
    monkeypatch.setattr(snapshot, "_LOOK", -1.0)
    assert "too many folders" in refused(user, source, pool).reason


def test_what_a_user_cannot_remove_is_said(own_btrfs: Disk, user: Person) -> None:
    """Somebody else's folder came into the fork by root's hand."""
    source, pool = sample(user, own_btrfs)
    user.call(STORAGE.prepare, "k", Source(source), pool)
    tree = STORAGE.mounts("k", pool).source
    os.mkdir(f"{tree}/theirs")
    write(f"{tree}/theirs/file", b"x")
    with pytest.raises(StorageError) as error:
        user.call(STORAGE.remove, "k", pool)
    assert error.value.code is Code.STORAGE_FAILED
    assert user.call(STORAGE.keys, pool) == (KeyState("k", KeyStage.HALF_REMOVED),)
    remove_by_root(f"{pool}/btrfs/rm-k/tree/source/theirs")
    assert user.call(STORAGE.remove, "k", pool) is Removal.GONE


def test_removal_while_a_process_is_in_it(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    person.call(STORAGE.prepare, "k", Source(source), pool)
    with person.popen(["sleep", "100"], cwd=person.call(STORAGE.mounts, "k", pool).source) as process:
        try:
            person.call(STORAGE.remove, "k", pool)
            assert person.call(STORAGE.keys, pool) == ()
        finally:
            process.kill()


def test_probes_of_a_killed_process_are_swept(btrfs_disk: Disk, person: Person) -> None:
    _, pool = sample(person, btrfs_disk)
    person.call(make_subvolume, f"{pool}/.probe-999999999-1")
    assert person.call(sweep_probes, pool) == 1
    assert os.listdir(pool) == []


# --- death ------------------------------------------------------------------------------------------------------------


@pytest.mark.rig("strace")
@pytest.mark.parametrize("when", range(1, 24))
def test_sigkill_at_any_ioctl(btrfs_disk: Disk, person: Person, when: int) -> None:
    """With nested subvolumes, in probe, prepare, the look-up and removal: what is left is known and can be removed."""
    source, pool = sample(person, btrfs_disk)
    person.call(nest, source)
    before = subvolumes(btrfs_disk)
    program = (
        "import sys\nfrom hostfork.storage.btrfs import Btrfs\nfrom hostfork.storage.contract import Source\n"
        "source, pool = sys.argv[1:]\nbtrfs = Btrfs()\nbtrfs.prepare('k', Source(source), pool)\n"
        "btrfs.touched('k', pool)\nbtrfs.remove('k', pool)\n"
    )
    # Those that only ask change nothing.
    number = 3 * when
    command = [
        "strace",
        "-f",
        "-o",
        "/dev/null",
        "-e",
        "trace=ioctl",
        "-e",
        f"inject=ioctl:signal=SIGKILL:when={number}",
    ]
    done = person.run([*command, sys.executable, "-c", program, source, pool])
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL, 0), done
    states = person.call(STORAGE.keys, pool)
    assert [state.key for state in states] in ([], ["k"])
    if states and states[0].stage is KeyStage.LIVE:
        content = person.call(STORAGE.content, "k", pool)
        assert person.call(facts, content.tree) == person.call(facts, content.base)
    person.call(STORAGE.remove, "k", pool)
    assert person.call(STORAGE.keys, pool) == ()
    with opened(pool) as descriptor:
        pool_number = {ioctls.subvolume(descriptor).number}
    left = subvolumes(btrfs_disk) - before - pool_number
    assert left <= {ioctls_number(f"{pool}/btrfs")}


def ioctls_number(path: str) -> int:
    """The number of the subvolume that a path lies in; -1 where it is not there."""
    if not os.path.exists(path):
        return -1
    with opened(path) as descriptor:
        return ioctls.subvolume(descriptor).number


# --- what changed -----------------------------------------------------------------------------------------------------


def differing(tree: str, base: str) -> set[bytes]:
    """Every path that differs, by looking at all; other names of a file are left out, which a folder's move moves."""
    one, other = ({name: fact[:7] for name, fact in facts(top).items()} for top in (tree, base))
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def covered(name: bytes, touched: set[bytes], tree: str, base: str) -> bool:
    """Whether who looks at the touched paths, and at the names in touched folders, comes to this one.

    What is met as another inode than the base's, as after a rename, is compared with all that it holds.
    """
    if name in touched:
        return True
    while name:
        above = os.path.dirname(name)
        if {name, above} & touched and inode(tree, name) != inode(base, name):
            return True
        name = above
    return False


def inode(top: str, name: bytes) -> int:
    try:
        return os.lstat(os.path.join(os.fsencode(top), name)).st_ino
    except OSError:
        return -1


def change_at_random(tree: str, chance: random.Random) -> None:
    names = [name for name in facts(tree) if name and b"closed" not in name]
    top = os.fsencode(tree)
    for _ in range(20):
        name = os.path.join(top, chance.choice(names))
        other = os.path.join(top, os.path.dirname(chance.choice(names)), b"n%d" % chance.randrange(1000))
        with contextlib.suppress(OSError):
            chance.choice(one_change(name, other))()


def one_change(name: bytes, other: bytes) -> list[Callable[[], object]]:
    return [
        lambda: os.path.isfile(name) and write(name, b"changed"),
        lambda: os.unlink(name),
        lambda: os.rename(name, other),
        lambda: os.link(name, other, follow_symlinks=False),
        lambda: os.mkdir(other),
        lambda: os.chmod(name, 0o600),
        lambda: os.setxattr(name, "user.x", b"y"),
        lambda: os.symlink("to", other),
        lambda: os.rmdir(name),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_touched_misses_nothing(btrfs_disk: Disk, root: Person, seed: int) -> None:
    chance = random.Random(seed)
    source, pool = sample(root, btrfs_disk)
    if seed % 2:
        nest(source)
    STORAGE.prepare("k", Source(source), pool)
    content = STORAGE.content("k", pool)
    assert content.base is not None
    assert STORAGE.touched("k", pool) == ()
    for _ in range(2):
        change_at_random(content.tree, chance)
        found = STORAGE.touched("k", pool)
        assert found is not None
        touched = set(found)
        for name in differing(content.tree, content.base):
            assert covered(name, touched, content.tree, content.base), (name, sorted(touched))
        assert sorted(os.listdir(f"{pool}/btrfs/k")) == ["base", "inside", "tree"]


def test_touched_names_every_link_of_a_file(btrfs_disk: Disk, root: Person) -> None:
    """More names than the inode's own item holds (INODE_EXTREF), in one folder and in others."""
    source, pool = sample(root, btrfs_disk, lambda path: _many_links(path))
    STORAGE.prepare("k", Source(source), pool)
    tree = STORAGE.mounts("k", pool).source
    with open(f"{tree}/file", "ab") as file:
        file.write(b"more")
    names = {b"file", *(b"%s/%s%d" % (folder, b"l" * 200, number) for folder in (b"a", b"b") for number in range(60))}
    assert set(STORAGE.touched("k", pool) or ()) == names


def _many_links(path: str) -> None:
    write(f"{path}/file", b"x")
    for folder in ("a", "b"):
        os.mkdir(f"{path}/{folder}")
        for number in range(60):
            os.link(f"{path}/file", f"{path}/{folder}/{'l' * 200}{number}")


def test_touched_sees_what_is_written_through_a_mapping(btrfs_disk: Disk, root: Person) -> None:
    import mmap

    source, pool = sample(root, btrfs_disk)
    STORAGE.prepare("k", Source(source), pool)
    tree = STORAGE.mounts("k", pool).source
    with open(f"{tree}/large", "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapping:
        mapping[0:4] = b"abcd"
    assert STORAGE.touched("k", pool) == (b"large",)


def test_touched_passes_over_deleted_files_that_are_open(btrfs_disk: Disk, root: Person) -> None:
    source, pool = sample(root, btrfs_disk)
    STORAGE.prepare("k", Source(source), pool)
    tree = STORAGE.mounts("k", pool).source
    os.mkdir(f"{tree}/gone")
    with open(f"{tree}/gone/file", "wb") as file:
        file.write(b"x")
        file.flush()
        os.unlink(f"{tree}/gone/file")
        with opened(f"{tree}/gone"):
            os.rmdir(f"{tree}/gone")
            assert STORAGE.touched("k", pool) == (b"",)


def test_touched_is_unknown_where_a_subvolume_took_anothers_place(btrfs_disk: Disk, root: Person) -> None:
    source, pool = sample(root, btrfs_disk)
    nest(source)
    STORAGE.prepare("k", Source(source), pool)
    tree = STORAGE.mounts("k", pool).source
    make_subvolume(f"{tree}/new")
    write(f"{tree}/new/file", b"x")
    assert STORAGE.touched("k", pool) == (b"",)
    make_subvolume(f"{tree}/small-one")
    os.unlink(f"{tree}/small")
    os.rename(f"{tree}/small-one", f"{tree}/small")
    assert STORAGE.touched("k", pool) is None
    os.rmdir(f"{tree}/small")
    os.rename(f"{tree}/beside", f"{tree}/plain/moved")
    make_subvolume(f"{tree}/beside")
    write(f"{tree}/beside/file", b"other")
    assert STORAGE.touched("k", pool) is None


def test_usage_is_that_of_what_was_touched(btrfs_disk: Disk, person: Person) -> None:
    """As root by the filesystem's trees, as a user by a walk: the same number of bytes."""
    source, pool = sample(person, btrfs_disk)

    def life() -> Any:
        STORAGE.prepare("k", Source(source), pool)
        tree = STORAGE.mounts("k", pool).source
        before = STORAGE.usage("k", pool)
        write(f"{tree}/new", b"x" * 40960)
        os.link(f"{tree}/new", f"{tree}/again")
        os.unlink(f"{tree}/large")
        after = STORAGE.usage("k", pool)
        os.rename(f"{tree}/sticky", f"{tree}/moved")
        return before, after, STORAGE.usage("k", pool)

    before, after, moved = person.call(life)
    assert (before.bytes, before.upper_bound) == (0, True)
    assert after.bytes == 40960
    # The walk finds what was moved at no path of the base.
    assert moved.bytes == 40960 if person.uid == 0 else moved.bytes > 40960


def test_a_look_up_that_was_killed_is_no_obstacle(btrfs_disk: Disk, root: Person) -> None:
    source, pool = sample(root, btrfs_disk)
    STORAGE.prepare("k", Source(source), pool)
    for maker in (999999999, os.getpid()):
        make_subvolume(f"{pool}/btrfs/k/now-{maker}")
    write(f"{STORAGE.mounts('k', pool).source}/small", b"x")
    assert STORAGE.touched("k", pool) == (b"small",)
    assert sorted(os.listdir(f"{pool}/btrfs/k")) == ["base", "inside", "tree"]
    make_subvolume(f"{pool}/btrfs/k/now-1")
    assert STORAGE.touched("k", pool) == (b"small",)
    STORAGE.remove("k", pool)
    assert STORAGE.keys(pool) == ()


# --- the pool ---------------------------------------------------------------------------------------------------------


def test_the_pool_is_a_subvolume_of_its_own(btrfs_disk: Disk, person: Person) -> None:
    source, _ = sample(person, btrfs_disk)
    pool = f"{source}/state/pool"

    def life() -> Any:
        os.mkdir(f"{source}/state", 0o700)
        open_pool(pool)
        for key in ("one", "two"):
            STORAGE.prepare(key, Source(source, ("state",)), pool)
        return os.stat(pool), os.listdir(f"{pool}/btrfs/two/tree/.hostfork-omitted-0/pool")

    found, inside = person.call(life)
    assert found.st_ino == ioctls.ROOT_INODE
    assert stat.S_IMODE(found.st_mode) == 0o700
    assert inside == []


def test_forks_in_an_older_pool_are_in_no_later_one(btrfs_disk: Disk, person: Person) -> None:
    source, _ = sample(person, btrfs_disk)
    pool = f"{source}/pool"

    def life() -> Any:
        os.mkdir(pool, 0o700)
        for key in ("one", "two"):
            STORAGE.prepare(key, Source(source, ("pool",)), pool)
        below = os.listdir(f"{pool}/btrfs/two/tree/.hostfork-omitted-0/btrfs")
        return below, STORAGE.remove("two", pool), STORAGE.remove("one", pool), STORAGE.keys(pool)

    below, _, _, keys = person.call(life)
    assert below == []
    assert keys == ()


def test_quota_groups_are_seen(own_btrfs: Disk, person: Person) -> None:
    assert person.call(subvolume.quota_groups, own_btrfs.path) is False
    subprocess.run(["btrfs", "quota", "enable", own_btrfs.path], check=True)
    assert person.call(subvolume.quota_groups, own_btrfs.path) is True
    subprocess.run(["btrfs", "quota", "disable", own_btrfs.path], check=True)
    with opened(own_btrfs.path) as descriptor:  # older programs do not know simple quotas
        fcntl.ioctl(descriptor, 0xC0109428, bytearray(struct.pack("QQ", 4, 0)))
    assert person.call(subvolume.quota_groups, own_btrfs.path) is False
