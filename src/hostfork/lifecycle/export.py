"""Writes out what a fork finally contains: one private path to the destination itself, several below it by their path.

The base of a fork without a tree of its own is the one that was kept, else the host's folder; `collect.export`
verifies that or refuses.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hostfork.collect import export as collect
from hostfork.collect.changeset import Changeset
from hostfork.errors import Code, CollectError
from hostfork.helper.shapes import NamedTuple
from hostfork.lifecycle import changes, stages
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.request import ExportForm
from hostfork.lifecycle.store import ForkFolder, Store, state_folder
from hostfork.storage.contract import FullTree, Layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from hostfork.collect.manifest import StatManifest
    from hostfork.collect.stack import Base


class ExportReport(NamedTuple):
    """`left_out`: what was not written, or not with all of its metadata (devices, sockets, set-uid bits)."""

    left_out: tuple[str, ...]


class Sides(NamedTuple):
    """Where the content of a private path is read: `delta` holds what changed, or with `whole` all of it.

    `manifest` lists all of the base and tells whether it still is one; None where it is kept.
    """

    base: Base
    manifest: StatManifest | None
    delta: str
    whole: bool


def export(
    fork: ForkFolder, record: Record, changeset: Changeset, destination: str, form: ExportForm,
    sides: Callable[[PathRecord], Sides] | None = None,
) -> ExportReport:  # fmt: skip
    """Write to a new or empty folder. Raises CollectError `collect.destination`, `base.gone`; then nothing was made.

    `sides`: what is read instead of the fork's storage as it is now; also in what follows.
    """
    paths = changes.private_paths(record)

    def own(path: PathRecord) -> Sides:
        if form is not ExportForm.CHANGES_ONLY:
            return sides_of(fork, record, path)
        # The base, which may be lost, is not asked for.
        return Sides("", None, changes.delta_of(changes.content_of(record, path)), False)

    sides = sides or own
    if form is ExportForm.TAR:
        raise ValueError("a tar stream goes to a file: export_tar")
    if len(paths) == 1:
        return ExportReport(_one(paths[0], sides, changeset, destination, form))
    _must_be_empty(destination)
    left_out: tuple[str, ...] = ()
    for path in paths:
        target = os.path.join(destination, path.path.lstrip("/"))
        left_out += _one(path, sides, changeset, target, form)
    return ExportReport(left_out)


def export_tar(
    fork: ForkFolder, record: Record, changeset: Changeset, file: BinaryIO,
    sides: Callable[[PathRecord], Sides] | None = None,
) -> ExportReport:  # fmt: skip
    """Write the final content as one tar stream; several private paths stand in it by their path below `/`."""
    paths = changes.private_paths(record)
    parts = []
    for path in paths:
        base, manifest, delta, whole = sides_of(fork, record, path) if sides is None else sides(path)
        part = changes.part_of(changeset, path)
        prefix = "" if len(paths) == 1 else path.path.lstrip("/")
        parts.append(collect.Part(base, delta, part, path.path, path.omit, whole, manifest, prefix))
    return ExportReport(collect.export_tar(parts, file))


def _one(
    path: PathRecord, sides: Callable[[PathRecord], Sides], changeset: Changeset, destination: str, form: ExportForm
) -> tuple[str, ...]:
    part = changes.part_of(changeset, path)
    base, manifest, delta, whole = sides(path)
    with stages.named(Store(state_folder()), destination) as stage:
        if form is ExportForm.CHANGES_ONLY:
            return collect.export_changes(delta, part, path.path, destination, stage=stage)
        return collect.export_tree(base, delta, part, path.path, path.omit, destination, whole, manifest, stage=stage)


def whole_tree(
    fork: ForkFolder, record: Record, path: PathRecord, changeset: Changeset, tree: str,
    sides: Callable[[PathRecord], Sides] | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Make `tree`, in a folder of ours, what one private path finally contains, devices and set-uid bits too.

    The relative paths of what could not be made. Raises CollectError `base.gone`, `collect.failed`.
    """
    base, manifest, delta, whole = sides_of(fork, record, path) if sides is None else sides(path)
    part = changes.part_of(changeset, path)
    return collect.export_tree(base, delta, part, path.path, path.omit, tree, whole, manifest, special=True)


def sides_of(fork: ForkFolder, record: Record, path: PathRecord) -> Sides:
    """The storage as it is now. Of a live fork only the changed paths are known: the rest shows through."""
    content = changes.content_of(record, path)
    base, manifest = changes.base_side(fork, record.pool, path, content)
    known = None if isinstance(content, Layer) else manifest
    return Sides(base, known, changes.delta_of(content), isinstance(content, FullTree))


def _must_be_empty(destination: str) -> None:
    if os.path.lexists(destination) and (not os.path.isdir(destination) or os.listdir(destination)):
        raise CollectError(
            Code.COLLECT_DESTINATION,
            f"{destination} is there and not empty",
            step="export",
            path=destination,
            hint="name a new or empty folder",
        )
