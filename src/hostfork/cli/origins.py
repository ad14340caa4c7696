"""What a baseline can be made of besides folders, as `baseline create` takes it."""

from __future__ import annotations

from collections.abc import Callable

import click

from hostfork import api
from hostfork.cli import candidates
from hostfork.cli.look import harmless
from hostfork.cli.verb import TableOption, absolute
from hostfork.errors import Code, PolicyError
from hostfork.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHOWN = 5


@frozen
class Given:
    """The options as they were given."""

    git: str | None
    ref: str | None
    sparse: tuple[str, ...]
    archive: str | None
    from_fork: str | None
    from_checkpoint: str | None
    at: str | None

    def named(self) -> str | None:
        """One that was given."""
        for name in ("git", "ref", "sparse", "archive", "from_fork", "from_checkpoint", "at"):
            if getattr(self, name):
                return f"--{name.replace('_', '-')}"
        return None

    def origin(self) -> api.Origin | None:
        """What they name; None where that is folders. Raises PolicyError."""
        named = [one for one in ("git", "archive", "from_fork", "from_checkpoint") if getattr(self, one) is not None]
        if len(named) > 1:
            one, other = (name.replace("_", "-") for name in named[:2])
            raise _usage(f"--{one} and --{other} are two baselines")
        if "git" not in named and (self.ref is not None or self.sparse):
            raise _usage(f"{'--ref' if self.ref is not None else '--sparse'} is about --git")
        if self.git is not None:
            return api.Origin(api.OriginKind.GIT, _place(self.git), self.ref or "", sparse=self.sparse)
        if self.archive is not None:
            return api.Origin(api.OriginKind.ARCHIVE, absolute(self.archive))
        if self.from_fork is not None:
            return api.Origin(api.OriginKind.FORK, self.from_fork)
        if self.from_checkpoint is not None:
            words = self.from_checkpoint
            return api.Origin(api.OriginKind.FORK, words if "@" in words else f"@{words}")
        if self.at is not None:
            raise _usage("--at is for --git, --archive and --from-fork: a folder is at its own path, or run --at")
        return None


def options(function: Callable[..., int]) -> Callable[..., int]:
    """The options, for the verb."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS = (
    click.option(
        "--git", cls=TableOption, metavar="URL|PATH", shell_complete=candidates.folders,
        help="create: a checkout of a git repository",
    ),
    click.option("--ref", cls=TableOption, metavar="REF", help="with --git: a branch, tag or commit, else its HEAD"),
    click.option(
        "--sparse", cls=TableOption, multiple=True, metavar="FOLDER",
        help="with --git: only this folder of it; may be repeated",
    ),
    click.option(
        "--archive", cls=TableOption, metavar="FILE", shell_complete=candidates.files,
        help="create: what a tar or zip holds",
    ),
    click.option(
        "--from-fork", cls=TableOption, metavar="FORK", shell_complete=candidates.forks,
        help="create: what a fork holds at last",
    ),
    click.option(
        "--from-checkpoint", cls=TableOption, metavar="FORK@ID", shell_complete=candidates.checkpoints,
        help="create: what a fork held at a checkpoint",
    ),
    click.option(
        "--at", cls=TableOption, metavar="PATH", shell_complete=candidates.folders, help="create: where forks have it",
    ),
)  # fmt: skip


def create(
    name: str, origin: api.Origin, given: Given, pool: str | None,
    told: Callable[[str, int, int, int | None, int | None], None] | None,
) -> api.MadeBaseline:  # fmt: skip
    """Make it."""
    at = None if given.at is None else absolute(given.at)
    return api.create_baseline_from(name, origin, at, None if pool is None else absolute(pool), told)


def told(made: api.MadeBaseline) -> list[str]:
    """What else there is to say of one that was made."""
    origin, lines = made.baseline.origin, []
    if made.started_from:
        lines.append(f"  began as {harmless(made.started_from)}, a baseline of the same repository")
    if made.left_out:
        kind = "submodules" if origin.kind is api.OriginKind.GIT else "what could not be made"
        more = f" and {len(made.left_out) - _SHOWN} more" if len(made.left_out) > _SHOWN else ""
        lines.append(f"  left out: {kind}: {', '.join(map(harmless, made.left_out[:_SHOWN]))}{more}")
    if any(tree.path is None for tree in made.baseline.trees):
        lines.append(f"  hostfork run --base {harmless(made.baseline.name)} --at PATH -- COMMAND")
    return lines


def described(origin: api.Origin) -> str:
    """Of what a baseline was made, in a line."""
    words = {api.OriginKind.GIT: "git", api.OriginKind.ARCHIVE: "archive", api.OriginKind.FORK: "fork"}
    shown = f"{words[origin.kind]} {harmless(api.without_password(origin.place))}"
    if origin.kind is not api.OriginKind.GIT:
        return shown
    reference = f" {harmless(origin.reference)}" if origin.reference else ""
    sparse = f", only {', '.join(map(harmless, origin.sparse))}" if origin.sparse else ""
    return f"{shown}{reference} at {origin.commit[:12]}{sparse}"


def document(origin: api.Origin) -> dict[str, Any]:
    """What its JSON says beside the kind."""
    from hostfork.cli.documents import exact, text, words

    if origin.kind is api.OriginKind.FOLDERS:
        return {}
    found = exact("place", api.without_password(origin.place))
    if origin.kind is api.OriginKind.GIT:
        found |= {"reference": text(origin.reference), "commit": origin.commit, "sparse": words(origin.sparse)}
    return found


def _place(written: str) -> str:
    return absolute(written) if written.startswith("~") else written


def _usage(message: str) -> PolicyError:
    return PolicyError(
        Code.POLICY_USAGE, message, place="baseline", step="options",
        hint="hostfork baseline create NAME --from PATH · --git URL [--ref REF] · --archive FILE · --from-fork FORK · "
             "--from-checkpoint FORK@ID",
    )  # fmt: skip
