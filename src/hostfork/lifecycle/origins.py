"""Baselines of what is no folder of the host: a git repository, an archive, what a fork holds at last.

Their trees are made in the pool, in the line's own folder, so that nothing has to be copied and nothing is left over:
what no generation names is rubbish that `recover` removes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

from hostfork.baseline import current, staged
from hostfork.baseline.catalog import Baseline, Catalog, Origin, Tree, name_taken
from hostfork.baseline.git import CheckedOut, Wanted
from hostfork.errors import BaselineError, Code, ForkError, HostforkError, PolicyError
from hostfork.lifecycle import baselines
from hostfork.lifecycle.baselines import Made, Told
from hostfork.lifecycle.names import check_name
from hostfork.lifecycle.store import Store, state_folder
from hostfork.storage.contract import Delta, FullTree, Source
from hostfork.storage.lines import Generation
from hostfork.storage.pool import open_pool
from hostfork.values import replace
from hostfork.vocabulary import OriginKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.lifecycle.fork import Fork
    from hostfork.lifecycle.record import PathRecord


def create(name: str, origin: Origin, at: str | None, pool: str | None, told: Told | None = None) -> Made:
    """Make a baseline. `at`: where forks have its tree; without it where a local repository lies, nowhere for others.

    Raises BaselineError `baseline.name-taken`, `.origin`, ForkError, StorageError, PolicyError; then nothing is left.
    """
    check_name(name)
    origin = _checked(origin)
    known, start = baselines.catalog(), time.monotonic()
    if name in known.names():
        raise name_taken(name)
    maker = _maker(origin, told)
    where = _pool(pool or maker.pool)
    paths = maker.paths(at)
    now = time.time()
    trees = tuple(Tree(f"{name}.{number}", path) for number, path in enumerate(paths))
    baseline = Baseline(name, now, now, where, maker.origin, trees)
    with _all_locked(baseline):
        if name in known.names():
            raise name_taken(name)  # another was quicker
        with baselines.removed_on_error(baseline.lines):
            made = _taken(baseline, maker, start)
            known.add(made.baseline)
            maker.finish(made.baseline)
    return made


def refresh(known: Catalog, baseline: Baseline, told: Told | None = None) -> Made:
    """Make it anew of what it was made of; forks over it show what they showed. Raises as `create`."""
    start = time.monotonic()
    if baseline.lost:
        raise baselines.lost(baseline)
    try:
        maker = _maker(baseline.origin, told)
    except ForkError as error:
        if error.code is Code.FORK_NOT_FOUND:
            raise _fork_gone(baseline) from error
        raise
    maker.check(baseline)
    with _all_locked(baseline):
        made = _taken(replace(baseline, refreshed=time.time()), maker, start)
        known.replace(made.baseline)
        maker.finish(made.baseline)
    return made


def put_right(known: Catalog, baseline: Baseline) -> None:
    """Write down at which commit a checkout is, where a refresh was killed before it could."""
    from hostfork.baseline.git import head_of

    (line,) = baseline.lines
    with line.held() as held:
        top = line.top()
        commit = "" if top is None or not held else head_of(top)
        if commit and commit != baseline.origin.commit:
            known.replace(replace(baseline, origin=replace(baseline.origin, commit=commit)))


@contextlib.contextmanager
def _all_locked(baseline: Baseline) -> Iterator[None]:
    from hostfork.storage import reclaim

    try:
        with contextlib.ExitStack() as stack:
            for tree, line in zip(baseline.trees, baseline.lines, strict=True):
                stack.enter_context(current.locked(line, Source(tree.path or baseline.origin.place)))
            yield
    finally:
        reclaim.start((baseline.pool,))  # what was only compared, or failed


def _taken(baseline: Baseline, maker: _Maker, start: float) -> Made:
    from hostfork.baseline.settler import settle
    from hostfork.baseline.settler import start as start_settling

    files = size = 0
    for number, line in enumerate(baseline.lines):
        with _pool_failures(baseline):
            ready = staged.taken(line, partial(maker.fill, number))
            settle(ready.generation.path)
        start_settling(ready.generation)  # for the sums
        files += ready.files
        size += ready.bytes
    origin = replace(baseline.origin, commit=maker.commit)
    done = replace(baseline, origin=origin)
    return Made(done, files, size, time.monotonic() - start, maker.left_out, maker.started_from)


@contextlib.contextmanager
def _pool_failures(baseline: Baseline) -> Iterator[None]:
    from hostfork.storage.failures import failed, is_full, no_space

    try:
        yield
    except OSError as error:
        place = baseline.origin.place
        if is_full(error):
            raise no_space(place, baseline.pool, None, error.errno or 0) from error
        sentence = f"the baseline of {place} could not be made"
        raise failed(sentence, error.filename or baseline.pool, error, "baseline") from error


def _pool(asked: str | None) -> str:
    store = Store(state_folder())
    store.make_folders()
    pool = open_pool(store.pool if asked is None else os.path.abspath(asked), asked is not None)
    if asked is not None:
        from hostfork.lifecycle.pools import remember

        remember(store, pool)
    return pool


def _checked(origin: Origin) -> Origin:
    """With an absolute path, if it is one. Raises PolicyError."""
    if origin.kind is OriginKind.ARCHIVE:
        return replace(origin, place=os.path.abspath(origin.place))
    if origin.kind is not OriginKind.GIT:
        return origin
    from hostfork.baseline.git import local_path

    if not origin.place or origin.reference.startswith("-"):
        raise _bad("--ref" if origin.place else "--git", origin.reference or origin.place, "no reference")
    sparse = []
    for path in origin.sparse:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not parts or path.startswith(("/", '"')) or ".." in parts or "\n" in path:
            raise _bad("--sparse", path, "no folder of a repository")
        sparse.append("/".join(parts))
    return replace(origin, place=local_path(origin.place) or origin.place, sparse=tuple(sparse))


def _bad(option: str, value: str, what: str) -> PolicyError:
    return PolicyError(
        Code.POLICY_USAGE, f"{value!r} is {what}", place=option, step="options",
        hint="hostfork baseline create NAME --git URL --ref main --sparse src",
    )  # fmt: skip


class _Maker:
    """Makes the trees of one kind of origin."""

    pool: str | None = None
    """The pool that serves best."""
    commit = ""
    left_out: tuple[str, ...] = ()
    started_from = ""

    def __init__(self, origin: Origin, told: Told | None) -> None:
        self.origin, self.told = origin, told

    def paths(self, at: str | None) -> tuple[str | None, ...]:
        """Where forks have the trees. Raises PolicyError."""
        return (at,)

    def check(self, baseline: Baseline) -> None:
        """Raise BaselineError where it has not the trees any more that it had."""

    def fill(self, number: int, tree: str, top: Generation | None) -> None:
        """Make one."""
        raise ValueError(f"nothing makes trees of {self.origin.kind.value}")

    def finish(self, baseline: Baseline) -> None:
        """The baseline is there."""


class _Archive(_Maker):
    def fill(self, number: int, tree: str, top: Generation | None) -> None:
        from hostfork.baseline.archive import unpack

        told, place = self.told, self.origin.place
        unpack(place, tree, None if told is None else lambda files, done: told(place, files, done, None, None))


class _Git(_Maker):
    def __init__(self, origin: Origin, told: Told | None) -> None:
        super().__init__(origin, told)
        self._wanted = Wanted(origin.place, origin.reference, origin.sparse)
        self._clean = False

    def paths(self, at: str | None) -> tuple[str | None, ...]:
        from hostfork.baseline.git import work_tree

        return (at or work_tree(self.origin.place),)

    def fill(self, number: int, tree: str, top: Generation | None) -> None:
        found = self._again(tree, top, self.origin.commit) if top is not None else self._from_nearest(tree)
        if found is None:
            from hostfork.baseline.git import check_out

            found = check_out(self._wanted, tree, self._ticking(tree))
        self.commit, self._clean = found.commit, found.clean
        self.left_out = found.submodules

    def _ticking(self, tree: str) -> Callable[[], None] | None:
        """Tells how much git has got."""
        from hostfork.baseline.git import received, without_password

        told, place = self.told, without_password(self.origin.place)
        return None if told is None else lambda: told(place, 0, received(tree), None, None)

    def finish(self, baseline: Baseline) -> None:
        from hostfork.baseline.prebuilt import Index, Prebuilt, key_of

        index, key = Index(state_folder()), key_of(self._wanted)
        if self._clean:
            index.put(Prebuilt(key, baseline.name, self.commit, bool(self._wanted.sparse), baseline.refreshed))

    def _again(self, tree: str, generation: Generation, commit: str) -> CheckedOut | None:
        """Another generation brought up to date; None where that is not exactly the commit, and so no beginning."""
        from hostfork.baseline.git import is_clean, update

        staged.copy_of(generation, tree)
        if is_clean(tree, commit):
            return update(self._wanted, tree, self._ticking(tree))
        _remove(tree)
        return None

    def _from_nearest(self, tree: str) -> CheckedOut | None:
        from hostfork.baseline.prebuilt import Index, key_of

        index, known = Index(state_folder()), baselines.catalog()
        for one in index.nearest(key_of(self._wanted)):
            if one.partial:
                continue  # it lacks content that this one is to have
            try:
                baseline = known.load(one.baseline)
                if (baseline.origin.kind, baseline.origin.commit) != (OriginKind.GIT, one.commit):
                    continue
                with _newest(baseline) as generation:
                    found = self._again(tree, generation, one.commit)
            except HostforkError as error:
                if error.code not in _GONE:
                    raise
                index.drop(one.key)
                continue
            if found is not None:
                self.started_from = baseline.name
                return found
        return None


_GONE = (Code.BASELINE_NOT_FOUND, Code.BASELINE_CORRUPT, Code.BASELINE_LOST, Code.BASELINE_DAMAGED)


class _Fork(_Maker):
    def __init__(self, origin: Origin, told: Told | None) -> None:
        from hostfork.lifecycle.changes import private_paths
        from hostfork.lifecycle.fork import Fork

        super().__init__(origin, told)
        self._words = ""
        place = origin.place
        if "@" in place:
            from hostfork.lifecycle import moments

            place, checkpoint = moments.find(Store(state_folder()), place)
            self._words = f"{place}@{checkpoint.id}"
        self._fork: Fork = Fork.open(place)
        record = self._fork.record
        self._private: tuple[PathRecord, ...] = private_paths(record)
        # A later fork may have the name, and the second; its owner is another process.
        owner = record.owner
        who = "" if owner is None else f" {owner.boot_id} {owner.pid} {owner.start_time}"
        self.origin = replace(origin, place=self._words or record.name, reference=record.created + who)
        self.pool = record.pool

    def paths(self, at: str | None) -> tuple[str | None, ...]:
        if at is not None and len(self._private) > 1:
            raise PolicyError(
                Code.POLICY_USAGE, f"{self._fork.name} has {len(self._private)} private paths, not all can be at {at}",
                place="--at", step="options", hint="leave out --at: each is at its own path",
            )  # fmt: skip
        self._check_folders()
        return (at,) if at is not None else tuple(path.path for path in self._private)

    def check(self, baseline: Baseline) -> None:
        known = baseline.origin
        if (self.origin.place, self.origin.reference) != (known.place, known.reference):
            raise _fork_gone(baseline)
        self._check_folders()
        own = [path.path for path in self._private]
        if len(own) != len(baseline.trees) or (len(own) > 1 and own != [tree.path for tree in baseline.trees]):
            raise BaselineError(
                Code.BASELINE_ORIGIN, f"the fork {self._fork.name} has not the paths that {baseline.name} was made of",
                hint=f"hostfork baseline remove {baseline.name}",
            )  # fmt: skip

    def _check_folders(self) -> None:
        from hostfork.lifecycle.changes import content_of

        for path in self._private:
            content = content_of(self._fork.record, path)
            if isinstance(content, FullTree | Delta) and not os.path.isdir(content.tree):
                raise BaselineError(
                    Code.BASELINE_ORIGIN, f"{path.written} is a single file, and a baseline is made of folders",
                    path=path.path, hint=f"hostfork run --private {os.path.dirname(path.path)} …",
                )  # fmt: skip

    def fill(self, number: int, tree: str, top: Generation | None) -> None:
        path = self._private[number]
        if self._words:
            from hostfork.lifecycle.past import Past

            with Past(Store(state_folder()), self._words) as past:
                self.left_out += past.write_tree(path, tree)
        else:
            self.left_out += self._fork.write_tree(path, tree)
        for name in path.omit:
            staged.stand_in(tree, name, os.path.isdir(os.path.join(path.path, name)))
        inside = path.path + "/"
        for below in (other.path.removeprefix(inside) for other in self._private if other.path.startswith(inside)):
            parts = below.split("/")
            for count in range(1, len(parts) + 1):
                staged.stand_in(tree, "/".join(parts[:count]), True)


@contextlib.contextmanager
def _newest(baseline: Baseline) -> Iterator[Generation]:
    """The newest generation of one that has a single tree, which holds still as long as this lasts."""
    (line,) = baseline.lines
    source = line.source
    if source is None:
        raise baselines.lost(baseline)
    with current.locked(line, source):
        top = line.top()
        if top is None or not current.is_whole(top):
            raise baselines.lost(baseline)
        yield top


def _fork_gone(baseline: Baseline) -> BaselineError:
    return BaselineError(
        Code.BASELINE_ORIGIN, f"the fork {baseline.origin.place}, of which {baseline.name} was made, is gone",
        hint=f"{baseline.name} can be used as it is · hostfork baseline create NAME --from-fork FORK",
    )  # fmt: skip


def _maker(origin: Origin, told: Told | None) -> _Maker:
    kinds = {OriginKind.ARCHIVE: _Archive, OriginKind.GIT: _Git, OriginKind.FORK: _Fork}
    return kinds[origin.kind](origin, told)


def _remove(tree: str) -> None:
    from hostfork.storage.tree import remove_tree

    above, name = os.path.split(tree)
    opened = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(name, opened)
    finally:
        os.close(opened)
