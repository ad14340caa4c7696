"""Pairs of trees to find changes in: snapshots of a Btrfs subvolume, and clones that share their blocks."""

import os
import subprocess

from collect_rig import copy_with_manifest, remove
from hostfork.collect.pair import _identity
from rigs import find_program


def _btrfs(*arguments: str) -> None:
    subprocess.run([find_program("btrfs") or "btrfs", *arguments], check=True, stdout=subprocess.DEVNULL)


def subvolume(path: str) -> None:
    """A new, empty subvolume."""
    _btrfs("subvolume", "create", path)


def snapshot(source: str, path: str) -> None:
    """A writable snapshot."""
    _btrfs("subvolume", "snapshot", source, path)


def freeze(path: str, frozen: bool = True) -> None:
    """Make a subvolume read-only, or writable again."""
    _btrfs("property", "set", "-ts", path, "ro", "true" if frozen else "false")


def remove_snapshots(folder: str, *frozen: str) -> None:
    """Remove a folder with subvolumes in it, as an ordinary user may: emptied, and rmdir."""
    for path in frozen:
        if os.path.exists(path):
            freeze(path, frozen=False)
    remove(folder)


def clone_with_manifest(source: str, clone: str, base: str, manifest: str) -> None:
    """Two clones of a source, and the manifest of the first that is written while it is made."""
    subprocess.run(["cp", "-a", "--reflink=always", "--", source, base], check=True)
    copy_with_manifest(source, clone, manifest, "--reflink=always")


def differing(tree: str, base: str) -> tuple[bytes, ...]:
    """Every path whose stat differs between two snapshots: what a search by generation would name."""
    known = [_stats(tree), _stats(base)]
    return tuple(os.fsencode(path) for path in known[0].keys() | known[1].keys() if _differs(path, *known))


def _differs(path: str, one: dict[str, os.stat_result], two: dict[str, os.stat_result]) -> bool:
    if path not in one or path not in two:
        return True
    return _identity(one[path]) != _identity(two[path])


def _stats(root: str) -> dict[str, os.stat_result]:
    found = {"": os.lstat(root)}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            found[path[len(root) + 1 :]] = os.lstat(path)
    return found
