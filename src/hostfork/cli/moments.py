"""Checkpoints as tables and as JSON."""

from __future__ import annotations

from hostfork import api
from hostfork.cli.documents import argv, text
from hostfork.cli.look import Look, age, command_in_words, harmless, shorten, table
from hostfork.lifecycle.record import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEAD = ("CHECKPOINT", "AGE", "CHANGES", "ENDED", "COMMAND", "NOTE")


def lines(found: tuple[api.Checkpoint, ...], look: Look) -> list[str]:
    """A line for each, the oldest first."""
    from hostfork.cli.keeping import seconds_since

    rows = [
        (
            one.short,
            age(seconds_since(one.at)),
            str(one.changes),
            _ended(one),
            shorten(harmless(command_in_words(one.command)), 32),
            harmless(one.message),
        )
        for one in found
    ]
    return table([_HEAD, *rows], look=look) if rows else []


def _ended(one: api.Checkpoint) -> str:
    """How the last command ended."""
    if one.running:
        return "running"
    status = one.status
    if status is None or (status.exit is None and status.signal is None):
        return "-"
    return str(status.exit) if status.exit is not None else f"signal {status.signal}"


def document(one: api.Checkpoint) -> dict[str, Any]:
    """One, for programs."""
    return {
        "checkpoint": one.id,
        "fork": one.fork,
        "at": one.at,
        "message": text(one.message),
        **argv(one.command),
        "status": None if one.status is None else _status(one.status),
        "running": one.running,
        "pause_seconds": one.pause,
        "new_files": one.files,
        "new_bytes": one.bytes,
        "changes": one.changes,
        "whole": one.whole,
    }


def _status(status: Status) -> dict[str, Any]:
    return {"exit": status.exit, "signal": status.signal, "timed_out": status.timed_out}
