"""What the storage tests share: a tree with everything in it, a reader of trees that is not hostfork's, a mount."""

import contextlib
import fcntl
import hashlib
import os
import signal
import stat
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hostfork.baseline.current import current
from hostfork.helper import syscalls, view
from hostfork.helper.privileges import make_namespaces, map_identity
from hostfork.helper.protocol import Attach, Bind, Identity, Overlay
from hostfork.storage import ioctls
from hostfork.storage.choose import storage_of
from hostfork.storage.contract import Prepared, Progress, Source, Storage, Witness
from hostfork.storage.retained import Retained
from hostfork.values import frozen, replace
from hostfork.vocabulary import Guarantee, Mechanism, StorageKind


class OverBaseline(Retained):
    """As a run does it: first the baseline, then what lies over it."""

    def prepare(
        self, key: str, source: Source, pool: str, witness: Witness | None = None, progress: Progress | None = None
    ) -> Prepared:
        with current(source, pool, progress) as ready:
            prepared = super().prepare(key, replace(source, retained=ready.generation.path), pool, witness, progress)
        return replace(prepared, unwritable=ready.facts.unwritable, lost=ready.facts.lost)


@frozen
class Row:
    """One implementation, what it promises over a folder of the caller's, and the kinds of disk that it works on.

    `walks`: it looks at every entry, and tells the witness. `shares`: its files share blocks with the source's.
    """

    kind: StorageKind
    guarantee: Guarantee
    kinds: tuple[str, ...]
    walks: bool = False
    shares: bool = False

    def __str__(self) -> str:
        return {StorageKind.LIVE: "live", StorageKind.RETAINED: "baseline"}.get(self.kind, self.mechanism.value)

    @property
    def mechanism(self) -> Mechanism:
        return self.storage.mechanism

    @property
    def storage(self) -> Storage:
        return implementation(self.kind)


def on_disks(metafunc: pytest.Metafunc, rows: Sequence[Row]) -> None:
    """Give a test each row on each kind of disk that it works on (`disk`), or on one of them (`one_disk`)."""
    disk = "disk" if "disk" in metafunc.fixturenames else "one_disk"
    pairs = [(row, kind) for row in rows for kind in (row.kinds if disk == "disk" else row.kinds[:1])]
    metafunc.parametrize(("row", disk), pairs, indirect=True, ids=[f"{row}-{kind}" for row, kind in pairs])


def implementation(kind: StorageKind) -> Storage:
    """The implementation of a kind, complete."""
    return OverBaseline() if kind is StorageKind.RETAINED else storage_of(kind)


_EVERYWHERE = ("ext4", "btrfs", "xfs", "tmpfs")
ROWS = (
    Row(StorageKind.COPY, Guarantee.INDEPENDENT, _EVERYWHERE, walks=True),
    Row(StorageKind.LIVE, Guarantee.LIVE, _EVERYWHERE),
    Row(StorageKind.FROZEN, Guarantee.SNAPSHOT, ("btrfs",)),
    Row(StorageKind.RETAINED, Guarantee.INDEPENDENT, ("ext4", "btrfs", "xfs")),
    Row(StorageKind.BTRFS, Guarantee.SNAPSHOT, ("btrfs",), shares=True),
    Row(StorageKind.REFLINK, Guarantee.INDEPENDENT, ("xfs", "btrfs"), walks=True, shares=True),
)

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
KEPT_FLAGS = (0x8, 0x40, 0x80, 0x800000)
"""Synchronous, no-dump, no-atime, no-copy-on-write: `S`, `d`, `A` and `C` of chattr(1)."""
IMMUTABLE, APPEND_ONLY = 0x10, 0x20
ODD_NAMES = (b"new\nline", b"a:b,c\\d", b"caf\xe9 \xff\xfe", b" lead", b"-rf", b"x" * 255, b"\xf0\x9f\xa6\xa6", b"*")


def acl(user: int, permission: int) -> bytes:
    """An ACL that gives one more user a permission (posix_acl_xattr.h)."""
    none = 0xFFFFFFFF
    entries = [(1, 7, none), (2, permission, user), (4, 4, none), (0x10, 7, none), (0x20, 0, none)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def write(path: str | bytes, content: bytes = b"", mode: int = 0o644) -> None:
    """A file with content and exactly this mode."""
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)


def build(root: str) -> None:
    """Everything that a tree of the caller's can hold, in the folder `root`, which is there."""
    write(f"{root}/empty")
    write(f"{root}/small", b"small\n", 0o640)
    write(f"{root}/large", os.urandom(700_001))
    _holes(f"{root}/holes")
    write(f"{root}/script", b"#!/bin/sh\n", 0o755)
    write(f"{root}/group-writable", b"g", 0o666)
    write(f"{root}/set-uid", b"s", 0o4755)
    for name, mode in (
        ("sticky", 0o1777),
        ("set-gid", 0o2775),
        ("closed", 0o555),
        ("plain", 0o700),
        ("empty-folder", 0o755),
    ):
        os.mkdir(f"{root}/{name}")
        if name != "empty-folder":
            write(f"{root}/{name}/inside", name.encode())
        os.chmod(f"{root}/{name}", mode)
    _links(root)
    os.mkfifo(f"{root}/fifo", 0o620)
    os.mknod(f"{root}/socket", stat.S_IFSOCK | 0o600)
    for odd in ODD_NAMES:
        write(os.fsencode(root) + b"/plain/" + odd, odd)
    os.setxattr(f"{root}/small", "user.colour", b"blue\0green")
    os.setxattr(f"{root}/plain", "user.empty", b"")
    write(f"{root}/read-only", b"r")
    os.setxattr(f"{root}/read-only", "user.big", b"x" * 2000)
    named = os.geteuid() or 12345  # a user namespace shows its own ids only
    os.setxattr(f"{root}/script", ACCESS, acl(named, 6))
    os.setxattr(f"{root}/plain", DEFAULT, acl(named, 4))
    os.chmod(f"{root}/read-only", 0o444)
    for case in ("case", "Case", "CASE"):
        write(f"{root}/plain/{case}", case.encode())
    if os.geteuid() == 0:
        _for_root(root)
    _flags(root)
    _times(root)


def _holes(path: str) -> None:
    with open(path, "wb") as file:
        file.seek(1 << 20)
        file.write(b"middle" * 1000)
        file.truncate(1 << 30)


def _links(root: str) -> None:
    write(f"{root}/plain/one", b"several names")
    os.link(f"{root}/plain/one", f"{root}/two")
    os.link(f"{root}/plain/one", f"{root}/sticky/three")
    write(f"{root}/../outside", b"a name outside")
    os.link(f"{root}/../outside", f"{root}/half-outside")
    os.symlink("small", f"{root}/link")
    os.symlink("/nowhere/at/all", f"{root}/dangling")
    os.symlink("plain", f"{root}/folder-link")
    os.symlink(b"\xff\n", f"{root}/odd-link")


def _for_root(root: str) -> None:
    os.mknod(f"{root}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(f"{root}/block", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    write(f"{root}/foreign", b"f")
    os.chown(f"{root}/foreign", 4321, 8765)
    os.chmod(f"{root}/foreign", 0o6755)
    os.setxattr(f"{root}/foreign", "trusted.note", b"t")
    os.chown(f"{root}/link", 4321, 8765, follow_symlinks=False)
    os.setxattr(f"{root}/link", "trusted.note", b"l", follow_symlinks=False)
    os.mkdir(f"{root}/sealed")
    write(f"{root}/sealed/inside", b"i", 0o000)
    os.chmod(f"{root}/sealed", 0o000)
    os.setxattr(f"{root}/script", "security.capability", struct.pack("<IIIII", 0x02000000, 1 << 10, 0, 0, 0))


def _flags(root: str) -> None:
    """Flags that everybody may set on what is theirs, as far as this filesystem has them."""
    write(f"{root}/flagged")
    os.mkdir(f"{root}/flagged-folder")
    write(f"{root}/flagged-folder/plain", b"p")
    for flagged in ("flagged", "flagged-folder"):
        for flag in KEPT_FLAGS:
            with contextlib.suppress(OSError):
                set_flags(f"{root}/{flagged}", flags_of(f"{root}/{flagged}") | flag)
    with open(f"{root}/flagged", "ab") as file:
        file.write(b"flagged" * 2000)


def flags_of(path: str | bytes) -> int:
    """The flags of a file or folder, as lsattr(1) reads them, without those that tell how it is laid out."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        value: int = struct.unpack("I4x", fcntl.ioctl(opened, 0x80086601, bytes(8)))[0]
    finally:
        os.close(opened)
    return value & (sum(KEPT_FLAGS) | IMMUTABLE | APPEND_ONLY)


def set_flags(path: str, value: int) -> None:
    """Set these alone, as chattr(1) does."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        there = struct.unpack("I4x", fcntl.ioctl(opened, 0x80086601, bytes(8)))[0]
        fcntl.ioctl(
            opened, 0x40086602, struct.pack("I4x", there & ~(sum(KEPT_FLAGS) | IMMUTABLE | APPEND_ONLY) | value)
        )
    finally:
        os.close(opened)


def _times(root: str) -> None:
    """A time with nanoseconds for every entry, children first."""
    number = 0
    for folder, names, files in os.walk(root, topdown=False):
        for name in (*names, *files, ""):
            number += 1
            path = os.path.join(folder, name) if name else folder
            os.utime(
                path, ns=(1_600_000_000_123_456_789 + number, 1_500_000_000_987_654_321 + number), follow_symlinks=False
            )


def facts(path: str, times: bool = True) -> dict[bytes, tuple[Any, ...]]:
    """Every entry below `path` with all that counts, read by plain calls; hard links by group."""
    groups: dict[tuple[int, int], list[bytes]] = {}
    found: dict[bytes, tuple[Any, ...]] = {}

    def visit(place: bytes, relative: bytes) -> None:
        entry = os.lstat(place)
        kind = stat.S_IFMT(entry.st_mode)
        content: Any = None
        if kind == stat.S_IFREG:
            groups.setdefault((entry.st_dev, entry.st_ino), []).append(relative)
            with open(place, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest() if entry.st_size < 1 << 27 else "holes"
        elif kind == stat.S_IFLNK:
            content = os.readlink(place)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            content = entry.st_rdev
        attributes: dict[str, Any] = {
            name: os.getxattr(place, name, follow_symlinks=False)
            for name in os.listxattr(place, follow_symlinks=False)
            if not name.startswith(("user.overlay.", "security.selinux", "trusted.SGI_ACL_"))
        }
        size = entry.st_size if kind == stat.S_IFREG else None
        when = (entry.st_mtime_ns,) if times else ()
        if kind in (stat.S_IFREG, stat.S_IFDIR):
            attributes["flags"] = flags_of(place)
        found[relative] = (entry.st_mode, entry.st_uid, entry.st_gid, size, content, attributes, *when)
        if kind == stat.S_IFDIR:
            for name in os.listdir(place):
                visit(place + b"/" + name, relative + b"/" + name if relative else name)

    visit(os.fsencode(path), b"")
    for names in groups.values():
        for name in names:
            found[name] += (tuple(sorted(names)),)
    return found


def sample(person: Any, disk: Any, make: Callable[[str], None] = build) -> tuple[str, str]:
    """A source made by `person` and an empty pool, on one disk; on Btrfs in a subvolume of that person's."""
    top = disk.folder(person)
    if disk.kind == "btrfs":
        person.call(make_subvolume, f"{top}/volume")
        top += "/volume"

    def prepare() -> None:
        for name in ("source", "pool"):
            os.mkdir(os.path.join(top, name), 0o700)
        os.chmod(os.path.join(top, "source"), 0o755)
        make(os.path.join(top, "source"))

    person.call(prepare)
    return os.path.join(top, "source"), os.path.join(top, "pool")


def make_subvolume(path: str) -> None:
    """An empty Btrfs subvolume."""
    above = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        ioctls.create(os.path.basename(path), above)
    finally:
        os.close(above)


def visible(storage: Storage, key: str, pool: str, look: Callable[[str], Any]) -> Any:
    """Call `look` on what a fork would see. Call it in a child: an overlay is mounted in its namespaces."""
    tree = storage.mounts(key, pool)
    if isinstance(tree, Bind):
        return look(tree.source)
    enter_namespaces()
    return look(mounted(tree))


def enter_namespaces() -> None:
    """Namespaces of one's own, as the helper makes them."""
    identity = None if os.geteuid() == 0 else Identity(os.geteuid(), os.getegid())
    make_namespaces(identity)
    if identity is not None:
        map_identity(identity)
    syscalls.set_propagation("/", syscalls.MS_REC | syscalls.MS_PRIVATE)


def mounted(tree: Overlay, name: str = "mounted") -> str:
    """Mount an overlay by the helper's own code; its place."""
    place = os.path.join(os.environ["HOME"], name)
    os.makedirs(place, exist_ok=True)
    attach = Attach(place, tree, False, False, 0, 0)
    view.attach_trees((attach,), view.make_trees((attach,)))
    return place


def prepared(storage: Storage, source: Source, pool: str, key: str = "k") -> Any:
    """`prepare` with the entries that the witness saw: (Prepared, {relative: (source stat, copy stat)})."""
    seen: dict[bytes, tuple[os.stat_result, os.stat_result]] = {}

    def witness(relative: bytes, before: os.stat_result, copy: os.stat_result) -> None:
        assert relative not in seen
        seen[relative] = before, copy

    return storage.prepare(key, source, pool, witness), seen


def killed_in_prepare(storage: Storage, source: str, pool: str, at: int) -> int:
    """The status of a process that is killed at the so-many-th entry that it takes."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def witness(relative: bytes, before: os.stat_result, copy: os.stat_result) -> None:
            nonlocal count
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

        storage.prepare("k", Source(source), pool, witness)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
