"""The worker program of a copy: takes folders and names over its standard input, a socket, and answers with outcomes.

Started by `crew`. It ends with its owner.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hostfork.storage.entry import Copier

_INT = struct.calcsize("i")
_PR_SET_PDEATHSIG = 1  # prctl(2)


def main(owner: int, kind: str) -> None:
    """Copy batches until the owner closes the socket or dies."""
    from hostfork.helper import syscalls
    from hostfork.storage.crew import FOLDERS, packed

    # The kernel ends us with the owner, in the middle of a file too: a removal must not meet a writer.
    syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:
        return
    os.umask(0)  # files get the mode that they are made with: one call less for many
    copier = _copier(kind)
    channel = socket.socket(fileno=0)
    while True:
        message, control, _, _ = channel.recvmsg(1 << 20, socket.CMSG_SPACE(2 * FOLDERS * _INT))
        if not message:
            return
        folders = struct.unpack(f"{len(control[0][2]) // _INT}i", control[0][2])
        name = ""
        outcomes: list[list[Any]] = []
        try:
            for part, names in enumerate(marshal.loads(message)):
                source, target = folders[2 * part : 2 * part + 2]
                taken: list[Any] = []
                outcomes.append(taken)
                for name in names:
                    taken.append(packed(copier.file(source, name, target, name)))
            answer = marshal.dumps((0, "", outcomes))
        except OSError as error:
            answer = marshal.dumps((error.errno or 5, name, [[] for _ in outcomes]))
        finally:
            for folder in folders:
                os.close(folder)
        try:
            channel.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


def _copier(kind: str) -> Copier:
    if kind == "clone":
        from hostfork.storage.clone import Cloner

        return Cloner()
    if kind.startswith("lower"):
        from hostfork.storage import lower

        return lower.LowerCloner() if kind == lower.LowerCloner.kind else lower.LowerCopier()
    if kind == "own":
        from hostfork.storage.own import OwnCopier

        return OwnCopier()
    from hostfork.storage.entry import Copier

    return Copier()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(int(sys.argv[1]), sys.argv[2])
