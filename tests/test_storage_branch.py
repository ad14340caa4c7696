"""Branches of every kind of private storage, on every disk, as root and as an ordinary user."""

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from hostfork.helper.protocol import Overlay
from hostfork.storage import branching
from hostfork.storage.contract import Delta, Fill, FullTree, KeyStage, Layer, Source, Storage
from hostfork.storage.tree import remove_tree
from hostfork.vocabulary import StorageKind
from kill_steps import die_at
from rigs import Disk, Person
from storage_cases import ROWS, Row, facts, make_subvolume, on_disks, sample, visible, write

_OVERLAYS = (StorageKind.LIVE, StorageKind.FROZEN, StorageKind.RETAINED)
Facts = dict[bytes, tuple[Any, ...]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each mechanism on each disk that it works on (`disk`), or on one of them (`one_disk`)."""
    if "row" not in metafunc.fixturenames:
        return
    rows: Any = ROWS
    if "overlays" in metafunc.fixturenames:
        rows = [row for row in ROWS if row.kind in _OVERLAYS]
    if "walking" in metafunc.fixturenames:
        rows = [row for row in ROWS if row.walks]
    on_disks(metafunc, rows)


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Disk:
    """One of those that the test's parameters name."""
    found: Disk = request.getfixturevalue(f"{request.param}_disk")
    return found


@pytest.fixture
def overlays() -> None:
    """Only overlays."""


@pytest.fixture
def walking() -> None:
    """Only what looks at every entry."""


def build(root: str) -> None:
    """A small tree with what makes branches hard."""
    for folder in ("kept", "gone", "closed", "again"):
        os.mkdir(f"{root}/{folder}")
        write(f"{root}/{folder}/inside", folder.encode())
    write(f"{root}/small", b"small\n", 0o640)
    write(f"{root}/old", b"old")
    os.symlink("small", f"{root}/link")


def change(tree: str) -> None:
    """Every sort of change, what its owner may not read among them."""
    write(f"{tree}/small", b"changed", 0o600)
    os.unlink(f"{tree}/old")
    os.unlink(f"{tree}/gone/inside")
    os.rmdir(f"{tree}/gone")
    os.unlink(f"{tree}/again/inside")
    os.rmdir(f"{tree}/again")
    os.mkdir(f"{tree}/again")
    write(f"{tree}/again/other", b"other")
    os.mkdir(f"{tree}/deep")
    write(f"{tree}/deep/one", b"two names")
    os.link(f"{tree}/deep/one", f"{tree}/deep/two")
    os.setxattr(f"{tree}/small", "user.colour", b"red")
    write(f"{tree}/secret", b"nobody reads it", 0)
    write(f"{tree}/closed/new", b"new")
    os.chmod(f"{tree}/closed", 0)
    os.chmod(tree, 0o555)


def readable(tree: str) -> Facts:
    """Everything below a tree, what is closed to its owner too: a copy of the view is opened first."""
    modes = {}
    for path in (tree, f"{tree}/closed", f"{tree}/secret"):
        if os.path.lexists(path):
            modes[path] = os.lstat(path).st_mode
            os.chmod(path, modes[path] & 0o7777 | 0o700)
    return {name: (modes.get(f"{tree}/{os.fsdecode(name)}".rstrip("/"), fact[0]), *fact[1:-1])
            for name, fact in facts(tree, times=False).items()}  # fmt: skip


def enter(storage: Storage, key: str, pool: str, look: Callable[[str], Any]) -> Any:
    """As a fork is entered again: thawed, with a fresh work folder."""
    storage.thaw(key, pool)
    tree = storage.mounts(key, pool)
    if isinstance(tree, Overlay):
        above = os.open(os.path.dirname(tree.work), os.O_RDONLY)
        remove_tree(os.path.basename(tree.work), above)
        os.mkdir(tree.work, 0o700)
    return visible(storage, key, pool, look)


def seen(person: Person, storage: Storage, key: str, pool: str) -> Facts:
    """What is in a key, looked at in a branch of it that goes again: it stays as it is."""

    def looked() -> Any:
        storage.branch("look", key, pool, _FILL)
        return visible(storage, "look", pool, readable)

    found: Facts = person.call(looked)
    person.call(storage.remove, "look", pool)
    return found


def _no_write(path: str) -> None:
    raise AssertionError("nothing was reduced")


_FILL = Fill(_no_write)


def made(person: Person, disk: Disk, storage: Storage) -> str:
    """A key `k` with changes; the pool."""
    source, pool = sample(person, disk, build)

    def fork() -> None:
        storage.prepare("k", Source(source), pool)
        visible(storage, "k", pool, change)

    person.call(fork)
    return pool


def _left(person: Person, pool: str, row: Row) -> list[str]:
    return list(person.call(os.listdir, f"{pool}/{row.kind.value}"))


def test_a_branch_holds_what_its_fork_holds(row: Row, storage: Storage, disk: Disk, person: Person) -> None:
    pool = made(person, disk, storage)
    person.call(storage.branch, "b", "k", pool, _FILL)
    branch = person.call(lambda: visible(storage, "b", pool, readable))
    assert not {b"old", b"gone", b"again/inside"} & set(branch)
    assert [branch[name][0] & 0o777 for name in (b"secret", b"closed", b"")] == [0, 0, 0o555]
    assert branch == person.call(lambda: enter(storage, "k", pool, readable))
    assert [(state.key, state.stage) for state in person.call(storage.keys, pool)] == [
        ("b", KeyStage.LIVE),
        ("k", KeyStage.LIVE),
    ]


def test_siblings_and_their_fork_never_see_each_other(row: Row, storage: Storage, disk: Disk, person: Person) -> None:
    pool = made(person, disk, storage)
    for key in ("b", "c"):
        person.call(storage.branch, key, "k", pool, _FILL)

    def write_own(key: str) -> Callable[[str], None]:
        def act(tree: str) -> None:
            os.chmod(tree, 0o755)
            write(f"{tree}/small", key.encode())
            write(f"{tree}/of-{key}", key.encode())
            os.unlink(f"{tree}/deep/one")
            write(f"{tree}/again/{key}", b"")

        return act

    before = seen(person, storage, "c", pool)
    for key in ("k", "b"):
        person.call(lambda key=key: enter(storage, key, pool, write_own(key)))
    assert seen(person, storage, "c", pool) == before
    person.call(storage.branch, "bb", "b", pool, _FILL)
    person.call(lambda: enter(storage, "c", pool, write_own("c")))
    for key, whose in (("k", "k"), ("b", "b"), ("c", "c"), ("bb", "b")):
        names = set(person.call(lambda key=key: enter(storage, key, pool, _names)))
        assert {name for name in names if name.startswith("of-")} == {f"of-{whose}"}
        assert f"again/{whose}" in names
        assert {"deep/one", "deep/two"} & names == {"deep/two"}


def _names(tree: str) -> list[str]:
    """The names below a tree, but for what is closed."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), tree) for folder, _, names in os.walk(tree) for name in names
    )


def test_the_content_tells_only_a_branchs_own_changes(
    row: Row, storage: Storage, one_disk: Disk, person: Person
) -> None:
    pool = made(person, one_disk, storage)
    person.call(storage.branch, "b", "k", pool, _FILL)
    content = person.call(storage.content, "b", pool)
    whole = person.call(storage.content, "k", pool)
    if isinstance(content, Layer):
        assert isinstance(whole, Layer)
        assert person.call(os.listdir, content.upper) == []
        assert content.lowers == (whole.upper, *whole.lowers)
        assert sorted(person.call(os.listdir, whole.upper)) == [
            "again", "closed", "deep", "gone", "old", "secret", "small"
        ]  # fmt: skip
        return
    assert isinstance(content, FullTree)
    base = content.base or content.origin
    assert base is not None
    assert person.call(_names, base) == person.call(_names, content.tree)


def test_whichever_goes_first_nothing_is_left(row: Row, storage: Storage, one_disk: Disk, person: Person) -> None:
    pool = made(person, one_disk, storage)

    def round_of(order: tuple[str, ...]) -> None:
        remaining = {"k", "b", "c", "bb"}
        for key in order:
            expected = {one: seen(person, storage, one, pool) for one in remaining - {key}}
            person.call(storage.remove, key, pool)
            remaining.remove(key)
            assert {state.key for state in person.call(storage.keys, pool)} == remaining
            for one, there in expected.items():
                assert seen(person, storage, one, pool) == there

    orders = [("k", "b", "c", "bb"), ("bb", "c", "b", "k"), ("b", "k", "bb", "c"), ("c", "bb", "k", "b")]
    for order in orders:
        for key, of in (("b", "k"), ("c", "k"), ("bb", "b")):
            person.call(storage.branch, key, of, pool, _FILL)
        round_of(order)
        assert _left(person, pool, row) == []
        if order is not orders[-1]:
            source = os.path.join(os.path.dirname(pool), "source")
            person.call(storage.prepare, "k", Source(source), pool)


def test_a_fork_takes_its_changes_back_when_its_branches_are_gone(
    overlays: None, storage: Storage, disk: Disk, person: Person
) -> None:
    pool = made(person, disk, storage)
    upper = person.call(storage.content, "k", pool).upper
    inode = person.call(os.lstat, f"{upper}/small").st_ino
    person.call(storage.branch, "b", "k", pool, _FILL)
    person.call(storage.remove, "b", pool)
    person.call(storage.thaw, "k", pool)
    after = person.call(storage.content, "k", pool).upper
    assert after == upper
    assert person.call(os.lstat, f"{after}/small").st_ino == inode
    assert {state.key for state in person.call(storage.keys, pool)} == {"k"}


def test_a_fork_that_is_in_use_is_copied(overlays: None, storage: Storage, disk: Disk, person: Person) -> None:
    pool = made(person, disk, storage)
    before = person.call(storage.mounts, "k", pool)
    person.call(storage.branch, "b", "k", pool, Fill(_no_write, mounted=True))
    assert person.call(storage.mounts, "k", pool) == before
    branch = seen(person, storage, "b", pool)
    assert branch == person.call(lambda: enter(storage, "k", pool, readable))
    person.call(storage.remove, "k", pool)
    assert seen(person, storage, "b", pool) == branch


def test_what_lies_too_deep_is_copied_into_one_layer(
    overlays: None, storage: Storage, disk: Disk, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branching, "DEEPEST", len(_lowers(person, disk, storage)) + 2)
    pool = made(person, disk, storage)
    above = "k"
    depths = []
    for number, key in enumerate(("a", "b", "c", "d")):
        person.call(storage.branch, key, above, pool, _FILL)

        def act(tree: str, number: int = number) -> None:
            os.chmod(tree, 0o755)
            write(f"{tree}/round", b"%d" % number)
            write(f"{tree}/again/{number}", b"")
            if number:
                os.unlink(f"{tree}/again/{number - 1}")

        person.call(lambda key=key, act=act: enter(storage, key, pool, act))
        depths.append(len(person.call(storage.content, key, pool).lowers))
        above = key
    assert max(depths) <= branching.DEEPEST
    assert depths[2] < depths[1]
    names = person.call(lambda: enter(storage, "d", pool, lambda tree: sorted(os.listdir(f"{tree}/again"))))
    assert names == ["3", "other"]
    assert seen(person, storage, "d", pool)[b"closed"][0] & 0o777 == 0
    for key in ("k", "a", "b", "c"):
        person.call(storage.remove, key, pool)
    assert set(seen(person, storage, "d", pool)) >= {b"small", b"again/3", b"deep/two", b"closed/new", b"secret"}


def _lowers(person: Person, disk: Disk, storage: Storage) -> tuple[str, ...]:
    found: tuple[str, ...] = person.call(storage.content, "k", made(person, disk, storage)).lowers
    return found


def test_what_was_reduced_is_written_anew(walking: None, storage: Storage, one_disk: Disk, person: Person) -> None:
    pool = made(person, one_disk, storage)

    def fill(path: str) -> None:
        os.mkdir(path)
        write(f"{path}/written", b"w")

    def branch() -> Any:
        storage.reduce("k", pool, {b"small"})
        storage.branch("b", "k", pool, Fill(fill))
        storage.reduce("b", pool, {b"written"})
        return storage.content("b", pool), storage.content("k", pool)

    content, old = person.call(branch)
    assert old == Delta(old.tree)
    assert content == Delta(content.tree, content.origin)
    assert person.call(os.listdir, content.origin) == ["written"]


def test_a_single_file_is_branched(ext4_disk: Disk, person: Person) -> None:
    storage = next(row.storage for row in ROWS if row.kind is StorageKind.COPY)
    source, pool = sample(person, ext4_disk, build)

    def fork() -> bytes:
        storage.prepare("k", Source(f"{source}/small"), pool)
        with open(storage.mounts("k", pool).source, "ab") as file:  # type: ignore[union-attr]
            file.write(b"more")
        storage.branch("b", "k", pool, _FILL)
        with open(storage.mounts("b", pool).source, "rb") as file:  # type: ignore[union-attr]
            return file.read()

    assert person.call(fork) == b"small\nmore"


@pytest.mark.rig("btrfs")
@pytest.mark.parametrize("kind", [StorageKind.FROZEN, StorageKind.BTRFS], ids=lambda kind: kind.value)
def test_nested_subvolumes_are_branched_with_their_fork(btrfs_disk: Disk, person: Person, kind: StorageKind) -> None:
    storage = next(row.storage for row in ROWS if row.kind is kind)

    def nested(root: str) -> None:
        build(root)
        make_subvolume(f"{root}/nested")
        write(f"{root}/nested/file", b"nested")

    source, pool = sample(person, btrfs_disk, nested)

    def fork() -> None:
        storage.prepare("k", Source(source), pool)
        visible(storage, "k", pool, lambda tree: write(f"{tree}/nested/file", b"changed"))

    def read(tree: str) -> bytes:
        with open(f"{tree}/nested/file", "rb") as file:
            return file.read()

    person.call(fork)
    person.call(storage.branch, "b", "k", pool, _FILL)
    person.call(storage.branch, "c", "k", pool, Fill(_no_write, mounted=True))
    person.call(lambda: enter(storage, "k", pool, lambda tree: write(f"{tree}/nested/file", b"again")))
    assert [person.call(lambda key=key: enter(storage, key, pool, read)) for key in ("k", "b", "c")] == [
        b"again", b"changed", b"changed"
    ]  # fmt: skip
    for key in ("k", "b", "c"):
        person.call(storage.remove, key, pool)
    assert person.call(os.listdir, f"{pool}/{kind.value}") == []


# --- killed ----------------------------------------------------------------------------------------------------------

_STEPS = ("mkdir", "link", "symlink", "rename", "unlink", "rmdir", "chmod", "utime")


def _killed(person: Person, at: int, act: Callable[[], Any]) -> bool:
    """Whether a process that does this was killed at that step, or was done before."""

    def attempt() -> int:
        pid = os.fork()
        if pid == 0:
            try:
                die_at(at, (os, _STEPS), (branching, ("renameat2",)))
                act()
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    status = person.call(attempt)
    assert status in (0, -signal.SIGKILL)
    return bool(status)


@pytest.mark.parametrize("of", ["fresh", "mounted"])
def test_a_branch_that_is_killed_leaves_its_fork_whole_and_nothing_else(
    overlays: None, row: Row, storage: Storage, disk: Disk, person: Person, of: str
) -> None:
    pool = made(person, disk, storage)
    before = seen(person, storage, "k", pool)
    person.call(storage.thaw, "k", pool)
    fill = Fill(_no_write, mounted=of == "mounted")
    there = _left(person, pool, row)
    for at in itertools.count(1):
        if not _killed(person, at, lambda: storage.branch("b", "k", pool, fill)):
            break
        person.call(storage.remove, "b", pool)
        person.call(storage.tidy, "k", pool)
        assert seen(person, storage, "k", pool) == before
        person.call(storage.thaw, "k", pool)
        assert _left(person, pool, row) == there
    assert at > 5
    assert seen(person, storage, "b", pool) == before


def test_a_thaw_that_is_killed_leaves_all_as_it_was(
    overlays: None, row: Row, storage: Storage, one_disk: Disk, person: Person
) -> None:
    pool = made(person, one_disk, storage)
    before = seen(person, storage, "k", pool)
    for branched in (False, True):
        for at in itertools.count(1):
            person.call(storage.branch, "b", "k", pool, _FILL)
            if not branched:
                person.call(storage.remove, "b", pool)
            killed = _killed(person, at, lambda: storage.thaw("k", pool))
            for key in ("k", "b") if branched else ("k",):
                assert seen(person, storage, key, pool) == before
            person.call(storage.remove, "b", pool)
            person.call(storage.thaw, "k", pool)
            assert sorted(state.key for state in person.call(storage.keys, pool)) == ["k"]
            if not killed:
                break
        assert at > 2
    person.call(storage.branch, "b", "k", pool, _FILL)
    for key in ("k", "b"):
        person.call(storage.remove, key, pool)
    assert _left(person, pool, row) == []


def test_what_a_killed_branch_left_goes_with_its_fork(
    overlays: None, row: Row, storage: Storage, one_disk: Disk, person: Person
) -> None:
    pool = made(person, one_disk, storage)
    source = os.path.join(os.path.dirname(pool), "source")
    for at in itertools.count(1):
        killed = _killed(person, at, lambda: storage.branch("b", "k", pool, _FILL))
        for key in ("b", "k") if at % 2 else ("k", "b"):
            person.call(storage.remove, key, pool)
        assert _left(person, pool, row) == []
        source = os.path.join(os.path.dirname(pool), "source")
        person.call(storage.prepare, "k", Source(source), pool)
        if not killed:
            break
