"""Sums of baselines: made when those are on disk, true through refreshes and merges; what `verify` finds by them."""

import fcntl
import json
import os
import random
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rigs
import test_cli_documents
from hostfork.baseline import hashing, settler, summing, sums
from hostfork.baseline.current import current
from hostfork.baseline.showing import sums_of
from hostfork.baseline.sums import Fault, Sums
from hostfork.storage.contract import Source
from hostfork.storage.layering import make_opaque, whiteout
from hostfork.storage.lines import Generation, Line
from rigs import Disk, Person, find_program
from storage_cases import build, sample, write
from test_baseline import STORAGE, change, small

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
check_schema: Callable[[str, Any], Any] = test_cli_documents.check
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
FILES = {"a": "a\n" * 3, "b": "b\n", "src/c": "c\n", "src/deep/d": "d\n", "empty/": ""}


@pytest.fixture(autouse=True)
def _small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small trees too are read by several processes, where that is asked for."""
    monkeypatch.setattr(hashing, "_BATCH", 2)


@pytest.fixture(params=("ext4", "xfs", "btrfs"))
def stamped(request: pytest.FixtureRequest) -> Disk:
    """A disk whose stamps tell, so that baselines are made on it."""
    found: Disk = request.getfixturevalue(f"{request.param}_disk")
    return found


def made(source: str, pool: str) -> Generation:
    """A generation that is equal to the source and on disk."""
    with current(Source(source), pool) as ready:
        settler.settle(ready.generation.path)
        return ready.generation


def recorded(source: str, pool: str) -> Generation:
    generation = made(source, pool)
    summing.record_all(pool)
    return generation


def damage_of(generation: Generation, processes: int = 2) -> dict[str, Fault]:
    """What differs from the sums, which must be there."""
    assert os.path.exists(generation.file("sums"))
    found = summing.check(generation, {}, processes)
    assert not found.recorded
    return {one.path: one.fault for one in found.damage}


def content(found: Sums) -> dict[bytes, Any]:
    """What is the same in the source and in what was taken of it."""
    return {
        path: (one.mode, one.uid, one.gid, one.digest, one.attributes,
               () if stat.S_ISDIR(one.mode) else (one.size, one.mtime, one.device))
        for path, one in found.items()
    }  # fmt: skip


def summed(lowers: tuple[str, ...], processes: int) -> dict[bytes, Any]:
    found, failed = sums_of(lowers, {}, processes)
    assert failed == {}
    return content(found)


def names_read(pool: str) -> list[str]:
    """The names of the files that recording reads."""
    seen: list[str] = []
    original = hashing.Hasher.file

    def file(self: hashing.Hasher, folder: int, name: str) -> Any:
        seen.append(name)
        return original(self, folder, name)

    hashing.Hasher.file = file  # type: ignore[method-assign]
    summing.record_all(pool)
    return sorted(seen)


def unlocked(generation: Generation) -> str:
    """The path of its bottom tree, which can be written."""
    path = generation.lowers[-1]
    if os.path.islink(os.path.join(generation.line, generation.trees[-1], "tree")):
        subvolume = os.path.join(generation.line, generation.trees[-1], "subvolume")
        command = [find_program("btrfs") or "btrfs", "property", "set", "-f", subvolume, "ro", "false"]
        subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.mark.parametrize("processes", [1, 3])
def test_the_sums_are_those_of_the_source(processes: int, stamped: Disk, person: Person) -> None:
    """Of all that a tree can hold, with one process and with several."""
    source, pool = sample(person, stamped)
    generation = person.call(made, source, pool)
    assert person.call(summed, generation.lowers, processes) == person.call(summed, (source,), 1)


@pytest.mark.parametrize("seed", range(4))
def test_they_hold_through_refreshes_and_merges(seed: int, stamped: Disk, person: Person) -> None:
    """Forks come and go while the source changes: each generation stays what its sums say, and those what it was."""
    source, pool = sample(person, stamped, small)
    choice, living = random.Random(seed), dict[str, Generation]()
    for number in range(10):
        person.call(change, source, random.Random(choice.random()), choice.randrange(1, 12))
        key = f"k{number}"
        person.call(STORAGE.prepare, key, Source(source), pool)
        living[key] = person.call(recorded, source, pool)
        assert content(sums.read(living[key].file("sums"))) == person.call(summed, (source,), 1)
        for old in choice.sample(sorted(living), choice.choice([0, 0, 1, len(living)])):
            person.call(STORAGE.remove, old, pool)
            del living[old]
        for known, generation in living.items():
            assert person.call(damage_of, generation) == {}, (seed, number, known)
    for key in living:
        person.call(STORAGE.remove, key, pool)
    last = person.call(recorded, source, pool)
    assert person.call(damage_of, last) == {}


def test_only_what_changed_is_read_again(stamped: Disk, person: Person) -> None:
    """A refresh reads no file that is in the sums already, nor does a merge but for what it moved."""
    source, pool = sample(person, stamped, small)
    for number in range(50):
        write(f"{source}/x/{number}", b"%d" % number)
    person.call(made, source, pool)
    assert len(person.call(names_read, pool)) == 54
    write(f"{source}/x/7", b"changed")
    person.call(STORAGE.prepare, "a", Source(source), pool)
    person.call(made, source, pool)
    assert person.call(names_read, pool) == ["7"]
    person.call(STORAGE.remove, "a", pool)
    write(f"{source}/x/8", b"changed too")
    generation = person.call(made, source, pool)
    assert set(person.call(names_read, pool)) <= {"7", "8"}
    assert person.call(damage_of, generation) == {}


FLIPS: dict[str, tuple[Callable[[str], object], dict[str, Fault]]] = {
    "flipped": (lambda tree: flip(f"{tree}/d/g/one"), {"d/g/one": Fault.CONTENT}),
    "truncated": (lambda tree: os.truncate(f"{tree}/d/g/one", 1), {"d/g/one": Fault.CONTENT}),
    "removed": (lambda tree: os.unlink(f"{tree}/d/g/one"), {"d/g/one": Fault.MISSING}),
    "added": (lambda tree: write(f"{tree}/d/g/new", b""), {"d/g/new": Fault.EXTRA}),
    "mode": (lambda tree: os.chmod(f"{tree}/d/g/one", 0o640), {"d/g/one": Fault.CHANGED}),
    "time": (lambda tree: os.utime(f"{tree}/d/g/one", (1, 1)), {"d/g/one": Fault.CHANGED}),
    "attribute": (lambda tree: os.setxattr(f"{tree}/d/g/one", "user.x", b"1"), {"d/g/one": Fault.CHANGED}),
    "kind": (lambda tree: link_anew(f"{tree}/d/g/one"), {"d/g/one": Fault.CHANGED}),
    "link": (lambda tree: link_anew(f"{tree}/link"), {"link": Fault.CONTENT}),
    "folder": (lambda tree: os.rename(f"{tree}/d/g", f"{tree}/d/h"),
               {"d/g": Fault.MISSING, "d/g/one": Fault.MISSING, "d/h": Fault.EXTRA, "d/h/one": Fault.EXTRA}),
}  # fmt: skip


def link_anew(path: str) -> None:
    """A symlink in its place."""
    os.unlink(path)
    os.symlink("elsewhere", path)


def flip(path: str) -> None:
    """One bit, and nothing that a stat tells but the ctime."""
    found = os.stat(path)
    with open(path, "r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes((byte ^ 1,)))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def small_with_link(root: str) -> None:
    small(root)
    os.symlink("target", f"{root}/link")


@pytest.mark.parametrize("kind", FLIPS)
def test_what_is_not_as_it_was_is_found(kind: str, stamped: Disk, person: Person) -> None:
    source, pool = sample(person, stamped, small_with_link)
    generation = person.call(recorded, source, pool)
    assert person.call(damage_of, generation) == {}
    act, expected = FLIPS[kind]
    person.call(lambda: act(unlocked(generation)))
    for processes in (1, 2):
        assert person.call(damage_of, generation, processes) == expected


def test_in_each_layer(ext4_disk: Disk, person: Person) -> None:
    """Marks of deleted names and of new folders count too: without them what lies below would show."""
    source, pool = sample(person, ext4_disk, small)
    generations = []
    for number, key in enumerate("abc"):
        person.call(write, f"{source}/x/{key}", key.encode())
        if number == 1:
            os.unlink(f"{source}/x/one")
        person.call(STORAGE.prepare, key, Source(source), pool)
        generations.append(person.call(recorded, source, pool))
    top = generations[-1]
    assert len(top.trees) == 3
    for number, key in enumerate("abc"):
        path = f"{top.lowers[2 - number]}/x/{key}"
        person.call(flip, path)
        for at, generation in enumerate(generations):
            assert person.call(damage_of, generation) == ({f"x/{key}": Fault.CONTENT} if at >= number else {})
        person.call(flip, path)
    mark = f"{top.lowers[1]}/x/one"
    os.unlink(mark)
    assert person.call(damage_of, top) == {"x/one": Fault.EXTRA}
    assert person.call(damage_of, generations[0]) == {}

    def hide() -> None:
        folder = os.open(f"{top.lowers[1]}/x", os.O_RDONLY)
        whiteout("one", folder)
        make_opaque(folder)
        os.close(folder)

    person.call(hide)
    assert person.call(damage_of, top) == {"x/a": Fault.MISSING}


@pytest.mark.parametrize("place", [0, 20, 60, 400, -1])
def test_damaged_sums_are_seen(place: int, ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk, small)
    generation = user.call(recorded, source, pool)
    path = Path(generation.file("sums"))
    good = path.read_bytes()
    bad = bytearray(good)
    bad[place] ^= 4
    path.write_bytes(bad)
    assert user.call(damage_of, generation) == {"": Fault.SUMS}
    path.write_bytes(good[:place] if place > 0 else b"")
    assert user.call(damage_of, generation) == {"": Fault.SUMS}


def test_what_its_owner_closed_is_read_and_stays_closed(stamped: Disk, user: Person) -> None:
    """Files and folders of mode 0, as an archive may hold them. Nothing is opened for others, not for a moment."""
    source, pool = sample(user, stamped, small)
    generation = user.call(made, source, pool)

    def close() -> None:
        tree = unlocked(generation)
        for path, mode in (("d/g/one", 0), ("d/e/f", 0o600), ("d/e", 0), ("x/one", 0o200)):
            os.chmod(f"{tree}/{path}", mode)

    user.call(close)
    before = user.call(lambda: sums_of(generation.lowers, {}, 1))
    assert before[1] == {}
    assert before == user.call(lambda: sums_of(generation.lowers, {}, 2))
    assert {path for path in before[0] if path.endswith(b"one")} == {b"d/g/one", b"d/e/f/one", b"x/one"}
    assert before == sums_of(generation.lowers, {}, 1)

    program = (
        "import sys\nfrom hostfork.baseline.summing import record\nfrom hostfork.storage.lines import Generation\n"
        "record(Generation(sys.argv[1]))\n"
    )
    done = user.run([sys.executable, "-c", program, generation.path], namespaces=False)
    assert "PermissionError" in done.stderr
    assert not os.path.exists(generation.file("sums"))
    if stamped.kind == "btrfs":
        user.call(lambda: os.chmod(f"{generation.lowers[-1]}/d/e", 0o700))


def test_thousands_deep_and_names_that_are_no_text(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk, small)

    def deepen() -> None:
        here = os.open(source, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir(b"\xff\n", dir_fd=here)
            inner = os.open(b"\xff\n", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(os.open(b"\xfe", os.O_WRONLY | os.O_CREAT, dir_fd=here))
        os.close(here)

    user.call(deepen)
    generation = user.call(recorded, source, pool)
    assert max(map(len, sums.read(generation.file("sums")))) == 1500 * 3 + 1
    assert user.call(damage_of, generation) == {}
    subprocess.run(["rm", "-r", source, pool], check=True)


def test_large_files_and_many(ext4_disk: Disk, user: Person) -> None:
    """Sizes about those at which reading goes another way, and more files than one message holds."""
    from blake3 import blake3

    source, _ = sample(user, ext4_disk, small)
    sizes = [0, 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (1 << 20) + 1, (8 << 20) - 1, 8 << 20, (9 << 20) + 7]
    expected = {}
    for size in sizes:
        data = random.Random(size).randbytes(size)
        write(f"{source}/{size}", data)
        expected[b"%d" % size] = blake3(data).digest()
    for number in range(1000):
        write(f"{source}/x/n{number}", b"%d" % number)
        expected[b"x/n%d" % number] = blake3(b"%d" % number).digest()
    for processes in (1, 2):
        found, failed = user.call(lambda count=processes: sums_of((source,), {}, count))
        assert failed == {}
        assert {path: found[path].digest for path in expected} == expected


def test_a_generation_that_is_read_stays_as_it_is(ext4_disk: Disk, user: Person) -> None:
    """A refresh beside it neither merges its layers nor removes it; the next one does."""
    source, pool = sample(user, ext4_disk, small)
    user.call(STORAGE.prepare, "a", Source(source), pool)
    write(f"{source}/x/new", b"1")
    top = user.call(made, source, pool)
    user.call(STORAGE.remove, "a", pool)
    line = Line.of(Source(source), pool)
    with summing.standing(line, 0.0) as there:
        assert there == (top,)
        assert len(top.trees) == 1  # merged before it was said to be read
        write(f"{source}/x/new", b"22")
        newer = user.call(made, source, pool)
        assert len(newer.trees) == 2
        assert len(line.generations()) == 2
    write(f"{source}/x/new", b"333")
    newest = user.call(made, source, pool)
    assert line.generations() == (newest,)
    assert len(newest.trees) == 1


def test_one_process_for_a_pool_makes_sums(ext4_disk: Disk, user: Person) -> None:
    source, pool = sample(user, ext4_disk, small)
    generation = user.call(made, source, pool)
    folder = os.open(f"{pool}/baseline", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    user.call(summing.record_all, pool)
    assert not os.path.exists(generation.file("sums"))
    os.close(folder)
    user.call(summing.record_all, pool)
    assert user.call(damage_of, generation) == {}


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", ["openat", "readv", "rename,renameat,renameat2", "link,linkat", "fsync", "flock"])
def test_the_settler_is_killed_anywhere(call: str, ext4_disk: Disk, user: Person) -> None:
    """Then there are no sums or right ones, and the next one makes them."""
    source, pool = sample(user, ext4_disk, build)
    generation = user.call(made, source, pool)
    program = settler.__file__
    killed = 0
    for when in (1, 2, 5, 13):
        traced = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}"]
        if call in ("openat", "flock"):
            traced += ["-P", pool, "-P", generation.line, "-P", generation.path, "-P", f"{pool}/baseline"]
        inject = ["-e", f"inject={call}:signal=SIGKILL:when={when}"]
        killed += user.run([*traced, *inject, sys.executable, program, generation.path]).returncode != 0
        if os.path.exists(generation.file("sums")):
            assert user.call(damage_of, generation) == {}
            os.unlink(generation.file("sums"))
        user.call(summing.record_all, pool)
        assert user.call(damage_of, generation) == {}
        assert [name for name in os.listdir(generation.path) if name.startswith("sums")] == ["sums"]
        os.unlink(generation.file("sums"))
    assert killed
    assert user.call(made, source, pool) == generation


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def project(person: Person) -> str:
    return rigs.make_project(person, person.home, FILES)


def wait_for_sums(person: Person) -> list[Path]:
    """Until the background has made those of every generation."""
    folder = Path(f"{person.state}/pool/baseline")
    end = time.monotonic() + 60
    while True:
        generations = [path for path in folder.glob("*/g*") if path.name[1:].isdigit()]
        if generations and all((path / "sums").exists() for path in generations):
            return generations
        assert time.monotonic() < end, "no sums were made"
        time.sleep(0.02)


def tree_of(person: Person, line: str) -> Path:
    top = Line(f"{person.state}/pool", line).top()
    assert top is not None
    return Path(unlocked(top))


def verified(hostfork: Run, person: Person, *names: str, check: int = 0) -> dict[str, Any]:
    done = hostfork(person, "baseline", "verify", *names, "--json", check=check)
    document = check_schema("verify", json.loads(done.stdout))
    return {one["name"]: one for one in document["baselines"]}


def untimed(text: str) -> str:
    return re.sub(r"\b\d+ s\b", "N s", text)


def test_a_baseline_is_verified_damaged_and_taken_anew(hostfork: Run, person: Person, project: str) -> None:
    hostfork(person, "baseline", "create", "mono", "--from", project, check=0)
    wait_for_sums(person)
    done = hostfork(person, "baseline", "verify", check=0)
    assert (untimed(done.stdout), done.stderr) == ("mono  verified   4 files, 12 B, N s\n", "")
    tree = tree_of(person, "mono.0")
    person.call(flip, str(tree / "src/c"))
    person.call((tree / "b").unlink)
    done = hostfork(person, "baseline", "verify", "mo", check=1)
    shown = project.replace(person.home, "~")
    assert done.stdout.splitlines() == [
        "mono  damaged   2 paths", f"  missing  {shown}/b", f"  content  {shown}/src/c",
    ]  # fmt: skip
    assert done.stderr.splitlines() == [
        "hostfork: the baseline mono does not hold what it held when it was made",
        "          no fork starts from it; hostfork baseline refresh mono takes it anew",
        "          code baseline.damaged · status 1",
    ]
    found = verified(hostfork, person, check=1)["mono"]
    assert (found["verdict"], found["code"], found["dropped"]) == ("damaged", "baseline.damaged", False)
    assert [(one["path"], one["fault"]) for one in found["damage"]] == [
        (f"{project}/b", "missing"), (f"{project}/src/c", "content"),
    ]  # fmt: skip
    listed = json.loads(hostfork(person, "baseline", "list", "--json", check=0).stdout)
    assert check_schema("baselines", listed)["baselines"][0]["state"] == "damaged"
    assert "damaged" in hostfork(person, "baseline", "show", "mono", check=0).stdout
    done = hostfork(person, "run", "--base", "mono", "--", "true", check=125)
    assert "code baseline.damaged" in done.stderr
    assert "hostfork baseline refresh mono" in done.stderr
    hostfork(person, "baseline", "refresh", "mono", check=0)
    wait_for_sums(person)
    assert verified(hostfork, person)["mono"]["verdict"] == "verified"
    done = hostfork(person, "run", "--base", "mono", "--", "cat", f"{project}/src/c", check=0)
    assert done.stdout == "c\n"
    hostfork(person, "baseline", "remove", "mono", check=0)


def test_without_sums_they_are_recorded(hostfork: Run, user: Person) -> None:
    project = rigs.make_project(user, user.home, FILES)
    assert "no baselines" in hostfork(user, "baseline", "verify", check=0).stdout
    hostfork(user, "baseline", "create", "mono", "--from", project, check=0)
    for generation in wait_for_sums(user):
        (generation / "sums").unlink()
    assert verified(hostfork, user)["mono"]["verdict"] == "recorded"
    assert verified(hostfork, user)["mono"]["verdict"] == "verified"
    for generation in wait_for_sums(user):
        (generation / "sums").write_bytes(b"")
    found = verified(hostfork, user, check=1)["mono"]
    assert [(one["path"].rpartition("/")[2], one["fault"]) for one in found["damage"]] == [("sums", "sums")]
    done = hostfork(user, "baseline", "verify", "other", "mono", check=125)
    assert "code baseline.not-found" in done.stderr
    assert "mono  damaged" in done.stdout
    hostfork(user, "baseline", "remove", "mono", check=0)


@pytest.mark.parametrize("used", [False, True])
def test_an_automatic_one(used: bool, hostfork: Run, person: Person, project: str) -> None:
    """Removed at once, or taken anew by the next run where a fork lies over it; that fork keeps what it had."""
    run = ("run", "--private", f"{project}:overlay")
    kept = ("--name", "one") if used else ("--rm",)
    hostfork(person, *run, *kept, "--", "sh", "-c", f"echo x >{project}/mine", check=0)
    wait_for_sums(person)
    line = os.listdir(f"{person.state}/pool/baseline")[0]
    assert verified(hostfork, person) == verified(hostfork, person, line) | {
        line: verified(hostfork, person)[line] | {"seconds": pytest.approx(1, abs=60)}
    }
    person.call(flip, str(tree_of(person, line) / "src/c"))
    done = hostfork(person, "baseline", "verify", line[:9], check=1)
    assert f"{line}  damaged   1 path\n" in done.stdout
    assert ("it is removed" in done.stderr, "one may show that" in done.stderr) == (not used, used)
    assert os.path.isdir(f"{person.state}/pool/baseline/{line}") == used
    done = hostfork(person, *run, "--rm", "--", "cat", f"{project}/src/c", check=0)
    assert done.stdout == "c\n"
    if used:
        done = hostfork(person, "diff", "one", check=125)
        assert "its baseline is damaged" in done.stderr
        hostfork(person, "export", "one", f"{person.home}/out", "--changes-only", check=0)
        assert [Path(place) / "mine" for place, _, names in os.walk(f"{person.home}/out") if "mine" in names]
        assert verified(hostfork, person, check=1)[line]["forks"] == ["one"]
        hostfork(person, "discard", "one", "--yes", check=0)
        hostfork(person, *run, "--rm", "--", "true", check=0)
    wait_for_sums(person)
    assert verified(hostfork, person)[line]["verdict"] == "verified"


def test_a_lost_one(hostfork: Run, user: Person) -> None:
    project = rigs.make_project(user, user.home, FILES)
    hostfork(user, "baseline", "create", "mono", "--from", project, check=0)
    wait_for_sums(user)
    subprocess.run(["rm", "-r", f"{user.state}/pool/baseline/mono.0"], check=True)
    assert "code baseline.lost" in hostfork(user, "baseline", "verify", check=125).stderr
    hostfork(user, "baseline", "remove", "mono", check=0)


@pytest.mark.rig("strace")
@pytest.mark.parametrize("call", ["readv", "flock", "rename,renameat,renameat2", "sendmsg", "openat"])
def test_verify_is_killed_anywhere(call: str, hostfork: Run, user: Person) -> None:
    """With all its processes; nothing is damaged by that, and the next one tells."""
    project = rigs.make_project(user, user.home, FILES | {f"many/{number}": "" for number in range(300)})
    hostfork(user, "baseline", "create", "mono", "--from", project, check=0)
    killed = 0
    for when in (1, 3):
        for generation in wait_for_sums(user):
            (generation / "sums").unlink()
        traced = ["strace", "-o", "/dev/null", "-e", f"trace={call}", "-f"]
        traced += ["-P", f"{user.state}/pool/baseline/mono.0"] if call == "openat" else []
        inject = ["-e", f"inject={call}:signal=SIGKILL:when={when}"]
        killed += user.run([*traced, *inject, PROGRAM, "baseline", "verify"]).returncode != 0
        assert verified(hostfork, user)["mono"]["verdict"] in ("recorded", "verified")
        assert verified(hostfork, user)["mono"]["verdict"] == "verified"
        hostfork(user, "recover", check=0)
    assert killed
    hostfork(user, "baseline", "remove", "mono", check=0)
