"""Where a new tree of a line is made: in a Btrfs subvolume of its own, or in its folder."""

from __future__ import annotations

import os

from hostfork.storage.filesystem import filesystem_of

TREE = "tree"


def is_in_subvolume(path: str) -> bool:
    """Whether the tree in the folder at `path` lies in a subvolume."""
    return os.path.islink(os.path.join(path, TREE))


def tree_of(path: str) -> str:
    """The path of the tree in the folder at `path`."""
    try:
        return os.path.join(path, os.readlink(os.path.join(path, TREE)))
    except OSError:
        return os.path.join(path, TREE)  # a folder, or gone


def house(path: str) -> str:
    """The folder in which TREE is to be made: on Btrfs a subvolume in the folder at `path`. Raises OSError."""
    if filesystem_of(path).kind != "btrfs":
        return path
    from hostfork.storage import subtree

    return subtree.make(path)


def begin_layer(path: str, below: str | None) -> str:
    """The folder in which TREE is to be made as a layer, for a new tree in the folder at `path`.

    `below`: the folder of the one tree that it is to lie over, if it is one. What is not `path` is to be ended by
    `end_layer`: then it is a whole tree. Raises OSError.
    """
    if below is None or not is_in_subvolume(below):
        return path
    from hostfork.storage import subtree

    return subtree.make_from(below, path)


def end_layer(path: str, layer: str, below: tuple[str, ...]) -> tuple[str, ...]:
    """The trees of the generation whose newest one is at `path`, top first. Raises OSError."""
    name = os.path.basename(path)
    if path == layer:
        return (name, *below)
    from hostfork.storage import subtree

    subtree.finish(path)
    return (name,)


def seal(path: str) -> None:
    """Nothing in the tree is to change any more. Raises OSError."""
    if is_in_subvolume(path):
        from hostfork.storage import subtree

        subtree.seal(path)
