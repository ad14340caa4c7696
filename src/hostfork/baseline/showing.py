"""One walk over the tree that the layers of a generation show together, to the sums of all that is in it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence

from hostfork.baseline.hashing import Alone, Several
from hostfork.baseline.sums import NOTHING, Known, Sum, Sums, identity, summed
from hostfork.collect.depth import at_any_depth, with_room
from hostfork.storage.layering import is_opaque, is_whiteout
from hostfork.storage.tree import Descent

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_TELL, _LARGE = 512, 1 << 24

Told = Callable[[int, int], None]
"""Told now and then: files and bytes done."""


@at_any_depth
def sums_of(
    lowers: Sequence[str], known: Known, processes: int, told: Told | None = None, strict: bool = False
) -> tuple[Sums, dict[bytes, int]]:
    """The sums of a stack of trees, top first; and what could not be read, with the kernel's number.

    A file that is `known` is not read. Raises OSError; `strict`: also where one entry cannot be read.
    """
    walk = _Walk(known, told, strict)
    reader = Several(walk.took, processes) if processes > 1 else Alone(walk.took)
    roots: list[int] = []
    try:
        roots += [with_room(os.open(path, _FOLDER)) for path in lowers]
        walk.run(roots, reader)
        reader.finish()
    finally:
        reader.end()
        for root in roots:
            os.close(root)
    return walk.sums, walk.failed


class _Level:
    """One folder: its path with a slash behind it, the layers that show something in it, the folders to enter yet."""

    def __init__(self, prefix: bytes, layers: list[int]) -> None:
        self.prefix, self.layers = prefix, layers
        self.folders: list[tuple[str, list[int]]] = []


class _Walk:
    def __init__(self, known: Known, told: Told | None, strict: bool) -> None:
        self.sums: Sums = {}
        self.failed: dict[bytes, int] = {}
        self._known, self._told, self._strict = known, told, strict
        self._files = self._bytes = 0

    def took(self, path: bytes, found: Sum | int) -> None:
        """One file was read, or could not be."""
        if isinstance(found, int):
            self._fail(path, found)
            return
        self.sums[path] = found
        self._files += 1
        self._bytes += found.size
        if self._told is not None and (self._files % _TELL == 0 or found.size >= _LARGE):
            self._told(self._files, self._bytes)

    def _fail(self, path: bytes, number: int | None) -> None:
        number = number or errno.EIO
        if self._strict:
            raise OSError(number, os.strerror(number), os.fsdecode(path))
        self.failed[path] = number

    def run(self, roots: list[int], reader: Alone | Several) -> None:
        """Walk over all; files may still be on their way when this returns."""
        self._reader, self._open, self._bottom = reader, reader.hasher.opener.open, len(roots) - 1
        self._layers = [Descent(root, self._opened) for root in roots]
        try:
            # The layers' roots are always merged.
            levels = [self._list(_Level(b"", list(range(len(roots)))), b"")]
            while levels:
                level = levels[-1]
                if level.folders:
                    inner = self._enter(level, *level.folders.pop())
                    if inner is not None:
                        levels.append(inner)
                    continue
                levels.pop()
                if levels:
                    for layer in level.layers:
                        self._layers[layer].leave()
        finally:
            for descent in self._layers:
                descent.close()

    def _opened(self, name: str, folder: int) -> int:
        return with_room(self._open(name, _FOLDER, folder))

    def _enter(self, above: _Level, name: str, layers: list[int]) -> _Level | None:
        """Go into a folder, in every layer that shows something in it; the topmost one's metadata counts."""
        path, entered = above.prefix + os.fsencode(name), list[int]()
        for layer in layers:
            try:
                folder = self._layers[layer].enter(name)
            except FileNotFoundError as error:
                if not entered:
                    self._fail(path, error.errno)
                    return None
                continue
            except OSError as error:
                if entered and error.errno in (errno.ENOTDIR, errno.ELOOP):
                    break  # no folder, which hides what is further down
                self._fail(path, error.errno)
                for one in entered:
                    self._layers[one].leave()
                return None
            entered.append(layer)
            if layer != self._bottom and is_opaque(folder):
                break
        return self._list(_Level(path + b"/", entered), path)

    def _list(self, level: _Level, path: bytes) -> _Level:
        """Take all that a folder shows."""
        top = self._layers[level.layers[0]].folder
        self.sums[path] = summed(os.fstat(top), NOTHING, self._reader.hasher.attributes(top))
        seen = set[str]()
        for number, layer in enumerate(level.layers):
            folder, files = self._layers[layer].folder, list[str]()
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if name in seen:
                        continue
                    if number < len(level.layers) - 1:
                        seen.add(name)
                    if entry.is_file(follow_symlinks=False):
                        files.append(name)
                    elif entry.is_dir(follow_symlinks=False):
                        level.folders.append((name, level.layers[number:]))
                    else:
                        self._other(folder, name, level.prefix, layer != self._bottom)
            if self._known and files:
                files = [name for name in files if not self._is_known(folder, name, level.prefix)]
            if files:
                self._reader.give(folder, level.prefix, files)
        return level

    def _is_known(self, folder: int, name: str, prefix: bytes) -> bool:
        """Whether the file was read before; then it is taken."""
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return False  # reading it tells
        digests = self._known.get(identity(found))
        if digests is None:
            return False
        self.took(prefix + os.fsencode(name), summed(found, *digests))
        return True

    def _other(self, folder: int, name: str, prefix: bytes, marks: bool) -> None:
        """Take what is neither a file nor a folder, unless it is a mark of a name that is gone."""
        path = prefix + os.fsencode(name)
        try:
            handle = self._open(name, _ANY, folder)
            try:
                found = os.fstat(handle)
                if marks and is_whiteout(found):
                    return
                digest = NOTHING
                if stat.S_ISLNK(found.st_mode):
                    digest = self._reader.hasher.text(os.readlink(b"", dir_fd=handle))
                self.sums[path] = summed(found, digest, NOTHING)
            finally:
                os.close(handle)
        except OSError as error:
            self._fail(path, error.errno)
