"""Private storage as an overlay over a retained tree: independent of the source, and only changes are held.

    POOL/retained/KEY/base     a hard link of the reference of a generation in POOL/baseline (see `lines`)
    POOL/retained/KEY/upper    what changes, in overlayfs's format
    POOL/retained/KEY/work     overlayfs's own; one mount of the view uses it up
    POOL/retained/KEY/layers   instead of these two, where the tree lies in a Btrfs subvolume: a symlink to the folder
                               that holds them, in a snapshot of it (see `layers`)

Making the generation equal to the source is its maker's work, and comes first: `prepare` takes the one that the source
names.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection

from hostfork.errors import Code, StorageError
from hostfork.storage import overlay
from hostfork.storage.contract import Offer, Prepared, Progress, Refusal, Removal, Source, Witness
from hostfork.storage.entry import FOLDER
from hostfork.storage.failures import unmade
from hostfork.storage.filesystem import STAMPED, filesystem_of
from hostfork.storage.keys import Keys
from hostfork.storage.lines import Generation, Line
from hostfork.storage.newtree import is_in_subvolume
from hostfork.storage.pace import Pace
from hostfork.storage.stacked import LAYERS, LayerKeys, Stacked, layer_under
from hostfork.values import replace
from hostfork.vocabulary import BaseContent, Guarantee, Mechanism, StorageKind

_BASE = "base"


class Retained(Stacked):
    """The mechanism `overlay` over a baseline."""

    mechanism = Mechanism.OVERLAY

    def keys_of(self, pool: str) -> LayerKeys:
        return _RetainedKeys(pool, StorageKind.RETAINED.value)

    def probe(self, source: Source, pool: str) -> Offer | Refusal:
        """What an overlay needs, and for a baseline that is made by itself a source whose stamps tell."""
        try:
            refusal = _unfit(source, pool) if source.retained is None else None
            # A folder of the pool's own stands for the retained tree, which may not be there yet.
            refusal = refusal or overlay.obstacle(Source(pool), pool)
            unique = source.retained is None or _numbers_are_unique(Generation(source.retained))
        except OSError as error:
            return Refusal(Mechanism.OVERLAY, f"{error.filename or source.path} cannot be read", error.errno)
        if refusal is not None:
            return refusal
        # No host mount lies beneath a retained tree, its pool is one filesystem with the layers, and taking it finds
        # what an overlay could not show.
        kept = overlay.guarantees(
            Guarantee.INDEPENDENT, nested_mounts=True, unique_inodes=unique, base_content=BaseContent.KEPT
        )
        kept = replace(kept, layers=True)
        return Offer(StorageKind.RETAINED, kept, _said(source, pool), 0, None)

    def prepare(
        self, key: str, source: Source, pool: str, witness: Witness | None = None, progress: Progress | None = None
    ) -> Prepared:
        """Make an empty upper folder over the generation that `source.retained` names. The witness is told of nothing.

        Who calls holds the lock of the generation's line, or knows that it is used.
        """
        start = time.monotonic()
        if source.retained is None:
            raise ValueError("a retained tree is to be named")
        generation = Generation(source.retained)
        sentence = f"no overlay over the baseline of {source.path} could be made"
        with self.keys_of(pool).making(key, unmade(sentence, generation.path, source.path, pool)) as new:
            # First the link, then what lies over it: a key that is there holds its base.
            os.link(generation.reference, os.path.join(new, _BASE), follow_symlinks=False)
            unwritable = _made(generation, new, key)
        return Prepared(key, Mechanism.OVERLAY, 0, 0, time.monotonic() - start, ("",) if unwritable else ())

    def place(self, path: str, key: str) -> str:
        """That folder, or where inode numbers go on."""
        return _place(path)

    def bottom(self, path: str, key: str) -> tuple[str, ...]:
        """The trees of the generation."""
        return _lowers(path, key)

    def link_bottom(self, path: str, room: int) -> None:
        """A hard link of the same reference."""
        os.link(os.path.join(path, _BASE), _BASE, dst_dir_fd=room, follow_symlinks=False)

    def reduce(self, key: str, pool: str, changed: Collection[bytes]) -> None:
        """Nothing: an upper folder holds only what was touched."""


class _RetainedKeys(LayerKeys):
    """Keys whose layers may lie elsewhere."""

    def _erase(self, name: str, folder: int, pace: Pace) -> Removal:
        try:
            opened = os.open(name, FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return Removal.GONE
        try:
            if os.path.lexists(f"/proc/self/fd/{opened}/{LAYERS}"):
                from hostfork.storage import layers

                layers.erase(opened, pace)
        finally:
            os.close(opened)
        return super()._erase(name, folder, pace)


def users_of(line: Line) -> tuple[str, ...]:
    """The keys that lie over a line, in the order of names."""
    keys, found = Keys(line.pool, StorageKind.RETAINED.value), []
    for state in keys.states():
        try:
            generation = generation_of(state.key, line.pool)
        except (OSError, StorageError):
            continue  # half made, or on its way out
        if generation.line == line.path:
            found.append(state.key)
    return tuple(found)


def generation_of(key: str, pool: str) -> Generation:
    """The generation that a key lies over, which may be gone. Raises OSError where the key is."""
    path = Keys(pool, StorageKind.RETAINED.value).path(key)
    while (under := layer_under(path)) is not None:
        path = under
    return _generation(path)


def _generation(path: str) -> Generation:
    """The generation that the key or layer at that path lies over."""
    return Generation(os.path.normpath(os.path.join(path, os.readlink(os.path.join(path, _BASE)))))


def _said(source: Source, pool: str) -> str:
    if source.retained is not None:
        return "only changes are held, over a baseline"
    if Line.of(source, pool).top() is not None:
        return "only changes are held, over its baseline, which is first made equal to it by a walk"
    return "only changes are held, over a baseline, which is copied first; later runs start from it"


def _unfit(source: Source, pool: str) -> Refusal | None:
    """Why no baseline of it can be told to be equal, or be a lower folder, as far as that is known. Raises OSError."""
    if not os.path.isdir(source.path):
        return Refusal(Mechanism.OVERLAY, f"{source.path} is a single file, overlays are over folders")
    if source.skip_unreadable:
        return Refusal(Mechanism.OVERLAY, "what cannot be read is left out of copies and clones alone")
    kind = filesystem_of(source.path)
    if kind.kind not in STAMPED:
        reason = f"{kind} does not stamp every write, so that a baseline could not be told to be the same"
        return Refusal(Mechanism.OVERLAY, reason)
    path = Line.of(source, pool).unfit
    if path is not None and os.path.lexists(os.path.join(source.path, path)):
        return Refusal(Mechanism.OVERLAY, f"{os.path.join(source.path, path)} is overlayfs's own, which none can show")
    return None


def _lowers(path: str, key: str) -> tuple[str, ...]:
    base = os.path.join(path, _BASE)
    try:
        lowers = _generation(path).lowers
        for lower in lowers:
            os.lstat(lower)
    except OSError as error:
        raise StorageError(
            Code.STORAGE_FAILED, f"the baseline that private storage {key} lies over is gone", step="mounts",
            path=error.filename or base, errno=errno.ENOENT, hint="hostfork list · hostfork discard FORK",
        ) from error  # fmt: skip
    return lowers


def _made(generation: Generation, new: str, key: str) -> bool:
    room, base = os.open(new, FOLDER), os.open(generation.lowers[0], FOLDER)
    try:
        into = _begun(generation, new, room, key)
        try:
            return overlay.make_layers(into, base).unwritable
        finally:
            os.close(into)
    finally:
        os.close(room)
        os.close(base)


def _begun(generation: Generation, new: str, room: int, key: str) -> int:
    """The open folder for the layers of the key whose folder is open: there, or where inode numbers go on."""
    single = generation.single
    if single is not None and is_in_subvolume(single):
        from hostfork.storage import layers, subtree

        space = subtree.space(single)
        if space is not None:
            return layers.begin(os.path.relpath(space, new), room, key)
    return os.open(".", FOLDER, dir_fd=room)


def _place(path: str) -> str:
    """The folder that holds the layers of the key at that path."""
    try:
        return os.path.normpath(os.path.join(path, os.readlink(os.path.join(path, LAYERS))))
    except OSError:
        return path


def _numbers_are_unique(generation: Generation) -> bool:
    """Whether upper folders can have inode numbers of their own. Raises OSError."""
    single = generation.single
    if single is None or not is_in_subvolume(single):
        return True
    from hostfork.storage import subtree

    return subtree.is_one(single)
