"""Fact 1: sockets and FIFOs of the host are reached only through the host's own inode."""

import os
import socket
import struct
from typing import Any

import spike

QUESTION = "does a host's Unix socket or FIFO work through overlayfs, a copy or a snapshot, and how are they found?"


def connect(path: str) -> str:
    """What connect gives."""
    with socket.socket(socket.AF_UNIX) as client:
        return spike.refused(client.connect, path)


def met(fifo: str) -> str:
    """What opening the FIFO for writing gives without waiting: ENXIO where no reader is met."""
    return spike.refused(lambda: os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)))


def by_diag(inode: int) -> tuple[int, int]:
    """The inode and device that sock_diag gives for a Unix socket (UNIX_DIAG_SHOW_VFS), by the socket's own inode."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:
        ask = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, inode, 2, 0xFFFFFFFF, 0xFFFFFFFF)
        diag.send(struct.pack("=IHHII", 16 + len(ask), 20, 1, 1, 0) + ask)
        reply = diag.recv(4096)
    at = 32
    while at < len(reply):
        length, kind = struct.unpack_from("=HH", reply, at)
        if kind == 1:
            return struct.unpack_from("=II", reply, at + 4)
        at += (length + 3) & ~3
    raise RuntimeError("no UNIX_DIAG_VFS in the reply")


def trial(folder: str) -> spike.Finding:
    """Serve a socket and a FIFO in a Btrfs folder, and try each way to them."""
    tree = spike.disk(folder, "btrfs") + "/tree"
    spike.subvolume(tree)
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{tree}/sock")
    server.listen()
    os.mkfifo(f"{tree}/fifo")
    reader = os.open(f"{tree}/fifo", os.O_RDONLY | os.O_NONBLOCK)
    spike.overlay(tree, f"{folder}/btrfs/store", f"{folder}/over")
    spike.run("cp", "-a", tree, f"{folder}/copy")
    spike.snapshot(tree, f"{folder}/btrfs/snap")
    ways: dict[str, Any] = {"host": tree, "overlay": f"{folder}/over", "copy": f"{folder}/copy"}
    ways["snapshot"] = f"{folder}/btrfs/snap"
    sockets = {name: connect(f"{path}/sock") for name, path in ways.items()}
    fifos = {name: met(f"{path}/fifo") for name, path in ways.items()}
    for name in ("sock", "fifo"):
        spike.bind(f"{tree}/{name}", f"{folder}/over/{name}")
    bound = (connect(f"{folder}/over/sock"), met(f"{folder}/over/fifo"))
    listed = f"{tree}/sock" in spike.get("/proc/net/unix")
    opened = os.readlink(f"/proc/self/fd/{reader}") == f"{tree}/fifo"
    os.rename(f"{tree}/sock", f"{tree}/moved")
    stale = f"{tree}/sock" in spike.get("/proc/net/unix") and f"{tree}/moved" not in spike.get("/proc/net/unix")
    inode, _device = by_diag(os.fstat(server.fileno()).st_ino)
    diag = inode == os.stat(f"{tree}/moved").st_ino
    expected = {"host": "ok", "overlay": "ECONNREFUSED", "copy": "ECONNREFUSED", "snapshot": "ECONNREFUSED"}
    holds = sockets == expected and fifos == {n: "ok" if n == "host" else "ENXIO" for n in ways}
    return spike.Finding(
        f"no: connect gives {spike.told(sockets)}; a FIFO's writer {spike.told(fifos)}; bound from the host's inode "
        f"{spike.told(bound)}; /proc/net/unix lists the listener: {spike.told(listed)}, under a stale name after a "
        f"rename: {spike.told(stale)}, sock_diag gives its inode: {spike.told(diag)}; /proc/*/fd shows the open FIFO: "
        f"{spike.told(opened)}",
        holds and bound == ("ok", "ok") and listed and stale and diag and opened,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
