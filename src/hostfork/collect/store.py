"""Changesets as files of a fork's record, and in the public JSON shape."""

from __future__ import annotations

import os

from hostfork.collect.changeset import Change, Changeset
from hostfork.errors import Code, CollectError
from hostfork.vocabulary import ChangeClass, ChangeKind, EntryKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SCHEMA = 1
_FIELDS = 14


def write_changeset(path: str, changeset: Changeset) -> None:
    """Write a changeset whole or not at all; it is on disk when this returns."""
    import json

    content = json.dumps([_SCHEMA, [_row(change) for change in changeset.changes]], separators=(",", ":"))
    temporary = path + ".new"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_changeset(path: str) -> Changeset:
    """What `write_changeset` wrote. Raises CollectError `collect.failed` if it is missing or damaged."""
    try:
        return Changeset(tuple(_change(row) for row in _rows(path)))
    except (ValueError, TypeError) as error:
        raise _damaged(path, error) from error


def _rows(path: str) -> list[list[Any]]:
    import json

    try:
        with open(path, encoding="ascii") as file:
            schema, rows = json.load(file)
        if schema != _SCHEMA:
            raise ValueError(f"schema {schema}, this version reads {_SCHEMA}")
        if not all(isinstance(row, list) and len(row) == _FIELDS for row in rows):
            raise ValueError("a change is not whole")
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(path, error) from error
    return list(rows)


def _damaged(path: str, error: Exception) -> CollectError:
    return CollectError(
        Code.COLLECT_FAILED, f"the changeset {path} cannot be read", step="changeset", path=path,
        errno=getattr(error, "errno", None), details=(str(error),),
    )  # fmt: skip


def read_places(path: str) -> dict[str, tuple[bool, bool]]:
    """Of what `write_changeset` wrote only the paths; of each, whether it was there before and is a folder now.

    Raises as `read_changeset`.
    """
    gone, folder = ChangeKind.DELETED.value, EntryKind.FOLDER.value
    return {row[0]: (row[3] is not None, row[2] == folder and row[1] != gone) for row in _rows(path)}


def _row(change: Change) -> list[object]:
    """JSON's escapes carry surrogates, so every byte of a path comes back."""
    return [
        change.path,
        change.change.value,
        change.kind.value,
        None if change.was is None else change.was.value,
        change.size,
        change.old_size,
        change.mode,
        change.old_mode,
        change.target,
        change.fields,
        change.class_.value,
        change.ignored_by,
        change.active,
        change.base_gone,
    ]


def _change(row: list[Any]) -> Change:
    path, change, kind, was, size, old_size, mode, old_mode, target, fields, class_, ignored_by, active, gone = row
    return Change(
        path,
        ChangeKind(change),
        EntryKind(kind),
        None if was is None else EntryKind(was),
        size,
        old_size,
        mode,
        old_mode,
        target,
        tuple(fields),
        ChangeClass(class_),
        ignored_by,
        active,
        gone,
    )


def to_json(changeset: Changeset) -> list[dict[str, object]]:
    """The `entries` of `diff --json`. Modes are octal strings.

    A path or link target that is not UTF-8 has replacement characters, and its exact bytes in base64 beside it.
    """
    return [_entry(change) for change in changeset.changes]


def _entry(change: Change) -> dict[str, object]:
    return {
        **_text("path", change.path),
        "change": change.change.value,
        "kind": change.kind.value,
        "class": change.class_.value,
        "was": None if change.was is None else change.was.value,
        "size": change.size,
        "old_size": change.old_size,
        "mode": None if change.mode is None else f"{change.mode:04o}",
        "old_mode": None if change.old_mode is None else f"{change.old_mode:04o}",
        **_text("target", change.target),
        "fields": list(change.fields),
        **_text("ignored_by", change.ignored_by),
        "active": change.active,
        "base_gone": change.base_gone,
    }


def _text(name: str, value: str | None) -> dict[str, object]:
    try:
        if value is not None:
            value.encode("utf-8")
        return {name: value}
    except UnicodeEncodeError:
        from base64 import b64encode

        raw = os.fsencode(value or "")
        return {name: raw.decode("utf-8", "replace"), f"{name}_bytes": b64encode(raw).decode("ascii")}
