"""The worker program of a copy: takes folders and names over its standard input, a socket, and answers with outcomes.

Started by `crew`. It ends when its owner is gone, so that a removal does not meet a writer.
"""

import marshal
import os
import socket
import struct
import sys


def main(owner: int) -> None:
    """Copy batches until the owner closes the socket or dies."""
    from hostfork.storage.crew import packed
    from hostfork.storage.entry import Copier

    copier = Copier()
    channel = socket.socket(fileno=0)
    while os.getppid() == owner:
        message, control, _, _ = channel.recvmsg(1 << 20, socket.CMSG_SPACE(struct.calcsize("ii")))
        if not message:
            return
        source, target = struct.unpack("ii", control[0][2])
        outcomes, name = [], ""
        try:
            for name in marshal.loads(message):
                if os.getppid() != owner:
                    return
                outcomes.append(packed(copier.file(source, name, target, name)))
            answer = marshal.dumps((0, "", outcomes))
        except OSError as error:
            answer = marshal.dumps((error.errno or 5, name, []))
        finally:
            os.close(source)
            os.close(target)
        try:
            channel.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(int(sys.argv[1]))
