"""From a plan and its storage to what the helper mounts: one list of attaches, outer paths first.

Mount points that a path needs inside a fresh tree (a scratch folder, a tmpfs, a hidden folder) are made there, in
hostfork's own storage; private trees have them already, since they hold what the host holds.
"""

from __future__ import annotations

import contextlib
import os
import stat

from hostfork.helper.protocol import Attach, Bind, Keep, Overlay, StandIn, Tmpfs, Tree
from hostfork.lifecycle.pools import mark_of
from hostfork.lifecycle.record import Record
from hostfork.lifecycle.store import ForkFolder
from hostfork.policy.planned import ConfigCopy, PathPlan, Plan
from hostfork.storage import scratch
from hostfork.storage.choose import storage_of
from hostfork.values import frozen
from hostfork.vocabulary import Access

_KEPT_WRITABLE = ("/dev", "/proc", "/sys/fs/cgroup")
"""What stays as it is under a read-only `/`: nested namespaces, multiprocessing and /dev/shm need it."""
_HIDDEN_SIZE = 4096


@frozen
class _Wanted:
    """One attach before its mount points are known. `fresh`: the tree starts empty, so that it needs stand-ins."""

    target: str
    tree: Tree
    read_only: bool
    same: bool
    device: int
    inode: int
    folder: bool
    fresh: bool = False
    optional: bool = False


def attaches(plan: Plan, record: Record, fork: ForkFolder) -> tuple[Attach, ...]:
    """Every mount of the view. Makes the mount points that fresh trees lack. Raises StorageError."""
    wanted = _of_paths(plan, record, fork)
    wanted += [
        _Wanted(
            mount.path,
            Keep(mount.path),
            mount.read_only,
            True,
            mount.device,
            mount.inode,
            mount.folder,
            optional=record.lasting,
        )
        for mount in plan.nested_mounts
    ]
    wanted += [
        _Wanted(end.path, Bind(end.path), False, True, end.device, end.inode, False, optional=record.lasting)
        for end in plan.endpoints
    ]
    wanted += [_config_copy(copy, f"{number}", fork) for number, copy in enumerate(plan.config_copies)]
    if plan.read_only_root:
        wanted += [_kept(path) for path in _KEPT_WRITABLE if os.path.isdir(path)]
    wanted.sort(key=lambda item: item.target.count("/") if item.target != "/" else 0)
    return tuple(_with_stand_ins(item, wanted) for item in wanted)


def _of_paths(plan: Plan, record: Record, fork: ForkFolder) -> list[_Wanted]:
    keys = {path.path: path.key for path in record.paths}
    wanted = []
    for path in plan.paths:
        if path.path == "/" or (path.access is Access.SHARED and not _covered(path.path, plan)):
            continue
        tree, read_only, same, fresh = _tree(path, keys.get(path.path, ""), record.pool, fork)
        if isinstance(tree, Overlay) and record.lasting:
            tree = tree._replace(volatile=False)  # what is entered again is on disk after each time
        wanted.append(_Wanted(path.path, tree, read_only, same, path.device, path.inode, path.folder, fresh))
    return wanted


def _tree(path: PathPlan, key: str, pool: str, fork: ForkFolder) -> tuple[Tree, bool, bool, bool]:
    """The tree of one path; whether it is read-only, the host's own, and empty at first."""
    if path.access is Access.PRIVATE:
        assert path.offer is not None
        private: Tree = storage_of(path.offer.kind).mounts(key, pool)
        if isinstance(private, Overlay):
            private = private._replace(mark=mark_of(pool))
        return private, False, False, False
    if path.access is Access.SCRATCH:
        if path.tmpfs_size is None:
            return scratch.mounts(key, pool), False, False, True
        mode = stat.S_IMODE(os.stat(path.path).st_mode)
        return Tmpfs(path.tmpfs_size, mode), False, False, True
    if path.access is Access.HIDDEN:
        tree: Tree = Tmpfs(_HIDDEN_SIZE, 0) if path.folder else Bind(_blank_file(fork))
        return tree, True, False, path.folder
    return Keep(path.path), path.access is Access.READ_ONLY, True, False


def _blank_file(fork: ForkFolder) -> str:
    """What stands where a file is hidden: empty and without any permission."""
    path = fork.file("blank")
    if not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0))
    return path


def _config_copy(copy: ConfigCopy, number: str, fork: ForkFolder) -> _Wanted:
    """The same bytes in a file of the user's: what ssh(1) takes for badly owned is owned by somebody who exists."""
    path = fork.file(f"config.{number}")
    with open(copy.path, "rb") as original:
        content = original.read()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of an earlier view; its mode may forbid writing
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
        os.fchmod(descriptor, copy.mode)
    finally:
        os.close(descriptor)
    return _Wanted(copy.path, Bind(path), True, False, copy.device, copy.inode, False)


def _kept(path: str) -> _Wanted:
    found = os.stat(path)
    return _Wanted(path, Keep(path), False, True, found.st_dev, found.st_ino, True)


def _covered(path: str, plan: Plan) -> bool:
    """Whether a rule above takes the host's content from this path, or its writability."""
    return any(
        other.access is not Access.SHARED and (other.path == "/" or path.startswith(other.path + "/"))
        for other in plan.paths
    )


def _with_stand_ins(item: _Wanted, wanted: list[_Wanted]) -> Attach:
    stand_ins: tuple[StandIn, ...] = ()
    if item.fresh:
        inner = [other for other in wanted if _nearest_is(item, other, wanted)]
        stand_ins = _stand_ins(item, inner)
        if isinstance(item.tree, Bind):
            _make_stand_ins(item.tree.source, stand_ins)
            stand_ins = ()
    return Attach(item.target, item.tree, item.read_only, item.same, item.device, item.inode, stand_ins, item.optional)


def _nearest_is(outer: _Wanted, inner: _Wanted, wanted: list[_Wanted]) -> bool:
    """Whether `outer` is the deepest attach above `inner`."""
    above = [other.target for other in wanted if inner.target.startswith(other.target + "/")]
    return bool(above) and max(above, key=len) == outer.target


def _stand_ins(item: _Wanted, inner: list[_Wanted]) -> tuple[StandIn, ...]:
    found: dict[str, StandIn] = {}
    for other in inner:
        relative = other.target[len(item.target) + 1 :]
        parts = relative.split("/")
        for depth in range(1, len(parts)):
            parent = "/".join(parts[:depth])
            found.setdefault(parent, StandIn(parent, True, _folder_mode(f"{item.target}/{parent}")))
        found[relative] = StandIn(relative, other.folder, 0o700 if other.folder else 0o600)
    return tuple(found[path] for path in sorted(found))


def _folder_mode(path: str) -> int:
    """A folder on the way looks as the host's does."""
    return stat.S_IMODE(os.stat(path).st_mode) | stat.S_IXUSR


def _make_stand_ins(root: str, stand_ins: tuple[StandIn, ...]) -> None:
    for stand_in in stand_ins:
        path = os.path.join(root, stand_in.path)
        with contextlib.suppress(FileExistsError):  # a kept fork's, of an earlier view
            if stand_in.folder:
                os.mkdir(path, stand_in.mode)
            else:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, stand_in.mode))
