"""`hostfork apply`: a fork's changes reach the host, all of them or none; conflicts are listed."""

from __future__ import annotations

import os

import click

from hostfork import api
from hostfork.apply.values import Choice, OnConflict, Resolution
from hostfork.cli import candidates
from hostfork.cli.applied import applied_document, applied_lines, conflict_lines, question_lines, stays_lines
from hostfork.cli.asking import tags_from
from hostfork.cli.confirm import confirmed
from hostfork.cli.look import harmless
from hostfork.cli.manual import APPLIES, LOOK, STATE, Example, Manual
from hostfork.cli.options import TAG
from hostfork.cli.output import PREFIX, Output
from hostfork.cli.verb import TableOption, absolute, flag, fork_argument, new_file, options, verb
from hostfork.errors import Code, PolicyError

_WORDS = {one.value: one for one in OnConflict}


@verb(
    "apply",
    "Bring a fork's changes to the host, all of them or none.",
    Example("hostfork apply calm-otter --dry-run", "What would change on the host, and what conflicts."),
    Example("hostfork apply calm-otter src --yes", "Only what lies below `src`, without asking."),
    Example("hostfork apply calm-otter --on-conflict merge --yes", "Where both edited a text, both edits."),
    manual=Manual(
        about=(
            "Each change of the fork is judged three-way: what the fork started from, what the host has now, what the "
            "fork has now. Where the host still has what the fork started from, it gets the fork's side; where it has "
            "the fork's side already, nothing is to be done. All else is a conflict: then nothing is written, every "
            "conflict is listed with what each side did, and the status is 1. Content, mode, owner, attributes and "
            "ACLs are judged apart: what only the host changed stays.",
            "`--on-conflict` says what becomes of conflicts: `fork` takes the fork's side, `host` leaves the host's, "
            "`merge` puts both edits of a text together as git does, where they do not touch the same lines. "
            "`--on-conflict merge:src/a.py` says it of one path and what lies below it, and may stand more than once.",
            "What is applied is made ready beside the host's files and exchanged with them one by one, in a journal: "
            "killed at any moment, by a full disk, or by another program that writes the same files meanwhile, the "
            "next hostfork command finishes it or puts everything back. While it runs others may see a part of it. "
            "What was displaced is kept, and `hostfork undo` puts it back.",
            "What the project ignores stays out; its number is told, and `--ignored` takes it. Devices, sockets and "
            "set-uid bits stay out without `--special`. Files that the host runs by itself, such as git hooks and CI "
            "files, are listed and refused without `--allow-active`.",
        ),
        statuses=(("1", "there are conflicts, or what the host runs by itself; or the answer to the question was no"),),
        environment=LOOK,
        files=STATE + APPLIES,
        see=("diff", "undo", "export", "discard"),
    ),
)
@fork_argument()
@click.argument("paths", nargs=-1, metavar="[PATH]…", shell_complete=candidates.files)
@flag("--dry-run", help="show what would change, and write nothing")
@click.option(
    "--on-conflict", cls=TableOption, multiple=True, metavar="HOW[:PATH]",
    help="fail (default), fork, host, merge; one: merge:PATH",
    more="May stand more than once; what is said of a path counts more than what is said of all.",
)  # fmt: skip
@flag("--ignored", help="what the project ignores too")
@flag("--special", help="devices, sockets and set-uid bits too", rare=True)
@flag("--allow-active", help="also what the host runs by itself, such as git hooks")
@click.option(
    "--patch-only", cls=TableOption, metavar="FILE", shell_complete=candidates.files,
    help="write the patch to a new FILE instead",
)  # fmt: skip
@click.option(
    "--as-commit", cls=TableOption, metavar="MESSAGE",
    help="write a commit on a new branch instead",
    more="It follows the commit that the host's work tree was at when the fork was made, and holds what the fork holds "
         "at last, but for what git ignores. Work tree, index and HEAD stay as they are. A trailer names the receipt.",
)  # fmt: skip
@click.option(
    "--branch", cls=TableOption, metavar="NAME", rare=True, help="its branch, which must be new; else hostfork/FORK",
)  # fmt: skip
@options(TAG)
@flag("--yes", "-y", help="do not ask")
def apply_verb(
    output: Output, fork: str, paths: tuple[str, ...], dry_run: bool, on_conflict: tuple[str, ...], ignored: bool,
    special: bool, allow_active: bool, patch_only: str | None, as_commit: str | None, branch: str | None,
    tag: tuple[str, ...], yes: bool,
) -> int:  # fmt: skip
    """Apply; 1 where something is in the way."""
    found = api.Fork.open(fork)
    asked = tuple(absolute(path) for path in paths)
    if as_commit is not None or branch is not None:
        from hostfork.cli.committed import write_commit

        given = {"--dry-run": dry_run, "--on-conflict": on_conflict, "--ignored": ignored, "--special": special,
                 "--patch-only": patch_only, "--allow-active": allow_active}  # fmt: skip
        return write_commit(output, found, as_commit, branch, asked, tag, [name for name in given if given[name]])
    for word in (*paths, *(how.partition(":")[2] for how in on_conflict)):
        if word and not found.diff((absolute(word),)).changes:
            raise PolicyError(
                Code.POLICY_USAGE, f"{found.name} changed nothing at {word}", place="PATH", step="options",
                path=absolute(word), hint=f"paths are those of the host: hostfork diff {found.name}",
            )  # fmt: skip
    if patch_only is not None:
        return _write_patch(output, found, asked, ignored, patch_only)
    real = tuple(dict.fromkeys((*asked, *(os.path.realpath(path) for path in asked))))
    choice = Choice(real, resolution(on_conflict), ignored, special, allow_active)
    tags = tags_from(tag)
    result = api.apply(found.name, choice, dry_run=dry_run or not yes, tags=tags)
    if not yes and not dry_run and not result.refused and result.changes.changes:
        lines = question_lines(result, output.err)
        if not confirmed(output, "the host's files would change", lines, "this goes to the host:"):
            return 1
        result = api.apply(found.name, choice, tags=tags)
    if result.written:
        api.gc_in_background()
    if output.json:
        output.document(applied_document(result, dry_run))
        return int(result.refused)
    if result.refused:
        output.complain(conflict_lines(result, output.err, paths))
        return 1
    output.lines(applied_lines(result, dry_run, output.out))
    output.complain([*stays_lines(result, output.err), *(f"{PREFIX}{harmless(one)}" for one in result.notices)])
    return 0


def resolution(words: tuple[str, ...]) -> Resolution:
    """What the words of `--on-conflict` say. Raises PolicyError `policy.usage`."""
    general, paths = OnConflict.FAIL, []
    for word in words:
        how, colon, path = word.partition(":")
        if how not in _WORDS or (colon and not path):
            raise PolicyError(
                Code.POLICY_USAGE, f"--on-conflict {word}: not one of {', '.join(_WORDS)}, or one with :PATH",
                place="--on-conflict", step="options", hint="--on-conflict merge · --on-conflict fork:src/a.py",
            )  # fmt: skip
        if colon:
            named = absolute(path)
            paths += [(one, _WORDS[how]) for one in dict.fromkeys((named, os.path.realpath(named)))]
        else:
            general = _WORDS[how]
    return Resolution(general, tuple(paths))


def _write_patch(output: Output, fork: api.Fork, paths: tuple[str, ...], ignored: bool, name: str) -> int:
    """The patch of what would be applied, as a new file; whole or not there."""
    wanted = [one.path for one in fork.diff(paths).changes if ignored or one.ignored_by is None]
    with new_file(name, "patch") as file:
        for piece in fork.patch(wanted) if wanted else ():
            file.write(piece)
    path = absolute(name)
    if output.json:
        from hostfork.cli.documents import answer, exact

        output.document(answer({"fork": fork.name, **exact("patch", path), "changes": len(wanted)}))
    else:
        output.lines([f"patch of {len(wanted)} changes written to {output.out.path(path)}; nothing was applied"])
    return 0
