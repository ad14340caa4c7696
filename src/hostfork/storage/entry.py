"""Copying one entry of a tree between two open folders, faithfully, as root or as an ordinary user.

Nothing here follows a symlink or writes to the source; the source's access times are left alone where the kernel lets
this user (O_NOATIME). The module imports the standard library and `flags` only: worker programs load it too.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from enum import IntEnum, unique

from hostfork.helper.shapes import NamedTuple
from hostfork.storage import flags

TRIES = 3
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a name that has just become a FIFO must not hold us.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BUFFER = 1 << 18
_TICK = 10_000_000
"""Nanoseconds; the coarsest clock tick of the kernel (HZ=100)."""
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.ENODATA, errno.EACCES, errno.EPERM, errno.ELOOP)
_LOST_ATTRIBUTES = (errno.ENOTSUP, errno.EPERM, errno.EACCES)
_RELABELLED = ("security.selinux", "security.SMACK64")
"""The system's own policy gives new files theirs."""
_SHOWN_TWICE = ("trusted.SGI_ACL_FILE", "trusted.SGI_ACL_DEFAULT")
"""XFS shows root each ACL by such a name too, which on another filesystem would be an attribute like others."""


@unique
class Outcome(IntEnum):
    """What became of one entry."""

    DONE = 0
    GONE = 1
    """It vanished before it could be taken."""
    UNREADABLE = 2
    UNSTABLE = 3
    LINKED = 4
    """A file with more names: not copied, the caller decides."""


class Taken(NamedTuple):
    """One entry's outcome; the stats are there for DONE, `source` for LINKED too."""

    outcome: Outcome
    source: os.stat_result | None = None
    copy: os.stat_result | None = None
    bytes: int = 0
    unwritable: bool = False
    lost: tuple[str, ...] = ()
    """What of the original the copy does not have, in words: file flags, set-uid bits, attributes that are root's."""


class Wanted(NamedTuple):
    """Mode, owner, group and attributes that a copy is to have."""

    mode: int
    uid: int
    gid: int
    unwritable: bool


class Extra(NamedTuple):
    """What a stat does not show: extended attributes, ACLs among them, and file flags."""

    attributes: tuple[tuple[str, bytes], ...] = ()
    flags: int = 0


_NOTHING = Extra()


def open_quietly(name: str, flags: int, folder: int | None = None) -> int:
    """open(2) that leaves the access time alone; that is only the owner's and root's right."""
    try:
        return os.open(name, flags | os.O_NOATIME, dir_fd=folder)
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
    return os.open(name, flags, dir_fd=folder)


class Copier:
    """Copies entries as the calling user. Root keeps owners; an ordinary user's copies are its own.

    What an ordinary user does not own is given the access that the user has on the host, as its owner: what could not
    be written there cannot be written here (`unwritable`), and set-uid and set-gid bits are dropped.
    """

    kind = "copy"
    """What a worker program is told to be."""

    def __init__(self) -> None:
        self.root = os.geteuid() == 0
        self._uid = os.geteuid()
        self._groups = frozenset((*os.getgroups(), os.getegid()))
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)

    def opener(self, name: str, folder: int) -> int:
        """A folder of the source. Raises OSError."""
        return open_quietly(name, FOLDER, folder)

    def wanted(self, found: os.stat_result, folder: int, name: str) -> Wanted:
        """What the copy of `name` in the open `folder` is to have. With "." it is the folder itself."""
        mode = stat.S_IMODE(found.st_mode)
        if self.root:
            return Wanted(mode, found.st_uid, found.st_gid, False)
        gid = found.st_gid if found.st_gid in self._groups else os.getegid()
        if gid != found.st_gid:
            mode &= ~stat.S_ISGID
        if found.st_uid == self._uid or stat.S_ISLNK(found.st_mode):
            return Wanted(mode, self._uid, gid, False)
        may = [_may(folder, name, right) for right in (os.R_OK, os.W_OK, os.X_OK)]
        special = stat.S_ISVTX | (stat.S_ISGID if stat.S_ISDIR(found.st_mode) else 0)
        mode = (mode & (special | 0o077)) | (may[0] << 8) | (may[1] << 7) | (may[2] << 6)
        return Wanted(mode if may[1] else mode & ~0o222, self._uid, gid, not may[1])

    def file(
        self, source: int, name: str, target: int, as_name: str, *, links: bool = False, look: bool = False
    ) -> Taken:
        """Copy the regular file `name`. A file with several names is LINKED unless `links`.

        It is stat'ed before and after; after three tries it is UNSTABLE. `look`: only see whether it can be read.
        Raises OSError where reading or writing fails.
        """
        for _ in range(TRIES):
            try:
                file = open_quietly(name, READ, source)
            except FileNotFoundError:
                return Taken(Outcome.GONE)
            except PermissionError:
                return Taken(Outcome.UNREADABLE)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EWOULDBLOCK):
                    raise
                continue  # it has just become something else, or somebody holds a lease on it (fcntl(2))
            try:
                if look:
                    return Taken(Outcome.GONE)
                before = _settled(file)
                if not stat.S_ISREG(before.st_mode):
                    continue
                if before.st_nlink > 1 and not links:
                    return Taken(Outcome.LINKED, before)
                taken = self._attempt(file, before, source, name, target, as_name)
                if _same(before, os.fstat(file)):
                    return taken
                os.unlink(as_name, dir_fd=target)
            finally:
                os.close(file)
        return Taken(Outcome.UNSTABLE)

    def _attempt(self, file: int, before: os.stat_result, source: int, name: str, target: int, as_name: str) -> Taken:
        wanted = self.wanted(before, source, name)
        extra = read_extra(file)
        # Setting user.* attributes needs the write bit, whatever the descriptor allows.
        out = os.open(as_name, _CREATE, 0o600 if extra.attributes else wanted.mode & 0o777, dir_fd=target)
        try:
            if extra.flags & flags.EARLY:
                flags.give(out, extra.flags & flags.EARLY)
            return self._finished(out, before, wanted, extra, self._content(file, out, before))
        finally:
            os.close(out)

    def _finished(self, out: int, found: os.stat_result, wanted: Wanted, extra: Extra, size: int = 0) -> Taken:
        """Give an open file or folder its metadata; the last stat shows the final ctime."""
        os.utime(out, ns=(found.st_atime_ns, found.st_mtime_ns))
        now, lost = os.fstat(out), _lost_bits(found, wanted)
        same = (now.st_uid, now.st_gid, stat.S_IMODE(now.st_mode)) == (wanted.uid, wanted.gid, wanted.mode)
        if not same or extra is not _NOTHING:
            if (now.st_uid, now.st_gid) != (wanted.uid, wanted.gid):
                os.fchown(out, wanted.uid, wanted.gid)
            lost += self._set_attributes(out, extra)
            os.fchmod(out, wanted.mode)  # after the owner, which clears set-uid, and the ACL, which sets group bits
            if extra.flags:
                lost += flags.words(flags.give(out, extra.flags))
            now = os.fstat(out)
        return Taken(Outcome.DONE, found, now, size, wanted.unwritable, lost)

    def folder(self, out: int, found: os.stat_result, wanted: Wanted, extra: Extra) -> Taken:
        """Finish a copied folder, after its entries were made: they change its times, and would inherit its flags."""
        return self._finished(out, found, wanted, extra)

    def node(self, source: int, name: str, target: int, as_name: str) -> Taken:
        """Copy a symlink, FIFO, socket or device. A device that this user may not make is UNREADABLE."""
        try:
            found = os.stat(name, dir_fd=source, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), as_name, dir_fd=target)
        except FileNotFoundError:
            return Taken(Outcome.GONE)
        except PermissionError:
            return Taken(Outcome.UNREADABLE)
        if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
            return Taken(Outcome.UNSTABLE)
        if not stat.S_ISLNK(found.st_mode):
            try:
                os.mknod(as_name, stat.S_IFMT(found.st_mode) | 0o600, found.st_rdev, dir_fd=target)
            except PermissionError:
                return Taken(Outcome.UNREADABLE)
        wanted = self.wanted(found, source, name)
        return self._finished_node(found, wanted, f"/proc/self/fd/{source}/{name}", f"/proc/self/fd/{target}/{as_name}")

    def _finished_node(self, found: os.stat_result, wanted: Wanted, source: str, copy: str) -> Taken:
        os.chown(copy, wanted.uid, wanted.gid, follow_symlinks=False)
        lost = self._set_attributes(copy, Extra(_attributes(source)))
        if not stat.S_ISLNK(found.st_mode):
            os.chmod(copy, wanted.mode)
        os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns), follow_symlinks=False)
        return Taken(Outcome.DONE, found, os.lstat(copy), 0, wanted.unwritable, lost)

    def _set_attributes(self, place: int | str, extra: Extra) -> tuple[str, ...]:
        """Set them; the names of those that this user may not set."""
        lost = []
        for name, value in extra.attributes:
            try:
                os.setxattr(place, name, value, follow_symlinks=isinstance(place, int))
            except OSError as error:
                # Attributes of security modules and capabilities are root's; user.* and ACLs are never lost silently.
                ours = name.startswith(("user.", "system.posix_acl"))
                if ours or error.errno not in _LOST_ATTRIBUTES:
                    raise
                if name not in _RELABELLED:
                    lost.append(name)
        return tuple(lost)

    def _content(self, file: int, out: int, found: os.stat_result) -> int:
        if found.st_blocks * 512 < found.st_size:
            return self._sparse(file, out, found.st_size)
        return self._range(file, out, found.st_size)

    def _range(self, file: int, out: int, length: int) -> int:
        """Copy up to `length` bytes from the present offsets; less where the file ends."""
        done, buffer, view = 0, self._buffer, self._view
        while done < length:
            got = os.readv(file, [buffer if length - done >= _BUFFER else view[: length - done]])
            if not got:
                break
            put = 0
            while put < got:
                put += os.write(out, view[put:got])
            done += got
        return done

    def _sparse(self, file: int, out: int, size: int) -> int:
        """Copy the data between the holes (lseek(2) SEEK_DATA)."""
        offset = copied = 0
        while offset < size:
            try:
                start = os.lseek(file, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # a hole up to the end
            offset = min(os.lseek(file, start, os.SEEK_HOLE), size)
            if start >= offset:
                break
            os.lseek(file, start, os.SEEK_SET)
            os.lseek(out, start, os.SEEK_SET)
            copied += self._range(file, out, offset - start)
        os.ftruncate(out, size)
        return copied


def read_extra(opened: int) -> Extra:
    """Attributes and flags of an open file or folder."""
    attributes, found = _attributes(opened), flags.read(opened) & flags.WATCHED
    return Extra(attributes, found) if attributes or found else _NOTHING


def _attributes(place: int | str) -> tuple[tuple[str, bytes], ...]:
    """Extended attributes and ACLs of an open file or of a path whose last part is not followed."""
    follow = isinstance(place, int)
    try:
        names = os.listxattr(place, follow_symlinks=follow)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise
        return ()
    found = []
    for name in names:
        if name in _SHOWN_TWICE:
            continue
        try:
            found.append((name, os.getxattr(place, name, follow_symlinks=follow)))
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise
    return tuple(found)


def _lost_bits(found: os.stat_result, wanted: Wanted) -> tuple[str, ...]:
    """The set-uid and set-gid bits of a program that the copy of one who is not its owner cannot have."""
    gone = found.st_mode & ~wanted.mode if stat.S_ISREG(found.st_mode) else 0
    return (("set-uid",) if gone & stat.S_ISUID else ()) + (("set-gid",) if gone & stat.S_ISGID else ())


def _may(folder: int, name: str, right: int) -> bool:
    return os.access(name, right, dir_fd=folder, effective_ids=True, follow_symlinks=False)


def _settled(file: int) -> os.stat_result:
    """A stat after which every write moves the ctime.

    Kernels before 6.13 stamp by the tick: a write within the tick of the stat would leave the same ctime.
    """
    found = os.fstat(file)
    for _ in range(TRIES):
        now = time.time_ns()
        if not now - _TICK < found.st_ctime_ns <= now + _TICK:
            break
        time.sleep(_TICK / 1e9)
        found = os.fstat(file)
    return found


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return (
        before.st_ctime_ns == after.st_ctime_ns
        and before.st_mtime_ns == after.st_mtime_ns
        and before.st_size == after.st_size
        and after.st_nlink > 0
    )
