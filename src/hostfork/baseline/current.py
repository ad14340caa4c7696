"""A baseline of a source that is equal to it: taken if there is none, else compared by one walk and brought up to date.

    with current(source, pool, progress) as ready:
        ready.generation        nothing of it changes as long as this lasts, or somebody uses it

What is equal: device, inode, size, mode, mtime and ctime are those at which an entry was taken. A write through a
mapping that was dirty already moves no ctime until the kernel has written it out. So the source's filesystem is synced
before it is taken, and what was written since, or shortly before a later walk took it, is `young`: it is read again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator

from hostfork.errors import Code, StorageError, UnfitError
from hostfork.helper.lean import dumps, loads
from hostfork.helper.syscalls import sync_filesystem
from hostfork.storage.contract import Lost, Progress, Source, Witness
from hostfork.storage.copy import Copy
from hostfork.storage.filesystem import STAMPED, filesystem_of
from hostfork.storage.lines import Generation, Line
from hostfork.storage.lower import UNFIT, LowerCloner, LowerCopier
from hostfork.storage.replicated import source_error
from hostfork.values import frozen
from hostfork.vocabulary import Stored

MANIFEST, DURABLE, DAMAGED = "manifest", "durable", "damaged"
_YOUNG, _FACTS = "young", "facts"


@frozen
class Facts:
    """What is known about a generation besides its manifest.

    `unwritable`: relative paths that the user cannot write on the host, and so not over it. `lost`: what of the source
    it could not take. `stored`: how it was taken. `boot`: the machine's boot in which it was made.
    """

    unwritable: tuple[str, ...]
    lost: tuple[Lost, ...]
    stored: Stored = Stored.COPY
    boot: str = ""

    def write(self, generation: Generation) -> None:
        """Write it into a generation that was begun. Raises OSError."""
        lost = [[one.path, one.what] for one in self.lost]
        text = dumps({
            "unwritable": self.unwritable, "lost": lost, "stored": self.stored.value, "boot": boot_id(),
        })  # fmt: skip
        with open(generation.file(_FACTS), "w", encoding="ascii") as file:
            file.write(text)

    @classmethod
    def read(cls, generation: Generation) -> Facts:
        """Raises OSError, ValueError."""
        with open(generation.file(_FACTS), encoding="ascii") as file:
            found = loads(file.read())
        lost = tuple(Lost(path, tuple(what)) for path, what in found["lost"])
        return cls(tuple(found["unwritable"]), lost, Stored(found["stored"]), found["boot"])


@frozen
class Ready:
    """A generation that is equal to its source. `files` and `bytes` were copied for that."""

    generation: Generation
    facts: Facts
    files: int
    bytes: int
    seconds: float


class LowerCopy(Copy):
    """A copy, or a clone as far as blocks can be shared, that is to be a lower folder."""

    def __init__(self, stored: Stored = Stored.COPY) -> None:
        self.copier = copier_of(stored)

    def check(self, source: Source, pool: str) -> None:
        if self.copier is LowerCopier:
            super().check(source, pool)

    def failure(self, at: str, source: Source, pool: str, error: OSError) -> StorageError:
        if error.errno != UNFIT:
            return super().failure(at, source, pool, error)
        return UnfitError(
            Code.STORAGE_UNSUPPORTED, f"{at} is overlayfs's own, which no overlay can show", step="prepare", path=at,
            details=(f"so there can be no baseline of {source.path}",),
            hint=f"--private {source.path}:copy",
        )  # fmt: skip


def copier_of(stored: Stored) -> type[LowerCopier | LowerCloner]:
    """What takes the files of a tree that was taken so."""
    return LowerCloner if stored is Stored.REFLINK else LowerCopier


@contextlib.contextmanager
def current(
    source: Source, pool: str, progress: Progress | None = None, waiting: Callable[[], None] = lambda: None
) -> Iterator[Ready]:
    """The baseline that `--private` keeps of a source, equal to it. It holds still as long as this lasts.

    `waiting` is told where another process is at it. Raises StorageError as a copy does; UnfitError where there can be
    none.
    """
    line = Line.of(source, pool)
    with locked(line, source, waiting):
        yield made_equal(line, source, progress)


@contextlib.contextmanager
def locked(line: Line, source: Source, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a line, which is made if it is not there. Raises StorageError where it cannot be."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(line.locked(source, waiting))
        except OSError as error:
            raise _unmade(line, source, error) from error
        yield


def made_equal(line: Line, source: Source, progress: Progress | None = None) -> Ready:
    """Make the line's newest generation equal to the source. The lock must be held. Raises StorageError."""
    try:
        return _made_equal(line, source, progress)
    except UnfitError as error:
        if line.is_automatic:
            line.is_unfit(os.path.relpath(error.path or source.path, source.path))
        raise
    except OSError as error:
        raise _unmade(line, source, error) from error


def _unmade(line: Line, source: Source, error: OSError) -> StorageError:
    # One with a name was asked for as such.
    hint = f"--private {source.path}:copy needs none" if line.is_automatic else "--pool DIR makes it in another place"
    return StorageError(
        Code.STORAGE_FAILED, f"the baseline of {source.path} could not be made", step="prepare", path=line.path,
        errno=error.errno, hint=hint,
    )  # fmt: skip


def _made_equal(line: Line, source: Source, progress: Progress | None) -> Ready:
    start = time.monotonic()
    if not os.path.isdir(source.path):
        raise source_error(source, OSError(errno.ENOTDIR if os.path.lexists(source.path) else errno.ENOENT, ""))
    line.settle()
    top = line.top()
    if top is not None and not is_whole(top):
        top = None
    if not line.is_automatic:
        from hostfork.baseline import snapshots

        snapshot = snapshots.taken(line, source, start)
        if snapshot is not None:
            return snapshot
    if top is not None and Facts.read(top).stored is not Stored.SNAPSHOT:
        from hostfork.baseline.refresh import refreshed

        ready = refreshed(line, top, source, progress, by_content=filesystem_of(source.path).kind not in STAMPED)
        if ready is not None:
            return ready
    if line.is_automatic:
        line.drop()  # its space may be needed; one with a name stays what it is until there is another
    return taken(line, source, progress, start)


def is_durable(generation: Generation) -> bool:
    """Whether all of it is surely on disk."""
    return os.path.exists(generation.file(DURABLE))


def is_damaged(generation: Generation) -> bool:
    """Whether it was found not to hold what it held when it was made."""
    return os.path.exists(generation.file(DAMAGED))


def mark_damaged(generation: Generation) -> None:
    """No fork is to start from it any more. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):  # it is gone
        os.close(os.open(generation.file(DAMAGED), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def is_whole(generation: Generation) -> bool:
    """Whether all of it is surely there: it is on disk, or the machine was not started again since it was made."""
    if is_damaged(generation):
        return False
    if is_durable(generation):
        return True
    try:
        return Facts.read(generation).boot == boot_id()
    except (OSError, ValueError, KeyError):
        return False


def taken(line: Line, source: Source, progress: Progress | None, start: float) -> Ready:
    """Take all of the source as the line's newest generation. The lock must be held."""
    from hostfork.collect.manifest import StatManifestWriter
    from hostfork.storage import reflink

    since = time.time_ns()
    try:
        sync_filesystem(source.path)
    except OSError as error:
        raise source_error(source, error) from error
    generation, tree, young = line.begin(), line.begin_tree(), set[bytes]()
    stored = Stored.REFLINK if reflink.obstacle(source, line.pool) is None else Stored.COPY
    storage = LowerCopy(stored)
    storage.check(source, line.pool)
    into = line.house(tree)
    with StatManifestWriter(generation.file(MANIFEST)) as manifest:
        replica = storage.take_tree(source, line.pool, into, _noting(manifest.witness, since, young), progress)
    lost = tuple(Lost(path, what) for path, what in sorted(replica.lost))
    facts = Facts(tuple(sorted(replica.unwritable)), lost, stored)
    facts.write(generation)
    write_young(generation, young)
    made = line.commit((os.path.basename(tree),))
    line.settle()
    return Ready(made, facts, replica.files, replica.bytes, time.monotonic() - start)


def _noting(witness: Witness, since: int, young: set[bytes]) -> Witness:
    """Note also which entries were written since the source was synced."""

    def noted(relative: bytes, source: os.stat_result, copy: os.stat_result) -> None:
        witness(relative, source, copy)
        if stat.S_ISREG(source.st_mode) and source.st_ctime_ns >= since - _TICK:
            young.add(relative)

    return noted


_TICK = 10_000_000
"""Nanoseconds. Kernels before 6.13 stamp with the last timer tick, 100 Hz at the coarsest."""


def read_young(generation: Generation) -> set[bytes]:
    """The relative paths of what is young in it. Raises OSError."""
    with open(generation.file(_YOUNG), "rb") as file:
        return set(file.read().split(b"\0")[:-1])


def write_young(generation: Generation, young: set[bytes]) -> None:
    """Write down what is young in it. Raises OSError."""
    fresh = generation.file(f"{_YOUNG}.next")
    with open(fresh, "wb") as file:
        file.write(b"".join(name + b"\0" for name in young))
    os.rename(fresh, generation.file(_YOUNG))


def boot_id() -> str:
    """The machine's boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
