"""Fact 2: read-only does not control sockets; only the layout hides them."""

import os
import socket

import spike

QUESTION = "does connect() work through a read-only mount, and does Landlock stop it?"


def connect(path: str) -> str:
    """What connect gives."""
    with socket.socket(socket.AF_UNIX) as client:
        return spike.refused(client.connect, path)


def under_landlock(path: str, abi: int) -> str:
    """What connect gives where no path may be touched at all."""
    rights = (1 << (16 if abi >= 5 else 15 if abi >= 3 else 13)) - 1
    if abi >= 9:
        rights |= 1 << 16  # LANDLOCK_ACCESS_FS_RESOLVE_UNIX
    spike.landlock(rights, 0)
    return connect(path)


def trial(folder: str) -> spike.Finding:
    """Listen in a folder and connect through its read-only bind, under Landlock, and below a covering tmpfs."""
    os.makedirs(f"{folder}/run")
    os.mkdir(f"{folder}/view")
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{folder}/run/bus")
    server.listen(8)
    spike.bind(f"{folder}/run", f"{folder}/view", spike.RDONLY)
    write = spike.refused(spike.put, f"{folder}/view/new", "x")
    through = connect(f"{folder}/view/bus")
    abi = spike.landlock_abi()
    locked = spike.child(under_landlock, f"{folder}/view/bus", abi) if abi else "not there"
    spike.mount("tmpfs", f"{folder}/view", "tmpfs")
    covered = connect(f"{folder}/view/bus")
    wanted = "EACCES" if abi >= 9 else "ok" if abi else "not there"
    return spike.Finding(
        f"yes: on the read-only mount a write gives {write} and connect {through}; Landlock here is ABI {abi}, and "
        f"with every file right taken away connect gives {locked}; below a covering tmpfs {covered}",
        (write, through, locked, covered) == ("EROFS", "ok", wanted, "ENOENT"),
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
