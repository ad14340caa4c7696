"""Changes read from the upper folder of an overlay that was mounted with `userxattr`: the time of the changes alone.

The upper folder holds what was written, copied-up entries that may be equal, and overlayfs's marks: a deleted name is
a 0:0 character device, or, in a folder marked `user.overlay.opaque=x`, an empty file with `user.overlay.whiteout`;
a folder marked `user.overlay.opaque=y` hides everything that the base has in it (Documentation/filesystems/
overlayfs.rst). The base is read where it lies, beside each folder of the upper one.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack

from hostfork.collect.beside import BesideBase
from hostfork.collect.difference import below, created, joined
from hostfork.collect.reader import TreeReader, read_small
from hostfork.collect.stack import OPAQUE, Base, BaseFolder, base_folder, is_whiteout
from hostfork.collect.walk import Facts, Place, facts, mark, opened_folder
from hostfork.errors import Code, CollectError
from hostfork.vocabulary import EntryKind

_WHITEOUT = "user.overlay.whiteout"
_REDIRECTS = ("user.overlay.redirect", "user.overlay.metacopy")


class LayerScan(BesideBase):
    """One scan. `changes` fills up while `folder` runs."""

    def root(self, upper: Place, base: Place) -> None:
        """Scan a whole upper folder against its base."""
        before = facts(base, base.stat())
        after = _as_given(facts(upper, upper.stat()), before)
        self._pair("", upper, base, after, before, hidden=False)

    def _pair(self, relative: str, upper: Place, base: Place, after: Facts, before: Facts, hidden: bool) -> None:
        """One name that both have."""
        self._compare(relative, upper, base, after, before)
        if after.kind is EntryKind.FOLDER:
            self._folder(relative, upper, base if before.kind is EntryKind.FOLDER else None, hidden)
        elif before.kind is EntryKind.FOLDER:
            self._gone_below(relative, base)

    def _folder(self, relative: str, upper: Place, base: Place | None, hidden: bool) -> None:
        """What is in a folder of the upper layer. `hidden`: nothing of the base shows through here."""
        with ExitStack() as stack:
            upper_folder = stack.enter_context(opened_folder(upper, ours=True))
            opaque = self._opaque(upper_folder, relative)
            hidden = hidden or opaque == b"y"
            base_names = stack.enter_context(base_folder(base)) if base is not None else BaseFolder()
            seen = set()
            for name in os.listdir(upper_folder):
                inner = below(relative, name)
                if inner in self._omit:
                    continue
                seen.add(name)
                self._name(inner, Place(upper_folder, name), base_names.place(name), opaque, hidden)
            if hidden:
                for place in base_names.all():
                    if place.name not in seen:
                        self._gone(below(relative, place.name), place)

    def _name(self, relative: str, upper: Place, base: Place | None, opaque: bytes | None, hidden: bool) -> None:
        found = upper.stat()
        if _is_whiteout(upper, found, opaque):
            if base is not None:
                self._gone(relative, base)
            return
        after = facts(upper, found)
        if base is not None:
            self._pair(relative, upper, base, after, facts(base, base.stat()), hidden)
            return
        self.changes.append(created(joined(self._at, relative), after))
        if after.kind is EntryKind.FOLDER:
            self._folder(relative, upper, None, hidden)

    def _opaque(self, folder: int, relative: str) -> bytes | None:
        names = os.listxattr(folder)
        for redirect in _REDIRECTS:
            if redirect in names:
                raise CollectError(
                    Code.COLLECT_FAILED,
                    f"{joined(self._at, relative)} was written by an overlay with other options: it carries {redirect}",
                    step="scan",
                    path=joined(self._at, relative),
                )
        return os.getxattr(folder, OPAQUE) if OPAQUE in names else None


def _as_given(after: Facts, before: Facts) -> Facts:
    """The top of an upper folder was made by hostfork: an ordinary user could not give it another's owner or rights."""
    if os.geteuid() == 0 or (after.uid, after.gid) == (before.uid, before.gid):
        return after
    mode = before.mode if after.mode & ~0o7222 == before.mode & ~0o7222 else after.mode
    return after._replace(uid=before.uid, gid=before.gid, mode=mode)


def _is_whiteout(place: Place, found: os.stat_result, opaque: bytes | None) -> bool:
    if stat.S_ISCHR(found.st_mode):
        return is_whiteout(found)
    if opaque != b"x" or not stat.S_ISREG(found.st_mode) or found.st_size:
        return False
    return _WHITEOUT in os.listxattr(place.path(), follow_symlinks=False)


class LayerFinal:
    """The final content of an overlay, seen from outside: the upper folder, and what shows through from the base."""

    def __init__(self, upper: str, base: Base) -> None:
        self._upper = TreeReader(upper, ours=True)
        self._base = TreeReader(base)
        self._hidden: dict[str, bool] = {}

    def read(self, relative: str) -> bytes | None:
        found = self._find(relative)
        return None if found is None else read_small(found[0], ours=found[1])

    def exists(self, relative: str) -> bool:
        return self._find(relative) is not None

    def _find(self, relative: str) -> tuple[Place, bool] | None:
        """The visible entry, and whether it lies in the upper folder."""
        upper = self._upper.place(relative)
        folder = relative.rpartition("/")[0]
        if upper is not None:
            above = self._upper.place(folder)
            opaque = None if above is None else mark(above, OPAQUE)
            upper = self._upper.place(relative)
            if upper is None or _is_whiteout(upper, upper.stat(), opaque):
                return None
            return upper, True
        if self._hides(folder):
            return None
        base = self._base.place(relative)
        return None if base is None else (base, False)

    def _hides(self, folder: str) -> bool:
        """Whether the base's entries in this folder are covered: an opaque folder, a whiteout, or another kind."""
        if folder not in self._hidden:
            hidden = bool(folder) and self._hides(folder.rpartition("/")[0])
            place = None if hidden else self._upper.place(folder)
            if place is not None:
                hidden = not stat.S_ISDIR(place.stat().st_mode) or mark(place, OPAQUE) == b"y"
            self._hidden[folder] = hidden
        return self._hidden[folder]

    def __enter__(self) -> LayerFinal:
        return self

    def __exit__(self, *_: object) -> None:
        self._upper.close()
        self._base.close()
