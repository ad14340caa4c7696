"""A fork's record and terms as a command needs them that comes into a running view: without the library that checks
them, which takes longer to import than all the rest. What is not understood at once is read in full, and judged there.
"""

from __future__ import annotations

from hostfork.helper.lean import loads
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.store import ForkFolder
from hostfork.policy.rules import Environment
from hostfork.values import frozen
from hostfork.vocabulary import (
    Access,
    Activity,
    BaseContent,
    Disposition,
    Guarantee,
    Mechanism,
    Ownership,
    SourceChanged,
    StorageKind,
)
from hostfork.workload.identity import ProcessIdentity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LATER = ("status", "counts", "by", "asked", "made_on", "approved", "parent")
"""What no command needs: not to be saved again."""


@frozen
class ViewTerms:
    """What of the fork's terms counts for a command."""

    environment: Environment
    timeout: float | None
    storage_limit: int | None
    user_namespace: bool


def record_of(folder: ForkFolder) -> Record:
    """The record but for what only others need. Never to be saved. Raises ForkError as `load`."""
    try:
        raw = _read(folder.file("record.json"))
        names = {name: raw[name] for name in Record.__match_args__ if name in raw and name not in _LATER}
        names |= {name: _who(raw.get(name)) for name in ("owner", "keeper", "command_process", "holder")}
        return Record(**names | {
            "command": tuple(raw["command"]),
            "paths": tuple(map(_path, raw["paths"])),
            "ownership": Ownership(raw["ownership"]),
            "activity": Activity(raw["activity"]),
            "disposition": Disposition(raw["disposition"]),
            "ports": tuple((name, number) for name, number in raw.get("ports", ())),
        })  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return folder.load()


def terms_of(folder: ForkFolder) -> ViewTerms:
    """Those for a command. Raises ForkError."""
    try:
        raw = _read(folder.file("terms"))
        clear, variables = raw["environment"]["clear"], raw["environment"]["variables"]
        environment = Environment(clear, tuple((name, value) for name, value in variables))
        return ViewTerms(environment, raw["timeout"], raw["storage_limit"], raw["user_namespace"])
    except (OSError, ValueError, TypeError, KeyError):
        from hostfork.lifecycle.terms import Terms

        terms = Terms.load(folder)
        return ViewTerms(terms.environment, terms.timeout, terms.storage_limit, terms.user_namespace)


def _read(path: str) -> Any:
    with open(path, encoding="ascii") as file:
        return loads(file.read())


def _who(raw: Any) -> ProcessIdentity | None:
    return None if raw is None else ProcessIdentity(**raw)


def _path(raw: Any) -> PathRecord:
    mechanism, guarantee = raw["mechanism"], raw["guarantee"]
    return PathRecord(**raw | {
        "access": Access(raw["access"]),
        "storage": StorageKind(raw["storage"]),
        "mechanism": None if mechanism is None else Mechanism(mechanism),
        "guarantee": None if guarantee is None else Guarantee(guarantee),
        "base_content": BaseContent(raw["base_content"]),
        "source_changed": SourceChanged(raw["source_changed"]),
        "omit": tuple(raw["omit"]),
    })  # fmt: skip
