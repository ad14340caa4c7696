"""Whether the host wrote under a source: found on every filesystem that stamps, never claimed where it cannot be."""

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from hostfork.collect.source import SourceCheck, _Walk, source_changed
from hostfork.collect.stamp import make_probe
from hostfork.vocabulary import SourceChanged
from rigs import Disk, Person


@pytest.fixture(params=["ext4", "btrfs", "xfs"])
def trees(request: pytest.FixtureRequest, root: Person) -> tuple[str, str]:
    """A source with a few entries and a pool beside it."""
    disk: Disk = request.getfixturevalue(f"{request.param}_disk")
    folder = disk.folder(root)
    source, pool = f"{folder}/source", f"{folder}/pool"
    os.makedirs(f"{source}/d/e")
    os.mkdir(pool)
    for name in ("a", "d/b", "d/e/c"):
        with open(f"{source}/{name}", "w", encoding="ascii") as file:
            file.write("content")
    time.sleep(0.02)
    return source, pool


def _append(source: str) -> None:
    with open(f"{source}/d/e/c", "a", encoding="ascii") as file:
        file.write("more")


def _overwrite_and_set_back(source: str) -> None:
    before = os.stat(f"{source}/a")
    _write(f"{source}/a")
    os.utime(f"{source}/a", ns=(before.st_atime_ns, before.st_mtime_ns))


def _write(path: str) -> None:
    with open(path, "r+", encoding="ascii") as file:
        file.write("CONTENT")


@pytest.mark.parametrize(
    ("act", "paths"),
    [
        (lambda source: None, []),
        (lambda source: open(f"{source}/a", encoding="ascii").close(), []),
        (_append, ["d/e/c"]),
        (_overwrite_and_set_back, ["a"]),
        (lambda source: os.unlink(f"{source}/d/b"), ["d"]),
        (lambda source: os.chmod(source, 0o700), [""]),
        (lambda source: os.mkdir(f"{source}/d/new"), ["d", "d/new"]),
        (lambda source: os.rename(f"{source}/d/e", f"{source}/d/f"), ["d", "d/f"]),
    ],
)
def test_writes_after_the_probe_are_found(trees: tuple[str, str], act: Callable[[str], None], paths: list[str]) -> None:
    source, pool = trees
    probe = make_probe(source, pool)
    act(source)
    found = source_changed(source, pool, probe)
    assert found.state is (SourceChanged.CHANGED if paths else SourceChanged.UNCHANGED)
    assert sorted(found.paths) == paths
    assert os.listdir(pool) == []


def test_a_write_through_a_mapping_that_was_dirty_before(trees: tuple[str, str]) -> None:
    source, pool = trees
    with open(f"{source}/a", "r+b") as file, mmap.mmap(file.fileno(), 7) as mapped:
        mapped[0:1] = b"x"
        probe = make_probe(source, pool)
        mapped[1:2] = b"y"
        assert source_changed(source, pool, probe).paths == ("a",)


def test_omitted_paths_are_not_looked_at(trees: tuple[str, str]) -> None:
    source, pool = trees
    probe = make_probe(source, pool)
    _append(source)
    assert source_changed(source, pool, probe, ("d/e",)).state is SourceChanged.UNCHANGED


def test_a_single_file_and_a_source_that_is_gone(trees: tuple[str, str]) -> None:
    source, pool = trees
    probe = make_probe(f"{source}/a", pool)
    assert source_changed(f"{source}/a", pool, probe).state is SourceChanged.UNCHANGED
    _write(f"{source}/a")
    assert source_changed(f"{source}/a", pool, probe) == SourceCheck(SourceChanged.CHANGED, ("",))


def test_tmpfs_is_not_checked(root: Person, tmpfs_disk: Disk) -> None:
    folder = tmpfs_disk.folder(root)
    found = source_changed(folder, folder, make_probe(folder, folder))
    assert found.state is SourceChanged.NOT_CHECKED
    assert "tmpfs" in found.reason


def _fill(folder: str) -> None:
    for number in range(100_000):
        os.mknod(f"{folder}/{number}")


def test_a_pool_that_is_full_gives_not_checked(
    trees: tuple[str, str], make_disk: Callable[..., Disk], root: Person
) -> None:
    source, _ = trees
    pool = make_disk("ext4", 16).folder(root)
    probe = make_probe(source, pool)
    with pytest.raises(OSError, match="No space left"):
        _fill(pool)
    found = source_changed(source, pool, probe)
    assert found.state is SourceChanged.NOT_CHECKED
    assert f"in {pool}: No space left on device" in found.reason


def test_a_limit_gives_not_checked(trees: tuple[str, str]) -> None:
    source, pool = trees
    found = source_changed(source, pool, make_probe(source, pool), limit=-1)
    assert found.state is SourceChanged.NOT_CHECKED
    assert "longer" in found.reason


@pytest.mark.parametrize(
    ("field", "shift", "reason"),
    [("realtime_ns", 10**9, "set back"), ("ctime_ns", 10**12, "set back"), ("boot_id", 0, "started again")],
)
def test_clocks_that_cannot_be_compared(trees: tuple[str, str], field: str, shift: int, reason: str) -> None:
    source, pool = trees
    probe = make_probe(source, pool)
    value = "another" if field == "boot_id" else getattr(probe, field) + shift
    found = source_changed(source, pool, replace(probe, **{field: value}))
    assert found.state is SourceChanged.NOT_CHECKED
    assert reason in found.reason


def test_a_clock_that_was_set_forward_is_no_obstacle(trees: tuple[str, str]) -> None:
    source, pool = trees
    probe = make_probe(source, pool)
    assert source_changed(source, pool, replace(probe, realtime_ns=probe.realtime_ns - 10**9)).paths == ()


@pytest.mark.parametrize(
    ("stamp", "new"),
    [
        (10_500_000_001, True),
        (10_499_999_999, False),
        (10_500_000_000, True),
        (10_000_000_000, True),  # could be any moment of that second, and of the next on vfat
        (9_000_000_000, False),
        (10_499_999_000, False),
        (10_490_000_000, False),
    ],
)
def test_coarse_stamps_are_compared_in_their_own_unit(stamp: int, new: bool) -> None:
    assert _Walk(10_500_000_000, (), None)._is_new(stamp) is new


@pytest.mark.rig("root")
def test_a_mount_beneath_is_not_part_of_the_source(trees: tuple[str, str]) -> None:
    source, pool = trees
    libc = ctypes.CDLL(None, use_errno=True)
    probe = make_probe(source, pool)
    assert libc.mount(b"none", f"{source}/d/e".encode(), b"tmpfs", 0, None) == 0
    try:
        with open(f"{source}/d/e/host", "w", encoding="ascii"):
            pass
        found = source_changed(source, pool, probe)
    finally:
        assert libc.umount2(f"{source}/d/e".encode(), 0) == 0
    assert found.state is SourceChanged.UNCHANGED


def test_a_folder_that_cannot_be_read_gives_not_checked(user: Person, ext4_disk: Disk) -> None:
    folder = ext4_disk.folder(user)
    found = user.call(_closed_folder, folder)
    assert found.state is SourceChanged.NOT_CHECKED
    assert found.reason == "d cannot be read"


def _closed_folder(folder: str) -> SourceCheck:
    os.makedirs(f"{folder}/source/d")
    os.mkdir(f"{folder}/pool")
    os.chmod(f"{folder}/source/d", 0)
    time.sleep(0.02)
    return source_changed(f"{folder}/source", f"{folder}/pool", make_probe(f"{folder}/source", f"{folder}/pool"))
