"""Bringing a baseline up to date: one walk over the source, and a new layer that holds what changed.

A stat tells what changed, or the content where stamps do not tell (see `content`). Folders are compared one at a time
with the manifest of the newest generation. The layer's folders are made when the first entry in them is; a folder gets
its own metadata when all in it is done. Nothing is made where nothing changed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from hostfork.baseline import current, scout
from hostfork.baseline.comparison import Comparison, Folder, below
from hostfork.baseline.current import Facts, LowerCopy, Ready
from hostfork.baseline.errands import Errands, Pending
from hostfork.baseline.young import same_content, settling
from hostfork.collect.manifest import StatManifest, StatManifestEdit
from hostfork.errors import CollectError
from hostfork.storage.contract import Lost, Progress, Source
from hostfork.storage.entry import Outcome, Taken, open_quietly, read_extra
from hostfork.storage.failures import unreadable, unstable
from hostfork.storage.layering import make_opaque, whiteout
from hostfork.storage.lines import DEEPEST, TREE, Generation, Line
from hostfork.storage.newtree import begin_layer, end_layer
from hostfork.storage.replicated import source_error
from hostfork.storage.tree import Descent, FolderMovedError, open_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.baseline.content import Contents

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TELL = 256


def refreshed(
    line: Line, top: Generation, source: Source, progress: Progress | None, by_content: bool = False
) -> Ready | None:
    """The newest generation, or a new one over it, equal to the source. None where it has to be taken anew.

    `by_content`: stamps are not trusted, all is read. Raises StorageError as a copy does. The line's lock must be held.
    """
    start = time.monotonic()
    with contextlib.ExitStack() as opened:
        # First of all: it starts on another processor while the manifest is read here.
        beside = None if by_content else scout.start(top.file(current.MANIFEST), source.path, source.omit)
        if beside is not None:
            opened.callback(beside.end)
        manifest = _known(top, source, by_content)
        if manifest is None:
            return None
        contents = None
        if by_content:
            from hostfork.baseline.content import Contents

            contents = opened.enter_context(contextlib.closing(Contents(top, manifest)))
        walk = _Walk(line, top, source, manifest, progress, contents)
        _run(walk, beside, line, source)
    if walk.layer is None:
        walk.forget_young()
        return Ready(top, walk.facts, 0, 0, time.monotonic() - start)
    if len(top.trees) >= DEEPEST:
        return None
    made = walk.commit()
    return Ready(made, walk.facts, walk.files, walk.bytes, time.monotonic() - start)


def _known(top: Generation, source: Source, by_content: bool) -> StatManifest | None:
    """What the generation knows of the source; None where that does not tell what is the same."""
    try:
        manifest = StatManifest.load(top.file(current.MANIFEST))
        before = os.lstat(source.path)
    except (CollectError, FileNotFoundError):
        return None
    except OSError as error:
        raise source_error(source, error) from error
    if manifest.root < 0 or not _stands_in(top, source):
        return None
    if not by_content and manifest.entry(manifest.root, b"").dev != before.st_dev:
        return None
    return manifest


def _run(walk: _Walk, beside: scout.Scout | None, line: Line, source: Source) -> None:
    """Walk all of it. Raises StorageError."""
    try:
        walk.run(beside)
    except FolderMovedError as error:
        raise unstable(source.path, (walk.at,)) from error
    except OSError as error:
        at = os.path.join(source.path, walk.at) if walk.at else source.path
        raise LowerCopy().failure(at, source, line.pool, error) from error
    if walk.unreadable:
        raise unreadable(source.path, tuple(sorted(walk.unreadable)))
    if walk.unstable:
        raise unstable(source.path, tuple(sorted(walk.unstable)))


class _Level(Pending):
    """One folder of the source, and its twin in the layer once that is needed."""

    def __init__(self, name: str, relative: str, found: os.stat_result, is_new: bool) -> None:
        super().__init__(relative)
        self.name = name
        self.found = found
        self.is_new = is_new
        self.twin = -1


class _Walk:
    """One walk. The lists are final when `run` returns."""

    def __init__(
        self,
        line: Line,
        top: Generation,
        source: Source,
        manifest: StatManifest,
        progress: Progress | None,
        contents: Contents | None,
    ) -> None:
        self.files = 0
        self.bytes = 0
        self.unreadable: list[str] = []
        self.unstable: list[str] = []
        self.at = ""
        self.layer: str | None = None
        """The folder in which the layer lies, once there is one; `_tree` is that of the new tree."""
        self._tree = ""
        self._line, self._top, self._source, self._manifest = line, top, source, manifest
        self._edit = StatManifestEdit(manifest)
        self._progress = progress
        self._levels: list[_Level] = []
        self._noted: set[str] = set()
        self._links: dict[tuple[int, int], str] = {}
        facts = Facts.read(top)
        self._stored = facts.stored
        self._copier = current.copier_of(facts.stored)()
        self._unwritable = set(facts.unwritable)
        self._lost = {one.path: one.what for one in facts.lost}
        self._old_young = current.read_young(top)
        self._young: set[bytes] = set()
        self._start, self._settling = time.time_ns(), settling()
        self._contents = contents
        """What tells whether something changed, where stamps do not."""
        self._comparison = Comparison(manifest, source.omit, None if contents is None else contents.holds)
        self._errands: Errands | None = None

    def run(self, beside: scout.Scout | None) -> None:
        """Compare all, a part of it by the scout, and write what changed into a layer."""
        distrusted = () if self._contents is not None else self._distrust_young()
        if beside is not None:
            self._errands = Errands(beside, distrusted)
        root = open_quietly(self._source.path, _FOLDER)
        descent = Descent(root, open_source)
        try:
            found = os.fstat(root)
            self._levels.append(_Level("", "", found, False))
            if self._contents is None:
                changed = not self._comparison.is_same(self._manifest.root, found)
            else:
                changed = not self._contents.holds("", self._manifest.root, root, "", found)
            self._compare(root, changed)
            while self._levels:
                level = self._levels[-1]
                if self._errands is not None:
                    self._errands.share(self._levels)
                if level.folders:
                    self._enter(descent, level.folders.pop())
                    continue
                if level.away and self._errands is not None:
                    self._errands.take(wait=True)
                    continue
                self._finish(level, descent.folder)
                self._levels.pop()
                if self._levels:
                    descent.leave()
        finally:
            for level in self._levels:
                if level.twin >= 0:
                    os.close(level.twin)
            descent.close()
            os.close(root)

    @property
    def facts(self) -> Facts:
        """What is known about what was compared or taken."""
        return Facts(
            tuple(sorted(filter(self._is_there, self._unwritable))),
            tuple(Lost(path, what) for path, what in sorted(self._lost.items()) if self._is_there(path)),
            self._stored,
        )

    def _is_there(self, path: str) -> bool:
        return path in self._noted or not self._edit.is_gone(path)

    def commit(self) -> Generation:
        """Make what was written the newest generation."""
        assert self.layer is not None
        generation = self._line.begin()
        self._edit.save(generation.file(current.MANIFEST))
        self.facts.write(generation)
        current.write_young(generation, self._young)
        for number in self._links.values():
            os.unlink(os.path.join(self.layer, number))
        made = self._line.commit(end_layer(self._tree, self.layer, self._top.trees))
        self._line.settle()
        return made

    def forget_young(self) -> None:
        """Where what was young is the same by its content, and old by now, its stat tells from now on."""
        if self._young != self._old_young:
            current.write_young(self._top, self._young)

    def _distrust_young(self) -> list[str]:
        """Read again what was young when it was taken; gives what differs then, which is taken again."""
        differ = []
        for relative in self._old_young:
            path = os.fsdecode(relative)
            entry = self._manifest.find(relative)
            if entry is None or stat.S_IFMT(entry.mode) != stat.S_IFREG:
                continue
            source = os.path.join(self._source.path, path)
            try:
                same = entry.is_source(os.lstat(source))
            except OSError:
                continue
            if not same:
                continue  # the walk sees that
            if not same_content(source, path, self._top):
                self._manifest.stamps()[0][self._index(path)] = -1
                differ.append(path)
            elif entry.ctime_ns >= self._start - self._settling:
                self._young.add(relative)
        return differ

    def _index(self, path: str) -> int:
        folder, _, name = path.rpartition("/")
        return self._manifest.names(folder)[name]

    def _enter(self, descent: Descent, entered: Folder) -> None:
        above = self._levels[-1]
        relative = self.at = below(above.relative, entered.name)
        try:
            folder = descent.enter(entered.name, entered.found)
        except FileNotFoundError:
            self._gone(relative, -1 if entered.is_new else 0)
            return
        except PermissionError:
            self.unreadable.append(relative)
            return
        level = _Level(entered.name, relative, entered.found, entered.is_new)
        self._levels.append(level)
        changed = entered.is_new or entered.changed
        if self._errands is not None and not entered.is_new:
            level.guided = above.guided or self._errands.is_guide(relative)
            if level.guided and not changed and not self._errands.differs(relative):
                way = self._errands.way(relative, folder)
                if way is not None:
                    level.folders = way
                    return
                level.guided = False
        self._compare(folder, changed)
        if self._errands is not None and level.guided:
            level.folders = self._errands.leads(relative, level.folders)

    def _compare(self, folder: int, changed: bool) -> None:
        """Compare what the innermost folder holds, and write what is not as it was."""
        level = self._levels[-1]
        known = {} if level.is_new else self._manifest.names(level.relative)
        touched, level.folders = self._comparison.look(folder, level.relative, known)
        if not (changed or touched or known):
            return
        twin = self._twin()
        for name, index, found in touched:
            self._take(folder, name, index, found, twin, level.relative)
        for name in known:
            if not level.is_new:
                whiteout(name, twin)
                self._edit.drop(below(level.relative, name))

    def _twin(self) -> int:
        """The innermost folder's twin in the layer, made with all above it if it is not there."""
        if self.layer is None:
            self._tree = self._line.begin_tree()
            self.layer = begin_layer(self._tree, self._top.single)
            os.mkdir(os.path.join(self.layer, TREE), 0o700)
        above = -1
        for level in self._levels:
            if level.twin < 0:
                if above < 0:
                    level.twin = os.open(os.path.join(self.layer, TREE), _FOLDER)
                else:
                    os.mkdir(level.name, 0o700, dir_fd=above)
                    level.twin = os.open(level.name, _FOLDER, dir_fd=above)
                    if level.is_new:
                        make_opaque(level.twin)
            above = level.twin
        return above

    def _take(self, folder: int, name: str, index: int, found: os.stat_result, twin: int, above: str) -> None:
        """Take one entry that is no folder."""
        relative = self.at = below(above, name)
        if self._comparison.was_folder(index):
            self._edit.drop(relative)
        if not stat.S_ISREG(found.st_mode):
            taken = self._copier.node(folder, name, twin, name)
        else:
            taken = self._copier.file(folder, name, twin, name)
            if taken.outcome is Outcome.LINKED:
                taken = self._linked(folder, name, twin, found)
        if taken.outcome is Outcome.UNREADABLE:
            self.unreadable.append(relative)
        elif taken.outcome is Outcome.GONE:
            self._gone(relative, index)
        elif taken.outcome is not Outcome.DONE:
            self.unstable.append(relative)
        else:
            self._took(relative, taken)

    def _gone(self, relative: str, index: int) -> None:
        """It went after it was listed. The folder's stat is from before that: the next walk looks at it again."""
        if index >= 0:
            whiteout(relative.rpartition("/")[2], self._twin())
            self._edit.drop(relative)

    def _linked(self, folder: int, name: str, twin: int, found: os.stat_result) -> Taken:
        """A file with several names is one in the layer too. All of its names changed with it."""
        assert self.layer is not None
        number = f"link-{found.st_dev}-{found.st_ino}"
        held = os.open(self.layer, _FOLDER)
        try:
            if (found.st_dev, found.st_ino) not in self._links:
                taken = self._copier.file(folder, name, held, number, links=True)
                if taken.outcome is not Outcome.DONE:
                    return taken
                self._links[found.st_dev, found.st_ino] = number
            os.link(number, name, src_dir_fd=held, dst_dir_fd=twin, follow_symlinks=False)
            return Taken(Outcome.DONE, os.stat(name, dir_fd=folder, follow_symlinks=False),
                         os.stat(name, dir_fd=twin, follow_symlinks=False))  # fmt: skip
        finally:
            os.close(held)

    def _took(self, relative: str, taken: Taken) -> None:
        self._note(relative, taken)
        self.files += 1
        self.bytes += taken.bytes
        if self._progress is not None and self.files % _TELL == 0:
            self._progress(self.files, self.bytes)

    def _note(self, relative: str, taken: Taken) -> None:
        path, source = os.fsencode(relative), taken.source
        self._noted.add(relative)
        assert source is not None
        assert taken.copy is not None
        self._edit.put(path, source, taken.copy)
        self._young.discard(path)
        if stat.S_ISREG(source.st_mode) and source.st_ctime_ns >= self._start - self._settling:
            self._young.add(path)
        (self._unwritable.add if taken.unwritable else self._unwritable.discard)(relative)
        self._lost.pop(relative, None)
        if taken.lost:
            self._lost[relative] = taken.lost

    def _finish(self, level: _Level, folder: int) -> None:
        """Give the folder's twin its metadata; making what is in it changed that."""
        if level.twin < 0:
            return
        wanted = self._copier.wanted(level.found, folder, ".")
        taken = self._copier.folder(level.twin, level.found, wanted, read_extra(folder))
        self._note(level.relative, taken)
        os.close(level.twin)
        level.twin = -1


def _stands_in(generation: Generation, source: Source) -> bool:
    """Whether what is left out still has its stand-in in the generation: a folder for a folder."""
    for path in source.omit:
        try:
            wanted = stat.S_ISDIR(os.lstat(os.path.join(source.path, path)).st_mode)
        except OSError:
            continue  # it is not there: nothing is put in its place either
        if wanted not in [_is_folder(os.path.join(lower, path)) for lower in generation.lowers]:
            return False
    return True


def _is_folder(path: str) -> bool | None:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return None
