"""Private storage as an overlay straight over the host's folder: instant, and only `live`.

    POOL/overlay/KEY/upper   what changes, in overlayfs's format
    POOL/overlay/KEY/work    overlayfs's own; one mount of the view uses it up
    POOL/overlay/KEY/lower   a file that holds the source's path, byte for byte

The fork's content depends on the source: host writes beneath it show through, or tear. A base that holds 0:0 devices
or overlayfs's own attributes shows them as deletions. They are looked for at its top, and where container engines keep
them; only a walk would find the others.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection

from hostfork.errors import Code, StorageError
from hostfork.storage import stores
from hostfork.storage.contract import (
    Guarantees,
    Lost,
    Offer,
    Prepared,
    Progress,
    Refusal,
    Source,
    Witness,
)
from hostfork.storage.entry import FOLDER, Copier, Taken, open_quietly, read_extra
from hostfork.storage.failures import failed, unmade
from hostfork.storage.filesystem import filesystem_of
from hostfork.storage.layering import MARKS
from hostfork.storage.stacked import UPPER, WORK, LayerKeys, Stacked
from hostfork.storage.tree import remove_tree
from hostfork.vocabulary import BaseContent, Guarantee, Mechanism, StorageKind

_LOWER = "lower"
_PLAIN = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs"})
"""Filesystems whose features, once tried, are all that overlayfs asks for. On others a mount is tried as well."""


class Overlay(Stacked):
    """The mechanism `overlay` over a live source."""

    mechanism = Mechanism.OVERLAY

    def keys_of(self, pool: str) -> LayerKeys:
        return LayerKeys(pool, Mechanism.OVERLAY.value)

    def probe(self, source: Source, pool: str) -> Offer | Refusal:
        """Try in the pool what overlayfs needs of an upper folder; on unusual filesystems try a mount."""
        try:
            refusal = _mounts_obstacle(source) or obstacle(source, pool)
        except OSError as error:
            return Refusal(Mechanism.OVERLAY, f"{error.filename or pool} cannot be used", error.errno)
        if refusal is not None:
            return refusal
        kept = guarantees(Guarantee.LIVE, nested_mounts=_is_root(), unique_inodes=_same_numbering(source.path, pool))
        return Offer(StorageKind.LIVE, kept, "nothing is copied; host changes show through")

    def prepare(
        self, key: str, source: Source, pool: str, witness: Witness | None = None, progress: Progress | None = None
    ) -> Prepared:
        """Make an empty upper folder with the source's own mode, owner, times and attributes. The witness sees it."""
        start = time.monotonic()
        refused = unmade(f"no overlay over {source.path} could be made", source.path, source.path, pool)
        with self.keys_of(pool).making(key, refused) as new:
            top = _made(source, new, witness)
        return prepared(key, time.monotonic() - start, top)

    def bottom(self, path: str, key: str) -> tuple[str, ...]:
        """The host's folder."""
        return (_lower(path, key),)

    def link_bottom(self, path: str, room: int) -> None:
        """The same file says where it is."""
        os.link(os.path.join(path, _LOWER), _LOWER, dst_dir_fd=room)

    def reduce(self, key: str, pool: str, changed: Collection[bytes]) -> None:
        """Nothing: an upper folder holds only what was touched."""


def guarantees(
    guarantee: Guarantee,
    nested_mounts: bool,
    unique_inodes: bool,
    base_content: BaseContent = BaseContent.WHILE_SOURCE_UNCHANGED,
    layers: bool = False,
) -> Guarantees:
    """What any overlay keeps, over whatever it lies. `layers`: a walk showed that there are none of another."""
    return Guarantees(
        guarantee,
        folder_rename=False,
        hard_links=False,
        native_watchers=False,
        foreign_owners=_is_root(),
        nested_mounts=nested_mounts,
        unique_inodes=unique_inodes,
        layers=layers,
        elsewhere=False,
        base_content=base_content,
    )


def _same_numbering(source: str, pool: str) -> bool:
    """Whether no two of their inodes have one number: Btrfs numbers them by subvolume, an overlay shows one device."""
    return filesystem_of(source).kind != "btrfs" or os.stat(source).st_dev == os.stat(pool).st_dev


def obstacle(source: Source, pool: str) -> Refusal | None:
    """What about the source's top, the pool or the kernel rules any overlay out. Leaves nothing. Raises OSError."""
    return _source_obstacle(source) or _pool_obstacle(pool) or _mount_obstacle(source, pool)


def _is_root() -> bool:
    return os.geteuid() == 0


def _refused(reason: str, number: int | None = None) -> Refusal:
    return Refusal(Mechanism.OVERLAY, reason, number)


def _mounts_obstacle(source: Source) -> Refusal | None:
    if source.mounts_beneath and not _is_root():
        # The kernel answers EINVAL: an overlay would uncover what the mount hides (locked mounts).
        return _refused(f"the host has {source.mounts_beneath[0]} mounted beneath it", errno.EINVAL)
    return None


def _source_obstacle(source: Source) -> Refusal | None:
    """What about the source rules an overlay out."""
    if not stat.S_ISDIR(os.lstat(source.path).st_mode):
        return _refused(f"{source.path} is a single file, overlays are over folders")
    folder = open_quietly(source.path, FOLDER)
    try:
        marks = [name for name, _ in read_extra(folder).attributes if name.startswith(MARKS)]
        layers = stores.obstacle(source, folder)
    finally:
        os.close(folder)
    if marks:
        return _refused(f"{source.path} is itself a layer of an overlay ({marks[0]})")
    return None if layers is None else _refused(layers)


def _pool_obstacle(pool: str) -> Refusal | None:
    """Try the features: user attributes, whiteouts, a type in each folder entry. Leaves nothing."""
    kind = filesystem_of(pool)
    name = f".probe-{os.getpid()}-{time.monotonic_ns()}"
    folder = os.open(pool, FOLDER)
    step = "a folder cannot be made there"
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
        step = "it keeps no user attributes"
        os.setxattr(f"/proc/self/fd/{folder}/{name}", "user.overlay.opaque", b"y")
        step = "a whiteout (a 0:0 device) cannot be made there"
        inner = os.open(name, FOLDER, dir_fd=folder)
        try:
            os.mknod("whiteout", stat.S_IFCHR, 0, dir_fd=inner)
        finally:
            os.close(inner)
    except OSError as error:
        reason = f"the pool {pool} ({kind}) cannot hold an upper folder: {step}"
        return Refusal(Mechanism.OVERLAY, reason, error.errno, of_pool=True)
    finally:
        remove_tree(name, folder)
        os.close(folder)
    return None


def _mount_obstacle(source: Source, pool: str) -> Refusal | None:
    """Try a mount where the filesystems are not of the usual kinds: in a child, in namespaces of its own."""
    kinds = filesystem_of(source.path), filesystem_of(pool)
    if all(kind.kind in _PLAIN for kind in kinds):
        return None
    return _tried(source, pool, f"over {kinds[0]} with its pool on {kinds[1]}")


def _tried(source: Source, pool: str, where: str) -> Refusal | None:
    import subprocess
    import sys

    name = f".probe-{os.getpid()}-{time.monotonic_ns()}"
    folder = os.open(pool, FOLDER)
    place = os.path.join(pool, name)
    try:
        for inner in (place, os.path.join(place, UPPER), os.path.join(place, WORK)):
            os.mkdir(inner, 0o700)
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trial.py")
        command = [sys.executable, "-I", "-S", program, source.path, f"{place}/{UPPER}", f"{place}/{WORK}"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    finally:
        remove_tree(name, folder)
        os.close(folder)
    if done.returncode == 0:
        return None
    words = done.stdout.decode("utf-8", "replace").strip().partition(" ")
    return _refused(f"the kernel does not mount an overlay {where}: {words[2]}", int(words[0] or errno.EIO))


def prepared(key: str, seconds: float, top: Taken, guarantee: Guarantee | None = None) -> Prepared:
    """What any overlay's `prepare` tells: its upper folder `top` is all that was made."""
    lost = (Lost("", top.lost),) if top.lost else ()
    unwritable = ("",) if top.unwritable else ()
    return Prepared(key, Mechanism.OVERLAY, 0, 0, seconds, unwritable, guarantee, lost=lost)


def _made(source: Source, new: str, witness: Witness | None) -> Taken:
    """Make the three parts in the folder `new`; what became of the top."""
    try:
        base = open_quietly(source.path, FOLDER)
    except OSError as error:
        raise StorageError(
            Code.STORAGE_SOURCE, f"{source.path} cannot be read", step="prepare", path=source.path, errno=error.errno
        ) from error
    room = os.open(new, FOLDER)
    try:
        lower = os.open(_LOWER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=room)
        try:
            os.write(lower, os.fsencode(source.path))
        finally:
            os.close(lower)
        taken = make_layers(room, base)
    finally:
        os.close(room)
        os.close(base)
    if witness is not None and taken.source is not None and taken.copy is not None:
        witness(b"", taken.source, taken.copy)
    return taken


def make_layers(room: int, base: int) -> Taken:
    """Make work and upper folder in the open folder `room`; the upper one is like the open folder `base`."""
    os.mkdir(WORK, 0o700, dir_fd=room)
    os.mkdir(UPPER, 0o700, dir_fd=room)
    upper = os.open(UPPER, FOLDER, dir_fd=room)
    try:
        copier, found = Copier(), os.fstat(base)
        return copier.folder(upper, found, copier.wanted(found, base, "."), read_extra(base))
    finally:
        os.close(upper)


def _lower(path: str, key: str) -> str:
    place = os.path.join(path, _LOWER)
    try:
        with open(place, "rb") as file:
            return os.fsdecode(file.read())
    except OSError as error:
        raise failed(f"what private storage {key} lies over cannot be read", place, error, "mounts") from error
