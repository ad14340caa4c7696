"""Looking up paths in a tree, component by component through open folders, never through a symlink."""

from __future__ import annotations

import os

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
        self._way: str | None = None
        """The path of the folder that is open, the last of `_open`."""

    def place(self, relative: str) -> Place | None:
        """The entry at `relative` ("" is the root), or None where there is none that this user can reach."""
        if not relative or self._root is None:
            return self._root
        folder, _, name = relative.rpartition("/")
        if folder != self._way:
            self._way = folder if self._descend(folder.split("/") if folder else []) else None
        return None if self._way is None else self._open[-1].folder.place(name)

    def _descend(self, folders: list[str]) -> bool:
        """Open the folders from the root down, as far as they are not open already."""
        assert self._root is not None
        names = ["", *folders]
        shared = 0
        for level, name in zip(self._open, names, strict=False):
            if level.name != name:
                break
            shared += 1
        self._leave(shared)
        for name in names[shared:]:
            place = self._open[-1].folder.inner(name) if self._open else self._root
            try:
                self._open.append(_Level(place, len(self._open), self._ours))
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                return False
        return True

    def _leave(self, levels: int) -> None:
        while len(self._open) > levels:
            self._open.pop().close()

    def close(self) -> None:
        self._leave(0)
        if self._root is not None:
            self._root_context.__exit__(None, None, None)
            self._root = None

    def __enter__(self) -> TreeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Level:
    """One open folder of the path."""

    def __init__(self, place: Place, depth: int, ours: bool) -> None:
        self.name = place.name
        self._context = opened_folder(place, depth, ours=True) if ours else None
        if self._context is None:
            self.folder = open_base_folder(place, depth)
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
