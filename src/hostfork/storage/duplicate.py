"""A copy of a tree of the pool, marks of overlayfs included. Nobody may write to it meanwhile."""

from __future__ import annotations

import os
import stat

from hostfork.storage.contract import Source, Witness
from hostfork.storage.entry import FOLDER
from hostfork.storage.failures import unreadable, unstable
from hostfork.storage.own import OwnCopier
from hostfork.storage.replicate import Refused, Replica
from hostfork.storage.tree import FolderMovedError

_LINKS = "links"


def duplicate(tree: str, name: str, into: int, key: int, witness: Witness | None = None) -> int:
    """Copy a folder or a single entry as `name` into an open folder; the bytes that share no blocks.

    `key`: the open folder of the key that it is for, where what is opened meanwhile is noted.

    Raises OSError, StorageError.
    """
    os.mkdir(_LINKS, 0o700, dir_fd=into)
    copier = OwnCopier(key)
    links = os.open(_LINKS, FOLDER, dir_fd=into)
    replica = Replica(Source(tree), links, witness, None, copier)
    try:
        _replicate(replica, copier, tree, name, into)
    except (Refused, FolderMovedError) as error:
        raise unstable(tree, tuple(replica.unstable) or (replica.at,)) from error
    finally:
        copier.restore()
        os.close(links)
    if replica.unreadable:
        raise unreadable(tree, tuple(sorted(replica.unreadable)))
    if replica.unstable:
        raise unstable(tree, tuple(sorted(replica.unstable)))
    os.rmdir(_LINKS, dir_fd=into)
    return replica.bytes


def _replicate(replica: Replica, copier: OwnCopier, tree: str, name: str, room: int) -> None:
    if not stat.S_ISDIR(os.lstat(tree).st_mode):
        above = os.open(os.path.dirname(tree), FOLDER)
        try:
            return replica.single(above, os.path.basename(tree), room, name)
        finally:
            os.close(above)
    source = copier.opener(tree, room)
    try:
        replica.folder_as(source, room, name)
    finally:
        os.close(source)
