"""What host processes have below private paths: live sockets, open FIFOs, open files. No tree is walked.

Sockets stand in /proc/net/unix under the name that was given to bind(2). It can be relative, lead through a symlink,
be of another mount namespace, or be stale: what counts is that a socket lies there now, and, for a name that does not
say where it starts, that sock_diag(7) gives the device and inode of that very file. Everything else is found in
/proc/PID/fd, which shows this user's processes only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from hostfork.errors import Code, HostError
from hostfork.policy.mounts import MountTable
from hostfork.policy.paths import join, within
from hostfork.values import frozen
from hostfork.vocabulary import EndpointKind


@frozen
class Listener:
    """A live socket or open FIFO of the host's at a path, with a process that has it (0 and "" where not visible)."""

    path: str
    kind: EndpointKind
    pid: int
    process: str
    device: int = 0
    inode: int = 0


@frozen
class OpenFile:
    """A host process with a file or working directory below a private path."""

    path: str
    pid: int
    process: str
    writing: bool


_HEADER_WIDTH = 1
_ACCEPTS = 0x10000
_DATAGRAM = 2

Sockets = list[tuple[int, str]]
"""Inode of a socket (of sockfs, as in `socket:[123]`) and the name it is bound to."""


def search(roots: tuple[str, ...], table: MountTable) -> tuple[tuple[Listener, ...], tuple[OpenFile, ...]]:
    """Live listeners and open FIFOs at or below `roots` (resolved), each path once, and open files there.

    Raises HostError (`host.missing`) where the kernel does not tell which sockets there are.
    """
    placed: dict[str, list[int]] = {}
    floating: Sockets = []
    for inode, name in bound_sockets():
        if not name.startswith("/"):
            floating.append((inode, name))
            continue
        path = _socket_at(name, roots)
        if path is not None:
            placed.setdefault(path, []).append(inode)
    wanted = {inode for inodes in placed.values() for inode in inodes} | {inode for inode, _ in floating}
    holders, fifos, files = _descriptors(roots, wanted)
    doubtful = _floating_candidates(floating, holders, roots)
    doubtful += [(inode, path) for path, inodes in placed.items() if len(inodes) > 1 for inode in inodes]
    for inode, path in _confirmed(doubtful, table):
        placed[path] = [inode]
    listeners = [_listener(path, EndpointKind.SOCKET, holders.get(inodes[-1], 0)) for path, inodes in placed.items()]
    listeners += [_listener(path, EndpointKind.FIFO, pid) for path, pid in fifos.items()]
    found = sorted((item for item in listeners if item is not None), key=lambda item: os.fsencode(item.path))
    return tuple(found), tuple(files)


def open_files(roots: tuple[str, ...]) -> tuple[OpenFile, ...]:
    """Files and working directories of host processes at or below `roots`."""
    return tuple(_descriptors(roots, set())[2])


def bound_sockets() -> Sockets:
    """Sockets bound to a path that listen (stream, seqpacket) or receive (datagram), from /proc/net/unix."""
    try:
        with open("/proc/net/unix", "rb") as file:
            content = file.read()
    except OSError as error:
        raise HostError(
            Code.HOST_MISSING,
            "live sockets below private paths cannot be found: /proc/net/unix cannot be read",
            path="/proc/net/unix",
            step="sharing",
            errno=error.errno,
            hint='a policy with [endpoints] search = "listed" does not look for them',
        ) from error
    found = []
    for line in _records(content):
        # Num: RefCount Protocol Flags Type St Inode Path
        fields = line.split(None, 7)
        if len(fields) < 8 or fields[7].startswith(b"@"):
            continue
        if int(fields[3], 16) & _ACCEPTS or int(fields[4], 16) == _DATAGRAM:
            found.append((int(fields[6]), os.fsdecode(_name(line, fields))))
    return found


def _name(line: bytes, fields: list[bytes]) -> bytes:
    """The name with its own leading blanks: one space stands between inode and name."""
    return line[line.index(fields[6], line.index(b" " + fields[5] + b" ") + 3) + len(fields[6]) + 1 :]


def _records(content: bytes) -> Iterator[bytes]:
    """One record a socket: a name may hold newlines, which the kernel prints as they are."""
    record = b""
    for line in content.split(b"\n")[_HEADER_WIDTH:]:
        head, mark, _ = line.partition(b": ")
        if mark and len(head) >= 8 and len(line) > len(head) + 30 and _hexadecimal(head):
            if record:
                yield record
            record = line
        elif record:
            record += b"\n" + line
    if record:
        yield record.removesuffix(b"\n")


def _hexadecimal(text: bytes) -> bool:
    try:
        int(text, 16)
    except ValueError:
        return False
    return True


def _socket_at(name: str, roots: tuple[str, ...]) -> str | None:
    """The resolved path of that name if a socket lies there, at or below one of the roots."""
    folder, _, last = name.rpartition("/")
    path = join(os.path.realpath(folder or "/"), last)
    if not any(within(path, root) for root in roots):
        return None
    try:
        return path if stat.S_ISSOCK(os.lstat(path).st_mode) else None
    except OSError:
        return None


def _floating_candidates(floating: Sockets, holders: dict[int, int], roots: tuple[str, ...]) -> Sockets:
    """Where a relative name could lie: from its process's working directory now, or from a private path."""
    found: Sockets = []
    for inode, name in floating:
        starts = list(roots)
        pid = holders.get(inode)
        if pid is not None:
            try:
                starts.insert(0, os.readlink(f"/proc/{pid}/cwd"))
            except OSError:
                # the process has ended, and its socket with it
                continue
        paths = (_socket_at(join(start, name), roots) for start in starts)
        found += [(inode, path) for path in dict.fromkeys(paths) if path is not None]
    return found


def _confirmed(candidates: Sockets, table: MountTable) -> Sockets:
    """Those candidates whose file is the one that the kernel says the socket is bound to."""
    if not candidates:
        return []
    bound = _bound_files()
    found: Sockets = []
    for inode, path in candidates:
        mount = table.mount_of(path)
        try:
            number = os.lstat(path).st_ino & 0xFFFFFFFF
        except OSError:
            continue
        # the device is the filesystem's (mountinfo), which on Btrfs is not stat's
        if mount is not None and bound.get(inode) == (mount.device, number):
            found.append((inode, path))
    return found


def _bound_files() -> dict[int, tuple[str, int]]:
    """Device and inode (32 bits of it) of each bound socket's file, by the socket's inode.

    Asked of the kernel by hand: a netlink library costs each run with such a socket more time than all else.
    """
    import socket
    import struct

    found: dict[int, tuple[str, int]] = {}
    # struct nlmsghdr and struct unix_diag_req (linux/unix_diag.h): every state, UDIAG_SHOW_VFS
    request = struct.pack("=IHHII", 40, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    request += struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_VFS, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as channel:
        channel.send(request)
        while True:
            data = channel.recv(1 << 17)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind != _SOCK_DIAG_BY_FAMILY:
                    # NLMSG_DONE, or NLMSG_ERROR where the kernel has no unix_diag
                    return found
                _note_file(data[16:length], found)
                data = data[(length + 3) & ~3 :]


_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_SHOW_VFS = 2
_UNIX_DIAG_VFS = 1


def _note_file(message: bytes, found: dict[int, tuple[str, int]]) -> None:
    """One struct unix_diag_msg with its attributes."""
    import struct

    inode = struct.unpack_from("=4xI", message)[0]
    at = 16
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _UNIX_DIAG_VFS:
            number, device = struct.unpack_from("=II", message, at + 4)
            # the kernel's own form of a device number: 12 bits major, 20 bits minor
            found[inode] = (f"{device >> 20}:{device & 0xFFFFF}", number)
        at += (length + 3) & ~3


def _descriptors(roots: tuple[str, ...], wanted: set[int]) -> tuple[dict[int, int], dict[str, int], list[OpenFile]]:
    """One pass over /proc/PID/fd: holders of the wanted sockets, FIFOs and files at or below the roots."""
    starts = tuple(root if root == "/" else root + "/" for root in roots)
    interesting = {*roots, *(f"socket:[{inode}]" for inode in wanted)}
    holders: dict[int, int] = {}
    fifos: dict[str, int] = {}
    files: list[OpenFile] = []
    without_files = {str(os.getpid()), *_kernel_threads()}
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or pid in without_files:
            continue
        for number, target in _links(pid, starts, interesting):
            if target.startswith("socket:["):
                holders.setdefault(int(target[8:-1]), int(pid))
            else:
                _sort_out(int(pid), number, target, fifos, files)
    return holders, fifos, files


def _kernel_threads() -> list[str]:
    """Pids of threads of the kernel, often most of what is in /proc: the children of its kthreadd.

    None where pid 2 is somebody else, as in a pid namespace, or where the kernel does not tell children (proc(5)).
    """
    try:
        with open("/proc/2/stat", "rb", buffering=0) as file:
            flags = int(file.read(4096).rpartition(b")")[2].split()[6])
        if not flags & _PF_KTHREAD:
            return []
        with open("/proc/2/task/2/children", "rb", buffering=0) as file:
            return file.read(1 << 20).decode().split()
    except (OSError, IndexError):
        return []


_PF_KTHREAD = 0x00200000
"""include/linux/sched.h"""


def _links(pid: str, starts: tuple[str, ...], interesting: set[str]) -> list[tuple[str, str]]:
    """Descriptor numbers (and `cwd`) of a process that lead there; nothing of a process of another user.

    Nearly all of the search's time is spent in this loop, in the kernel: a look-up in an open folder is the cheapest.
    """
    found = []
    readlink = os.readlink
    try:
        folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        for number in os.listdir(folder):
            try:
                target = readlink(number, dir_fd=folder)
            except OSError:
                # closed meanwhile
                continue
            if target in interesting or target.startswith(starts):
                found.append((number, target))
        target = readlink(f"/proc/{pid}/cwd")
        if target in interesting or target.startswith(starts):
            found.append(("cwd", target))
    except OSError:
        # a kernel thread has no working directory; another user's process shows none, or has ended
        return found
    finally:
        os.close(folder)
    return found


def _sort_out(pid: int, number: str, path: str, fifos: dict[str, int], files: list[OpenFile]) -> None:
    """Note a FIFO or file if the path is the host's: another namespace can have other things under the same name."""
    link = f"/proc/{pid}/cwd" if number == "cwd" else f"/proc/{pid}/fd/{number}"
    try:
        held, here = os.stat(link), os.lstat(path)
        if (held.st_dev, held.st_ino) != (here.st_dev, here.st_ino):
            return
        if stat.S_ISFIFO(held.st_mode):
            fifos.setdefault(path, pid)
        elif number == "cwd" or stat.S_ISREG(held.st_mode):
            writing = number != "cwd" and _writes(pid, number)
            files.append(OpenFile(path, pid, process_name(pid), writing))
    except OSError:
        # closed, deleted or ended meanwhile
        return


def _writes(pid: int, number: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}", "rb") as file:
        for line in file:
            if line.startswith(b"flags:"):
                return int(line[6:], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _listener(path: str, kind: EndpointKind, pid: int) -> Listener | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return Listener(path, kind, pid, process_name(pid), found.st_dev, found.st_ino)


def process_name(pid: int) -> str:
    """The kernel's short name of a process; nothing for pid 0 and for one that has ended."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return os.fsdecode(file.read().rstrip(b"\n"))
    except OSError:
        return ""
