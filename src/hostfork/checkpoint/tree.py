"""The manifest of a checkpoint: what each private path held, entry by entry, in canonical bytes.

The BLAKE3 digest of these bytes is the id of the checkpoint.

It begins with the line `hostfork tree 1`. After it come groups of three texts, each ended by a zero byte, so that any
name can stand there: numbers with blanks between them, a path, and one more. For each private path:

    T whole|changes      absolute path     what the base is, empty for a whole tree
    X                    relative path     (empty)               one for each path that the fork's rules left out
    MODE UID GID MTIME SIZE RDEV DIGEST FLAGS XATTRS     relative path     link's target, or the first name of the file

The rows of one path are in the order of their names, folder by folder. MODE is octal with the kind, 0 for something
deleted; MTIME in nanoseconds; DIGEST and the values of XATTRS in hexadecimal, `-` for none. FLAGS: `c` it differs from
the base, `h` another name of a file that stood above, `o` nothing of the base shows in this folder, `-` none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from hostfork.errors import CheckpointError, Code
from hostfork.helper.shapes import NamedTuple
from hostfork.values import frozen

_MAGIC = b"hostfork tree 1\n"
Attributes = tuple[tuple[str, bytes], ...]


class Row(NamedTuple):
    """One entry. `mode` 0: it was deleted. `linked`: the path of a row above that is the same file."""

    path: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    rdev: int
    digest: bytes | None
    changed: bool
    opaque: bool
    linked: str | None
    target: bytes
    attributes: Attributes

    @property
    def kind(self) -> int:
        """The kind, as in `st_mode`."""
        return stat.S_IFMT(self.mode)


@frozen
class Tree:
    """What one private path held. `whole`: every entry, else what differs from `base` and the folders above.

    `omit`: relative paths that are no part of it, and that a restore leaves alone.
    """

    path: str
    base: str
    whole: bool
    omit: tuple[str, ...]
    rows: tuple[Row, ...]

    def changes(self) -> tuple[Row, ...]:
        """What differs from the base, what was deleted too, and the folders above it."""
        if not self.whole:
            return self.rows
        above: set[str] = set()
        for row in self.rows:
            path = row.path
            while row.changed and path:
                path = path.rpartition("/")[0]
                if path in above:
                    break
                above.add(path)
        return tuple(row for row in self.rows if row.changed or row.path in above)


@frozen
class TreeManifest:
    """All private paths of a fork."""

    trees: tuple[Tree, ...]

    def dump(self) -> bytes:
        """The canonical bytes."""
        parts = [b"%s\0%s\0%s\0" % triple for tree in self.trees for triple in _triples(tree)]
        return _MAGIC + b"".join(parts)

    @classmethod
    def parse(cls, content: bytes) -> TreeManifest:
        """What `dump` gave. Raises ValueError."""
        if not content.startswith(_MAGIC):
            raise ValueError("not the manifest of a checkpoint")
        texts = content[len(_MAGIC) :].split(b"\0")
        if len(texts) % 3 != 1 or texts[-1]:
            raise ValueError("ends too early")
        trees: list[Tree] = []
        omit: list[str] = []
        rows: list[Row] = []
        head: tuple[bytes, str, str] | None = None
        for index in range(0, len(texts) - 1, 3):
            numbers, path, more = texts[index : index + 3]
            if numbers[:2] == b"T ":
                if head is not None:
                    trees.append(_tree(head, omit, rows))
                head, omit, rows = (numbers, os.fsdecode(path), os.fsdecode(more)), [], []
            elif head is None:
                raise ValueError("an entry of no path")
            elif numbers == b"X":
                omit.append(os.fsdecode(path))
            else:
                rows.append(_row(numbers, path, more))
        return cls(tuple(trees) if head is None else (*trees, _tree(head, omit, rows)))

    def digests(self) -> Iterator[bytes]:
        """The digests of all contents, some more than once."""
        for tree in self.trees:
            for row in tree.rows:
                if row.digest is not None:
                    yield row.digest

    def of(self, path: str) -> Tree:
        """The tree of one private path. Raises CheckpointError `checkpoint.damaged`."""
        for tree in self.trees:
            if tree.path == path:
                return tree
        raise CheckpointError(Code.CHECKPOINT_DAMAGED, f"the checkpoint does not hold {path}", path=path)


def in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Folder by folder, by the bytes of names; folders before what they hold."""
    return tuple(sorted(rows, key=lambda row: os.fsencode(row.path).replace(b"/", b"\0")))


def deleted(path: str) -> Row:
    """A row for what the base has and the fork had not."""
    return Row(path, 0, 0, 0, 0, 0, 0, None, True, False, None, b"", ())


def _triples(tree: Tree) -> Iterator[tuple[bytes, bytes, bytes]]:
    yield b"T whole" if tree.whole else b"T changes", os.fsencode(tree.path), os.fsencode(tree.base)
    for path in tree.omit:
        yield b"X", os.fsencode(path), b""
    for row in tree.rows:
        flags = ("c" if row.changed else "") + ("h" if row.linked is not None else "") + ("o" if row.opaque else "")
        attributes = ",".join(f"{os.fsencode(name).hex()}={value.hex()}" for name, value in row.attributes)
        numbers = (
            f"{row.mode:o} {row.uid} {row.gid} {row.mtime_ns} {row.size} {row.rdev} "
            f"{'-' if row.digest is None else row.digest.hex()} {flags or '-'} {attributes or '-'}"
        )
        more = row.target if row.linked is None else os.fsencode(row.linked)
        yield numbers.encode("ascii"), os.fsencode(row.path), more


def _tree(head: tuple[bytes, str, str], omit: list[str], rows: list[Row]) -> Tree:
    whole = {b"T whole": True, b"T changes": False}.get(head[0])
    if whole is None:
        raise ValueError("a tree of an unknown form")
    return Tree(head[1], head[2], whole, tuple(omit), tuple(rows))


def _row(numbers: bytes, path: bytes, more: bytes) -> Row:
    mode, uid, gid, mtime, size, rdev, digest, flags, attributes = numbers.decode("ascii").split(" ")
    linked = "h" in flags
    return Row(
        os.fsdecode(path), int(mode, 8), int(uid), int(gid), int(mtime), int(size), int(rdev),
        None if digest == "-" else bytes.fromhex(digest), "c" in flags, "o" in flags,
        os.fsdecode(more) if linked else None, b"" if linked else more,
        () if attributes == "-" else tuple(map(_attribute, attributes.split(","))),
    )  # fmt: skip


def _attribute(text: str) -> tuple[str, bytes]:
    name, _, value = text.partition("=")
    return os.fsdecode(bytes.fromhex(name)), bytes.fromhex(value)
