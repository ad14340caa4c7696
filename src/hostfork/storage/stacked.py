"""Overlays over what other forks changed: what the kinds of overlays do alike with layers that several keys use.

    POOL/KIND/.layer-ID.0             a layer: the folder of a key as it was frozen, with its upper folder and all that
                                      tells what that lies over
    POOL/KIND/.layer-ID.0/reference   a symlink to the layer. Every key over it has a hard link of it
    POOL/KIND/KEY/under               such a hard link; a layer that lies over another one has one too

A key over a layer has an upper folder of its own; one without is the fork whose changes the layer holds: it shows them
as its own, and nothing may be written there before `thaw`. Who found its upper folder before finds it still, through a
symlink.

So the kernel counts who uses a layer, as for bases (see `shared`): the link of a key is there before the layer and goes
after it, or while others have theirs. Links are made by who holds the lock of a fork that has one, and given up under a
flock of the folder POOL/KIND. Branches and layers are made in `branching`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from abc import ABC, abstractmethod

from hostfork.errors import Code, StorageError
from hostfork.helper.protocol import Overlay as OverlayMount
from hostfork.storage.contract import Fill, Held, KeyStage, KeyState, Layer, Prepared, Removal, Usage, Witness
from hostfork.storage.failures import failed
from hostfork.storage.keys import Keyed, Keys, close_left, key_of
from hostfork.storage.pace import OutOfTime, Pace

UPPER, WORK = "upper", "work"
LAYERS = "layers"
"""Instead of these, a symlink to the folder that holds them (see `layers`)."""
UNDER, REFERENCE = "under", "reference"
PREFIX = ".layer-"
"""No fork's name begins so. What follows has the shape of a key: recovery can set it aside like one."""


class Stacked(Keyed, ABC):
    """What an overlay of any kind does alike. `bottom` and `place` are the kind's own."""

    @abstractmethod
    def keys_of(self, pool: str) -> LayerKeys:
        """Its keys."""

    @abstractmethod
    def bottom(self, path: str, key: str) -> tuple[str, ...]:
        """What the key or layer at that path lies over where that is no layer, from the top down. Raises StorageError.

        The last is a plain tree.
        """

    def place(self, path: str, key: str) -> str:
        """The folder that holds the upper folder of the key or layer at that path. Raises StorageError."""
        return path

    @abstractmethod
    def link_bottom(self, path: str, room: int) -> None:
        """Let the open folder of a new key refer to what the one at that path refers to. Raises OSError."""

    def mounts(self, key: str, pool: str) -> OverlayMount:
        """The overlay, `volatile`: its work folder serves one mount. Raises StorageError where the key is frozen."""
        path = self.keys_of(pool).whole(key)
        if is_frozen(path):
            raise StorageError(
                Code.STORAGE_FAILED, f"private storage {key} lies frozen under its branches", step="mounts", path=path
            )
        place = self.place(path, key)
        return OverlayMount(self.lowers(path, key), os.path.join(place, UPPER), os.path.join(place, WORK), True)

    def content(self, key: str, pool: str) -> Layer:
        """The upper folder, and what it lies over."""
        path = own_layer(self.keys_of(pool).whole(key))
        return Layer(os.path.join(self.place(path, key), UPPER), self.lowers(path, key))

    def lowers(self, path: str, key: str) -> tuple[str, ...]:
        """What the key or layer at that path lies over, from the top down: layers, then the bottom."""
        found: list[str] = []
        while (under := layer_under(path)) is not None:
            path = under
            found.append(os.path.join(self.place(path, key), UPPER))
        return (*found, *self.bottom(path, key))

    def held(self, key: str, pool: str) -> tuple[Held, ...]:
        """The upper folder and the layers that it lies over, from the top down."""
        path: str | None = self.keys_of(pool).whole(key)
        found, alone = [], True
        while path is not None:
            alone = alone and links(path) <= 2
            if not is_frozen(path):
                found.append(Held(os.path.join(self.place(path, key), UPPER), alone))
            path = layer_under(path)
        return tuple(found)

    def usage(self, key: str, pool: str) -> Usage:
        """What its upper folder takes, by a walk. Raises StorageError where the key is not whole."""
        from hostfork.storage.measure import usage

        path = self.content(key, pool).upper
        try:
            return usage(path)
        except OSError as error:
            raise failed(f"private storage {key} could not be measured", path, error, "usage") from error

    def branch(self, key: str, of: str, pool: str, fill: Fill, witness: Witness | None = None) -> Prepared:
        """What `of` changed becomes a layer under both, in no time whatever that is; what is mounted is copied."""
        from hostfork.storage.branching import branch

        return branch(self, key, of, pool, fill.mounted)

    def thaw(self, key: str, pool: str) -> None:
        """Let a key that lies frozen under its branches be written again: its changes become its own, by a copy where
        there are branches. Does nothing where they are. Raises StorageError."""
        from hostfork.storage.branching import thaw

        thaw(self, key, pool)

    def tidy(self, key: str, pool: str) -> None:
        """Remove what a killed `branch` or `thaw` left beside a key. Raises StorageError."""
        path = self.keys_of(pool).path(key)
        if os.path.lexists(os.path.join(path, REFERENCE)) or os.path.lexists(self.keys_of(pool).new(key)):
            from hostfork.storage.branching import tidy

            tidy(self, key, pool)


class LayerKeys(Keys):
    """Keys whose folders may hold or refer to layers."""

    def states(self) -> tuple[KeyState, ...]:
        """Every key; a layer that no key refers to, because somebody removed its key by hand, counts as half made."""
        return states(super().states(), self.folder)

    def _erase(self, name: str, folder: int, pace: Pace) -> Removal:
        removed = let_go(self, name, folder, pace)
        super()._erase(name, folder, pace)
        return removed

    def erase_layer(self, name: str, folder: int, pace: Pace) -> Removal:
        """Erase a layer that nobody uses any more. Raises OSError, OutOfTime."""
        return self._erase(name, folder, pace)


def is_frozen(path: str) -> bool:
    """Whether the key at that path has no upper folder of its own, but that of the layer that it became."""
    if not os.path.lexists(os.path.join(path, UNDER)) or os.path.lexists(os.path.join(path, LAYERS)):
        return False
    upper = os.path.join(path, UPPER)
    return os.path.islink(upper) or not os.path.lexists(upper)


def own_layer(path: str) -> str:
    """Where the upper folder of the key at that path is to be looked for: the layer that it became, else there."""
    return (layer_under(path) if is_frozen(path) else None) or path


def layer_under(path: str) -> str | None:
    """The layer that the key or layer at that path lies over; None where it lies over none."""
    try:
        text = os.readlink(os.path.join(path, UNDER))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise failed("what private storage lies over cannot be read", path, error, "mounts") from error
        return None
    return os.path.join(os.path.dirname(path), os.path.basename(text))


def links(path: str, folder: int | None = None) -> int:
    """How many links of a layer's reference there are, its own included; 0 where it has none yet, or no more."""
    try:
        return os.stat(f"{path}/{REFERENCE}", dir_fd=folder, follow_symlinks=False).st_nlink
    except FileNotFoundError:
        return 0


def states(found: tuple[KeyState, ...], folder: str) -> tuple[KeyState, ...]:
    """What of the folder's entries are keys."""
    listed = []
    for state in found:
        if not state.key.startswith(PREFIX) or state.stage is not KeyStage.LIVE:
            listed.append(state)
        elif links(os.path.join(folder, state.key)) == 1:  # no key will ever refer to it
            listed.append(KeyState(state.key, KeyStage.HALF_MADE))
    return tuple(listed)


def let_go(keys: LayerKeys, name: str, folder: int, pace: Pace) -> Removal:
    """The key or layer of that name in the open folder gives up the layer that it lies over; the last one erases that.

    Raises OSError, OutOfTime.
    """
    close_left(name, folder)
    removed = _begun_gone(keys, name, folder, pace)
    try:
        layer = os.path.basename(os.readlink(f"{name}/{UNDER}", dir_fd=folder))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return removed
    if layer == name:
        return removed  # what a killed `branch` began to make
    _lock(folder, pace)
    try:
        if links(layer, folder) > 2:
            os.unlink(f"{name}/{UNDER}", dir_fd=folder)
            return removed
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
    # Nobody takes it any more. This one's link goes with the rest of it, after the layer.
    return _worse(removed, keys.erase_layer(layer, folder, pace))


def _lock(folder: int, pace: Pace) -> None:
    """Lock the open folder of the keys. Raises OutOfTime where others hold it and this may not wait."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | (0 if pace.waits else fcntl.LOCK_NB))
    except BlockingIOError:
        raise OutOfTime from None


def _begun_gone(keys: LayerKeys, name: str, folder: int, pace: Pace) -> Removal:
    """Erase the layer that a killed `branch` began to make of a key, or a killed `thaw` did not remove yet."""
    try:
        begun = os.path.basename(os.readlink(f"{name}/{REFERENCE}", dir_fd=folder))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return Removal.GONE
    if begun in (name, key_of(name)):
        return Removal.GONE  # it is that layer
    return keys.erase_layer(begun, folder, pace)


def _worse(one: Removal, other: Removal) -> Removal:
    return Removal.RECLAIMING if Removal.RECLAIMING in (one, other) else Removal.GONE
