"""`hostfork baseline create NAME --from PATH… | refresh NAME | list | show NAME | verify [NAME]… | remove NAME…`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import click

from hostfork import api
from hostfork.cli import candidates, origins
from hostfork.cli.look import age, harmless, plural, size, table
from hostfork.cli.manual import LOOK, STATE, Example, Manual
from hostfork.cli.output import Output
from hostfork.cli.verb import TableOption, absolute, verb
from hostfork.errors import Code, HostforkError, PolicyError
from hostfork.lifecycle.events import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ACTIONS = ("create", "refresh", "list", "show", "verify", "remove")
_HEAD = ("NAME", "STATE", "AGE", "FORKS", "SPACE", "FOLDERS")


@verb(
    "baseline",
    "Keep trees that forks start from: create, refresh, remove.",
    Example("hostfork baseline create mono --from .", "Keep the working directory as it is now."),
    Example("hostfork run --base mono -- make test", "A fork of it, in a moment, at the folder's own path."),
    Example("hostfork baseline list", "What is kept, and how many forks lie over it."),
    manual=Manual(
        about=(
            "ACTION is one of create, refresh, list, show, verify and remove.",
            "A baseline is a retained, immutable tree, or several. Forks of it (`run --base NAME`) start in a moment "
            "whatever its size, share its page cache, and hold only what they change. It is kept until it is removed.",
            "`create NAME --from PATH…` takes folders as they are now; `--git` a checkout with its history, by the git "
            "command line, but not by the repository's own configuration or hooks; `--archive` what a tar or zip "
            "holds; `--from-fork` what a fork holds at last. What has no path of its own is where `--at` says, here "
            "or in `run`. A repository of which there is a baseline already begins as that one. `refresh NAME` brings "
            "it up to date and stores what changed: forks over it still show what they showed, new ones the new state. "
            "`remove NAME…` refuses while forks lie over it and says which. `list` and `show` tell what there is.",
            "`verify [NAME]…` reads all of the named ones, or of all, and compares it with the BLAKE3 sums that were "
            "made in the background after each `create` and `refresh`; where there are none yet it makes them and says "
            "so. "
            "Each path that is not what it was is named, and the status is 1. No fork starts from a damaged one; "
            "`refresh` takes it anew. A damaged `auto-…` is removed, or taken anew by the next run if forks use it.",
            "`--private PATH` keeps a baseline of PATH by itself where copying takes longer than half a second; those "
            "are called `auto-…`, brought up to date by each run, and go when they were not used for long.",
        ),
        environment=LOOK,
        files=STATE,
        see=("run", "usage", "gc"),
    ),
)
@click.argument("action", type=click.Choice(ACTIONS), metavar="ACTION")
@click.argument("name", nargs=-1, metavar="[NAME]…", shell_complete=candidates.baselines)
@click.option(
    "--from",
    "source",
    cls=TableOption,
    multiple=True,
    metavar="PATH",
    shell_complete=candidates.folders,
    help="create: a folder to keep; may be repeated",
)
@origins.options
@click.option(
    "--pool", cls=TableOption, metavar="DIR", shell_complete=candidates.folders,
    help="create: where it lies, and its forks",
)  # fmt: skip
def baseline_verb(
    output: Output, action: str, name: tuple[str, ...], source: tuple[str, ...], pool: str | None, **others: Any
) -> int:
    """Do one of them."""
    given = origins.Given(**others)
    if action != "create" and (source or pool or given.named()):
        option = "--from" if source else given.named() or "--pool"
        raise _usage(f"{option} is for create", "hostfork baseline create NAME --from PATH")
    if action == "list":
        if name:
            raise _usage("baseline list takes no name", "hostfork baseline show NAME")
        return _list(output)
    if action == "verify":
        from hostfork.cli.verifying import verify

        return verify(output, name)
    if not name or (action != "remove" and len(name) > 1):
        raise _usage(f"baseline {action} takes {'names' if action == 'remove' else 'one name'}", _EXAMPLES[action])
    if action == "create":
        return _create(output, name[0], source, pool, given)
    return {"refresh": _refresh, "show": _show, "remove": _remove}[action](output, name)


_EXAMPLES = {
    "create": "hostfork baseline create NAME --from PATH",
    "refresh": "hostfork baseline refresh NAME",
    "show": "hostfork baseline list",
    "remove": "hostfork baseline list",
}


def _usage(message: str, hint: str) -> PolicyError:
    return PolicyError(Code.POLICY_USAGE, message, place="baseline", step="options", hint=hint)


def _create(output: Output, name: str, source: tuple[str, ...], pool: str | None, given: origins.Given) -> int:
    origin = given.origin()
    if origin is not None:
        if source:
            hint = f"hostfork baseline create {name} --from PATH"
            raise _usage(f"--from and {given.named()} are two baselines", hint)
        with _Shown(output) as told:
            made = origins.create(name, origin, given, pool, told)
        return _tell_made(output, made, "kept")
    if not source:
        raise _usage("baseline create needs what it is made of", f"hostfork baseline create {name} --from PATH")
    with _Shown(output) as told:
        made = api.create_baseline(
            name, [absolute(path) for path in source], None if pool is None else absolute(pool), told
        )
    return _tell_made(output, made, "kept")


def _refresh(output: Output, names: tuple[str, ...]) -> int:
    with _Shown(output) as told:
        made = api.refresh_baseline(names[0], told)
    return _tell_made(output, made, "is up to date")


def _tell_made(output: Output, made: api.MadeBaseline, done: str) -> int:
    if output.json:
        from hostfork.cli import documents

        output.document(documents.answer({
            "baseline": _document(made.baseline), "files_copied": made.files, "bytes_copied": made.bytes,
            "seconds": round(made.seconds, 3), "left_out": documents.words(made.left_out),
            "started_from": documents.text(made.started_from) or None,
        }))  # fmt: skip
        return 0
    what = f"{plural(made.files, 'file')}, {size(made.bytes)} copied" if made.files else "nothing had changed"
    if set(api.baseline_stored(made.baseline)) == {"snapshot"}:
        what = "a snapshot, nothing copied"
    output.lines([f"{harmless(made.baseline.name)}  {done}   {what}", *origins.told(made)])
    return 0


def _list(output: Output) -> int:
    found = api.baselines()
    if output.json:
        from hostfork.cli import documents

        output.document(documents.answer({"baselines": [_document(one) for one in found]}))
        return 0
    if not found:
        output.lines(["no baselines: hostfork baseline create NAME --from PATH"])
        return 0
    output.lines(table([_HEAD, *(_row(one, output) for one in found)], look=output.out))
    return 0


_STATES = {
    "lost": "lost: its storage is gone",
    "damaged": "damaged: `baseline verify` names the paths",
    "kept": "kept until it is removed",
}


def _state(one: api.Baseline) -> str:
    return "lost" if one.lost else "damaged" if one.damaged else "kept"


def _row(one: api.Baseline, output: Output) -> tuple[str, ...]:
    paths = [output.out.path(tree.path) if tree.path else "-" for tree in one.trees]
    more = f" +{len(paths) - 1}" if len(paths) > 1 else ""
    return (
        harmless(one.name), _state(one), age(max(0.0, time.time() - one.refreshed)),
        str(len(api.baseline_users(one))), size(api.baseline_usage(one).bytes), (paths[0] if paths else "-") + more,
    )  # fmt: skip


def _show(output: Output, names: tuple[str, ...]) -> int:
    one = api.baseline(names[0])
    if output.json:
        from hostfork.cli import documents

        output.document(documents.answer({"baseline": _document(one)}))
        return 0
    users = api.baseline_users(one)
    lines = [
        f"{'name':<10}  {harmless(one.name)}",
        f"{'state':<10}  {_STATES[_state(one)]}",
        f"{'made':<10}  {age(max(0.0, time.time() - one.created))} ago",
        f"{'refreshed':<10}  {age(max(0.0, time.time() - one.refreshed))} ago",
        *([] if one.origin.kind is api.OriginKind.FOLDERS else [f"{'made of':<10}  {origins.described(one.origin)}"]),
        *(f"{'folder':<10}  {output.out.path(tree.path)}" for tree in one.trees if tree.path),
        f"{'pool':<10}  {output.out.path(one.pool)}",
        f"{'stored':<10}  {', '.join(dict.fromkeys(how or 'gone' for how in api.baseline_stored(one)))}",
        f"{'space':<10}  {size(api.baseline_usage(one).bytes)}",
        f"{'forks':<10}  {', '.join(map(harmless, users)) or 'none'}",
    ]
    output.lines(lines)
    return 0


def _remove(output: Output, names: tuple[str, ...]) -> int:
    """Each one; what keeps one of them is told as an error, when the others are gone."""
    gone: list[str] = []
    failed: list[HostforkError] = []
    for name in names:
        try:
            gone.append(api.remove_baseline(name).name)
        except HostforkError as error:
            failed.append(error)
    if output.json and not failed:
        from hostfork.cli import documents

        output.document(documents.answer({"removed": documents.words(gone)}))
    elif not output.json:
        output.lines(f"{harmless(name)}  removed" for name in gone)
    if failed:
        raise failed[0]
    return 0


def _document(one: api.Baseline) -> dict[str, Any]:
    from hostfork.cli.documents import exact, moment, text

    usage = api.baseline_usage(one)
    return {
        "name": text(one.name),
        "state": _state(one),
        "created": moment(one.created),
        "refreshed": moment(one.refreshed),
        **exact("pool", one.pool),
        "origin": one.origin.kind.value,
        **origins.document(one.origin),
        "trees": [
            {"line": text(tree.line), **exact("path", tree.path), "stored": how}
            for tree, how in zip(one.trees, api.baseline_stored(one), strict=True)
        ],
        "forks": list(api.baseline_users(one)),
        "space": {"bytes": usage.bytes, "inodes": usage.inodes},
    }


class _Shown:
    """How far it is, on a terminal."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._line: Any = None

    def __enter__(self) -> Callable[[str, int, int, int | None, int | None], None] | None:
        if self._output.quiet or not os.isatty(2):
            return None
        from hostfork.cli.telling import ProgressLine

        self._line = ProgressLine(self._output, time.monotonic)
        return self._told

    def _told(self, path: str, files: int, done: int, files_total: int | None, bytes_total: int | None) -> None:
        self._line.show(Progress(path, files, done, files_total, bytes_total, retained=True))

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.clear()
