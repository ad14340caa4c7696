"""Layers of other overlays in a base, found without a walk: an overlay over them would show deleted files.

Overlayfs takes a 0:0 device of its base for a deleted name, and its own attributes for marks. Where an engine keeps the
layers of its containers is known; what lies elsewhere, below the top, only a walk would find.
"""

from __future__ import annotations

import os
import stat

from hostfork.storage.contract import Source

_IN_HOMES = (
    (".local/share/containers", "storage/overlay"),
    (".local/share/docker", "overlay2"),
    (".local/share/docker", "containerd/daemon/io.containerd.snapshotter.v1.overlayfs/snapshots"),
    (".local/share/containerd", "io.containerd.snapshotter.v1.overlayfs/snapshots"),
    (".local/share/buildkit", "runc-overlayfs/snapshots/snapshots"),
)
_OF_THE_SYSTEM = (
    ("/var/lib/containers", "storage/overlay"),
    ("/var/lib/docker", "overlay2"),
    ("/var/lib/docker", "containerd/daemon/io.containerd.snapshotter.v1.overlayfs/snapshots"),
    ("/var/lib/containerd", "io.containerd.snapshotter.v1.overlayfs/snapshots"),
    ("/var/lib/buildkit", "runc-overlayfs/snapshots/snapshots"),
)
_MOST = 10_000
"""Entries of the top that are looked at."""


def obstacle(source: Source, folder: int) -> str | None:
    """Why no overlay over the source, whose top is the open `folder`, shows what it holds: a clause. Raises OSError."""
    covered = tuple(os.path.join(source.path, path) for path in source.omit)
    for store, layers in _stores(source.path):
        place = os.path.join(store, layers)
        if any(_within(store, path) for path in covered) or not _is_used(place):
            continue
        if _within(place, source.path):
            return (
                f"{place} in it holds layers of overlays, in which it would show deleted files; "
                f"`--shared {store}` leaves them out"
            )
        if _within(source.path, place):
            return f"{source.path} lies in {place}, among layers of overlays, in which it would show deleted files"
    name = _whiteout(folder, source.omit)
    return None if name is None else f"{source.path} is a layer of an overlay: {name} in it says that a file is deleted"


def _stores(path: str) -> list[tuple[str, str]]:
    """The usual stores at, above or below a path: of the system, of this user, of those who have a home in /home."""
    homes = {os.path.realpath(os.path.expanduser("~")), "/root"}
    if path in ("/", "/home"):
        homes.update(entry.path for entry in os.scandir("/home"))
    elif path.startswith("/home/"):
        homes.add("/".join(path.split("/")[:3]))
    found = [(os.path.join(home, store), layers) for home in sorted(homes) for store, layers in _IN_HOMES]
    return [one for one in (*found, *_OF_THE_SYSTEM) if _within(one[0], path) or _within(path, one[0])]


def _is_used(place: str) -> bool:
    """Whether there is a layer; `l` is podman's folder of short names for them."""
    try:
        with os.scandir(place) as entries:
            return any(entry.name != "l" for entry in entries)
    except OSError:
        return False  # not there, or closed to this user, who sees no layer then


def _whiteout(folder: int, omit: tuple[str, ...]) -> str | None:
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= _MOST:
                break
            if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.name in omit:
                continue
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                return entry.name
    return None


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
