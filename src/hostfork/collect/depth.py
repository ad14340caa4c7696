"""Deep trees: for each level that a walk is below its root it takes descriptors, and frames of Python.

So for a walk that needs it the limits of this process are raised that are there to be raised.
"""

from __future__ import annotations

import sys
from functools import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[..., object])

_FRAMES = 10_000_000
_MANY = 200
"""Descriptors. A process that has less of them open needs no look at its limit."""
_MOST = 16_384
"""Descriptors that a walk asks for. Paths get longer with depth: who makes deeper trees wants to fill our memory."""


class _Limits:
    """What this process had before the first of the walks that go on now."""

    walks = 0
    frames = 0
    descriptors: tuple[int, int] | None = None
    """None where they were not changed."""


class AnyDepth:
    """While this lasts walks may go thousands of levels deep; afterwards this process has the limits that it had."""

    def __enter__(self) -> None:
        if not _Limits.walks:
            _Limits.frames = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_Limits.frames, _FRAMES))
        _Limits.walks += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _Limits.walks -= 1
        if _Limits.walks:
            return
        sys.setrecursionlimit(_Limits.frames)
        if _Limits.descriptors is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_NOFILE, _Limits.descriptors)
            _Limits.descriptors = None


def at_any_depth(walk: F) -> F:
    """A function during whose calls that holds."""

    @wraps(walk)
    def call(*values: object, **named: object) -> object:
        with AnyDepth():
            return walk(*values, **named)

    return call  # type: ignore[return-value]


def with_room(descriptor: int) -> int:
    """The same descriptor; from a certain number on, within `AnyDepth`, the limit of this process is raised."""
    if descriptor >= _MANY and _Limits.walks:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < min(hard, _MOST):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _MOST), hard))
            _Limits.descriptors = (soft, hard)
    return descriptor
