"""What changed as text: a patch in git's format, and line counts.

A path whose base is gone gets a sentence instead of a patch: never a patch against what the host has there today.
Folders, FIFOs, sockets, devices, owners and attributes have no place in git's format.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from hostfork.collect.changeset import Change
from hostfork.collect.depth import AnyDepth
from hostfork.collect.difference import relative_to
from hostfork.collect.lines import Hunk, compare_lines, hunks, split_lines
from hostfork.collect.manifest import StatManifest
from hostfork.collect.reader import TreeReader, read_small
from hostfork.collect.stack import Base
from hostfork.collect.walk import Place
from hostfork.helper.shapes import NamedTuple
from hostfork.vocabulary import ChangeKind, EntryKind

_LARGEST = 64 << 20
"""Bytes of one file. Larger ones are only said to differ."""
_LARGEST_BINARY = 8 << 20
_SNIFFED = 8000
"""git calls a file binary if there is a zero byte in its first 8000."""
_NOTHING = "0" * 40
_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


class _Blob(NamedTuple):
    """A file or symlink as git stores it: `mode` in git's words, content None if it is too large."""

    mode: str
    content: bytes | None


class _Sides:
    """Both contents of a path: the base's as long as it is what the fork started from, and the final one."""

    def __init__(self, base: TreeReader, delta: TreeReader, at: str, manifest: StatManifest | None) -> None:
        self._base, self._delta, self._at, self._manifest = base, delta, at, manifest

    def before(self, change: Change) -> _Blob | None:
        """The base's side; None where there was nothing that git knows. Raises LookupError if it is gone."""
        if change.was not in (EntryKind.FILE, EntryKind.SYMLINK):
            return None
        relative = relative_to(self._at, change.path)
        place = self._base.place(relative)
        if change.base_gone or place is None:
            raise LookupError
        if self._manifest is not None:
            entry = self._manifest.find(os.fsencode(relative))
            if entry is None or not entry.is_source(place.stat()):
                raise LookupError
        return _blob(place, change.was, change.old_mode, ours=False)

    def after(self, change: Change) -> _Blob | None:
        """The final side; None where there is nothing that git knows. Raises LookupError if it cannot be read."""
        if change.change is ChangeKind.DELETED or change.kind not in (EntryKind.FILE, EntryKind.SYMLINK):
            return None
        place = self._delta.place(relative_to(self._at, change.path))
        if place is None:
            raise LookupError
        return _blob(place, change.kind, change.mode, ours=True)


def _blob(place: Place, kind: EntryKind, mode: int | None, ours: bool) -> _Blob:
    if kind is EntryKind.SYMLINK:
        return _Blob("120000", place.link_target())
    name = "100755" if (mode or 0) & 0o100 else "100644"
    try:
        if place.stat().st_size > _LARGEST:
            return _Blob(name, None)
        content = read_small(place, ours, _LARGEST)
    except OSError:
        content = None
    if content is None:
        raise LookupError
    return _Blob(name, content)


def patch(
    changes: Iterable[Change], base: Base, delta: str, at: str, manifest: StatManifest | None = None
) -> Iterator[bytes]:
    """A patch that `git apply` takes in the folder `at`, in pieces.

    `delta` holds the changed entries; `manifest`, where there is one, says whether the base is still what it was.
    """
    with AnyDepth(), TreeReader(base) as before, TreeReader(delta, ours=True) as after:
        sides = _Sides(before, after, at, manifest)
        for change in changes:
            name = os.fsencode(relative_to(at, change.path) or os.path.basename(at))
            try:
                old, new = sides.before(change), sides.after(change)
            except LookupError:
                yield quoted(name) + b": the base's content is gone, there is no patch for it\n"
                continue
            if old is not None and new is not None and (old.mode == "120000") != (new.mode == "120000"):
                yield from _one(name, old, None)
                yield from _one(name, None, new)
            elif old != new:
                yield from _one(name, old, new)


def line_counts(
    change: Change, base: Base, delta: str, at: str, manifest: StatManifest | None = None
) -> tuple[int, int] | None:
    """Lines added and removed. None for what has no lines: binary or very large files, other kinds, a base gone."""
    if EntryKind.FILE not in (change.kind, change.was):
        return None
    with AnyDepth(), TreeReader(base) as before, TreeReader(delta, ours=True) as after:
        sides = _Sides(before, after, at, manifest)
        try:
            old, new = sides.before(change), sides.after(change)
        except LookupError:
            return None
    contents = [b"" if side is None or side.mode == "120000" else side.content for side in (old, new)]
    if contents[0] is None or contents[1] is None or _is_binary(contents[0]) or _is_binary(contents[1]):
        return None
    one, two = split_lines(contents[0]), split_lines(contents[1])
    blocks = compare_lines(one, two)
    return sum(block.new_end - block.new for block in blocks), sum(block.old_end - block.old for block in blocks)


def quoted(name: bytes) -> bytes:
    """A path as git writes it: in C's quotes if it holds control characters, quotes, backslashes or bytes above 127."""
    if all(32 <= byte < 127 and byte not in _ESCAPES for byte in name):
        return name
    return b'"' + b"".join(_escaped(byte) for byte in name) + b'"'


def _escaped(byte: int) -> bytes:
    if byte in _ESCAPES:
        return _ESCAPES[byte]
    return bytes([byte]) if 32 <= byte < 127 else b"\\%03o" % byte


def _one(name: bytes, old: _Blob | None, new: _Blob | None) -> Iterator[bytes]:
    """The patch of one path. Both names are the same: renames are a deletion and a creation."""
    before, after = quoted(b"a/" + name), quoted(b"b/" + name)
    yield b"diff --git " + before + b" " + after + b"\n"
    if old is None and new is not None:
        yield f"new file mode {new.mode}\n".encode()
    elif new is None and old is not None:
        yield f"deleted file mode {old.mode}\n".encode()
    elif old is not None and new is not None and old.mode != new.mode:
        yield f"old mode {old.mode}\nnew mode {new.mode}\n".encode()
    one = b"" if old is None else old.content
    two = b"" if new is None else new.content
    if one is not None and one == two and old is not None and new is not None:
        return
    before = b"/dev/null" if old is None else before
    after = b"/dev/null" if new is None else after
    if one is None or two is None or ((_is_binary(one) or _is_binary(two)) and len(one) + len(two) > _LARGEST_BINARY):
        yield b"Binary files " + before + b" and " + after + b" differ\n"
        return
    same_mode = f" {old.mode}" if old is not None and new is not None and old.mode == new.mode else ""
    yield f"index {_git_id(old)}..{_git_id(new)}{same_mode}\n".encode()
    if _is_binary(one) or _is_binary(two):
        yield b"GIT binary patch\n" + _literal(two) + _literal(one)
        return
    yield from _text(before, after, one, two)


def _text(before: bytes, after: bytes, one: bytes, two: bytes) -> Iterator[bytes]:
    found = hunks(split_lines(one), split_lines(two))
    if found:
        # git ends a name that holds a space with a tab.
        yield b"--- " + before + (b"\t\n" if b" " in before else b"\n")
        yield b"+++ " + after + (b"\t\n" if b" " in after else b"\n")
    for hunk in found:
        yield _hunk_header(hunk)
        for sign, line in hunk.lines:
            yield sign + line + (b"" if line.endswith(b"\n") else b"\n\\ No newline at end of file\n")


def _hunk_header(hunk: Hunk) -> bytes:
    def span(start: int, count: int) -> str:
        first = start + 1 if count else start
        return str(first) if count == 1 else f"{first},{count}"

    return f"@@ -{span(hunk.old, hunk.old_count)} +{span(hunk.new, hunk.new_count)} @@\n".encode()


def _is_binary(content: bytes) -> bool:
    return b"\0" in content[:_SNIFFED]


def _git_id(blob: _Blob | None) -> str:
    if blob is None or blob.content is None:
        return _NOTHING
    from hashlib import sha1

    return sha1(b"blob %d\0" % len(blob.content) + blob.content, usedforsecurity=False).hexdigest()


def _literal(content: bytes) -> bytes:
    """git's binary form: deflated, in lines of up to 52 bytes, each with its length as a letter, in base 85."""
    from base64 import b85encode
    from zlib import compress

    packed = compress(content)
    lines = [b"literal %d\n" % len(content)]
    for start in range(0, len(packed), 52):
        part = packed[start : start + 52]
        length = len(part)
        letter = bytes([length + (ord("A") - 1 if length <= 26 else ord("a") - 27)])
        lines.append(letter + b85encode(part, pad=True) + b"\n")
    return b"".join(lines) + b"\n"
