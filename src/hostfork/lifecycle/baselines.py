"""Baselines with a name: made of folders, brought up to date, listed, checked, removed; and what forks start from."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

from hostfork.baseline import current
from hostfork.baseline.catalog import Baseline, Catalog, Origin, Tree, name_taken
from hostfork.baseline.current import Ready
from hostfork.errors import BaselineError, Code, PolicyError, StorageError
from hostfork.lifecycle.names import check_name
from hostfork.lifecycle.store import state_folder
from hostfork.policy.host import HostFacts
from hostfork.policy.rules import Policy, Rule
from hostfork.storage.choose import Choice, storage_of
from hostfork.storage.contract import Offer, Refusal, Source
from hostfork.storage.lines import Generation, Line, lines
from hostfork.storage.retained import users_of
from hostfork.values import frozen, replace
from hostfork.vocabulary import Access, OriginKind, Prefer, StorageKind, Stored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.storage.contract import Usage

Told = Callable[[str, int, int, int | None, int | None], None]
"""Told now and then: the path, files and bytes done, and of how many where that is known."""


@frozen
class Made:
    """What making a baseline, or bringing it up to date, took.

    `left_out`: the submodules of a repository, or what of a fork's devices and the like this user cannot make.
    `started_from`: the baseline of the same repository whose content was taken over.
    """

    baseline: Baseline
    files: int
    bytes: int
    seconds: float
    left_out: tuple[str, ...] = ()
    started_from: str = ""


@frozen
class Removed:
    """A baseline that went."""

    name: str


def catalog() -> Catalog:
    """The baselines of this user."""
    return Catalog(state_folder())


def create(name: str, paths: Sequence[str], pool: str | None = None, told: Told | None = None) -> Made:
    """Make a baseline of folders, at whose paths its forks will have it.

    Raises BaselineError `baseline.name-taken`, PolicyError where a path cannot be used, StorageError as a copy does;
    then nothing is left.
    """
    check_name(name)
    known, start = catalog(), time.monotonic()
    if name in known.names():
        raise name_taken(name)
    facts, sources = _sources(paths, pool)
    trees = tuple(Tree(f"{name}.{number}", source.path) for number, source in enumerate(sources))
    now = time.time()
    baseline = Baseline(name, now, now, facts.pool, Origin(OriginKind.FOLDERS), trees)
    with contextlib.ExitStack() as stack:
        for line, source in zip(baseline.lines, sources, strict=True):
            stack.enter_context(current.locked(line, source))
        if name in known.names():
            raise name_taken(name)  # another was quicker
        with removed_on_error(baseline.lines):
            done = [_equal(line, source, told) for line, source in zip(baseline.lines, sources, strict=True)]
            known.add(baseline)
    return _made(baseline, done, start)


def refresh(name: str, told: Told | None = None) -> Made:
    """Bring a baseline up to date with what it was made of. Forks over it show what they showed.

    Raises BaselineError `baseline.not-found`, `.lost`, StorageError; then it is as it was.
    """
    known, start = catalog(), time.monotonic()
    baseline = known.find(name)
    if baseline.origin.kind is not OriginKind.FOLDERS:
        from hostfork.lifecycle import origins

        return origins.refresh(known, baseline, told)
    done = []
    for line in baseline.lines:
        source = line.source
        if source is None:
            raise lost(baseline)
        with current.locked(line, source):
            done.append(_equal(line, source, told))
    baseline = replace(baseline, refreshed=time.time())
    known.replace(baseline)
    return _made(baseline, done, start)


def remove(name: str) -> Removed:
    """Remove a baseline; its space comes back in the background. One that forks lie over stays.

    Raises BaselineError `baseline.not-found`, `.in-use` with their names.
    """
    known = catalog()
    baseline = known.find(name)
    with contextlib.ExitStack() as stack:
        held = [line for line in baseline.lines if stack.enter_context(line.held())]
        forks = users(baseline)
        if forks or len(held) < sum(os.path.isdir(line.path) for line in baseline.lines):
            raise in_use(baseline, forks)
        known.remove(baseline.name)
        for line in held:
            line.remove()
    from hostfork.storage import reclaim

    reclaim.start((baseline.pool,))
    return Removed(baseline.name)


def sweep(known: Catalog, pool: str) -> int:
    """Remove the lines of a pool of ours alone that hold nothing, and those that belong to no baseline: says how many.

    A killed process was making them. One that is being made is locked. Raises OSError.
    """
    named = {tree.line for name in known.names() for tree in known.load(name).trees}
    number = 0
    for line in lines(pool):
        if line.name in named:
            with line.held() as held:
                if held:
                    line.settle()  # what a killed refresh left
            continue
        if line.is_automatic and (line.top() is not None or line.unfit is not None):
            continue
        with line.held() as held:
            # Looked at again: it was recorded, or made, meanwhile.
            there = any(line.name == tree.line for name in known.names() for tree in known.load(name).trees)
            if held and not there and not line.users and (line.top() is None or not line.is_automatic):
                line.remove()
                number += 1
    for baseline in map(known.load, known.names()):
        if baseline.pool == pool and baseline.origin.kind is OriginKind.GIT:
            from hostfork.lifecycle import origins

            origins.put_right(known, baseline)
    return number


def users(baseline: Baseline) -> tuple[str, ...]:
    """The names of the forks that lie over it."""
    keys = [key for line in baseline.lines for key in users_of(line)]
    return tuple(sorted({key.rpartition(".")[0] for key in keys}))


def usage(baseline: Baseline) -> Usage:
    """What its trees take, by a walk; what they share with the source and with each other counts."""
    from hostfork.storage.contract import Usage as Sum
    from hostfork.storage.measure import usage as measured

    trees: set[str] = set()
    for line in baseline.lines:
        for generation in line.generations():
            with contextlib.suppress(OSError):  # it went meanwhile
                trees.update(generation.lowers if line.is_in_subvolumes else (line.path,))
    found = [measured(tree) for tree in trees if os.path.isdir(tree)]
    return Sum(sum(one.bytes for one in found), sum(one.inodes for one in found))


def stored(baseline: Baseline) -> tuple[Stored | None, ...]:
    """How each of its trees was taken at last; None where it is gone."""
    found: list[Stored | None] = []
    for line in baseline.lines:
        top = line.top()
        try:
            found.append(None if top is None else current.Facts.read(top).stored)
        except (OSError, ValueError, KeyError):
            found.append(None)
    return tuple(found)


def rules(name: str, at: str | None) -> tuple[Baseline, tuple[Rule, ...]]:
    """The baseline of that name, and the rules that give a fork its trees: at their own paths, or one at another.

    Raises BaselineError `baseline.not-found`, `.lost`, PolicyError where it has no path of its own, or several.
    """
    baseline = catalog().find(name)
    if baseline.lost:
        raise lost(baseline)
    if baseline.damaged:
        raise _damaged(baseline.name, baseline.pool)
    trees = [(tree, tree.path if at is None else os.path.abspath(at)) for tree in baseline.trees]
    if at is not None and len(trees) > 1:
        raise PolicyError(
            Code.POLICY_USAGE, f"{baseline.name} has {len(trees)} folders, which cannot all be at {at}", place="--at",
            step="options", hint="leave out --at: each is at its own path",
        )  # fmt: skip
    made = []
    for tree, path in trees:
        if path is None:
            raise PolicyError(
                Code.POLICY_USAGE, f"{baseline.name} was not made of a folder, so that it has no path of its own",
                place="--base", step="options", hint=f"--base {baseline.name} --at PATH",
            )  # fmt: skip
        made.append(Rule(Access.PRIVATE, path, path, f"--base {baseline.name}", from_option=True, line=tree.line))
    return baseline, tuple(made)


def check_pool(baseline: Baseline, pool: str) -> None:
    """A fork lies in the pool of its baseline. Raises PolicyError."""
    if baseline.pool != pool:
        raise PolicyError(
            Code.POLICY_CONFLICT, f"the baseline {baseline.name} lies in {baseline.pool}, and its forks must too",
            path=pool, place="--pool", hint=f"--pool {baseline.pool}",
        )  # fmt: skip


def choice(rule: Rule, source: Source, pool: str, prefer: Prefer, elsewhere: bool) -> Choice:
    """What serves a path that starts from a baseline: an overlay over it, or a writable snapshot of it.

    Both take no time, whatever its size; where `native` cannot be had the overlay is taken.
    """
    assert rule.line is not None
    top = Line(pool, rule.line).top()
    if top is None:
        raise _lost(_name_of(rule.line), Line(pool, rule.line).path)
    kinds = (StorageKind.RETAINED, StorageKind.BTRFS)
    refused: list[Refusal] = []
    for kind in kinds if prefer is Prefer.MEMORY else reversed(kinds):
        answer = storage_of(kind).probe(replace(source, retained=top.path), pool)
        if isinstance(answer, Offer) and elsewhere and not answer.guarantees.elsewhere:
            answer = Refusal(answer.mechanism, "it needs a mount, and there are no namespaces to make one in")
        if isinstance(answer, Offer) and kind is StorageKind.RETAINED:
            why = _unfit(top)
            answer = answer if why is None else Refusal(answer.mechanism, why)
        if isinstance(answer, Offer):
            return Choice(answer, tuple(refused))
        refused.append(answer)
    return Choice(None, tuple(refused))


def _unfit(generation: Generation) -> str | None:
    """Why no overlay is laid over a generation. Where that is not known yet it is looked up, in the background."""
    from hostfork.baseline import fitness, settler

    try:
        if not fitness.is_known(generation) and not fitness.is_looked_up(generation):
            settler.start(generation)
        return fitness.obstacle(generation)
    except (OSError, ValueError) as error:
        return f"what is known about the baseline cannot be read: {error}"


@contextlib.contextmanager
def started_from(pool: str, name: str, kind: StorageKind | None = None) -> Iterator[str]:
    """The newest generation of a line, which holds still as long as this lasts. Raises BaselineError, StorageError.

    For an overlay it is one that an overlay can show; where that is not known it is looked up.
    """
    line = Line(pool, name)
    source = line.source
    if source is None:
        raise _lost(_name_of(name), line.path)
    with current.locked(line, source):
        line.settle()
        top = line.top()
        if top is not None and current.is_damaged(top):
            raise _damaged(_name_of(name), line.path)
        if top is None or not current.is_whole(top):
            raise _lost(_name_of(name), line.path)
        if kind is StorageKind.RETAINED:
            _check_fit(top, line)
        yield top.path


def _check_fit(top: Generation, line: Line) -> None:
    """It may have come after the plan was made."""
    from hostfork.baseline import fitness

    try:
        fitness.look_up(top)
        why = fitness.obstacle(top)
    except (OSError, ValueError) as error:
        why = str(error)
    if why is not None:
        raise StorageError(
            Code.STORAGE_UNSUPPORTED, f"no overlay can be laid over the baseline {_name_of(line.name)}: {why}",
            step="prepare", path=line.path, hint="--prefer native takes a writable snapshot of it",
        )  # fmt: skip


def lost(baseline: Baseline) -> BaselineError:
    """Its storage is gone."""
    gone = next((line.path for line in baseline.lines if line.top() is None), baseline.pool)
    return _lost(baseline.name, gone)


def _damaged(name: str, path: str) -> BaselineError:
    return BaselineError(
        Code.BASELINE_DAMAGED, f"the baseline {name} is damaged: it does not hold what it held when it was made",
        path=path, hint=f"hostfork baseline refresh {name} takes it anew · hostfork baseline verify {name} says what",
    )  # fmt: skip


def in_use(baseline: Baseline, forks: Sequence[str]) -> BaselineError:
    """Forks lie over it, or somebody is making one of it."""
    who = ", ".join(forks) or "a run that is being made"
    return BaselineError(
        Code.BASELINE_IN_USE, f"the baseline {baseline.name} is used by {who}", path=baseline.pool,
        hint=f"hostfork discard {' '.join(forks)}" if forks else "try again when it has started",
    )  # fmt: skip


def _name_of(line: str) -> str:
    return line.rpartition(".")[0]


def _lost(name: str, path: str) -> BaselineError:
    return BaselineError(
        Code.BASELINE_LOST, f"the storage of the baseline {name} is gone", path=path,
        hint=f"hostfork baseline remove {name} · hostfork baseline create {name} --from PATH",
    )  # fmt: skip


def _sources(paths: Sequence[str], pool: str | None) -> tuple[HostFacts, tuple[Source, ...]]:
    """The folders as `--private` would take them, with what is left out: mounts beneath, the pool, the state folder."""
    from hostfork.lifecycle.observe import host_facts
    from hostfork.lifecycle.request import Request
    from hostfork.policy.plan import sources
    from hostfork.workload import launch

    policy = Policy("baseline", rules=tuple(
        Rule(Access.PRIVATE, os.path.abspath(path), path, "--from", from_option=True) for path in paths
    ))  # fmt: skip
    helper = launch.take_helper()
    try:
        facts = host_facts(policy, Request((), pool=pool), helper, os.getcwd())
    finally:
        helper.abandon()
    found = tuple(source for _, source in sources(policy, facts))
    for source in found:
        if not os.path.isdir(source.path):
            raise PolicyError(
                Code.POLICY_BAD_PATH, f"{source.path} is a file, and a baseline is made of folders", path=source.path,
                place="--from", hint=f"--from {os.path.dirname(source.path)}",
            )  # fmt: skip
    return facts, found


def _equal(line: Line, source: Source, told: Told | None) -> Ready:
    from hostfork.baseline.settler import settle

    ready = current.made_equal(line, source, None if told is None else _Progress(source, told))
    settle(ready.generation.path)
    return ready


class _Progress:
    """Tells how far a tree is, and of how much, counted when there is something to tell: a snapshot is quick."""

    def __init__(self, source: Source, told: Told) -> None:
        self._told = told
        self._source = source
        self._total: tuple[int, int] | None = None

    def __call__(self, files: int, done: int) -> None:
        if self._total is None:
            from hostfork.storage.measure import tally

            self._total = tally(self._source.path, self._source.omit)
        self._told(self._source.path, files, done, *self._total)


@contextlib.contextmanager
def removed_on_error(lines: Sequence[Line]) -> Iterator[None]:
    """Remove lines that are being made where that does not work."""
    try:
        yield
    except BaseException:
        for line in lines:
            with contextlib.suppress(OSError):
                line.remove()
        raise


def _made(baseline: Baseline, done: Sequence[Ready], start: float) -> Made:
    from hostfork.baseline.settler import start as start_settling

    start_settling(*(ready.generation for ready in done))  # for the sums
    files, size = sum(ready.files for ready in done), sum(ready.bytes for ready in done)
    return Made(baseline, files, size, time.monotonic() - start)
