"""A FUSE filesystem with one file, spoken to the kernel directly (linux/fuse.h): `python fuse_rig.py PLACE UID GID`.

It says `up` when it is mounted and ends when it is unmounted. Only the person of that uid sees into it.
"""

import ctypes
import errno
import os
import stat
import struct
import sys

NAME, CONTENT = b"hello", b"from a fuse filesystem\n"
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _INIT, _OPENDIR, _READDIR = 1, 2, 3, 14, 15, 17, 26, 27, 28
_BATCH_FORGET = 42
_DONE = (18, 25, 29, 34)
"""RELEASE, FLUSH, RELEASEDIR, ACCESS: nothing is to be done."""


def _attributes(inode: int, uid: int, gid: int) -> bytes:
    mode, size = (stat.S_IFDIR | 0o755, 0) if inode == 1 else (stat.S_IFREG | 0o644, len(CONTENT))
    return struct.pack("<6Q3I7I", inode, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, uid, gid, 0, 4096, 0)


def _answer(operation: int, inode: int, body: bytes, uid: int, gid: int) -> bytes | int:
    """The answer's body, or an error's number."""
    if operation == _INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 1, 1, 65536, 1, 1, 0, *[0] * 8)[:64]
    if operation == _LOOKUP:
        if body.rstrip(b"\0") != NAME:
            return errno.ENOENT
        return struct.pack("<4Q2I", 2, 0, 1, 1, 0, 0) + _attributes(2, uid, gid)
    if operation == _GETATTR:
        return struct.pack("<Q2I", 1, 0, 0) + _attributes(inode, uid, gid)
    if operation in (_OPEN, _OPENDIR):
        return struct.pack("<Q2I", 0, 0, 0)
    offset = struct.unpack_from("<Q", body, 8)[0] if operation in (_READ, _READDIR) else 0
    if operation == _READ:
        return CONTENT[offset:]
    if operation == _READDIR:
        name = NAME + bytes(-len(NAME) % 8)
        return b"" if offset else struct.pack("<2Q2I", 2, 1, len(NAME), stat.S_IFREG >> 12) + name
    if operation == _STATFS:
        return struct.pack("<5Q4I24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
    return b"" if operation in _DONE else errno.ENOSYS


def main(place: str, uid: int, gid: int) -> None:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={uid},group_id={gid}".encode()
    if libc.mount(b"fuse", os.fsencode(place), b"fuse", 2 | 4, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print("up", flush=True)
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno == errno.ENOENT:  # interrupted before it was read
                continue
            raise
        _, operation, unique, inode = struct.unpack_from("<IIQQ", request)
        if operation in (_FORGET, _BATCH_FORGET):
            continue
        answer = _answer(operation, inode, request[40:], uid, gid)
        body, number = (b"", -answer) if isinstance(answer, int) else (answer, 0)
        os.write(device, struct.pack("<IiQ", 16 + len(body), number, unique) + body)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
