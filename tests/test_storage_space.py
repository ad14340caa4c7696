"""What private storage takes, as the filesystem itself tells it: on real ones that share blocks, and that do not."""

import os
import subprocess
import time

import pytest

from hostfork.storage.clone import clone
from hostfork.storage.contract import Delta, FullTree, Layer
from hostfork.storage.extents import extents
from hostfork.storage.space import Space, space_of, space_of_tree

MIB = 1 << 20


def write(path, size, at=0):
    """Bytes that no filesystem makes smaller, on the disk."""
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.seek(at)
        file.write(os.urandom(size))
        file.flush()
        os.fsync(file.fileno())


def cloned(source, target):
    with open(source, "rb") as file, open(target, "wb") as out:
        clone(file.fileno(), out.fileno())
        os.fsync(out.fileno())


def blocks(*paths):
    return sum(os.lstat(path).st_blocks * 512 for path in paths)


@pytest.fixture(params=["xfs_disk", "btrfs_disk"])
def sharing(request, root):
    """A folder on a filesystem that shares blocks."""
    return request.getfixturevalue(request.param).folder(root)


def test_all_of_a_plain_tree_is_its_own(disk, root):
    folder = disk.folder(root)
    write(f"{folder}/one", MIB)
    os.link(f"{folder}/one", f"{folder}/two")
    os.mkdir(f"{folder}/d")
    write(f"{folder}/d/hole", 4096, at=8 * MIB)
    os.symlink("one", f"{folder}/link")
    names = ("", "one", "d", "d/hole", "link")
    found = space_of_tree(folder)
    assert (found.exclusive, found.shared, found.upper_bound) == (
        blocks(*(f"{folder}/{name}" for name in names)),
        0,
        False,
    )
    assert found.apparent == MIB + 8 * MIB + 4096
    assert found.inodes == 5


def test_shared_blocks_are_told_from_own_ones(sharing):
    os.mkdir(f"{sharing}/source")
    os.makedirs(f"{sharing}/key/tree")
    write(f"{sharing}/source/a", 4 * MIB)
    cloned(f"{sharing}/source/a", f"{sharing}/key/tree/a")
    found = space_of(Delta(f"{sharing}/key/tree"))
    own = blocks(f"{sharing}/key", f"{sharing}/key/tree")
    assert (found.exclusive - own, found.shared, found.apparent) == (0, 4 * MIB, 4 * MIB)
    write(f"{sharing}/key/tree/a", MIB, at=MIB)
    found = space_of(FullTree(f"{sharing}/key/tree"))
    assert (found.exclusive - own, found.shared) == (MIB, 3 * MIB)
    os.unlink(f"{sharing}/source/a")
    deadline = time.monotonic() + 30
    while found.shared and time.monotonic() < deadline:  # the kernel frees it in the background
        os.sync()
        found = space_of(FullTree(f"{sharing}/key/tree"))
    assert (found.exclusive - own, found.shared, found.upper_bound) == (4 * MIB, 0, False)


def test_a_file_with_many_extents_is_read_to_its_end(sharing):
    """More than one answer of the kernel holds."""
    write(f"{sharing}/source", 1300 * 8192)
    cloned(f"{sharing}/source", f"{sharing}/many")
    with open(f"{sharing}/many", "r+b", buffering=0) as file:
        for number in range(1300):
            file.seek(number * 8192)
            file.write(b"x" * 4096)
        os.fsync(file.fileno())
        found = extents(file.fileno())
    assert found == (1300 * 4096, 1300 * 4096, True, False)


def test_what_files_of_one_tree_share_makes_it_at_least_that(sharing):
    """Whether anybody else has these blocks too is not told: it is called what it is."""
    os.mkdir(f"{sharing}/d")
    write(f"{sharing}/d/a", 4 * MIB)
    assert not space_of_tree(f"{sharing}/d").lower_bound
    cloned(f"{sharing}/d/a", f"{sharing}/d/b")
    found = space_of_tree(f"{sharing}/d")
    assert (found.exclusive < MIB, found.shared, found.apparent) == (True, 4 * MIB, 8 * MIB)
    assert (found.lower_bound, found.upper_bound) == (True, False)
    cloned(f"{sharing}/d/a", f"{sharing}/outside")
    os.unlink(f"{sharing}/d/b")
    assert not space_of_tree(f"{sharing}/d").lower_bound


def test_of_a_snapshot_only_what_was_written_counts(btrfs_disk, root):
    folder = btrfs_disk.folder(root)
    subprocess.run(["btrfs", "-q", "subvolume", "create", f"{folder}/source"], check=True)
    for name in ("kept", "written"):
        write(f"{folder}/source/{name}", MIB)
    for options, name in ((["-r"], "base"), ([], "tree")):
        subprocess.run(
            ["btrfs", "-q", "subvolume", "snapshot", *options, f"{folder}/source", f"{folder}/{name}"], check=True
        )
    write(f"{folder}/tree/written", MIB)
    write(f"{folder}/tree/new", 2 * MIB)
    for touched in (None, (b"written", b"new", b"")):
        found = space_of(FullTree(f"{folder}/tree", f"{folder}/base"), touched)
        # Of a snapshot the kernel tells no more than that somebody may hold the rest of an extent.
        assert found.exclusive >= 3 * MIB
        assert found.exclusive + found.shared <= 3 * MIB + 65536
        assert (found.apparent, found.base_beside) == (3 * MIB, True)


def test_a_compressed_file_takes_at_most_that(btrfs_disk, root):
    folder = btrfs_disk.folder(root)
    os.mkdir(f"{folder}/d")
    subprocess.run(["chattr", "+c", f"{folder}/d"], check=True)
    with open(f"{folder}/d/zeros", "wb") as file:
        file.write(b"zero" * MIB)
        file.flush()
        os.fsync(file.fileno())
    assert space_of_tree(f"{folder}/d").upper_bound


def test_a_layer_counts_what_lies_in_it(ext4_disk, root):
    folder = ext4_disk.folder(root)
    os.mkdir(f"{folder}/upper")
    write(f"{folder}/upper/a", MIB)
    layer = Layer(f"{folder}/upper", ("/source",))
    assert space_of(layer) == Space(MIB, blocks(f"{folder}/upper", f"{folder}/upper/a"), 0, 2)
    assert space_of(layer, over_snapshot=True).base_beside


def test_a_file_closed_to_its_reader_is_an_upper_bound(xfs_disk, user):
    folder = xfs_disk.folder(user)

    def look():
        write(f"{folder}/a", MIB)
        os.chmod(f"{folder}/a", 0)
        return space_of_tree(folder)

    found = user.call(look)
    assert (found.upper_bound, found.apparent) == (True, MIB)
    assert found.exclusive >= MIB


@pytest.mark.rig("root")
def test_generations_that_share_blocks_are_at_least_that(hostfork, root, btrfs_disk):
    """A baseline of two generations, of which the older one is used: what they share goes with it, and is in no sum."""
    project, pool = f"{btrfs_disk.folder(root)}/p", f"{btrfs_disk.folder(root)}/pool"
    os.mkdir(project)
    for name in ("kept", "written"):
        with open(f"{project}/{name}", "wb") as file:
            file.write(os.urandom(1 << 20))
    os.sync()
    hostfork(root, "baseline", "create", "mono", "--from", project, "--pool", pool, check=0)
    hostfork(root, "run", "--base", "mono", "--name", "one", "--", "touch", f"{project}/x", check=0)
    with open(f"{project}/written", "ab") as file:
        file.write(b"more")
    hostfork(root, "baseline", "refresh", "mono", check=0)
    os.sync()
    (line,) = (line for line in hostfork(root, "usage", check=0).stdout.split("\n") if line.startswith("mono"))
    assert "at least" in line
    hostfork(root, "discard", "one", "--yes", check=0)
    hostfork(root, "baseline", "remove", "mono", check=0)
