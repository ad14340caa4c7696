"""The commands in a kept fork: each has a number, and a file in the fork's folder for as long as somebody may ask.

    STATE/forks/NAME/exec.N     JSON: command, owner, its process, its cgroup; how it ended, where it was detached
                     log.N      what a detached one wrote

A number is given once while its file is there. Who is dead is judged by identity, as everywhere.
"""

from __future__ import annotations

import contextlib
import os

from hostfork.errors import Code, ForkError
from hostfork.helper.lean import dumps
from hostfork.lifecycle.record import Status
from hostfork.lifecycle.store import ForkFolder, as_fork_error, plain
from hostfork.values import frozen
from hostfork.workload.identity import ProcessIdentity

_ENTRY, _LOG = "exec.", "log."


@frozen
class Entry:
    """One command in a fork. `process` is None until it exists, `status` until it ended; `detached`: it has a log.

    `cgroup`: its own group's folder, None under a subreaper.
    """

    number: int
    command: tuple[str, ...]
    began: str
    owner: ProcessIdentity
    cgroup: str | None = None
    process: ProcessIdentity | None = None
    keeper: ProcessIdentity | None = None
    detached: bool = False
    status: Status | None = None
    ended: str | None = None

    @property
    def running(self) -> bool:
        """Whether somebody sees to it: its owner, or its keeper, which ends it once the owner is dead."""
        return self.status is None and (self.owner.alive() or (self.keeper is not None and self.keeper.alive()))


def log_file(folder: ForkFolder, number: int) -> str:
    """Where a detached command's output goes."""
    return folder.file(f"{_LOG}{number}")


def new_number(folder: ForkFolder, detached: bool) -> int:
    """A number of its own; a detached command's log is there then. Raises ForkError `fork.state`."""
    number = max((_number(name) or 0 for name in os.listdir(folder.path)), default=0) + 1
    with as_fork_error("a command of a fork cannot be noted", folder.path):
        while True:
            with contextlib.suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(folder.file(f"{_ENTRY}{number}"), flags, 0o600))
                break
            number += 1
        if detached:
            os.close(os.open(log_file(folder, number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    return number


def save(folder: ForkFolder, entry: Entry) -> Entry:
    """Write it down in one step."""
    path = folder.file(f"{_ENTRY}{entry.number}")
    with as_fork_error("a command of a fork cannot be noted", folder.path):
        new = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(new, dumps(plain(entry)).encode("ascii"))
        finally:
            os.close(new)
        os.rename(f"{path}.new", path)
    return entry


def drop(folder: ForkFolder, number: int) -> None:
    """Nobody will ask for it any more."""
    for name in (f"{_ENTRY}{number}", f"{_ENTRY}{number}.new", f"{_LOG}{number}"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder.file(name))


def load(folder: ForkFolder, number: int) -> Entry | None:
    """One by its number; None where it is not there, or has just got its number."""
    import json

    import msgspec

    try:
        with open(folder.file(f"{_ENTRY}{number}"), "rb") as file:
            content = file.read()
        return msgspec.convert(json.loads(content), type=Entry) if content else None
    except (OSError, ValueError):
        return None


def entries(folder: ForkFolder) -> tuple[Entry, ...]:
    """All that are known, in the order of numbers."""
    try:
        numbers = sorted(number for name in os.listdir(folder.path) if (number := _number(name)))
    except OSError:
        return ()
    return tuple(entry for number in numbers if (entry := load(folder, number)) is not None)


def find(folder: ForkFolder, number: int | None, wanted: str) -> Entry:
    """One by its number, else the last that there is. Raises ForkError `fork.not-found`; `wanted`: what of."""
    known = [entry for entry in entries(folder) if number in (None, entry.number)]
    known = [entry for entry in known if wanted != "log" or entry.detached]
    if not known:
        which = "no command" if number is None else f"no command {number}"
        of = " that was detached" if wanted == "log" else ""
        raise ForkError(Code.FORK_NOT_FOUND, f"{folder.name} has {which}{of}", hint=f"hostfork ps {folder.name}")
    return known[-1]


def forget_dead(folder: ForkFolder) -> None:
    """Note how those ended whose owner is dead: nobody saw it; and remove those that nobody will ask for."""
    from hostfork.lifecycle.store import now
    from hostfork.values import replace

    for name in os.listdir(folder.path):
        number = _number(name)
        if number is None:
            continue
        entry = load(folder, number)
        if entry is None or (entry.status is None and not entry.detached and not entry.running):
            drop(folder, number)
        elif entry.status is None and not entry.running:
            save(folder, replace(entry, status=Status(), ended=now()))


def _number(name: str) -> int | None:
    word = name[len(_ENTRY) :] if name.startswith(_ENTRY) else ""
    return int(word) if word.isascii() and word.isdigit() else None
