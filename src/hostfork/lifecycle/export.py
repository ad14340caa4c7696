"""Writes out what a fork finally contains: one private path to the destination itself, several below it by their path.

The base of a fork without a tree of its own is the one that was kept, else the host's folder; `collect.export`
verifies that or refuses.
"""

from __future__ import annotations

import os

from hostfork.collect import export as collect
from hostfork.collect.changeset import Changeset
from hostfork.collect.manifest import StatManifest
from hostfork.errors import Code, CollectError
from hostfork.helper.shapes import NamedTuple
from hostfork.lifecycle import changes, stages
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.request import ExportForm
from hostfork.lifecycle.store import ForkFolder, Store, state_folder
from hostfork.storage.contract import Content, FullTree, Layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from hostfork.collect.stack import Base


class ExportReport(NamedTuple):
    """`left_out`: what was not written, or not with all of its metadata (devices, sockets, set-uid bits)."""

    left_out: tuple[str, ...]


def export(fork: ForkFolder, record: Record, changeset: Changeset, destination: str, form: ExportForm) -> ExportReport:
    """Write to a new or empty folder. Raises CollectError `collect.destination`, `base.gone`; then nothing was made."""
    paths = changes.private_paths(record)
    if form is ExportForm.TAR:
        raise ValueError("a tar stream goes to a file: export_tar")
    if len(paths) == 1:
        return ExportReport(_one(fork, record, paths[0], changeset, destination, form))
    _must_be_empty(destination)
    left_out: tuple[str, ...] = ()
    for path in paths:
        target = os.path.join(destination, path.path.lstrip("/"))
        left_out += _one(fork, record, path, changeset, target, form)
    return ExportReport(left_out)


def export_tar(fork: ForkFolder, record: Record, changeset: Changeset, file: BinaryIO) -> ExportReport:
    """Write the final content as one tar stream; several private paths stand in it by their path below `/`."""
    paths = changes.private_paths(record)
    parts = []
    for path in paths:
        content = changes.content_of(record, path)
        base, manifest = _whole_base(fork, record.pool, path, content)
        parts.append(
            collect.Part(
                base,
                changes.delta_of(content),
                changes.part_of(changeset, path),
                path.path,
                path.omit,
                isinstance(content, FullTree),
                manifest,
                "" if len(paths) == 1 else path.path.lstrip("/"),
            )
        )
    return ExportReport(collect.export_tar(parts, file))


def _one(
    fork: ForkFolder, record: Record, path: PathRecord, changeset: Changeset, destination: str, form: ExportForm
) -> tuple[str, ...]:
    content = changes.content_of(record, path)
    part, delta = changes.part_of(changeset, path), changes.delta_of(content)
    with stages.named(Store(state_folder()), destination) as stage:
        if form is ExportForm.CHANGES_ONLY:
            return collect.export_changes(delta, part, path.path, destination, stage=stage)
        base, manifest = _whole_base(fork, record.pool, path, content)
        whole = isinstance(content, FullTree)
        return collect.export_tree(base, delta, part, path.path, path.omit, destination, whole, manifest, stage=stage)


def whole_tree(fork: ForkFolder, record: Record, path: PathRecord, changeset: Changeset, tree: str) -> tuple[str, ...]:
    """Make `tree`, in a folder of ours, what one private path finally contains, devices and set-uid bits too.

    The relative paths of what could not be made. Raises CollectError `base.gone`, `collect.failed`.
    """
    content = changes.content_of(record, path)
    part, delta = changes.part_of(changeset, path), changes.delta_of(content)
    base, manifest = _whole_base(fork, record.pool, path, content)
    whole = isinstance(content, FullTree)
    return collect.export_tree(base, delta, part, path.path, path.omit, tree, whole, manifest, special=True)


def tree_for_git(fork: ForkFolder, record: Record, path: PathRecord, changeset: Changeset, destination: str) -> None:
    """Write what one private path finally contains, without the repository itself in it, to a new folder of ours.

    A private file comes to lie in it under its own name. Raises CollectError `base.gone`, `collect.failed`.
    """
    content = changes.content_of(record, path)
    git = os.path.join(path.path, ".git")
    some = tuple(
        one
        for one in changes.part_of(changeset, path).changes
        if one.path != git and not one.path.startswith(git + "/")
    )
    base, manifest = _whole_base(fork, record.pool, path, content)
    whole = isinstance(content, FullTree)
    collect.export_tree(
        base, changes.delta_of(content), Changeset(some), path.path, (*path.omit, ".git"), destination, whole, manifest
    )


def _whole_base(fork: ForkFolder, pool: str, path: PathRecord, content: Content) -> tuple[Base, StatManifest | None]:
    """Where the base is, and the manifest that lists all of it. Of a live fork only the changed paths are known: the
    rest shows through."""
    base, manifest = changes.base_side(fork, pool, path, content)
    return base, None if isinstance(content, Layer) else manifest


def _must_be_empty(destination: str) -> None:
    if os.path.lexists(destination) and (not os.path.isdir(destination) or os.listdir(destination)):
        raise CollectError(
            Code.COLLECT_DESTINATION,
            f"{destination} is there and not empty",
            step="export",
            path=destination,
            hint="name a new or empty folder",
        )
