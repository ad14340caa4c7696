"""Which mechanism serves a private path: tried in the order of DESIGN part 3, never swapped for a weaker one."""

from dataclasses import dataclass

from hostfork.storage.contract import Offer, Refusal


@dataclass(frozen=True)
class Choice:
    """The mechanism taken, None where none keeps what was asked; `refused` best first."""

    offer: Offer | None
    refused: tuple[Refusal, ...]
