"""Lines: retained trees in a pool, in generations that forks lie over. Nothing that a fork uses is ever changed.

    POOL/baseline/LINE/              one retained tree; who changes it holds a flock on this folder
    POOL/baseline/LINE/source        what it was taken of: the path, and what is left out, each ended by a zero byte
    POOL/baseline/LINE/unfit         a symlink to what in the source no overlay can show, where there is such a thing
    POOL/baseline/LINE/tN/tree       a whole tree; or a layer over others: what changed, and overlayfs's marks; or a
                                     symlink to a whole tree in a Btrfs subvolume beside it (see `subtree`)
    POOL/baseline/LINE/gN/layers     a generation: a symlink whose text names its trees, top first: `t4/t1`
                          reference  a symlink to gN; every key over it has a hard link of it (see `retained`)
                          …          what its maker knows about it
    POOL/baseline/LINE/top           a symlink to the newest generation
    POOL/baseline/LINE/sums          the newest sums that were made of one (see `baseline.sums`)

A generation appears whole, when `top` is renamed. So the kernel counts who lies over one, and what no generation names
is rubbish of a killed process: the next one that holds the lock removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from binascii import crc32
from collections.abc import Callable, Iterator

from hostfork.storage import newtree
from hostfork.storage.contract import Source
from hostfork.storage.entry import FOLDER
from hostfork.storage.keys import Keys, aside_name
from hostfork.storage.readers import is_read
from hostfork.storage.tree import open_own, remove_tree
from hostfork.values import frozen
from hostfork.vocabulary import StorageKind

DEEPEST = 32
"""Layers of one generation. Each is in use by a fork of its own generation, else they are merged."""
AUTOMATIC = "auto-"
"""What the names of lines begin with that `--private` makes by itself."""
TREE = newtree.TREE
SUMS = "sums"
_TOP, _LAYERS, _REFERENCE, _SOURCE, _UNFIT, _NEW = "top", "layers", "reference", "source", "unfit", "new"
_KIND = StorageKind.BASELINE.value
_MOMENT = 0.3
"""Seconds for which nobody is told that others hold a lock."""


@frozen
class Generation:
    """One generation, by its folder. What it names holds still as long as somebody uses it or holds the lock."""

    path: str

    @property
    def line(self) -> str:
        """The folder of its line."""
        return os.path.dirname(self.path)

    @property
    def trees(self) -> tuple[str, ...]:
        """The names of its trees, top first. Raises OSError where it is gone."""
        return tuple(os.readlink(os.path.join(self.path, _LAYERS)).split("/"))

    @property
    def lowers(self) -> tuple[str, ...]:
        """The paths of its trees, top first. Raises OSError where it is gone."""
        return tuple(newtree.tree_of(os.path.join(self.line, name)) for name in self.trees)

    @property
    def single(self) -> str | None:
        """The folder that holds its tree, None where that is several layers. Raises OSError where it is gone."""
        trees = self.trees
        return os.path.join(self.line, trees[0]) if len(trees) == 1 else None

    @property
    def reference(self) -> str:
        """The symlink that a key links."""
        return os.path.join(self.path, _REFERENCE)

    @property
    def users(self) -> int:
        """How many keys lie over it; none where its removal was begun."""
        try:
            return os.lstat(self.reference).st_nlink - 1
        except FileNotFoundError:
            return 0

    @property
    def in_use(self) -> bool:
        """Whether keys lie over it, or somebody reads it."""
        return self.users > 0 or is_read(self.path)

    def file(self, name: str) -> str:
        """The path of something that its maker keeps there."""
        return os.path.join(self.path, name)


class Line:
    """One retained tree. What changes it is to be called with the lock held."""

    def __init__(self, pool: str, name: str) -> None:
        self.pool = pool
        self.name = name
        self.path = os.path.join(pool, _KIND, name)

    @classmethod
    def of(cls, source: Source, pool: str) -> Line:
        """The line that `--private` keeps of a source, whether it is there or not."""
        text = _text(source)
        number = crc32(text)
        while True:
            line = cls(pool, f"{AUTOMATIC}{number:08x}")
            if line._said() in (None, text):
                return line
            number = (number + 1) % (1 << 32)  # another source's, of the same sum

    @property
    def source(self) -> Source | None:
        """What it was taken of; None where it is gone, or was never made."""
        said = self._said()
        if not said:
            return None
        path, *omit = os.fsdecode(said).split("\0")[:-1]
        return Source(path, tuple(omit))

    @property
    def unfit(self) -> str | None:
        """The relative path in the source of something that no overlay can show, as it was met last."""
        try:
            return os.readlink(os.path.join(self.path, _UNFIT))
        except OSError:
            return None

    def is_unfit(self, path: str) -> None:
        """Remember such a path. Nothing of the line is kept."""
        self.drop()
        self._point(_UNFIT, path, self.path)

    @property
    def last_use(self) -> float | None:
        """When it was last brought up to date or taken by a fork, in seconds of the clock; None where it is gone."""
        try:
            return os.stat(os.path.join(self.path, _SOURCE)).st_mtime
        except OSError:
            return None

    @property
    def is_automatic(self) -> bool:
        """Whether `--private` made it by itself."""
        return self.name.startswith(AUTOMATIC)

    @property
    def is_in_subvolumes(self) -> bool:
        """Whether its newest tree lies in one."""
        top = self.top()
        return top is not None and newtree.is_in_subvolume(os.path.join(self.path, top.trees[0]))

    def _said(self) -> bytes | None:
        try:
            with open(os.path.join(self.path, _SOURCE), "rb") as file:
                return file.read()
        except OSError:
            return None

    def top(self) -> Generation | None:
        """The newest generation, None where there is none yet."""
        try:
            return Generation(os.path.join(self.path, os.readlink(os.path.join(self.path, _TOP))))
        except OSError:
            return None

    def generations(self) -> tuple[Generation, ...]:
        """All generations."""
        with contextlib.suppress(FileNotFoundError):
            return tuple(Generation(os.path.join(self.path, name)) for name in os.listdir(self.path) if name[0] == "g")
        return ()

    @property
    def users(self) -> int:
        """How many keys lie over any of its generations."""
        return sum(one.users for one in self.generations())

    @contextlib.contextmanager
    def locked(self, source: Source, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock; the line's folder is made if it is not there. `waiting` is told where somebody else has it.

        Raises OSError.
        """
        opened = self._lock(source, waiting)
        try:
            self._clean()
            try:
                yield
            except BaseException:
                with contextlib.suppress(OSError):  # else the next one does it
                    self._clean()
                    self._forget()
                raise
        finally:
            fcntl.flock(opened, fcntl.LOCK_UN)
            os.close(opened)

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock of a line that is there, if nobody else has it. Gives whether that is so. Raises OSError."""
        try:
            opened = os.open(self.path, FOLDER)
        except FileNotFoundError:
            yield False
            return
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield _is_at(opened, self.path)
            finally:
                fcntl.flock(opened, fcntl.LOCK_UN)
        finally:
            os.close(opened)

    def _lock(self, source: Source, waiting: Callable[[], None]) -> int:
        while True:
            os.makedirs(self.path, 0o700, exist_ok=True)
            opened = os.open(self.path, FOLDER)
            try:
                if not _soon(opened):
                    waiting()
                    fcntl.flock(opened, fcntl.LOCK_EX)
                if _is_at(opened, self.path):
                    if self._said() is None:
                        _write(os.path.join(self.path, _SOURCE), _text(source))
                    os.utime(os.path.join(self.path, _SOURCE))
                    return opened
            except BaseException:
                os.close(opened)
                raise
            os.close(opened)  # it was removed meanwhile

    def begin_tree(self) -> str:
        """The path of a new folder for a tree: TREE in it. It is rubbish until a generation names it."""
        path = os.path.join(self.path, f"t{self._next()}")
        os.mkdir(path, 0o700)
        return path

    def house(self, tree: str) -> str:
        """The folder in which TREE of a new tree is to be made: on Btrfs a subvolume in the tree's own folder."""
        return newtree.house(tree)

    def begin(self) -> Generation:
        """The folder of a new generation, for what its maker knows about it; `commit` gives it its name."""
        path = os.path.join(self.path, _NEW)
        os.mkdir(path, 0o700)
        return Generation(path)

    def commit(self, trees: tuple[str, ...]) -> Generation:
        """Make what was begun the newest generation, of these trees."""
        new, name = os.path.join(self.path, _NEW), f"g{self._next()}"
        newtree.seal(os.path.join(self.path, trees[0]))
        os.symlink("/".join(trees), os.path.join(new, _LAYERS))
        os.symlink(f"../../{_KIND}/{self.name}/{name}", os.path.join(new, _REFERENCE))
        os.rename(new, os.path.join(self.path, name))
        self._point(_TOP, name, self.path)
        return Generation(os.path.join(self.path, name))

    def settle(self) -> None:
        """Remove generations that nobody uses, and merge the newest one's layers as far as nobody lies over them.

        The newest generation shows the same tree at every moment, so that SIGKILL does no harm.
        """
        top = self.top()
        if top is None:
            self._clean()
            return
        used: set[str] = set()
        for one in self.generations():
            if one.in_use:
                used |= set(one.trees)
            elif one.path != top.path:
                self._remove(os.path.basename(one.path))
        trees = list(top.trees)
        while len(trees) > 1 and not used & {trees[0], trees[1]}:
            from hostfork.storage.merge import merge

            merge(trees[0], trees[1], self.path, whole=len(trees) == 2)
            self._point(_LAYERS, "/".join(trees[1:]), top.path)
            self._remove(trees.pop(0))
        self._clean()

    def remove(self) -> None:
        """Take the line off the list; what it holds is erased in no hurry. The lock must be held."""
        self._put_aside(self.path)

    def drop(self) -> None:
        """Give up the newest generation: the next one is taken anew."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, _TOP))
        self._clean()

    def _forget(self) -> None:
        """Remove a line that holds nothing."""
        if self.top() is None and self.unfit is None and not self.generations():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, SUMS))
            os.unlink(os.path.join(self.path, _SOURCE))
            os.rmdir(self.path)

    def _clean(self) -> None:
        """Remove what no generation names: a killed process was at it, or nobody uses it any more."""
        top = self.top()
        named = set()
        for one in self.generations():
            if (top is None or one.path != top.path) and not one.in_use:
                self._remove(os.path.basename(one.path))
            else:
                named |= set(one.trees)
        for name in os.listdir(self.path):
            if name == _NEW or (name[0] == "t" and name[1:].isdigit() and name not in named):
                self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove a generation's folder or an empty tree at once; what holds more is erased in no hurry."""
        folder = os.open(self.path, FOLDER)
        try:
            if name[0] == "t" and _holds_something(name, folder):
                self._put_aside(os.path.join(self.path, name))
            else:
                remove_tree(name, folder)
        finally:
            os.close(folder)

    def _put_aside(self, path: str) -> None:
        os.rename(path, os.path.join(self.pool, _KIND, aside_name(self.name)))

    def _point(self, link: str, text: str, folder: str) -> None:
        fresh = os.path.join(folder, f"{link}.next")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
        os.symlink(text, fresh)
        os.rename(fresh, os.path.join(folder, link))

    def _next(self) -> int:
        numbers = [int(name[1:]) for name in os.listdir(self.path) if name[0] in "gt" and name[1:].isdigit()]
        return max(numbers, default=0) + 1


def lines(pool: str) -> tuple[Line, ...]:
    """Every line in a pool, in the order of names."""
    folder = os.path.join(pool, _KIND)
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    # What waits to be erased has the name of its line too.
    found = dict.fromkeys(state.key for state in Keys(pool, _KIND).states())
    return tuple(Line(pool, key) for key in found if key in names)


def _text(source: Source) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in (source.path, *sorted(source.omit)))


def _soon(opened: int) -> bool:
    """Take the lock, which others hold for moments only, unless they copy."""
    end = time.monotonic() + _MOMENT
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        else:
            return True


def _is_at(opened: int, path: str) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(opened))


def _holds_something(name: str, folder: int) -> bool:
    if newtree.is_in_subvolume(f"/proc/self/fd/{folder}/{name}"):
        return True
    try:
        opened = open_own(f"{name}/{TREE}", folder)
    except FileNotFoundError:
        return False
    try:
        return bool(os.listdir(opened))
    finally:
        os.close(opened)


def _write(path: str, content: bytes) -> None:
    fresh = f"{path}.{os.getpid()}-{time.monotonic_ns()}"
    with open(fresh, "wb") as file:
        file.write(content)
    os.rename(fresh, path)
