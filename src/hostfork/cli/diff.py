"""`hostfork diff`: what a fork changed, one line for each ignored folder; `--all` has every path, JSON always."""

from __future__ import annotations

import os

import click

from hostfork import api
from hostfork.cli import candidates
from hostfork.cli.changes import diff_lines, expanded, folded, stat_lines
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import absolute, flag, fork_argument, verb
from hostfork.errors import Code, PolicyError
from hostfork.vocabulary import Access

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    Content: TypeAlias = api.Fork | api.Past | api.Compared

_MOMENTS = ("base", "host", "now")
"""Beside checkpoints."""


@verb(
    "diff",
    "Show what a fork changed, or what differs between two moments.",
    Example("hostfork diff calm-otter", "A line for each path, and for each ignored folder."),
    Example("hostfork diff calm-otter src --patch | git apply --check", "Whether what changed below `src` applies."),
    Example("hostfork diff calm-otter@base calm-otter@host", "What the host changed since it was made."),
    manual=Manual(
        about=(
            "Compares the fork's final content with what the private paths were when it was made: `A` created, `M` "
            "modified, `D` deleted, `T` another type, `P` permissions or other metadata. A line that begins with `!` "
            "is something that the host would run by itself, such as a git hook. A file that was only touched, or "
            "rewritten with the same bytes, is not there.",
            "Folders that the project ignores (`.gitignore`) are one line each; `--all`, or naming a path, shows what "
            "is in them. PATH is a path of the host: `src` means `src` in the working directory.",
            "FORK@ID, or the ID alone, is a checkpoint. `diff A B` with two moments is what differs from A to B: each "
            "is FORK@ID, FORK@last, FORK@base (what the fork started from), FORK@now or FORK@host (what the host has "
            "there now). "
            "B is told from a PATH by its `@`; write a path that has one as `./a@b`. Of the host is looked at what has "
            "another kind, mode, owner, size or time than the base, and that is compared byte by byte.",
            "`--patch` is one patch that `git apply` takes. Where the content of the base is no longer there, the "
            "answer is the error `base.gone`, never a patch against another file.",
        ),
        statuses=(("1", "with `--exit-code`: something changed"),),
        environment=LOOK,
        files=STATE,
        see=("show", "export"),
    ),
)
@fork_argument()
@click.argument("paths", nargs=-1, metavar="[PATH]…", shell_complete=candidates.files)
@flag("--all", "every", help="show what is in ignored folders too, path by path")
@flag("--stat", help="show numbers only")
@flag("--patch", "-p", help="show the changes of content as one patch, as git apply takes it")
@flag("--exit-code", help="end with 1 if something changed")
def diff_verb(output: Output, fork: str, paths: tuple[str, ...], every: bool, stat: bool, patch: bool,
              exit_code: bool) -> int:  # fmt: skip
    """Show a changeset."""
    if patch and (stat or output.json):
        raise PolicyError(
            Code.POLICY_USAGE, f"--patch and {'--json' if output.json else '--stat'} contradict each other",
            place="--patch", step="options", hint="give one of them",
        )  # fmt: skip
    with _opened(fork, paths[:1]) as found:
        asked = tuple(absolute(path) for path in paths if not isinstance(found, api.Compared) or path != paths[0])
        return _show(output, found, asked, every, stat, patch, exit_code)


def _opened(fork: str, second: tuple[str, ...]) -> AbstractContextManager[Content]:
    """What is to be shown: a fork, a checkpoint, or the differences of two moments."""
    if second and "@" in second[0] and "/" not in second[0].partition("@")[0]:
        return api.compared(fork, second[0])
    name, _, which = fork.rpartition("@")
    return api.compared(f"{name}@base", fork) if name and which in _MOMENTS else api.opened(fork)


def _show(output: Output, found: Content, asked: tuple[str, ...], every: bool, stat: bool, patch: bool,
          exit_code: bool) -> int:  # fmt: skip
    if patch:
        some = _write_patch(output, found, asked)
        return int(exit_code and (some or bool(found.diff(asked).changes)))
    changeset = found.diff(asked)
    if output.json:
        from hostfork.cli import documents

        output.document(documents.diff(found.name, changeset))
    elif changeset.changes:
        shown = expanded(changeset) if every or asked else folded(changeset)
        counts = found.line_counts(shown.changeset)
        roots = [path.path for path in found.record.paths if path.access is Access.PRIVATE]
        if stat:
            output.lines(stat_lines(changeset, found.line_counts(changeset), roots, output.out))
        else:
            output.lines(diff_lines(shown, counts, roots, output.out))
    return int(exit_code and bool(changeset.changes))


def _write_patch(output: Output, fork: Content, paths: tuple[str, ...]) -> bool:
    """The patch as it is; on a terminal, harmless and in colour. Gives whether there was any."""
    some = False
    for piece in fork.patch(paths):
        some = True
        if os.isatty(1):
            from hostfork.cli.changes import patch_lines

            output.lines(patch_lines(piece, output.out))
        else:
            output.bytes(piece)
    return some
