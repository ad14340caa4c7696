"""What was young when it was taken: a write through a mapping that was dirty already may have moved no ctime."""

from __future__ import annotations

import os

from hostfork.storage.entry import READ, open_quietly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.storage.lines import Generation

_CHUNK = 1 << 18


def settling() -> int:
    """Nanoseconds after which the kernel has written out what is dirty, as it is set (Documentation/admin-guide/sysctl/
    vm.rst): from then on a write through a mapping moves the ctime again."""
    total = 0
    for name in ("dirty_expire_centisecs", "dirty_writeback_centisecs"):
        with open(f"/proc/sys/vm/{name}", encoding="ascii") as file:
            total += int(file.read())
    return total * 10_000_000


def same_content(source: str, relative: str, generation: Generation) -> bool:
    """Whether a file of the source holds what the generation has of it."""
    for lower in generation.lowers:
        try:
            ours = os.open(os.path.join(lower, relative), READ)
        except OSError:
            continue
        try:
            theirs = open_quietly(source, READ)
        except OSError:
            os.close(ours)
            return False
        try:
            return _same_bytes(ours, theirs)
        finally:
            os.close(ours)
            os.close(theirs)
    return False


def _same_bytes(one: int, other: int) -> bool:
    while True:
        chunk = os.read(one, _CHUNK)
        if chunk != os.read(other, _CHUNK):
            return False
        if not chunk:
            return True
