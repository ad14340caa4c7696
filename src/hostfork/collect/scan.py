"""The ways to find what a fork changed, which all give the same list: an upper folder, a copied tree, two snapshots,
and the reference.

In each, `at` is the private path as the command saw it, `base` where the base's content is, on the host or kept in a
pool, and `omit` holds relative paths that are no part of it (stand-ins under endpoints, folders of other rules).
Raises CollectError.
"""

from __future__ import annotations

import os

from hostfork.collect.changeset import Changeset
from hostfork.collect.depth import at_any_depth
from hostfork.collect.walk import failure, root_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from hostfork.collect.changeset import Change
    from hostfork.collect.full import FullManifest
    from hostfork.collect.ignores import Final
    from hostfork.collect.manifest import StatManifest
    from hostfork.collect.stack import Base


@at_any_depth
def scan_layer(upper: str, base: Base, at: str, omit: tuple[str, ...] = ()) -> Changeset:
    """The changes in the upper folder of an overlay that was mounted with `userxattr` over `base`: a folder, or layers
    from the top down.

    Takes the time of the changes. The base is read as it is now.
    """
    from hostfork.collect.layer import LayerFinal, LayerScan
    from hostfork.collect.stack import base_root

    scan = LayerScan(at, omit)
    try:
        with root_place(upper) as top, base_root(base) as bottom:
            scan.root(top, bottom)
        with LayerFinal(upper, base) as final:
            return _changeset(scan.changes, at, final)
    except OSError as error:
        raise failure(f"the changes of {at} cannot be read", error.filename or upper, error) from error


@at_any_depth
def scan_tree(tree: str, manifest: StatManifest, base: str, at: str, omit: tuple[str, ...] = ()) -> Changeset:
    """The changes in a copied tree: a stat walk against the manifest of the copy, content only where that differs.

    A path whose source, in `base`, is no longer what was copied cannot be compared: `base_gone`, counted as modified.
    """
    from hostfork.collect.reader import TreeFinal, TreeReader
    from hostfork.collect.tree import TreeScan

    try:
        with TreeReader(base) as source, root_place(tree) as top:
            scan = TreeScan(manifest, source, at, omit)
            scan.root(top)
        with TreeReader(tree, ours=True) as reader:
            return _changeset(scan.changes, at, TreeFinal(reader))
    except OSError as error:
        raise failure(f"the changes of {at} cannot be read", error.filename or tree, error) from error


@at_any_depth
def scan_pair(
    tree: str,
    base: str,
    at: str,
    omit: tuple[str, ...] = (),
    touched: Collection[bytes] | None = None,
    since: int | None = None,
) -> Changeset:
    """The changes between a private tree and its kept base of the same inode numbers, such as two snapshots.

    `touched`: every relative path that may differ, but for what lies below a folder that was moved; takes the time of
    the changes. Else one stat walk. Both believe stamps from before `since` (nanoseconds, the ctime of something on
    the tree's filesystem, older than the fork's first write); with neither, every entry is compared with the base's.
    """
    from hostfork.collect.pair import PairScan
    from hostfork.collect.reader import TreeFinal, TreeReader

    try:
        with TreeReader(base) as bottom, root_place(tree) as top, TreeReader(tree, ours=True) as reader:
            scan = PairScan(bottom, at, omit, since or 0)
            if touched is not None:
                scan.touched(reader, map(os.fsdecode, touched))
            elif since is not None:
                scan.walk(top)
            else:
                scan.every(top)
            return _changeset(scan.changes, at, TreeFinal(reader))
    except OSError as error:
        raise failure(f"the changes of {at} cannot be read", error.filename or tree, error) from error


@at_any_depth
def full_manifest(root: str, omit: tuple[str, ...] = (), ours: bool = False) -> FullManifest:
    """Everything in a tree: content by BLAKE3, link targets, mode, owner, attributes, ACLs, devices; no times.

    `ours`: a private tree; what the fork closed to its owner is opened for the moment of reading.
    """
    from hostfork.collect.full import FullManifest, FullScan

    scan = FullScan(omit, ours)
    try:
        with root_place(root) as top:
            scan.visit("", top)
    except OSError as error:
        raise failure(f"{root} cannot be read", error.filename or root, error) from error
    return FullManifest(scan.entries, scan.ignore_files)


@at_any_depth
def compare(before: FullManifest, after: FullManifest, at: str) -> Changeset:
    """The changes between two full manifests."""
    from hostfork.collect.full import differences

    return _changeset(list(differences(before, after, at)), at, after)


def _changeset(changes: list[Change], at: str, final: Final) -> Changeset:
    """In order and with classes; a run that changed nothing does not pay for the tables."""
    if not changes:
        return Changeset(())
    from hostfork.collect.classify import classify
    from hostfork.collect.difference import ordered

    return Changeset(classify(ordered(changes), at, final))
