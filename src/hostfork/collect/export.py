"""Writing out what a fork contains: the whole final content, the changes alone, or a tar stream.

A tree is made in a folder beside the destination and renamed at the end: it is there whole or not at all. What is
left out unless `special` asks for it: devices, sockets, set-uid and set-gid bits of files, file capabilities.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from hostfork.collect.changeset import Changeset
from hostfork.collect.copying import TreeCopy, remove_tree
from hostfork.collect.depth import at_any_depth
from hostfork.collect.difference import below, relative_to
from hostfork.collect.final import Entry, FinalWalk
from hostfork.collect.manifest import StatManifest
from hostfork.collect.reader import TreeReader
from hostfork.collect.stack import Base
from hostfork.collect.store import to_json
from hostfork.collect.walk import FOLDER, failure
from hostfork.errors import Code, CollectError
from hostfork.helper.shapes import NamedTuple
from hostfork.vocabulary import ChangeKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_LIST = "changes.json"


@at_any_depth
def export_tree(
    base: Base,
    delta: str,
    changes: Changeset,
    at: str,
    omit: tuple[str, ...],
    destination: str,
    whole: bool,
    manifest: StatManifest | None = None,
    special: bool = False,
    stage: str | None = None,
) -> tuple[str, ...]:
    """Make `destination` the final visible content. A private file comes to lie in it under its own name.

    `whole`: all of it is in `delta`; else the rest comes from `base`, each file checked against `manifest` where there
    is one. `stage`: what the folder beside the destination is called. Returns the relative paths of what was left out
    or not made with all its metadata. Raises CollectError (`collect.destination`, `base.gone`, `collect.failed`); then
    nothing was made.
    """
    with _staged(destination, stage) as opened:
        own = os.fstat(opened)
        walk = FinalWalk(base, delta, changes, at, omit, whole, manifest, (own.st_dev, own.st_ino))
        left_out = _copy(_named(walk, at), opened, special)
        walk.raise_if_gone()
    return (*left_out, *walk.unreadable)


@at_any_depth
def export_changes(
    delta: str, changes: Changeset, at: str, destination: str, special: bool = False, stage: str | None = None
) -> tuple[str, ...]:
    """Make `destination` hold what was created or changed, and `changes.json`, which alone tells of deletions.

    Returns and raises as `export_tree`.
    """
    if any(
        relative_to(at, change.path) == _LIST and change.change is not ChangeKind.DELETED for change in changes.changes
    ):
        raise CollectError(
            Code.COLLECT_DESTINATION,
            f"the fork changed a file {_LIST} of its own, which the list of changes would cover",
            step="export",
            path=os.path.join(destination, _LIST),
            hint="export the whole content, or as a tar stream",
        )
    with _staged(destination, stage) as opened:
        _write_list(opened, changes)
        return _copy(_changed_entries(delta, changes, at), opened, special)


class Part(NamedTuple):
    """One private path of a tar stream: as for `export_tree`; its entries stand below `prefix`."""

    base: Base
    delta: str
    changes: Changeset
    at: str
    omit: tuple[str, ...]
    whole: bool
    manifest: StatManifest | None = None
    prefix: str = ""

    def walk(self) -> FinalWalk:
        return FinalWalk(self.base, self.delta, self.changes, self.at, self.omit, self.whole, self.manifest)


@at_any_depth
def export_tar(parts: Sequence[Part], file: BinaryIO, special: bool = False) -> tuple[str, ...]:
    """Write the final visible content as a tar stream: PAX, names in order, the same bytes for the same content.

    Returns and raises as `export_tree`; `base.gone` is found before the first byte is written.
    """
    from hostfork.collect.tar import TarWriter

    try:
        for part in parts:
            _verify(part)
        writer = TarWriter(file, special)
        left_out: list[str] = []
        for part in parts:
            walk = part.walk()
            for entry in _named(walk, part.at):
                writer.add(entry, below(part.prefix, entry.relative) if entry.relative else part.prefix or ".")
            walk.raise_if_gone()
            left_out += [below(part.prefix, path) for path in walk.unreadable]
        writer.finish()
    except OSError as error:
        raise failure("the tar stream cannot be written", error.filename or "", error, "export") from error
    return (*writer.left_out, *left_out)


def _verify(part: Part) -> None:
    """Walk a base once without writing anything, where a manifest can tell what is gone."""
    if part.manifest is None or part.whole:
        return
    walk = part.walk()
    for _ in walk:
        pass
    walk.raise_if_gone()


def _named(walk: Iterable[Entry], at: str) -> Iterator[Entry]:
    """The entries; where the root is a single file, under that file's own name."""
    for entry in walk:
        single = not entry.relative and entry.mode & 0o170000 != 0o040000
        yield entry._replace(relative=os.path.basename(at)) if single else entry


def _changed_entries(delta: str, changes: Changeset, at: str) -> Iterator[Entry]:
    """What is in the fork's storage for the changes, and the folders above it, each once."""
    given = set()
    with TreeReader(delta, ours=True) as reader:
        # Folder by folder: in the order of bytes `a-b` stands between `a` and `a/x`.
        for change in sorted(changes.changes, key=lambda change: os.fsencode(change.path).split(b"/")):
            if change.change is ChangeKind.DELETED:
                continue
            relative = relative_to(at, change.path)
            for path in (*_folders_above(relative), relative):
                if path in given:
                    continue
                given.add(path)
                place = reader.place(path)
                if place is None:
                    raise FileNotFoundError(errno.ENOENT, "is missing in the fork's storage", below(at, path))
                found = place.stat()
                name = path if path or found.st_mode & 0o170000 == 0o040000 else os.path.basename(at)
                yield Entry(name, place, found, True, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns)


def _folders_above(relative: str) -> Iterator[str]:
    parts = relative.split("/") if relative else []
    for count in range(len(parts)):
        yield "/".join(parts[:count])


def _copy(entries: Iterable[Entry], stage: int, special: bool) -> tuple[str, ...]:
    copy = TreeCopy(stage, special)
    try:
        for entry in entries:
            copy.add(entry)
        copy.finish()
    finally:
        copy.abandon()
    return tuple(copy.left_out)


def _write_list(stage: int, changes: Changeset) -> None:
    import json

    content = json.dumps({"schema": 1, "entries": to_json(changes)}, indent=1) + "\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(_LIST, flags, 0o644, dir_fd=stage), "w", encoding="utf-8") as text:
        text.write(content)


@contextmanager
def _staged(destination: str, stage: str | None) -> Iterator[int]:
    """A new folder beside the destination, which takes the destination's place at the end, or is removed."""
    destination = os.path.abspath(destination)
    parent, name = os.path.split(destination)
    made = _make_parents(parent, destination)
    with _making(destination):
        folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stage = stage or f".hostfork-export-{os.getpid()}-{os.urandom(4).hex()}"
    published = False
    try:
        _refuse_unless_empty(folder, name, destination)
        with _making(destination):
            os.mkdir(stage, 0o700, dir_fd=folder)
            opened = os.open(stage, FOLDER, dir_fd=folder)
            drop_inherited(opened)
        try:
            with _making(destination):
                yield opened
                os.rename(stage, name, src_dir_fd=folder, dst_dir_fd=folder)
                published = True
        finally:
            os.close(opened)
    finally:
        if not published:
            _undo(folder, stage, made)
        os.close(folder)


def drop_inherited(folder: int) -> None:
    """Without the ACLs that a default ACL of the parent gave it, and would give everything in it."""
    for name in ("system.posix_acl_default", "system.posix_acl_access"):
        try:
            os.removexattr(folder, name)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise


@contextmanager
def _making(destination: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        number = error.errno
        sentence = f"{destination} cannot be made"
        if number in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY) and error.filename2 is not None:
            sentence = f"{destination} came into use while the export was written"
        raise CollectError(
            Code.COLLECT_DESTINATION,
            sentence,
            step="export",
            path=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else destination,
            errno=number,
            details=(error.strerror or "",),
            hint="name a new or empty folder with enough room",
        ) from error


def _make_parents(parent: str, destination: str) -> list[str]:
    """Make the folders above the destination; those that were missing, the deepest first."""
    missing: list[str] = []
    while not os.path.lexists(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    made: list[str] = []
    with _making(destination):
        for path in reversed(missing):
            os.mkdir(path)
            made.insert(0, path)
    return made


def _refuse_unless_empty(folder: int, name: str, destination: str) -> None:
    try:
        found = os.open(name, FOLDER, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refused(f"{destination} is not a folder", destination, error.errno) from error
    try:
        if os.listdir(found):
            raise _refused(f"{destination} is not empty", destination, errno.ENOTEMPTY)
    finally:
        os.close(found)


def _refused(sentence: str, destination: str, number: int | None) -> CollectError:
    return CollectError(
        Code.COLLECT_DESTINATION,
        sentence,
        step="export",
        path=destination,
        errno=number,
        hint="name a new or empty folder",
    )


def _undo(folder: int, stage: str, made: list[str]) -> None:
    with suppress(FileNotFoundError):
        remove_tree(folder, stage)
    for path in made:
        os.rmdir(path)
