"""Branches: a new fork whose base is what another one holds now, and which knows nothing more of that one.

    ready -> ForkFolder    new_record -> Record    held still -> branch of every private path    kept, with no changes

The record is there before the storage that it names, so that recovery gives back what a killed branch left. What it
left beside the other fork's storage is removed by the next one, by the next entering, or by recovery.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator

from hostfork.collect.changeset import Counts
from hostfork.errors import Code, ForkError, HostforkError
from hostfork.lifecycle import audit, changes, moments, uses
from hostfork.lifecycle.checkpoints import ready
from hostfork.lifecycle.context import who
from hostfork.lifecycle.prepare import base_file, free_ports_for
from hostfork.lifecycle.probes import SOURCES, write_stamp
from hostfork.lifecycle.record import SCHEMA, Parent, PathRecord, Record, observed_activity
from hostfork.lifecycle.release import Leftovers, erased, release
from hostfork.lifecycle.still import Still
from hostfork.lifecycle.store import ForkFolder, Store, as_fork_error, now, state_folder
from hostfork.lifecycle.terms import FILE as TERMS
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import Content, Fill, FullTree, Layer, Prepared
from hostfork.values import frozen, replace
from hostfork.vocabulary import Access, Activity, BaseContent, Disposition, SourceChanged
from hostfork.workload.identity import boot_id, identify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


@frozen
class Branched:
    """What making a branch gave. `bytes` were copied; `pause`: seconds for which the fork's processes were held still,
    None where none ran, or none had to be."""

    record: Record
    seconds: float
    bytes: int
    pause: float | None = None


def branch(name: str, new: str | None = None, tags: Sequence[tuple[str, str]] = ()) -> Branched:
    """Make a fork whose base is what another one, running or not, holds now; `new` None finds it a name.

    Raises HostforkError; then there is none, and that one is as it was.
    """
    store = Store(state_folder())
    with store.find(name) as of:
        return _branch(store, of, new, tags)


def _branch(store: Store, of: ForkFolder, name: str | None, tags: Sequence[tuple[str, str]]) -> Branched:
    start = time.monotonic()
    with ready(of), uses.using(of.path):
        moments.must_not_be_restoring(of)
        parent = of.load()
        running = observed_activity(parent) in (Activity.RUNNING, Activity.FROZEN)
        contents = [changes.content_of(parent, path) for path in changes.private_paths(parent)]
        copies = running and not all(map(_has_snapshots, contents))
        if copies:
            _must_stop(parent)
        with store.create(name) as fork, _made(fork):
            record = fork.save(_new_record(fork, parent, tags))
            fork.note("created", pool=record.pool, cgroup=None)
            with _held_still(of, parent, copies) as still:
                made = [_branched(of, parent, fork, old, new) for old, new in _pairs(parent, record)]
            record = _kept(store, of, fork, record, [one for one in made if one is not None])
    copied = sum(one[1].bytes_copied for one in made if one is not None)
    audit.try_to_tell(store, parent, audit.Event.BRANCHED, by=record.by, branch=record.name)
    return Branched(record, time.monotonic() - start, copied, still.pause if still is not None else None)


def _must_stop(record: Record) -> None:
    """What is copied from under its processes has to hold still. Raises ForkError `fork.busy`."""
    if record.cgroup is None or not os.path.isdir(record.cgroup):
        raise ForkError(
            Code.FORK_BUSY, f"{record.name} is running and cannot be held still for a branch",
            details=("its processes are owned by no cgroup",), hint=f"hostfork stop {record.name}",
        )  # fmt: skip


def _has_snapshots(content: Content) -> bool:
    """Whether it is taken at one instant."""
    return isinstance(content, FullTree) and content.base is not None


@contextlib.contextmanager
def _held_still(of: ForkFolder, parent: Record, copies: bool) -> Iterator[Still | None]:
    if not copies:
        yield None
        return
    with Still(of, parent) as still:
        yield still


@contextlib.contextmanager
def _made(fork: ForkFolder) -> Iterator[None]:
    """A new fork: whatever fails gives back all of it."""
    try:
        yield
    except BaseException as error:
        left = _given_back(fork)
        for sentence in left:
            error.add_note(sentence)
        if isinstance(error, HostforkError):
            error.details += left
        raise


def _given_back(fork: ForkFolder) -> tuple[str, ...]:
    try:
        if not os.path.exists(fork.file("record.json")):
            fork.remove()
            return ()
        record = fork.load()
        return erased(record.pool, release(fork, record, Leftovers())).told
    except (HostforkError, OSError) as error:
        return (f"what was made of {fork.name} could not be given back: {error}", "hostfork recover does it")


def _new_record(fork: ForkFolder, parent: Record, tags: Sequence[tuple[str, str]]) -> Record:
    """The record of a branch that is about to be made: it names everything that a crash could leave."""
    return replace(
        parent,
        name=fork.name,
        schema=SCHEMA,
        created=now(),
        boot_id=boot_id(),
        paths=tuple(_new_path(path, f"{fork.name}.{number}") for number, path in enumerate(parent.paths)),
        cgroup=None,
        owner=identify(os.getpid()),
        keeper=None,
        command_process=None,
        mount_namespace=None,
        activity=Activity.PREPARING,
        disposition=Disposition.OPEN,
        status=None,
        ended=None,
        counts=Counts(),
        torn=False,
        ignored_only=False,
        id=os.urandom(6).hex(),
        by=who(tags),
        approved=None,
        lasting=True,
        holder=None,
        ports=free_ports_for(fork, tuple(variable for variable, _ in parent.ports)),
        parent=Parent(parent.name, parent.id),
    )


def _new_path(path: PathRecord, key: str) -> PathRecord:
    if path.access is Access.SCRATCH:
        return replace(path, key=key)  # made empty when it is entered
    assert path.guarantee is not None
    live = path.guarantee.depends_on_source
    return replace(
        path, key=key, bytes_copied=0, taken=None,
        base_content=path.base_content if live else BaseContent.KEPT,
        source_changed=SourceChanged.NOT_CHECKED if live else SourceChanged.IRRELEVANT,
    )  # fmt: skip


def _pairs(parent: Record, record: Record) -> Iterator[tuple[PathRecord, PathRecord]]:
    return zip(parent.paths, record.paths, strict=True)


def _branched(
    of: ForkFolder, parent: Record, fork: ForkFolder, old: PathRecord, new: PathRecord
) -> tuple[PathRecord, Prepared] | None:
    """Make the storage of one private path."""
    if old.access is not Access.PRIVATE:
        return None
    from hostfork.collect.manifest import StatManifestWriter
    from hostfork.lifecycle.refill import write_whole

    start = time.time()
    mounted = parent.activity is not Activity.IDLE
    fill = Fill(lambda tree: write_whole(of, parent, old, tree), mounted)
    storage = storage_of(old.storage)
    content = storage.content(old.key, parent.pool)
    if not isinstance(content, Layer) and not _has_snapshots(content):
        base = StatManifestWriter(base_file(fork, new))
        prepared = storage.branch(new.key, old.key, parent.pool, fill, base.witness)
        with as_fork_error("what a private path held at first cannot be written down", fork.path), base:
            pass
    else:
        prepared = storage.branch(new.key, old.key, parent.pool, fill)
    return replace(new, bytes_copied=prepared.bytes_copied, taken=(start, time.time())), prepared


def _kept(
    store: Store, of: ForkFolder, fork: ForkFolder, record: Record, made: Sequence[tuple[PathRecord, Prepared]]
) -> Record:
    """It is there, with no changes, on the terms of the fork that it is of."""
    with as_fork_error("what a branch is to know cannot be written down", fork.path):
        for name in (TERMS, SOURCES):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(of.file(name), fork.file(name))
        write_stamp(fork, record.pool)
    paths = {path.key: path for path, _ in made}
    record = replace(record, paths=tuple(paths.get(path.key, path) for path in record.paths))
    record = fork.advance(record, Activity.IDLE, durable=True)
    uses.begin(fork.path)
    fork.note("kept")
    with contextlib.suppress(ForkError):  # a full disk; the branch is there
        audit.tell_all(store, record, (audit.created(record),))
    return record
