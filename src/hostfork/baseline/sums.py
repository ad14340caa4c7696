"""What a generation holds, entry by entry, with a BLAKE3 digest of each content: its sums.

    LINE/gN/sums     of the tree that the layers of a generation show together, which merging leaves as it is
    LINE/sums        the newest of the line, under a second name: what is the same file in a later generation is not
                     read again for that one's

The file: a line that says what it is, the BLAKE3 digest of all that follows, the number of entries, one row for each,
their relative paths, each ended by a zero byte. Written aside, synced, renamed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from enum import Enum

from hostfork.helper.shapes import NamedTuple
from hostfork.storage.lines import SUMS, Generation
from hostfork.values import frozen

NOTHING = bytes(32)
_MAGIC = b"hostfork sums 1\n"
_ROW = struct.Struct("<QQqqIIIQ32s32s")
_COUNT = struct.Struct("<Q")


class Sum(NamedTuple):
    """One entry. The first four say which file it is: a file that has all of them has the digest.

    `size`: bytes of a file or of a symlink's target, of which `digest` is the BLAKE3; `attributes` is that of the
    extended attributes and ACLs, where there are some. `mode` with the kind. Times are ns.
    """

    inode: int
    size: int
    mtime: int
    ctime: int
    mode: int
    uid: int
    gid: int
    device: int
    digest: bytes
    attributes: bytes


Sums = dict[bytes, Sum]
"""By relative path, b"" is the root."""
Identity = tuple[int, int, int, int]
Known = dict[Identity, tuple[bytes, bytes]]
"""Digests of content and of attributes that were read before, by which file it is."""


class DamagedSumsError(ValueError):
    """The sums themselves are not what was written."""


class Fault(Enum):
    """How an entry differs from what it was. `SUMS`: nothing can be told, since what was written down is damaged."""

    CONTENT = "content"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    EXTRA = "extra"
    CHANGED = "changed"
    SUMS = "sums"


@frozen
class Damage:
    """One entry that is not what it was. `detail`: what of it, or why it cannot be read."""

    path: str
    fault: Fault
    detail: str = ""


def identity(found: os.stat_result) -> Identity:
    """Which file it is, in one state of its content: every change moves the ctime, and so does a new owner of an inode.

    Merging moves it too, by its renames: what was moved is read again, and nothing else.
    """
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def summed(found: os.stat_result, digest: bytes, attributes: bytes) -> Sum:
    """The sum of an entry."""
    inode, size, mtime, ctime = identity(found)
    return Sum(inode, size, mtime, ctime, found.st_mode, found.st_uid, found.st_gid, found.st_rdev,
               digest, attributes)  # fmt: skip


def write(generation: Generation, sums: Sums) -> None:
    """Write the sums of a generation. Raises OSError."""
    from blake3 import blake3

    rows = b"".join([_ROW.pack(*one) for one in sums.values()])
    body = b"".join((_COUNT.pack(len(sums)), rows, *(path + b"\0" for path in sums)))
    _sweep(generation)
    fresh = generation.file(f"{SUMS}.{os.getpid()}")
    try:
        with open(fresh, "wb") as file:
            file.writelines((_MAGIC, blake3(body).digest(), body))
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, generation.file(SUMS))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    newest = os.path.join(generation.line, f"{SUMS}.next")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(newest)
    with contextlib.suppress(FileExistsError):  # another process is at it: its are as good
        os.link(generation.file(SUMS), newest)
        os.rename(newest, os.path.join(generation.line, SUMS))


def _sweep(generation: Generation) -> None:
    """Remove what a process that was killed began to write."""
    for name in os.listdir(generation.path):
        _, dot, number = name.partition(f"{SUMS}.")
        if dot and not os.path.exists(f"/proc/{number}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(generation.file(name))


def read(path: str) -> Sums:
    """Raises FileNotFoundError where there are none, DamagedSumsError, OSError."""
    from blake3 import blake3

    with open(path, "rb") as file:
        content = memoryview(file.read())
    start = len(_MAGIC)
    digest, body = content[start : start + 32], content[start + 32 :]
    if content[:start] != _MAGIC or len(digest) < 32 or blake3(body).digest() != digest:
        raise DamagedSumsError(f"{path} is not what was written")
    (number,) = _COUNT.unpack_from(body)
    end = _COUNT.size + number * _ROW.size
    rows = [tuple.__new__(Sum, row) for row in _ROW.iter_unpack(body[_COUNT.size : end])]
    return dict(zip(bytes(body[end:]).split(b"\0")[:-1], rows, strict=True))


def known(generation: Generation) -> Known:
    """What the newest sums of its line tell about files; nothing where there are none, or damaged ones."""
    try:
        found = read(os.path.join(generation.line, SUMS))
    except (OSError, DamagedSumsError):
        return {}
    return known_of(found)


def known_of(sums: Sums) -> Known:
    """What sums tell about files."""
    return {one[:4]: (one.digest, one.attributes) for one in sums.values() if stat.S_ISREG(one.mode)}


def compared(before: Sums, now: Sums, failed: dict[bytes, int]) -> Iterator[Damage]:
    """What differs, in the order of paths. `failed`: what could not be read, with the kernel's number."""
    # Nearly all are the same to the inode and its ctime: those cost one comparison.
    suspect = {path for path, old in before.items() if now.get(path) != old}
    suspect |= failed.keys() | (now.keys() - before.keys())
    for path in sorted(suspect):
        name, old, new = os.fsdecode(path), before.get(path), now.get(path)
        if path in failed:
            yield Damage(name, Fault.UNREADABLE, os.strerror(failed[path]))
        elif old is None:
            yield Damage(name, Fault.EXTRA)
        elif new is None:
            yield Damage(name, Fault.MISSING)
        else:
            fault = _difference(old, new)
            if fault is not None:
                yield Damage(name, *fault)


def _difference(old: Sum, new: Sum) -> tuple[Fault, str] | None:
    if stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        return Fault.CHANGED, "kind"
    if old.digest != new.digest:
        return Fault.CONTENT, "" if old.size == new.size else f"{new.size} bytes, was {old.size}"
    if old.mode != new.mode:
        return Fault.CHANGED, f"mode {stat.S_IMODE(new.mode):o}, was {stat.S_IMODE(old.mode):o}"
    if (old.uid, old.gid) != (new.uid, new.gid):
        return Fault.CHANGED, f"owner {new.uid}:{new.gid}, was {old.uid}:{old.gid}"
    if old.device != new.device:
        return Fault.CHANGED, "device number"
    if old.attributes != new.attributes:
        return Fault.CHANGED, "attributes"
    if old.mtime != new.mtime and not stat.S_ISDIR(old.mode):
        return Fault.CHANGED, "time"
    return None
