"""A fork as it was at a checkpoint, to be looked at and exported like a fork.

What it held is made from the checkpoint as plain trees in the pool, which go at the end:

    POOL/checkpoints/view-PID-…/N    private path N: what differed from the base, or all of it
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from hostfork.checkpoint.conform import conform
from hostfork.checkpoint.known import Known
from hostfork.checkpoint.objects import as_checkpoint_error
from hostfork.checkpoint.store import Checkpoints
from hostfork.collect.changeset import Changeset
from hostfork.lifecycle import changes, moments, uses
from hostfork.lifecycle.export import ExportReport, Sides, export, export_tar, sides_of
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.request import ExportForm
from hostfork.lifecycle.store import ForkFolder, Store
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import Layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


class Past:
    """One checkpoint of a fork, inside the context. It has what `Fork` has for those who look at content."""

    def __init__(self, store: Store, words: str) -> None:
        self._stack = ExitStack()
        self._words, self._store = words, store

    def __enter__(self) -> Past:
        with ExitStack() as stack:
            fork, self.checkpoint = moments.find(self._store, self._words)
            self._folder: ForkFolder = stack.enter_context(self._store.open(fork))
            stack.enter_context(uses.using(self._folder.path))
            self.record: Record = self._folder.load()
            self._pool = Checkpoints(self.record.pool)
            stack.enter_context(self._pool.held())
            self._manifest = self._pool.manifest(self.checkpoint.id)
            self._view = ""
            self._made: dict[tuple[str, bool], str] = {}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def name(self) -> str:
        """How it is named: FORK@ID."""
        return f"{self.record.name}@{self.checkpoint.short}"

    def diff(self, paths: Sequence[str] = ()) -> Changeset:
        """What differed from the fork's base, of all or of these paths and what lies below."""
        return self._pool.changes(self.checkpoint.id).below(paths)

    def patch(self, paths: Sequence[str] = ()) -> Iterator[bytes]:
        """The changes as a patch that `git apply` takes, relative to each private path."""
        from hostfork.collect import diff as text

        changeset = self.diff(paths)
        for path in changes.private_paths(self.record):
            part = changes.part_of(changeset, path)
            if part.changes:
                sides = self.sides(path, every=False)
                yield from text.patch(part.changes, sides.base, sides.delta, path.path, sides.manifest)

    def line_counts(self, changeset: Changeset) -> dict[str, tuple[int, int] | None]:
        """Lines added and removed for each path, None where that has no meaning."""
        from hostfork.collect import diff as text

        found: dict[str, tuple[int, int] | None] = {}
        for path in changes.private_paths(self.record):
            part = changes.part_of(changeset, path).changes
            if part:
                sides = self.sides(path, every=False)
                for change in part:
                    found[change.path] = text.line_counts(change, sides.base, sides.delta, path.path, sides.manifest)
        return found

    def export(self, destination: str, form: ExportForm) -> ExportReport:
        """Write what it held, or only what differed, to a new or empty folder. Raises CollectError."""
        every = form is not ExportForm.CHANGES_ONLY
        return export(
            self._folder, self.record, self.diff(), destination, form, lambda path: self.sides(path, every=every)
        )

    def export_tar(self, file: BinaryIO) -> ExportReport:
        """Write what it held as a tar stream."""
        return export_tar(
            self._folder, self.record, self.diff(), file, lambda path: self.sides(path, every=True)
        )  # fmt: skip

    def write_tree(self, path: PathRecord, tree: str) -> tuple[str, ...]:
        """Write what one private path held, with all that it held; says what could not be made."""
        from hostfork.lifecycle.export import whole_tree

        sides = self.sides(path, every=True)
        return whole_tree(self._folder, self.record, path, self.diff(), tree, lambda _path: sides)

    def sides(self, path: PathRecord, *, every: bool) -> Sides:
        """Where the base and the content are read. `every`: what equals the base too, where the checkpoint holds it."""
        snapshots = storage_of(path.storage).moments(path.key, self.record.pool)
        if snapshots is not None and snapshots.has(self.checkpoint.id):
            base, manifest, _, _ = sides_of(self._folder, self.record, path)
            return Sides(base, manifest, snapshots.inside(self.checkpoint.id), True)
        whole = every and self._manifest.of(path.path).whole
        delta = self._plain(path, whole)
        content = changes.content_of(self.record, path)
        base, manifest = changes.base_side(self._folder, self.record.pool, path, content)
        # Of a live fork only the changed paths are known: the rest shows through.
        return Sides(base, None if every and isinstance(content, Layer) else manifest, delta, whole)

    def _plain(self, path: PathRecord, whole: bool) -> str:
        """A plain tree of what is wanted of one path."""
        key = (path.path, whole)
        if key in self._made:
            return self._made[key]
        tree = self._manifest.of(path.path)
        rows = tree.rows if whole else tree.changes()
        name = str(len(self._made))
        if not self._view:
            self._view = self._stack.enter_context(self._pool.view())
        try:
            folder = os.open(self._view, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                conform(folder, name, rows, self._pool.objects, Known(0))
            finally:
                os.close(folder)
        except OSError as error:
            raise as_checkpoint_error(f"what {self.name} held cannot be made", self._view, error) from error
        self._made[key] = os.path.join(self._view, name)
        return self._made[key]
