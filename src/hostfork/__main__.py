"""`python -m hostfork`, and the entry point of the `hostfork` command."""

import gc
import os
import sys


def main() -> None:
    """Run the command line; does not return.

    A run's helper is started before anything else is imported: on two cores both get ready at once.
    """
    # Nothing here makes cycles worth looking for, and each look costs a run some of its few milliseconds.
    gc.disable()
    try:
        if sys.argv[1:2] in (["run"], ["exec"], ["shell"]):
            _prestart()
        from hostfork.cli.main import run_command_line
    except KeyboardInterrupt:
        os._exit(130)
    run_command_line()


def _prestart() -> None:
    from hostfork.workload.spawn import spawn

    try:
        pid, channel = spawn()
    except OSError:
        return  # the run tries again itself, and says why it cannot
    from hostfork.workload.launch import keep_prestarted

    keep_prestarted(pid, channel)


if __name__ == "__main__":
    main()
