"""Private storage that shares its files' blocks with the source until one of them is written (FICLONE).

Independent of the source, taken over a period, each file at one instant. Needs a filesystem that shares blocks (Btrfs,
XFS made with reflink), and the pool on that same one. A file that cannot be cloned fails the mechanism: nothing is
ever copied byte by byte instead.

The base's content is the source, as long as that has not changed. A second clone beside the first would keep it, and
costs nearly as much again: on XFS 7.1 s of processor time for 100,000 files by the fewest calls there are, 4.0 for one
clone, where `cp -a --reflink=always` takes 4.6; and as many inodes again to remove.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from hostfork.errors import StorageError
from hostfork.storage.clone import NOT_CLONED, NOT_SHARED, Cloner, clone
from hostfork.storage.contract import Guarantees, Offer, Refusal, Source, Usage
from hostfork.storage.entry import FOLDER, READ, open_quietly
from hostfork.storage.failures import failed, is_full
from hostfork.storage.filesystem import Filesystem, filesystem_of
from hostfork.storage.replicated import Replicated
from hostfork.storage.tree import open_source, walk
from hostfork.values import replace
from hostfork.vocabulary import Guarantee, Mechanism, StorageKind

_LOOKED = 2000
"""Entries of the source among which the probe looks for a file that it can clone."""
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Reflink(Replicated):
    """The mechanism `reflink`."""

    mechanism = Mechanism.REFLINK
    copier = Cloner

    def probe(self, source: Source, pool: str) -> Offer | Refusal:
        """Clone a file of the source into the pool, and a short look at the source. Nothing is written there."""
        refusal = obstacle(source, pool)
        if refusal is not None:
            return refusal
        found = self.look(source)
        if isinstance(found, Refusal):
            return found
        guarantees = Guarantees(Guarantee.INDEPENDENT)
        return Offer(
            StorageKind.REFLINK,
            guarantees,
            "files share their blocks until one is written",
            0,
            found.files,
            found.unreadable,
        )

    def failure(self, at: str, source: Source, pool: str, error: OSError) -> StorageError:
        """A file that cannot be cloned is named, with the mechanism that can take it."""
        if is_full(error) or error.errno not in NOT_CLONED:
            return super().failure(at, source, pool, error)
        typed = failed(f"{at} cannot be cloned into {pool}", at, error, "prepare")
        typed.details = ("its blocks cannot be shared, and a reflink never copies a file instead",)
        typed.hint = f"--private {source.path}:copy copies it, or leave it out with --shared {at}"
        return typed

    def usage(self, key: str, pool: str) -> Usage:
        """Space, by a walk; what is still shared with the source counts too."""
        return replace(super().usage(key, pool), upper_bound=True)


def _refused(reason: str, error: OSError | None = None) -> Refusal:
    return Refusal(Mechanism.REFLINK, reason, None if error is None else error.errno)


def obstacle(source: Source, pool: str) -> Refusal | None:
    """What rules clones out: one file of the source is tried.

    Where it holds none that is one of the pool's, if that is the same filesystem.
    """
    try:
        found = os.lstat(source.path)
        file, at = _sample(source, found)
    except OSError as error:
        return _refused(f"{source.path} cannot be read", error)
    try:
        if file is None and _filesystem(source.path).number != filesystem_of(pool).number:
            return _elsewhere(source, pool, OSError(errno.EXDEV, ""))
        return _tried(file, at, source, pool)
    except OSError as error:
        return _refused(f"nothing can be made in the pool {pool}", error)
    finally:
        if file is not None:
            os.close(file)


def _sample(source: Source, found: os.stat_result) -> tuple[int | None, str]:
    """An open file with content of the source's own filesystem, and its path."""
    if stat.S_ISREG(found.st_mode):
        return (open_quietly(source.path, READ) if found.st_size else None), source.path
    if not stat.S_ISDIR(found.st_mode):
        return None, source.path
    root = open_quietly(source.path, FOLDER)
    try:
        for number, entry in enumerate(walk(root, open_source, frozenset(source.omit), skip_closed=True)):
            if number >= _LOOKED:
                break
            if stat.S_ISREG(entry.found.st_mode) and entry.found.st_size and entry.found.st_dev == found.st_dev:
                try:
                    return open_quietly(entry.name, READ, entry.folder), os.path.join(source.path, entry.relative)
                except OSError:
                    continue  # gone, closed to this user, or under a lease: there are others
    finally:
        os.close(root)
    return None, source.path


def _tried(file: int | None, at: str, source: Source, pool: str) -> Refusal | None:
    """Clone into a probe in the pool, which goes again. Raises OSError where none can be made."""
    name = f".probe-{os.getpid()}-{time.monotonic_ns()}"
    folder = os.open(pool, FOLDER)
    made: list[int] = []
    try:
        made.append(os.open(name, _MAKE, 0o600, dir_fd=folder))
        if file is None:
            made.append(os.open(f"{name}-from", _MAKE, 0o600, dir_fd=folder))
            os.write(made[1], b"x" * 4096)
        try:
            clone(made[1] if file is None else file, made[0])
        except OSError as error:
            return _answered(error, at, source, pool)
        return None
    finally:
        for opened, probe in zip(made, (name, f"{name}-from"), strict=False):
            os.close(opened)
            os.unlink(probe, dir_fd=folder)
        os.close(folder)


def _answered(error: OSError, at: str, source: Source, pool: str) -> Refusal:
    """What the kernel's answer to the trial means."""
    if error.errno == errno.EXDEV:
        return _elsewhere(source, pool, error)
    if error.errno in NOT_SHARED:
        return _refused(f"{filesystem_of(pool)} does not share blocks", error)
    return _refused(f"{at} cannot be cloned into the pool {pool}", error)


def _elsewhere(source: Source, pool: str, error: OSError) -> Refusal:
    where = f"{filesystem_of(pool)}, not {_filesystem(source.path)}"
    reason = f"the pool {pool} is on another filesystem ({where})"
    return Refusal(Mechanism.REFLINK, reason, error.errno, of_pool=True)


def _filesystem(path: str) -> Filesystem:
    """What an entry lies on; of a symlink its own place counts."""
    return filesystem_of(os.path.dirname(path) if os.path.islink(path) else path)
