"""Fact 24: the order in which a view with a read-only / can be built."""

import json
import os
import socket
from typing import Any

import spike

QUESTION = "how is a view built whose / is read-only and whose private trees are writable, by root and by a user?"


def read_only_root() -> None:
    """Everything that is mounted becomes read-only."""
    spike.set_attributes(-100, "/", spike.ATTR_RDONLY, spike.AT_RECURSIVE)


def nested() -> str:
    """What a user namespace with a map of its own gives inside: browsers and build tools make them."""
    return str(spike.child(lambda: spike.refused(lambda: spike.enter(userns=True))))


def late(folder: str, store: str) -> list[str]:
    """The overlay made after / became read-only, and a nested user namespace there."""
    for name in ("upper", "work"):
        os.makedirs(f"{folder}/{store}/{name}")
    read_only_root()
    made = spike.refused(spike.detached_overlay, f"{folder}/tree", f"{folder}/{store}", "userxattr")
    return [made, nested()]


def build(folder: str, store: str, talk: socket.socket) -> None:
    """Detached trees and clones first, then / read-only, then attach; tell, and stay until told to go."""
    private = spike.detached_overlay(f"{folder}/tree", f"{folder}/{store}", "userxattr")
    clones = {path: spike.clone_tree(path, spike.AT_RECURSIVE) for path in ("/proc", "/dev", f"{folder}/shared")}
    read_only_root()
    for path, clone in clones.items():
        spike.attach(clone, path)
    spike.attach(private, f"{folder}/tree")
    handed = spike.clone_tree(f"{folder}/tree")
    places = {"private": f"{folder}/tree/file", "shared": f"{folder}/shared/{store}", "elsewhere": f"{folder}/x"}
    found = {name: spike.refused(spike.put, path, store) for name, path in places.items()}
    found["nested user namespace"] = nested()
    socket.send_fds(talk, [json.dumps(found).encode()], [handed])
    talk.recv(1)


def visit(keeper: int, folder: str) -> str:
    """Enter the running view from outside by a descriptor of its process."""
    handle = os.pidfd_open(keeper)
    spike.check(spike.libc.setns(handle, (spike.NEWUSER if os.geteuid() else 0) | spike.NEWNS))
    return spike.get(f"{folder}/tree/file")


def view(folder: str, store: str, **who: bool) -> dict[str, Any]:
    """Build as this person, enter while it lives, and read the handed-back folder after it is gone."""
    found: dict[str, Any] = {"late": spike.child(late, folder, f"{store}-late", **who)}
    here, there = socket.socketpair()
    keeper = os.fork()
    if keeper == 0:
        try:
            here.close()
            spike.enter(**who)
            build(folder, store, there)
        finally:
            os._exit(0)
    there.close()
    told, handles, _, _ = socket.recv_fds(here, 4096, 1)
    found |= json.loads(told)
    found["entered"] = spike.child(visit, keeper, folder, user="user" in who)
    here.close()
    os.waitpid(keeper, 0)
    with open(os.open("file", os.O_RDONLY, dir_fd=handles[0])) as file:
        found["handed back"] = file.read()
    return found


def trial(folder: str) -> spike.Finding:
    """As root and as a user."""
    spike.own(folder, f"{folder}/tree", f"{folder}/shared")
    spike.put(f"{folder}/tree/file", "host")
    os.chown(f"{folder}/tree/file", spike.USER, spike.USER)
    root = view(folder, "root", mounts=True)
    user = view(folder, "user", user=True, userns=True)
    kept = spike.get(f"{folder}/tree/file") == "host"
    wanted: dict[str, Any] = {"late": ["EINVAL", "EROFS"], "private": "ok", "shared": "ok", "elsewhere": "EROFS"}
    wanted |= {"nested user namespace": "ok"}
    return spike.Finding(
        f"detached trees and clones first, then / read-only, then attach them: as root {spike.told(root)}; as a user "
        f"{spike.told(user)}",
        kept
        and root == {**wanted, "entered": "root", "handed back": "root"}
        and user == {**wanted, "entered": "user", "handed back": "user"},
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
