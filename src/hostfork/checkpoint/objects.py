"""The contents of files, each once for all forks of a pool, under its digest.

    POOL/checkpoints/objects/AB/ABCD…    a plain file, mode 0400, called after the BLAKE3 digest of its bytes
                            /new-…       one that is being made

A file goes in and out by sharing its blocks where the filesystem does that. It is hashed as it lies in the pool, so
that whatever writes to the source meanwhile, what is here is what its name says. It gets that name when it is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

from hostfork.checkpoint import boundary
from hostfork.checkpoint.boundary import Boundary
from hostfork.collect.copying import copy_content
from hostfork.collect.digest import Digester
from hostfork.errors import CheckpointError, Code
from hostfork.helper.syscalls import sync_filesystem

FOLDER = "checkpoints"
NEW = "new-"
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_FEW = 32
"""Up to here one fsync for each file; beyond, one syncfs."""


class Objects:
    """The objects of one pool."""

    def __init__(self, pool: str) -> None:
        self.folder = os.path.join(pool, FOLDER, "objects")
        self._known: dict[str, set[str]] = {}

    def path(self, digest: bytes) -> str:
        """Where the content with that digest lies, if it is there."""
        name = digest.hex()
        return os.path.join(self.folder, name[:2], name)

    def has(self, digest: bytes) -> bool:
        """Whether it was there when its folder was first looked at. Hold the lock of the pool's checkpoints."""
        name = digest.hex()
        if name[:2] not in self._known:
            try:
                self._known[name[:2]] = set(os.listdir(os.path.join(self.folder, name[:2])))
            except FileNotFoundError:
                self._known[name[:2]] = set()
        return name in self._known[name[:2]]

    def open(self, digest: bytes) -> int:
        """A descriptor to read it. Raises CheckpointError `checkpoint.damaged` where it is missing."""
        try:
            return os.open(self.path(digest), _READ)
        except OSError as error:
            raise CheckpointError(
                Code.CHECKPOINT_DAMAGED, f"a file of the checkpoint is missing: {self.path(digest)}", step="object",
                path=self.path(digest), errno=error.errno, hint="hostfork checkpoints --verify tells what is damaged",
            ) from error  # fmt: skip

    def all(self) -> Iterator[tuple[str, str]]:
        """Every file here, what is being made too: its folder and its name."""
        try:
            groups = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return
        for group in groups:
            folder = os.path.join(self.folder, group)
            if os.path.isdir(folder):
                for name in sorted(os.listdir(folder)):
                    yield folder, name
            else:
                yield self.folder, group

    def note(self, digest: bytes) -> None:
        """It is there now."""
        self._known.setdefault(digest.hex()[:2], set()).add(digest.hex())


class Intake:
    """New objects. They are there when the context ends without an error, all on disk."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.new = self.bytes = 0
        self._digester = Digester(threads=True)
        self._staged: list[tuple[str, bytes]] = []
        self._taken: set[bytes] = set()
        self._prefix = f"{NEW}{os.getpid()}-{os.urandom(4).hex()}"

    def take(self, file: int) -> bytes:
        """Take the content of an open file, from its first byte on; gives its digest. Raises OSError."""
        path = os.path.join(self.objects.folder, f"{self._prefix}-{len(self._staged)}")
        fresh = os.open(path, _MAKE, 0o400)
        try:
            copy_content(file, fresh)
            size = os.fstat(fresh).st_size
            os.lseek(fresh, 0, os.SEEK_SET)
            digest = self._digester.content(fresh, size)
            if digest in self._taken or self.objects.has(digest):
                os.unlink(path)
                return digest
            if len(self._staged) < _FEW:
                os.fsync(fresh)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fresh)
        self._staged.append((path, digest))
        self._taken.add(digest)
        self.new += 1
        self.bytes += size
        boundary.passed(Boundary.OBJECT_STAGED)
        return digest

    def text(self, content: bytes) -> bytes:
        """The digest of bytes that are no object."""
        return self._digester.text(content)

    def __enter__(self) -> Intake:
        os.makedirs(self.objects.folder, 0o700, exist_ok=True)
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        if kind is None:
            self._publish()
        for path, _ in self._staged:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _publish(self) -> None:
        if not self._staged:
            return
        if len(self._staged) > _FEW:
            sync_filesystem(self.objects.folder)
        boundary.passed(Boundary.OBJECTS_SYNCED)
        groups = set()
        for path, digest in self._staged:
            place = self.objects.path(digest)
            group = os.path.dirname(place)
            if group not in groups:
                os.makedirs(group, 0o700, exist_ok=True)
                groups.add(group)
            with contextlib.suppress(FileExistsError):  # another fork's checkpoint was quicker
                os.link(path, place, follow_symlinks=False)
            self.objects.note(digest)
            boundary.passed(Boundary.OBJECT_LINKED)
        if len(groups) > _FEW:
            sync_filesystem(self.objects.folder)
        else:
            for folder in (*groups, self.objects.folder):
                sync_folder(folder)


def sync_folder(path: str) -> None:
    """Put the names in a folder on disk."""
    _synced(path, os.fsync)


def _synced(path: str, sync: Callable[[int], None]) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(opened)
    finally:
        os.close(opened)


def as_checkpoint_error(sentence: str, path: str, error: OSError) -> CheckpointError:
    """What the kernel refused, as CheckpointError `checkpoint.failed` or `.no-space`."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    at = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else path
    return CheckpointError(
        Code.CHECKPOINT_NO_SPACE if full else Code.CHECKPOINT_FAILED, sentence, step="checkpoint", path=at,
        errno=error.errno, details=(error.strerror or str(error),),
        hint="hostfork usage shows what takes space" if full else None,
    )  # fmt: skip
