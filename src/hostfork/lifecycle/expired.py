"""The list of what expired: a line for each fork, on disk before it goes, so that nothing goes untold.

STATE/expiry/expired.jsonl     JSON lines, the last few hundred
"""

from __future__ import annotations

import contextlib
import os

from hostfork.errors import HostforkError
from hostfork.helper.lean import dumps
from hostfork.lifecycle.pools import pools
from hostfork.lifecycle.store import Store, as_fork_error, plain
from hostfork.lifecycle.uses import in_words
from hostfork.values import frozen

_FILE = "expired.jsonl"
_LARGEST = 1 << 18
"""Bytes; beyond, the older half goes."""


@frozen
class Expired:
    """One fork that expired, or an automatic baseline. Times are ISO-8601 UTC.

    `reason` is the key of the configuration, `why` a clause. `kind` is `fork` or `baseline`.
    """

    name: str
    at: str
    created: str
    last_use: str
    reason: str
    why: str
    bytes: int | None = None
    changes: int | None = None
    command: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    kind: str = "fork"


def write_down(store: Store, fork: Expired) -> None:
    """Add a fork that is about to go; it is on disk when this returns. One at a time. Raises ForkError."""
    path = os.path.join(store.expiry, _FILE)
    with as_fork_error("the list of expired forks cannot be written", path):
        os.makedirs(store.expiry, 0o700, exist_ok=True)
        _shorten(path)
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            line = dumps(plain(fork)).encode("ascii") + b"\n"
            end = os.fstat(opened).st_size
            if end and os.pread(opened, 1, end - 1) != b"\n":
                line = b"\n" + line  # a full disk took half of the line before
            while line:
                line = line[os.write(opened, line) :]
            os.fsync(opened)
        finally:
            os.close(opened)


def expired(store: Store) -> tuple[Expired, ...]:
    """What expired, the last first. Raises ForkError where the list cannot be read."""
    import json

    import msgspec

    path = os.path.join(store.expiry, _FILE)
    found: dict[tuple[str, str], Expired] = {}
    with as_fork_error("the list of expired forks cannot be read", path):
        try:
            with open(path, "rb") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return ()
    for line in lines:
        with contextlib.suppress(ValueError):  # a torn line
            one = msgspec.convert(json.loads(line), type=Expired)
            found.pop((one.name, one.created), None)  # tried again after a crash
            found[one.name, one.created] = one
    return tuple(one for one in reversed(found.values()) if not _is_there(store, one))


def _is_there(store: Store, one: Expired) -> bool:
    """Whether it was written down and did not go: a crash came between, or somebody used it."""
    if one.kind != "fork":
        from hostfork.lifecycle.unused import automatic

        return any(
            (here.line.name, in_words(here.last_use)) == (one.name, one.last_use)
            for pool in pools(store)
            for here in automatic(pool)
        )
    try:
        with store.open(one.name) as folder:
            return folder.load().created == one.created
    except HostforkError:
        return False


def _shorten(path: str) -> None:
    try:
        if os.stat(path).st_size <= _LARGEST:
            return
    except FileNotFoundError:
        return
    with open(path, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    with open(f"{path}.new", "wb") as file:
        file.writelines(lines[len(lines) // 2 :])
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)
