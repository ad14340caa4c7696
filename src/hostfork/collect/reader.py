"""Looking up paths in a tree, component by component through open folders, never through a symlink."""

from __future__ import annotations

import os

from hostfork.collect.difference import below
from hostfork.collect.stack import Base, BaseFolder, base_root, open_base_folder
from hostfork.collect.walk import Place, open_file, opened_folder
from hostfork.errors import CollectError


class TreeReader:
    """A tree or a stack of layers that is read by relative path. The folders of the last path stay open: read in
    sorted order.

    A tree that is missing is an empty one; a layer that is missing is an error. `ours`: a private tree, where modes
    without `r` and `x` are no obstacle. A `Place` is good until the next call.
    """

    def __init__(self, path: Base, ours: bool = False) -> None:
        self._ours = ours
        self._root_context = base_root(path)
        self._root: Place | None
        try:
            self._root = self._root_context.__enter__()
        except CollectError as error:
            if not isinstance(path, str) or not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                raise
            self._root = None
        self._open: list[_Level] = []

    def place(self, relative: str) -> Place | None:
        """The entry at `relative` ("" is the root), or None where there is none that this user can reach."""
        if not relative or self._root is None:
            return self._root
        folder, _, name = relative.rpartition("/")
        return self._open[-1].folder.place(name) if self._descend(folder) else None

    def _descend(self, folder: str) -> bool:
        """Open the folders from the root down to this one, as far as they are not open already."""
        while self._open and not _is_in(folder, self._open[-1].path):
            self._open.pop().close()
        try:
            if not self._open:
                assert self._root is not None
                self._open.append(_Level("", self._root, self._ours))
            last = self._open[-1]
            if last.path != folder:
                for name in folder[len(below(last.path, "")) :].split("/"):
                    last = _Level(below(last.path, name), last.folder.inner(name), self._ours)
                    self._open.append(last)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False
        return True

    def close(self) -> None:
        while self._open:
            self._open.pop().close()
        if self._root is not None:
            self._root_context.__exit__(None, None, None)
            self._root = None

    def __enter__(self) -> TreeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_in(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(folder + "/")


class _Level:
    """One open folder of the path."""

    def __init__(self, path: str, place: Place, ours: bool) -> None:
        self.path = path
        self._context = opened_folder(place, ours=True) if ours else None
        if self._context is None:
            self.folder = open_base_folder(place)
        else:
            self.folder = BaseFolder((self._context.__enter__(),))

    def close(self) -> None:
        if self._context is None:
            self.folder.close()
        else:
            self._context.__exit__(None, None, None)


def read_small(place: Place, ours: bool, limit: int = 1 << 20) -> bytes | None:
    """The content of a regular file of at most `limit` bytes, else None."""
    try:
        file = open_file(place, ours)
    except OSError:
        return None
    try:
        if os.fstat(file).st_size > limit:
            return None
        content = b""
        while chunk := os.read(file, limit):
            content += chunk
        return content
    finally:
        os.close(file)


class TreeFinal:
    """The final content where all of it lies in one tree."""

    def __init__(self, reader: TreeReader) -> None:
        self._reader = reader

    def read(self, relative: str) -> bytes | None:
        place = self._reader.place(relative)
        return None if place is None else read_small(place, ours=True)

    def exists(self, relative: str) -> bool:
        return self._reader.place(relative) is not None
