"""Other ways to the originals of private paths, from the mounts alone: binds of the same tree, second mounts.

Inside the view such a path is still the host's. Hard links and /proc/PID/root are further ones that no mount shows.
"""

from __future__ import annotations

from hostfork.policy.layout import Layout, Placed
from hostfork.policy.mounts import MountEntry
from hostfork.policy.paths import beneath, components, join, relative, within
from hostfork.policy.planned import Alias
from hostfork.vocabulary import Access


def aliases(layout: Layout) -> tuple[Alias, ...]:
    """Where else the original of each private path, or of a part of it, can be written in the view."""
    found: dict[str, Alias] = {}
    for placed in layout.placed:
        if placed.access is not Access.PRIVATE:
            continue
        for alias in _of(placed, layout):
            found.setdefault(alias.path, alias)
    return tuple(found[path] for path in sorted(found, key=components))


def _of(placed: Placed, layout: Layout) -> list[Alias]:
    mount = layout.table.mount_of(placed.path)
    if mount is None:
        return []
    inside = join(mount.root, relative(placed.path, mount.point) if placed.path != mount.point else "")
    found = []
    for other in layout.table.entries:
        if other.device != mount.device or other is mount or other.root.endswith("//deleted"):
            continue
        pair = _same_folder(inside, placed.path, other)
        if pair is not None and layout.table.mount_of(pair[0]) is other and _reaches_the_host(pair[0], layout):
            how = f"another mount of {other.source}" if other.root == mount.root else "a bind of the same folder"
            found.append(Alias(pair[0], pair[1], how))
    return found


def _same_folder(inside: str, path: str, other: MountEntry) -> tuple[str, str] | None:
    """Where `other` shows what lies at `inside` of their filesystem, or a part of it; and the private path of that."""
    if within(inside, other.root):
        return join(other.point, relative(inside, other.root) if inside != other.root else ""), path
    if beneath(other.root, inside):
        return other.point, join(path, relative(other.root, inside))
    return None


def _reaches_the_host(path: str, layout: Layout) -> bool:
    over = layout.over(path)
    return over is None or over.access is Access.SHARED or layout.mounted_over(path) is not None
