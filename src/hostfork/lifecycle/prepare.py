"""Makes what a plan says: the fork's record first, then its private storage, each thing named before it is made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hostfork import __version__
from hostfork.errors import Code, StorageError
from hostfork.helper.lean import dumps
from hostfork.lifecycle.context import who
from hostfork.lifecycle.events import Event, PreparedPath, Progress, Warned
from hostfork.lifecycle.record import SCHEMA, Asked, Host, PathRecord, Record
from hostfork.lifecycle.request import Request
from hostfork.lifecycle.store import ForkFolder, as_fork_error, now, plain
from hostfork.policy.plan import PathPlan, Plan
from hostfork.policy.repository import head_of, repository_of
from hostfork.storage import scratch
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import Offer, Prepared, Source
from hostfork.values import replace
from hostfork.vocabulary import Access, BaseContent, Guarantee, SourceChanged, StorageKind
from hostfork.workload.identity import boot_id, identify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.storage.tally import Tally

_MOST_NAMED = 100
"""Paths of one kind that a record names."""
_COUNT_AFTER = 0.3
"""Seconds after which it is worth a process to know how far a copy is."""
Tell = Callable[[Event], None]


def new_record(fork: ForkFolder, plan: Plan, request: Request, cwd: str) -> Record:
    """The record of a fork that is about to be made: it names everything that a crash could leave."""
    paths = tuple(
        _path_record(path, f"{fork.name}.{index}")
        for index, path in enumerate(plan.paths)
        if path.access is Access.PRIVATE or (path.access is Access.SCRATCH and path.tmpfs_size is None)
    )
    return Record(
        name=fork.name,
        schema=SCHEMA,
        created=now(),
        boot_id=boot_id(),
        command=request.command,
        cwd=cwd,
        policy=plan.policy,
        pool=plan.pool,
        paths=paths,
        ownership=plan.ownership,
        same_paths=plan.same_paths,
        cgroup=None if plan.cgroup_parent is None else f"{plan.cgroup_parent}/hostfork-{fork.name}",
        owner=identify(os.getpid()),
        storage_limit=plan.storage_limit,
        id=os.urandom(6).hex(),
        by=who(request.tags),
        ports=free_ports_for(fork, request.ports),
        asked=_asked(plan),
        made_on=Host(os.uname().nodename, os.uname().release, __version__),
    )


def _asked(plan: Plan) -> Asked:
    """What the record keeps of the policy."""
    from _blake2 import blake2b

    policy = plan.asked
    if policy is None:
        return Asked()
    # where a rule stands, and in which words, is no part of what it says
    rules = tuple(replace(rule, place="", written="") for rule in policy.rules)
    ends = tuple(replace(end, place="", written="") for end in policy.endpoints)
    said = replace(policy, name="", description="", rules=rules, endpoints=ends)
    digest = blake2b(dumps(plain(said)).encode("ascii"), digest_size=16).hexdigest()
    return Asked(digest, policy.requires, policy.approval, policy.trusted)


def free_ports_for(fork: ForkFolder, names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """A free port of the fork's own for each of these variables."""
    if not names:
        return ()
    from hostfork.lifecycle.ports import free_ports

    return free_ports(os.path.dirname(fork.path), names)


def prepare(fork: ForkFolder, record: Record, plan: Plan, tell: Tell) -> Record:
    """Make the storage of every path. What was made is in the record; on an error the caller releases it."""
    estimates = {path.path: path.offer for path in plan.paths}
    made = []
    for path in record.paths:
        if path.access is Access.SCRATCH:
            scratch.prepare(path.key, path.path, record.pool)
            made.append(path)
            continue
        offer = estimates[path.path]
        assert offer is not None  # a plan with a private path that nothing serves does not exist
        start = time.time()
        progress = _Progress(path, offer, tell)
        try:
            prepared = _prepare_private(fork, path, plan, progress)
        finally:
            progress.end()
        guarantee = offer.guarantees.guarantee
        _check_kept(path, guarantee, prepared.guarantee)
        tell(PreparedPath(path.path, offer.mechanism, guarantee, prepared.files, prepared.bytes_copied,
                          prepared.seconds, prepared.unwritable, prepared.lost))  # fmt: skip
        if prepared.skipped:
            tell(Warned(_skipped(path, prepared.skipped)))
        unwritable, lost = prepared.unwritable[:_MOST_NAMED], prepared.lost[:_MOST_NAMED]
        taken = (start, time.time())
        # What was skipped is not collected: all of it is left out by name, as what a mount covers.
        made.append(
            replace(
                path, bytes_copied=prepared.bytes_copied, unwritable=unwritable, taken=taken, lost=lost,
                omit=path.omit + prepared.skipped, skipped=prepared.skipped,
            )
        )  # fmt: skip
    fork.note("prepared")
    return replace(record, paths=tuple(made))


def base_file(fork: ForkFolder, path: PathRecord) -> str:
    """Where the stat manifest of a path's base lies."""
    return fork.file(f"base.{path.key.rpartition('.')[2]}")


def _skipped(path: PathRecord, skipped: tuple[str, ...]) -> str:
    named = ", ".join(skipped[:3]) + (f" and {len(skipped) - 3} more" if len(skipped) > 3 else "")
    return f"left out of {path.written}, since this user cannot read it: {named}"


def _prepare_private(fork: ForkFolder, path: PathRecord, plan: Plan, progress: _Progress) -> Prepared:
    assert path.guarantee is not None
    storage, pool = storage_of(path.storage), plan.pool
    source = Source(path.path, path.omit, skip_unreadable=plan.skip_unreadable)
    if path.line is not None:
        from hostfork.lifecycle.baselines import started_from

        with started_from(pool, path.line, path.storage) as generation:
            return storage.prepare(path.key, replace(source, retained=generation), pool, None, progress)
    if path.storage is StorageKind.RETAINED:
        return _over_baseline(path, source, pool, progress)
    if path.guarantee.depends_on_source or path.base_content is BaseContent.KEPT:
        return storage.prepare(path.key, source, pool, None, progress)  # the base is the source itself, or stays whole
    from hostfork.collect.manifest import StatManifestWriter

    base = StatManifestWriter(base_file(fork, path))
    prepared = storage.prepare(path.key, source, pool, base.witness, progress)
    with as_fork_error("what a private path held at first cannot be written down", fork.path), base:
        return prepared


def _over_baseline(path: PathRecord, source: Source, pool: str, progress: _Progress) -> Prepared:
    """Make the baseline of the source equal to it, and storage over that."""
    from hostfork.baseline.current import current, is_durable

    with current(source, pool, progress, progress.waiting) as ready:
        there = replace(source, retained=ready.generation.path)
        prepared = storage_of(path.storage).prepare(path.key, there, pool)
    if not is_durable(ready.generation):
        from hostfork.baseline.settler import start

        start(ready.generation)
    return replace(
        prepared, files=ready.files, bytes_copied=ready.bytes, seconds=prepared.seconds + ready.seconds,
        unwritable=ready.facts.unwritable or prepared.unwritable, lost=ready.facts.lost,
    )  # fmt: skip


def _check_kept(path: PathRecord, planned: Guarantee, kept: Guarantee | None) -> None:
    """A fork keeps what its plan says, or there is none."""
    if kept is None or kept.keeps(planned):
        return
    raise StorageError(
        Code.STORAGE_SOURCE,
        f"{path.path} is no longer what was planned for: what was taken of it is `{kept.value}`, not `{planned.value}`",
        step="prepare",
        path=path.path,
        details=("a Btrfs subvolume was made beneath it meanwhile",),
        hint="run it again: the new plan says what it keeps",
    )


class _Progress:
    """Tells how far one path is, and of how much: as estimated, else as counted beside a copy that takes long."""

    def __init__(self, path: PathRecord, offer: Offer, tell: Tell) -> None:
        self._path = path
        self._tell = tell
        self._files, self._bytes = offer.files_estimate, offer.bytes_estimate
        self._copies = offer.bytes_estimate != 0 or offer.kind is StorageKind.RETAINED
        self._count_from = time.monotonic() + _COUNT_AFTER
        self._tally: Tally | None = None

    def __call__(self, files: int, done: int) -> None:
        if self._files is None and time.monotonic() > self._count_from:
            self._count()
        retained = self._path.storage is StorageKind.RETAINED
        self._tell(Progress(self._path.path, files, done, self._files, self._bytes or None, retained))

    def waiting(self) -> None:
        """Another process is making the baseline of this path."""
        self._tell(Warned(f"waiting for another run, which is making the baseline of {self._path.written}"))

    def _count(self) -> None:
        if self._tally is None:
            from hostfork.storage.tally import Tally

            self._tally = Tally(self._path.path, self._path.omit)
        found = self._tally.found()
        if found is not None:
            self._files, self._bytes = found[0], found[1] if self._copies else 0

    def end(self) -> None:
        """The copy is done, or failed."""
        if self._tally is not None:
            self._tally.end()


def _path_record(path: PathPlan, key: str) -> PathRecord:
    if path.offer is None:
        return PathRecord(
            path.access, path.path, path.written, path.folder, key, StorageKind.SCRATCH, omit=path.omit,
            source_changed=SourceChanged.IRRELEVANT,
        )  # fmt: skip
    guarantee = path.offer.guarantees.guarantee
    # what starts from a baseline has the commit of that, which may be another one
    repository = repository_of(path.path) if path.line is None else None
    return PathRecord(
        path.access,
        path.path,
        path.written,
        path.folder,
        key,
        path.offer.kind,
        mechanism=path.offer.mechanism,
        guarantee=guarantee,
        omit=path.omit,
        line=path.line,
        base_content=path.offer.guarantees.base_content,
        source_changed=SourceChanged.NOT_CHECKED if guarantee.depends_on_source else SourceChanged.IRRELEVANT,
        in_repository=None if repository is None else repository.top,
        head=None if repository is None else head_of(repository),
    )
