"""The program of a process that reads files to their digests: see `hashing`. It ends with its owner."""

from __future__ import annotations

import os
import socket
import sys


def main(owner: int) -> None:
    """Serve over the standard input, a socket."""
    from hostfork.baseline import hashing
    from hostfork.baseline.opener import ends_with

    if ends_with(owner):
        hashing.serve(socket.socket(fileno=0))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(int(sys.argv[1]))
