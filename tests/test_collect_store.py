"""Changesets as files and as public JSON."""

import json
import os

import pytest

from hostfork.collect.changeset import Change, Changeset
from hostfork.collect.store import read_changeset, to_json, write_changeset
from hostfork.errors import Code, CollectError
from hostfork.vocabulary import ChangeClass, ChangeKind, EntryKind

CHANGES = Changeset(
    (
        Change("/p/\udcff\nx", ChangeKind.CREATED, EntryKind.SYMLINK, size=3, mode=0o777, target="\udcfe:"),
        Change(
            "/p/a",
            ChangeKind.MODIFIED,
            EntryKind.FILE,
            EntryKind.FILE,
            5,
            6,
            0o644,
            0o4755,
            None,
            ("mode", "acl"),
            ChangeClass.GENERATED,
            "/p/\udcff",
            True,
            True,
        ),
    )
)


def test_what_is_written_is_read(tmp_path: os.PathLike[str]) -> None:
    path = f"{tmp_path}/changes"
    write_changeset(path, CHANGES)
    assert read_changeset(path) == CHANGES
    write_changeset(path, Changeset(()))
    assert read_changeset(path) == Changeset(())
    assert os.listdir(tmp_path) == ["changes"]


@pytest.mark.parametrize(
    "content", [None, "", "[]", "[2, []]", '[1, [["/p"]]]', "[1, 5]", "[1, [[1,2,3,4,5,6,7,8,9,[],1,2,3,4]]]"]
)
def test_a_damaged_file_is_a_typed_error(tmp_path: os.PathLike[str], content: str | None) -> None:
    path = f"{tmp_path}/changes"
    if content is not None:
        with open(path, "w", encoding="ascii") as file:
            file.write(content)
    with pytest.raises(CollectError) as caught:
        read_changeset(path)
    assert (caught.value.code, caught.value.path) == (Code.COLLECT_FAILED, path)


def test_the_public_shape() -> None:
    entries = json.loads(json.dumps(to_json(CHANGES)))
    assert entries == [
        {
            "path": "/p/\ufffd\nx", "path_bytes": "L3Av/wp4", "change": "created", "kind": "symlink",
            "class": "source", "was": None, "size": 3, "old_size": None, "mode": "0777", "old_mode": None,
            "target": "\ufffd:", "target_bytes": "/jo=", "fields": [], "ignored_by": None, "active": False,
            "base_gone": False,
        },
        {
            "path": "/p/a", "change": "modified", "kind": "file", "class": "generated", "was": "file", "size": 5,
            "old_size": 6, "mode": "0644", "old_mode": "4755", "target": None, "fields": ["mode", "acl"],
            "ignored_by": "/p/\ufffd", "ignored_by_bytes": "L3Av/w==", "active": True, "base_gone": True,
        },
    ]  # fmt: skip
