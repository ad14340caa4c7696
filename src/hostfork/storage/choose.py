"""Which mechanism serves a private path: tried in the order of DESIGN part 3, never swapped for a weaker one.

`MECHANISMS` is the table of what there is. A mechanism that is not in it is refused with that reason.
"""

import os
from importlib import import_module
from typing import cast

from hostfork.storage.contract import KeyState, Offer, Refusal, Source, Storage
from hostfork.values import frozen
from hostfork.vocabulary import Guarantee, Mechanism

MECHANISMS: tuple[tuple[Mechanism, str, str], ...] = (
    (Mechanism.COPY, "hostfork.storage.copy", "Copy"),
    (Mechanism.OVERLAY, "hostfork.storage.overlay", "Overlay"),
)
"""Mechanism, module, class; modules are loaded when they are used."""

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


def storage_of(mechanism: Mechanism) -> Storage:
    """The implementation of a mechanism that is in the table."""
    module, name = next((module, name) for known, module, name in MECHANISMS if known is mechanism)
    return cast(Storage, getattr(import_module(module), name)())


def all_keys(pool: str) -> tuple[tuple[Mechanism | None, KeyState], ...]:
    """Every key in the pool with its mechanism, None for scratch; half-made and half-removed ones too."""
    from hostfork.storage import scratch

    found: list[tuple[Mechanism | None, KeyState]] = []
    for mechanism, _, _ in MECHANISMS:
        found += [(mechanism, state) for state in storage_of(mechanism).keys(pool)]
    return (*found, *((None, state) for state in scratch.keys(pool)))


def _first(source: Source, pool: str, order: tuple[Mechanism, ...]) -> Choice:
    refused: list[Refusal] = []
    for mechanism in order:
        answer = _probe(source, pool, mechanism)
        if isinstance(answer, Offer):
            return Choice(answer, tuple(refused))
        refused.append(answer)
    return Choice(None, tuple(refused))


def _probe(source: Source, pool: str, mechanism: Mechanism) -> Offer | Refusal:
    if any(known is mechanism for known, _, _ in MECHANISMS):
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
