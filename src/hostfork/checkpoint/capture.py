"""Looking at what a private path holds, and taking the contents that no checkpoint of the pool has yet.

Each file is looked at before and after it is read, and at the end all is looked at once more: both looks agree, or
`Moved` names what was written meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator

from hostfork.checkpoint.known import Known, identity
from hostfork.checkpoint.objects import Intake
from hostfork.checkpoint.tree import Attributes, Row, Tree, deleted, in_order
from hostfork.collect.changeset import Changeset
from hostfork.collect.depth import at_any_depth
from hostfork.collect.difference import joined, relative_to
from hostfork.collect.final import FinalWalk
from hostfork.collect.reader import TreeReader
from hostfork.collect.stack import OPAQUE, is_whiteout
from hostfork.collect.walk import Place, attributes, mark, open_file
from hostfork.errors import CheckpointError, Code
from hostfork.helper.shapes import NamedTuple
from hostfork.vocabulary import ChangeKind


class Moved(Exception):
    """Something was written while it was looked at."""

    def __init__(self, path: str) -> None:
        self.path = path


class Held(NamedTuple):
    """Where the content of one private path lies. `path`: as the command sees it. `base`: what tells its base.

    `layer`: `delta` is the upper folder of an overlay. `whole`: all of `delta` is to be taken, the base is not kept.
    `every`: all entries of `delta` are looked at, else those that changed. `still`: a snapshot, which cannot change.
    """

    path: str
    delta: str
    base: str
    omit: tuple[str, ...] = ()
    layer: bool = False
    whole: bool = False
    every: bool = True
    still: bool = False


class _Seen(NamedTuple):
    relative: str
    place: Place
    stat: os.stat_result


@at_any_depth
def capture(held: Held, changes: Changeset, intake: Intake, known: Known) -> Tree:
    """Everything that one private path holds; new contents are in `intake`. Raises Moved, CheckpointError."""
    changed = {relative_to(held.path, change.path) for change in changes.changes}
    taking = _Taking(held, changed, intake, known)
    try:
        rows = [taking.row(seen) for seen in _entries(held, changes)]
        if not held.still:
            _agree(held, changes, taking.signs)
    except OSError as error:
        raise _failed(held, error) from error
    gone = [
        deleted(relative_to(held.path, change.path))
        for change in changes.changes
        if change.change is ChangeKind.DELETED
    ]
    return Tree(held.path, "" if held.whole else held.base, held.whole, tuple(sorted(held.omit)),
                in_order((*rows, *gone)))  # fmt: skip


class _Taking:
    """Makes rows of what is seen."""

    def __init__(self, held: Held, changed: set[str], intake: Intake, known: Known) -> None:
        self._held, self._changed, self._intake, self._known = held, changed, intake, known
        self._links: dict[tuple[int, int], str] = {}
        self.signs: dict[str, object] = {}

    def row(self, seen: _Seen) -> Row:
        """The row of one entry."""
        found, relative = seen.stat, seen.relative
        self.signs[relative] = _sign(found)
        kind, linked, digest, target = stat.S_IFMT(found.st_mode), None, None, b""
        if kind != stat.S_IFDIR and found.st_nlink > 1:
            first = self._links.setdefault((found.st_dev, found.st_ino), relative)
            linked = None if first == relative else first
        if linked is None and kind == stat.S_IFREG:
            digest = self._digest(seen)
        elif kind == stat.S_IFLNK:
            target = seen.place.link_target()
        size = found.st_size if kind in (stat.S_IFREG, stat.S_IFLNK) else 0
        device = found.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
        own = linked is None
        opaque = self._held.layer and kind == stat.S_IFDIR and mark(seen.place, OPAQUE) == b"y"
        return Row(
            relative, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, size, device, digest,
            relative in self._changed, opaque, linked, target if own else b"", self._attributes(seen) if own else (),
        )  # fmt: skip

    def _digest(self, seen: _Seen) -> bytes:
        digest = self._known.digest(seen.stat)
        if digest is not None and self._intake.objects.has(digest):
            return digest
        try:
            file = open_file(seen.place, ours=True)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE, errno.ELOOP):
                raise Moved(joined(self._held.path, seen.relative)) from error
            raise
        try:
            before = os.fstat(file)
            if identity(before)[:3] != identity(seen.stat)[:3]:
                raise Moved(joined(self._held.path, seen.relative))
            digest = self._intake.take(file)
            after = os.fstat(file)
        finally:
            os.close(file)
        if identity(before) != identity(after):
            raise Moved(joined(self._held.path, seen.relative))
        self._known.learn(after, digest)
        return digest

    def _attributes(self, seen: _Seen) -> Attributes:
        return tuple(sorted((attributes(seen.place, ours=True) or {}).items()))


def _entries(held: Held, changes: Changeset) -> Iterator[_Seen]:
    if held.every:
        return _all(held)
    return _changed(held, changes)


def _all(held: Held) -> Iterator[_Seen]:
    """Every entry of the storage but the marks of deleted ones."""
    if not os.path.lexists(held.delta):
        return  # a single file that did not change
    walk = FinalWalk(held.delta, held.delta, Changeset(()), held.path, held.omit, True, None)
    for entry in walk:
        if not (held.layer and is_whiteout(entry.stat)):
            yield _Seen(entry.relative, entry.place, entry.stat)


def _changed(held: Held, changes: Changeset) -> Iterator[_Seen]:
    """What changed and is there, and the folders above it, each once, in the order of rows."""
    wanted = {relative_to(held.path, one.path) for one in changes.changes if one.change is not ChangeKind.DELETED}
    above = {relative_to(held.path, one.path) for one in changes.changes}
    for path in above:
        while path:
            path = path.rpartition("/")[0]
            wanted.add(path)
    with TreeReader(held.delta, ours=True) as reader:
        for relative in sorted(wanted, key=lambda path: os.fsencode(path).replace(b"/", b"\0")):
            place = reader.place(relative)
            if place is not None:  # a folder above what was deleted may be deleted too
                try:
                    yield _Seen(relative, place, place.stat())
                except FileNotFoundError:
                    continue


def _sign(found: os.stat_result) -> object:
    """What both looks must agree on. Reading what its owner closed to itself moves the ctime."""
    closed = os.geteuid() != 0 and found.st_mode & 0o500 != 0o500
    return (*identity(found)[: 3 if closed else 4], found.st_mode, found.st_uid, found.st_gid)


def _agree(held: Held, changes: Changeset, signs: dict[str, object]) -> None:
    left = dict(signs)
    for seen in _entries(held, changes):
        if left.pop(seen.relative, None) != _sign(seen.stat):
            raise Moved(joined(held.path, seen.relative))
    for relative in left:
        raise Moved(joined(held.path, relative))


def _failed(held: Held, error: OSError) -> CheckpointError:
    from hostfork.checkpoint.objects import as_checkpoint_error

    if isinstance(error, PermissionError):
        return CheckpointError(
            Code.CHECKPOINT_FAILED, f"a file of {held.path} cannot be read by this user", step="checkpoint",
            path=os.fsdecode(error.filename or held.delta), errno=error.errno,
            hint="leave it out of the fork with a rule, or checkpoint as its owner",
        )  # fmt: skip
    return as_checkpoint_error(f"what {held.path} holds could not be taken", held.delta, error)


def contents(rows: Iterable[Row]) -> dict[str, bytes]:
    """The digest of each file by its path."""
    return {row.path: row.digest for row in rows if row.digest is not None}
