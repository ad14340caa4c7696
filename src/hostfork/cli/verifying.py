"""`hostfork baseline verify [NAME]…`: whether baselines hold what they held when they were made."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from hostfork import api
from hostfork.cli.look import duration, harmless, plural, size, table
from hostfork.cli.output import INDENT, PREFIX, Output
from hostfork.errors import Code, HostforkError
from hostfork.lifecycle.events import Progress
from hostfork.vocabulary import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def verify(output: Output, names: Sequence[str]) -> int:
    """Each one, all where none is named: 1 where one is damaged. What keeps one from being read is told at the end."""
    found: list[api.VerifiedBaseline] = []
    failed: list[HostforkError] = []
    for name in names or api.verifiable_baselines():
        try:
            one = _verified(output, name)
        except HostforkError as error:
            failed.append(error)
            continue
        found.append(one)
        if not output.json:
            _tell(output, one)
    if output.json and not failed:
        from hostfork.cli import documents

        output.document(documents.answer({"baselines": [_document(one) for one in found]}))
    elif not output.json and not found and not failed:
        output.lines(["no baselines: hostfork baseline create NAME --from PATH"])
    if failed:
        raise failed[0]
    return int(any(one.verdict is Verdict.DAMAGED for one in found))


def _verified(output: Output, name: str) -> api.VerifiedBaseline:
    if output.quiet or not os.isatty(2):
        return api.verify_baseline(name)
    from hostfork.cli.telling import ProgressLine

    line = ProgressLine(output, time.monotonic, advises=False)

    def told(path: str, files: int, done: int, files_total: int | None, bytes_total: int | None) -> None:
        line.show(Progress(path, files, done, files_total, bytes_total, retained=True))

    try:
        return api.verify_baseline(name, told)
    finally:
        line.clear()


def _tell(output: Output, one: api.VerifiedBaseline) -> None:
    facts = f"{plural(one.files, 'file')}, {size(one.bytes)}, {duration(round(one.seconds) or 1)}"
    if one.verdict is Verdict.DAMAGED:
        facts = plural(len(one.damage), "path")
    elif one.verdict is Verdict.RECORDED:
        facts += "; there was nothing to compare with yet, and now there is"
    output.lines([f"{harmless(one.name)}  {one.verdict.value}   {facts}"])
    if one.verdict is not Verdict.DAMAGED:
        return
    rows = [(one.fault.value, output.out.path(one.path), one.detail) for one in one.damage]
    output.lines(f"  {line}" for line in table(rows, look=output.out))
    told = [f"{PREFIX}the baseline {harmless(one.name)} does not hold what it held when it was made", *_remedy(one)]
    if one.forks:
        told.append(f"{INDENT}{', '.join(map(harmless, one.forks))} may show that: it lies under their changes")
    output.complain([*told, f"{INDENT}code {Code.BASELINE_DAMAGED.text} · status 1"])


def _remedy(one: api.VerifiedBaseline) -> list[str]:
    if one.dropped:
        return [f"{INDENT}it is removed; the next run that needs it takes it anew"]
    if one.is_automatic:
        return [f"{INDENT}the next run that needs it takes it anew"]
    return [f"{INDENT}no fork starts from it; hostfork baseline refresh {harmless(one.name)} takes it anew"]


def _document(one: api.VerifiedBaseline) -> dict[str, Any]:
    from hostfork.cli.documents import exact, text, words

    return {
        "name": text(one.name),
        "verdict": one.verdict.value,
        "code": Code.BASELINE_DAMAGED.text if one.verdict is Verdict.DAMAGED else None,
        "files": one.files,
        "bytes": one.bytes,
        "seconds": round(one.seconds, 3),
        "damage": [{**exact("path", bad.path), "fault": bad.fault.value, "detail": bad.detail} for bad in one.damage],
        "forks": words(one.forks),
        "dropped": one.dropped,
    }
