"""What an apply or undo gave, for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hostfork.apply.values import Applied, Conflict, ConflictKind, LeftOut, OnConflict, Undone
from hostfork.cli.documents import SCHEMA, counts, exact, moment, text, words
from hostfork.cli.look import Look, columns, counts_in_words, harmless, number, pad, plural, shorten
from hostfork.cli.output import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]

_SHOWN = 8
_DAY = 86400.0
_LEFT_OUT = {LeftOut.DEVICE: "device", LeftOut.SOCKET: "socket", LeftOut.SET_UID: "without its set-uid bit"}


def short(number: str) -> str:
    """An apply's id as people see it; a beginning is enough."""
    return number[:12]


def question_lines(result: Applied, look: Look) -> list[str]:
    """What is about to change on the host."""
    lines = [f"{harmless(result.fork)}  {counts_in_words(result.counts())}"]
    named = [look.path(change.path, 60) for change in result.changes.changes[:_SHOWN]]
    lines += [f"  {path}" for path in named]
    if len(result.changes.changes) > _SHOWN:
        lines.append(f"  and {plural(len(result.changes.changes) - _SHOWN, 'more path')}")
    lines += [f"{look.path(path)}: {how.value}" for path, how in result.resolved[:_SHOWN]]
    return lines


def applied_lines(result: Applied, dry_run: bool, look: Look) -> list[str]:
    """What reached the host, and how it is taken back."""
    name = harmless(result.fork)
    if not result.changes.changes:
        if result.before:
            return [f"{name} is applied already, since {local(result.before)}; nothing is left to do"]
        equal = f": {plural(result.equal, 'change')} of {name} are there already" if result.equal else ""
        return [f"nothing to apply{equal}"]
    said = counts_in_words(result.counts())
    equal = f", {number(result.equal)} there already" if result.equal else ""
    if dry_run:
        return [f"would apply {name}: {said}{equal}", *(f"  {look.path(c.path)}" for c in result.changes.changes)]
    return [f"applied {name}: {said}{equal}   hostfork undo {short(result.id or '')}"]


def stays_lines(result: Applied, look: Look) -> list[str]:
    """What did not reach the host."""
    lines = []
    if result.ignored:
        stay = "1 change stays" if result.ignored == 1 else f"{number(result.ignored)} changes stay"
        lines.append(f"{PREFIX}{stay} out, ignored by the project     --ignored takes them")
    if result.left_out:
        lines.append(f"{PREFIX}left out: devices, sockets, set-uid bits     --special takes them")
        lines += [f"  {look.path(path)}  {_LEFT_OUT[why]}" for path, why in result.left_out[:_SHOWN]]
        if len(result.left_out) > _SHOWN:
            lines.append(f"  and {plural(len(result.left_out) - _SHOWN, 'more path')}; --json lists them")
    taken = {OnConflict.FORK: "the fork's side", OnConflict.HOST: "stays the host's", OnConflict.MERGE: "both edits"}
    lines += [f"{PREFIX}{look.path(path)}: {taken[how]}" for path, how in result.resolved[:_SHOWN]]
    if len(result.resolved) > _SHOWN:
        lines.append(f"  and {plural(len(result.resolved) - _SHOWN, 'more path')}; --json lists them")
    return lines


def conflict_lines(result: Applied, look: Look, asked: Sequence[str]) -> list[str]:
    """Every conflict with what each side did, and what helps."""
    lines = []
    name = harmless(result.fork)
    if result.conflicts:
        total = plural(result.total, "change")
        meets = "meets a change" if len(result.conflicts) == 1 else "meet changes"
        lines.append(f"{PREFIX}{number(len(result.conflicts))} of {total} {meets} of the host; nothing was applied")
        lines += _rows(result.conflicts, look)
        lines.append(f"  {_remedy(result, name, asked)}")
    if result.active:
        are = "is" if len(result.active) == 1 else "are"
        lines.append(
            f"{PREFIX}{plural(len(result.active), 'change')} {are} run by your host by itself; nothing was applied"
        )
        lines += [f"  {look.path(path)}" for path in result.active]
        lines.append(f"  hostfork apply {name} --allow-active · or by path: hostfork apply {name} PATH")
    return lines


def _remedy(result: Applied, name: str, asked: Sequence[str]) -> str:
    kinds = {conflict.kind for conflict in result.conflicts}
    if kinds == {ConflictKind.MOVED}:
        return f"hostfork apply {name} judges anew"
    merge = "merge · … fork" if any(map(_can_merge, result.conflicts)) else "fork"
    return f"hostfork apply {name} --on-conflict {merge} · … host" + (
        "" if asked else f" · or by path: hostfork apply {name} PATH"
    )


def _can_merge(conflict: Conflict) -> bool:
    """Whether a merge may help: both sides are text, and what the fork began with can be read."""
    known = conflict.fork_lines is not None and conflict.host_lines is not None
    return known and conflict.kind in (ConflictKind.EDITED, ConflictKind.CREATED)


def _rows(conflicts: Sequence[Conflict], look: Look) -> list[str]:
    """A line for each: path, and what was done to it."""
    widest = None if look.width is None else max(20, look.width - 54)
    rows = [(shorten(look.path(one.path), widest), *_sides(one, look)) for one in conflicts]
    first = min(max(columns(row[0]) for row in rows), widest or 60)
    second, third = (max(columns(row[place]) for row in rows) for place in (1, 2))
    return [
        f"  {pad(path, first)}   {pad(one, second)}   {pad(two, third)}   {three}".rstrip()
        for path, one, two, three in rows
    ]


def _sides(one: Conflict, look: Look) -> tuple[str, str, str]:
    """`both edited`, `fork 3 + 1 -`, `host 9 + 0 -, 14:02`."""
    when = "" if one.host_time is None else f", {clock(one.host_time)}"
    if one.kind is ConflictKind.MOVED:
        return one.host, "", ""
    if one.kind in (ConflictKind.EDITED, ConflictKind.CREATED) and one.fork != "applied":
        did = "both edited" if one.kind is ConflictKind.EDITED else "both created"
        host = f"{_lines('host', one.host_lines)}{when}".lstrip(", ")
        if not _can_merge(one):
            host += "   no merge: no text, or what it was is not kept"
        return did, _lines("fork", one.fork_lines), host
    host = f"host {one.host}{when}"
    if one.kind is ConflictKind.HARD_LINK:
        return "hard-link", f"fork {one.fork}", "another name of the file lies outside"
    if one.other is not None:
        host += f": {look.path(one.other)}"
    if one.kind is ConflictKind.BASE_GONE:
        return "base-gone", f"fork {one.fork}", host
    return f"fork {one.fork}", host, ""


def _lines(side: str, pair: tuple[int, int] | None) -> str:
    return side if pair is None else f"{side} {number(pair[0])} + {number(pair[1])} -"


def local(when: str) -> str:
    """A moment of a record in this machine's time."""
    from calendar import timegm

    seconds = timegm(time.strptime(when, "%Y-%m-%dT%H:%M:%SZ"))
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def clock(seconds: float) -> str:
    """When, for people: the time of today, else the day."""
    local = time.localtime(seconds)
    return time.strftime("%H:%M" if 0 <= time.time() - seconds < _DAY / 2 else "%Y-%m-%d %H:%M", local)


def undone_lines(result: Undone, dry_run: bool, look: Look) -> list[str]:
    """What was taken back."""
    where = ", ".join(look.path(path) for path in result.paths)
    said = f"{short(result.id)} of {harmless(result.fork)}: {counts_in_words(result.counts)} in {where}"
    return [f"would undo {said}" if dry_run else f"undone {said}"]


def undo_conflict_lines(result: Undone, look: Look) -> list[str]:
    """What somebody changed since."""
    rows = [(look.path(one.path), f"host {one.host}", one.host_time) for one in result.conflicts]
    room = max(columns(row[0]) for row in rows)
    was = "1 path was" if len(rows) == 1 else f"{number(len(rows))} paths were"
    return [
        f"{PREFIX}{was} changed since {harmless(result.fork)} was applied; nothing was undone",
        *(f"  {pad(path, room)}   {did}{'' if when is None else ' ' + clock(when)}" for path, did, when in rows),
        "  put them back as they were applied, then undo again",
    ]


def applied_document(result: Applied, dry_run: bool) -> Document:
    """An apply as JSON."""
    from hostfork import api

    return {
        "schema": SCHEMA,
        "fork": result.fork,
        "apply": result.id,
        "written": result.written,
        "dry_run": dry_run,
        "counts": counts(result.counts()),
        "total": result.total,
        "equal": result.equal,
        "ignored": result.ignored,
        "entries": api.entries(result.changes),
        "conflicts": [_conflict(one) for one in result.conflicts],
        "active": [exact("path", path) for path in result.active],
        "left_out": [{**exact("path", path), "why": why.value} for path, why in result.left_out],
        "resolved": [{**exact("path", path), "taken": how.value} for path, how in result.resolved],
        "applied_before": result.before,
        "notices": words(result.notices),
    }


def undone_document(result: Undone, dry_run: bool) -> Document:
    """An undo as JSON."""
    return {
        "schema": SCHEMA,
        "apply": result.id,
        "fork": text(result.fork),
        "written": result.written,
        "dry_run": dry_run,
        "counts": counts(result.counts),
        "paths": [exact("path", path) for path in result.paths],
        "conflicts": [_conflict(one) for one in result.conflicts],
        "notices": words(result.notices),
    }


def _conflict(one: Conflict) -> Document:
    return {
        **exact("path", one.path),
        "kind": one.kind.value,
        "fork": one.fork,
        "host": one.host,
        "fork_lines": None if one.fork_lines is None else list(one.fork_lines),
        "host_lines": None if one.host_lines is None else list(one.host_lines),
        "host_time": None if one.host_time is None else moment(one.host_time),
        **exact("other", one.other),
    }
