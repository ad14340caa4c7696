"""Patches that the real `git apply` takes, and line counts that agree with it."""

import os
import shutil
import subprocess

import pytest

from collect_rig import copy_with_manifest
from hostfork.collect.diff import line_counts, patch, quoted
from hostfork.collect.lines import compare_lines, hunks, split_lines
from hostfork.collect.manifest import StatManifest
from hostfork.collect.scan import scan_tree

AT = "/data/proj"
pytestmark = pytest.mark.rig("git")


def write(path: str, content: bytes) -> None:
    """Write a file and the folders above it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


class Trees:
    """A base and its copy, with a patch between them."""

    def __init__(self, folder: str, files: dict[str, bytes]) -> None:
        self.base, self.copy, self.folder = f"{folder}/base", f"{folder}/copy", folder
        os.mkdir(self.base)
        for name, content in files.items():
            write(f"{self.base}/{name}", content)

    def fork(self) -> None:
        """Take the copy."""
        copy_with_manifest(self.base, self.copy, f"{self.folder}/manifest")
        self.manifest = StatManifest.load(f"{self.folder}/manifest")

    def patch(self) -> bytes:
        """The patch of all changes."""
        self.changes = scan_tree(self.copy, self.manifest, self.base, AT).changes
        return b"".join(patch(self.changes, self.base, self.copy, AT, self.manifest))

    def apply(self, text: bytes, *options: str) -> str:
        """Apply it to another copy of the base; that copy's path."""
        place = f"{self.folder}/applied"
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run(["cp", "-a", self.base, place], check=True)
        subprocess.run(["git", "apply", *options, "-"], cwd=place, input=text, check=True)
        return place

    def counts(self) -> dict[str, tuple[int, int] | None]:
        """Line counts by relative path."""
        return {
            change.path[len(AT) + 1 :]: line_counts(change, self.base, self.copy, AT, self.manifest)
            for change in self.changes
        }


LINES = b"".join(b"line %d\n" % number for number in range(100))
ODD = 'odd "q" \\b\ttab\nnew \udcff\u00e9'


def test_git_applies_every_kind_of_change(tmp_path: os.PathLike[str]) -> None:
    files = {
        "text": LINES, "no newline": b"a\nb", "gets newline": b"a\nb", "gone": b"x\ny\n", "empty gone": b"",
        "binary": b"\0\1\2" * 1000, "binary gone": b"\0", "script": b"#!/bin/sh\n", "both": b"1\n", ODD: b"odd\n",
        "d/to-file/in": b"in\n", "to-folder": b"f\n", "to-link": b"was a file\n", "cr": b"a\r\nb\r\n", "same": b"s",
    }  # fmt: skip
    trees = Trees(str(tmp_path), files)
    os.symlink("old\ntarget", f"{trees.base}/link")
    os.symlink("x", f"{trees.base}/link-to-file")
    trees.fork()
    copy = trees.copy
    write(f"{copy}/text", LINES.replace(b"line 5\n", b"").replace(b"line 50\n", b"fifty\nand\n") + b"end")
    write(f"{copy}/no newline", b"a\nb\nc")
    write(f"{copy}/gets newline", b"a\nb\n")
    write(f"{copy}/cr", b"a\r\nc\r\n")
    for name in ("gone", "empty gone", "binary gone", "link", "link-to-file", "to-folder", "to-link"):
        os.unlink(f"{copy}/{name}")
    write(f"{copy}/binary", b"\0\1\3" * 997)
    write(f"{copy}/new/empty", b"")
    write(f"{copy}/new/{ODD}", b"new\n")
    write(f"{copy}/new/binary", bytes(range(256)))
    write(f"{copy}/{ODD}", b"even\n")
    os.chmod(f"{copy}/script", 0o755)
    write(f"{copy}/both", b"2\n")
    os.chmod(f"{copy}/both", 0o755)
    os.symlink("new\ntarget", f"{copy}/link")
    write(f"{copy}/link-to-file", b"file now\n")
    write(f"{copy}/to-folder/in", b"in\n")
    os.symlink("/nowhere", f"{copy}/to-link")
    shutil.rmtree(f"{copy}/d/to-file")
    write(f"{copy}/d/to-file", b"file\n")
    text = trees.patch()
    place = trees.apply(text)
    done = subprocess.run(["diff", "-r", "--no-dereference", place, copy], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    for name in ("script", "both"):
        assert os.stat(f"{place}/{name}").st_mode & 0o100
    backwards = f"{tmp_path}/back"
    subprocess.run(["cp", "-a", place, backwards], check=True)
    subprocess.run(["git", "apply", "-R", "-"], cwd=backwards, input=text, check=True)
    assert subprocess.run(["diff", "-r", "--no-dereference", backwards, trees.base], check=False).returncode == 0


def test_line_counts_agree_with_git(tmp_path: os.PathLike[str]) -> None:
    trees = Trees(str(tmp_path), {"a": LINES, "b": b"x\ny\n", "c": b"\0", "d": b"1\n", "e": b"e", "mode": b"m\n"})
    trees.fork()
    write(f"{trees.copy}/a", LINES.replace(b"line 7\n", b"seven\n") + b"more\nand more")
    os.unlink(f"{trees.copy}/b")
    write(f"{trees.copy}/c", b"\0\1")
    write(f"{trees.copy}/n/new", b"1\n2\n3")
    os.unlink(f"{trees.copy}/d")
    os.symlink("d", f"{trees.copy}/d")
    os.symlink("l", f"{trees.copy}/link")
    os.chmod(f"{trees.copy}/mode", 0o755)
    text = trees.patch()
    counts = trees.counts()
    assert counts == {
        "a": (3, 1), "b": (0, 2), "c": None, "d": (0, 1), "link": None, "mode": (0, 0), "n": None, "n/new": (3, 0),
    }  # fmt: skip
    told = subprocess.run(
        ["git", "apply", "--numstat", "-"], input=text, capture_output=True, check=True
    ).stdout.decode()
    numbers = {line.split("\t")[2]: tuple(line.split("\t")[:2]) for line in told.splitlines()}
    for name in ("a", "b", "n/new"):
        assert numbers[name] == tuple(str(number) for number in counts[name] or ())


def test_a_base_that_is_gone_is_said(tmp_path: os.PathLike[str]) -> None:
    trees = Trees(str(tmp_path), {"a": b"one\n", "b": b"two\n", "c\n": b"three\n", "d": b"four\n"})
    trees.fork()
    for name in ("a", "b", "c\n", "d"):
        write(f"{trees.copy}/{name}", b"fork\n")
    os.unlink(f"{trees.base}/a")
    write(f"{trees.base}/c\n", b"host\n")
    before = trees.patch()
    write(f"{trees.base}/b", b"host later\n")  # after the scan: found by the manifest
    text = b"".join(patch(trees.changes, trees.base, trees.copy, AT, trees.manifest))
    assert text.startswith(
        b"a: the base's content is gone, there is no patch for it\n"
        b"b: the base's content is gone, there is no patch for it\n"
        b'"c\\n": the base\'s content is gone, there is no patch for it\n'
        b"diff --git a/d b/d\n"
    )
    assert b"host" not in before
    assert b"host" not in text
    assert trees.counts() == {"a": None, "b": None, "c\n": None, "d": (1, 1)}
    with open(f"{trees.apply(text)}/d", "rb") as file:
        assert file.read() == b"fork\n"


def test_storage_that_lost_a_file_is_said_too(tmp_path: os.PathLike[str]) -> None:
    trees = Trees(str(tmp_path), {"a": b"one\n"})
    trees.fork()
    write(f"{trees.copy}/a", b"two\n")
    trees.patch()
    os.unlink(f"{trees.copy}/a")
    assert b"is gone" in b"".join(patch(trees.changes, trees.base, trees.copy, AT))


def test_large_binaries_only_differ(tmp_path: os.PathLike[str]) -> None:
    trees = Trees(str(tmp_path), {"big": b"\0" * (5 << 20)})
    trees.fork()
    write(f"{trees.copy}/big", b"\0\1" * (2 << 20))
    with open(f"{trees.copy}/sparse", "wb") as file:
        file.truncate(100 << 20)
    assert trees.patch() == (
        b"diff --git a/big b/big\nBinary files a/big and b/big differ\n"
        b"diff --git a/sparse b/sparse\nnew file mode 100644\nBinary files /dev/null and b/sparse differ\n"
    )
    assert trees.counts() == {"big": None, "sparse": None}


def test_a_huge_rewrite_is_one_block(tmp_path: os.PathLike[str]) -> None:
    one = b"".join(b"%d\n" % number for number in range(30000))
    two = b"".join(b"%d!\n" % number for number in range(30000))
    trees = Trees(str(tmp_path), {"a": b"head\n" + one + b"tail\n"})
    trees.fork()
    write(f"{trees.copy}/a", b"head\n" + two + b"tail\n")
    with open(f"{trees.apply(trees.patch())}/a", "rb") as file:
        assert file.read() == b"head\n" + two + b"tail\n"
    assert trees.counts() == {"a": (30000, 30000)}


def test_a_private_file_has_its_own_name(tmp_path: os.PathLike[str]) -> None:
    write(f"{tmp_path}/base", b"one\n")
    copy_with_manifest(f"{tmp_path}/base", f"{tmp_path}/copy", f"{tmp_path}/manifest")
    write(f"{tmp_path}/copy", b"two\n")
    manifest = StatManifest.load(f"{tmp_path}/manifest")
    changes = scan_tree(f"{tmp_path}/copy", manifest, f"{tmp_path}/base", "/etc/conf").changes
    text = b"".join(patch(changes, f"{tmp_path}/base", f"{tmp_path}/copy", "/etc/conf", manifest))
    assert text.startswith(b"diff --git a/conf b/conf\n")
    assert text.endswith(b"@@ -1 +1 @@\n-one\n+two\n")


def test_folders_and_pipes_have_no_patch(tmp_path: os.PathLike[str]) -> None:
    trees = Trees(str(tmp_path), {"a": b""})
    trees.fork()
    os.mkdir(f"{trees.copy}/folder")
    os.mkfifo(f"{trees.copy}/pipe")
    os.chmod(f"{trees.copy}/a", 0o640)
    assert trees.patch() == b""
    assert len(trees.changes) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [(b"plain name", b"plain name"), (b'a"b\\c', b'"a\\"b\\\\c"'), (b"\x01\x7f\xff\n", b'"\\001\\177\\377\\n"')],
)
def test_names_are_quoted_as_git_does(name: bytes, expected: bytes) -> None:
    assert quoted(name) == expected


def test_lines_and_blocks() -> None:
    assert split_lines(b"") == []
    assert split_lines(b"a\nb") == [b"a\n", b"b"]
    assert split_lines(b"a\r\n\n") == [b"a\r\n", b"\n"]
    assert compare_lines([b"a"], [b"a"]) == []
    found = hunks([b"%d\n" % n for n in range(30)], [b"%d\n" % n for n in range(30) if n not in (5, 25)])
    assert [(hunk.old, hunk.old_count, hunk.new, hunk.new_count) for hunk in found] == [(2, 7, 2, 6), (22, 7, 21, 6)]
