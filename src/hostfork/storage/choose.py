"""Which mechanism serves a private path: those that keep what was asked, in the order of what is preferred.

`MECHANISMS` is the table of what there is. The first that can serve is taken, never a weaker one. Preferring native
mechanisms, a writable snapshot or clone comes first; preferring memory, an overlay over a frozen tree.
"""

from __future__ import annotations

from importlib import import_module

from hostfork.storage import scratch
from hostfork.storage.contract import KeyOwner, KeyState, Offer, Refusal, Source, Storage
from hostfork.values import frozen
from hostfork.vocabulary import Guarantee, Mechanism, Prefer

Want = tuple[Mechanism, Guarantee | None]
"""A mechanism, and which of its two where it has two."""

MECHANISMS: tuple[tuple[Mechanism, str, str, Guarantee | None], ...] = (
    (Mechanism.BTRFS, "hostfork.storage.btrfs", "Btrfs", None),
    (Mechanism.REFLINK, "hostfork.storage.reflink", "Reflink", None),
    (Mechanism.COPY, "hostfork.storage.copy", "Copy", None),
    (Mechanism.OVERLAY, "hostfork.storage.overlay", "Overlay", Guarantee.LIVE),
    (Mechanism.OVERLAY, "hostfork.storage.frozen", "Frozen", Guarantee.SNAPSHOT),
)
"""Mechanism, module, class, and its guarantee where one mechanism has two. Modules are loaded when used."""

KINDS: dict[str, tuple[Mechanism | None, Guarantee | None]] = {
    "btrfs": (Mechanism.BTRFS, None),
    "frozen": (Mechanism.OVERLAY, Guarantee.SNAPSHOT),
    "reflink": (Mechanism.REFLINK, None),
    "copy": (Mechanism.COPY, None),
    "overlay": (Mechanism.OVERLAY, Guarantee.LIVE),
    "scratch": (None, None),
}
"""What the folders in a pool are called, and what they belong to: for `owner_of`."""

_NATIVE: tuple[Want, ...] = (
    (Mechanism.BTRFS, None),
    (Mechanism.REFLINK, None),
    (Mechanism.COPY, None),
)
_OVER_NOTHING = "it lies over a frozen snapshot or a baseline, and there is none; `:live` is over the source itself"
_FROZEN: Want = (Mechanism.OVERLAY, Guarantee.SNAPSHOT)
_LIVE: Want = (Mechanism.OVERLAY, Guarantee.LIVE)


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
    for want in _order(mechanism, guarantee, prefer):
        answer = storage_of(*want).probe(source, pool)
        if isinstance(answer, Offer) and elsewhere and not answer.guarantees.elsewhere and mechanism is None:
            answer = Refusal(want[0], "it needs a mount, and there are no namespaces to make one in")
        if isinstance(answer, Offer) and guarantee is not None and not answer.guarantees.guarantee.keeps(guarantee):
            answer = Refusal(want[0], f"it would only be `{answer.guarantees.guarantee.value}`: {answer.reason}")
        if isinstance(answer, Offer):
            offer = answer
            break
        refused.append(answer)
    anything = mechanism is None and guarantee in (None, Guarantee.INDEPENDENT) and prefer is Prefer.NATIVE
    if anything and (offer is None or offer.mechanism is Mechanism.COPY):
        # People know overlays to be instant: why none was taken is part of the answer.
        refused.append(Refusal(Mechanism.OVERLAY, _OVER_NOTHING))
    return Choice(offer, tuple(refused))


def _order(mechanism: Mechanism | None, guarantee: Guarantee | None, prefer: Prefer) -> tuple[Want, ...]:
    """What is tried, first to last."""
    if guarantee is Guarantee.LIVE:
        return (_LIVE,)
    if mechanism is not None:
        return (_FROZEN,) if mechanism is Mechanism.OVERLAY else ((mechanism, None),)
    native = _NATIVE[:1] if guarantee is Guarantee.SNAPSHOT else _NATIVE
    if prefer is Prefer.MEMORY:
        return (_FROZEN, *native)
    return (*native, _FROZEN) if guarantee is Guarantee.SNAPSHOT else native


def storage_of(mechanism: Mechanism, guarantee: Guarantee | None = None) -> Storage:
    """The implementation of a mechanism that is in the table; `guarantee` tells a live overlay from a frozen one."""
    module, name = next(row for row in MECHANISMS if row[0] is mechanism and _is_asked(row[3], guarantee))[1:3]
    storage: Storage = getattr(import_module(module), name)()
    return storage


def _is_asked(of_row: Guarantee | None, guarantee: Guarantee | None) -> bool:
    """Of two implementations one is live; the other keeps more than one guarantee, by its source."""
    return None in (of_row, guarantee) or (of_row is Guarantee.LIVE) == (guarantee is Guarantee.LIVE)


def owner_of(mechanism: Mechanism | None, guarantee: Guarantee | None = None) -> KeyOwner:
    """What removes a key: the mechanism's storage, scratch where there is none."""
    return scratch if mechanism is None else storage_of(mechanism, guarantee)


def all_keys(pool: str) -> tuple[tuple[KeyOwner, KeyState], ...]:
    """Every key in the pool with what it belongs to, scratch too; half-made and half-removed ones too."""
    owners: list[KeyOwner] = [*(storage_of(mechanism, guarantee) for mechanism, _, _, guarantee in MECHANISMS), scratch]
    return tuple((owner, state) for owner in owners for state in owner.keys(pool))
