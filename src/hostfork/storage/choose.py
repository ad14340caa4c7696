"""Which mechanism serves a private path: those that keep what was asked, in the order of what is preferred.

`MECHANISMS` is the table of what there is. The first that can serve is taken, never a weaker one. Preferring native
mechanisms, a writable snapshot or clone comes first; preferring memory, an overlay over a frozen tree.
"""

from __future__ import annotations

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
}
"""Module and class of each implementation. Modules are loaded when used."""

_NATIVE = (StorageKind.BTRFS, StorageKind.REFLINK, StorageKind.COPY)
_OVER_NOTHING = "it lies over a frozen snapshot or a baseline, and there is none; `:live` is over the source itself"


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
    for kind in _order(mechanism, guarantee, prefer):
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
    anything = mechanism is None and guarantee in (None, Guarantee.INDEPENDENT) and prefer is Prefer.NATIVE
    if anything and (offer is None or offer.mechanism is Mechanism.COPY):
        # People know overlays to be instant: why none was taken is part of the answer.
        refused.append(Refusal(Mechanism.OVERLAY, _OVER_NOTHING))
    return Choice(offer, tuple(refused))


def _order(mechanism: Mechanism | None, guarantee: Guarantee | None, prefer: Prefer) -> tuple[StorageKind, ...]:
    """What is tried, first to last."""
    if guarantee is Guarantee.LIVE:
        return (StorageKind.LIVE,)
    if mechanism is not None:
        return (StorageKind.FROZEN if mechanism is Mechanism.OVERLAY else StorageKind(mechanism.value),)
    native = _NATIVE[:1] if guarantee is Guarantee.SNAPSHOT else _NATIVE
    if prefer is Prefer.MEMORY:
        return (StorageKind.FROZEN, *native)
    return (*native, StorageKind.FROZEN) if guarantee is Guarantee.SNAPSHOT else native


def storage_of(kind: StorageKind) -> Storage:
    """The implementation of a kind that is in the table."""
    module, name = MECHANISMS[kind]
    storage: Storage = getattr(import_module(module), name)()
    return storage


def owner_of(kind: StorageKind) -> KeyOwner:
    """What removes a key of that kind."""
    return scratch if kind is StorageKind.SCRATCH else storage_of(kind)


def all_keys(pool: str) -> tuple[tuple[KeyOwner, KeyState], ...]:
    """Every key in the pool with what it belongs to, scratch too; half-made and half-removed ones too."""
    return tuple((owner, state) for owner in map(owner_of, StorageKind) for state in owner.keys(pool))
