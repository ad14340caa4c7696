"""Branches of overlays: freezing what a fork changed as a layer, taking it back, copying it (see `stacked`).

A fork's upper folder becomes a layer by one exchange of two folders, POOL/KIND/KEY and POOL/KIND/.layer-ID.0: before it
the second is rubbish that refers to itself, after it the layer. Taking it back is the same exchange again. Whatever is
killed when, the key is whole, and what is left beside it is found from it: by its `reference`, or as `new-KEY`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator

from hostfork.errors import Code, StorageError
from hostfork.helper.syscalls import RENAME_EXCHANGE, renameat2
from hostfork.storage.contract import Prepared
from hostfork.storage.duplicate import duplicate
from hostfork.storage.entry import FOLDER, Extra, read_extra
from hostfork.storage.failures import failed, is_full, no_space
from hostfork.storage.layering import MARKS
from hostfork.storage.merge import merge_folders
from hostfork.storage.own import OwnCopier
from hostfork.storage.pace import STEADY
from hostfork.storage.stacked import (
    LAYERS,
    PREFIX,
    REFERENCE,
    UNDER,
    UPPER,
    WORK,
    Stacked,
    is_frozen,
    layer_under,
    links,
    own_layer,
)
from hostfork.storage.tree import open_own, remove_tree

DEEPEST = 40
"""What an overlay may lie over. The helper names all of it by descriptors in one string of 255 bytes (fsconfig(2))."""
_NEXT = "next"


def branch(storage: Stacked, key: str, of: str, pool: str, mounted: bool) -> Prepared:
    """Make `key`, with no changes yet, over what the key `of` holds. Raises StorageError.

    Where that is too deep, the changes of all layers are copied into one.
    """
    start = time.monotonic()
    keys = storage.keys_of(pool)
    path = keys.whole(of)
    tidy(storage, of, pool)
    copied = 0
    deep = len(storage.lowers(own_layer(path), of)) >= DEEPEST
    if not (mounted or deep or is_frozen(path)):
        with _typed(path, pool, f"what {of} changed could not be frozen"):
            _freeze(keys.folder, of)
    with keys.making(key, lambda error: _failure(error, path, pool, f"no branch of {of} could be made")) as new:
        if mounted or deep:
            copied = _copied_layer(storage, of, keys.folder, new, key, deep)
        else:
            os.link(os.path.join(path, UNDER), os.path.join(new, UNDER), follow_symlinks=False)
        layer = layer_under(new)
        assert layer is not None
        _begin_upper(storage, layer, new, key)
    return Prepared(key, storage.mechanism, 0, copied, time.monotonic() - start)


def thaw(storage: Stacked, key: str, pool: str) -> None:
    """Give a frozen key an upper folder of its own: the layer's, where nobody else uses it, else a copy."""
    keys = storage.keys_of(pool)
    path = keys.whole(key)
    tidy(storage, key, pool)
    if not is_frozen(path):
        return
    layer = own_layer(path)
    with _typed(path, pool, f"what {key} changed could not be made its own again"):
        if links(layer) <= 2:
            _exchange(keys.folder, key, os.path.basename(layer))
        else:
            new = keys.new(key)
            os.mkdir(new, 0o700)
            _copy_into(storage, layer, new, key)
            _exchange(keys.folder, key, os.path.basename(new))
    tidy(storage, key, pool)


def tidy(storage: Stacked, key: str, pool: str) -> None:
    """Remove what a killed `branch` or `thaw` left beside the key. Raises StorageError."""
    keys = storage.keys_of(pool)
    path, new = keys.path(key), keys.new(key)
    try:
        folder = os.open(keys.folder, FOLDER)
    except FileNotFoundError:
        return
    try:
        with contextlib.suppress(FileNotFoundError):
            begun = os.path.basename(os.readlink(os.path.join(path, REFERENCE)))
            keys.erase_layer(begun, folder, STEADY)
            os.unlink(os.path.join(path, REFERENCE))
        if os.path.lexists(new):
            keys.erase_layer(os.path.basename(new), folder, STEADY)
    except OSError as error:
        raise failed(f"what was left beside {key} could not be removed", path, error, "branch") from error
    finally:
        os.close(folder)


def _freeze(folder: str, key: str) -> None:
    """Turn the folder of a key into a layer, over which the key lies without an upper folder. Raises OSError."""
    layer = _fresh_name()
    path = os.path.join(folder, key)
    os.symlink(f"../{layer}", os.path.join(path, REFERENCE))
    os.mkdir(os.path.join(folder, layer), 0o700)
    os.link(os.path.join(path, REFERENCE), os.path.join(folder, layer, UNDER), follow_symlinks=False)
    if os.path.isdir(os.path.join(path, UPPER)):
        os.symlink(f"{UNDER}/{UPPER}", os.path.join(folder, layer, UPPER))
    _exchange(folder, key, layer)


def _fresh_name() -> str:
    return f"{PREFIX}{time.time_ns()}-{os.getpid()}.0"


def _exchange(folder: str, key: str, other: str) -> None:
    renameat2(os.path.join(folder, key), os.path.join(folder, other), RENAME_EXCHANGE)


def _copied_layer(storage: Stacked, of: str, folder: str, new: str, key: str, deep: bool) -> int:
    """Make a layer of a copy of what `of` changed, under the new key; the bytes. Raises OSError, StorageError.

    `deep`: of what all layers under it changed too, so that it is the only one.
    """
    path = own_layer(os.path.join(folder, of))
    layer = _fresh_name()
    os.symlink(f"../{layer}", os.path.join(new, UNDER))
    made = os.path.join(folder, layer)
    os.mkdir(made, 0o700)
    os.link(os.path.join(new, UNDER), os.path.join(made, REFERENCE), follow_symlinks=False)
    below = _below(path) if deep else ()
    return _copy_into(storage, path, made, key, below)


def _below(path: str) -> tuple[str, ...]:
    """The layers under a key or layer, from the top down."""
    found = []
    under = layer_under(path)
    while under is not None:
        found.append(under)
        under = layer_under(under)
    return tuple(found)


def _copy_into(storage: Stacked, path: str, made: str, key: str, below: tuple[str, ...] = ()) -> int:
    """Make in the folder `made` an upper folder like that of the key or layer at `path`, over what that lies over.

    `below`: layers under it whose changes are to be in it too. Gives the bytes. Raises OSError, StorageError.
    """
    room = os.open(made, FOLDER)
    try:
        if below or layer_under(path) is None:
            storage.link_bottom(below[-1] if below else path, room)
        else:
            os.link(os.path.join(path, UNDER), UNDER, dst_dir_fd=room, follow_symlinks=False)
        into = _begin(path, room, key)
        try:
            uppers = [os.path.join(storage.place(one, key), UPPER) for one in (path, *below)]
            copied = duplicate(uppers[-1], UPPER, into, room)
            for upper in reversed(uppers[:-1]):
                copied += duplicate(upper, _NEXT, into, room)
                _merge_next(into)
            os.mkdir(WORK, 0o700, dir_fd=into)
            return copied
        finally:
            os.close(into)
    finally:
        os.close(room)


def _merge_next(into: int) -> None:
    """Merge the copied layer NEXT into the upper folder below it. Raises OSError."""
    mode = stat.S_IMODE(os.stat(_NEXT, dir_fd=into).st_mode)
    top, bottom = open_own(_NEXT, into), open_own(UPPER, into)
    try:
        merge_folders(top, bottom, False, mode)
    finally:
        os.close(top)
        os.close(bottom)
    remove_tree(_NEXT, into)


def _begin_upper(storage: Stacked, layer: str, new: str, key: str) -> None:
    """Make work and upper folder of the new key over a layer; the top is like that one's. Raises OSError."""
    room = os.open(new, FOLDER)
    copier = OwnCopier(room)
    try:
        into = _begin(layer, room, key)
        base = copier.opener(os.path.join(storage.place(layer, key), UPPER), room)
        try:
            os.mkdir(WORK, 0o700, dir_fd=into)
            os.mkdir(UPPER, 0o700, dir_fd=into)
            upper = os.open(UPPER, FOLDER, dir_fd=into)
            try:
                found = os.fstat(base)
                copier.folder(upper, found, copier.wanted(found, base, "."), _unmarked(read_extra(base)))
            finally:
                os.close(upper)
        finally:
            os.close(into)
            os.close(base)
    finally:
        copier.restore()
        os.close(room)


def _unmarked(extra: Extra) -> Extra:
    """Without overlayfs's marks."""
    return extra._replace(attributes=tuple(one for one in extra.attributes if not one[0].startswith(MARKS)))


def _begin(path: str, room: int, key: str) -> int:
    """The open folder for the layers of the key whose folder is open: where those of the one at `path` lie."""
    try:
        place = os.readlink(os.path.join(path, LAYERS))
    except FileNotFoundError:
        return os.open(".", FOLDER, dir_fd=room)
    from hostfork.storage import layers

    return layers.begin(os.path.dirname(os.path.dirname(place)), room, key)


@contextlib.contextmanager
def _typed(path: str, pool: str, sentence: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failure(error, path, pool, sentence) from error


def _failure(error: OSError, path: str, pool: str, sentence: str) -> StorageError:
    if is_full(error):
        typed = no_space(path, pool, None, error.errno or 0)
        typed.message, typed.hint = sentence, "free some space"
        return typed
    return StorageError(Code.STORAGE_FAILED, sentence, step="branch", path=path, errno=error.errno)
