"""The kernel's calls that Python does not offer: signatures once, one error check, constants by their header names.

The only file that uses ctypes. Numbers of the new mount API are the same on x86_64, aarch64 and riscv64
(include/uapi/asm-generic/unistd.h). Every call raises OSError with the kernel's errno and the path it was given.
This module does not decide anything and keeps no state but the loaded C library.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_INTO_CGROUP = 0x200000000
_SIGCHLD = 17

MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19

OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
FSOPEN_CLOEXEC = 1
FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
MOUNT_ATTR_RDONLY = 0x1

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522

_SIG_IGN = 1
SFD_CLOEXEC = os.O_CLOEXEC
SFD_NONBLOCK = os.O_NONBLOCK

_IOPRIO_SET_X86_64 = 251
_IOPRIO_SET = 30
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_CLASS_IDLE = 3 << 13
_RT_SIGACTION_X86_64 = 13
_RT_SIGACTION = 134
_RENAMEAT2_X86_64 = 316
_RENAMEAT2 = 276
_STATX_X86_64 = 332
_STATX = 291
_OPEN_TREE = 428
_MOVE_MOUNT = 429
_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_CLONE3 = 435
_OPENAT2 = 437
_MOUNT_SETATTR = 442


class _MountAttr(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _OpenHow(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


class _CloneArgs(ctypes.Structure):
    _fields_: ClassVar = [
        (name, ctypes.c_uint64)
        for name in (
            "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls",
            "set_tid", "set_tid_size", "cgroup",
        )
    ]  # fmt: skip


class _CapHeader(ctypes.Structure):
    _fields_: ClassVar = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


_library: Any = None


def _libc() -> Any:
    global _library
    if _library is None:
        # PyDLL keeps the interpreter's lock over the call: after clone3 the child must not wait for it.
        _library = ctypes.PyDLL(None, use_errno=True)
        _library.syscall.restype = ctypes.c_long
    return _library


def _checked(result: int, path: str | bytes | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def _syscall(number: int, *arguments: Any, path: str | bytes | None = None) -> int:
    return _checked(_libc().syscall(ctypes.c_long(number), *arguments), path)


def _int(value: int) -> Any:
    return ctypes.c_long(value)


def unshare(flags: int) -> None:
    """unshare(2)."""
    _checked(_libc().unshare(ctypes.c_int(flags)))


def setns(descriptor: int, kind: int) -> None:
    """setns(2)."""
    _checked(_libc().setns(ctypes.c_int(descriptor), ctypes.c_int(kind)))


def set_propagation(path: str, flags: int) -> None:
    """mount(2) with nothing but propagation flags."""
    _checked(_libc().mount(b"none", os.fsencode(path), None, ctypes.c_ulong(flags), None), path)


def open_tree(path: str, *, recursive: bool = False, directory: int = AT_FDCWD) -> int:
    """open_tree(2): a detached clone of the mount at `path`, as a descriptor. With "" the descriptor's own mount."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0) | (0 if path else AT_EMPTY_PATH)
    return _syscall(_OPEN_TREE, _int(directory), os.fsencode(path), _int(flags), path=path)


def move_mount(tree: int, target: int) -> None:
    """move_mount(2): attach a detached tree where the descriptor `target` is."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _syscall(_MOVE_MOUNT, _int(tree), b"", _int(target), b"", _int(flags))


def fsopen(filesystem: str) -> int:
    """fsopen(2)."""
    return _syscall(_FSOPEN, filesystem.encode(), _int(FSOPEN_CLOEXEC), path=filesystem)


def fsconfig_string(context: int, key: str, value: str) -> None:
    """fsconfig(2) FSCONFIG_SET_STRING; a value ends at 255 bytes."""
    _syscall(_FSCONFIG, _int(context), _int(FSCONFIG_SET_STRING), key.encode(), os.fsencode(value), _int(0), path=key)


def fsconfig_flag(context: int, key: str) -> None:
    """fsconfig(2) FSCONFIG_SET_FLAG."""
    _syscall(_FSCONFIG, _int(context), _int(FSCONFIG_SET_FLAG), key.encode(), None, _int(0), path=key)


def fsconfig_create(context: int) -> None:
    """fsconfig(2) FSCONFIG_CMD_CREATE."""
    _syscall(_FSCONFIG, _int(context), _int(FSCONFIG_CMD_CREATE), None, None, _int(0))


def fsmount(context: int) -> int:
    """fsmount(2): the created filesystem as a detached mount."""
    return _syscall(_FSMOUNT, _int(context), _int(FSMOUNT_CLOEXEC), _int(0))


def mount_read_only(directory: int, path: str, *, recursive: bool) -> None:
    """mount_setattr(2) MOUNT_ATTR_RDONLY. With "" the mount of the descriptor; other flags stay as they are."""
    attributes = _MountAttr(attr_set=MOUNT_ATTR_RDONLY)
    flags = (AT_RECURSIVE if recursive else 0) | (0 if path else AT_EMPTY_PATH)
    _syscall(
        _MOUNT_SETATTR, _int(directory), os.fsencode(path), _int(flags),
        ctypes.byref(attributes), _int(ctypes.sizeof(attributes)), path=path,
    )  # fmt: skip


def openat2(directory: int, path: str | bytes, flags: int, *, resolve: int, mode: int = 0) -> int:
    """openat2(2)."""
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=mode, resolve=resolve)
    return _syscall(
        _OPENAT2, _int(directory), os.fsencode(path), ctypes.byref(how), _int(ctypes.sizeof(how)), path=path
    )


def renameat2(name: str, new: str, flags: int, *, old_folder: int = AT_FDCWD, new_folder: int = AT_FDCWD) -> int:
    """renameat2(2); with `RENAME_EXCHANGE` both names are there, and are swapped in one step."""
    call = _RENAMEAT2_X86_64 if os.uname().machine == "x86_64" else _RENAMEAT2
    names = [ctypes.c_char_p(os.fsencode(one)) for one in (name, new)]
    return _syscall(call, _int(old_folder), names[0], _int(new_folder), names[1], _int(flags), path=name)


def statx_attributes(directory: int, name: str) -> int:
    """statx(2): the STATX_ATTR_ bits of an entry; with "" of what the descriptor is open on. 0 where it has none."""
    call = _STATX_X86_64 if os.uname().machine == "x86_64" else _STATX
    found = (ctypes.c_ubyte * 256)()
    flags = AT_SYMLINK_NOFOLLOW | (0 if name else AT_EMPTY_PATH)
    _syscall(call, _int(directory), os.fsencode(name), _int(flags), _int(0), ctypes.byref(found), path=name)
    return int.from_bytes(bytes(found[8:16]), "little")


def fork_into_cgroup(cgroup: int) -> int:
    """clone3(2) with CLONE_INTO_CGROUP: like fork, the child is born in the cgroup of this folder descriptor.

    No fork handlers of Python run: only for a single-threaded process whose child soon execs.
    """
    arguments = _CloneArgs(flags=CLONE_INTO_CGROUP, exit_signal=_SIGCHLD, cgroup=cgroup)
    return _syscall(_CLONE3, ctypes.byref(arguments), _int(ctypes.sizeof(arguments)))


def prctl(option: int, argument: int, second: int = 0) -> int:
    """prctl(2)."""
    return _checked(_libc().prctl(ctypes.c_int(option), *(ctypes.c_ulong(a) for a in (argument, second, 0, 0))))


def drop_capabilities() -> None:
    """capset(2) with nothing in any set."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)()
    _checked(_libc().capset(ctypes.byref(header), data))


def sync_filesystem(path: str) -> None:
    """syncfs(2) of the filesystem on which that lies."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        syncfs(handle)
    finally:
        os.close(handle)


def syncfs(descriptor: int) -> None:
    """syncfs(2): everything of the descriptor's filesystem is on disk. May take seconds: other threads go on."""
    _checked(ctypes.CDLL(None, use_errno=True).syncfs(ctypes.c_int(descriptor)))


def set_idle_io() -> None:
    """ioprio_set(2): this process reads and writes when nobody else does, where the disk's scheduler knows that."""
    call = _IOPRIO_SET_X86_64 if os.uname().machine == "x86_64" else _IOPRIO_SET
    _syscall(call, _int(_IOPRIO_WHO_PROCESS), _int(0), _int(_IOPRIO_CLASS_IDLE))


def is_ignored(number: int) -> bool:
    """Whether this process ignores a signal; also one of those that the C library keeps to itself."""
    found = (ctypes.c_ulong * 4)()  # struct sigaction of the kernel: the handler comes first
    _rt_sigaction(number, None, found)
    return int(found[0]) == _SIG_IGN


def set_ignored(number: int, ignored: bool) -> None:
    """Ignore a signal, or give it its default; also one of those that the C library keeps to itself."""
    _rt_sigaction(number, (ctypes.c_ulong * 4)(_SIG_IGN if ignored else 0), None)


def _rt_sigaction(number: int, new: Any, old: Any) -> None:
    call = _RT_SIGACTION_X86_64 if os.uname().machine == "x86_64" else _RT_SIGACTION
    _syscall(call, _int(number), new, old, _int(8))


def signalfd(signals: set[int]) -> int:
    """signalfd(2), non-blocking: the blocked `signals` of this process as a descriptor of 128-byte records."""
    mask = (ctypes.c_ulong * (128 // ctypes.sizeof(ctypes.c_ulong)))()
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    for number in signals:
        mask[(number - 1) // bits] |= 1 << ((number - 1) % bits)
    return _checked(_libc().signalfd(ctypes.c_int(-1), ctypes.byref(mask), ctypes.c_int(SFD_CLOEXEC | SFD_NONBLOCK)))


def read_signals(descriptor: int) -> list[tuple[int, int, int]]:
    """The signals that wait at a signalfd: number, si_code, sender's pid (0 where the kernel sent it)."""
    try:
        content = os.read(descriptor, 128 * 32)
    except BlockingIOError:
        return []
    found = []
    for start in range(0, len(content), 128):
        number = int.from_bytes(content[start : start + 4], "little")
        code = int.from_bytes(content[start + 8 : start + 12], "little", signed=True)
        sender = int.from_bytes(content[start + 12 : start + 16], "little")
        found.append((number, code, sender))
    return found
