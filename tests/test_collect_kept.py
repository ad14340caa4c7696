"""Forks whose base is kept: single cases of a pair of snapshots, and what people see of such a fork later."""

import json
import mmap
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any

import pytest

from hostfork.collect.changeset import Changeset
from hostfork.collect.scan import compare, full_manifest, scan_pair
from hostfork.collect.stamp import stamp
from hostfork.errors import CollectError
from hostfork.lifecycle.probes import first_write
from hostfork.lifecycle.store import ForkFolder
from hostfork.storage.btrfs import Btrfs
from hostfork.storage.contract import Source
from hostfork.vocabulary import ChangeKind
from rigs import Disk, Person, write_files
from snapshot_rig import freeze, snapshot, subvolume

AT = "/data/proj"
C, M, D, P, T = (
    ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED, ChangeKind.METADATA, ChangeKind.TYPE
)  # fmt: skip


def short(changes: Changeset) -> list[tuple[str, ChangeKind]]:
    """Relative path and kind of change."""
    return [(change.path[len(AT) + 1 :], change.change) for change in changes.changes]


class Pair:
    """A source of these files, its snapshot, and the base beside it."""

    def __init__(self, folder: str, files: dict[str, str], nested: tuple[str, ...] = (), part: str = "") -> None:
        self.source, self.pool = f"{folder}/source", f"{folder}/pool"
        for path in ("", *nested):
            subvolume(f"{self.source}/{path}")
        write_files(self.source, files)
        os.mkdir(self.pool)
        Btrfs().prepare("k.0", Source(f"{self.source}/{part}".rstrip("/")), self.pool)
        content = Btrfs().content("k.0", self.pool)
        assert content.base is not None
        self.tree, self.base, self.since = content.tree, content.base, stamp(self.pool).ctime_ns

    def scan(self, *omit: str, reference: bool = True) -> Changeset:
        """The changes, the same in every way of finding them."""
        found = scan_pair(self.tree, self.base, AT, omit, since=self.since)
        assert scan_pair(self.tree, self.base, AT, omit) == found
        touched = Btrfs().touched("k.0", self.pool)
        for since in () if touched is None else (None, self.since):
            assert scan_pair(self.tree, self.base, AT, omit, touched, since) == found
        if reference:
            assert found == compare(full_manifest(self.base, omit), full_manifest(self.tree, omit, True), AT)
        return found

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        Btrfs().remove("k.0", self.pool)


def _moved(folder: str) -> None:
    with Pair(folder, {"a/x": "1", "a/in/y": "2", "b/x": "3", "b/in/z": "4", "c/in/w": ""}) as fork:
        os.rename(f"{fork.tree}/a", f"{fork.tree}/aside")
        os.rename(f"{fork.tree}/b", f"{fork.tree}/a")
        os.rename(f"{fork.tree}/c", f"{fork.tree}/new")
        assert short(fork.scan()) == [
            ("a/in/y", D), ("a/in/z", C), ("a/x", M), ("aside", C), ("aside/in", C), ("aside/in/y", C),
            ("aside/x", C), ("b", D), ("b/in", D), ("b/in/z", D), ("b/x", D), ("c", D), ("c/in", D), ("c/in/w", D),
            ("new", C), ("new/in", C), ("new/in/w", C),
        ]  # fmt: skip
        assert [path.partition("/")[0] for path, _ in short(fork.scan("a", "b/in"))].count("a") == 0
        assert ("b/in", D) not in short(fork.scan("a", "b/in"))


def test_what_lies_in_moved_folders_keeps_its_stamps_and_is_found(person: Person, btrfs_disk: Disk) -> None:
    person.call(_moved, btrfs_disk.folder(person))


def _nested(folder: str) -> None:
    files = {"one/same": "1", "one/deep/f": "1", "two/same": "2", "two/deep/f": "2", "three/f": "", "one/4/f": ""}
    with Pair(folder, files, ("one", "two", "three", "one/4")) as fork:
        assert short(fork.scan()) == []
        write_files(fork.tree, {"one/4/g": ""})
        assert short(fork.scan()) == [("one/4/g", C)]
        os.rename(f"{fork.tree}/one", f"{fork.tree}/aside")
        os.rename(f"{fork.tree}/two", f"{fork.tree}/one")
        os.rename(f"{fork.tree}/aside", f"{fork.tree}/two")
        shutil.rmtree(f"{fork.tree}/three")
        assert short(fork.scan()) == [
            ("one/4", D), ("one/4/f", D), ("one/deep/f", M), ("one/same", M), ("three", D), ("three/f", D),
            ("two/4", C), ("two/4/f", C), ("two/4/g", C), ("two/deep/f", M), ("two/same", M),
        ]  # fmt: skip


def test_nested_subvolumes_belong_to_the_tree_and_are_not_told_by_numbers(person: Person, btrfs_disk: Disk) -> None:
    person.call(_nested, btrfs_disk.folder(person))


def _equal(folder: str) -> None:
    with Pair(folder, {"a": "one", "b": "two", "c": "three", "d": "four", "e/f": ""}) as fork:
        os.utime(f"{fork.tree}/a")
        write_files(fork.tree, {"b": "two"})
        os.unlink(f"{fork.tree}/c")
        write_files(fork.tree, {"c": "three"})
        found = os.lstat(f"{fork.tree}/d")
        write_files(fork.tree, {"d": "FOUR"})
        os.utime(f"{fork.tree}/d", ns=(found.st_atime_ns, found.st_mtime_ns))
        write_files(fork.tree, {"e/new": ""})
        os.unlink(f"{fork.tree}/e/new")
        assert short(fork.scan()) == [("d", M)]


def test_touched_and_rewritten_files_are_no_change(person: Person, btrfs_disk: Disk) -> None:
    person.call(_equal, btrfs_disk.folder(person))


def _mapped(folder: str) -> None:
    with Pair(folder, {"a": "one", "b": "two"}) as fork, open(f"{fork.tree}/a", "r+b") as file:
        with mmap.mmap(file.fileno(), 3) as mapped:
            mapped[0:3] = b"new"
        assert short(fork.scan()) == [("a", M)]


def test_writes_through_a_mapping_are_found(person: Person, btrfs_disk: Disk) -> None:
    person.call(_mapped, btrfs_disk.folder(person))


@pytest.mark.rig("root")
def test_where_much_was_written_a_walk_is_quicker(
    root: Person, btrfs_disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pair(btrfs_disk.folder(root), {"a": "", "d/b": ""}) as fork:
        write_files(fork.tree, {f"d/{number}": "" for number in range(5)})
        assert Btrfs().touched("k.0", fork.pool) is not None
        monkeypatch.setattr("hostfork.storage.touched._MOST", 4)
        assert Btrfs().touched("k.0", fork.pool) is None
        assert len(fork.scan().changes) == 5


def _kinds(folder: str) -> None:
    with Pair(folder, {"t/a/b": "", "f": "", "l": "", "x": "", "mode": "", "hard": "1"}) as fork:
        shutil.rmtree(f"{fork.tree}/t")
        write_files(fork.tree, {"t": "now a file"})
        for name in ("f", "l"):
            os.unlink(f"{fork.tree}/{name}")
        write_files(fork.tree, {"f/in/deep": ""})
        os.symlink("x", f"{fork.tree}/l")
        os.setxattr(f"{fork.tree}/x", "user.test", b"1")
        os.chmod(f"{fork.tree}/mode", 0o700)
        os.link(f"{fork.tree}/hard", f"{fork.tree}/hard2")
        os.chmod(fork.tree, 0o700)
        assert short(fork.scan()) == [
            ("", P), ("f", T), ("f/in", C), ("f/in/deep", C), ("hard2", C), ("l", T), ("mode", P), ("t", T),
            ("t/a", D), ("t/a/b", D), ("x", P),
        ]  # fmt: skip


def test_every_kind_and_type(person: Person, btrfs_disk: Disk) -> None:
    person.call(_kinds, btrfs_disk.folder(person))


def _single(folder: str) -> None:
    with Pair(folder, {"d/file": "one", "other": ""}, part="d/file") as fork:
        write_files(os.path.dirname(fork.tree), {"file": "two"})
        assert short(fork.scan()) == [("", M)]


def test_a_single_file(person: Person, btrfs_disk: Disk) -> None:
    person.call(_single, btrfs_disk.folder(person))


def _closed(folder: str) -> None:
    subvolume(f"{folder}/source")
    write_files(
        f"{folder}/source", {"secret": "abc", "shut/in": "", "shut/x": "1", "left/in": "", "names/in": "", "open": ""}
    )
    for name, mode in (("secret", 0), ("shut", 0), ("left", 0), ("names", 0o400)):
        os.chmod(f"{folder}/source/{name}", mode)
    snapshot(f"{folder}/source", f"{folder}/tree")
    snapshot(f"{folder}/tree", f"{folder}/base")
    freeze(f"{folder}/base")
    since = stamp(folder).ctime_ns
    tree = f"{folder}/tree"
    for name in ("secret", "shut", "names"):
        os.chmod(f"{tree}/{name}", 0o700)
    write_files(tree, {"secret": "xyz", "shut/x": "2", "names/new": ""})
    os.unlink(f"{tree}/names/in")
    os.chmod(f"{tree}/open", 0)
    for _ in range(2):  # reading opens what is closed, which stamps it
        every = short(scan_pair(tree, f"{folder}/base", AT))
        assert every == [("names", P), ("names/new", C), ("open", P), ("secret", M), ("shut", P), ("shut/in", C),
                         ("shut/x", C)]  # fmt: skip
        # What a closed base held is not known; what has its old stamp was in it.
        found = scan_pair(tree, f"{folder}/base", AT, since=since)
        assert short(found) == [path for path in every if path[0] != "shut/in"]
        assert [change.base_gone for change in found.changes].index(True) == 3
    assert stat.S_IMODE(os.lstat(f"{tree}/left").st_mode) == 0
    freeze(f"{folder}/base", frozen=False)


def test_what_was_closed_to_the_user_from_the_start(user: Person, btrfs_disk: Disk) -> None:
    user.call(_closed, btrfs_disk.folder(user))


@pytest.mark.rig("root")
def test_folders_of_others_are_passed_over(user: Person, btrfs_disk: Disk) -> None:
    folder = btrfs_disk.folder(user)
    subvolume(f"{folder}/source")
    write_files(f"{folder}/source", {"shut/in": "", "names/in": "", "mine": ""})
    for name, mode in (("shut", 0o700), ("names", 0o744)):
        os.chmod(f"{folder}/source/{name}", mode)
    snapshot(f"{folder}/source", f"{folder}/tree")
    snapshot(f"{folder}/tree", f"{folder}/base")
    since = stamp(folder).ctime_ns
    write_files(f"{folder}/tree", {"mine": "more"})
    for since_when in (since, None):
        found = user.call(scan_pair, f"{folder}/tree", f"{folder}/base", AT, (), None, since_when)
        assert short(found) == [("mine", M)]
    found = user.call(scan_pair, f"{folder}/tree", f"{folder}/base", AT, (), None, 1)
    assert short(found) == [("mine", M)]


def test_a_base_that_is_missing_is_a_typed_error(tmp_path: os.PathLike[str]) -> None:
    os.mkdir(f"{tmp_path}/tree")
    with pytest.raises(CollectError, match="cannot be read") as missing:
        scan_pair(f"{tmp_path}/tree", f"{tmp_path}/nothing", AT)
    assert missing.value.errno == 2


# --- the stamp -------------------------------------------------------------------------------------------------------


def test_a_stamp_that_tells_nothing_any_more(tmp_path: os.PathLike[str]) -> None:
    os.mkdir(f"{tmp_path}/pool")
    fork, pool = ForkFolder(str(tmp_path), os.open(tmp_path, os.O_RDONLY)), f"{tmp_path}/pool"
    with fork:
        assert first_write(fork, pool) is None
        now = stamp(pool)
        words = [now.ctime_ns, now.realtime_ns, now.boottime_ns, now.boot_id]

        def told(**changed: object) -> int | None:
            names = ("ctime", "realtime", "boottime", "boot")
            text = " ".join(str(changed.get(name, word)) for name, word in zip(names, words, strict=True))
            write_files(str(tmp_path), {"stamp": text})
            return first_write(fork, pool)

        assert told() == now.ctime_ns
        assert told(boot="another") is None
        assert told(realtime=now.realtime_ns + 10**10) is None
        assert told(ctime=now.ctime_ns + 10**12) is None
        assert told(boot="") is None
        write_files(str(tmp_path), {"stamp": ""})
        assert first_write(fork, pool) is None


# --- what people see -------------------------------------------------------------------------------------------------

_SCRIPT = "echo fork > a.txt; rm gone.txt; mkdir new; echo n > new/n; mv moved there; echo same > same.txt"


@pytest.fixture
def project(person: Person, btrfs_disk: Disk) -> str:
    """A subvolume of the person's."""
    folder = btrfs_disk.folder(person)
    person.call(subvolume, f"{folder}/proj")
    files = {"a.txt": "host\n", "gone.txt": "gone\n", "moved/m": "m\n", "same.txt": "same\n", "left": "left\n"}
    person.call(write_files, f"{folder}/proj", files)
    return f"{folder}/proj"


@pytest.mark.rig("git")
@pytest.mark.parametrize("word", ["btrfs", "overlay"])
def test_a_kept_base_outlives_the_source(person: Person, project: str, word: str, hostfork: Callable[..., Any]) -> None:
    def call(*words: str, **options: Any) -> str:
        return str(hostfork(person, *words, cwd="/", **options).stdout)

    pool = os.path.dirname(project) + "/pool"
    words = ["run", "--pool", pool, "--private", f"{project}:{word}", "--cwd", project, "--name", "f"]
    if word == "overlay":
        words += ["--prefer", "memory"]
    call(*words, "--", "sh", "-c", _SCRIPT, check=0)
    git = f"{person.home}/git"
    person.run(["cp", "-a", project, git], check=True)
    before = call("diff", "f", "--patch", check=0)
    person.call(_spoil, project)
    assert call("diff", "f", "--patch", check=0) == before
    assert "gone, there is no patch" not in before
    entries = json.loads(call("diff", "f", "--json", check=0))["entries"]
    assert not any(entry["base_gone"] for entry in entries)
    assert [(entry["path"][len(project) + 1 :], entry["change"]) for entry in entries] == [
        ("a.txt", "modified"), ("gone.txt", "deleted"), ("moved", "deleted"), ("moved/m", "deleted"),
        ("new", "created"), ("new/n", "created"), ("there", "created"), ("there/m", "created"),
    ]  # fmt: skip
    paths = json.loads(call("show", "f", "--json", check=0))["paths"]
    assert [path["base_content"] for path in paths if path["path"] == project] == ["kept"]
    person.run(["git", "apply", "-"], cwd=git, input=before, check=True)
    out = f"{person.home}/out"
    call("export", "f", out, check=0)
    assert sorted(os.listdir(out)) == ["a.txt", "left", "new", "same.txt", "there"]
    person.run(["diff", "-r", out, git], check=True)
    call("export", "f", "--tar", f"{person.home}/out.tar", check=0)
    person.run(["mkdir", f"{person.home}/untarred"], check=True)
    person.run(["tar", "-xf", f"{person.home}/out.tar", "-C", f"{person.home}/untarred"], check=True)
    person.run(["diff", "-r", out, f"{person.home}/untarred"], check=True)
    call("discard", "f", "--yes", check=0)


def _spoil(project: str) -> None:
    write_files(project, {"a.txt": "later\n", "left": "later\n", "more": ""})
    shutil.rmtree(f"{project}/moved")
