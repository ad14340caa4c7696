"""Fact 25: starting the helper before a large import lets both go on at once."""

import importlib.util
import os
import sys

import spike

QUESTION = "what does a cold start in Python cost, with the helper started before and after the import of click?"
HELPER = "[sys.executable, '-I', '-S', '-c', 'import ctypes, json, os, socket']"
SPAWN = f"p = os.posix_spawn(sys.executable, {HELPER}, os.environ)"
PROGRAMS = {
    "nothing": "pass",
    "import click alone": "import click",
    "click, then the helper": f"import os, sys, click; {SPAWN}; os.waitpid(p, 0)",
    "the helper, then click": f"import os, sys; {SPAWN}; import click; os.waitpid(p, 0)",
}


def start(program: str) -> None:
    """Run one program in a fresh interpreter."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], os.environ)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError(program)


def trial(folder: str) -> spike.Finding:
    """The best of nine rounds, in turn."""
    if importlib.util.find_spec("click") is None:
        raise spike.Missing("click is not installed")
    rounds = [{name: spike.milliseconds(start, text) for name, text in PROGRAMS.items()} for _ in range(9)]
    best = {name: min(row[name] for row in rounds) for name in PROGRAMS}
    shown = ", ".join(f"{name} {took:.0f} ms" for name, took in best.items())
    return spike.Finding(
        f"{shown} ({os.cpu_count()} processors)",
        best["the helper, then click"] < 1.5 * best["click, then the helper"]
        and best["nothing"] < best["import click alone"] < 1000,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, root=False)
