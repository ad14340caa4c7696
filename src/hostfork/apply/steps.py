"""The steps of an apply, decided before the first one and written down: what stands where before and after each."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from enum import Enum, unique

from hostfork.apply.rows import Rows, rows_from
from hostfork.helper.shapes import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STAGE_PREFIX = ".hostfork-apply-"


@unique
class Move(Enum):
    """What a step does with a name of the target. Each of them can be done the other way round."""

    EXCHANGE = "exchange"
    PLACE = "place"
    REMOVE = "remove"
    CHANGE = "change"
    """Mode, owner or attributes of what is there, in place."""


class Target(NamedTuple):
    """A folder of the host in which names are replaced, and which one it was when the steps were decided."""

    path: str
    device: int
    inode: int


class Stage(NamedTuple):
    """A folder in which entries wait. `target`: the one at whose top it is, -1 in the pool."""

    path: str
    target: int


class Lend(NamedTuple):
    """A folder whose mode forbids its owner to change names in it, and gets those bits meanwhile."""

    target: int
    name: str
    mode: int


Value = int | tuple[int, int] | dict[str, bytes]


class Field(NamedTuple):
    """One of mode, owner, xattrs and acl, before and after."""

    name: str
    old: Value
    new: Value


class Step(NamedTuple):
    """One name. `number` is what its entry in the stage is called. `old` and `new`: what stands there, () for nothing.

    Of a CHANGE `old` is the one entry before it, and `fields` what becomes of it. `original`: what `old` was before it
    was copied for undo, where it was.
    """

    number: int
    move: Move
    target: int
    name: str
    stage: int
    old: Rows
    new: Rows
    fields: tuple[Field, ...] = ()
    original: Rows = ()

    @property
    def slot(self) -> str:
        return str(self.number)


class Plan(NamedTuple):
    """All steps, and where they are done."""

    targets: tuple[Target, ...]
    stages: tuple[Stage, ...]
    lends: tuple[Lend, ...]
    steps: tuple[Step, ...]

    def path(self, step: Step) -> str:
        """Where on the host a step is."""
        root = self.targets[step.target].path
        return os.path.join(root, step.name) if step.name else root

    def to_json(self) -> dict[str, Any]:
        """As JSON: paths in JSON's own escapes, surrogates too."""
        return {
            "targets": [list(target) for target in self.targets],
            "stages": [list(stage) for stage in self.stages],
            "lends": [list(lend) for lend in self.lends],
            "steps": [
                [
                    step.number, step.move.value, step.target, step.name, step.stage, step.old, step.new,
                    [[field.name, _plain(field.old), _plain(field.new)] for field in step.fields],
                    step.original,
                ]
                for step in self.steps
            ],
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """What `to_json` gave. Raises ValueError, TypeError, KeyError, IndexError where it is not that."""
        return cls(
            tuple(Target(*one) for one in value["targets"]),
            tuple(Stage(*one) for one in value["stages"]),
            tuple(Lend(*one) for one in value["lends"]),
            tuple(
                Step(
                    number, Move(move), target, name, stage, rows_from(old), rows_from(new),
                    tuple(Field(field, _value(before), _value(after)) for field, before, after in fields),
                    rows_from(original),
                )
                for number, move, target, name, stage, old, new, fields, original in value["steps"]
            ),
        )  # fmt: skip


def _plain(value: Value) -> object:
    if isinstance(value, dict):
        return {name: b64encode(content).decode("ascii") for name, content in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _value(value: Any) -> Value:
    if isinstance(value, dict):
        return {name: b64decode(content) for name, content in value.items()}
    return tuple(value) if isinstance(value, list) else int(value)
