"""A generation that is a Btrfs snapshot of its source: taken in constant time, at one instant, and so equal to it."""

from __future__ import annotations

import os
import stat
import time

from hostfork.baseline.current import Facts, Ready
from hostfork.storage import snapshot, subtree
from hostfork.storage.contract import Source
from hostfork.storage.failures import is_full
from hostfork.storage.filesystem import filesystem_of
from hostfork.storage.lines import Line
from hostfork.storage.newtree import tree_of
from hostfork.storage.subvolume import Obstacle
from hostfork.vocabulary import Stored


def taken(line: Line, source: Source, start: float) -> Ready | None:
    """Take one as the line's newest generation. None where none can be had. The lock must be held. Raises OSError."""
    if filesystem_of(line.pool).kind != "btrfs":
        return None
    try:
        found = snapshot.examine(source, line.pool)
        tree = line.begin_tree()
        subtree.take(found, source, tree)
        if any(_holds_something(os.path.join(tree_of(tree), path)) for path in source.omit):
            # At the source's own path a mount covers it; a baseline can be used at another.
            raise Obstacle("what is left out of it would be in its snapshot")
    except (Obstacle, OSError) as error:
        line.settle()
        if isinstance(error, OSError) and is_full(error):
            raise
        return None  # it can be cloned or copied
    generation, facts = line.begin(), Facts((), (), Stored.SNAPSHOT)
    facts.write(generation)
    made = line.commit((os.path.basename(tree),))
    line.settle()
    return Ready(made, facts, 0, 0, time.monotonic() - start)


def _holds_something(path: str) -> bool:
    try:
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode):
            return bool(os.listdir(path))
        return stat.S_ISREG(found.st_mode) and found.st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
