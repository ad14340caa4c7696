"""What is decided about a fork's changes: sealed, opened again, waiting for approval, approved.

A decision is made under the fork's lock and told in its log. Whoever approves is outside of every fork, by what the
kernel says: workspace isolation keeps honest programs apart, it does not hold one that is out to deceive.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from hostfork.errors import Code, ForkError
from hostfork.lifecycle import audit, uses
from hostfork.lifecycle.audit import Event
from hostfork.lifecycle.contents import changes_id
from hostfork.lifecycle.context import who
from hostfork.lifecycle.record import Approval, Record, Who, observed_activity
from hostfork.lifecycle.store import ForkFolder, Store, now, state_folder
from hostfork.vocabulary import Activity, Disposition


def seal(name: str, tags: Sequence[tuple[str, str]] = ()) -> tuple[Record, bool]:
    """Let nothing more be written in a fork; says whether that was a change. Raises ForkError."""
    with _deciding(name) as (store, folder, record):
        if record.disposition is Disposition.SEALED:
            return record, False
        record = folder.decide(record, Disposition.SEALED)
        audit.tell(store, record, Event.SEALED, by=who(tags), after=changes_id(folder, record))
        return record, True


def unseal(name: str, tags: Sequence[tuple[str, str]] = ()) -> tuple[Record, bool]:
    """Open a fork again that is sealed or waits for approval; an approval is void then. Raises ForkError."""
    with _deciding(name) as (store, folder, record):
        if record.disposition is Disposition.OPEN:
            return record, False
        record = folder.decide(record, Disposition.OPEN, approved=None)
        audit.tell(store, record, Event.UNSEALED, by=who(tags))
        return record, True


def approve(name: str, tags: Sequence[tuple[str, str]] = ()) -> tuple[Record, bool]:
    """Approve a fork's changes as they are now, and seal it. Raises ForkError `fork.inside` within any fork."""
    must_be_outside()
    with _deciding(name) as (store, folder, record):
        content = changes_id(folder, record)
        if is_approved(record, content):
            return record, False
        approval = Approval(who(tags), now(), content)
        record = folder.decide(record, Disposition.SEALED, approved=approval)
        audit.tell(store, record, Event.APPROVED, by=who(tags), after=content)
        return record, True


def must_be_approved(store: Store, folder: ForkFolder, record: Record, by: Who | None = None) -> None:
    """Before an apply, under the fork's lock: where its policy demands approval and there is none, it waits from now.

    Raises ForkError `fork.approval`; also where the changes are not those that were approved.
    """
    if not record.asked.approval:
        return
    content = changes_id(folder, record)
    if is_approved(record, content):
        return
    other = record.approved is not None and record.approved.content != content
    if record.disposition is not Disposition.AWAITING_APPROVAL:
        record = folder.decide(record, Disposition.AWAITING_APPROVAL, approved=None)
        audit.tell(store, record, Event.REQUESTED, by=by, after=content)
    raise ForkError(
        Code.FORK_APPROVAL,
        f"{record.name} was changed after it was approved" if other else f"{record.name} waits for approval",
        step="approval",
        details=("its policy says that changes are applied only when somebody outside has approved them",),
        hint=f"hostfork diff {record.name} · hostfork approve {record.name}",
    )


def is_approved(record: Record, content: str) -> bool:
    """Whether these changes of it were approved, and it was not opened since."""
    closed = record.disposition in (Disposition.SEALED, Disposition.APPLIED)
    return closed and record.approved is not None and record.approved.content == content


def must_be_outside() -> None:
    """Raises ForkError `fork.inside` in a process of a fork: by its environment, its cgroup, its mount namespace."""
    fork = os.environ.get("HOSTFORK_FORK") or _fork_around()
    if fork:
        raise ForkError(
            Code.FORK_INSIDE, "changes are approved from outside of forks, and this is inside of one", place=fork,
            hint="call it in a shell that no fork started",
        )  # fmt: skip


def _fork_around() -> str | None:
    """The fork in whose cgroup this process is, or whose view it or one above it has."""
    records = list(_records(Store(state_folder())))
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        groups = [line.rstrip("\n").partition("::")[2] for line in file]
        for record in records:
            if record.cgroup and any(_is_in(group, record) for group in groups if group):
                return record.name
    views = {record.mount_namespace: record.name for record in records if observed_activity(record) in _ALIVE}
    return next((views[view] for view in _views() if view in views), None)


_ALIVE = (Activity.RUNNING, Activity.FROZEN, Activity.ORPHANED)


def _is_in(group: str, record: Record) -> bool:
    return f"{group}/".find(f"/{os.path.basename(record.cgroup or '')}/") >= 0


def _views() -> Iterator[int]:
    """The mount namespaces of this process and of those above it, as far as this user may look."""
    pid = os.getpid()
    while pid > 0:
        try:
            yield os.stat(f"/proc/{pid}/ns/mnt").st_ino
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b") ")[2].split()[1])
        except OSError:
            return


def _records(store: Store) -> Iterator[Record]:
    for name in store.names():
        with contextlib.suppress(ForkError), store.open(name) as folder:
            yield folder.load()


@contextlib.contextmanager
def _deciding(name: str) -> Iterator[tuple[Store, ForkFolder, Record]]:
    """An idle fork under its lock. Raises ForkError `fork.busy`."""
    store = Store(state_folder())
    with store.find(name) as folder:
        if not folder.lock() or observed_activity(folder.load()) is not Activity.IDLE:
            raise ForkError(
                Code.FORK_BUSY, f"{folder.name} is in use, and what it holds may still change",
                hint=f"end its command first · hostfork show {folder.name}",
            )  # fmt: skip
        with uses.using(folder.path):
            yield store, folder, folder.load()
