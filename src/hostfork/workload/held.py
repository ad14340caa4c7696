"""Files without a name that processes hold open: they take space, and no walk of a tree finds them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

_GONE = b" (deleted)"


def held(pids: Iterable[int], below: tuple[bytes, ...], beside: tuple[bytes, ...]) -> int:
    """The bytes of nameless files that these processes have open, each once, whose last place was `below` those paths.

    What was below a path in `beside` does not count. Processes that went, or that this user cannot look into, hold
    nothing.
    """
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        folder = b"/proc/%d/fd" % pid
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                path = os.readlink(b"%s/%s" % (folder, name))
                if not path.endswith(_GONE) or _is_below(path, beside) or not _is_below(path, below):
                    continue
                file = os.stat(b"%s/%s" % (folder, name))
            except OSError:
                continue
            if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def _is_below(path: bytes, folders: tuple[bytes, ...]) -> bool:
    return any(path.startswith(folder + b"/") for folder in folders)
