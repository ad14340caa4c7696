"""What `hostfork-helper` runs: finds its package beside itself and nothing else, then carries out one plan."""

import os
import sys


def _start() -> None:
    # At the end: a module beside the package must never stand in for one of the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from hostfork.helper.steps import serve

    serve(int(sys.argv[1]))
    # The owner waits for the view to close: what the interpreter would tidy up is gone in a moment anyway.
    os._exit(0)


if __name__ == "__main__":
    _start()
