"""What was set aside in a pool: what there is, erasing it for as long as a user may wait, and the rest in no hurry.

The rest is erased by a process of its own (`reclaimer`), which nobody waits for and which may be killed at any moment:
what is left waits for the next run there, or for `hostfork recover`. What it could not erase it does not try again.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Collection, Sequence

from hostfork.errors import StorageError
from hostfork.storage.choose import owner_of
from hostfork.storage.contract import KeyOwner, Removal
from hostfork.storage.keys import FAILED, is_aside, key_of
from hostfork.storage.pace import Brief, Pace
from hostfork.values import frozen
from hostfork.vocabulary import StorageKind

ENTRIES, SECONDS, LARGEST = 100, 0.005, 32 << 20
"""What is erased at once: so many entries in any case, as many more as fit into that time, no file larger than that."""
OLD = 1.0
"""Seconds: others erase for a moment too, and what they are at is not left to us yet."""
_LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")


@frozen
class Aside:
    """Something that waits to be erased: POOL/KIND/NAME. Where that failed: an errno, `at` a path below it."""

    pool: str
    kind: StorageKind
    name: str
    number: int | None = None
    at: str = ""

    @property
    def key(self) -> str:
        """What it was the storage of."""
        return key_of(self.name)

    @property
    def path(self) -> str:
        """What could not be erased; else all of it."""
        return os.path.join(self.pool, self.kind.value, self.name, self.at).rstrip("/")

    @property
    def problem(self) -> str | None:
        """Why it could not be erased, as a sentence, and what helps."""
        if self.number is None:
            return None
        return f"{self.path} could not be erased: {os.strerror(self.number)}; {remedy(self.number, self.path)}"


def told(error: StorageError) -> str:
    """Why something could not be erased, as a sentence."""
    at = "".join(f", {line}" for line in error.details)
    path = os.path.join(error.path or "", *(line[3:] for line in error.details if line.startswith("at ")))
    return f"{error.message}{at}: {error.reason()}; {remedy(error.errno or 0, path)}"


def quoted(path: str) -> str:
    """A path as a shell takes it."""
    from shlex import quote

    return quote(path)


def remedy(number: int, path: str) -> str:
    """What helps against what the kernel answered."""
    if number == errno.EBUSY:
        return "end what uses it or is mounted there, then `hostfork recover`"
    if number == errno.EPERM and _is_locked(path):
        undo = f"chattr -ai {quoted(os.path.dirname(path))} {quoted(path)}"
        return f"root made it or its folder immutable or append-only: as root `{undo}`, then `hostfork recover`"
    if number in (errno.EPERM, errno.EACCES):
        return f"others own a part of it: as root `rm -r {quoted(path)}`, then `hostfork recover`"
    if number == errno.EROFS:
        return "`hostfork recover` when that filesystem can be written again"
    return "`hostfork recover` tries again"


def _is_locked(path: str) -> bool:
    """Whether a flag of the entry or of its folder is in the way."""
    from hostfork.storage import flags

    for place in (path, os.path.dirname(path)):
        try:
            opened = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # closed to this user, or no file or folder, which have no flags
        try:
            if flags.read(opened) & flags.LOCKED:
                return True
        finally:
            os.close(opened)
    return False


def asides(pool: str) -> tuple[Aside, ...]:
    """All that is set aside in a pool."""
    found = []
    for kind in StorageKind:
        try:
            names = sorted(filter(is_aside, os.listdir(os.path.join(pool, kind.value))))
        except OSError:
            continue  # nothing of this kind was ever made there
        found += [_looked_up(pool, kind, name) for name in names]
    return tuple(found)


def erase(aside: Aside, pace: Pace | None = None) -> Removal:
    """Erase it. Raises StorageError."""
    return owner_of(aside.kind).erase(aside.name, aside.pool, pace)


def erase_soon(
    pool: str, names: Sequence[tuple[KeyOwner, str]], background: bool = True
) -> tuple[Removal, list[StorageError]]:
    """Erase these as far as a moment goes; a process of its own does the rest, and what others left in the pool.

    RECLAIMING where their space is not all back. Without `background` somebody else does the rest.
    """
    pace, removed, errors = Brief(ENTRIES, SECONDS, LARGEST), Removal.GONE, []
    mine = {name for _, name in names}
    for owner, name in names:
        try:
            if pace.is_over or owner.erase(name, pool, pace) is Removal.RECLAIMING:
                removed = Removal.RECLAIMING
        except StorageError as error:
            errors.append(error)
    # One that is at it looks again before it ends.
    if background and any(_is_left(aside, mine) for aside in asides(pool)) and not is_active(pool):
        start((pool,))
    return removed, errors


def _is_left(aside: Aside, mine: Collection[str]) -> bool:
    """Whether nobody may be erasing it any more: it is of ours, or has been waiting for a while."""
    if aside.number is not None:
        return False
    try:
        return aside.name in mine or time.time() - os.lstat(aside.path).st_ctime > OLD
    except OSError:
        return False


def start(pools: Sequence[str]) -> None:
    """Start the process that erases what is set aside in these pools. Where it cannot be started others will do it."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reclaimer.py")
    start_program("-S", program, *pools)


def start_program(*arguments: str) -> None:
    """Start a program of hostfork's that nobody waits for, by the arguments of an isolated Python. Nothing is raised.

    It has its own session and none of our descriptors, is no child of ours and stands in no folder of anybody's.
    """
    if not sys.executable:
        return
    command = [sys.executable, "-I", "-X", f"utf8={sys.flags.utf8_mode}", *arguments]
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    try:
        # The shell ends at once and leaves it to init: a fork of our own would copy our heap, and stop our threads.
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", 'cd / && exec "$@" &', "sh", *command],
            {name: os.environ[name] for name in _LOCALE if name in os.environ},
            file_actions=[*null, *((os.POSIX_SPAWN_CLOSE, number) for number in _inherited())],
            setsid=True,
            setsigmask=(),
        )
        os.waitpid(pid, 0)
    except OSError:
        return


def is_active(pool: str) -> bool:
    """Whether such a process is at it."""
    import fcntl

    try:
        opened = os.open(pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


def _inherited() -> list[int]:
    """The descriptors that a program which we start would get."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:
            continue  # that of the listing itself
    return found


def _looked_up(pool: str, kind: StorageKind, name: str) -> Aside:
    try:
        with open(os.path.join(pool, kind.value, name, FAILED), "rb") as file:
            number, _, at = file.read(1 << 16).partition(b"\n")
        return Aside(pool, kind, name, int(number), os.fsdecode(at))
    except (OSError, ValueError):  # the usual case; or one that a full disk left empty
        return Aside(pool, kind, name)
