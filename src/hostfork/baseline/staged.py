"""Generations of trees that hostfork makes itself: a checkout, an unpacked archive, what a fork holds.

    POOL/baseline/LINE/tN/tree      is made there, and is rubbish until a generation names it

The first one is taken as it stands. A later one is compared with the newest generation by content, and what differs is
taken into a layer, so that what is equal is there once and keeps its page cache.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable

from hostfork.baseline import current
from hostfork.baseline.current import Facts, Ready
from hostfork.collect.walk import Place, open_folder
from hostfork.errors import BaselineError, Code, StorageError
from hostfork.helper.syscalls import openat2
from hostfork.storage.contract import Progress, Source
from hostfork.storage.entry import FOLDER
from hostfork.storage.layering import MARKS, is_whiteout
from hostfork.storage.lines import TREE, Generation, Line
from hostfork.storage.tree import Entry, walk

_INSIDE = 0x08 | 0x04  # RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS, openat2(2)
_STAGE = "copy"

Fill = Callable[[str, Generation | None], None]
"""Makes a tree at a path where nothing is yet; told of the newest generation, if there is one."""


def taken(line: Line, fill: Fill, told: Progress | None = None) -> Ready:
    """Make the line's newest generation what `fill` makes. The lock must be held.

    Raises what `fill` raises, StorageError, BaselineError where no overlay could show it; then the line is as it was.
    """
    start = time.monotonic()
    line.settle()
    top = line.top()
    if top is not None and not current.is_whole(top):
        line.drop()
        top = None
    room = line.begin_tree()
    stage = os.path.join(room if top is not None else line.house(room), TREE)
    fill(stage, top)
    ready = None if top is None else _compared(line, top, stage, told)
    if ready is None:
        ready = _as_it_stands(line, room, stage, start)
    line.settle()
    return ready


def _compared(line: Line, top: Generation, stage: str, told: Progress | None) -> Ready | None:
    from hostfork.baseline.refresh import refreshed

    try:
        return refreshed(line, top, Source(stage), told, by_content=True)
    except StorageError as error:
        if error.code is not Code.STORAGE_SOURCE:
            raise
        return None  # closed to its own owner: it can be taken as it stands


def _as_it_stands(line: Line, room: str, stage: str, start: float) -> Ready:
    from hostfork.collect.manifest import StatManifestWriter

    generation = line.begin()
    root = os.open(stage, FOLDER)
    try:
        found, files, size = os.fstat(root), 0, 0
        with StatManifestWriter(generation.file(current.MANIFEST)) as manifest:
            manifest.witness(b"", found, found)
            for entry in walk(root, _opened):
                _check(entry)
                manifest.witness(os.fsencode(entry.relative), entry.found, entry.found)
                files += 1
                size += entry.found.st_size if stat.S_ISREG(entry.found.st_mode) else 0
    finally:
        os.close(root)
    facts = Facts((), ())
    facts.write(generation)
    current.write_young(generation, set())
    made = line.commit((os.path.basename(room),))
    return Ready(made, facts, files, size, time.monotonic() - start)


def _opened(name: str, folder: int) -> int:
    """A folder of the tree, which is ours: one that is closed to its owner too."""
    return open_folder(Place(folder, name), ours=True)


def _check(entry: Entry) -> None:
    """Raise BaselineError where that is overlayfs's own."""
    unfit = is_whiteout(entry.found)
    if not unfit and not stat.S_ISLNK(entry.found.st_mode):
        try:
            names = os.listxattr(f"/proc/self/fd/{entry.folder}/{entry.name}", follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EACCES):
                raise
            names = []
        unfit = any(name.startswith(MARKS) for name in names)
    if unfit:
        raise BaselineError(
            Code.BASELINE_ORIGIN, f"{entry.relative} is overlayfs's own, which no overlay can show", step="baseline",
            path=entry.relative, hint="leave it out: no baseline can hold the layers of a container engine",
        )  # fmt: skip


def copy_of(generation: Generation, tree: str) -> None:
    """Make `tree`, where nothing is yet, a plain tree of what a generation shows. Raises CollectError, OSError."""
    from hostfork.collect.changeset import Changeset
    from hostfork.collect.export import export_tree

    nothing = f"{tree}.nothing"
    os.mkdir(nothing, 0o700)
    export_tree(generation.lowers, nothing, Changeset(()), "/", (), tree, False, special=True, stage=_STAGE)
    os.rmdir(nothing)


def stand_in(tree: str, relative: str, folder: bool) -> None:
    """Make an empty folder, or file, for something that is mounted there, as far as the tree leads there.

    Through no symlink. Raises OSError.
    """
    above, _, name = relative.rpartition("/")
    root = os.open(tree, FOLDER)
    try:
        opened = openat2(root, above or ".", FOLDER, resolve=_INSIDE)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return
    finally:
        os.close(root)
    try:
        if folder:
            os.mkdir(name, 0o755, dir_fd=opened)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=opened))
    except FileExistsError:
        return
    finally:
        os.close(opened)
