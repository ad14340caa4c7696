"""Pairs of trees to find changes in: snapshots of a Btrfs subvolume, and clones that share their blocks."""

import subprocess

from collect_rig import copy_with_manifest
from rigs import find_program


def _btrfs(*arguments: str) -> None:
    subprocess.run([find_program("btrfs") or "btrfs", *arguments], check=True, capture_output=True)


def subvolume(path: str) -> None:
    """A new, empty subvolume."""
    _btrfs("subvolume", "create", path)


def snapshot(source: str, path: str) -> None:
    """A writable snapshot."""
    _btrfs("subvolume", "snapshot", source, path)


def freeze(path: str, frozen: bool = True) -> None:
    """Make a subvolume read-only, or writable again."""
    _btrfs("property", "set", "-ts", path, "ro", "true" if frozen else "false")


def clone_with_manifest(source: str, clone: str, base: str, manifest: str) -> None:
    """A clone of a source as base, a clone of that, and the manifest that is written while the second is made."""
    subprocess.run(["cp", "-a", "--reflink=always", "--", source, base], check=True)
    copy_with_manifest(base, clone, manifest, "--reflink=always")
