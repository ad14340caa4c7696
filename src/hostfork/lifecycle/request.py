"""What one run is asked to do, as programs and the command line say it."""

from __future__ import annotations

from enum import Enum, unique

from hostfork.policy.rules import RuleOptions
from hostfork.values import frozen


@unique
class Keep(Enum):
    """What becomes of a fork at the end of its run."""

    CHANGES = "changes"
    """Kept if something changed, else released."""
    ALWAYS = "always"
    NEVER = "never"


@unique
class ExportForm(Enum):
    """How a fork's content is written out."""

    TREE = "tree"
    CHANGES_ONLY = "changes-only"
    TAR = "tar"


@frozen
class Request:
    """One run. `policy` is a shipped name or a file; `rules` are added to it. Paths may be relative to `cwd`.

    `cwd` None is the caller's. `descriptors` above 2 stay open in the command. `relocated`: no namespaces, the copy
    lies at another path. `export`: an empty or new folder for the final content. `base`: a baseline by its name or a
    unique beginning, whose folders are private at their own paths, or at `at`, which is for one that has a single one.
    `ports`: variables, each of which gets the number of a port that is free.
    `tags` go into the fork's record and log.
    """

    command: tuple[str, ...]
    policy: str = "workspace"
    rules: RuleOptions = RuleOptions()
    name: str | None = None
    keep: Keep = Keep.CHANGES
    export: str | None = None
    cwd: str | None = None
    descriptors: tuple[int, ...] = ()
    pool: str | None = None
    relocated: bool = False
    base: str | None = None
    at: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    ports: tuple[str, ...] = ()
