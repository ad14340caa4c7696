"""The program that lets forks expire in the background, in no hurry: `expirer.py STATE CONFIG`.

Started by other verbs at most once an hour; one at a time, by a lock on STATE/expiry. SIGKILL at any moment leaves what
`hostfork recover` puts right. What it could not do stands in STATE/expiry/problem, for `usage` to say.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostfork.lifecycle.store import Store

_PROBLEM = "problem"


def start(store: Store) -> None:
    """Start it. Where it cannot be started the next one will be, an hour later."""
    from hostfork.lifecycle.config import config_file
    from hostfork.storage.reclaim import start_program

    start_program(os.path.abspath(__file__), store.root, config_file())


def problem(store: Store) -> str | None:
    """What the last one could not do, in a sentence."""
    try:
        with open(os.path.join(store.expiry, _PROBLEM), encoding="utf-8", errors="surrogateescape") as file:
            return file.read() or None
    except OSError:
        return None


def main(root: str, config: str) -> None:
    """Let go what is to go."""
    from hostfork.errors import HostforkError
    from hostfork.helper import syscalls
    from hostfork.lifecycle.config import keep_rules
    from hostfork.lifecycle.expiry import gc
    from hostfork.lifecycle.store import Store

    # Not SCHED_IDLE: stopped inside a journal's transaction for long it would hold up everybody's.
    os.nice(19)
    with contextlib.suppress(OSError):  # a filter on system calls; nice alone makes it the last of its class
        syscalls.set_idle_io()
    store = Store(root)
    opened = os.open(store.expiry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    try:
        said = gc(store, keep_rules(config), must_be_noted=True).leftovers
    except HostforkError as error:
        said = (f"{error.message}, in {error.place}" if error.place else error.message,)
    with open(f"{store.expiry}/{_PROBLEM}", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write("; ".join(said))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(sys.argv[1], sys.argv[2])
