"""Whether the host wrote under the source of a `live` fork while the fork used it.

A probe file in the pool gives the kernel's stamp at the start; at the end one stat walk looks for entries that are
not older. Whatever would make that comparison worthless gives "not checked", never "unchanged".
"""

from __future__ import annotations

import os
import stat
import time

from hostfork.collect.depth import AnyDepth, with_room
from hostfork.collect.filesystem import filesystem_type, mount_id
from hostfork.collect.stamp import Probe, clock_fault, stamp
from hostfork.collect.walk import FOLDER
from hostfork.values import frozen
from hostfork.vocabulary import SourceChanged

_KERNEL_CLOCK = {"ext2", "ext3", "ext4", "btrfs", "xfs", "f2fs", "bcachefs", "zfs", "overlay", "vfat", "exfat"}
"""Filesystems whose ctime is this kernel's clock. Not tmpfs: writes through a mapping leave no stamp there."""

_COARSE_STAMPS = (2_000_000_000, 1_000_000_000, 10_000_000, 1_000)
"""Nanoseconds: the granularity of vfat, of ext4 with small inodes, of exfat, of older formats."""

_MOST_PATHS = 100


@frozen
class SourceCheck:
    """The answer; up to 100 `paths` (relative) that changed; `reason`, a clause, where it was not checked."""

    state: SourceChanged
    paths: tuple[str, ...] = ()
    reason: str = ""


def source_changed(
    source: str, pool: str, since: Probe, omit: tuple[str, ...] = (), limit: float | None = None
) -> SourceCheck:
    """Look for entries of `source`, folders too, that were written since the probe. `limit` in seconds."""
    kind = filesystem_type(source)
    if kind not in _KERNEL_CLOCK:
        reason = f"{kind or 'its filesystem'} does not stamp every write with this kernel's clock"
        return SourceCheck(SourceChanged.NOT_CHECKED, reason=reason)
    try:
        reason = clock_fault(since, stamp(pool))
    except OSError as error:
        # A full disk is a usual end of a run, and gives no stamp.
        reason = f"no stamp of the kernel's clock can be had in {pool}: {os.strerror(error.errno or 0)}"
    if reason:
        return SourceCheck(SourceChanged.NOT_CHECKED, reason=reason)
    deadline = None if limit is None else time.monotonic() + limit
    walk = _Walk(since.ctime_ns, omit, deadline)
    try:
        with AnyDepth():
            walk.root(source)
    except TimeoutError:
        return SourceCheck(SourceChanged.NOT_CHECKED, tuple(walk.paths), f"looking took longer than {limit:g} s")
    except PermissionError as error:
        return SourceCheck(SourceChanged.NOT_CHECKED, tuple(walk.paths), f"{error.filename} cannot be read")
    state = SourceChanged.CHANGED if walk.paths else SourceChanged.UNCHANGED
    return SourceCheck(state, tuple(walk.paths[:_MOST_PATHS]))


class _Walk:
    """One stat walk; `paths` holds what is not older than the probe."""

    def __init__(self, since: int, omit: tuple[str, ...], deadline: float | None) -> None:
        self.paths: list[str] = []
        self._since = since
        self._earliest = min(since // unit * unit for unit in _COARSE_STAMPS)
        self._omit = frozenset(omit)
        self._deadline = deadline

    def root(self, source: str) -> None:
        try:
            handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self.paths.append("")
            return
        try:
            found = os.fstat(handle)
            if self._is_new(found.st_ctime_ns):
                self.paths.append("")
            if stat.S_ISDIR(found.st_mode):
                self._folder(handle, "", found.st_dev, mount_id(handle))
        finally:
            os.close(handle)

    def _folder(self, folder: int, relative: str, device: int, mount: str) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutError
        earliest, folders = self._earliest, []
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                is_folder = found.st_mode & 0o170000 == 0o040000
                if not is_folder and found.st_ctime_ns < earliest:
                    continue
                path = f"{relative}/{entry.name}" if relative else entry.name
                if path in self._omit:
                    continue
                if is_folder:
                    folders.append((entry.name, path, found))
                elif self._is_new(found.st_ctime_ns):
                    self.paths.append(path)
        for name, path, found in folders:
            self._enter(folder, name, path, device, found, mount)

    def _enter(self, folder: int, name: str, path: str, device: int, found: os.stat_result, mount: str) -> None:
        try:
            inner = with_room(os.open(name, FOLDER, dir_fd=folder))
        except FileNotFoundError:
            return  # its folder has a new stamp
        except PermissionError as error:
            raise PermissionError(error.errno, error.strerror, path) from error
        try:
            # A nested subvolume has another device and belongs to the source; a mount beneath it does not.
            if found.st_dev == device or mount_id(inner) == mount:
                if self._is_new(found.st_ctime_ns):
                    self.paths.append(path)
                self._folder(inner, path, found.st_dev, mount)
        finally:
            os.close(inner)

    def _is_new(self, ctime: int) -> bool:
        """Not before the probe; a stamp that looks coarse is compared with the probe cut to the same unit."""
        for unit in _COARSE_STAMPS:
            if ctime % unit == 0:
                return ctime >= self._since // unit * unit
        return ctime >= self._since
