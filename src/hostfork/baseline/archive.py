"""Unpacking archives that nobody has to trust: tar in every compression that Python knows, and zip.

Each entry is made through an open folder that is reached without a symlink, so that nothing is written outside. Names
with `..`, absolute names and devices are refused; of the modes the permissions are taken, of the owners nothing: the
tree belongs to who unpacks it. Times are kept.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from hostfork.errors import BaselineError, Code
from hostfork.helper.syscalls import openat2
from hostfork.storage.entry import FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tarfile import TarInfo
    from typing import IO, NoReturn
    from zipfile import ZipInfo

_INSIDE = 0x08 | 0x04  # RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS, openat2(2)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 16
_LONGEST_LINK = 4095
_TIMES = (-(2**31), 2**34)
"""Seconds between which the filesystems keep times."""
_UNIX = 3
_EXTENDED_TIME = 0x5455
_TELL = 256


def unpack(path: str, tree: str, told: Callable[[int, int], None] | None = None) -> None:
    """Make `tree`, a new folder, of what an archive holds. `told`: files and bytes, now and then.

    Raises BaselineError `baseline.origin` where it is no archive, not whole or not harmless, OSError of the tree.
    """
    import lzma
    import struct
    import tarfile
    import zipfile
    import zlib

    faults = (
        tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, struct.error, ValueError,
        RuntimeError,
    )  # fmt: skip
    try:
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            os.mkdir(tree, 0o755)
            with _Writer(path, tree, told) as writer:
                (_unpack_zip if _is_zip(file) else _unpack_tar)(file, writer)
            after = os.fstat(file.fileno())
    except faults as error:
        raise _origin(f"{path} cannot be unpacked: {error or 'it ends too early'}", path, _KINDS) from error
    except OSError as error:
        if error.errno is None:  # bz2 says so of damaged data
            raise _origin(f"{path} cannot be unpacked: {error}", path, _KINDS) from error
        if error.filename == path:
            raise _origin(f"{path} cannot be read", path, "name a readable archive", error.errno) from error
        raise
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_size, after.st_mtime_ns, after.st_ctime_ns,
    ):  # fmt: skip
        raise _origin(f"{path} changed while it was unpacked", path, "try again when it is complete")


def _is_zip(file: IO[bytes]) -> bool:
    """By its first bytes: a tar whose last entry is a zip ends as a zip does."""
    first = file.read(2)
    file.seek(0)
    return first == b"PK"


_KINDS = "tar (plain, gzip, bzip2 or xz) and zip can be unpacked; of others make a folder and use --from"


def _origin(sentence: str, path: str, hint: str, number: int | None = None) -> BaselineError:
    return BaselineError(Code.BASELINE_ORIGIN, sentence, step="unpack", path=path, hint=hint, errno=number)


def _unpack_tar(file: IO[bytes], writer: _Writer) -> None:
    import tarfile

    with tarfile.open(fileobj=file, mode="r:*", encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            made = _Made(member.mode, _tar_time(member))
            if member.isdir():
                writer.folder(member.name, made)
            elif member.issym():
                writer.symlink(member.name, member.linkname, made)
            elif member.islnk():
                writer.link(member.name, member.linkname)
            elif member.isfifo():
                writer.fifo(member.name, made)
            elif member.isreg():
                content = archive.extractfile(member)
                assert content is not None
                writer.file(member.name, content, member.size, made)
            else:
                kind = "a device" if member.isdev() else "of a kind that is unknown here"
                writer.refuse(member.name, f"is {kind}")


def _unpack_zip(file: IO[bytes], writer: _Writer) -> None:
    import zipfile

    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16 if member.create_system == _UNIX else 0
            made = _Made(stat.S_IMODE(mode) if mode else 0o755 if member.is_dir() else 0o644, _zip_time(member))
            if member.is_dir():
                writer.folder(member.filename, made)
            elif stat.S_ISLNK(mode):
                if member.file_size > _LONGEST_LINK:
                    writer.refuse(member.filename, "is a symlink that is too long")
                writer.symlink(member.filename, os.fsdecode(archive.read(member)), made)
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with archive.open(member) as content:
                    writer.file(member.filename, content, member.file_size, made)
            else:
                writer.refuse(member.filename, "is a device or of another special kind")


def _tar_time(member: TarInfo) -> int:
    """In ns; the float that Python makes of it is not exact."""
    seconds, _, fraction = member.pax_headers.get("mtime", "").partition(".")
    try:
        exact = int(seconds) * 10**9
        part = int(fraction[:9].ljust(9, "0"))
        return exact - part if seconds.startswith("-") else exact + part
    except ValueError:
        return _within(member.mtime)


def _within(seconds: float) -> int:
    low, high = _TIMES
    return int(min(max(seconds, low), high)) * 10**9 if seconds == seconds else 0


def _zip_time(member: ZipInfo) -> int:
    extra = member.extra
    while len(extra) >= 4:
        kind, size = int.from_bytes(extra[:2], "little"), int.from_bytes(extra[2:4], "little")
        if kind == _EXTENDED_TIME and size >= 5 and extra[4] & 1 and len(extra) >= 9:
            return int.from_bytes(extra[5:9], "little", signed=True) * 10**9
        extra = extra[4 + size :]
    try:
        return _within(time.mktime((*member.date_time, 0, 0, -1)))
    except (ValueError, OverflowError):
        return 0


class _Made:
    """Mode and time of an entry."""

    def __init__(self, mode: int, time_ns: int) -> None:
        self.mode = mode & 0o777
        low, high = _TIMES
        when = min(max(time_ns, low * 10**9), high * 10**9)
        self.times = (when, when)


class _Writer:
    """Makes entries below one new folder. What is named twice is what it is the last time."""

    def __init__(self, archive: str, tree: str, told: Callable[[int, int], None] | None) -> None:
        self._archive, self._told = archive, told
        self._root = os.open(tree, FOLDER)
        self._folders: dict[str, _Made] = {}
        self._last = ("", os.dup(self._root))
        self._files = self._bytes = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._last[1])
            os.close(self._root)

    def folder(self, written: str, made: _Made) -> None:
        """A folder; its mode and time are set at the end, since what is made in it changes them."""
        path = self._path(written, root=True)
        if path:
            self._enter(path, written)
        self._folders[path] = made

    def file(self, written: str, content: IO[bytes], size: int, made: _Made) -> None:
        """A regular file. Blocks of zeros become holes."""
        folder, name = self._free(written)
        opened = os.open(name, _CREATE, 0o600, dir_fd=folder)
        try:
            done = 0
            while done < size:
                chunk = content.read(min(_CHUNK, size - done))
                if not chunk:
                    raise EOFError(f"{written} ends too early")
                _write(opened, chunk, done)
                done += len(chunk)
            os.ftruncate(opened, size)
            os.fchmod(opened, made.mode)
            os.utime(opened, ns=made.times)
        finally:
            os.close(opened)
        self._files += 1
        self._bytes += size
        if self._told is not None and self._files % _TELL == 0:
            self._told(self._files, self._bytes)

    def symlink(self, written: str, target: str, made: _Made) -> None:
        """A symlink, wherever it leads: nothing here follows it."""
        folder, name = self._free(written)
        if not target or "\0" in target:
            self.refuse(written, "is a symlink that leads nowhere")
        os.symlink(target, name, dir_fd=folder)
        os.utime(name, ns=made.times, dir_fd=folder, follow_symlinks=False)

    def link(self, written: str, target: str) -> None:
        """Another name of a file that was made before."""
        above, _, first = self._path(target).rpartition("/")
        folder, name = self._free(written)
        try:
            source = openat2(self._root, above or ".", FOLDER, resolve=_INSIDE)
            try:
                os.link(first, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(source)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EPERM, errno.EXDEV):
                raise
            self.refuse(written, f"is a link to {target}, which is no file of it")

    def fifo(self, written: str, made: _Made) -> None:
        """A FIFO."""
        folder, name = self._free(written)
        os.mkfifo(name, made.mode, dir_fd=folder)
        os.chmod(name, made.mode, dir_fd=folder)
        os.utime(name, ns=made.times, dir_fd=folder, follow_symlinks=False)

    def refuse(self, written: str, why: str) -> NoReturn:
        """Raise the error that names an entry."""
        raise _origin(
            f"{self._archive} cannot be unpacked: {written} {why}", self._archive,
            "unpack it yourself into a folder, then: hostfork baseline create NAME --from FOLDER",
        )  # fmt: skip

    def _path(self, written: str, root: bool = False) -> str:
        """The relative path below the root that a name means."""
        parts = [part for part in written.split("/") if part not in ("", ".")]
        if written.startswith("/"):
            self.refuse(written, "is an absolute name")
        if ".." in parts:
            self.refuse(written, "leads out of it")
        if not parts and not root:
            self.refuse(written or "an entry", "has no name")
        if "\0" in written:
            self.refuse(written.partition("\0")[0], "is no name")
        return "/".join(parts)

    def _free(self, written: str) -> tuple[int, str]:
        """The open folder in which an entry is to be made, and its name, which nothing has."""
        above, _, name = self._path(written).rpartition("/")
        folder = self._enter(above, written)
        with suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                self.refuse(written, "is a folder before, and something else later")
        return folder, name

    def _enter(self, path: str, written: str) -> int:
        """The open folder of that path, made with all above it where it is not there; open until the next call."""
        if self._last[0] == path:
            return self._last[1]
        try:
            opened = openat2(self._root, path or ".", FOLDER, resolve=_INSIDE)
        except FileNotFoundError:
            opened = self._made(path, written)
        except OSError as error:
            self._refuse_above(written, error)
        os.close(self._last[1])
        self._last = (path, opened)
        return opened

    def _made(self, path: str, written: str) -> int:
        opened = os.dup(self._root)
        try:
            for name in path.split("/"):
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=opened)
                inner = os.open(name, FOLDER, dir_fd=opened)
                os.close(opened)
                opened = inner
        except OSError as error:
            os.close(opened)
            self._refuse_above(written, error)
        parts = path.split("/")
        for number in range(len(parts)):
            self._folders.setdefault("/".join(parts[: number + 1]), _Made(0o755, time.time_ns()))
        return opened

    def _refuse_above(self, written: str, error: OSError) -> NoReturn:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            self.refuse(written, "lies below something that is no folder of it")
        if error.errno in (errno.ENAMETOOLONG, errno.EMFILE):
            self.refuse(written, f"cannot be made: {error.strerror}")
        raise error

    def _finish(self) -> None:
        """Give the folders their modes and times, the deepest first."""
        for path in sorted(self._folders, key=lambda path: path.count("/") if path else -1, reverse=True):
            made = self._folders[path]
            opened = openat2(self._root, path or ".", FOLDER, resolve=_INSIDE)
            try:
                os.fchmod(opened, made.mode)
                os.utime(opened, ns=made.times)
            finally:
                os.close(opened)


def _write(opened: int, chunk: bytes, offset: int) -> None:
    if chunk.count(0) == len(chunk):
        return
    view, done = memoryview(chunk), 0
    while done < len(chunk):
        done += os.pwrite(opened, view[done:], offset + done)
