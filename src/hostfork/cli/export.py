"""`hostfork export`: a fork's final content as a folder or a tar file."""

from __future__ import annotations

import errno
import io
import os

import click

from hostfork import api
from hostfork.cli import candidates
from hostfork.cli.look import harmless, plural
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import PREFIX, Output, ReaderGone, write_all
from hostfork.cli.verb import absolute, flag, fork_argument, new_file, verb
from hostfork.errors import Code, HostforkError, PolicyError
from hostfork.lifecycle.request import ExportForm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

_SHOWN = 5


@verb(
    "export",
    "Write a fork's final content to a folder or tar file.",
    Example("hostfork export calm-otter ../result", "The whole tree, as the command left it."),
    Example("hostfork export calm-otter ../changes --changes-only", "What changed; deletions are in `changes.json`."),
    Example("hostfork export calm-otter --tar | gzip > ../calm.tgz", "As a tar file, through a pipe."),
    manual=Manual(
        about=(
            "Writes a fork's final content to DEST, a new or empty folder, with modes, times, extended attributes and "
            "hard links, and as root with owners. With one private path DEST is that path's content; with several, "
            "each lies below DEST at its absolute path. Devices and sockets are left out and set-uid bits are taken "
            "away; each is named.",
            "FORK@ID, or the ID alone, is what the fork held at that checkpoint (`hostfork checkpoints`).",
            "`--changes-only` writes what changed and `changes.json`, which alone carries deletions. A whole tree "
            "needs the unchanged rest: where the fork does not hold it and the host has changed it since, the answer "
            "is the error `base.gone`.",
        ),
        environment=LOOK,
        files=STATE,
        see=("diff", "run", "discard"),
    ),
)
@fork_argument()
@click.argument("dest", required=False, metavar="[DEST]", shell_complete=candidates.files)
@flag("--changes-only", help="only what changed; changes.json there says what was deleted")
@flag("--tar", help="DEST is a new tar file, `-` or nothing is stdout")
def export_verb(output: Output, fork: str, dest: str | None, changes_only: bool, tar: bool) -> int:
    """Export, and say what was written."""
    if tar and changes_only:
        raise _usage("--tar and --changes-only contradict each other", "give one of them")
    if not tar and dest is None:
        raise _usage("no destination", f"hostfork export {fork} ./{fork}")
    with api.opened(fork) as found:
        return _export(output, found, dest, changes_only, tar)


def _export(output: Output, found: api.Fork | api.Past, dest: str | None, changes_only: bool, tar: bool) -> int:
    if not tar:
        assert dest is not None
        report = found.export(absolute(dest), ExportForm.CHANGES_ONLY if changes_only else ExportForm.TREE)
        return _tell(output, found.name, dest, report.left_out)
    if dest is not None and dest != "-":
        return _tell(output, found.name, dest, _to_file(found, dest))
    if output.json:
        raise _usage("--json: stdout is the tar file's", "name a file: --tar FILE")
    if os.isatty(1):
        raise _usage("a tar file is not for a terminal", f"hostfork export {found.name} --tar {found.name}.tar")
    output.complain(left_out_lines(_to_stdout(found)))
    return 0


def _tell(output: Output, name: str, dest: str, left_out: tuple[str, ...]) -> int:
    if output.json:
        from hostfork.cli.documents import answer, exact, words

        document = {"fork": name, **exact("destination", absolute(dest)), "left_out": words(left_out)}
        output.document(answer(document))
    else:
        output.lines([f"exported {harmless(name)} to {output.out.path(dest)}"])
        output.complain(left_out_lines(left_out))
    return 0


def left_out_lines(paths: tuple[str, ...]) -> list[str]:
    """What was not written, for people: the first few and how many more."""
    if not paths:
        return []
    lines = [f"{PREFIX}not written, or not with all its metadata: devices, sockets, set-uid bits, foreign owners"]
    lines += [f"  {harmless(path)}" for path in paths[:_SHOWN]]
    if len(paths) > _SHOWN:
        lines.append(f"  and {plural(len(paths) - _SHOWN, 'more path')}; --json lists them")
    return lines


def _usage(message: str, hint: str) -> PolicyError:
    return PolicyError(Code.POLICY_USAGE, message, place="DEST", step="options", hint=hint)


class _Stdout(io.RawIOBase):
    """stdout, unbuffered. Once nobody reads it, what is still written is dropped: tarfile closes its stream."""

    gone = False

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if not self.gone:
            try:
                write_all(1, content)
            except BrokenPipeError:
                self.gone = True
                raise
        return len(content)


def _to_stdout(fork: api.Fork | api.Past) -> tuple[str, ...]:
    from typing import cast

    try:
        return fork.export_tar(cast("BinaryIO", _Stdout())).left_out
    except HostforkError as error:
        if error.errno == errno.EPIPE:
            raise ReaderGone from error
        raise


def _to_file(fork: api.Fork | api.Past, dest: str) -> tuple[str, ...]:
    """A new file, whole or not there."""
    with new_file(dest, "export") as file:
        return fork.export_tar(file).left_out
