"""Which mechanism serves a private path: tried in the order of DESIGN part 3, never swapped for a weaker one.

`MECHANISMS` is the table of what there is. A mechanism that is not in it is refused with that reason.
"""

import os
from importlib import import_module
from typing import cast

from hostfork.storage import scratch
from hostfork.storage.contract import KeyOwner, KeyState, Offer, Refusal, Source, Storage
from hostfork.values import frozen
from hostfork.vocabulary import Guarantee, Mechanism

MECHANISMS: tuple[tuple[Mechanism, str, str, Guarantee | None], ...] = (
    (Mechanism.COPY, "hostfork.storage.copy", "Copy", None),
    (Mechanism.OVERLAY, "hostfork.storage.overlay", "Overlay", Guarantee.LIVE),
)
"""Mechanism, module, class, and its guarantee where one mechanism has two. Modules are loaded when used."""

_INDEPENDENT = (Mechanism.BTRFS, Mechanism.REFLINK, Mechanism.COPY)
"""The order in which `independent` is looked for."""


@frozen
class Choice:
    """The mechanism taken, None where none keeps what was asked; `refused` best first."""

    offer: Offer | None
    refused: tuple[Refusal, ...]


def choose(source: Source, pool: str, mechanism: Mechanism | None = None, guarantee: Guarantee | None = None) -> Choice:
    """Probe what can serve `source` and keeps what was asked. At most one of `mechanism` and `guarantee` is given.

    With neither, `independent` or better.
    """
    if mechanism is Mechanism.OVERLAY:
        return Choice(None, (_over_nothing(),))
    if guarantee is Guarantee.LIVE:
        return _first(source, pool, (Mechanism.OVERLAY,))
    if mechanism is not None:
        return _first(source, pool, (mechanism,))
    if guarantee is Guarantee.SNAPSHOT:
        return _first(source, pool, (Mechanism.BTRFS,))
    choice = _first(source, pool, _INDEPENDENT)
    return Choice(choice.offer, (*choice.refused, _over_nothing()))


def storage_of(mechanism: Mechanism, guarantee: Guarantee | None = None) -> Storage:
    """The implementation of a mechanism that is in the table; `guarantee` tells a live overlay from a frozen one."""
    rows = [row for row in MECHANISMS if row[0] is mechanism]
    module, name = next(row for row in rows if row[3] is None or guarantee is None or row[3] is guarantee)[1:3]
    return cast(Storage, getattr(import_module(module), name)())


def owner_of(mechanism: Mechanism | None, guarantee: Guarantee | None = None) -> KeyOwner:
    """What removes a key: the mechanism's storage, scratch where there is none."""
    return scratch if mechanism is None else storage_of(mechanism, guarantee)


def all_keys(pool: str) -> tuple[tuple[KeyOwner, KeyState], ...]:
    """Every key in the pool with what it belongs to, scratch too; half-made and half-removed ones too."""
    owners: list[KeyOwner] = [*(storage_of(mechanism, guarantee) for mechanism, _, _, guarantee in MECHANISMS), scratch]
    return tuple((owner, state) for owner in owners for state in owner.keys(pool))


def _first(source: Source, pool: str, order: tuple[Mechanism, ...]) -> Choice:
    refused: list[Refusal] = []
    for mechanism in order:
        answer = _probe(source, pool, mechanism)
        if isinstance(answer, Offer):
            return Choice(answer, tuple(refused))
        refused.append(answer)
    return Choice(None, tuple(refused))


def _probe(source: Source, pool: str, mechanism: Mechanism) -> Offer | Refusal:
    if any(known is mechanism for known, _, _, _ in MECHANISMS):
        return storage_of(mechanism).probe(source, pool)
    return Refusal(mechanism, f"this version of hostfork has no mechanism `{mechanism.value}` ({_where(source.path)})")


def _over_nothing() -> Refusal:
    return Refusal(
        Mechanism.OVERLAY, "an independent overlay lies over a baseline, and there is none; `:live` is over the source"
    )


def _where(path: str) -> str:
    from hostfork.storage.filesystem import filesystem_of

    try:
        return f"{path} is on {filesystem_of(path)}"
    except OSError as error:
        return f"{path}: {os.strerror(error.errno or 0)}"
