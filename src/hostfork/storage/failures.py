"""The kernel's errors of storage, turned into typed ones: once, with the path, the sizes and the remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from hostfork.errors import Code, StorageError

SHOWN = 20
"""How many paths an error names."""


def failed(sentence: str, path: str, error: OSError, step: str) -> StorageError:
    """What no more exact code describes."""
    return StorageError(Code.STORAGE_FAILED, sentence, step=step, path=path, errno=error.errno)


def is_full(error: OSError) -> bool:
    """Whether the filesystem or a quota has no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def no_space(source: str, pool: str, needed: int | None, number: int = errno.ENOSPC) -> StorageError:
    """The pool's filesystem, or the user's quota on it, cannot hold the copy. `needed` in bytes, where known."""
    room = os.statvfs(pool)
    details = [f"{pool} has {size(room.f_bavail * room.f_frsize)} free"]
    if room.f_files and not room.f_favail:
        details.append("its filesystem has no room for more files (inodes)")
    if number == errno.EDQUOT:
        details.append("a disk quota of this user is used up")
    if needed is not None:
        details.append(f"the copy needs about {size(needed)}")
    return StorageError(
        Code.STORAGE_NO_SPACE,
        f"there is no room for a private copy of {source}",
        step="prepare",
        path=pool,
        errno=number,
        details=tuple(details),
        hint=f"free some space, name another pool with --pool DIR, or use --private {source}:live",
    )


def unmade(sentence: str, at: str, source: str, pool: str) -> Callable[[OSError], StorageError]:
    """What the kernel's refusal of a step in making private storage becomes: a pool without room, or the sentence."""

    def typed(error: OSError) -> StorageError:
        if is_full(error):
            return no_space(source, pool, None, error.errno or 0)
        return failed(sentence, at, error, "prepare")

    return typed


def unreadable(source: str, paths: tuple[str, ...]) -> StorageError:
    """A copy that misses entries is not the tree: refused, with their names."""
    return StorageError(
        Code.STORAGE_SOURCE,
        f"{len(paths)} {'entry' if len(paths) == 1 else 'entries'} below {source} cannot be copied by this user",
        step="prepare",
        path=os.path.join(source, paths[0]) if paths[0] else source,
        errno=errno.EACCES,
        details=named(source, paths),
        hint="make them readable, leave them out with --unreadable skip, --hidden PATH or --shared PATH, "
        f"or use --private {source}:live, which copies nothing",
    )


def unstable(source: str, paths: tuple[str, ...]) -> StorageError:
    """Files that changed during every try."""
    return StorageError(
        Code.STORAGE_UNSTABLE,
        f"{len(paths)} {'file' if len(paths) == 1 else 'files'} below {source} kept changing while they were copied",
        step="prepare",
        path=os.path.join(source, paths[0]) if paths[0] else source,
        details=named(source, paths),
        hint="stop what writes there, or leave them out with --shared PATH or --scratch PATH",
    )


def named(source: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """The paths as lines, the first ones."""
    lines = tuple(os.path.join(source, path) if path else source for path in paths[:SHOWN])
    return lines if len(paths) <= SHOWN else (*lines, f"and {len(paths) - SHOWN} more")


def size(number: int) -> str:
    """A size for people."""
    value, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 10 or units[0] == "B" else f"{value:.1f} {units[0]}"
