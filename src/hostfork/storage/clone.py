"""Taking a file's content by sharing its blocks (ioctl_ficlonerange(2)): all of the file at one instant, or an error.

The module imports the standard library, `flags` and `entry` only: worker programs load it too.
"""

from __future__ import annotations

import errno
import fcntl
import os

from hostfork.storage import flags
from hostfork.storage.entry import Copier

FICLONE = 0x40049409
NOT_SHARED = (errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS)
NOT_CLONED = (*NOT_SHARED, errno.EINVAL, errno.EXDEV, errno.ETXTBSY, errno.EPERM)
"""What the kernel answers where a file's blocks cannot be shared: a swap file, another filesystem below, …"""


class Cloner(Copier):
    """Copies entries as `Copier` does, but shares the blocks of files. No byte is ever read."""

    kind = "clone"

    def _content(self, file: int, out: int, found: os.stat_result) -> int:
        if found.st_size:
            clone(file, out)
        return 0


class Sharer(Cloner):
    """Shares the blocks of files as `Cloner` does, and copies those that cannot be shared."""

    def _content(self, file: int, out: int, found: os.stat_result) -> int:
        try:
            return super()._content(file, out, found)
        except OSError as error:
            if error.errno not in NOT_CLONED:
                raise
            return Copier._content(self, file, out, found)


def clone(file: int, out: int) -> None:
    """Make the open empty file `out` share all blocks of `file`. Raises OSError where the kernel cannot."""
    try:
        fcntl.ioctl(out, FICLONE, file)
    except OSError as error:
        # Btrfs shares no blocks between files with and without checksums; an empty file can still become the other.
        if error.errno != errno.EINVAL or not _made_alike(file, out):
            raise
        fcntl.ioctl(out, FICLONE, file)


def _made_alike(file: int, out: int) -> bool:
    """Give `out` the NOCOW flag of `file`; False where that is no difference."""
    there = flags.read(out)
    if not (flags.read(file) ^ there) & flags.NOCOW:
        return False
    try:
        flags.write(out, there ^ flags.NOCOW)
    except OSError:
        return False  # the first error tells more
    return True
