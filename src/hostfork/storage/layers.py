"""Where the upper folder of a frozen overlay lies: in a writable snapshot of its base, so that no inode number meets.

Btrfs numbers inodes by subvolume and an overlay shows one device: with its upper folder in any other subvolume two
files could look like hard links of one to `mv`, `cp -a`, `tar` or `rsync`. A snapshot goes on with the numbers of its
base. One beside a shared base serves all the keys over it.

    SPACE/.hostfork-ID/KEY/{upper,work}    the layers of one key, at the top of the snapshot
    POOL/frozen/KEY/layers                 a symlink to that folder, there before it and gone after it
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from hostfork.storage import ioctls
from hostfork.storage.entry import FOLDER
from hostfork.storage.failures import failed
from hostfork.storage.pace import Pace
from hostfork.storage.tree import remove_tree

SPACE = "space"
_LAYERS = "layers"


def make_space(base: str, folder: int) -> None:
    """Make SPACE in the open folder from the snapshot `base` in it; nobody else may look into it. Raises OSError."""
    root = os.open(base, FOLDER, dir_fd=folder)
    try:
        ioctls.snapshot(root, SPACE, folder)
    finally:
        os.close(root)
    space = os.open(SPACE, FOLDER, dir_fd=folder)
    try:
        os.fchmod(space, 0o700)
        # What is made in it would inherit these.
        with contextlib.suppress(OSError):
            os.removexattr(space, "system.posix_acl_default")
    finally:
        os.close(space)


def begin(space: str, room: int, key: str) -> int:
    """Make the folder for the layers of a key whose folder is open; `space` is relative to that. Raises OSError.

    It has the key's name: by that recovery tells views from each other.
    """
    above = f"{space}/.hostfork-{time.time_ns()}-{os.getpid()}"
    target = f"{above}/{key}" if space else "."
    os.symlink(target, _LAYERS, dir_fd=room)
    for folder in (above, target) if space else ():
        os.mkdir(folder, 0o700, dir_fd=room)
    return os.open(target, FOLDER, dir_fd=room)


def place(path: str, key: str) -> str:
    """The folder of the layers of the whole key at that path. Raises StorageError."""
    try:
        return os.path.normpath(os.path.join(path, os.readlink(os.path.join(path, _LAYERS))))
    except OSError as error:
        raise failed(f"where the layers of private storage {key} lie cannot be read", path, error, "mounts") from error


def erase(key: int, pace: Pace) -> None:
    """Remove the layers of the key whose folder is open, where they lie elsewhere. Raises OSError, OutOfTime."""
    try:
        above = os.path.dirname(os.readlink(_LAYERS, dir_fd=key))
        if not above:
            return  # they lie in the key
        space = os.open(os.path.dirname(above), FOLDER, dir_fd=key)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise
        return  # none were begun, or all of it is gone
    try:
        remove_tree(os.path.basename(above), space, pace)
    finally:
        os.close(space)
