"""What a run tells while it goes on, as values: the command line prints them, a program may do what it likes."""

from __future__ import annotations

from hostfork.lifecycle.record import Status
from hostfork.policy.plan import Plan
from hostfork.storage.contract import Lost
from hostfork.values import frozen
from hostfork.vocabulary import Guarantee, Mechanism


@frozen
class Planned:
    """The plan stands; nothing was made yet."""

    plan: Plan


@frozen
class Progress:
    """A private copy is being made: files and bytes done, and of how many where that is known."""

    path: str
    files: int
    bytes: int
    files_total: int | None = None
    bytes_total: int | None = None
    retained: bool = False
    """It is a baseline, which later forks start from."""


@frozen
class PreparedPath:
    """Private storage of one path is there; `bytes_copied` were really copied."""

    path: str
    mechanism: Mechanism
    guarantee: Guarantee
    files: int
    bytes_copied: int
    seconds: float
    unwritable: tuple[str, ...] = ()
    """Relative paths that the user cannot write on the host, and so not in the fork."""
    lost: tuple[Lost, ...] = ()


@frozen
class StartedCommand:
    """The command runs."""

    pid: int


@frozen
class EndedCommand:
    """The command ended."""

    status: Status


@frozen
class Stopping:
    """What is left of the process tree is being ended."""


@frozen
class Collecting:
    """The changes of one private path are being read."""

    path: str


@frozen
class Warned:
    """Something is weaker than usual; one sentence."""

    sentence: str


Event = Planned | Progress | PreparedPath | StartedCommand | EndedCommand | Stopping | Collecting | Warned
