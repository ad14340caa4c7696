"""What a shell is offered for a value: names of forks and policies, words, or a kind of path that it completes itself.

A shell asks at every Tab: nothing here may be slow, print, or raise because the state folder is not as it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from hostfork.cli.options import Completes, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Completer = Callable[[click.Context, click.Parameter, str], list[Any]]


FEW = 30
"""So many records are read at a Tab; a night of experiments may have left more."""

FILE, FOLDER = "file", "dir"
"""Types of an item for which the shell completes a path itself."""

PART = "part"
"""Type of an item after which something still follows, without a blank."""

AFTER = "after"
"""Type of an item that stands behind the last `:` of the word."""


def forks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """The names of the forks that begin so, none twice; with their commands where they are few."""
    from hostfork import api
    from hostfork.errors import HostforkError

    try:
        names = [name for name in api.fork_names() if name.startswith(incomplete)]
    except HostforkError:
        return []
    taken = ctx.params.get(parameter.name or "") or ()
    found = [name for name in names if name not in taken]
    return [CompletionItem(name, help=_command(name) if len(found) <= FEW else None) for name in found]


def _command(name: str) -> str | None:
    """What runs or ran in a fork; None where its record cannot be read."""
    from hostfork import api
    from hostfork.cli.look import command_in_words
    from hostfork.errors import HostforkError

    try:
        return command_in_words(api.Fork.open(name).record.command)
    except HostforkError:
        return None


def checkpoints_of_fork(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """The checkpoints of the fork that was named, with their notes."""
    from hostfork import api
    from hostfork.errors import HostforkError

    try:
        known = api.checkpoints(str(ctx.params.get("fork")))
    except HostforkError:
        return []
    return [CompletionItem(one.short, help=one.message or one.at) for one in known if one.id.startswith(incomplete)]


def checkpoints(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """The checkpoints of all forks, as FORK@ID, with their notes."""
    from hostfork import api
    from hostfork.errors import HostforkError

    try:
        known = api.checkpoint_names()
    except HostforkError:
        return []
    items = [(f"{fork}@{name[:12]}", message) for fork, name, message in known]
    return [CompletionItem(words, help=message or None) for words, message in items if words.startswith(incomplete)]


def files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Let the shell complete a path."""
    return [CompletionItem(incomplete, type=FILE)]


def folders(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Let the shell complete a folder."""
    return [CompletionItem(incomplete, type=FOLDER)]


def baselines(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """The names of the baselines that begin so."""
    from hostfork import api

    try:
        return [CompletionItem(name) for name in api.baseline_names() if name.startswith(incomplete)]
    except OSError:
        return []


def policies(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """The shipped policies with their descriptions, else a file."""
    from hostfork import api
    from hostfork.errors import HostforkError

    try:
        names = [name for name in api.policies() if name.startswith(incomplete)]
        items = [CompletionItem(name, help=api.policy(name).description) for name in names]
    except (HostforkError, OSError):
        items = []
    return items or files(ctx, parameter, incomplete)


def _private(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """A path, and the mechanisms and promises behind its `:`."""
    from hostfork.policy.options import PRIVATE_WORDS

    path, colon, beginning = incomplete.rpartition(":")
    words = [word for word in PRIVATE_WORDS if word.startswith(beginning)] if path and colon else []
    return [CompletionItem(word, type=AFTER) for word in words] or files(ctx, parameter, incomplete)


def _scratch(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    path, colon, beginning = incomplete.rpartition(":")
    if path and colon and "tmpfs=".startswith(beginning):
        return [CompletionItem("tmpfs=", type=AFTER)]
    return folders(ctx, parameter, incomplete)


def _requires(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from hostfork.vocabulary import Require

    return one_of(item.value for item in Require)(ctx, parameter, incomplete)


def one_of(words: Iterable[str]) -> Completer:
    """These words."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    return complete


def completer(option: Option) -> Completer | None:
    """What completes an option's value."""
    return one_of(option.words) if option.words else _COMPLETERS[option.completes]


_COMPLETERS: dict[Completes, Completer | None] = {
    Completes.NOTHING: None,
    Completes.FILES: files,
    Completes.FOLDERS: folders,
    Completes.PRIVATE: _private,
    Completes.SCRATCH: _scratch,
    Completes.POLICIES: policies,
    Completes.BASELINES: baselines,
    Completes.REQUIRES: _requires,
}
