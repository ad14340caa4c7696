"""One suite for every mechanism of private storage, on every disk, as root and as an ordinary user."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hostfork.errors import Code, StorageError
from hostfork.storage import linekeys, lines
from hostfork.storage.choose import MECHANISMS, storage_of
from hostfork.storage.contract import Delta, FullTree, KeyStage, KeyState, Layer, Offer, Removal, Source, Storage
from hostfork.storage.entry import FOLDER
from hostfork.storage.tree import remove_tree
from hostfork.vocabulary import BaseContent, Guarantee, StorageKind
from rigs import DISK_KINDS, Disk, Person
from storage_cases import ROWS, Row, facts, killed_in_prepare, on_disks, prepared, sample, visible, write


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each mechanism on each disk that it works on (`disk`), or on one of them (`one_disk`)."""
    names = metafunc.fixturenames
    if "row" not in names:
        if "disk" in names:
            metafunc.parametrize("disk", DISK_KINDS, indirect=True)
        return
    on_disks(metafunc, [row for row in ROWS if row.walks] if "walking" in names else ROWS)


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Disk:
    """One of those that the test's parameters name."""
    found: Disk = request.getfixturevalue(f"{request.param}_disk")
    return found


@pytest.fixture
def walking(storage: Storage) -> Storage:
    """A mechanism that looks at every entry."""
    return storage


def test_probe_offers_and_leaves_nothing(storage: Storage, disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)
    offer = person.call(storage.probe, Source(source), pool)
    assert isinstance(offer, Offer), offer
    assert offer.mechanism is storage.mechanism
    assert os.listdir(pool) == []


def test_a_fork_sees_what_the_source_holds(storage: Storage, disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)
    before = person.call(facts, source)

    def fork() -> Any:
        storage.prepare("k", Source(source), pool)
        return visible(storage, "k", pool, facts)

    there = person.call(fork)
    offer = person.call(storage.probe, Source(source), pool)
    links = offer.guarantees.hard_links
    assert {name: _comparable(fact, links) for name, fact in there.items()} == {
        name: _comparable(fact, links) for name, fact in before.items()
    }
    assert person.call(facts, source) == before


def _comparable(fact: tuple[Any, ...], links: bool) -> tuple[Any, ...]:
    """Without the names of the same file where hard links are not kept."""
    return fact if links or len(fact) <= 7 else fact[:-1]


@pytest.mark.rig("root")
def test_the_source_is_not_touched(storage: Storage, disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)

    def stats() -> dict[str, tuple[int, int, int]]:
        found = {}
        for folder, names, files in os.walk(source):
            for name in (*names, *files):
                entry = os.lstat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = entry.st_atime_ns, entry.st_mtime_ns, entry.st_ctime_ns
        return found

    before = person.call(stats)
    person.call(storage.prepare, "k", Source(source), pool)
    assert person.call(stats) == before


def test_writes_do_not_reach_the_source(storage: Storage, disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)
    before = person.call(facts, source)

    def change(tree: str) -> None:
        write(f"{tree}/small", b"other")
        write(f"{tree}/two", b"other")
        os.unlink(f"{tree}/large")
        os.unlink(f"{tree}/plain/one")
        write(f"{tree}/created", b"new")
        os.utime(f"{tree}/script", (1, 1))

    def fork() -> None:
        storage.prepare("k", Source(source), pool)
        visible(storage, "k", pool, change)

    person.call(fork)
    assert person.call(facts, source) == before


def test_the_witness_sees_final_stats(row: Row, storage: Storage, disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)

    def fork() -> Any:
        done, seen = prepared(storage, Source(source), pool)
        content = storage.content("k", pool)
        top = content.upper if isinstance(content, Layer) else content.tree
        wrong = []
        for relative, (before, copy) in seen.items():
            for path, known in ((source, before), (top, copy)):
                now = os.lstat(os.path.join(os.fsencode(path), relative) if relative else path)
                if (now.st_ino, now.st_ctime_ns, now.st_mtime_ns, now.st_mode, now.st_size) != (
                    known.st_ino,
                    known.st_ctime_ns,
                    known.st_mtime_ns,
                    known.st_mode,
                    known.st_size,
                ):
                    wrong.append((path, relative))
        return wrong, sorted(seen), done.files

    wrong, seen, files = person.call(fork)
    assert wrong == []
    if row.walks:
        assert seen == sorted(person.call(facts, source))
        assert files == len(seen)
    else:
        assert seen == ([b""] if row.guarantee.depends_on_source else [])


def test_a_second_prepare_is_refused(storage: Storage, one_disk: Disk, person: Person) -> None:
    source, pool = sample(person, one_disk)
    person.call(storage.prepare, "k", Source(source), pool)
    there = person.call(storage.mounts, "k", pool)
    with pytest.raises(StorageError) as refused:
        person.call(storage.prepare, "k", Source(source), pool)
    assert refused.value.code is Code.STORAGE_EXISTS
    assert person.call(storage.mounts, "k", pool) == there
    assert person.call(storage.keys, pool) == (KeyState("k", KeyStage.LIVE),)


def test_mounts_and_content_are_the_same_in_a_new_process(storage: Storage, one_disk: Disk, person: Person) -> None:
    source, pool = sample(person, one_disk)

    def both() -> Any:
        return storage.mounts("k", pool), storage.content("k", pool)

    def first() -> Any:
        storage.prepare("k", Source(source), pool)
        return both()

    assert person.call(first) == person.call(both)


def test_odd_paths_of_source_pool_and_key(storage: Storage, disk: Disk, person: Person) -> None:
    top = os.path.dirname(sample(person, disk, lambda _: None)[0])
    source = os.path.join(top, os.fsdecode(b"so:u,r\\ce\n\xff"))
    pool = os.path.join(top, "p" * 200, os.fsdecode(b"po:o,l\\\n\xfe"))

    def fork() -> Any:
        os.mkdir(source)
        write(f"{source}/file", b"content")
        os.makedirs(pool, 0o700)
        offer = storage.probe(Source(source), pool)
        storage.prepare("k", Source(source), pool)
        return offer, visible(storage, "k", pool, lambda tree: sorted(facts(tree)))

    offer, names = person.call(fork)
    assert isinstance(offer, Offer), offer
    assert names == [b"", b"file"]


def test_remove_twice(storage: Storage, disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)

    def life() -> Any:
        storage.prepare("k", Source(source), pool)
        return storage.remove("k", pool), storage.remove("k", pool), storage.keys(pool)

    removed, again, left = person.call(life)
    assert removed in (Removal.GONE, Removal.RECLAIMING)
    assert (again, left) == (Removal.GONE, ())
    assert kept_in(pool) == []


def test_remove_before_anything(storage: Storage, one_disk: Disk, person: Person) -> None:
    _, pool = sample(person, one_disk)
    assert person.call(storage.remove, "k", pool) is Removal.GONE
    assert person.call(storage.keys, pool) == ()


def test_remove_copes_with_what_a_fork_leaves(storage: Storage, disk: Disk, person: Person) -> None:
    """Folders of mode 0000 and 0555, deleted base files, a used work folder; root: immutable files."""
    source, pool = sample(person, disk)

    def spoil(tree: str) -> None:
        os.makedirs(f"{tree}/new/a/b")
        write(f"{tree}/new/a/b/file", b"x")
        os.unlink(f"{tree}/small")
        for folder, mode in (("new/a/b", 0o000), ("new/a", 0o000), ("new", 0o555)):
            os.chmod(f"{tree}/{folder}", mode)

    def fork() -> None:
        storage.prepare("k", Source(source), pool)
        visible(storage, "k", pool, spoil)

    person.call(fork)
    person.call(storage.remove, "k", pool)
    assert person.call(storage.keys, pool) == ()


@pytest.fixture
def deep_sample(disk: Disk, person: Person) -> Iterator[tuple[str, str]]:
    """20 levels of 255-byte names are longer than PATH_MAX; 1,100 levels are more than the descriptors of a process."""

    def make(path: str) -> None:
        _deep(path, "d" * 255, 20)
        _deep(path, "s", 1100)

    source, pool = sample(person, disk, make)
    yield source, pool
    for line in lines.lines(pool):
        linekeys.remove(line.name, pool)
    top = os.open(os.path.dirname(source), FOLDER)
    for name in ("source", "pool"):
        remove_tree(name, top)  # other code cannot
    os.close(top)


def test_deep_paths(row: Row, storage: Storage, person: Person, deep_sample: tuple[str, str]) -> None:
    source, pool = deep_sample

    def fork() -> Any:
        done = storage.prepare("k", Source(source), pool)
        usage = storage.usage("k", pool)
        depths = visible(storage, "k", pool, lambda tree: (_depth(tree, "d" * 255), _depth(tree, "s")))
        return done.files, usage.inodes, depths

    files, inodes, depths = person.call(fork)
    assert depths == (20, 1100)
    if row.walks:
        assert files == 1 + 21 + 1101
        assert inodes == files + 1
    person.call(storage.remove, "k", pool)
    assert person.call(storage.keys, pool) == ()


def _deep(path: str, name: str, levels: int) -> None:
    folder = os.open(path, FOLDER)
    for _ in range(levels):
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, FOLDER, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=folder))
    os.close(folder)


def _depth(path: str, name: str) -> int:
    folder, depth = os.open(path, FOLDER), 0
    try:
        while True:
            inner = os.open(name, FOLDER, dir_fd=folder)
            os.close(folder)
            folder, depth = inner, depth + 1
    except FileNotFoundError:
        os.stat("bottom", dir_fd=folder)
        return depth
    finally:
        os.close(folder)


def test_usage_counts_what_is_there(row: Row, storage: Storage, one_disk: Disk, person: Person) -> None:
    source, pool = sample(person, one_disk, lambda path: write(f"{path}/file", b"x" * 8192))

    def life() -> Any:
        storage.prepare("k", Source(source), pool)
        before = storage.usage("k", pool)
        visible(
            storage,
            "k",
            pool,
            lambda tree: (write(f"{tree}/more", b"y" * 40960), os.link(f"{tree}/more", f"{tree}/m2")),
        )
        return before, storage.usage("k", pool)

    before, after = person.call(life)
    assert after.bytes - before.bytes == 40960
    assert after.inodes - before.inodes == 1
    assert after.upper_bound is row.shares


def test_a_missing_source(storage: Storage, one_disk: Disk, person: Person) -> None:
    source, pool = sample(person, one_disk)
    with pytest.raises(StorageError) as refused:
        person.call(storage.prepare, "k", Source(source + "/nothing"), pool)
    assert refused.value.code is Code.STORAGE_SOURCE
    assert person.call(storage.keys, pool) == ()
    assert not isinstance(person.call(storage.probe, Source(source + "/nothing"), pool), Offer)


def test_a_missing_key(storage: Storage, one_disk: Disk, person: Person) -> None:
    _, pool = sample(person, one_disk)
    for ask in (storage.mounts, storage.content, storage.usage):
        with pytest.raises(StorageError) as refused:
            person.call(ask, "k", pool)
        assert refused.value.code is Code.STORAGE_FAILED


@pytest.mark.parametrize("call", ["mkdir", "rename", "unlink", "unlinkat", "rmdir", "ioctl"])
@pytest.mark.parametrize("when", [1, 2, 4])
@pytest.mark.rig("strace")
def test_sigkill_leaves_only_what_keys_reports(
    row: Row, storage: Storage, one_disk: Disk, person: Person, call: str, when: int
) -> None:
    """Killed at the entry of a call of prepare or remove; then `keys` knows all that is there, `remove` cleans it."""
    source, pool = sample(person, one_disk)
    program = (
        "import sys\nsys.path.insert(0, sys.argv[4])\n"
        "from hostfork.storage.contract import Source\nfrom hostfork.vocabulary import StorageKind\n"
        "from storage_cases import implementation\nstorage = implementation(StorageKind(sys.argv[1]))\n"
        "storage.prepare('k', Source(sys.argv[2]), sys.argv[3])\nstorage.remove('k', sys.argv[3])\n"
    )
    calls = {"mkdir": "mkdir,mkdirat", "rename": "rename,renameat,renameat2"}.get(call, call)
    command = [
        "strace",
        "-f",
        "-o",
        "/dev/null",
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:signal=SIGKILL:when={when}",
    ]
    here = os.path.dirname(os.path.abspath(__file__))
    done = person.run([*command, sys.executable, "-c", program, row.kind.value, source, pool, here])
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL, 0), done
    # What a key refers to, a base that it shares, is its own as long as it is listed.
    there = [name for name in kept_in(pool) if not name.startswith(".base-")]
    states = person.call(storage.keys, pool)
    assert len(states) == len(there) <= 1
    if states and states[0].stage is KeyStage.LIVE:
        assert person.call(storage.mounts, "k", pool)
    person.call(storage.remove, "k", pool)
    assert person.call(storage.keys, pool) == ()


@pytest.mark.parametrize("at", [1, 5, 20])
def test_sigkill_during_a_copy(disk: Disk, person: Person, at: int) -> None:
    storage = storage_of(StorageKind.COPY)
    source, pool = sample(person, disk)

    assert person.call(killed_in_prepare, storage, source, pool, at) == -signal.SIGKILL
    assert person.call(storage.keys, pool) == (KeyState("k", KeyStage.HALF_MADE),)
    with pytest.raises(StorageError) as refused:
        person.call(storage.prepare, "k", Source(source), pool)
    assert refused.value.code is Code.STORAGE_EXISTS
    person.call(storage.remove, "k", pool)
    assert person.call(storage.keys, pool) == ()
    assert kept_in(pool) == []


def kept_in(pool: str) -> list[str]:
    """Everything in the folders of a pool's kinds."""
    # What is retained is no fork's, and a trial of a killed process is swept by the next.
    kinds = [kind for kind in os.listdir(pool) if kind != StorageKind.BASELINE.value and not kind.startswith(".probe-")]
    return [name for kind in kinds for name in os.listdir(f"{pool}/{kind}")]


def test_an_interrupt_leaves_nothing(walking: Storage, one_disk: Disk, person: Person) -> None:
    source, pool = sample(person, one_disk)

    def witness(relative: bytes, before: os.stat_result, copy: os.stat_result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        person.call(walking.prepare, "k", Source(source), pool, witness)
    assert person.call(walking.keys, pool) == ()


def test_guarantees_say_what_a_fork_can_do(row: Row, storage: Storage, one_disk: Disk, person: Person) -> None:
    source, pool = sample(person, one_disk)
    offer = person.call(storage.probe, Source(source), pool)

    def trial(tree: str) -> Any:
        try:
            os.rename(f"{tree}/empty-folder", f"{tree}/renamed")
            renamed = True
        except OSError:
            renamed = False
        with open(f"{tree}/two", "ab") as file:
            file.write(b"+")
        linked = os.stat(f"{tree}/two").st_ino == os.stat(f"{tree}/plain/one").st_ino
        return renamed, linked

    def fork() -> Any:
        storage.prepare("k", Source(source), pool)
        return visible(storage, "k", pool, trial)

    assert person.call(fork) == (offer.guarantees.folder_rename, offer.guarantees.hard_links)
    assert offer.guarantees.guarantee is row.guarantee
    kept = row.guarantee is Guarantee.SNAPSHOT or row.kind is StorageKind.RETAINED
    assert offer.guarantees.base_content is (BaseContent.KEPT if kept else BaseContent.WHILE_SOURCE_UNCHANGED)


def test_no_two_files_have_one_number(storage: Storage, one_disk: Disk, person: Person) -> None:
    """What `tar`, `cp -a` and `rsync -H` take for hard links of one file: the same device and inode number."""
    source, pool = sample(person, one_disk)
    offer = person.call(storage.probe, Source(source), pool)
    person.run(["sh", "-c", "for i in $(seq 300); do echo $i >number-$i; done"], cwd=source, check=True)

    def trial(tree: str) -> bool:
        for number in range(100):
            os.mkdir(f"{tree}/new-{number}")
            with open(f"{tree}/new-{number}/file", "w") as file:
                file.write(str(number))
        seen: dict[tuple[int, int], str] = {}
        for folder, folders, files in os.walk(tree):
            for name in (*folders, *files):
                found = os.lstat(os.path.join(folder, name))
                path = os.path.join(folder, name)
                other = seen.setdefault((found.st_dev, found.st_ino), path)
                if other != path and (found.st_nlink == 1 or stat.S_ISDIR(found.st_mode)):
                    return False
        return True

    def fork() -> Any:
        storage.prepare("k", Source(source), pool)
        return visible(storage, "k", pool, trial)

    assert person.call(fork) or not offer.guarantees.unique_inodes


def test_content_and_reduce(storage: Storage, disk: Disk, person: Person) -> None:
    source, pool = sample(person, disk)

    def change(tree: str) -> None:
        write(f"{tree}/small", b"changed")
        os.makedirs(f"{tree}/plain/new/inner")
        write(f"{tree}/plain/new/file", b"n")
        os.chmod(f"{tree}/closed", 0o700)
        write(f"{tree}/closed/more", b"m")
        os.chmod(f"{tree}/closed", 0o555)

    changed = [b"small", b"plain/new", b"plain/new/inner", b"plain/new/file", b"closed/more"]

    def life() -> Any:
        storage.prepare("k", Source(source), pool)
        content = storage.content("k", pool)
        visible(storage, "k", pool, change)
        top = content.upper if isinstance(content, Layer) else content.tree
        before = facts(top)
        for _ in range(2):
            storage.reduce("k", pool, changed)
        return content, storage.content("k", pool), before, facts(top)

    content, reduced, before, after = person.call(life)
    if isinstance(content, Layer) or content.base is not None:
        assert reduced == content
        assert after == before
    else:
        assert isinstance(content, FullTree)
        assert reduced == Delta(content.tree)
        stay = {b"", b"plain", b"closed", *changed}
        assert set(after) == stay
        assert after == {name: before[name] for name in stay}
        with pytest.raises(StorageError):
            person.call(storage.mounts, "k", pool)
    person.call(storage.remove, "k", pool)
    assert person.call(storage.keys, pool) == ()


def test_every_implementation_is_tried_here() -> None:
    assert {row.kind for row in ROWS} == set(MECHANISMS)
