"""One frozen base under several keys, while the source stays as it is. The last key that goes takes the base with it.

    POOL/frozen/.base-ID/tree        a read-only snapshot of the subvolume that holds the source
    POOL/frozen/.base-ID/space       a writable snapshot of it, for the upper folders of the keys over it (see `layers`)
    POOL/frozen/.base-ID/reference   a symlink to `tree`; every key over the base has a hard link of it
    POOL/frozen/.base-ID/same        a symlink whose text is a transaction and what the base leaves out: until then the
                                    source was seen to be the same. What has none is half made, or about to go
    POOL/frozen/KEY/base            the hard link of `reference`

So the kernel counts who lies over a base. The link of a key is there before the base and goes after it, or while others
have theirs: whatever is killed when, a key that is erased finds what it alone was over.

Links are made and given up, and `same` is written and removed, under a flock of the folder POOL/frozen.

How the source is known to be the same, in constant time and for any user:

- A snapshot is taken in any case. That writes out what is dirty, in files and in mappings, so that the kernel has seen
  every change. It is dropped where an older base is the same.
- `changed` of the source (ctransid, the transaction of the last change of anything in it) is then not after the one in
  which the base was taken. Nothing is changed in a transaction after its snapshots were taken.
- The kernel leaves ctransid alone where it replays its log after a crash. That writes to the source's tree, as a
  balance and others' snapshots do: before our snapshot the tree was not written since the last one of ours.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from hostfork.storage import ioctls, layers, snapshot, subvolume
from hostfork.storage.contract import KeyStage, KeyState, Removal, Source
from hostfork.storage.entry import FOLDER
from hostfork.storage.ioctls import Subvolume
from hostfork.storage.pace import OutOfTime, Pace
from hostfork.storage.snapshot import Found, SnapshotKeys
from hostfork.storage.stacked import LayerKeys, let_go
from hostfork.storage.tree import remove_tree
from hostfork.values import frozen

BASE = "base"
TREE = "tree"
_PREFIX = ".base-"
"""No fork's name begins so. What follows has the shape of a key: recovery can set it aside like one."""
_REFERENCE, _SAME, _NEXT, _SPARE = "reference", "same", "next", "spare"
_BETWEEN = "//"
"""Between the parts of the text of `same`. No path holds it."""
_LONGEST = 4000
_PATIENCE = 10.0
"""Seconds that others may hold the lock; then a fork gets a base of its own."""
_LOOK = 0.002


class SharedKeys(SnapshotKeys, LayerKeys):
    """Keys whose folders hold or refer to a base."""

    def states(self) -> tuple[KeyState, ...]:
        """Every key; a base that no key refers to, because somebody removed its key by hand, counts as half made."""
        found = []
        for state in super().states():
            if not state.key.startswith(_PREFIX) or state.stage is not KeyStage.LIVE:
                found.append(state)
            elif _links(os.path.join(self.folder, state.key)) == 1:  # no key will ever refer to it
                found.append(KeyState(state.key, KeyStage.HALF_MADE))
        return tuple(found)

    def _erase(self, name: str, folder: int, pace: Pace) -> Removal:
        removed = {let_go(self, name, folder, pace), super()._erase(name, folder, pace)}
        return Removal.RECLAIMING if Removal.RECLAIMING in removed else Removal.GONE

    def _emptied(self, key: int, folder: int, pace: Pace) -> Removal:
        layers.erase(key, pace)
        removed = {_let_go(key, folder, pace), _erased(_SPARE, key, pace), super()._emptied(key, folder, pace)}
        return Removal.RECLAIMING if Removal.RECLAIMING in removed else Removal.GONE


def referred(path: str) -> str:
    """Where the base of the key at that path lies, relative to that. Raises OSError."""
    try:
        return os.readlink(os.path.join(path, BASE))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return BASE  # its own


def refer_too(path: str, room: int) -> None:
    """Give the key whose folder is open the base of the key at that path. Raises OSError."""
    own = os.path.join(path, BASE)
    if os.path.islink(own):
        os.link(own, BASE, dst_dir_fd=room, follow_symlinks=False)
        return
    root = os.open(own, FOLDER)
    try:
        nested = subvolume.nested_below(root, ".")
        snapshot.again_from(root, nested, room, BASE)
    finally:
        os.close(root)


def take(found: Found, source: Source, room: int) -> str:
    """Give the key whose folder is open a base: one that is there and the same as the source, else a new one.

    Its own where subvolumes are nested in it, or where others hold the lock too long. Gives the space for its layers,
    relative to the key; none where nested subvolumes have numbers of their own anyway. Raises Obstacle, OSError.
    """
    text = _BETWEEN.join(("", str(found.place.inside == "."), *sorted(map(found.place.below, source.omit))))
    folder = os.open("..", FOLDER, dir_fd=room)
    try:
        if found.nested or len(os.fsencode(text)) > _LONGEST or not _lock(folder):
            snapshot.take(found, source, BASE, room, read_only=True)
            if found.nested:
                return ""
            layers.make_space(BASE, room)
            return layers.SPACE
        try:
            return f"../{_shared(found, source, text if source.omit else '', room, folder)}/{layers.SPACE}"
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)
    finally:
        os.close(folder)


def _shared(found: Found, source: Source, omitted: str, room: int, folder: int) -> str:
    root = subvolume.open_root(found.place)
    try:
        before = ioctls.subvolume(root)
        olds = tuple(_same_until_now(before, folder))
        name = _begun(room, folder)
        base = os.open(name, FOLDER, dir_fd=folder)
        try:
            snapshot.take(found, source, TREE, base, read_only=True)
            made, after = _told(TREE, base).made, ioctls.subvolume(root)
            sames = [old for old in olds if after.changed <= old.made]
            ours = next((old for old in sames if old.omitted == omitted), None)
            if ours is None:
                layers.make_space(TREE, base)
                os.symlink(f"{made}{omitted}", _SAME, dir_fd=base)
        finally:
            os.close(base)
        if ours is not None:
            _dropped(name, room, folder)
            os.unlink(BASE, dir_fd=room)
            os.link(f"{ours.name}/{_REFERENCE}", BASE, src_dir_fd=folder, dst_dir_fd=room, follow_symlinks=False)
        for old in sames:
            _say_same(old.name, f"{made}{old.omitted}", folder)
        return name if ours is None else ours.name
    finally:
        os.close(root)


@frozen
class _Old:
    """A base that was the same as the source until our last snapshot, but for what it leaves out.

    `made`: the transaction in which it was taken.
    """

    name: str
    made: int
    omitted: str


def _same_until_now(source: Subvolume, folder: int) -> Iterator[_Old]:
    """The bases of the source whose tree was not written since it was last seen to be the same, newest first."""
    if source.uuid == bytes(16):
        return  # made before subvolumes had one: nothing tells whose snapshot is whose
    for name in sorted(_bases(folder), reverse=True):
        try:
            until, between, omitted = os.readlink(f"{name}/{_SAME}", dir_fd=folder).partition(_BETWEEN)
            if int(until) < source.written or _links(name, folder) < 2:
                continue
            taken = _told(f"{name}/{TREE}", folder)
        except FileNotFoundError:
            continue  # half made, or about to go
        if taken.parent_uuid == source.uuid:
            yield _Old(name, taken.made, between + omitted)


def _bases(folder: int) -> list[str]:
    # Btrfs shows what was there when the folder was opened: that was before others made a base under the lock.
    again = os.open(".", FOLDER, dir_fd=folder)
    try:
        return [name for name in os.listdir(again) if name.startswith(_PREFIX)]
    finally:
        os.close(again)


def _told(name: str, folder: int) -> Subvolume:
    opened = os.open(name, FOLDER, dir_fd=folder)
    try:
        return ioctls.subvolume(opened)
    finally:
        os.close(opened)


def _begun(room: int, folder: int) -> str:
    """The folder of a new base, to which the key refers."""
    name = f"{_PREFIX}{time.time_ns()}-{os.getpid()}.0"
    os.symlink(f"../{name}/{TREE}", BASE, dir_fd=room)
    os.mkdir(name, 0o700, dir_fd=folder)
    os.link(BASE, f"{name}/{_REFERENCE}", src_dir_fd=room, dst_dir_fd=folder, follow_symlinks=False)
    return name


def _dropped(name: str, room: int, folder: int) -> None:
    """Remove a base that is not needed; where the kernel wants it emptied it goes with the key."""
    if _destroyed(name, folder):
        remove_tree(name, folder)
    else:
        os.rename(name, _SPARE, src_dir_fd=folder, dst_dir_fd=room)


def _destroyed(name: str, folder: int) -> bool:
    """Whether the kernel removed the snapshot of a base; a user needs the mount option, and it has to be writable."""
    base = os.open(name, FOLDER, dir_fd=folder)
    try:
        try:
            ioctls.destroy(TREE, base)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS):
                raise
            tree = os.open(TREE, FOLDER, dir_fd=base)
            try:
                ioctls.set_read_only(tree, False)
            finally:
                os.close(tree)
            ioctls.destroy(TREE, base)
    except PermissionError:
        return False
    finally:
        os.close(base)
    return True


def _say_same(name: str, text: str, folder: int) -> None:
    """Write down until when the source was the same as the base."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{name}/{_NEXT}", dir_fd=folder)
    os.symlink(text, f"{name}/{_NEXT}", dir_fd=folder)
    os.rename(f"{name}/{_NEXT}", f"{name}/{_SAME}", src_dir_fd=folder, dst_dir_fd=folder)


def _let_go(key: int, folder: int, pace: Pace) -> Removal:
    """The open folder of a key gives up its base; the last one erases that. Raises OSError, OutOfTime."""
    try:
        name = os.readlink(BASE, dir_fd=key).split("/")[1]
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise
        return Removal.GONE  # it has none, or its own
    if not _lock(folder, None if pace.waits else 0):
        raise OutOfTime
    try:
        if _links(name, folder) > 2:
            os.unlink(BASE, dir_fd=key)
            return Removal.GONE
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{name}/{_SAME}", dir_fd=folder)
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
    # Nobody takes it any more. This key's link goes with the rest of the key, after it.
    return _erased(name, folder, pace)


def _erased(name: str, folder: int, pace: Pace) -> Removal:
    """Erase a base, or what is left of it. Raises OSError, OutOfTime."""
    try:
        base = os.open(name, FOLDER, dir_fd=folder)
    except FileNotFoundError:
        return Removal.GONE
    try:
        removed = {
            subvolume.erase(inner, base, pace) for inner in (layers.SPACE, TREE) if subvolume.is_root(inner, base)
        }
    finally:
        os.close(base)
    remove_tree(name, folder, pace)
    return Removal.RECLAIMING if Removal.RECLAIMING in removed else Removal.GONE


def _links(path: str, folder: int | None = None) -> int:
    """How many links of a base's reference there are, its own included; 0 where it has none yet, or no more."""
    try:
        return os.stat(f"{path}/{_REFERENCE}", dir_fd=folder, follow_symlinks=False).st_nlink
    except FileNotFoundError:
        return 0


def _lock(folder: int, patience: float | None = _PATIENCE) -> bool:
    """Lock the open folder of the keys; False where others hold it longer than that, None is without end."""
    if patience is None:
        fcntl.flock(folder, fcntl.LOCK_EX)
        return True
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK)
