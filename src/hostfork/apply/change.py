"""Mode, owner, attributes and ACLs of what is on the host, changed where it is, and changed back."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hostfork.apply.rows import Moved, Row
from hostfork.apply.sides import some_of
from hostfork.apply.steps import Field, Value
from hostfork.collect.walk import Place, attributes

_FIRST = ("owner", "mode", "xattrs", "acl")
"""A new owner takes set-uid bits away, and an ACL sets the bits of the group."""


def change(place: Place, before: Row, fields: Sequence[Field], forward: bool, path: str) -> None:
    """Give what is at a place the fields as they are after, or were before. Raises Moved, OSError."""
    found = place.stat()
    changed = {field.name for field in fields}
    if not before.is_at(found):
        raise Moved(path)
    if not all(has(place, field, not forward) for field in fields):
        raise Moved(path)
    if forward and "mode" not in changed and found.st_mode != before.mode:
        raise Moved(path)
    unchange(place, fields, forward)


def unchange(place: Place, fields: Sequence[Field], forward: bool) -> None:
    """The same whatever the fields are now. Raises OSError."""
    for field in sorted(fields, key=lambda one: _FIRST.index(one.name)):
        if not has(place, field, forward):
            _set(place, field, forward)
    for field in fields:
        if field.name == "mode" and not has(place, field, forward):
            _set(place, field, forward)


def has(place: Place, field: Field, forward: bool) -> bool:
    """Whether what is at a place has the value of after, or of before."""
    wanted = field.new if forward else field.old
    return _value(place, field.name) == wanted


def _value(place: Place, name: str) -> Value:
    if name in ("mode", "owner"):
        found = place.stat()
        return found.st_mode & 0o7777 if name == "mode" else (found.st_uid, found.st_gid)
    return some_of(attributes(place) or {}, name)


def _set(place: Place, field: Field, forward: bool) -> None:
    wanted = field.new if forward else field.old
    if isinstance(wanted, int):
        _chmod(place, wanted)
    elif isinstance(wanted, tuple):
        if place.name:
            os.chown(place.name, *wanted, dir_fd=place.folder, follow_symlinks=False)
        else:
            os.chown(place.path(), *wanted)
    else:
        now = _value(place, field.name)
        assert isinstance(now, dict)
        for name in now.keys() - wanted.keys():
            os.removexattr(place.path(), name, follow_symlinks=not place.name)
        for name, value in wanted.items():
            if now.get(name) != value:
                os.setxattr(place.path(), name, value, follow_symlinks=not place.name)


def _chmod(place: Place, mode: int) -> None:
    """Through a descriptor of the entry itself: chmod(2) would follow a symlink that takes its place."""
    if not place.name:
        return os.chmod(place.path(), mode)
    handle = os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
    try:
        os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)
    return None
