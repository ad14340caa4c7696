"""Which mechanism serves a private path: those that keep what was asked, in the order of what is preferred.

`MECHANISMS` is the table of what there is. The first that can serve is taken, never a weaker one. Preferring native
mechanisms, a writable snapshot or clone comes first; preferring memory, an overlay over a frozen tree.
"""

from __future__ import annotations

import os
from importlib import import_module

from hostfork.storage import scratch
from hostfork.storage.contract import KeyOwner, KeyState, Offer, Refusal, Source, Storage
from hostfork.values import frozen
from hostfork.vocabulary import Guarantee, Mechanism, Prefer, StorageKind

MECHANISMS: dict[StorageKind, tuple[str, str]] = {
    StorageKind.BTRFS: ("hostfork.storage.btrfs", "Btrfs"),
    StorageKind.REFLINK: ("hostfork.storage.reflink", "Reflink"),
    StorageKind.COPY: ("hostfork.storage.copy", "Copy"),
    StorageKind.LIVE: ("hostfork.storage.overlay", "Overlay"),
    StorageKind.FROZEN: ("hostfork.storage.frozen", "Frozen"),
    StorageKind.RETAINED: ("hostfork.storage.retained", "Retained"),
}
"""Module and class of each implementation. Modules are loaded when used."""

_NATIVE = (StorageKind.BTRFS, StorageKind.REFLINK, StorageKind.COPY)
_LONG = 0.5
"""Seconds. A copy that takes longer is kept as a baseline, over which later forks lie."""
_PER_FILE, _PER_BYTE = 50e-6, 1e-9
"""Seconds that a copy takes, about."""
_NO_BASELINE = "a copy of this takes no longer than comparing a baseline with it; `:live` is over the source itself"


@frozen
class Choice:
    """The mechanism taken, None where none keeps what was asked; `refused` best first."""

    offer: Offer | None
    refused: tuple[Refusal, ...]


def choose(
    source: Source,
    pool: str,
    mechanism: Mechanism | None = None,
    guarantee: Guarantee | None = None,
    *,
    prefer: Prefer = Prefer.NATIVE,
    elsewhere: bool = False,
) -> Choice:
    """Probe what can serve `source` and keeps what was asked. At most one of `mechanism` and `guarantee` is given.

    With neither, `independent` or better. `elsewhere`: what needs a mount is passed over.
    """
    refused: list[Refusal] = []
    offer = None
    anything = mechanism is None and guarantee in (None, Guarantee.INDEPENDENT) and prefer is Prefer.NATIVE
    order = _order(mechanism, guarantee, prefer)
    if anything and not elsewhere and _has_baseline(source, pool):
        order = (*order[:-1], StorageKind.RETAINED, order[-1])
    for kind in order:
        storage = storage_of(kind)
        answer = storage.probe(source, pool)
        if isinstance(answer, Offer) and elsewhere and not answer.guarantees.elsewhere and mechanism is None:
            answer = Refusal(storage.mechanism, "it needs a mount, and there are no namespaces to make one in")
        if isinstance(answer, Offer) and guarantee is not None and not answer.guarantees.guarantee.keeps(guarantee):
            answer = Refusal(
                storage.mechanism, f"it would only be `{answer.guarantees.guarantee.value}`: {answer.reason}"
            )
        if isinstance(answer, Offer):
            offer = answer
            break
        refused.append(answer)
    if anything and offer is not None and offer.kind is StorageKind.COPY and StorageKind.RETAINED not in order:
        # People know overlays to be instant: why none was taken is part of the answer.
        over: Offer | Refusal = Refusal(Mechanism.OVERLAY, _NO_BASELINE)
        if _takes_long(offer) and not elsewhere:
            over = storage_of(StorageKind.RETAINED).probe(source, pool)
        if isinstance(over, Offer):
            offer = over
        else:
            refused.append(over)
    return Choice(offer, tuple(refused))


def _has_baseline(source: Source, pool: str) -> bool:
    """Whether an earlier run made one: then there is no need to look how large the source is."""
    if not os.path.isdir(os.path.join(pool, StorageKind.BASELINE.value)):
        return False
    from hostfork.storage.lines import Line

    return Line.of(source, pool).top() is not None


def _takes_long(copy: Offer) -> bool:
    if copy.files_estimate is None or copy.bytes_estimate is None:
        return True
    return copy.files_estimate * _PER_FILE + copy.bytes_estimate * _PER_BYTE > _LONG


def _order(mechanism: Mechanism | None, guarantee: Guarantee | None, prefer: Prefer) -> tuple[StorageKind, ...]:
    """What is tried, first to last."""
    if guarantee is Guarantee.LIVE:
        return (StorageKind.LIVE,)
    if mechanism is not None:
        overlays = (StorageKind.FROZEN, StorageKind.RETAINED)
        return overlays if mechanism is Mechanism.OVERLAY else (StorageKind(mechanism.value),)
    native = _NATIVE[:1] if guarantee is Guarantee.SNAPSHOT else _NATIVE
    if prefer is Prefer.MEMORY:
        return (StorageKind.FROZEN, StorageKind.RETAINED, *native)
    return (*native, StorageKind.FROZEN) if guarantee is Guarantee.SNAPSHOT else native


def storage_of(kind: StorageKind) -> Storage:
    """The implementation of a kind that is in the table."""
    module, name = MECHANISMS[kind]
    storage: Storage = getattr(import_module(module), name)()
    return storage


def owner_of(kind: StorageKind) -> KeyOwner:
    """What removes a key of that kind."""
    if kind is StorageKind.BASELINE:
        from hostfork.storage import linekeys

        return linekeys
    return scratch if kind is StorageKind.SCRATCH else storage_of(kind)


def all_keys(pool: str) -> tuple[tuple[KeyOwner, KeyState], ...]:
    """Every key in the pool with what it belongs to, scratch too; half-made and half-removed ones too."""
    return tuple((owner, state) for owner in map(owner_of, StorageKind) for state in owner.keys(pool))
