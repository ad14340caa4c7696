"""What a copy, clone, snapshot or overlay keeps of odd entries, and what is told where something cannot be kept."""

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hostfork.errors import Code, StorageError
from hostfork.storage.contract import FullTree, Lost, Offer, Refusal, Removal, Source, Storage
from hostfork.vocabulary import Mechanism, StorageKind
from rigs import Disk, Person
from storage_cases import (
    ACCESS,
    APPEND_ONLY,
    IMMUTABLE,
    KEPT_FLAGS,
    ROWS,
    Row,
    facts,
    flags_of,
    sample,
    set_flags,
    visible,
    write,
)

TAKING = [row for row in ROWS if row.walks]
PAIRS = [(row, kind) for row in ROWS for kind in row.kinds]
NOT_TAKING = [pair for pair in PAIRS if not pair[0].walks and pair[0].kind is not StorageKind.RETAINED]
"""Mechanisms that never look at an entry: the base is there as it is."""
SECRETS = ("dark", "device", "inner/secret", "names-only/file", "names-only/two", "own", "secret")


def disk_of(request: pytest.FixtureRequest, kind: str) -> Disk:
    found: Disk = request.getfixturevalue(f"{kind}_disk")
    return found


@pytest.fixture
def locked() -> Iterator[list[str]]:
    """Paths that lose their immutable and append-only flags at the end: nothing else can remove them."""
    paths: list[str] = []
    yield paths
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            set_flags(path, 0)


# --- flags ------------------------------------------------------------------------------------------------------------


def test_the_disks_have_flags(disk: Disk, person: Person) -> None:
    """What the suite compares is there to be compared: each disk has some, and Btrfs has no-copy-on-write."""
    source, _ = sample(person, disk)
    for name in ("flagged", "flagged-folder"):
        assert flags_of(f"{source}/{name}") & (0x40 | 0x80) == 0x40 | 0x80
    assert bool(flags_of(f"{source}/flagged") & 0x800000) == (disk.kind == "btrfs")
    assert flags_of(f"{source}/flagged-folder/plain") & 0x40 == 0


@pytest.mark.rig("root")
@pytest.mark.parametrize(("row", "kind"), [(row, kind) for row in TAKING for kind in row.kinds], ids=str)
def test_what_root_locked_is_taken_unlocked_and_named(
    request: pytest.FixtureRequest, person: Person, row: Row, kind: str
) -> None:
    """Immutable and append-only entries would make a fork that cannot be changed, nor removed by a user."""
    source, pool = sample(person, disk_of(request, kind))
    locked: list[str] = request.getfixturevalue("locked")  # after the disk, which is cleared after it then
    for name, flag in (("small", IMMUTABLE), ("script", APPEND_ONLY), ("two", IMMUTABLE), ("plain", IMMUTABLE)):
        locked.append(f"{source}/{name}")
        set_flags(locked[-1], flag)
    locked.append(source)
    set_flags(source, APPEND_ONLY)

    def fork() -> Any:
        done = row.storage.prepare("k", Source(source), pool)
        content = row.storage.content("k", pool)
        assert isinstance(content, FullTree)
        there = facts(content.tree)
        with open(f"{content.tree}/small", "ab") as file:
            file.write(b"more")
        os.unlink(f"{content.tree}/script")
        write(f"{content.tree}/plain/new")
        return done.lost, there, row.storage.remove("k", pool)

    lost, there, removed = person.call(fork)
    wanted = {"": "append-only", "plain": "immutable", "script": "append-only", "small": "immutable"}
    wanted |= dict.fromkeys(("two", "plain/one", "sticky/three"), "immutable")  # one file
    assert {one.path: one.what for one in lost if one.path in wanted} == {
        path: (word,) for path, word in wanted.items()
    }
    assert removed is Removal.GONE
    before = person.call(facts, source)
    for path in wanted:
        before[path.encode()][5]["flags"] = 0
    assert there == before


@pytest.mark.rig("root")
def test_locked_entries_of_a_base_are_as_on_the_host_in_an_overlay(
    ext4_disk: Disk, person: Person, locked: list[str]
) -> None:
    """They cannot be changed there either, but for the top, of which it is said; and the fork goes."""
    source, pool = sample(person, ext4_disk)
    locked.append(source)
    set_flags(source, IMMUTABLE)
    locked.append(f"{source}/small")
    set_flags(locked[-1], IMMUTABLE)
    storage = next(row for row in ROWS if str(row) == "live").storage

    def trial(tree: str) -> int | None:
        write(f"{tree}/new")
        try:
            write(f"{tree}/small", b"new")
        except PermissionError as error:
            return error.errno
        return None

    def fork() -> Any:
        done = storage.prepare("k", Source(source), pool)
        return done.lost, visible(storage, "k", pool, trial)

    assert person.call(fork) == ((Lost("", ("immutable",)),), errno.EPERM)
    assert person.call(storage.remove, "k", pool) is Removal.GONE


@pytest.mark.rig("root")
def test_a_locked_folder_rules_out_a_snapshot_that_could_not_go(
    make_disk: Callable[..., Disk], user: Person, root: Person, locked: list[str]
) -> None:
    """A user without the mount option has to empty a snapshot; root has not."""
    disk = make_disk("btrfs")
    source, pool = sample(user, disk)
    storage = next(row for row in ROWS if str(row) == "btrfs").storage
    assert isinstance(user.call(storage.probe, Source(source), pool), Offer)
    locked.append(f"{source}/sticky")
    set_flags(locked[-1], IMMUTABLE)
    refusal = user.call(storage.probe, Source(source), pool)
    assert isinstance(refusal, Refusal)
    assert f"{source}/sticky is immutable or append-only" in refusal.reason
    pool = os.path.join(disk.folder(root), "pool")
    root.call(os.mkdir, pool)

    def fork() -> Any:
        storage.prepare("k", Source(source), pool)
        return visible(storage, "k", pool, lambda tree: flags_of(f"{tree}/sticky")), storage.remove("k", pool)

    kept, removed = root.call(fork)
    assert kept == IMMUTABLE
    assert removed is not None
    set_flags(locked[-1], 0)


def test_flags_that_the_pool_does_not_have_are_named(btrfs_disk: Disk, ext4_disk: Disk, person: Person) -> None:
    """A copy from Btrfs to ext4 loses what ext4 does not have, and keeps the rest."""
    source, _ = sample(person, btrfs_disk)
    pool = ext4_disk.folder(person)
    storage = TAKING[0].storage
    done = person.call(storage.prepare, "k", Source(source), pool)
    assert done.lost == (
        Lost("flagged", ("no-copy-on-write",)),
        Lost("flagged-folder", ("no-copy-on-write",)),
    )
    assert flags_of(f"{pool}/copy/k/tree/flagged") == sum(KEPT_FLAGS) & ~0x800000


def test_what_a_folder_gives_its_files_is_not_given_to_those_that_have_it_not(btrfs_disk: Disk, person: Person) -> None:
    """A folder's flags are set last: new files would inherit them, and `plain` in it is older than they."""
    source, pool = sample(person, btrfs_disk)
    assert flags_of(f"{source}/flagged-folder") & 0x800000
    for row in TAKING:
        person.call(row.storage.prepare, "k", Source(source), pool)
        tree = f"{pool}/{row}/k/tree"
        assert flags_of(f"{tree}/flagged-folder") == flags_of(f"{source}/flagged-folder")
        assert flags_of(f"{tree}/flagged-folder/plain") == 0


def test_attributes_of_one_filesystem_are_not_put_on_another(
    xfs_disk: Disk, btrfs_disk: Disk, ext4_disk: Disk, person: Person
) -> None:
    """XFS shows ACLs by names of its own too; what is Btrfs's alone is named."""
    pool = ext4_disk.folder(person)
    source, _ = sample(person, xfs_disk)
    storage = TAKING[0].storage
    person.call(storage.prepare, "k", Source(source), pool)
    listed = person.call(os.listxattr, f"{pool}/copy/k/tree/script")
    assert set(listed) == {ACCESS} | ({"security.capability"} if person.uid == 0 else set())
    source, _ = sample(person, btrfs_disk, lambda path: write(f"{path}/file", b"f"))
    person.call(os.setxattr, f"{source}/file", "btrfs.compression", b"zstd")
    done = person.call(storage.prepare, "b", Source(source), pool)
    assert done.lost == (Lost("file", ("btrfs.compression",)),)
    assert person.call(os.listxattr, f"{pool}/copy/b/tree/file") == []


@pytest.mark.parametrize(("row", "kind"), PAIRS, ids=str)
def test_flags_after_a_write(request: pytest.FixtureRequest, person: Person, row: Row, kind: str) -> None:
    """An overlay copies a file when it is first written, with no-atime and synchronous alone of these flags."""
    source, pool = sample(person, disk_of(request, kind))
    there = flags_of(f"{source}/flagged")

    def write_there(tree: str) -> tuple[int, int]:
        before = flags_of(f"{tree}/flagged")
        with open(f"{tree}/flagged", "ab") as file:
            file.write(b"more")
        return before, flags_of(f"{tree}/flagged")

    def fork() -> Any:
        row.storage.prepare("k", Source(source), pool)
        return visible(row.storage, "k", pool, write_there)

    before, after = person.call(fork)
    assert before == there
    assert after == (there & (0x8 | 0x80) if row.mechanism is Mechanism.OVERLAY else there)


# --- what is root's to give -------------------------------------------------------------------------------------------


@pytest.mark.rig("root")
@pytest.mark.parametrize("row", TAKING, ids=str)
def test_what_a_user_cannot_give_is_named(xfs_disk: Disk, user: Person, row: Row) -> None:
    """Set-uid bits of others' programs, and capabilities of files."""
    source, pool = sample(user, xfs_disk, lambda path: write(f"{path}/program", b"p", 0o755))
    write(f"{source}/roots", b"r", 0o644)
    os.chmod(f"{source}/roots", 0o6755)
    os.setxattr(f"{source}/program", "security.capability", struct.pack("<IIIII", 0x02000000, 1 << 10, 0, 0, 0))
    done = user.call(row.storage.prepare, "k", Source(source), pool)
    assert done.lost == (Lost("program", ("security.capability",)), Lost("roots", ("set-uid", "set-gid")))
    assert stat.S_IMODE(os.stat(f"{pool}/{row}/k/tree/roots").st_mode) == 0o555


@pytest.mark.rig("root")
@pytest.mark.parametrize(("row", "kind"), NOT_TAKING, ids=str)
def test_devices_are_there_and_opened_by_root(
    request: pytest.FixtureRequest, person: Person, row: Row, kind: str
) -> None:
    """In a user's namespace an overlay has no devices, as every filesystem that is mounted there."""
    source, pool = sample(person, disk_of(request, kind))
    if not os.path.exists(f"{source}/null"):
        os.mknod(f"{source}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.chmod(f"{source}/null", 0o666)

    def look(tree: str) -> tuple[int, bool]:
        with contextlib.suppress(PermissionError), open(f"{tree}/null", "rb"):
            return os.stat(f"{tree}/null").st_rdev, True
        return os.stat(f"{tree}/null").st_rdev, False

    def fork() -> Any:
        row.storage.prepare("k", Source(source), pool)
        return visible(row.storage, "k", pool, look)

    opens = person.uid == 0 or row.mechanism is not Mechanism.OVERLAY
    assert person.call(fork) == (os.makedev(1, 3), opens)


# --- what cannot be read ----------------------------------------------------------------------------------------------


def secrets(source: str) -> None:
    """Entries that only root can read, one of them the user's own."""
    write(f"{source}/own", b"o", 0o000)
    os.chown(f"{source}/own", os.stat(source).st_uid, 0)
    write(f"{source}/secret", b"s", 0o600)
    os.makedirs(f"{source}/inner", 0o755, exist_ok=True)
    write(f"{source}/inner/secret", b"s", 0o620)
    write(f"{source}/inner/open", b"o")
    os.mkdir(f"{source}/dark", 0o700)
    write(f"{source}/dark/inside", b"d")
    os.mkdir(f"{source}/names-only", 0o744)
    write(f"{source}/names-only/file", b"n")
    write(f"{source}/names-only/two", b"n")
    os.mknod(f"{source}/device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.utime(f"{source}/dark", ns=(1, 1_500_000_000_000_000_001))


@pytest.mark.rig("root")
@pytest.mark.parametrize("row", TAKING, ids=str)
@pytest.mark.parametrize("many", [False, True])
def test_what_cannot_be_read_is_skipped_if_that_was_asked_for(
    xfs_disk: Disk, user: Person, row: Row, many: bool
) -> None:
    """Each has an empty stand-in that is as closed, and is named; the rest is all there."""
    source, pool = sample(user, xfs_disk)
    secrets(source)
    if many:  # so that workers meet some
        for number in range(1500):
            write(f"{source}/{number}", b"x")
        for number in range(100):
            os.chmod(f"{source}/{number}", 0)
            os.chown(f"{source}/{number}", 0, 0)
    wanted = tuple(sorted((*SECRETS, *(str(number) for number in range(100 if many else 0)))))
    storage = row.storage
    refusal = user.call(storage.probe, Source(source), pool)
    assert isinstance(refusal, Refusal)
    assert f"{source}/secret" in refusal.reason or many
    with pytest.raises(StorageError) as refused:
        user.call(storage.prepare, "k", Source(source), pool)
    assert refused.value.code is Code.STORAGE_SOURCE
    assert refused.value.hint is not None
    assert "--unreadable skip" in refused.value.hint
    asked = Source(source, skip_unreadable=True)
    offer = user.call(storage.probe, asked, pool)
    assert isinstance(offer, Offer), offer
    assert tuple(sorted(offer.unreadable)) == wanted
    seen: set[bytes] = set()

    def fork() -> Any:
        done = storage.prepare("k", asked, pool, lambda name, _one, _two: seen.add(name))
        tree = f"{pool}/{row}/k/tree"
        closed = []
        for name in done.skipped:
            if not name.startswith("names-only/"):
                found = os.lstat(f"{tree}/{name}")
                closed.append(found.st_size == 0 or stat.S_ISDIR(found.st_mode))
            with pytest.raises(PermissionError):
                os.close(os.open(f"{tree}/{name}", os.O_RDONLY))
        times = os.lstat(f"{tree}/dark").st_mtime_ns, os.lstat(f"{tree}/inner").st_mtime_ns
        return done, all(closed), times, os.path.exists(f"{tree}/inner/open"), seen

    done, closed, times, rest, shown = user.call(fork)
    assert done.skipped == wanted
    assert closed
    assert rest
    assert times == (1_500_000_000_000_000_001, os.stat(f"{source}/inner").st_mtime_ns)
    assert not shown & {os.fsencode(name) for name in wanted}
    assert done.files == len(shown)
    assert user.call(storage.remove, "k", pool) is Removal.GONE


@pytest.mark.rig("root")
@pytest.mark.parametrize("row", TAKING, ids=str)
def test_a_path_that_itself_cannot_be_read_is_refused_in_any_case(xfs_disk: Disk, user: Person, row: Row) -> None:
    source, pool = sample(user, xfs_disk, lambda path: None)
    secrets(source)
    for name in ("secret", "dark"):
        asked = Source(f"{source}/{name}", skip_unreadable=True)
        assert isinstance(user.call(row.storage.probe, asked, pool), Refusal)
        with pytest.raises(StorageError) as refused:
            user.call(row.storage.prepare, "k", asked, pool)
        assert refused.value.code is Code.STORAGE_SOURCE
        assert user.call(row.storage.keys, pool) == ()


@pytest.mark.rig("root")
@pytest.mark.parametrize(("row", "kind"), NOT_TAKING, ids=str)
def test_what_cannot_be_read_is_no_obstacle_elsewhere(
    request: pytest.FixtureRequest, user: Person, row: Row, kind: str
) -> None:
    """In a snapshot or an overlay it is there, and as closed as on the host."""
    source, pool = sample(user, disk_of(request, kind))
    write(f"{source}/secret", b"s", 0o600)
    storage: Storage = row.storage

    def look(tree: str) -> bool:
        with pytest.raises(PermissionError):
            os.close(os.open(f"{tree}/secret", os.O_RDONLY))
        return os.stat(f"{tree}/secret").st_size == 1

    def fork() -> Any:
        done = storage.prepare("k", Source(source, skip_unreadable=True), pool)
        return done.skipped, visible(storage, "k", pool, look)

    assert user.call(fork) == ((), True)


# --- layers of other overlays -----------------------------------------------------------------------------------------

OVERLAYS = [(row, row.kinds[0]) for row in ROWS if row.kind in (StorageKind.LIVE, StorageKind.FROZEN)]


def store(home: str) -> None:
    """As a rootless podman has it: one layer over another, which deletes a file of it and hides a folder's content."""
    layers = f"{home}/.local/share/containers/storage/overlay"
    os.makedirs(f"{layers}/l")
    os.makedirs(f"{layers}/one/diff/folder")
    write(f"{layers}/one/diff/folder/below", b"b")
    os.makedirs(f"{layers}/two/diff/folder")
    write(f"{layers}/two/diff/folder/own", b"o")
    os.setxattr(f"{layers}/two/diff/folder", "user.overlay.opaque", b"y")
    os.mknod(f"{layers}/two/diff/gone", stat.S_IFCHR, os.makedev(0, 0))


@pytest.mark.parametrize(("row", "kind"), OVERLAYS, ids=str)
def test_an_overlay_over_a_container_store_is_refused(
    request: pytest.FixtureRequest, person: Person, row: Row, kind: str
) -> None:
    """Found where it usually is, without a walk, from above, from inside, and not where a rule leaves it out."""
    home, pool = sample(person, disk_of(request, kind), store)

    def probe(path: str, *omit: str) -> Any:
        os.environ["HOME"] = home
        os.makedirs(path, exist_ok=True)
        return row.storage.probe(Source(path, omit), pool)

    containers = f"{home}/.local/share/containers"
    for path in (home, f"{home}/.local", containers, f"{containers}/storage/overlay/two/diff"):
        refusal = person.call(probe, path)
        assert isinstance(refusal, Refusal), path
        assert "layers of overlays" in refusal.reason
        assert containers in refusal.reason
    for path, *omit in ((home, ".local/share/containers"), (home, ".local"), (f"{home}/.local/state",)):
        offer = person.call(probe, path, *omit)
        assert isinstance(offer, Offer), (path, offer)
        assert not offer.guarantees.layers
    person.run(["rm", "-r", f"{containers}/storage/overlay/one", f"{containers}/storage/overlay/two"], check=True)
    assert isinstance(person.call(probe, home), Offer)


@pytest.mark.parametrize(("row", "kind"), OVERLAYS, ids=str)
def test_a_whiteout_at_the_top_is_seen(request: pytest.FixtureRequest, person: Person, row: Row, kind: str) -> None:
    def make(path: str) -> None:
        write(f"{path}/file")
        os.mknod(f"{path}/gone", stat.S_IFCHR, os.makedev(0, 0))

    source, pool = sample(person, disk_of(request, kind), make)
    refusal = person.call(row.storage.probe, Source(source), pool)
    assert isinstance(refusal, Refusal)
    assert "gone" in refusal.reason
    assert isinstance(person.call(row.storage.probe, Source(source, ("gone",)), pool), Offer)


@pytest.mark.parametrize(("row", "kind"), [pair for pair in PAIRS if pair[0].kind is not StorageKind.RETAINED], ids=str)
def test_layers_are_kept_but_by_overlays(request: pytest.FixtureRequest, person: Person, row: Row, kind: str) -> None:
    """What `Guarantees.layers` says, on each disk: marks are there as they are, or they delete."""
    source, pool = sample(person, disk_of(request, kind), store)
    offer = person.call(row.storage.probe, Source(source), pool)
    assert isinstance(offer, Offer), offer  # no home of anybody's: only a walk would find it

    def look(tree: str) -> tuple[bool, int]:
        layer = f"{tree}/.local/share/containers/storage/overlay/two/diff"
        return os.path.lexists(f"{layer}/gone"), len(os.listxattr(f"{layer}/folder"))

    def fork() -> Any:
        row.storage.prepare("k", Source(source), pool)
        return visible(row.storage, "k", pool, look)

    there = person.call(fork)
    assert there == ((True, 1) if offer.guarantees.layers else (False, 0))
