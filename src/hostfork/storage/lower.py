"""Copying what is to be a lower folder of overlays, and refusing what none of them could show.

Overlayfs takes a 0:0 device for a deleted name and its own attributes for marks: a base that holds them, such as the
store of a rootless container engine, would lose files without any error.
"""

from __future__ import annotations

import errno

from hostfork.storage.clone import Sharer
from hostfork.storage.entry import Copier, Extra, Taken
from hostfork.storage.layering import MARKS, is_whiteout

UNFIT = errno.EMEDIUMTYPE
"""The number of the error; no filesystem gives it. A worker tells numbers alone."""


class _Checked(Copier):
    def node(self, source: int, name: str, target: int, as_name: str) -> Taken:
        taken = super().node(source, name, target, as_name)
        if taken.source is not None and is_whiteout(taken.source):
            raise OSError(UNFIT, "a 0:0 device", name)
        return taken

    def _set_attributes(self, place: int | str, extra: Extra) -> tuple[str, ...]:
        if any(name.startswith(MARKS) for name, _ in extra.attributes):
            raise OSError(UNFIT, "an attribute of overlayfs")
        return super()._set_attributes(place, extra)


class LowerCopier(_Checked):
    """Copies; raises OSError `UNFIT` at the first entry that no overlay can show."""

    kind = "lower"


class LowerCloner(_Checked, Sharer):
    """Clones by FICLONE, and copies what cannot be cloned; else the same."""

    kind = "lower-clone"
