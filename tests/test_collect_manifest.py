"""The stored stat manifest: what goes in comes out, and a damaged file is said to be damaged."""

import os

import pytest

from collect_rig import copy_with_manifest
from hostfork.collect.manifest import StatManifest, StatManifestWriter
from hostfork.errors import Code, CollectError
from hostfork.vocabulary import EntryKind


def _tree(folder: str) -> tuple[str, str, str]:
    source, copy, manifest = f"{folder}/source", f"{folder}/copy", f"{folder}/manifest"
    os.makedirs(f"{source}/d/\udcff\n")
    os.symlink("x", f"{source}/d/link")
    with open(f"{source}/d/\udcff\n/file", "w", encoding="ascii") as file:
        file.write("12345")
    copy_with_manifest(source, copy, manifest)
    return source, copy, manifest


def test_round_trip(tmp_path: os.PathLike[str]) -> None:
    source, copy, path = _tree(str(tmp_path))
    manifest = StatManifest.load(path)
    assert {entry.relative for entry in manifest} == {b"", b"d", b"d/link", b"d/\xff\n", b"d/\xff\n/file"}
    assert len(manifest) == 5
    for entry in manifest:
        one, two = (
            os.lstat(os.path.join(source.encode(), entry.relative)),
            os.lstat(os.path.join(copy.encode(), entry.relative)),
        )
        assert entry.is_source(one)
        assert (entry.uid, entry.gid, entry.nlink) == (one.st_uid, one.st_gid, one.st_nlink)
        assert (entry.copy_ino, entry.copy_ctime_ns, entry.copy_mode) == (two.st_ino, two.st_ctime_ns, two.st_mode)
        assert (entry.copy_uid, entry.copy_gid, entry.copy_size) == (two.st_uid, two.st_gid, two.st_size)
        assert manifest.find(entry.relative) == entry
    found = manifest.find(b"d/\xff\n/file")
    assert found is not None
    assert (found.kind, found.size) == (EntryKind.FILE, 5)
    assert manifest.find(b"d/none") is None
    assert manifest.find(b"none/none") is None


def test_an_empty_manifest(tmp_path: os.PathLike[str]) -> None:
    with StatManifestWriter(f"{tmp_path}/m"):
        pass
    manifest = StatManifest.load(f"{tmp_path}/m")
    assert (len(manifest), list(manifest), manifest.find(b""), manifest.names("")) == (0, [], None, {})


def _interrupted(path: str) -> None:
    with StatManifestWriter(path) as writer:
        writer.witness(b"", os.lstat("/"), os.lstat("/"))
        raise KeyboardInterrupt


def test_nothing_is_written_after_an_error(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(f"{tmp_path}/m")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [0, 8, 63, 64, 200, -1])
def test_a_manifest_that_is_cut_off_is_damaged(tmp_path: os.PathLike[str], size: int) -> None:
    _, _, path = _tree(str(tmp_path))
    whole = os.path.getsize(path)
    os.truncate(path, size if size >= 0 else whole - 1)
    with pytest.raises(CollectError, match="damaged"):
        StatManifest.load(path)


@pytest.mark.parametrize("number", [0, 2, 3, 4, 5, 6, 7])
def test_a_header_that_lies_is_damaged(tmp_path: os.PathLike[str], number: int) -> None:
    _, _, path = _tree(str(tmp_path))
    with open(path, "r+b") as file:
        file.seek(number * 8)
        file.write((99).to_bytes(8, "little"))
    with pytest.raises(CollectError, match="damaged"):
        StatManifest.load(path)


def test_a_missing_manifest(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(CollectError, match="cannot be read") as caught:
        StatManifest.load(f"{tmp_path}/none")
    assert (caught.value.code, caught.value.errno) == (Code.COLLECT_FAILED, 2)
