"""Overlayfs's marks in the layers that hostfork itself writes (Documentation/filesystems/overlayfs.rst).

A name that is gone is a 0:0 character device, which an ordinary user may make too; a folder that hides what lies below
it carries `user.overlay.opaque`. Root uses the same: it always mounts with `userxattr`, since the wrong kind of marks
shows deleted files again without any error.
"""

from __future__ import annotations

import os
import stat

OPAQUE = "user.overlay.opaque"
MARKS = ("user.overlay.", "trusted.overlay.")
"""What the attributes begin with that only overlayfs and its tools write."""


def is_whiteout(found: os.stat_result) -> bool:
    """Whether that is a mark of a name that is gone."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def whiteout(name: str, folder: int) -> None:
    """Mark a name as gone in the open folder of a layer. Raises OSError."""
    os.mknod(name, stat.S_IFCHR, 0, dir_fd=folder)


def is_opaque(folder: int) -> bool:
    """Whether an open folder of a layer hides what lies below it."""
    try:
        return os.getxattr(folder, OPAQUE) == b"y"
    except OSError:
        return False


def make_opaque(folder: int) -> None:
    """Let an open folder of a layer hide what lies below it. Raises OSError."""
    os.setxattr(folder, OPAQUE, b"y")
