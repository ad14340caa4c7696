"""Folders that exports are made in, beside their destinations: each is named in the state folder before it is made.

    STATE/stages/PID-START-BOOT-NUMBER      a symlink to DESTINATION's folder/.hostfork-export-…

So recovery removes what a killed export left in a folder of the user's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hostfork.lifecycle.record import Recovered
from hostfork.lifecycle.store import Store
from hostfork.workload.identity import ProcessIdentity, identify

PREFIX = ".hostfork-export-"


@contextlib.contextmanager
def named(store: Store, destination: str) -> Iterator[str]:
    """The name for a folder beside `destination`, recorded until the end.

    A state folder that can only be read is no reason not to export from it; then nothing is recorded.
    """
    own = identify(os.getpid())
    number = os.urandom(4).hex()
    name = f"{PREFIX}{own.pid}-{number}"
    folder = _folder(store)
    link = os.path.join(folder, f"{own.pid}-{own.start_time}-{own.boot_id.replace('-', '')}-{number}")
    with contextlib.suppress(OSError):
        os.makedirs(folder, 0o700, exist_ok=True)
        os.symlink(os.path.join(os.path.dirname(os.path.abspath(destination)), name), link)
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            os.unlink(link)


def remove_left(store: Store) -> list[Recovered]:
    """Remove what exports whose process is gone left beside their destinations."""
    folder, found = _folder(store), []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            link = os.path.join(folder, name)
            if not _lives(name):
                try:
                    done = _remove(os.readlink(link))
                    os.unlink(link)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    done = Recovered("", "what an export left could not be removed", (_told(error, link),))
                found += [] if done is None else [done]
    return found


def _remove(path: str) -> Recovered | None:
    """Remove the folder, if the export came as far as making it, and was not renamed to its destination."""
    from hostfork.storage.tree import remove_tree

    above, name = os.path.split(path)
    if not name.startswith(PREFIX) or not os.path.lexists(path):
        return None
    opened = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(name, opened)
    finally:
        os.close(opened)
    return Recovered("", f"{path}, which an export that was killed left, was removed")


def _told(error: OSError, link: str) -> str:
    return f"{os.readlink(link)}: {error.strerror}; remove it by hand, then `hostfork recover`"


def _lives(name: str) -> bool:
    """Whether the process that a symlink is called after is there. Of a name that is not ours nobody is."""
    try:
        pid, start, boot, _ = name.split("-")
        known = "-".join((boot[:8], boot[8:12], boot[12:16], boot[16:20], boot[20:]))
        return ProcessIdentity(known, int(pid), int(start)).alive()
    except ValueError:
        return False


def _folder(store: Store) -> str:
    return os.path.join(store.root, "stages")
