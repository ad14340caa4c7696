"""One frozen base under several forks: while the source is the same, and never longer; it goes with the last one."""

import contextlib
import fcntl
import functools
import itertools
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hostfork.errors import Code, StorageError
from hostfork.storage import ioctls, shared, snapshot
from hostfork.storage.btrfs import Btrfs
from hostfork.storage.contract import KeyStage, KeyState, Layer, Offer, Prepared, Removal, Source
from hostfork.storage.frozen import Frozen
from hostfork.storage.pace import Brief
from hostfork.storage.reclaim import asides, erase
from hostfork.vocabulary import Guarantee
from rigs import Disk, Person
from storage_cases import enter_namespaces, facts, make_subvolume, mounted, sample, visible, write

STORAGE = Frozen()
FIFTY = 50 << 20


def small(source: str) -> None:
    """A tree in which everything can be changed."""
    write(f"{source}/file", b"content" * 1000)
    write(f"{source}/other", b"other")
    os.mkdir(f"{source}/folder")
    write(f"{source}/folder/inside", b"inside")
    os.setxattr(f"{source}/other", "user.colour", b"blue")


def take(key: str, source: str, pool: str, *omit: str) -> str:
    """A fork's base; the name of what it shares."""
    STORAGE.prepare(key, Source(source, omit), pool)
    return base_of(key, pool)


def base_of(key: str, pool: str) -> str:
    return os.readlink(f"{pool}/frozen/{key}/base").split("/")[1]


def held(pool: str) -> list[str]:
    """All that the pool holds of this kind."""
    return os.listdir(f"{pool}/frozen") if os.path.isdir(f"{pool}/frozen") else []


def bases(pool: str) -> list[str]:
    return [name for name in held(pool) if name.startswith(".base-")]


def identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def subvolumes(path: str) -> int:
    """How many subvolumes lie in the one at the path, at any depth; those that the kernel is removing are not there."""
    opened = os.open(path, os.O_RDONLY)
    try:
        below = [ioctls.place_of(one, opened) for one in ioctls.nested(opened)]
    finally:
        os.close(opened)
    return sum(1 + subvolumes(f"{path}/{name}") for name in below)


@contextlib.contextmanager
def all_given_back(volume: str, pool: str) -> Iterator[None]:
    """Nothing may be left in the pool, nor on the list of subvolumes."""
    yield
    assert held(pool) == []
    assert subvolumes(volume) == 1  # the folder of the keys


# --- the same source --------------------------------------------------------------------------------------------------


def test_forks_of_the_same_source_lie_over_one_base(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)

    def life() -> Any:
        names = {take(f"k.{number}", source, pool) for number in range(3)}
        lowers = [STORAGE.content(f"k.{number}", pool).lowers[0] for number in range(3)]
        return names, [identity(f"{lower}/large") for lower in lowers], facts(lowers[2]), STORAGE.keys(pool)

    with all_given_back(os.path.dirname(source), pool):
        names, identities, base, keys = person.call(life)
        assert len(names) == 1
        assert bases(pool) == list(names)
        assert len(set(identities)) == 1
        assert base == person.call(facts, source)
        assert keys == tuple(KeyState(f"k.{number}", KeyStage.LIVE) for number in range(3))
        for number in (1, 0, 2):
            assert person.call(facts, person.call(STORAGE.content, f"k.{number}", pool).lowers[0]) == base
            person.call(STORAGE.remove, f"k.{number}", pool)


def test_any_folder_of_the_subvolume_shares_it(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, small)

    def life() -> Any:
        places = [source, f"{source}/folder", os.path.dirname(source) + "/beside"]
        os.mkdir(places[2])
        names = {take(f"k{number}", place, pool) for number, place in enumerate(places)}
        return names, [sorted(os.listdir(STORAGE.content(f"k{number}", pool).lowers[0])) for number in range(3)]

    names, seen = person.call(life)
    assert len(names) == 1
    assert seen == [["file", "folder", "other"], ["inside"], []]


def test_what_a_fork_writes_is_its_own(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, small)
    person.call(take, "one", source, pool)
    person.call(take, "two", source, pool)

    def change(tree: str) -> None:
        write(f"{tree}/file", b"changed")
        os.unlink(f"{tree}/other")

    before = person.call(facts, source)
    person.call(visible, STORAGE, "one", pool, change)
    assert {name: fact[:6] for name, fact in person.call(visible, STORAGE, "two", pool, facts).items()} == {
        name: fact[:6] for name, fact in before.items()
    }
    assert person.call(take, "three", source, pool) == base_of("one", pool)
    assert person.call(STORAGE.usage, "one", pool).bytes >= 4096
    assert person.call(STORAGE.usage, "two", pool) == person.call(STORAGE.usage, "three", pool)


def resident(path: str) -> int:
    """The bytes of a file that are in memory, as the kernel says for a mapping of it."""
    done = subprocess.run(["fincore", "--bytes", "--noheadings", "-o", "res", path], check=True, capture_output=True)
    return int(done.stdout)


@pytest.mark.skipif(shutil.which("fincore") is None, reason="there is no fincore")
def test_what_one_fork_read_is_in_memory_for_the_other(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, lambda path: write(f"{path}/large", os.urandom(FIFTY)))
    for key in ("one", "two"):
        person.call(take, key, source, pool)

    def look() -> Any:
        enter_namespaces()
        one, two = (mounted(STORAGE.mounts(key, pool), key) for key in ("one", "two"))
        found = [resident(f"{one}/large"), resident(f"{two}/large")]
        with open(f"{one}/large", "rb") as file:
            read = file.read()
        found += [resident(f"{two}/large"), resident(f"{STORAGE.content('two', pool).lowers[0]}/large")]
        with open(f"{two}/large", "rb") as file:
            assert file.read() == read
        return found, resident(f"{STORAGE.content('one', pool).lowers[0]}/large")

    found, after = person.call(look)
    assert found == [0, 0, FIFTY, FIFTY]
    assert after == FIFTY


def test_writes_elsewhere_do_not_count(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, small)
    person.call(make_subvolume, f"{os.path.dirname(os.path.dirname(source))}/beside")

    def life() -> Any:
        first = take("one", source, pool)
        write(f"{os.path.dirname(os.path.dirname(source))}/beside/file", b"x" * 100_000)
        content = STORAGE.content("one", pool)
        assert isinstance(content, Layer)
        write(f"{content.upper}/new", b"x")
        with open(f"{source}/file", "rb") as file:  # the disk is mounted with noatime
            file.read()
        os.sync()
        return first, take("two", source, pool), take("three", source, pool)

    assert len(set(person.call(life))) == 1


def test_what_is_left_out_is_part_of_the_base(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, small)

    def life() -> Any:
        names = [
            take("all", source, pool),
            take("less", source, pool, "folder"),
            take("same", source, pool, "folder"),
            take("fewer", source, pool, "other", "folder"),
            take("order", source, pool, "folder", "other"),
            take("again", source, pool),
        ]
        return names, [list(facts(STORAGE.content(key, pool).lowers[0])) for key in ("all", "less", "order", "again")]

    names, seen = person.call(life)
    assert names[0] == names[5]
    assert names[1] == names[2]
    assert names[3] == names[4]
    assert len(set(names)) == 3
    assert [b"folder/inside" in one for one in seen] == [True, False, False, True]


# --- a changed source -------------------------------------------------------------------------------------------------

MAPPINGS: list[mmap.mmap] = []


def mapped_write(source: str) -> None:
    with open(f"{source}/file", "r+b") as file:
        MAPPINGS.append(mmap.mmap(file.fileno(), 0))
    MAPPINGS[-1][3] = 0


def written_in_place(source: str) -> None:
    """A file that is not copied on write; nothing but its bytes changes, and they are not written out yet."""
    opened = os.open(f"{source}/plain", os.O_WRONLY)
    os.pwrite(opened, b"y" * 4096, 4096)
    os.close(opened)


def times_restored(source: str) -> None:
    found = os.stat(f"{source}/file")
    with open(f"{source}/file", "r+b") as file:
        file.write(b"C")
    os.utime(f"{source}/file", ns=(found.st_atime_ns, found.st_mtime_ns))


def made_and_removed(source: str) -> None:
    write(f"{source}/new")
    os.unlink(f"{source}/new")


def attribute(source: str) -> None:
    os.setxattr(f"{source}/other", "user.colour", b"red!")


CHANGES: tuple[Callable[[str], None], ...] = (
    lambda source: write(f"{source}/file", b"changed" * 1000),
    mapped_write,
    written_in_place,
    times_restored,
    made_and_removed,
    attribute,
    lambda source: os.chmod(f"{source}/file", 0o600),
    lambda source: os.utime(f"{source}/file", ns=(1, 2)),
    lambda source: os.rename(f"{source}/file", f"{source}/renamed"),
    lambda source: os.rename(f"{source}/folder", f"{source}/moved"),
    lambda source: os.link(f"{source}/file", f"{source}/folder/link"),
    lambda source: os.symlink("file", f"{source}/symlink"),
    lambda source: os.unlink(f"{source}/file"),
    lambda source: os.truncate(f"{source}/file", 5),
    lambda source: os.mkdir(f"{source}/new"),
    lambda source: os.mkfifo(f"{source}/fifo"),
)


def not_copied_on_write(path: str) -> None:
    write(path)
    subprocess.run(["chattr", "+C", path], check=True)
    opened = os.open(path, os.O_WRONLY)
    os.write(opened, b"x" * 16384)
    os.close(opened)


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
@pytest.mark.parametrize("written_out", [False, True])
def test_a_changed_source_gets_a_new_base(
    btrfs_disk: Disk, person: Person, change: Callable[[str], None], written_out: bool
) -> None:
    def make(source: str) -> None:
        small(source)
        not_copied_on_write(f"{source}/plain")

    source, pool = sample(person, btrfs_disk, make)

    def life() -> Any:
        first = take("one", source, pool), facts(source)
        change(source)
        if written_out:
            os.sync()
        second = take("two", source, pool), facts(source)
        third = take("three", source, pool), facts(source)
        return [
            *first,
            *second,
            *third,
            *(facts(STORAGE.content(key, pool).lowers[0]) for key in ("one", "two", "three")),
        ]

    with all_given_back(os.path.dirname(source), pool):
        one, before, two, after, three, _, *seen = person.call(life)
        assert (one != two, two == three) == (True, True)
        assert seen == [before, after, after]
        for key in ("two", "one", "three"):
            person.call(STORAGE.remove, key, pool)


def test_a_mapping_that_is_written_again_and_again(btrfs_disk: Disk, root: Person) -> None:
    source, pool = sample(root, btrfs_disk, small)

    def life() -> Any:
        seen = []
        with open(f"{source}/file", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            for number in range(6):
                mapping[1000 * number] = number + 1
                take(f"k{number}", source, pool)
                with open(f"{STORAGE.content(f'k{number}', pool).lowers[0]}/file", "rb") as base:
                    seen.append(base.read() == mapping[:])
        return seen

    assert root.call(life) == [True] * 6
    assert len(bases(pool)) == 6


def test_access_times_are_of_the_base_too(make_disk: Callable[..., Disk], root: Person) -> None:
    disk = make_disk("btrfs")
    subprocess.run(["mount", "-o", "remount,strictatime", disk.path], check=True)
    source, pool = sample(root, disk, small)
    first = root.call(take, "one", source, pool)
    with open(f"{source}/file", "rb") as file:
        file.read()
    assert root.call(take, "two", source, pool) != first
    seen = os.stat(f"{root.call(STORAGE.content, 'two', pool).lowers[0]}/file")
    assert seen.st_atime_ns == os.stat(f"{source}/file").st_atime_ns
    assert root.call(take, "three", source, pool) == base_of("two", pool)


def test_snapshots_of_others_are_no_false_answer(btrfs_disk: Disk, root: Person) -> None:
    """They write to the source's tree, as a replay of the log does: a new base is taken, and shared from then on."""
    source, pool = sample(root, btrfs_disk, small)
    volume = os.path.dirname(source)
    first = root.call(take, "one", source, pool)
    above, opened = os.open(os.path.dirname(volume), os.O_RDONLY), os.open(volume, os.O_RDONLY)
    ioctls.snapshot(opened, "theirs", above)
    os.close(above)
    os.close(opened)
    second = root.call(take, "two", source, pool)
    assert (second != first, root.call(take, "three", source, pool) == second) == (True, True)


def test_a_replay_of_the_log_after_a_crash_is_a_change(make_disk: Callable[..., Disk], root: Person) -> None:
    """The kernel does not count it as one of the subvolume's (ctransid): it is seen by what wrote the tree last."""
    disk = make_disk("btrfs", 300)
    source, pool = sample(root, disk, small)
    first = root.call(take, "one", source, pool)
    os.sync()
    os.chmod(f"{source}/file", 0o604)
    opened = os.open(f"{source}/file", os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)
    image = f"{disk.path}.image"
    shutil.copyfile(image, f"{image}.crash")  # what a power cut would leave
    subprocess.run(["umount", disk.path], check=True)
    os.rename(f"{image}.crash", image)
    subprocess.run(["mount", "-o", "loop,noatime", image, disk.path], check=True)
    assert os.stat(f"{source}/file").st_mode & 0o777 == 0o604
    opened = os.open(source, os.O_RDONLY)
    told = ioctls.subvolume(opened)
    os.close(opened)
    opened = os.open(f"{pool}/frozen/{first}/tree", os.O_RDONLY)
    assert told.changed <= ioctls.subvolume(opened).made < told.written
    os.close(opened)
    second = root.call(take, "two", source, pool)
    assert second != first
    modes = [
        os.stat(f"{root.call(STORAGE.content, key, pool).lowers[0]}/file").st_mode & 0o777 for key in ("one", "two")
    ]
    assert modes == [0o644, 0o604]


def test_another_subvolume_in_its_place(btrfs_disk: Disk, root: Person) -> None:
    """As after a rollback: the snapshot of it has another identity, and the same numbers of transactions."""
    source, pool = sample(root, btrfs_disk, small)
    volume = os.path.dirname(source)
    top = os.path.dirname(volume)
    root.call(os.mkdir, f"{top}/pool")
    pool = f"{top}/pool"
    first = root.call(take, "one", source, pool)
    above, opened = os.open(top, os.O_RDONLY), os.open(volume, os.O_RDONLY)
    ioctls.snapshot(opened, "copy", above)
    os.close(opened)
    os.close(above)
    os.rename(volume, f"{top}/old")
    os.rename(f"{top}/copy", volume)
    assert root.call(take, "two", source, pool) != first


def test_what_is_about_to_go_is_not_taken(btrfs_disk: Disk, person: Person) -> None:
    """As the base of a key whose erasing was killed."""
    source, pool = sample(person, btrfs_disk, small)
    first = person.call(take, "one", source, pool)
    person.call(os.unlink, f"{pool}/frozen/{first}/same")
    assert person.call(take, "two", source, pool) != first


def test_without_identities_nothing_is_the_same(btrfs_disk: Disk, root: Person) -> None:
    """Subvolumes made before Linux 3.6 have none; all snapshots of them look like one another's."""
    source, pool = sample(root, btrfs_disk, small)
    root.call(take, "one", source, pool)
    folder, opened = os.open(f"{pool}/frozen", os.O_RDONLY), os.open(source, os.O_RDONLY)
    told = ioctls.subvolume(opened)
    assert len(list(shared._same_until_now(told, folder))) == 1
    assert list(shared._same_until_now(told._replace(uuid=bytes(16)), folder)) == []
    os.close(opened)
    os.close(folder)


# --- whose base is its own --------------------------------------------------------------------------------------------


def test_with_subvolumes_in_it_each_has_its_own(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, small)
    person.call(make_subvolume, f"{source}/folder/nested")
    for key in ("one", "two"):
        person.call(STORAGE.prepare, key, Source(source), pool)
        assert person.call(STORAGE.content, key, pool).lowers[0] == f"{pool}/frozen/{key}/base/source"
    for key in ("one", "two"):
        person.call(STORAGE.remove, key, pool)
    assert held(pool) == []


def test_a_lock_that_is_held_for_long_is_not_waited_for(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, small)
    person.call(take, "one", source, pool)
    person.call(take, "two", source, pool)

    def life() -> Any:
        shared._lock.__defaults__ = (0.05,)  # type: ignore[attr-defined]
        opened = os.open(f"{pool}/frozen", os.O_RDONLY)
        fcntl.flock(opened, fcntl.LOCK_EX)
        STORAGE.prepare("own", Source(source), pool)
        STORAGE.set_aside("one", pool)
        at_once = STORAGE.erase("rm-one", pool, Brief(1000, 10, 1 << 30))
        os.close(opened)
        return STORAGE.content("own", pool).lowers[0], facts(STORAGE.content("own", pool).lowers[0]), at_once

    with all_given_back(os.path.dirname(source), pool):
        lower, base, at_once = person.call(life)
        assert lower == f"{pool}/frozen/own/base/source"
        assert base == person.call(facts, source)
        assert at_once is Removal.RECLAIMING
        for key in ("own", "one", "two"):
            person.call(STORAGE.remove, key, pool)


def test_too_many_left_out_for_its_name(btrfs_disk: Disk, root: Person) -> None:
    source, pool = sample(root, btrfs_disk, small)
    omit = tuple(f"folder/{letter * 250}" for letter in "abcdefghijklmnopqrst")
    for key in ("one", "two"):
        root.call(STORAGE.prepare, key, Source(source, omit), pool)
        assert root.call(STORAGE.content, key, pool).lowers[0] == f"{pool}/frozen/{key}/base/source"


# --- what goes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_forks_end_in_any_order(btrfs_disk: Disk, person: Person, order: tuple[int, ...]) -> None:
    source, pool = sample(person, btrfs_disk, small)
    with all_given_back(os.path.dirname(source), pool):
        for number in range(3):
            person.call(take, f"k{number}", source, pool)
        for position, number in enumerate(order):
            expected = Removal.RECLAIMING if position == 2 and person.uid == 0 else Removal.GONE
            assert person.call(STORAGE.remove, f"k{number}", pool) is expected
            for left in order[position + 1 :]:
                assert person.call(facts, person.call(STORAGE.content, f"k{left}", pool).lowers[0]) == person.call(
                    facts, source
                )


def test_what_waits_to_be_erased_keeps_its_base(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, small)

    def life() -> Any:
        first = take("one", source, pool)
        STORAGE.set_aside("one", pool)
        return first, take("two", source, pool)

    with all_given_back(os.path.dirname(source), pool):
        assert len(set(person.call(life))) == 1
        assert [one.name for one in asides(pool)] == ["rm-one"]
        person.call(erase, asides(pool)[0])
        assert person.call(facts, person.call(STORAGE.content, "two", pool).lowers[0]) == person.call(facts, source)
        person.call(STORAGE.remove, "two", pool)


def test_a_user_who_may_delete_subvolumes(make_disk: Callable[..., Disk], user: Person) -> None:
    disk = make_disk("btrfs")
    subprocess.run(["mount", "-o", "remount,user_subvol_rm_allowed", disk.path], check=True)
    source, pool = sample(user, disk, small)
    with all_given_back(os.path.dirname(source), pool):
        for key in ("one", "two"):
            user.call(take, key, source, pool)
        assert "spare" not in os.listdir(f"{pool}/frozen/two")
        assert user.call(STORAGE.remove, "one", pool) is Removal.GONE
        assert user.call(STORAGE.remove, "two", pool) is Removal.RECLAIMING


def test_a_base_whose_key_somebody_removed_by_hand(btrfs_disk: Disk, root: Person) -> None:
    source, pool = sample(root, btrfs_disk, small)
    name = root.call(take, "one", source, pool)
    shutil.rmtree(f"{pool}/frozen/one")
    assert STORAGE.keys(pool) == (KeyState(name, KeyStage.HALF_MADE),)
    with all_given_back(os.path.dirname(source), pool):
        assert root.call(take, "two", source, pool) != name
        root.call(STORAGE.remove, "two", pool)
        assert STORAGE.keys(pool) == (KeyState(name, KeyStage.HALF_MADE),)
        root.call(STORAGE.remove, name, pool)


PREPARE = (
    "import sys\nfrom hostfork.storage.frozen import Frozen\nfrom hostfork.storage.contract import Source\n"
    "key, source, pool = sys.argv[1:]\nfrozen = Frozen()\nfrozen.prepare(key, Source(source), pool)\n"
)
REMOVE = (
    "import sys\nfrom hostfork.storage.frozen import Frozen\nkey, _, pool = sys.argv[1:]\nFrozen().remove(key, pool)\n"
)
CALLS = {
    "rename": "rename,renameat,renameat2",
    "symlink": "symlink,symlinkat",
    "unlink": "unlink,unlinkat,rmdir",
    "mkdir": "mkdir,mkdirat",
    "link": "link,linkat",
    "ioctl": "ioctl",
}


def watched(call: str, output: str, *options: str) -> list[str]:
    return ["strace", "-f", "-o", output, "-e", f"trace={CALLS[call]}", *options, sys.executable, "-c"]


@functools.cache
def calls_of_a_start(call: str) -> int:
    """How many such calls the program makes before it does anything."""
    imports = "".join(line + "\n" for line in PREPARE.split("\n") if " import " in line or line.startswith("import"))
    with tempfile.NamedTemporaryFile("r") as file:
        subprocess.run([*watched(call, file.name), imports], check=True)
        return sum(1 for line in file if f" {call}" in line)


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("program", [PREPARE, REMOVE], ids=["prepare", "remove"])
@pytest.mark.parametrize("others", [0, 1])
def test_sigkill_at_every_step(btrfs_disk: Disk, person: Person, call: str, program: str, others: int) -> None:
    """Whatever is left goes with the key; who shares the base keeps it."""
    source, pool = sample(person, btrfs_disk, small)
    before = person.call(facts, source)
    first = max(1, calls_of_a_start(call) - 2)
    for when in range(first, first + 100):
        if others:
            person.call(take, "other", source, pool)
        if program == REMOVE:
            person.call(take, "k", source, pool)
        inject = f"inject={CALLS[call]}:signal=SIGKILL:when={when}"
        done = person.run([*watched(call, "/dev/null", "-e", inject), program, "k", source, pool])
        killed = done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        assert killed or done.returncode == 0, done
        states = person.call(STORAGE.keys, pool)
        assert {state.key for state in states} <= {"k", "other"}
        for state in states:
            if state.stage is KeyStage.LIVE:
                assert person.call(facts, person.call(STORAGE.content, state.key, pool).lowers[0]) == before
        person.call(STORAGE.remove, "k", pool)
        if others:
            assert person.call(facts, person.call(STORAGE.content, "other", pool).lowers[0]) == before
            assert person.call(take, "more", source, pool) != ""
            person.call(STORAGE.remove, "more", pool)
            person.call(STORAGE.remove, "other", pool)
        assert held(pool) == []
        if not killed:
            break
    assert not killed
    assert subvolumes(os.path.dirname(source)) <= 1  # the folder of the keys


def test_eight_at_once(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk)
    before = person.call(facts, source)

    def all_at_once(program: str) -> None:
        started = [
            person.popen([sys.executable, "-c", program, f"k.{number}", source, pool], stdout=subprocess.DEVNULL)
            for number in range(8)
        ]
        assert [one.wait() for one in started] == [0] * 8

    with all_given_back(os.path.dirname(source), pool):
        for _ in range(2):
            all_at_once(PREPARE)
            assert len({base_of(f"k.{number}", pool) for number in range(8)}) == 1
            assert len(bases(pool)) == 1
            assert person.call(facts, person.call(STORAGE.content, "k.3", pool).lowers[0]) == before
            all_at_once(REMOVE)
            assert held(pool) == []


def test_forks_come_and_go_while_the_source_is_written(btrfs_disk: Disk, person: Person) -> None:
    """Every fork sees one state of two files that are written one after the other, and none loses its base."""
    source, pool = sample(person, btrfs_disk, small)
    loop = (
        "import os, sys\nfrom hostfork.storage.frozen import Frozen\nfrom hostfork.storage.contract import Source\n"
        "name, source, pool = sys.argv[1:]\nfrozen = Frozen()\n"
        "for number in range(12):\n"
        "    key = f'{name}.{number}'\n"
        "    frozen.prepare(key, Source(source), pool)\n"
        "    lower = frozen.content(key, pool).lowers[0]\n"
        "    first = int(open(f'{lower}/one').read())\n"
        "    second = int(open(f'{lower}/two').read())\n"
        "    assert second in (first, first - 1), (first, second)\n"
        "    frozen.remove(key, pool)\n"
    )

    def replaced(path: str, number: int) -> None:
        write(f"{path}.new", str(number).encode())
        os.rename(f"{path}.new", path)

    def write_all() -> None:
        for name in ("one", "two"):
            replaced(f"{source}/{name}", 0)

    person.call(write_all)
    started = [person.popen([sys.executable, "-c", loop, name, source, pool]) for name in ("a", "b", "c", "d")]
    number = 0
    while any(one.poll() is None for one in started):
        number += 1
        for name in ("one", "two"):
            replaced(f"{source}/{name}", number)
    assert [one.wait() for one in started] == [0] * 4
    assert held(pool) == []


def test_a_full_disk_takes_nothing_from_others(make_disk: Callable[..., Disk], root: Person) -> None:
    disk = make_disk("btrfs", 300)
    source, pool = sample(root, disk, small)
    root.call(take, "one", source, pool)
    before = root.call(facts, source)
    with open(f"{disk.path}/fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    number = 0
    with contextlib.suppress(OSError):
        for number in range(200_000):
            write(f"{disk.path}/small-{number}", b"x" * 2000)
    failed = None
    for number in range(40):
        try:
            root.call(STORAGE.prepare, f"more{number}", Source(source), pool)
        except StorageError as error:
            failed = error
            break
    assert failed is None or failed.code is Code.STORAGE_NO_SPACE, failed
    assert root.call(facts, root.call(STORAGE.content, "one", pool).lowers[0]) == before
    os.unlink(f"{disk.path}/fill")
    for key in {state.key for state in STORAGE.keys(pool)}:
        root.call(STORAGE.remove, key, pool)
    assert held(pool) == []


# --- a subvolume that appears -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [STORAGE, Btrfs()], ids=["frozen", "btrfs"])
def test_a_subvolume_made_after_the_probe_is_told(btrfs_disk: Disk, person: Person, storage: Any) -> None:
    source, pool = sample(person, btrfs_disk, small)

    def life() -> Any:
        offer = storage.probe(Source(source), pool)
        first = storage.prepare("one", Source(source), pool)
        make_subvolume(f"{source}/nested")
        second = storage.prepare("two", Source(source), pool)
        for key in ("one", "two"):
            storage.remove(key, pool)
        return offer, first, second

    offer, first, second = person.call(life)
    assert isinstance(offer, Offer)
    assert isinstance(first, Prepared)
    assert (offer.guarantees.guarantee, first.guarantee, second.guarantee) == (
        Guarantee.SNAPSHOT,
        Guarantee.SNAPSHOT,
        Guarantee.INDEPENDENT,
    )


@pytest.mark.parametrize("storage", [STORAGE, Btrfs()], ids=["frozen", "btrfs"])
def test_a_subvolume_made_as_the_snapshot_is_taken(
    btrfs_disk: Disk, root: Person, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking for nested ones and the snapshot: it would be an empty folder there."""
    source, pool = sample(root, btrfs_disk, small)
    taken = snapshot.take

    def late(*args: Any, **options: Any) -> None:
        make_subvolume(f"{source}/nested")
        taken(*args, **options)

    monkeypatch.setattr(snapshot, "take", late)
    with pytest.raises(StorageError, match="came or went beneath it meanwhile") as error:
        root.call(storage.prepare, "k", Source(source), pool)
    assert error.value.code is Code.STORAGE_SOURCE
    assert root.call(storage.keys, pool) == ()


@pytest.mark.parametrize("mode", ["btrfs", "overlay"])
def test_a_fork_is_not_less_than_its_plan(
    btrfs_disk: Disk, person: Person, hostfork: Callable[..., Any], mode: str
) -> None:
    source, pool = sample(person, btrfs_disk, small)
    make = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import storage_cases; "
    make += f"storage_cases.make_subvolume({source + '/nested'!r})"
    command = ["run", "--private", f"{source}:{mode}", "--pool", pool, "--quiesce", f'{sys.executable} -c "{make}"']
    done = hostfork(person, *command, "--", "true", check=125)
    assert "storage.source" in done.stderr
    assert "`independent`, not `snapshot`" in done.stderr
    hostfork(person, *command[:-2], "--", "true", check=0)


def test_runs_share_through_the_command_line(btrfs_disk: Disk, person: Person, hostfork: Callable[..., Any]) -> None:
    source, _ = sample(person, btrfs_disk, small)
    pool = f"{os.path.dirname(source)}/own-pool"
    for name in ("one", "two", "three"):
        command = ("run", "--name", name, "--prefer", "memory", "--private", source, "--pool", pool)
        hostfork(person, *command, "--", "touch", f"{source}/made-by-{name}", check=0)
    assert len({base_of(key, pool) for key in held(pool) if not key.startswith(".")}) == 1
    assert len(bases(pool)) == 1
    assert hostfork(person, "diff", "two").stdout == "A  made-by-two\n"
    hostfork(person, "discard", "--yes", "one", "two", "three", check=0)
    hostfork(person, "recover", check=0)
    assert held(pool) == []


def test_the_record_of_a_run_is_no_change_of_its_source(
    btrfs_disk: Disk, person: Person, hostfork: Callable[..., Any]
) -> None:
    """The state folder lies in the subvolume of the source, as in a home on Btrfs."""
    source, _ = sample(person, btrfs_disk, small)
    home = os.path.dirname(source)
    environment = {"XDG_STATE_HOME": f"{home}/state"}
    for name in ("one", "two"):
        command = ("run", "--name", name, "--prefer", "memory", "--private", source)
        hostfork(person, *command, "--", "touch", f"{source}/made-by-{name}", check=0, env=environment)
    pool = f"{home}/state/hostfork/pool"
    assert len(bases(pool)) == 1
    command = ("run", "--prefer", "memory", "--private", home, "--", "ls", "-A", f"{home}/state/hostfork")
    assert hostfork(person, *command, check=0, env=environment).stdout == ""
    hostfork(person, "discard", "--yes", "one", "two", check=0, env=environment)
    hostfork(person, "recover", check=0, env=environment)
    assert held(pool) == []


def test_recovery_finds_what_killed_runs_lay_over(
    btrfs_disk: Disk, person: Person, hostfork: Callable[..., Any]
) -> None:
    """And a base whose key somebody removed by hand."""
    source, _ = sample(person, btrfs_disk, small)
    pool = f"{os.path.dirname(source)}/own-pool"
    command = ("run", "--prefer", "memory", "--private", source, "--pool", pool)
    hostfork(person, *command, "--name", "kept", "--", "touch", f"{source}/new", check=0)
    program = os.path.join(sys.prefix, "bin", "hostfork")
    started = person.popen([program, *command, "--", "sh", "-c", "echo ready; sleep 60"], stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    started.kill()
    started.communicate()
    assert len(bases(pool)) == 1
    hostfork(person, "recover", check=0)
    keys = [name for name in held(pool) if not name.startswith(".")]
    assert [key.partition(".")[0] for key in keys] == ["kept"]
    assert hostfork(person, "diff", "kept").stdout == "A  new\n"
    shutil.rmtree(f"{pool}/frozen/{keys[0]}", ignore_errors=True)
    hostfork(person, "discard", "--yes", "kept", check=0)
    hostfork(person, "recover", check=0)
    assert held(pool) == []
