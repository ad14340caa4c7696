"""The program that puts generations on disk, in no hurry, and then makes their sums: `settler.py GENERATION…`.

Started where one was made; it waits a moment, so that a run which comes right after has the disk and the processors
for itself. Until it is on disk a generation counts for this boot of the machine alone: after a crash of the machine it
is taken anew. SIGKILL at any moment does no harm.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.storage.lines import Generation

_PAUSE = 2.0
"""Seconds before anything is written out or summed up."""


def start(*generations: Generation) -> None:
    """Start it for these. Nothing is raised."""
    from hostfork.storage.reclaim import start_program

    # With the site packages: BLAKE3 is one.
    start_program(os.path.abspath(__file__), *(generation.path for generation in generations))


def settle(path: str) -> None:
    """Put a generation on disk, and say so in it. Raises OSError; one that went meanwhile is no fault."""
    from hostfork.baseline.current import DURABLE
    from hostfork.helper.syscalls import syncfs

    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        syncfs(folder)
        with contextlib.suppress(FileNotFoundError):
            os.close(os.open(DURABLE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder))
    finally:
        os.close(folder)


def main(paths: list[str]) -> None:
    """Settle them one after the other, and make what sums their pools lack."""
    from hostfork.helper import syscalls

    os.nice(19)
    with contextlib.suppress(OSError):  # a filter on system calls
        syscalls.set_idle_io()
    from hostfork.baseline.fitness import look_up
    from hostfork.storage.lines import Generation as Known

    for path in paths:  # first, since a fork that comes meanwhile has to do without an overlay
        with contextlib.suppress(OSError, ValueError):  # a later fork asks for it again
            look_up(Known(path), wait=False)
    time.sleep(_PAUSE)
    for path in paths:
        settle(path)
    from hostfork.baseline.summing import record_all

    for pool in dict.fromkeys(os.path.normpath(os.path.join(path, "../../..")) for path in paths):
        record_all(pool)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(sys.argv[1:])
