"""What makes two entries different: the one rule that every way of finding changes obeys.

Times are never a difference, nor is which paths share an inode: overlayfs splits a hard link at the first write.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from hostfork.collect.changeset import Change
from hostfork.collect.walk import Facts
from hostfork.vocabulary import ChangeKind, EntryKind


def joined(at: str, relative: str) -> str:
    """The absolute path, as the command saw it, of a path below the private path `at`."""
    return (at.rstrip("/") + "/" + relative) if relative else at


def relative_to(at: str, path: str) -> str:
    """The inverse of `joined`."""
    return path[len(at.rstrip("/")) + 1 :] if path != at else ""


def below(folder: str, name: str) -> str:
    """The relative path of a name in a folder; "" is the root."""
    return f"{folder}/{name}" if folder else name


def created(path: str, after: Facts) -> Change:
    """A change for something that was not there before."""
    return Change(path, ChangeKind.CREATED, after.kind, size=after.size, mode=after.mode, target=_target(after.target))


def deleted(path: str, before: Facts, base_gone: bool = False) -> Change:
    """A change for something that is not there any more."""
    return Change(
        path,
        ChangeKind.DELETED,
        before.kind,
        was=before.kind,
        old_size=before.size,
        old_mode=before.mode,
        base_gone=base_gone,
    )


def between(
    path: str, before: Facts, after: Facts, same: bool, attributes: tuple[str, ...] = (), base_gone: bool = False
) -> Change | None:
    """The change between two entries, or None. `same`: files hold the same bytes; of no meaning for other kinds."""
    fields = _fields(before, after) + attributes
    if before.kind is not after.kind:
        change, fields = ChangeKind.TYPE, ()
    elif not _same_substance(before, after, same):
        change = ChangeKind.MODIFIED
    elif fields:
        change = ChangeKind.METADATA
    else:
        return None
    return Change(
        path,
        change,
        after.kind,
        was=before.kind,
        size=after.size,
        old_size=before.size,
        mode=after.mode,
        old_mode=before.mode,
        target=_target(after.target),
        fields=fields,
        base_gone=base_gone,
    )


def ordered(changes: Iterable[Change]) -> list[Change]:
    """By path bytes."""
    return sorted(changes, key=lambda change: os.fsencode(change.path))


def _same_substance(before: Facts, after: Facts, same: bool) -> bool:
    if after.kind is EntryKind.FILE:
        return same
    return before.target == after.target and before.rdev == after.rdev


def _fields(before: Facts, after: Facts) -> tuple[str, ...]:
    mode = before.mode != after.mode and after.kind is not EntryKind.SYMLINK
    owner = (before.uid, before.gid) != (after.uid, after.gid)
    return (("mode",) if mode else ()) + (("owner",) if owner else ())


def _target(target: bytes | None) -> str | None:
    return None if target is None else os.fsdecode(target)
