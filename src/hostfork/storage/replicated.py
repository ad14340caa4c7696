"""Private storage that holds a whole tree of its own, taken entry by entry: what `copy` and `reflink` do alike.

POOL/KIND/KEY/tree       the tree, a folder or a single entry
POOL/KIND/KEY/base       of a branch: what the tree was copied from, kept as its base
POOL/KIND/KEY/reduced    it was reduced to what changed
POOL/KIND/KEY/full       for a moment, while it is made whole again
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from hostfork.errors import Code, StorageError
from hostfork.helper.protocol import Bind
from hostfork.helper.syscalls import RENAME_EXCHANGE, renameat2
from hostfork.storage import flags
from hostfork.storage.contract import Delta, Fill, FullTree, Lost, Prepared, Progress, Refusal, Source, Witness
from hostfork.storage.entry import FOLDER, Copier, open_quietly
from hostfork.storage.failures import failed, is_full, named, no_space, unmade, unreadable, unstable
from hostfork.storage.keys import Keyed, Keys
from hostfork.storage.measure import Estimate, estimate
from hostfork.storage.replicate import Refused, Replica
from hostfork.storage.tree import FolderMovedError, open_own, prune, remove_tree

_TREE, _BASE, _LINKS, _REDUCED, _FULL = "tree", "base", "links", "reduced", "full"


class Replicated(Keyed):
    """A mechanism that takes a tree entry by entry; `copier` says how a file's content is taken."""

    copier: type[Copier] = Copier

    def check(self, source: Source, pool: str) -> None:
        """Refuse by StorageError, before anything is made, what cannot be done."""

    def failure(self, at: str, source: Source, pool: str, error: OSError) -> StorageError:
        """The typed error where `at`, a path of the source, could not be taken."""
        if is_full(error):
            return no_space(source.path, pool, None, error.errno or 0)
        return failed(f"{at} could not be copied into {pool}", at, error, "prepare")

    def look(self, source: Source) -> Estimate | Refusal:
        """A short look at the source: how large it is, and whether this user can read what is there."""
        try:
            found = estimate(source.path, source.omit)
        except OSError as error:
            return Refusal(self.mechanism, f"{source.path} cannot be read", error.errno)
        if found.unreadable and not (source.skip_unreadable and found.unreadable[0]):
            paths = ", ".join(named(source.path, found.unreadable))
            skippable = bool(found.unreadable[0])
            return Refusal(self.mechanism, f"{paths} cannot be read by this user", errno.EACCES, skippable=skippable)
        return found

    def prepare(
        self, key: str, source: Source, pool: str, witness: Witness | None = None, progress: Progress | None = None
    ) -> Prepared:
        """Take the source. Nothing stays when it fails or is interrupted."""
        start = time.monotonic()
        self.check(source, pool)
        refused = unmade(f"{source.path} could not be copied into {pool}", source.path, source.path, pool)
        with Keys(pool, self.mechanism.value).making(key, refused) as new:
            replica = self.take_tree(source, pool, new, witness, progress)
        return Prepared(
            key,
            self.mechanism,
            replica.files,
            replica.bytes,
            time.monotonic() - start,
            tuple(sorted(replica.unwritable)),
            skipped=tuple(sorted(replica.skipped)),
            lost=tuple(Lost(path, what) for path, what in sorted(replica.lost)),
        )

    def branch(self, key: str, of: str, pool: str, fill: Fill, witness: Witness | None = None) -> Prepared:
        """A copy of what the other holds, kept as the base, and one of that; blocks are shared where they can be."""
        start = time.monotonic()
        content = self.content(of, pool)
        refused = unmade(f"no branch of {of} could be made", content.tree, content.tree, pool)
        with Keys(pool, self.mechanism.value).making(key, refused) as new:
            base = os.path.join(new, _BASE)
            copied = 0
            if isinstance(content, FullTree):
                copied = _duplicate(content.tree, new, _BASE, None)
            else:
                fill.write(base)
            copied += _duplicate(base, new, _TREE, witness)
        return Prepared(key, self.mechanism, 0, copied, time.monotonic() - start)

    def mounts(self, key: str, pool: str) -> Bind:
        """The tree itself. Raises StorageError where the key is not whole or was reduced."""
        path = Keys(pool, self.mechanism.value).whole(key)
        if os.path.lexists(os.path.join(path, _REDUCED)):
            raise StorageError(
                Code.STORAGE_FAILED,
                f"private storage {key} holds only what changed and cannot be entered again",
                step="mounts",
                path=path,
                hint="its changes can be read and exported",
            )
        return Bind(os.path.join(path, _TREE))

    def content(self, key: str, pool: str) -> FullTree | Delta:
        """The full tree, or what changed if it was reduced; a single file that did not change is then not there."""
        path = Keys(pool, self.mechanism.value).whole(key)
        tree, base = os.path.join(path, _TREE), os.path.join(path, _BASE)
        origin = base if os.path.lexists(base) else None
        is_reduced = os.path.lexists(os.path.join(path, _REDUCED))
        return Delta(tree, origin) if is_reduced else FullTree(tree, origin=origin)

    def reduce(self, key: str, pool: str, changed: Collection[bytes]) -> None:
        """Remove what is not in `changed` nor above it. From the first moment on `content` is a Delta."""
        path = Keys(pool, self.mechanism.value).whole(key)
        try:
            os.close(os.open(os.path.join(path, _REDUCED), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            folder = os.open(path, FOLDER)
            try:
                _reduce(folder, {os.fsdecode(name) for name in changed})
            finally:
                os.close(folder)
        except OSError as error:
            raise failed(f"private storage {key} could not be reduced to its changes", path, error, "reduce") from error

    def refill(self, key: str, pool: str, write: Callable[[str], object]) -> None:
        """Make a key that was reduced whole again: `write` makes all that it holds at a path that is not there yet.

        At any moment it is the one or the other. Raises StorageError, and what `write` raises; then it is as it was.
        """
        path = Keys(pool, self.mechanism.value).whole(key)
        room = os.open(path, FOLDER)
        try:
            with suppress(FileNotFoundError):
                remove_tree(_FULL, room)
            write(os.path.join(path, _FULL))
            if os.path.lexists(os.path.join(path, _TREE)):
                renameat2(_FULL, _TREE, RENAME_EXCHANGE, old_folder=room, new_folder=room)
            else:  # a single file, which did not change
                os.rename(_FULL, _TREE, src_dir_fd=room, dst_dir_fd=room)
            os.unlink(_REDUCED, dir_fd=room)
            with suppress(FileNotFoundError):
                remove_tree(_FULL, room)
        except OSError as error:
            raise failed(f"private storage {key} could not be made whole", path, error, "refill") from error
        finally:
            os.close(room)

    def take_tree(
        self, source: Source, pool: str, new: str, witness: Witness | None, progress: Progress | None
    ) -> Replica:
        """Make the tree as `tree` in the folder `new`, which is ours. Raises StorageError."""
        room = os.open(new, FOLDER)
        try:
            flags.clear(room)
            os.mkdir(_LINKS, 0o700, dir_fd=room)
            links = os.open(_LINKS, FOLDER, dir_fd=room)
            replica = Replica(source, links, witness, progress, self.copier())
            try:
                _replicate(replica, source, room)
                os.rmdir(_LINKS, dir_fd=room)
            except Refused:
                pass
            except FolderMovedError as error:
                raise unstable(source.path, (replica.at,)) from error
            except OSError as error:
                at = os.path.join(source.path, replica.at) if replica.at else source.path
                raise self.failure(at, source, pool, error) from error
            finally:
                os.close(links)
        finally:
            os.close(room)
        if replica.unreadable:
            raise unreadable(source.path, tuple(sorted(replica.unreadable)))
        if replica.unstable:
            raise unstable(source.path, tuple(sorted(replica.unstable)))
        return replica


def source_error(source: Source, error: OSError) -> StorageError:
    """The source itself cannot be read."""
    return StorageError(
        Code.STORAGE_SOURCE, f"{source.path} cannot be read", step="prepare", path=source.path, errno=error.errno
    )


def _duplicate(tree: str, new: str, name: str, witness: Witness | None) -> int:
    """Copy a tree of the pool as `name` into a key's folder; the bytes. Raises OSError, StorageError."""
    from hostfork.storage.duplicate import duplicate

    room = os.open(new, FOLDER)
    try:
        return duplicate(tree, name, room, room, witness)
    finally:
        os.close(room)


def _replicate(replica: Replica, source: Source, room: int) -> None:
    above, name = os.path.split(source.path)
    try:
        found = os.lstat(source.path)
        opened = open_quietly(source.path if stat.S_ISDIR(found.st_mode) else above, FOLDER)
    except OSError as error:
        raise source_error(source, error) from error
    try:
        if not stat.S_ISDIR(found.st_mode):
            return replica.single(opened, name, room, _TREE)
        replica.folder_as(opened, room, _TREE)
    finally:
        os.close(opened)


def _reduce(folder: int, keep: set[str]) -> None:
    try:
        found = os.stat(_TREE, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        if "" not in keep:
            remove_tree(_TREE, folder)
        return
    root = open_own(_TREE, folder)
    try:
        prune(root, keep)
    finally:
        os.close(root)
