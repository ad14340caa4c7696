"""Trees deeper than a path can be long, and than a process has descriptors at first."""

import io
import os
import resource
import sys
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collect_rig import content, remove
from hostfork.collect.changeset import Changeset
from hostfork.collect.diff import line_counts, patch
from hostfork.collect.export import Part, export_changes, export_tar, export_tree
from hostfork.collect.manifest import StatManifest, StatManifestWriter
from hostfork.collect.scan import compare, full_manifest, scan_layer, scan_pair, scan_tree
from hostfork.collect.source import source_changed
from hostfork.collect.stamp import make_probe
from hostfork.errors import Code, CollectError
from hostfork.vocabulary import ChangeKind, SourceChanged
from rigs import in_child, write_files

AT = "/data/proj"
C, M, D = ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED
LEVELS = 700
WAY = "/".join(["a-level"] * LEVELS)
"""More than the 4 KB that the kernel takes."""
_SOFT = 256


def descend(root: str, do: Callable[[int], None], levels: int = LEVELS) -> None:
    """Do something in the deepest folder below `root`; it and those above it are made if they are missing."""
    folder = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        if "a-level" not in os.listdir(folder):
            os.mkdir("a-level", dir_fd=folder)
        inner = os.open("a-level", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    try:
        do(folder)
    finally:
        os.close(folder)


def put(name: str, text: str) -> Callable[[int], None]:
    """Write a file in an open folder."""

    def write(folder: int) -> None:
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=folder), "w") as file:
            file.write(text)

    return write


def take(name: str) -> Callable[[int], None]:
    """Delete a file in an open folder."""
    return lambda folder: os.unlink(name, dir_fd=folder)


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> Iterator[str]:
    """A folder that is removed by a tool that knows deep trees."""
    path = f"{tmp_path}/f"
    os.mkdir(path)
    yield path
    remove(path)


def limited(function: Callable[[], Any]) -> Any:
    """Call it in a child with the limits of an ordinary process; they must be what they were afterwards."""

    def child() -> Any:
        limits = (_SOFT, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        frames = sys.getrecursionlimit()
        try:
            return function()
        finally:
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
            assert sys.getrecursionlimit() == frames

    return in_child(child)


def short(changes: Changeset) -> list[tuple[str, ChangeKind]]:
    """Relative path and kind of change."""
    return [(change.path[len(AT) + 1 :], change.change) for change in changes.changes]


def before_and_after(folder: str) -> tuple[str, str]:
    """Two trees that differ at the bottom alone."""
    base, tree = f"{folder}/base", f"{folder}/tree"
    for root in (base, tree):
        os.mkdir(root)
        descend(root, put("edited", "one\n"))
    descend(base, put("gone", "1\n"))
    descend(tree, put("edited", "two\n"))
    descend(tree, put("new", "3\n"))
    return base, tree


WANTED = [(f"{WAY}/edited", M), (f"{WAY}/gone", D), (f"{WAY}/new", C)]


def test_every_way_finds_changes_at_any_depth(folder: str) -> None:
    base, tree = before_and_after(folder)
    upper, empty = f"{folder}/upper", f"{folder}/empty"
    os.mkdir(upper)
    os.mkdir(empty)
    descend(upper, put("edited", "two\n"))
    descend(upper, put("new", "3\n"))
    descend(upper, lambda bottom: os.mknod("gone", 0o020000, 0, dir_fd=bottom))
    middle = f"{folder}/middle"
    os.mkdir(middle)
    descend(middle, put("gone", "1\n"))

    def scans() -> list[list[tuple[str, ChangeKind]]]:
        found = [scan_layer(upper, base, AT), scan_layer(upper, (middle, base), AT), scan_pair(tree, base, AT)]
        found.append(scan_pair(tree, base, AT, since=1))
        found.append(compare(full_manifest(base), full_manifest(tree), AT))
        return [short(changes) for changes in found]

    assert limited(scans) == [WANTED] * 5
    assert len(limited(lambda: short(scan_pair(empty, base, AT)))) == LEVELS + 2
    assert len(limited(lambda: short(scan_pair(base, empty, AT)))) == LEVELS + 2


def test_many_layers_that_all_go_deep(folder: str) -> None:
    stack = tuple(f"{folder}/{number}" for number in range(32))
    for number, layer in enumerate(stack):
        os.mkdir(layer)
        descend(layer, put(f"of-{number}", f"{number}\n"), 40)
    upper, way = f"{folder}/upper", "a-level/" * 40
    os.mkdir(upper)
    descend(upper, lambda bottom: os.mknod("of-31", 0o020000, 0, dir_fd=bottom), 40)
    descend(upper, put("of-7", "other\n"), 40)
    changes = limited(lambda: scan_layer(upper, stack, AT))
    assert short(changes) == [(f"{way}of-31", D), (f"{way}of-7", M)]
    assert limited(lambda: [line_counts(change, stack, upper, AT) for change in changes.changes]) == [(0, 1), (1, 1)]
    limited(lambda: export_tree(stack, upper, changes, AT, (), f"{folder}/out", False))
    found = full_manifest(f"{folder}/out").entries
    assert {path for path in found if path.startswith(way)} == {f"{way}of-{number}" for number in range(31)}


def _witnessed(writer: StatManifestWriter, base: str, copy: str) -> None:
    """What a copy notes of a chain of folders with one file at its end."""
    writer.witness(b"", os.stat(base), os.stat(copy))
    one, two = (os.open(root, os.O_RDONLY) for root in (base, copy))
    relative = b""
    for name in [*["a-level"] * LEVELS, "edited"]:
        relative += b"/" * bool(relative) + name.encode()
        writer.witness(relative, os.stat(name, dir_fd=one), os.stat(name, dir_fd=two))
        if name == "a-level":
            one, two = (os.open(name, os.O_RDONLY, dir_fd=folder) for folder in (one, two))


def test_a_copy_of_any_depth(folder: str) -> None:
    base, copy, file = f"{folder}/base", f"{folder}/copy", f"{folder}/manifest"
    for root in (base, copy):
        os.mkdir(root)
        descend(root, put("edited", "one\n"))

    def copied() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with StatManifestWriter(file) as writer:
            _witnessed(writer, base, copy)

    in_child(copied)
    descend(copy, put("edited", "two\n"))
    manifest = StatManifest.load(file)
    assert limited(lambda: short(scan_tree(copy, manifest, base, AT))) == [(f"{WAY}/edited", M)]
    remove(f"{copy}/a-level")
    assert len(limited(lambda: short(scan_tree(copy, manifest, base, AT)))) == LEVELS + 1
    remove(f"{base}/a-level")
    assert len(limited(lambda: short(scan_tree(copy, manifest, base, AT)))) == LEVELS + 1


def test_what_lies_deep_comes_out_as_it_went_in(folder: str) -> None:
    base, tree = before_and_after(folder)
    upper, out = f"{folder}/upper", f"{folder}/out"
    os.mkdir(upper)
    descend(upper, put("edited", "two\n"))
    descend(upper, put("new", "3\n"))
    descend(upper, lambda bottom: os.mknod("gone", 0o020000, 0, dir_fd=bottom))
    descend(base, put("linked", "4\n"))
    descend(base, lambda bottom: os.link("linked", "too", src_dir_fd=bottom, dst_dir_fd=bottom))
    changes = limited(lambda: scan_layer(upper, base, AT))
    limited(lambda: export_tree(base, upper, changes, AT, (), out, False))
    found = limited(lambda: full_manifest(out))
    assert found.hard_links() == ((f"{WAY}/linked", f"{WAY}/too"),)
    assert sorted(path for path in found.entries if "a-level/" * LEVELS in path) == [
        f"{WAY}/{name}" for name in ("edited", "linked", "new", "too")
    ]
    limited(lambda: export_tree("/nowhere", tree, Changeset(()), AT, (), f"{folder}/whole", True))
    assert content(limited(lambda: full_manifest(f"{folder}/whole"))) == content(limited(lambda: full_manifest(tree)))
    limited(lambda: export_changes(upper, changes, AT, f"{folder}/alone"))
    assert f"{WAY}/new" in limited(lambda: full_manifest(f"{folder}/alone")).entries

    def packed() -> list[str]:
        stream = io.BytesIO()
        assert export_tar([Part(base, upper, changes, AT, (), False)], stream) == ()
        with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as archive:
            return [member.name for member in archive if not member.isdir()]

    assert limited(packed) == [f"{WAY}/{name}" for name in ("edited", "linked", "new", "too")]


def test_what_lies_deep_has_a_patch(folder: str) -> None:
    base, tree = before_and_after(folder)
    changes = limited(lambda: scan_pair(tree, base, AT)).changes
    text = limited(lambda: b"".join(patch(changes, base, tree, AT)))
    assert b"-one\n+two\n" in text
    assert text.count(b"diff --git") == 3
    assert limited(lambda: [line_counts(change, base, tree, AT) for change in changes]) == [(1, 1), (0, 1), (1, 0)]


def test_a_deep_export_that_fails_leaves_nothing(folder: str) -> None:
    base, tree = before_and_after(folder)
    descend(tree, lambda bottom: os.symlink("x" * 10, "z", dir_fd=bottom))
    changes = limited(lambda: scan_pair(tree, base, AT))
    descend(tree, take("z"))
    with pytest.raises(CollectError):
        limited(lambda: export_changes(tree, changes, AT, f"{folder}/out"))
    assert sorted(os.listdir(folder)) == ["base", "tree"]


def test_host_writes_deep_down_are_seen(folder: str) -> None:
    source = f"{folder}/source"
    write_files(folder, {"pool/": "", "source/": ""})
    descend(source, put("a", "1"))
    probe = make_probe(source, f"{folder}/pool")
    assert limited(lambda: source_changed(source, f"{folder}/pool", probe)).state is SourceChanged.UNCHANGED
    descend(source, put("a", "2"))
    found = limited(lambda: source_changed(source, f"{folder}/pool", probe))
    assert (found.state, found.paths) == (SourceChanged.CHANGED, (f"{WAY}/a",))


def test_no_more_descriptors_are_a_typed_error(folder: str) -> None:
    base, tree = before_and_after(folder)

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_SOFT, _SOFT))
        scan_pair(tree, base, AT)

    with pytest.raises(CollectError, match="deeper than this process can have files open") as caught:
        in_child(few)
    assert caught.value.code is Code.COLLECT_FAILED
