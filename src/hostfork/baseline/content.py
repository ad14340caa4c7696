"""Whether an entry of a source is what a generation holds, by all that can be read of it and by no stamp of the kernel.

For filesystems that do not stamp every write, and for trees that are made anew each time, whose stamps say nothing.
"""

from __future__ import annotations

import os
import stat

from hostfork.collect.manifest import StatEntry, StatManifest
from hostfork.collect.reader import TreeReader
from hostfork.collect.walk import Place, attributes, same_content
from hostfork.storage.lines import Generation


class Contents:
    """A generation's content, looked up by relative path; to be closed."""

    def __init__(self, generation: Generation, manifest: StatManifest) -> None:
        self._manifest = manifest
        self._reader = TreeReader(generation.lowers)

    def holds(self, relative: str, index: int, folder: int, name: str, found: os.stat_result) -> bool:
        """Whether it has the entry `name` of an open folder, with all metadata. "" is the folder itself.

        Of a file with several names it is not known whether they are the same ones: it is not held.
        """
        entry = self._manifest.entry(index, b"")
        ours = self._reader.place(relative)
        if ours is None or not _same_stat(entry, found):
            return False
        theirs, kind = Place(folder, name), stat.S_IFMT(found.st_mode)
        try:
            if attributes(ours) != attributes(theirs):
                return False
            if kind == stat.S_IFREG:
                return same_content(ours, theirs)
            if kind == stat.S_IFLNK:
                return ours.link_target() == theirs.link_target()
            return kind == stat.S_IFDIR or ours.stat().st_rdev == found.st_rdev
        except FileNotFoundError:
            return False  # it went after it was listed: taking it finds that

    def close(self) -> None:
        """Let go of what is open."""
        self._reader.close()


def _same_stat(entry: StatEntry, found: os.stat_result) -> bool:
    known = (entry.mode, entry.uid, entry.gid, entry.mtime_ns)
    if known != (found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns):
        return False
    if stat.S_ISDIR(found.st_mode):
        return True
    if (entry.size, entry.nlink) != (found.st_size, found.st_nlink):
        return False
    return entry.nlink == 1 or (entry.ino, entry.ctime_ns) == (found.st_ino, found.st_ctime_ns)
