"""Baselines that `--private` makes by itself: equal to their source each time, and never changed under a fork."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

import rigs
from collect_rig import CONTENTS, NAMES, VERBS, act
from hostfork.baseline import current as making
from hostfork.baseline.current import current
from hostfork.errors import Code, StorageError, UnfitError
from hostfork.storage import lines
from hostfork.storage.contract import Refusal, Source
from hostfork.storage.lines import Line
from hostfork.storage.retained import Retained, users_of
from hostfork.values import replace
from rigs import Disk, Person
from storage_cases import OverBaseline, build, enter_namespaces, facts, mounted, sample, write

STORAGE = OverBaseline()
KILLED_AT = (
    "mkdirat,mkdir", "rename,renameat,renameat2", "unlink,unlinkat", "rmdir", "symlink,symlinkat", "link,linkat",
    "mknod,mknodat", "openat", "setxattr,fsetxattr",
)  # fmt: skip
FOR_ROOT = ("close", "acl")
"""What a user cannot read cannot be taken, and a user namespace shows only its own ids."""


def change(source: str, choice: random.Random, times: int) -> None:
    """Some random actions in a source."""
    verbs = [verb for verb in VERBS if os.geteuid() == 0 or verb not in FOR_ROOT]
    for _ in range(times):
        act(source, choice.choice(verbs), choice.randrange(200), choice.randrange(200), choice.choice(NAMES),
            choice.choice(CONTENTS))  # fmt: skip


def small(root: str) -> None:
    """A tree for random actions."""
    for name in ("d/e/f", "d/g", "x"):
        os.makedirs(f"{root}/{name}")
        write(f"{root}/{name}/one", name.encode())
    os.link(f"{root}/x/one", f"{root}/d/two")


def seen(person: Person, key: str, pool: str) -> Any:
    """What a fork shows. Its upper folder is empty, and serves one mount: here others are used, any number of times."""

    def look() -> Any:
        tree = STORAGE.mounts(key, pool)
        room = tempfile.mkdtemp(dir=pool)
        os.mkdir(f"{room}/work")
        subprocess.run(["cp", "-a", tree.upper, f"{room}/upper"], check=True)
        enter_namespaces()
        return facts(mounted(tree._replace(upper=f"{room}/upper", work=f"{room}/work")))

    return person.call(look)


def depth(source: str, pool: str) -> int:
    top = Line.of(Source(source), pool).top()
    assert top is not None
    return len(top.trees)


@pytest.mark.parametrize("seed", range(12))
def test_each_fork_sees_the_source_as_it_was(seed: int, ext4_disk: Disk, person: Person) -> None:
    """Forks come and go while the host changes: each shows its own moment, whatever was refreshed and merged since."""
    source, pool = sample(person, ext4_disk, small)
    choice, living = random.Random(seed), dict[str, Any]()
    for number in range(14):
        person.call(change, source, random.Random(choice.random()), choice.randrange(12))
        key = f"k{number}"
        person.call(STORAGE.prepare, key, Source(source), pool)
        living[key] = person.call(facts, source)
        for old in choice.sample(sorted(living), choice.choice([0, 0, 1, len(living)])):
            person.call(STORAGE.remove, old, pool)
            del living[old]
        for known, expected in living.items():
            assert seen(person, known, pool) == expected, (seed, number, known)
    for key in living:
        person.call(STORAGE.remove, key, pool)
    person.call(STORAGE.prepare, "last", Source(source), pool)
    assert depth(source, pool) == 1
    assert seen(person, "last", pool) == person.call(facts, source)
    person.call(STORAGE.remove, "last", pool)


def test_with_everything_that_a_tree_can_hold(ext4_disk: Disk, person: Person) -> None:
    """Changed all over while a fork lives, so that all of it goes through a layer; then merged."""
    source, pool = sample(person, ext4_disk)
    person.call(STORAGE.prepare, "a", Source(source), pool)
    before = person.call(facts, source)

    def shake() -> None:
        for folder, names, files in os.walk(source):
            if os.path.basename(folder) != "sealed":
                for name in (*names, *files):
                    path = os.path.join(folder, name)
                    os.utime(path, ns=(1, os.lstat(path).st_mtime_ns + 1), follow_symlinks=False)

    person.call(shake)
    person.call(STORAGE.prepare, "b", Source(source), pool)
    assert depth(source, pool) == 2
    after = person.call(facts, source)
    assert seen(person, "a", pool) == before
    assert seen(person, "b", pool) == after
    for key in ("a", "b"):
        person.call(STORAGE.remove, key, pool)
    person.call(STORAGE.prepare, "c", Source(source), pool)
    assert depth(source, pool) == 1
    assert seen(person, "c", pool) == after


def test_nothing_is_copied_where_nothing_changed(ext4_disk: Disk, person: Person) -> None:
    source, pool = sample(person, ext4_disk)

    def twice() -> tuple[int, int]:
        with current(Source(source), pool) as first:
            pass
        with current(Source(source), pool) as second:
            return first.files, second.files

    first, second = person.call(twice)
    assert (first > 20, second) == (True, 0)
    write(f"{source}/plain/inside", b"changed")
    assert person.call(twice) == (1, 0)


def test_a_write_through_a_mapping_that_was_dirty_is_seen(ext4_disk: Disk, user: Person) -> None:
    """It moves no ctime until the kernel has written the page out: what was young when it was taken is read again."""
    source, pool = sample(user, ext4_disk, small)
    path, keys = f"{source}/d/g/one", iter(map("k{}".format, range(100)))
    user.call(STORAGE.prepare, next(keys), Source(source), pool)
    program = (
        "import mmap, os, sys\nmapped = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)\n"
        "for line in sys.stdin:\n    mapped[0:1] = line[0].encode()\n    print(line, end='', flush=True)\n"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with user.popen([sys.executable, "-c", program, path], **pipes) as writer:
        for _ in range(10):
            written(writer, "1")
            user.call(STORAGE.prepare, next(keys), Source(source), pool)
            taken = os.stat(path).st_ctime_ns
            written(writer, "2")
            if os.stat(path).st_ctime_ns == taken:  # else the kernel wrote it out just then
                break
        else:
            raise AssertionError("each write moved the ctime")
        key = next(keys)
        user.call(STORAGE.prepare, key, Source(source), pool)
        writer.stdin.close()
    with open(path, "rb") as file:
        assert file.read(1) == b"2"
    assert seen(user, key, pool)[b"d/g/one"] == user.call(facts, source)[b"d/g/one"]


def written(writer: Any, letter: str) -> None:
    """Let the writer write a letter through its mapping."""
    writer.stdin.write(f"{letter}\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == f"{letter}\n"


def test_what_is_being_written_is_never_stored_torn(ext4_disk: Disk, user: Person) -> None:
    """A file that is rewritten all the time is refused by name, at the first copy and at a later walk."""
    source, pool = sample(user, ext4_disk, small)
    user.call(STORAGE.prepare, "a", Source(source), pool)
    program = (
        "import os, sys\nfile = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)\n"
        "os.write(file, os.urandom(60_000_000))\nwhile True: os.pwrite(file, os.urandom(1000), 0)\n"
    )
    with user.popen([sys.executable, "-c", program, f"{source}/x/big"]) as writer:
        try:
            rigs.wait_until(
                lambda: os.path.exists(f"{source}/x/big") and os.stat(f"{source}/x/big").st_size == 60_000_000
            )
            with pytest.raises(StorageError) as refused:
                user.call(STORAGE.prepare, "b", Source(source), pool)
        finally:
            writer.kill()
    assert refused.value.code is Code.STORAGE_UNSTABLE
    assert any(f"{source}/x/big" in line for line in refused.value.details)
    assert sorted(seen(user, "a", pool)) == sorted([b"", b"d", b"d/e", b"d/e/f", b"d/e/f/one", b"d/g", b"d/g/one",
                                                    b"d/two", b"x", b"x/one"])  # fmt: skip


def make_whiteout(source: str) -> None:
    os.mknod(f"{source}/d/hole", 0o020000, 0)


def make_mark(source: str) -> None:
    os.setxattr(f"{source}/d/g", "user.overlay.opaque", b"y")


@pytest.mark.parametrize("make", [make_whiteout, make_mark])
@pytest.mark.parametrize("later", [False, True])
def test_a_tree_that_no_overlay_can_show(
    make: Callable[[str], None], later: bool, ext4_disk: Disk, person: Person
) -> None:
    """Found by the walk; from then on another mechanism is offered at once, until it is gone."""
    source, pool = sample(person, ext4_disk, small)
    if later:
        person.call(STORAGE.prepare, "a", Source(source), pool)
        person.call(STORAGE.remove, "a", pool)
    person.call(make, source)
    with pytest.raises(UnfitError) as refused:
        person.call(STORAGE.prepare, "b", Source(source), pool)
    assert refused.value.path in (f"{source}/d/hole", f"{source}/d/g")
    assert STORAGE.keys(pool) == ()
    offer = person.call(Retained().probe, Source(source), pool)
    assert isinstance(offer, Refusal)
    assert str(refused.value.path) in offer.reason


def test_sources_that_leave_out_different_things_have_their_own(ext4_disk: Disk, person: Person) -> None:
    source, pool = sample(person, ext4_disk, small)
    person.call(STORAGE.prepare, "a", Source(source), pool)
    person.call(STORAGE.prepare, "b", Source(source, ("d/e", "x/one")), pool)
    there = seen(person, "b", pool)
    assert b"d/e/f" not in there
    assert there[b"x/one"][3] == 0
    assert b"d/e/f/one" in seen(person, "a", pool)
    os.rmdir(person.call(_emptied, f"{source}/d/e"))
    write(f"{source}/d/e", b"a file where a folder was left out")
    person.call(STORAGE.prepare, "c", Source(source, ("d/e", "x/one")), pool)
    assert not os.path.isdir(os.path.join(source, "d/e"))
    assert seen(person, "c", pool)[b"d/e"][3] == 0


def _emptied(path: str) -> str:
    os.unlink(f"{path}/f/one")
    os.rmdir(f"{path}/f")
    return path


def test_one_that_was_not_on_disk_when_the_machine_went_down_is_taken_anew(
    ext4_disk: Disk, user: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, pool = sample(user, ext4_disk, small)
    user.call(STORAGE.prepare, "a", Source(source), pool)
    user.call(STORAGE.remove, "a", pool)
    monkeypatch.setattr(making, "boot_id", lambda: "another")

    def again() -> int:
        with current(Source(source), pool) as ready:
            return ready.files

    assert user.call(again) > 0
    assert user.call(again) == 0


def test_more_generations_than_an_overlay_may_have_layers(
    ext4_disk: Disk, user: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostfork.baseline.refresh.DEEPEST", 4)
    source, pool = sample(user, ext4_disk, small)
    expected = []
    for number in range(7):
        write(f"{source}/x/one", b"%d" % number)
        user.call(STORAGE.prepare, f"k{number}", Source(source), pool)
        expected.append(user.call(facts, source))
        assert depth(source, pool) <= 4
    assert [seen(user, f"k{number}", pool) for number in range(7)] == expected


def test_the_documented_depth_mounts(ext4_disk: Disk, person: Person) -> None:
    source, pool = sample(person, ext4_disk, small)
    for number in range(lines.DEEPEST + 2):
        write(f"{source}/x/one", b"%d" % number)
        person.call(STORAGE.prepare, f"k{number}", Source(source), pool)
    wanted = lines.DEEPEST - 1
    assert len(STORAGE.content(f"k{wanted}", pool).lowers) == lines.DEEPEST
    assert seen(person, f"k{wanted}", pool)[b"x/one"][3] == 2


def test_two_at_once(ext4_disk: Disk, user: Person) -> None:
    """One makes the baseline, the other waits and says so; it is made once."""
    source, pool = sample(user, ext4_disk, small)
    program = (
        "import sys\nfrom hostfork.baseline.current import current\nfrom hostfork.storage.contract import Source\n"
        "with current(Source(sys.argv[1]), sys.argv[2], None, lambda: print('waits', flush=True)) as ready:\n"
        "    print(ready.files, flush=True)\n    input()\n"
    )
    command = [sys.executable, "-c", program, source, pool]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with user.popen(command, **pipes) as first:
        assert int(first.stdout.readline()) > 0
        with user.popen(command, **pipes) as second:
            assert second.stdout.readline() == "waits\n"
            first.communicate("\n")
            assert second.stdout.readline() == "0\n"
            second.communicate("\n")


def resident(path: str) -> int:
    """The bytes of a file that are in memory, as the kernel says for a mapping of it."""
    done = subprocess.run(["fincore", "--bytes", "--noheadings", "-o", "res", path], check=True, capture_output=True)
    return int(done.stdout)


@pytest.mark.skipif(shutil.which("fincore") is None, reason="there is no fincore")
def test_what_one_fork_read_is_in_memory_for_all(ext4_disk: Disk, person: Person) -> None:
    """The page cache grows once, however many forks of one baseline read the same."""
    size, number = 20 << 20, 8
    source, pool = sample(person, ext4_disk, lambda path: write(f"{path}/large", os.urandom(size)))
    for key in range(number):
        person.call(STORAGE.prepare, f"k{key}", Source(source), pool)
    (lower,) = STORAGE.content("k0", pool).lowers
    opened = os.open(f"{lower}/large", os.O_RDONLY)
    os.fsync(opened)
    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(opened)

    def look() -> Any:
        enter_namespaces()
        places = [mounted(STORAGE.mounts(f"k{key}", pool), f"m{key}") for key in range(number)]
        before = [resident(f"{place}/large") for place in places]
        with open(f"{places[0]}/large", "rb") as file:
            file.read()
        return before, [resident(f"{place}/large") for place in places]

    before, after = person.call(look)
    assert before == [0] * number
    assert after == [size] * number
    assert resident(f"{lower}/large") == size


def test_users_of_a_line(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk, small)
    user.call(STORAGE.prepare, "a", Source(source), pool)
    user.call(STORAGE.prepare, "b", Source(source), pool)
    line = Line.of(Source(source), pool)
    assert (line.users, users_of(line)) == (2, ("a", "b"))
    assert line.source == Source(source)
    user.call(STORAGE.remove, "a", pool)
    assert (line.users, users_of(line)) == (1, ("b",))


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", KILLED_AT)
def test_killed_anywhere_the_next_one_is_right(call: str, ext4_disk: Disk, user: Person) -> None:
    """At each call of that kind in a walk that takes changes and merges them; a fork of before stays as it is."""
    source, pool = sample(user, ext4_disk, build)
    user.call(STORAGE.prepare, "a", Source(source), pool)
    before, choice = user.call(facts, source), random.Random(call)
    program = (
        "import sys\nfrom hostfork.baseline.current import current\nfrom hostfork.storage.contract import Source\n"
        "with current(Source(sys.argv[1]), sys.argv[2]) as ready:\n    pass\n"
    )
    for when in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
        user.call(change, source, random.Random(choice.random()), 8)
        traced = ["strace", "-o", "/dev/null", "-P", pool] if call == "openat" else ["strace", "-o", "/dev/null"]
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={when}"]
        user.run([*traced, *inject, sys.executable, "-c", program, source, pool])
        assert seen(user, "a", pool) == before
        user.call(STORAGE.prepare, "b", Source(source), pool)
        assert seen(user, "b", pool) == user.call(facts, source), when
        user.call(STORAGE.remove, "b", pool)
    user.call(STORAGE.remove, "a", pool)


def test_a_full_disk_leaves_the_old_state(make_disk: Callable[..., Disk], user: Person) -> None:
    disk = make_disk("ext4", 60)
    source, pool = sample(user, disk, small)
    user.call(STORAGE.prepare, "a", Source(source), pool)
    before = user.call(facts, source)
    with open(f"{source}/x/big", "wb") as file:
        file.write(os.urandom(35 << 20))
    os.chown(f"{source}/x/big", user.uid, user.gid)
    with pytest.raises(StorageError) as refused:
        user.call(STORAGE.prepare, "b", Source(source), pool)
    assert refused.value.code is Code.STORAGE_NO_SPACE
    assert seen(user, "a", pool) == before
    os.unlink(f"{source}/x/big")
    user.call(STORAGE.prepare, "b", Source(source), pool)
    assert seen(user, "b", pool) == user.call(facts, source)


def test_its_storage_is_gone(ext4_disk: Disk, user: Person) -> None:
    """A fork over it says so: never an empty tree."""
    source, pool = sample(user, ext4_disk, small)
    user.call(STORAGE.prepare, "a", Source(source), pool)
    subprocess.run(["rm", "-r", Line.of(Source(source), pool).path], check=True)
    for ask in (STORAGE.mounts, STORAGE.content):
        with pytest.raises(StorageError) as refused:
            user.call(ask, "a", pool)
        assert "baseline" in refused.value.message
    assert user.call(STORAGE.remove, "a", pool)


def test_the_source_says_which_generation(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk, small)
    with pytest.raises(ValueError, match="retained"):
        user.call(Retained().prepare, "a", Source(source), pool)
    with pytest.raises(StorageError):
        user.call(Retained().prepare, "a", replace(Source(source), retained=f"{pool}/baseline/x/g1"), pool)
    assert STORAGE.keys(pool) == ()
