"""Sockets and FIFOs of the host's: what a run says of those that it cannot keep, and which are none."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rigs
from rigs import Person

Run = Callable[..., "subprocess.CompletedProcess[Any]"]

SERVER = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind("sock")
server.listen()
pipe = os.open("pipe", os.O_RDWR)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def project(person: Person) -> str:
    """A folder of the person's with a FIFO."""
    folder = rigs.make_project(person, person.home, {"a": "a\n"})
    person.call(os.mkfifo, f"{folder}/pipe")
    return folder


Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start(person: Person, project: str) -> Iterator[Start]:
    """`start()`: a process of the person's that listens at `sock` and has `pipe` open."""
    servers: list[subprocess.Popen[str]] = []

    def once() -> "subprocess.Popen[str]":
        server = person.popen(
            [sys.executable, "-c", SERVER], cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        servers.append(server)
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        return server

    yield once
    for server in servers:
        server.communicate()


def said(hostfork: Run, person: Person, project: str, *options: str) -> list[str]:
    """What a run that changes nothing says of endpoints."""
    done = hostfork(person, "run", *options, "--private", ".", "--", "true", cwd=project, check=0)
    return [line for line in done.stderr.splitlines() if "/sock " in line or "/pipe " in line]


def test_one_that_cannot_be_kept_is_said_in_every_run(
    hostfork: Run, person: Person, project: str, start: Start
) -> None:
    """In a copy at another path there is no place for it: one line for each, without -v, whatever ran before."""
    pid = start().pid
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        program = file.read().strip()
    for _ in range(2):
        assert said(hostfork, person, project, "--relocated") == [
            f"hostfork: the {kind} {project}/{name} of {program} (pid {pid})"
            " is not in the copy; it stays at the original path"
            for kind, name in (("fifo", "pipe"), ("socket", "sock"))
        ]
    assert said(hostfork, person, project, "--relocated", "-q") == []


@pytest.mark.rig("user namespaces")
def test_one_that_is_kept_is_said_with_verbose_only(hostfork: Run, person: Person, project: str, start: Start) -> None:
    pid = start().pid
    assert said(hostfork, person, project) == []
    lines = said(hostfork, person, project, "-v")
    assert len(lines) == 2
    assert all("stays the host's" in line and f"pid {pid}" in line for line in lines)


@pytest.mark.rig("user namespaces")
def test_a_listener_whose_socket_was_deleted_is_nobodys_endpoint(
    hostfork: Run, person: Person, project: str, start: Start
) -> None:
    """The host reaches it no more either: nothing is said, with -v too, and nothing stands at its path."""
    server = start()
    os.unlink(f"{project}/sock")
    os.unlink(f"{project}/pipe")
    assert said(hostfork, person, project, "-v") == []
    assert said(hostfork, person, project, "--relocated") == []
    done = hostfork(person, "run", "--private", ".", "--", "ls", cwd=project, check=0)
    assert done.stdout == "a\n"
    assert server.poll() is None


@pytest.mark.rig("user namespaces")
def test_of_two_listeners_at_one_path_the_living_file_counts(
    hostfork: Run, person: Person, project: str, start: Start
) -> None:
    """A server that was replaced still listens under the same name, on a socket that is gone."""
    old = start()
    os.unlink(f"{project}/sock")
    new = start()
    talk = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('sock'); print('connected')"
    done = hostfork(person, "run", "-v", "--private", ".", "--", sys.executable, "-c", talk, cwd=project, check=0)
    assert done.stdout == "connected\n"
    line = next(line for line in done.stderr.splitlines() if "/sock " in line)
    assert f"pid {new.pid}" in line
    assert f"pid {old.pid}" not in line
    assert [
        f"pid {new.pid}" in line for line in said(hostfork, person, project, "--relocated") if "socket" in line
    ] == [True]
