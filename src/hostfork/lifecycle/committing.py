"""`apply --as-commit`: a fork's final content as a commit on a new branch; work tree, index and HEAD stay as they are.

The commit follows the one that the host's work tree was at when the fork was made, and holds what the fork holds at
last, with what was not committed on the host then. What git ignores stays out, and so do submodules. Commits that were
made inside of the fork are not taken over: their content is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hostfork.apply.commit import Wanted, check_branch, check_commit, has_commit, make_commit
from hostfork.collect.changeset import Changeset
from hostfork.collect.export import export_tree
from hostfork.errors import ApplyError, Code, ForkError
from hostfork.lifecycle import audit, changes, stages, uses
from hostfork.lifecycle.context import who
from hostfork.lifecycle.decisions import must_be_approved
from hostfork.lifecycle.export import sides_of
from hostfork.lifecycle.receipt import receipt
from hostfork.lifecycle.record import PathRecord, Record, observed_activity
from hostfork.lifecycle.store import ForkFolder, Store, as_fork_error, state_folder
from hostfork.policy.repository import Repository, repository_of
from hostfork.values import frozen
from hostfork.vocabulary import Activity

RECEIPT = "Hostfork-Receipt"
FORK = "Hostfork-Fork"


@frozen
class Committed:
    """What was made. `commit` None: the fork holds what the commit holds that it started from."""

    fork: str
    repository: str
    branch: str
    base: str | None
    commit: str | None
    receipt: str


def commit(
    name: str, message: str, branch: str | None = None, paths: Sequence[str] = (),
    tags: Sequence[tuple[str, str]] = (),
) -> Committed:  # fmt: skip
    """Write the commit. `branch`: else `hostfork/FORK`. `paths` (absolute): only these and what lies below them.

    Raises ForkError (`fork.busy`, `fork.approval`), ApplyError `apply.commit`, CollectError `base.gone`.
    """
    store = Store(state_folder())
    with store.find(name) as folder:
        record = folder.load()
        if not folder.lock() or observed_activity(record) is not Activity.IDLE:
            raise ForkError(
                Code.FORK_BUSY, f"{record.name} is in use and cannot be committed now",
                hint=f"end its command first · hostfork show {record.name}",
            )  # fmt: skip
        must_be_approved(store, folder, record, who(tags))
        with uses.using(folder.path):
            done = _commit(store, folder, record, message, branch or f"hostfork/{record.name}", paths)
        if done.commit is not None:
            audit.tell(
                store, record, audit.Event.COMMITTED, by=who(tags), before=done.base, after=done.commit,
                branch=done.branch, repository=done.repository,
            )  # fmt: skip
        return done


def _commit(
    store: Store, folder: ForkFolder, record: Record, message: str, branch: str, paths: Sequence[str]
) -> Committed:
    path, repository = _of_one_repository(record)
    if path.in_repository is None or (path.head is None and has_commit(repository.folder)):
        raise _refused(record, f"which commit {path.written} was at when the fork was made is not known")
    check_branch(repository.folder, branch)
    if path.head is not None:
        check_commit(repository.folder, path.head)
    changeset = changes.stored_changes(folder)
    if changeset is None:
        changeset = changes.joined(changes.collect(folder, record, lambda _path: None))
    identity = receipt(folder, record, changeset).id
    with stages.named(store, os.path.join(record.pool, "commit")) as stage:
        scratch = os.path.join(record.pool, stage)
        with as_fork_error("the tree of a commit cannot be made ready", scratch):
            os.mkdir(scratch, 0o700)
        try:
            tree = _tree(folder, record, path, repository, changeset, scratch)
            made = make_commit(Wanted(
                repository.folder, tree, os.path.join(scratch, "index"), path.head, branch, message,
                _wanted_paths(path, repository, paths), (f"{FORK}: {record.name}", f"{RECEIPT}: {identity}"),
            ))  # fmt: skip
        finally:
            _remove(scratch)
    return Committed(record.name, repository.top, branch, path.head, made, identity)


def _of_one_repository(record: Record) -> tuple[PathRecord, Repository]:
    """The private path whose content is committed: the one that lies in a repository."""
    found = [(path, repository_of(path.path)) for path in changes.private_paths(record)]
    inside = [
        (path, repository)
        for path, repository in found
        if repository is not None and not f"{path.path}/".startswith(f"{repository.common}/")
    ]
    if len(inside) != 1:
        what = (
            "several of its private paths are git work trees" if inside else "no private path lies in a git work tree"
        )
        raise _refused(record, what)
    return inside[0]


def _refused(record: Record, why: str) -> ApplyError:
    return ApplyError(
        Code.APPLY_COMMIT, f"{record.name} cannot be committed: {why}", step="repository",
        hint=f"hostfork apply {record.name} · hostfork diff {record.name} --patch",
    )  # fmt: skip


def _tree(
    folder: ForkFolder, record: Record, path: PathRecord, repository: Repository, changeset: Changeset, scratch: str
) -> str:
    """A work tree for git, of which only what is private is there: the private path at its own place in it."""
    tree = os.path.join(scratch, "tree")
    place = os.path.relpath(path.path if path.folder else os.path.dirname(path.path), repository.top)
    target = tree if place == "." else os.path.join(tree, place)
    with as_fork_error("the tree of a commit cannot be made ready", target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
    git = os.path.join(path.path, ".git")
    part = changes.part_of(changeset, path).changes
    some = Changeset(tuple(one for one in part if one.path != git and not one.path.startswith(git + "/")))
    sides = sides_of(folder, record, path)
    export_tree(
        sides.base, sides.delta, some, path.path, (*path.omit, ".git"), target, sides.whole, sides.manifest
    )  # fmt: skip
    return tree


def _wanted_paths(path: PathRecord, repository: Repository, asked: Sequence[str]) -> tuple[str, ...]:
    wanted = [one for one in asked if one == path.path or one.startswith(path.path.rstrip("/") + "/")]
    if asked and not wanted:
        raise ApplyError(
            Code.APPLY_COMMIT, f"{asked[0]} does not lie in {path.written}", place="PATH", hint="name a path in it"
        )
    names = (os.path.relpath(one, repository.top) for one in wanted or [path.path])
    return tuple("" if name == "." else name for name in names)


def _remove(scratch: str) -> None:
    from hostfork.storage.tree import remove_tree

    above = os.open(os.path.dirname(scratch), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(os.path.basename(scratch), above)
    finally:
        os.close(above)
