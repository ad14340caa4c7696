"""Where the command line writes: whole lines to stdout and stderr, whatever has become of them.

Nobody reading stdout ends a verb quietly, as SIGPIPE would. Nobody reading stderr (a hung-up terminal gives EIO, a
closed pipe EPIPE) is never a reason to stop: a release must go on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from hostfork.cli.look import Look, encoded, look_for
from hostfork.errors import Code, HostforkError

PREFIX = "hostfork: "
INDENT = " " * len(PREFIX)


class ReaderGone(Exception):
    """Nobody reads stdout any more."""


class Output:
    """One verb's two streams and their looks. `json`: stdout carries one document and nothing else."""

    def __init__(self, colour: str = "auto", json: bool = False, debug: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.debug = debug
        self.quiet = quiet
        self.out: Look = look_for(1, colour)
        self.err: Look = look_for(2, colour)

    def lines(self, lines: Iterable[str]) -> None:
        """Lines to stdout. Raises ReaderGone."""
        text = "".join(f"{line}\n" for line in lines)
        self.bytes(encoded(text, getattr(sys.stdout, "encoding", None)))

    def document(self, document: object) -> None:
        """One JSON document to stdout, in ASCII, so that no locale can break it. Raises ReaderGone."""
        import json

        self.bytes(json.dumps(document, indent=2).encode("ascii") + b"\n")

    def bytes(self, content: bytes) -> None:
        """Bytes to stdout as they are. Raises ReaderGone; a full disk or a closed stdout is an error."""
        try:
            write_all(1, content)
        except BrokenPipeError as error:
            raise ReaderGone from error
        except OSError as error:
            raise HostforkError(
                Code.COLLECT_DESTINATION,
                f"the answer cannot be written to stdout: {os.strerror(error.errno or 0)}",
                step="write",
                errno=error.errno,
            ) from error

    def say(self, first: str, *more: str) -> None:
        """`hostfork: first` and indented further lines to stderr, unless `-q`."""
        if not self.quiet:
            self.complain([PREFIX + first, *(INDENT + line for line in more)])

    def complain(self, lines: Iterable[str]) -> None:
        """Lines to stderr as they are, also with `-q`; nobody reading is no error."""
        text = "".join(f"{line}\n" for line in lines)
        self.tell(text)

    def tell(self, text: str) -> None:
        """Text to stderr; nobody reading is no error."""
        try:
            write_all(2, encoded(text, getattr(sys.stderr, "encoding", None)))
        except OSError:
            return


def write_all(descriptor: int, content: bytes) -> None:
    """Write everything: a pipe or terminal may take less at a time."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
