"""The receipt of a fork: on what it stands, what was promised and verified, what it changed. Equal forks, equal text.

Nothing in it depends on when or where it is read: everything comes from the record and from the changes themselves.
"""

from __future__ import annotations

from hostfork.collect.changeset import Changeset
from hostfork.collect.digest import Digester
from hostfork.helper.lean import dumps
from hostfork.lifecycle.contents import changes_id
from hostfork.lifecycle.record import PathRecord, Record
from hostfork.lifecycle.store import ForkFolder, plain
from hostfork.values import frozen
from hostfork.vocabulary import Access, BaseContent, Guarantee, Ownership, SourceChanged


@frozen
class Receipt:
    """One fork's. `content` is the id of its changes; `verified` are sentences about what was seen to hold.

    `id` is of all that is said here, but for what was decided about the fork since.
    """

    id: str
    record: Record
    changes: Changeset
    content: str
    verified: tuple[str, ...]


def receipt(folder: ForkFolder, record: Record, changeset: Changeset) -> Receipt:
    """The receipt of a fork that is still. Reads every changed file. Raises CollectError, ForkError."""
    content, verified = changes_id(folder, record), tuple(_verified(record))
    said = (
        record.name, record.id, record.created, record.ended, record.command, record.cwd, record.by, record.policy,
        record.asked, record.made_on, record.status, content, verified,
        tuple((path.access, path.path, path.mechanism, path.guarantee, path.base_content, path.taken)
              for path in record.paths),
    )  # fmt: skip
    digest = Digester(threads=False).text(dumps(plain(said)).encode("ascii"))
    return Receipt(digest.hex(), record, changeset, content, verified)


def _verified(record: Record) -> list[str]:
    """What hostfork made sure of while the fork was made and run; nothing that was only planned."""
    said = []
    for path in record.paths:
        if path.access is Access.PRIVATE and path.mechanism is not None:
            said += [f"{path.path}: {sentence}" for sentence in _of_path(path, record)]
    if record.status is not None and record.ended is not None:
        how = "its cgroup was empty" if record.ownership is Ownership.CGROUP else "no process had its view"
        said.append(f"when its changes were read, {how}")
    said += [f"required and kept: {require.value}" for require in record.asked.requires]
    return said


def _of_path(path: PathRecord, record: Record) -> list[str]:
    said = []
    if record.same_paths and record.mount_namespace is not None:
        said.append("in the view it was not the host's inode, and could be written")
    if path.guarantee is Guarantee.SNAPSHOT:
        said.append("taken as of one instant")
    elif path.guarantee is Guarantee.INDEPENDENT:
        said.append("each file was the same before and after it was taken")
    if path.source_changed is SourceChanged.UNCHANGED:
        said.append("the host did not change it meanwhile")
    elif path.source_changed is SourceChanged.CHANGED:
        said.append("the host changed it meanwhile")
    elif path.source_changed is SourceChanged.NOT_CHECKED:
        said.append("whether the host changed it meanwhile was not checked")
    if path.base_content is BaseContent.KEPT:
        said.append("what it was at first is kept")
    return said
