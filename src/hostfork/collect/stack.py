"""A base as a stack of frozen layers, read as the one tree that an overlay over them shows.

The last layer is a plain tree; those above it are in overlayfs's format, with the marks of `userxattr`. A 0:0 device
hides its name in the layers below, a folder marked `user.overlay.opaque=y` what they have in it, any other entry what
they have of its name. Folders without the mark are merged with those of the same name below; what the topmost one has
of mode, owner and attributes counts. A stack of one is a plain tree: nothing in it is a mark.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hostfork.collect.walk import Place, open_folder, root_place

OPAQUE = "user.overlay.opaque"

Base = str | tuple[str, ...]
"""Where a base lies: one tree, or layers from the top down."""


@contextmanager
def base_root(base: Base) -> Iterator[Place]:
    """The root of a base. The layers' roots are always merged."""
    first, *rest = (base,) if isinstance(base, str) else base
    with ExitStack() as stack:
        top = stack.enter_context(root_place(first))
        under = tuple([stack.enter_context(root_place(path)).folder for path in rest])
        yield Place(top.folder, "", under)


class BaseFolder:
    """An open folder of a base, or none: a descriptor for each layer from one of them down to the last, the plain
    tree; -1 for a layer that shows nothing in it."""

    def __init__(self, folders: tuple[int, ...] = (-1,), closed: bool = False) -> None:
        self.folder = folders[0]
        """Of a plain tree the only one, -1 for none."""
        self.closed = closed
        """A layer's part of it may not be read by this user, and hides what is below."""
        self._folders = folders

    def place(self, name: str) -> Place | None:
        """The entry of that name; None if there is none, or none that this user can look up."""
        under = self._folders
        while under:
            folder, *_ = under
            under = under[1:]
            if folder < 0:
                continue
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except (FileNotFoundError, PermissionError):
                continue
            return None if under and is_whiteout(found) else Place(folder, name, under)
        return None

    def inner(self, name: str) -> Place:
        """The entry of that name in a plain tree, or a folder of that name to be opened; it is not looked up."""
        return Place(self.folder, name, self._folders[1:])

    def all(self) -> list[Place]:
        """Every entry; they are not looked up, and may be gone."""
        places: dict[str, Place | None] = {}
        for number, folder in enumerate(self._folders, 1):
            if folder < 0:
                continue
            under = self._folders[number:]
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name not in places:
                        hides = bool(under) and _hides(entry)
                        places[entry.name] = None if hides else Place(folder, entry.name, under)
        return [place for place in places.values() if place is not None]

    def __enter__(self) -> BaseFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        _close(self._folders)


def open_base_folder(place: Place) -> BaseFolder:
    """The folder at a place of a base, as it is, never opened by force. Raises OSError where there is none to read."""
    folders: list[int] = []
    failure: OSError | None = None
    hidden = closed = False
    try:
        for folder in (place.folder, *place.under):
            opened = -1
            if folder >= 0 and not hidden:
                try:
                    opened = open_folder(Place(folder, place.name))
                except FileNotFoundError as error:
                    failure = failure or error
                except (NotADirectoryError, PermissionError) as error:
                    failure, hidden, closed = failure or error, True, isinstance(error, PermissionError)
            folders.append(opened)
            if opened >= 0 and len(folders) <= len(place.under):
                hidden = _is_opaque(opened)
    except BaseException:
        _close(folders)
        raise
    if max(folders) < 0:
        raise failure or FileNotFoundError(errno.ENOENT, "is missing", place.name)
    return BaseFolder(tuple(folders), closed)


def base_folder(place: Place) -> BaseFolder:
    """The same; none if this user may not read it (then nothing in it was visible) or it has just gone."""
    try:
        return open_base_folder(place)
    except (PermissionError, FileNotFoundError, NotADirectoryError):
        return BaseFolder()


def is_whiteout(found: os.stat_result) -> bool:
    """Whether an entry of a layer stands for a deleted one."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _hides(entry: os.DirEntry[str]) -> bool:
    """A whiteout, or what cannot be looked up; the type that the folder gives spares most look-ups."""
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        return is_whiteout(entry.stat(follow_symlinks=False))
    except (FileNotFoundError, PermissionError):
        return True


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, OPAQUE) == b"y"
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
        return False


def _close(folders: list[int] | tuple[int, ...]) -> None:
    for folder in folders:
        if folder >= 0:
            os.close(folder)
