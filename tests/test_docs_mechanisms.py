"""The table in docs/mechanisms.md says what the mechanisms themselves say, on real disks, as root and as a user."""

import os
import re
from dataclasses import fields
from enum import Enum

import pytest

from hostfork.storage.choose import MECHANISMS
from hostfork.storage.contract import Guarantees, Offer, Source
from hostfork.vocabulary import StorageKind
from rigs import Disk, Person
from storage_cases import ROWS, Row
from test_docs import text

PAGE = "docs/mechanisms.md"


def table() -> dict[str, dict[str, str]]:
    """Column -> field -> cell."""
    rows = [line.strip().strip("|").split("|") for line in text(PAGE).splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    start = next(index for index, row in enumerate(cells) if row[0] == "field")
    heads = [head.replace("`", "") for head in cells[start][2:]]
    lines = [row for row in cells[start + 2 :] if re.fullmatch(r"`\w+`", row[0])]
    return {head: {row[0].strip("`"): row[index + 2] for row in lines} for index, head in enumerate(heads)}


def column(row: Row) -> str:
    """The head of an implementation's column."""
    overlays = {
        StorageKind.LIVE: "overlay, live", StorageKind.FROZEN: "overlay, frozen",
        StorageKind.RETAINED: "overlay, baseline",
    }  # fmt: skip
    return overlays.get(row.kind, row.kind.value)


def probe(row: Row, folder: str, pool: str) -> Guarantees:
    with open(os.path.join(folder, "file"), "w") as file:
        file.write("x" * 10000)
    os.mkdir(pool, 0o700)
    offer = row.storage.probe(Source(folder), pool)
    assert isinstance(offer, Offer), offer
    return offer.guarantees


def words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    assert isinstance(value, Enum)
    return str(value.value)


def test_every_implementation_and_every_field_has_its_place() -> None:
    columns = table()
    assert len(ROWS) == len(MECHANISMS)
    assert set(columns) == {column(row) for row in ROWS}
    for cells in columns.values():
        assert list(cells) == [field.name for field in fields(Guarantees)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("row", "kind"), [(row, kind) for row in ROWS for kind in row.kinds], ids=str)
def test_the_table_says_what_the_mechanism_says(
    row: Row, kind: str, person: Person, request: pytest.FixtureRequest
) -> None:
    disk: Disk = request.getfixturevalue(f"{kind}_disk")
    source, place = os.path.join(disk.folder(person), "source"), disk.folder(person)
    # A user takes snapshots of their own subvolumes only.
    make = ["btrfs", "subvolume", "create"] if kind == "btrfs" else ["mkdir"]
    person.run([*make, source], check=True)
    said = person.call(_as_person, row, source, place)
    told = table()[column(row)]
    who = "root" if person.uid == 0 else "user"
    for name, value in said.items():
        expected = told[name]
        if expected == "not on Btrfs":
            expected = "no" if kind == "btrfs" else "yes"
        if expected in ("root only", "yes"):
            expected = "no" if expected == "root only" and who == "user" else "yes"
        assert expected == value, f"{column(row)}, {name}, {who} on {kind}"


def _as_person(row: Row, source: str, place: str) -> dict[str, str]:
    kept = probe(row, source, os.path.join(place, "pool"))
    return {field.name: words(getattr(kept, field.name)) for field in fields(kept)}  # type: ignore[arg-type]


def test_a_wrong_cell_would_be_seen(root: Person, ext4_disk: Disk) -> None:
    row = next(row for row in ROWS if row.kind is StorageKind.COPY)
    said = root.call(_as_person, row, ext4_disk.folder(root), ext4_disk.folder(root))
    assert said["guarantee"] == "independent" != table()["btrfs"]["guarantee"]
