"""Fact 14: what a command inherits from a Python parent: open pipes and an ignored SIGPIPE."""

import os
import select
import signal
from typing import Any

import spike

QUESTION = "does a status pipe without close-on-exec hold up its reader, and does a command inherit SIGPIPE ignored?"


def waits(inheritable: bool) -> bool:
    """Whether the pipe's reader sees no end while the command runs."""
    come, go = os.pipe()
    os.set_inheritable(go, inheritable)
    pid = os.posix_spawn("/bin/sleep", ["sleep", "30"], os.environ)
    os.close(go)
    ready, _, _ = select.select([come], [], [], 0.3 if inheritable else 10)
    running = os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not running:
        raise RuntimeError("the command ended too early")
    return not ready


def ignored(**options: Any) -> bool:
    """Whether a command started from here finds SIGPIPE ignored."""
    come, go = os.pipe()
    spawn = [(os.POSIX_SPAWN_DUP2, go, 1)]
    pid = os.posix_spawn("/bin/cat", ["cat", "/proc/self/status"], os.environ, file_actions=spawn, **options)
    os.close(go)
    with os.fdopen(come) as pipe:
        lines = dict(line.split(":\t", 1) for line in pipe.read().splitlines() if ":\t" in line)
    os.waitpid(pid, 0)
    return bool(int(lines["SigIgn"], 16) >> (signal.SIGPIPE - 1) & 1)


def trial(folder: str) -> spike.Finding:
    """With and without close-on-exec, with and without a reset."""
    pipes = (waits(True), waits(False))
    signals = (ignored(), ignored(setsigdef=[signal.SIGPIPE]))
    return spike.Finding(
        f"yes and yes: the reader waits for the command without close-on-exec: {spike.told(pipes[0])}, with it: "
        f"{spike.told(pipes[1])}; SIGPIPE is ignored in the command: {spike.told(signals[0])}, after a reset: "
        f"{spike.told(signals[1])}",
        pipes == (True, False) and signals == (True, False),
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, root=False)
