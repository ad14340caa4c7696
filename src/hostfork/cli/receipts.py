"""The receipt of a fork, for people and as a document. Its text is the same wherever and whenever it is asked for."""

from __future__ import annotations

from hostfork import api
from hostfork.cli import documents
from hostfork.cli.look import command_in_words, counts_in_words, harmless
from hostfork.cli.output import Output
from hostfork.cli.show import ended_in_words
from hostfork.collect.changeset import Change
from hostfork.lifecycle.record import PathRecord, Record, Who
from hostfork.vocabulary import ChangeKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LABEL = 10
_LETTERS = {
    ChangeKind.CREATED: "A",
    ChangeKind.MODIFIED: "M",
    ChangeKind.DELETED: "D",
    ChangeKind.TYPE: "T",
    ChangeKind.METADATA: "P",
}


def show_receipt(output: Output, receipt: api.Receipt) -> int:
    """Write it."""
    if output.json:
        output.document(document(receipt))
    else:
        output.lines(lines(receipt))
    return 0


def lines(receipt: api.Receipt) -> list[str]:
    """Its text. Paths are whole: nothing depends on who reads it."""
    record = receipt.record
    facts = [
        ("receipt", receipt.id),
        ("fork", f"{record.name} {record.id}".rstrip()),
        ("made", f"{record.created} by {_person(record.by)}"),
        ("on", _host(record)),
        ("command", command_in_words(record.command)),
        ("in", harmless(record.cwd)),
        ("ended", ended_in_words(record.status, record.ended)),
        ("policy", f"{harmless(record.policy)} {record.asked.digest}".rstrip()),
        *_labelled("paths", [_path(path) for path in record.paths]),
        *_labelled("verified", [harmless(sentence) for sentence in receipt.verified]),
        ("changes", counts_in_words(receipt.changes.counts())),
        ("content", receipt.content),
        *_labelled("", [_change(change) for change in receipt.changes.changes]),
    ]
    return [f"{label:<{_LABEL}}{fact}".rstrip() for label, fact in facts if fact]


def _labelled(label: str, several: list[str]) -> list[tuple[str, str]]:
    return [("" if index else label, one) for index, one in enumerate(several)]


def _person(by: Who | None) -> str:
    if by is None:
        return "somebody"
    sudo = f", sudo by {harmless(by.sudo)}" if by.sudo else ""
    tags = "".join(f", {harmless(name)}={harmless(text)}" for name, text in by.tags)
    return f"uid {by.uid}{sudo}{tags}"


def _host(record: Record) -> str:
    made_on = record.made_on
    return f"{made_on.name}, Linux {made_on.kernel}, hostfork {made_on.hostfork}" if made_on.name else ""


def _path(path: PathRecord) -> str:
    kept = "" if path.mechanism is None else f"base {path.base_content.value}"
    words = (path.access, path.mechanism, path.guarantee)
    return "  ".join([harmless(path.path), *(word.value for word in words if word is not None), kept]).rstrip()


def _change(change: Change) -> str:
    letter = "!" if change.active else _LETTERS[change.change]
    mode = "" if change.mode is None or change.change is ChangeKind.DELETED else f"{change.mode:04o}"
    return f"{letter}  {mode:<5} {harmless(change.path)}".rstrip()


def document(receipt: api.Receipt) -> dict[str, Any]:
    """The same with exact values."""
    record, approved = receipt.record, receipt.record.approved
    changes = documents.diff(record.name, receipt.changes)
    return {
        "schema": documents.SCHEMA,
        "receipt": receipt.id,
        "id": record.id,
        "fork": record.name,
        "created": record.created,
        "by": person(record.by),
        "host": {
            "name": documents.text(record.made_on.name),
            "kernel": documents.text(record.made_on.kernel),
            "hostfork": record.made_on.hostfork,
        },
        **documents.argv(record.command),
        **documents.exact("cwd", record.cwd),
        "ended": record.ended,
        "status": None if record.status is None else documents.status(record.status),
        "policy": {"name": documents.text(record.policy), "digest": record.asked.digest},
        "requires": [require.value for require in record.asked.requires],
        "paths": documents.record(record)["paths"],
        "verified": documents.words(receipt.verified),
        "content": receipt.content,
        "counts": changes["counts"],
        "changes": changes["entries"],
        "disposition": record.disposition.value,
        "approved": None if approved is None else {
            "by": person(approved.by), "at": approved.at, "content": approved.content,
        },
    }  # fmt: skip


def person(by: Who | None) -> dict[str, Any] | None:
    """Who asked for something."""
    if by is None:
        return None
    tags = {documents.text(name): documents.text(text) for name, text in by.tags}
    return {
        "uid": by.uid, "sudo": by.sudo, "inside": by.inside, "argv": documents.words(by.argv), "tags": tags,
    }  # fmt: skip
