"""`hostfork export`: a fork's final content as a folder or a tar file."""

import os
from typing import Any

import click

from hostfork import api
from hostfork.cli.output import Output, terminal
from hostfork.cli.verb import absolute, complete_files, flag, fork_argument, verb
from hostfork.errors import Code, CollectError, PolicyError
from hostfork.lifecycle.request import ExportForm


@verb(
    "export",
    "Write a fork's final content to a folder or tar file.",
    "hostfork export calm-otter ./result",
    "hostfork export calm-otter ./changes --changes-only",
    "hostfork export calm-otter --tar - | ssh host tar -x",
)
@fork_argument()
@click.argument("dest", required=False, metavar="[DEST]", shell_complete=complete_files)
@flag("--changes-only", help="only what changed; changes.json there says what was deleted")
@flag("--tar", help="DEST is a new tar file, `-` or nothing is stdout")
def export_verb(output: Output, fork: str, dest: str | None, changes_only: bool, tar: bool) -> int:
    """Export, and say what was written."""
    if tar and changes_only:
        raise _usage("--tar and --changes-only contradict each other", "give one of them")
    if not tar and dest is None:
        raise _usage("no destination", f"hostfork export {fork} ./{fork}")
    found = api.Fork.open(fork)
    if not tar:
        assert dest is not None
        report = found.export(absolute(dest), ExportForm.CHANGES_ONLY if changes_only else ExportForm.TREE)
        return _tell(output, found.name, dest, report)
    if dest is not None and dest != "-":
        return _tell(output, found.name, dest, _to_file(found, dest))
    if output.json:
        raise _usage("--json: stdout is the tar file's", "name a file: --tar FILE")
    if terminal(1):
        raise _usage("a tar file is not for a terminal", f"hostfork export {found.name} --tar {found.name}.tar")
    with os.fdopen(os.dup(1), "wb") as file:
        report = found.export_tar(file)
    output.complain(_skipped(report))
    return 0


def _usage(message: str, hint: str) -> PolicyError:
    return PolicyError(Code.POLICY_USAGE, message, place="DEST", step="options", hint=hint)


def _to_file(fork: api.Fork, dest: str) -> Any:
    """A new file, whole or not there."""
    path = absolute(dest)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise CollectError(
            Code.COLLECT_DESTINATION, f"{dest} cannot be made", path=path, step="export", errno=error.errno,
            hint="name a file that is not there yet",
        ) from error  # fmt: skip
    try:
        with os.fdopen(descriptor, "wb") as file:
            return fork.export_tar(file)
    except BaseException:
        os.unlink(path)
        raise
