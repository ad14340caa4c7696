"""One fork as others see it after its run: its record, what it is doing, what changed, and how it goes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence

from hostfork.collect.changeset import Changeset, Counts
from hostfork.errors import Code, ForkError, HostforkError, StorageError
from hostfork.lifecycle import audit, changes, uses
from hostfork.lifecycle.record import ForkProcess, PathRecord, Record, observed_activity
from hostfork.lifecycle.release import await_keeper, close_view, end_writers, erased, members_of, release
from hostfork.lifecycle.request import ExportForm
from hostfork.lifecycle.store import ForkFolder, Store, state_folder
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import Usage
from hostfork.values import frozen
from hostfork.vocabulary import Activity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from hostfork.collect.manifest import StatManifest
    from hostfork.collect.stack import Base
    from hostfork.lifecycle.entries import Entry as ForkCommand
    from hostfork.lifecycle.export import ExportReport
    from hostfork.lifecycle.meeting import Meeting
    from hostfork.lifecycle.receipt import Receipt


@frozen
class BrokenFork:
    """A fork whose record cannot be read: it can be listed, explained and discarded."""

    name: str
    error: HostforkError

    def discard(self) -> tuple[str, ...]:
        """Remove its folder and whatever the default pool holds under its name. Returns what is left."""
        from hostfork.lifecycle.recover import remove_unrecorded

        return remove_unrecorded(Store(state_folder()), self.name)


class Fork:
    """A fork by its record. Nothing is held open: every call looks again."""

    def __init__(self, folder: ForkFolder, record: Record) -> None:
        self._folder = folder
        self.record = record

    @classmethod
    def open(cls, name: str) -> Fork:
        """The fork of that name or unique beginning. Raises ForkError."""
        return cls._of(Store(state_folder()).find(name))

    @classmethod
    def _of(cls, folder: ForkFolder) -> Fork:
        try:
            return cls(folder, folder.load())
        finally:
            folder.close()

    @classmethod
    def all(cls) -> tuple[Fork | BrokenFork, ...]:
        """Every fork, in the order of names."""
        found: list[Fork | BrokenFork] = []
        store = Store(state_folder())
        for name in store.names():
            try:
                found.append(cls._of(store.open(name)))
            except ForkError as error:
                if error.code is Code.FORK_CORRUPT and not store.being_made(name):
                    found.append(BrokenFork(name, error))
        return tuple(found)

    @property
    def name(self) -> str:
        """Its name, which is its id."""
        return self.record.name

    @property
    def activity(self) -> Activity:
        """What it is doing, observed."""
        return observed_activity(self.record)

    @property
    def age(self) -> float:
        """Seconds since it was made."""
        from calendar import timegm

        return max(0.0, time.time() - timegm(time.strptime(self.record.created, "%Y-%m-%dT%H:%M:%SZ")))

    def space(self) -> Usage:
        """What its private storage takes; nothing where that is gone."""
        usages = [self._usage(path) for path in changes.private_paths(self.record)]
        return Usage(
            sum(usage.bytes for usage in usages),
            sum(usage.inodes for usage in usages),
            any(usage.upper_bound for usage in usages),
        )

    def _usage(self, path: PathRecord) -> Usage:
        try:
            return storage_of(path.storage).usage(path.key, self.record.pool)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return Usage(0, 0, False)

    def processes(self) -> tuple[ForkProcess, ...]:
        """What runs in it now, as far as this user can see it, in the order of pids."""
        if self.activity is Activity.IDLE:
            return ()
        return tuple(filter(None, map(_process, sorted(members_of(self.record)))))

    def commands(self) -> tuple[tuple[ForkCommand, tuple[ForkProcess, ...]], ...]:
        """The commands in it, those too that ran in the background and ended, each with its processes."""
        from hostfork.lifecycle.stopping import commands, pids_of

        return tuple(
            (one, tuple(filter(None, map(_process, pids_of(self.record, one)))) if one.running else ())
            for one in commands(self._folder, self.record)
        )

    def counts(self) -> Counts | None:
        """How much changed, where that is known without looking."""
        return self.record.counts

    @property
    def last_use(self) -> float:
        """When its content was last used, or its command ended: seconds of the clock."""
        return uses.last_use(self._folder.path, self.record)

    @property
    def pinned(self) -> bool:
        """Whether it never expires."""
        return uses.is_pinned(self._folder.path)

    def pin(self, wanted: bool = True) -> bool:
        """Let it never expire, or expire as others do; says whether that was a change. Raises ForkError."""
        return uses.pin(self._folder.path, wanted)

    def goes(self) -> float | None:
        """When it expires if nobody uses it: seconds of the clock; None where it does not. Raises PolicyError."""
        from hostfork.lifecycle.config import config_file, keep_rules
        from hostfork.lifecycle.expiry import kept_fork

        if self.activity is not Activity.IDLE:
            return None
        return kept_fork(self._folder.path, self.record).goes(keep_rules(config_file()))

    def diff(self, paths: Sequence[str] = ()) -> Changeset:
        """The changes, of all or of these paths and what lies below. Of a running fork: as it is at this moment.

        This and all that reads the content counts as a use: the fork does not expire meanwhile, and its time begins
        anew.
        """
        with uses.using(self._folder.path):
            stored = changes.stored_changes(self._folder)
            if stored is None:
                stored = changes.joined(changes.collect(self._folder, self.record, lambda _path: None))
        return stored.below(paths)

    def patch(self, paths: Sequence[str] = ()) -> Iterator[bytes]:
        """The changes as a patch that `git apply` takes, relative to each private path."""
        from hostfork.collect import diff as text

        with uses.using(self._folder.path):
            changeset = self.diff(paths)
            for path in changes.private_paths(self.record):
                part = changes.part_of(changeset, path)
                if part.changes:
                    base, delta, manifest = self._sides(path)
                    yield from text.patch(part.changes, base, delta, path.path, manifest)

    def line_counts(self, changeset: Changeset) -> dict[str, tuple[int, int] | None]:
        """Lines added and removed for each path, None where that has no meaning."""
        from hostfork.collect import diff as text

        found: dict[str, tuple[int, int] | None] = {}
        with uses.using(self._folder.path):
            for path in changes.private_paths(self.record):
                base, delta, manifest = self._sides(path)
                for change in changes.part_of(changeset, path).changes:
                    found[change.path] = text.line_counts(change, base, delta, path.path, manifest)
        return found

    def export(self, destination: str, form: ExportForm) -> ExportReport:
        """Write the final content, or only what changed, to a new or empty folder. Raises CollectError."""
        from hostfork.lifecycle.export import export

        self._must_be_still("exported")
        with uses.using(self._folder.path):
            return export(self._folder, self.record, self.diff(), destination, form)

    def export_tar(self, file: BinaryIO) -> ExportReport:
        """Write the final content as a tar stream."""
        from hostfork.lifecycle.export import export_tar

        self._must_be_still("exported")
        with uses.using(self._folder.path):
            return export_tar(self._folder, self.record, self.diff(), file)

    def write_tree(self, path: PathRecord, tree: str) -> tuple[str, ...]:
        """Write the final content of one private path with all that it holds; says what could not be made."""
        from hostfork.lifecycle.export import whole_tree

        self._must_be_still("taken")
        with uses.using(self._folder.path):
            return whole_tree(self._folder, self.record, path, self.diff(), tree)

    def overlap(self, other: Fork | None = None) -> tuple[Meeting, ...]:
        """The paths that it changed and that another fork, or the host, changed too. Raises ForkError."""
        from hostfork.lifecycle import meeting

        if other is None:
            return meeting.with_host(self._folder, self.record)
        return meeting.overlap((self._folder, self.record), (other._folder, other.record))

    def receipt(self) -> Receipt:
        """On what it stands, what was verified, what it changed. Reads every changed file. Raises ForkError."""
        from hostfork.lifecycle.receipt import receipt

        self._must_be_still("accounted for")
        with uses.using(self._folder.path):
            return receipt(self._folder, self.record, self.diff())

    def discard(self) -> tuple[str, ...]:
        """End what still lives of it, throw its changes away, give everything back. Returns what is left.

        Raises ForkError `fork.busy` where its owner lives.
        """
        self._must_be_still("discarded")
        store = Store(state_folder())
        with store.settling(), store.open(self.name) as folder:
            record = folder.load()
            free = folder.lock()
            # An orphan's lock may be held by what its owner's program forked, one that lasts by what is in it.
            if not free and (record.lasting or observed_activity(record) not in (Activity.IDLE, Activity.ORPHANED)):
                raise _busy(self.name, "is held by another hostfork")
            await_keeper(record)
            if record.activity is not Activity.IDLE:
                report = end_writers(record, None)
                if report.survivors:
                    raise _busy(
                        self.name, f"has processes that cannot be ended: {', '.join(map(str, report.survivors))}"
                    )
            told = audit.try_to_tell(store, record, audit.Event.DISCARDED)
            had_checkpoints = os.path.exists(folder.file("checkpoints"))
            left = release(folder, record, close_view(record, None))
        if had_checkpoints:
            told += _without_needless_checkpoints(store)
        return told + erased(record.pool, left).told

    def _must_be_still(self, verb: str) -> None:
        if self.activity in (Activity.RUNNING, Activity.FROZEN, Activity.PREPARING, Activity.RELEASING):
            raise _busy(self.name, f"is {self.activity.value} and cannot be {verb} now")

    def _sides(self, path: PathRecord) -> tuple[Base, str, StatManifest | None]:
        """Where the base's and the present content are read, and what tells whether that base is still one."""
        content = changes.content_of(self.record, path)
        base, manifest = changes.base_side(self._folder, self.record.pool, path, content)
        return base, changes.delta_of(content), manifest


def _busy(name: str, what: str) -> ForkError:
    return ForkError(Code.FORK_BUSY, f"{name} {what}", hint=f"end its command first · hostfork show {name}")


def _without_needless_checkpoints(store: Store) -> tuple[str, ...]:
    """Remove what only checkpoints of forks that are gone needed; what could not be, in sentences."""
    from hostfork.lifecycle.checkpoints import collect_garbage

    try:
        collect_garbage(store)
    except HostforkError as error:
        return (error.message, *error.details)
    return ()


def _process(pid: int) -> ForkProcess | None:
    """None where it ended meanwhile or cannot be looked at."""
    import psutil

    try:
        process = psutil.Process(pid)
        return ForkProcess(pid, process.name(), process.memory_info().rss)
    except psutil.Error:
        return None
