"""Where the trees of baselines lie: in Btrfs subvolumes, as clones, or as copies; and what is left when they go."""

import os
import random
import subprocess
import sys
from typing import Any

import pytest

from hostfork.baseline.current import Facts, current
from hostfork.errors import Code, StorageError
from hostfork.storage import linekeys, reclaim
from hostfork.storage.btrfs import Btrfs
from hostfork.storage.contract import Prepared, Refusal, Source
from hostfork.storage.lines import Line
from hostfork.vocabulary import StorageKind, Stored
from rigs import Disk, Person, find_program
from storage_cases import build, facts, sample, write
from test_baseline import STORAGE, change, depth, seen, small


@pytest.fixture(params=("btrfs", "xfs"))
def sharing(request: pytest.FixtureRequest) -> Disk:
    """A disk that shares blocks."""
    found: Disk = request.getfixturevalue(f"{request.param}_disk")
    return found


def subvolumes(disk: Disk) -> list[str]:
    """The paths of all subvolumes."""
    if disk.kind != "btrfs":
        return []
    command = [find_program("btrfs") or "btrfs", "subvolume", "list", disk.path]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sorted(line.partition(" path ")[2] for line in listed.splitlines())


def erased(pool: str) -> None:
    """Erase all that is set aside, as the reclaimer does."""
    for aside in reclaim.asides(pool):
        reclaim.erase(aside)


@pytest.mark.parametrize("seed", range(4))
def test_each_fork_sees_the_source_as_it_was(seed: int, sharing: Disk, person: Person) -> None:
    """On a disk that shares blocks too; on Btrfs there is one tree at every moment, whatever was refreshed."""
    source, pool = sample(person, sharing, small)
    before = subvolumes(sharing)
    choice, living = random.Random(seed), dict[str, Any]()
    for number in range(8):
        person.call(change, source, random.Random(choice.random()), choice.randrange(12))
        key = f"k{number}"
        person.call(STORAGE.prepare, key, Source(source), pool)
        living[key] = person.call(facts, source)
        for old in choice.sample(sorted(living), choice.choice([0, 0, 1, len(living)])):
            person.call(STORAGE.remove, old, pool)
            del living[old]
        if sharing.kind == "btrfs":
            assert depth(source, pool) == 1
        for known, expected in living.items():
            assert seen(person, known, pool) == expected, (seed, number, known)
    for key in living:
        person.call(STORAGE.remove, key, pool)
    person.call(linekeys.remove, Line.of(Source(source), pool).name, pool)
    person.call(erased, pool)
    assert subvolumes(sharing) == before


def ready(source: str, pool: str) -> tuple[int, Stored]:
    """Bytes copied, and how its newest generation is stored."""
    with current(Source(source), pool) as done:
        return done.bytes, Facts.read(done.generation).stored


def test_blocks_are_shared_where_they_can_be(sharing: Disk, person: Person) -> None:
    source, pool = sample(person, sharing, build)
    assert person.call(ready, source, pool) == (0, Stored.REFLINK)
    write(f"{source}/large", os.urandom(1 << 20))
    os.chown(f"{source}/large", person.uid, person.gid)
    assert person.call(ready, source, pool) == (0, Stored.REFLINK)
    # `large` has two names, of which both are in the tree.
    top = Line.of(Source(source), pool).top()
    assert top is not None
    with open(f"{source}/large", "rb") as ours, open(f"{top.lowers[0]}/large", "rb") as kept:
        assert ours.read() == kept.read()


def test_elsewhere_it_is_copied(ext4_disk: Disk, sharing: Disk, user: Person) -> None:
    """On ext4; and from another disk, on one that shares blocks: in a subvolume there too, if it is Btrfs."""
    source, pool = sample(user, ext4_disk, lambda path: write(f"{path}/a", b"x" * 5000))
    assert user.call(ready, source, pool) == (5000, Stored.COPY)
    there = os.path.join(sharing.folder(user), "pool")
    user.call(os.mkdir, there, 0o700)
    assert user.call(ready, source, there) == (5000, Stored.COPY)
    top = Line.of(Source(source), there).top()
    assert top is not None
    assert os.path.islink(f"{top.single}/tree") is (sharing.kind == "btrfs")


def test_a_file_that_cannot_be_cloned_is_copied(btrfs_disk: Disk, user: Person) -> None:
    """One that the kernel swaps on, or that another filesystem holds; here a file of a disk that is mounted below."""
    source, pool = sample(user, btrfs_disk, small)
    os.mkdir(f"{source}/other")
    subprocess.run(["mount", "-t", "tmpfs", "none", f"{source}/other"], check=True)
    try:
        write(f"{source}/other/file", b"y" * 4000)
        os.chown(f"{source}/other/file", user.uid, user.gid)
        assert user.call(ready, source, pool) == (4000, Stored.REFLINK)
    finally:
        subprocess.run(["umount", f"{source}/other"], check=True)


def test_a_tree_in_a_subvolume_is_read_only(btrfs_disk: Disk, person: Person) -> None:
    source, pool = sample(person, btrfs_disk, small)
    person.call(ready, source, pool)
    top = Line.of(Source(source), pool).top()
    assert top is not None
    with pytest.raises(OSError, match="Read-only"):
        person.call(write, f"{top.lowers[0]}/x/one", b"z")


def fork_of(source: str, pool: str, key: str) -> Prepared:
    """A writable snapshot of the baseline, which is made equal to the source first."""
    with current(Source(source), pool) as done:
        return Btrfs().prepare(key, Source(source, omit=("plain",), retained=done.generation.path), pool)


def test_a_writable_snapshot_holds_all_of_it(btrfs_disk: Disk, person: Person) -> None:
    """As it was; what the host and other forks write later is in none; the base stays when the baseline goes."""
    source, pool = sample(person, btrfs_disk, build)
    before, expected = subvolumes(btrfs_disk), person.call(facts, source)
    person.call(fork_of, source, pool, "a")
    content = Btrfs().content("a", pool)
    assert content.base is not None
    assert person.call(facts, content.tree) == person.call(facts, content.base) == expected
    person.call(write, f"{source}/small", b"the host's")
    person.call(fork_of, source, pool, "b")
    person.call(write, f"{content.tree}/small", b"a's")
    assert person.call(facts, Btrfs().content("b", pool).tree) == person.call(facts, source)
    assert Line.of(Source(source), pool).users == 0
    person.call(linekeys.remove, Line.of(Source(source), pool).name, pool)
    person.call(erased, pool)
    assert person.call(facts, content.base) == expected
    touched = person.call(Btrfs().touched, "a", pool)
    assert touched is None if person.uid else b"small" in touched
    for key in ("a", "b"):
        person.call(Btrfs().remove, key, pool)
    # The folder of all such forks is one too, where the pool is none.
    assert [name for name in subvolumes(btrfs_disk) if not name.endswith("/pool/btrfs")] == before


def test_layers_have_no_subvolume_to_take(xfs_disk: Disk, user: Person) -> None:
    source, pool = sample(user, xfs_disk, small)
    user.call(ready, source, pool)
    top = Line.of(Source(source), pool).top()
    assert top is not None
    offered = user.call(Btrfs().probe, Source(source, retained=top.path), pool)
    assert isinstance(offered, Refusal)
    assert "not on Btrfs" in offered.reason
    with pytest.raises(StorageError) as refused:
        user.call(fork_of, source, pool, "a")
    assert refused.value.code is Code.STORAGE_SOURCE
    assert user.call(Btrfs().keys, pool) == ()


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", ["ioctl", "mkdirat,mkdir", "rename,renameat,renameat2", "rmdir", "symlink,symlinkat"])
def test_killed_anywhere_the_next_one_is_right(call: str, btrfs_disk: Disk, user: Person) -> None:
    """At each call of that kind in a refresh and the fork after it; in the end no subvolume is left."""
    source, pool = sample(user, btrfs_disk, small)
    before_all = subvolumes(btrfs_disk)
    user.call(STORAGE.prepare, "a", Source(source), pool)
    before, choice = user.call(facts, source), random.Random(call)
    here = os.path.dirname(os.path.abspath(__file__))
    program = (
        "import sys\nsys.path.insert(0, sys.argv[3])\nfrom storage_cases import OverBaseline\n"
        "from hostfork.storage.contract import Source\n"
        "OverBaseline().prepare('c', Source(sys.argv[1]), sys.argv[2])\n"
    )
    for when in (1, 2, 3, 5, 8, 13, 21):
        user.call(change, source, random.Random(choice.random()), 8)
        traced = ["strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={when}"]
        user.run([*traced, sys.executable, "-c", program, source, pool, here])
        user.call(STORAGE.remove, "c", pool)
        assert seen(user, "a", pool) == before
        user.call(STORAGE.prepare, "b", Source(source), pool)
        assert seen(user, "b", pool) == user.call(facts, source), when
        user.call(STORAGE.remove, "b", pool)
    user.call(STORAGE.remove, "a", pool)
    user.call(linekeys.remove, Line.of(Source(source), pool).name, pool)
    user.call(erased, pool)
    assert user.call(STORAGE.keys, pool) == ()
    assert os.listdir(f"{pool}/{StorageKind.BASELINE.value}") == []
    assert subvolumes(btrfs_disk) == before_all
