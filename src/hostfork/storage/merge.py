"""Merging a layer into the tree below it, entry by entry, so that both together show the same at every moment.

Whatever is killed when: an entry lies in the upper one, which hides what is below, or has been moved, by one rename.
So the next attempt goes on where that one ended.
"""

from __future__ import annotations

import contextlib
import os
import stat

from hostfork.storage import flags
from hostfork.storage.entry import FOLDER, Copier, Wanted, read_extra
from hostfork.storage.layering import MARKS, is_opaque, is_whiteout, make_opaque
from hostfork.storage.tree import open_own, remove_tree

_FINAL = "user.overlay.hostfork"
"""Overlayfs shows no attribute of that name's beginning."""


def merge(upper: str, lower: str, line: str, whole: bool) -> None:
    """Move all that the layer `upper` holds into the tree `lower`, both in folders of `line`. `upper` is empty then.

    `whole`: nothing lies below `lower`, so that marks have nothing to hide. Nobody may lie over either. Raises OSError.
    """
    folder = os.open(line, FOLDER)
    try:
        top, bottom = open_own(f"{upper}/tree", folder), open_own(f"{lower}/tree", folder)
        try:
            merge_folders(top, bottom, whole, stat.S_IMODE(os.fstat(top).st_mode))
        finally:
            os.close(top)
            os.close(bottom)
    finally:
        os.close(folder)


def merge_folders(upper: int, lower: int, whole: bool, mode: int) -> None:
    """Merge one open folder and all below it into another. `mode`: what it was before it was opened. Raises OSError."""
    final = _final(upper, mode)
    for folder in (upper, lower):  # names are moved: closed ones are opened for their owner
        if stat.S_IMODE(os.fstat(folder).st_mode) & 0o700 != 0o700:
            os.fchmod(folder, stat.S_IMODE(os.fstat(folder).st_mode) | 0o700)
    for name in os.listdir(upper):
        found = os.stat(name, dir_fd=upper, follow_symlinks=False)
        if is_whiteout(found):
            _hidden(name, upper, lower, whole)
        elif stat.S_ISDIR(found.st_mode):
            _folder(name, upper, lower, whole, stat.S_IMODE(found.st_mode))
        else:
            _moved(name, upper, lower)
    _as(upper, lower, final)


def _final(upper: int, mode: int) -> tuple[int, int, int]:
    """Mode and times of an upper folder as they were before anything was moved out of it, kept until it goes."""
    try:
        known, atime, mtime = os.getxattr(upper, _FINAL).split()
        return int(known), int(atime), int(mtime)
    except OSError:
        found = os.fstat(upper)
        final = mode, found.st_atime_ns, found.st_mtime_ns
        os.fchmod(upper, final[0] | 0o700)
        os.setxattr(upper, _FINAL, b"%d %d %d" % final)
        return final


def _hidden(name: str, upper: int, lower: int, whole: bool) -> None:
    remove_tree(name, lower)
    if whole:
        os.unlink(name, dir_fd=upper)
    else:
        os.rename(name, name, src_dir_fd=upper, dst_dir_fd=lower)


def _moved(name: str, upper: int, lower: int) -> None:
    if _is_folder(name, lower):
        remove_tree(name, lower)
    os.rename(name, name, src_dir_fd=upper, dst_dir_fd=lower)


def _folder(name: str, upper: int, lower: int, whole: bool, mode: int) -> None:
    top = open_own(name, upper)
    try:
        if not is_opaque(top) and not _is_folder(name, lower) and _is_there(name, lower) and not whole:
            # Over a file nothing further down shows. Without the file it would.
            make_opaque(top)
        opaque = is_opaque(top)
        if opaque or not _is_folder(name, lower):
            remove_tree(name, lower)
        if not _is_folder(name, lower):
            os.mkdir(name, 0o700, dir_fd=lower)
        bottom = open_own(name, lower)
        try:
            if opaque and not whole:
                make_opaque(bottom)
            # A mark in a folder over which nothing is merged would be listed as a name.
            merge_folders(top, bottom, whole or is_opaque(bottom), mode)
        finally:
            os.close(bottom)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=upper)


def _as(upper: int, lower: int, final: tuple[int, int, int]) -> None:
    """Give the lower folder what the upper one has besides names."""
    found, extra = os.fstat(upper), read_extra(upper)
    kept = tuple((name, value) for name, value in extra.attributes if not name.startswith(MARKS))
    for name, _ in read_extra(lower).attributes:
        if not name.startswith(MARKS) and name not in dict(kept):
            with contextlib.suppress(OSError):  # a label that is no user's to remove
                os.removexattr(lower, name)
    there = flags.read(lower)
    if there & flags.WATCHED & ~extra.flags:
        flags.write(lower, there & ~(flags.WATCHED & ~extra.flags))
    mode, *times = final
    Copier().folder(lower, found, Wanted(mode, found.st_uid, found.st_gid, False), extra._replace(attributes=kept))
    os.utime(lower, ns=(times[0], times[1]))


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_folder(name: str, folder: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
