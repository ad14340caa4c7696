"""Fact 20: hashing many small files in two Python threads."""

import hashlib
import os
import threading
from collections.abc import Callable
from multiprocessing import get_context

import spike

QUESTION = "do two Python threads hash a tree of small files faster than one, and do two processes?"
FILES = 6000


def digest(folder: str, first: int, step: int) -> None:
    """Hash every `step`th file from the `first`."""
    for number in range(first, FILES, step):
        with open(f"{folder}/{number}", "rb", buffering=0) as file:
            hashlib.blake2b(file.read()).digest()


def one(folder: str) -> None:
    """All in this thread."""
    digest(folder, 0, 1)


def threads(folder: str) -> None:
    """Half in each of two threads."""
    both = [threading.Thread(target=digest, args=(folder, first, 2)) for first in (0, 1)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()


def processes(folder: str) -> None:
    """Half in each of two forked processes."""
    both = [get_context("fork").Process(target=digest, args=(folder, first, 2)) for first in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join()


def trial(folder: str) -> spike.Finding:
    """The best of five rounds of each, in turn."""
    for number in range(FILES):
        with open(f"{folder}/{number}", "wb") as file:
            file.write(os.urandom(1000))
    ways: tuple[Callable[[str], None], ...] = (one, threads, processes)
    rounds = [[spike.milliseconds(way, folder) for way in ways] for _ in range(5)]
    alone, threaded, forked = (min(column) for column in zip(*rounds, strict=True))
    return spike.Finding(
        f"{FILES} files: {alone:.0f} ms in one thread, {threaded:.0f} ms in two ({threaded / alone:.1f} times as "
        f"long), {forked:.0f} ms in two processes ({alone / forked:.1f} times as fast; {os.cpu_count()} processors)",
        threaded > 0.7 * alone,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, root=False)
