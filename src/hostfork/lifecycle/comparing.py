"""What differs between two moments: a fork's base, one of its checkpoints, the fork now, the host now.

    FORK@base  FORK@ID  FORK@now (or FORK alone)  FORK@host

Of each moment's side what may differ is made as a plain tree in the pool, and both trees are compared by their content.
What may differ is what changed against the base; of the host that is what has another kind, mode, owner, size or time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from hostfork.checkpoint.store import Checkpoints
from hostfork.collect import scan
from hostfork.collect.changeset import Changeset
from hostfork.collect.copying import TreeCopy
from hostfork.collect.depth import at_any_depth
from hostfork.collect.difference import below, relative_to
from hostfork.collect.final import Entry, FinalWalk
from hostfork.collect.ignores import IGNORE_FILES
from hostfork.collect.reader import TreeReader
from hostfork.collect.walk import Place
from hostfork.errors import Code, CollectError, PolicyError
from hostfork.lifecycle import changes, uses
from hostfork.lifecycle.export import Sides, sides_of
from hostfork.lifecycle.fork import Fork
from hostfork.lifecycle.past import Past
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.store import ForkFolder, Store
from hostfork.vocabulary import ChangeKind, EntryKind

BASE, HOST, NOW = "base", "host", "now"


class Compared:
    """The differences from one moment to another, inside the context."""

    def __init__(self, store: Store, one: str, other: str) -> None:
        self._store, self._words = store, (one, other)
        self._stack = ExitStack()

    def __enter__(self) -> Compared:
        with ExitStack() as stack:
            self._moments = [stack.enter_context(_Moment(self._store, words)) for words in self._words]
            one, other = self._moments
            self._paths = [path for path in one.paths() if path.path in {it.path for it in other.paths()}]
            if not self._paths:
                raise PolicyError(
                    Code.POLICY_USAGE, f"{one.record.name} and {other.record.name} have no private path in common",
                    step="options", hint="hostfork show FORK lists them",
                )  # fmt: skip
            pool = Checkpoints(one.record.pool)
            stack.enter_context(pool.held())
            self._view = stack.enter_context(pool.view())
            self._trees: dict[str, tuple[str, str]] = {}
            self._changes = self._compared()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def name(self) -> str:
        """Both, as they were named."""
        return " ".join(self._words)

    @property
    def record(self) -> Record:
        """The record of the fork that the first moment is of."""
        return self._moments[0].record

    def diff(self, paths: Sequence[str] = ()) -> Changeset:
        """What differs, of all or of these paths and what lies below."""
        return self._changes.below(paths)

    def patch(self, paths: Sequence[str] = ()) -> Iterator[bytes]:
        """The differences as a patch that `git apply` takes, relative to each private path."""
        from hostfork.collect import diff as text

        changeset = self.diff(paths)
        for path in self._paths:
            one, other = self._trees[path.path]
            yield from text.patch(changes.part_of(changeset, path).changes, one, other, path.path)

    def line_counts(self, changeset: Changeset) -> dict[str, tuple[int, int] | None]:
        """Lines added and removed for each path, None where that has no meaning."""
        from hostfork.collect import diff as text

        found: dict[str, tuple[int, int] | None] = {}
        for path in self._paths:
            one, other = self._trees[path.path]
            for change in changes.part_of(changeset, path).changes:
                found[change.path] = text.line_counts(change, one, other, path.path)
        return found

    def _compared(self) -> Changeset:
        parts = {}
        for number, path in enumerate(self._paths):
            any_path = any(moment.is_host for moment in self._moments)
            sides = [moment.side(path.path, any_path) for moment in self._moments]
            wanted = _with_ignore_files({relative for side in sides for relative in side.touched()})
            trees = [os.path.join(self._view, f"{number}.{letter}") for letter in "ab"]
            for side, tree in zip(sides, trees, strict=True):
                side.write(wanted, tree)
            self._trees[path.path] = (trees[0], trees[1])
            # Trees of ours, whatever modes they have.
            before, after = (scan.full_manifest(tree, ours=True) for tree in trees)
            parts[path.path] = scan.compare(before, after, path.path)
        return changes.joined(parts)


class _Moment:
    """One of them, open."""

    def __init__(self, store: Store, words: str) -> None:
        self._store = store
        name, at, self._which = words.rpartition("@")
        self._words, self._name = words, name if at else words
        self._which = self._which if at else NOW
        self._stack = ExitStack()

    def __enter__(self) -> _Moment:
        with ExitStack() as stack:
            self._past: Past | None = None
            if self._which not in (BASE, HOST, NOW):
                self._past = stack.enter_context(Past(self._store, self._words))
                self.record = self._past.record
            else:
                self.record = Fork.open(self._name).record
            self._folder: ForkFolder = stack.enter_context(self._store.open(self.record.name))
            stack.enter_context(uses.using(self._folder.path))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def paths(self) -> tuple[PathRecord, ...]:
        return changes.private_paths(self.record)

    @property
    def is_host(self) -> bool:
        """Whether it is the host's."""
        return self._past is None and self._which == HOST

    def side(self, at: str, every: bool) -> _Side:
        """What one private path holds at this moment. `every`: what is asked for may be any path of it."""
        path = next(path for path in self.paths() if path.path == at)
        now = sides_of(self._folder, self.record, path)
        nothing = Changeset(())
        if self._past is not None:
            sides = self._past.sides(path, every=every)._replace(manifest=now.manifest)
            return _Side(path, sides, changes.part_of(self._past.diff(), path))
        if self._which == NOW:
            return _Side(path, now, changes.part_of(Fork.open(self.record.name).diff(), path))
        base = Sides(now.base, now.manifest, now.delta, False)
        return _Side(path, base, nothing) if self._which == BASE else _Host(path, base, nothing)


class _Side:
    """The content of one private path: the base with changes."""

    def __init__(self, path: PathRecord, sides: Sides, changeset: Changeset) -> None:
        self._path, self._sides = path, sides
        self._changes = {relative_to(path.path, one.path): one for one in changeset.changes}

    def touched(self) -> set[str]:
        """The relative paths that may differ from the base."""
        return set(self._changes)

    @at_any_depth
    def write(self, wanted: set[str], tree: str) -> None:
        """Make a plain tree of what there is at these paths, and the folders above. Raises CollectError."""
        every = {""} | wanted
        for path in wanted:
            while path:
                path = path.rpartition("/")[0]
                every.add(path)
        os.mkdir(tree, 0o700)
        root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            copy = TreeCopy(root, special=True)
            try:
                for entry in self._entries(sorted(every, key=lambda one: os.fsencode(one).replace(b"/", b"\0"))):
                    copy.add(entry)
                copy.finish()
            finally:
                copy.abandon()
        except OSError as error:
            raise CollectError(
                Code.COLLECT_FAILED, f"what {self._path.written} holds cannot be read", step="diff",
                path=os.fsdecode(error.filename or tree), errno=error.errno,
            ) from error  # fmt: skip
        finally:
            os.close(root)

    def _entries(self, wanted: list[str]) -> Iterator[Entry]:
        with TreeReader(self._sides.base) as base, TreeReader(self._sides.delta, ours=True) as delta:
            folders = {""}
            for relative in wanted:
                if relative and relative.rpartition("/")[0] not in folders:
                    continue
                place, ours = self._place(relative, base, delta)
                try:
                    found = None if place is None else place.stat()
                except FileNotFoundError:
                    found = None
                if place is None or found is None:
                    continue
                if found.st_mode & 0o170000 == 0o040000:
                    folders.add(relative)
                yield Entry(relative, place, found, ours, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns)

    def _place(self, relative: str, base: TreeReader, delta: TreeReader) -> tuple[Place | None, bool]:
        change = self._changes.get(relative)
        if self._sides.whole:
            return (None if relative in self._path.omit else delta.place(relative)), True
        if change is not None:
            return (None if change.change is ChangeKind.DELETED else delta.place(relative)), True
        above = relative
        while above:
            above = above.rpartition("/")[0]
            changed = self._changes.get(above)
            if changed is not None and changed.was is not EntryKind.FOLDER:
                return None, False  # the base has no such folder
        return self._of_base(relative, base), False

    def _of_base(self, relative: str, base: TreeReader) -> Place | None:
        place = base.place(relative)
        if self._sides.manifest is None or place is None:
            return place
        known, found = self._sides.manifest.find(os.fsencode(relative)), place.stat()
        if known is not None and (known.kind is EntryKind.FOLDER or known.is_source(found)):
            return place
        if known is None:
            return None
        raise CollectError(
            Code.COLLECT_BASE_GONE, f"the host changed {below(self._path.path, relative)} since", step="diff",
            path=below(self._path.path, relative), hint="compare with what the fork or a checkpoint holds",
        )  # fmt: skip


class _Host(_Side):
    """What the host has there now."""

    def touched(self) -> set[str]:
        """What has another kind, mode, owner, size or time than the base, by a walk of both."""
        manifest, base = self._sides.manifest, self._sides.base
        found = _looks(self._path.path, self._path)
        if manifest is None:
            before = _looks(base, self._path)
        else:
            before = {
                os.fsdecode(one.relative): (one.mode, one.uid, one.gid, *_size(one.mode, one.size, one.mtime_ns))
                for one in manifest
            }  # fmt: skip
        return {path for path in before.keys() | found.keys() if before.get(path) != found.get(path)}

    def _entries(self, wanted: list[str]) -> Iterator[Entry]:
        with TreeReader(self._path.path) as reader:
            for relative in wanted:
                place = None if relative in self._path.omit else reader.place(relative)
                try:
                    found = None if place is None else place.stat()
                except FileNotFoundError:
                    found = None
                if place is not None and found is not None:
                    yield Entry(relative, place, found, False, found.st_mode, found.st_uid, found.st_gid,
                                found.st_mtime_ns)  # fmt: skip


def _looks(base: str | tuple[str, ...], path: PathRecord) -> dict[str, tuple[int, ...]]:
    """Kind, mode, owner, size and time of everything in a tree or stack."""
    top = base if isinstance(base, str) else base[0]
    walk = FinalWalk(base, top, Changeset(()), path.path, path.omit, False, None)
    return {
        one.relative: (one.mode, one.uid, one.gid, *_size(one.mode, one.stat.st_size, one.mtime_ns)) for one in walk
    }  # fmt: skip


def _size(mode: int, size: int, mtime: int) -> tuple[int, int]:
    """Of folders these tell nothing."""
    return (0, 0) if mode & 0o170000 == 0o040000 else (size, mtime)


def _with_ignore_files(wanted: set[str]) -> set[str]:
    """And what tells which paths the project ignores."""
    folders = {""}
    for path in wanted:
        while path:
            path = path.rpartition("/")[0]
            folders.add(path)
    names = (IGNORE_FILES,) if isinstance(IGNORE_FILES, str) else IGNORE_FILES
    return wanted | {below(folder, name) for folder in folders for name in names}
