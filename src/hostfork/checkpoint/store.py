"""The checkpoints of one pool: their manifests beside the objects, what is damaged, and what nobody needs any more.

    POOL/checkpoints/lock            a shared flock while one is made or read, an exclusive one while gc removes
    POOL/checkpoints/objects/        see `objects`
    POOL/checkpoints/trees/ID/manifest       the bytes whose BLAKE3 the id is
                              changes        the changeset against the fork's base
    POOL/checkpoints/trees/new-…     one that is being written

Which of them are wanted, the lists of the forks say. A checkpoint is published when its fork's list names it; all that
it needs is on disk before.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum

from hostfork.checkpoint import boundary
from hostfork.checkpoint.boundary import Boundary
from hostfork.checkpoint.objects import FOLDER, NEW, Objects, as_checkpoint_error, sync_folder
from hostfork.checkpoint.tree import TreeManifest
from hostfork.collect.changeset import Changeset
from hostfork.collect.digest import Digester
from hostfork.collect.store import read_changeset, write_changeset
from hostfork.errors import CheckpointError, Code, CollectError
from hostfork.values import frozen

VIEW = "view-"
"""What trees begin with that are made to look at a checkpoint; they are gone when that lock is free."""
_MANIFEST, _CHANGES = "manifest", "changes"
Told = Callable[[int, int], None]
"""Told now and then: files and bytes read."""


class Fault(Enum):
    """How a piece of a checkpoint is not what it was."""

    CONTENT = "content"
    MISSING = "missing"
    UNREADABLE = "unreadable"


@frozen
class Damaged:
    """One object or manifest that is damaged. `checkpoints` need it; `path` is where it lies or should."""

    path: str
    fault: Fault
    checkpoints: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Absolute paths, as the command saw them, the first ten."""


@frozen
class Removed:
    """What gc removed. `busy`: nothing, since a checkpoint was being made or read."""

    trees: int = 0
    objects: int = 0
    bytes: int = 0
    busy: bool = False


class Checkpoints:
    """The checkpoints of one pool."""

    def __init__(self, pool: str) -> None:
        self.folder = os.path.join(pool, FOLDER)
        self.objects = Objects(pool)
        self._trees = os.path.join(self.folder, "trees")

    @property
    def exists(self) -> bool:
        """Whether there are any in the pool."""
        return os.path.isdir(self.folder)

    @contextlib.contextmanager
    def held(self, *, alone: bool = False) -> Iterator[bool]:
        """Keep what is there. `alone`: keep everybody else out; False where somebody is at it."""
        try:
            os.makedirs(self._trees, 0o700, exist_ok=True)
            opened = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise as_checkpoint_error("the pool's checkpoints cannot be used", self.folder, error) from error
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            fcntl.flock(opened, fcntl.LOCK_UN)
            os.close(opened)

    def put(self, manifest: TreeManifest, changes: Changeset) -> str:
        """Publish a manifest whose objects are there; gives the id. It is on disk when this returns."""
        content = manifest.dump()
        name = Digester(threads=False).text(content).hex()
        place = os.path.join(self._trees, name)
        if self._is_whole(place):
            return name
        fresh = os.path.join(self._trees, f"{NEW}{os.getpid()}-{os.urandom(4).hex()}")
        try:
            os.mkdir(fresh, 0o700)
            with open(os.path.join(fresh, _MANIFEST), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            write_changeset(os.path.join(fresh, _CHANGES), changes)
            sync_folder(fresh)
            boundary.passed(Boundary.TREE_WRITTEN)
            try:
                os.rename(fresh, place)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                _remove_folder(fresh)  # another process made the same
            sync_folder(self._trees)
        except OSError as error:
            with contextlib.suppress(OSError):
                _remove_folder(fresh)
            raise as_checkpoint_error("the checkpoint cannot be written", self._trees, error) from error
        boundary.passed(Boundary.TREE_PUBLISHED)
        return name

    def _is_whole(self, place: str) -> bool:
        return all(os.path.exists(os.path.join(place, name)) for name in (_MANIFEST, _CHANGES))

    def manifest(self, name: str) -> TreeManifest:
        """The manifest with that id. Raises CheckpointError `checkpoint.damaged`."""
        path = os.path.join(self._trees, name, _MANIFEST)
        try:
            with open(path, "rb") as file:
                content = file.read()
            if Digester(threads=False).text(content).hex() != name:
                raise ValueError("its digest is another one")
            return TreeManifest.parse(content)
        except (OSError, ValueError) as error:
            raise _damaged(name, path, error) from error

    def changes(self, name: str) -> Changeset:
        """The changeset of that checkpoint against its fork's base. Raises CheckpointError `checkpoint.damaged`."""
        path = os.path.join(self._trees, name, _CHANGES)
        try:
            return read_changeset(path)
        except CollectError as error:
            raise _damaged(name, path, error) from error

    def verify(self, wanted: Iterable[str], told: Told | None = None) -> tuple[int, int, tuple[Damaged, ...]]:
        """Read all that these checkpoints are made of. Objects and bytes read, and what is damaged or missing."""
        found: list[Damaged] = []
        users: dict[bytes, list[str]] = {}
        files: dict[bytes, list[str]] = {}
        for name in wanted:
            try:
                manifest = self.manifest(name)
                self.changes(name)
            except CheckpointError as error:
                lost = error.errno == errno.ENOENT
                found.append(Damaged(error.path or "", Fault.MISSING if lost else Fault.CONTENT, (name,)))
                continue
            for tree in manifest.trees:
                for row in tree.rows:
                    if row.digest is not None:
                        _note(users.setdefault(row.digest, []), name, None)
                        _note(files.setdefault(row.digest, []), os.path.join(tree.path, row.path).rstrip("/"), 10)
        digester, size = Digester(threads=True), 0
        for number, digest in enumerate(sorted(users), 1):
            fault, read = self._fault(digester, digest)
            size += read
            if fault is not None:
                found.append(Damaged(self.objects.path(digest), fault, tuple(users[digest]), tuple(files[digest])))
            if told is not None:
                told(number, size)
        return len(users), size, tuple(found)

    def _fault(self, digester: Digester, digest: bytes) -> tuple[Fault | None, int]:
        try:
            file = os.open(self.objects.path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            return (Fault.MISSING if error.errno == errno.ENOENT else Fault.UNREADABLE), 0
        try:
            size = os.fstat(file).st_size
            return (None if digester.content(file, size) == digest else Fault.CONTENT), size
        except OSError:
            return Fault.UNREADABLE, 0
        finally:
            os.close(file)

    @contextlib.contextmanager
    def view(self) -> Iterator[str]:
        """A new folder of this process for trees that are looked at; it goes at the end. The pool must be held.

        One that a killed process left goes with the next `gc`.
        """
        name = f"{VIEW}{os.getpid()}-{os.urandom(4).hex()}"
        path = os.path.join(self.folder, name)
        try:
            os.mkdir(path, 0o700)
        except OSError as error:
            raise as_checkpoint_error("what a checkpoint held cannot be made", path, error) from error
        try:
            yield path
        finally:
            _remove_view(self.folder, name)

    def gc(self, wanted: Callable[[], Collection[str]]) -> Removed:
        """Remove what no wanted checkpoint needs, and what was begun and left. `wanted` is asked once all hold still.

        A checkpoint whose manifest is damaged keeps every object. Raises CheckpointError.
        """
        if not self.exists:
            return Removed()
        with self.held(alone=True) as free:
            if not free:
                return Removed(busy=True)
            try:
                return self._collected(frozenset(wanted()))
            except OSError as error:
                raise as_checkpoint_error("checkpoints that nobody needs could not be removed", self.folder,
                                          error) from error  # fmt: skip

    def _collected(self, wanted: frozenset[str]) -> Removed:
        trees = objects = size = 0
        needed: set[str] = set()
        whole = True
        for name in os.listdir(self.folder):
            if name.startswith(VIEW):
                _remove_view(self.folder, name)
        for name in os.listdir(self._trees):
            if name in wanted:
                try:
                    needed.update(digest.hex() for digest in self.manifest(name).digests())
                except CheckpointError:
                    whole = False
            else:
                _remove_folder(os.path.join(self._trees, name))
                trees += not name.startswith(NEW)
        for folder, name in self.objects.all():
            if name not in needed and (whole or name.startswith(NEW)):
                path = os.path.join(folder, name)
                size += os.lstat(path).st_blocks * 512
                os.unlink(path)
                objects += 1
        return Removed(trees, objects, size)

    def space(self) -> int:
        """What all of it takes, in bytes; what is still shared with forks counts too."""
        total = 0
        for folder, name in self.objects.all():
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._trees):
                for file in (_MANIFEST, _CHANGES):
                    with contextlib.suppress(FileNotFoundError):
                        total += os.lstat(os.path.join(self._trees, name, file)).st_blocks * 512
        return total


def _note(into: list[str], value: str, most: int | None) -> None:
    if (not into or into[-1] != value) and (most is None or len(into) < most):
        into.append(value)


def _damaged(name: str, path: str, error: Exception) -> CheckpointError:
    number = getattr(error, "errno", None)
    return CheckpointError(
        Code.CHECKPOINT_DAMAGED, f"the checkpoint {name[:12]} is not what was written", step="checkpoint", path=path,
        errno=number, details=(f"{path} cannot be read" if number else f"{path}: {error}",),
        hint="hostfork checkpoints --verify tells what is damaged",
    )  # fmt: skip


def _remove_view(folder: str, name: str) -> None:
    from hostfork.collect.copying import remove_tree

    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(opened, name)
    finally:
        os.close(opened)


def _remove_folder(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
