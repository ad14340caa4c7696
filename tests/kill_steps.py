"""A process that is killed at one of its own steps: which one is counted, so that a test can try them all."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest


def die_at(number: int, *places: tuple[Any, tuple[str, ...]]) -> None:
    """From here on this process is killed before the so-many-th call of these functions: modules and names in them."""
    count = 0

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments, **options)

        return act

    patch = pytest.MonkeyPatch()
    for module, names in places:
        for name in names:
            patch.setattr(module, name, counted(getattr(module, name)))
