"""Free ports for a fork: localhost is shared by all forks and the host, so each gets numbers of its own.

A port is found by binding to port 0, TCP and UDP, IPv4 and IPv6, and noted in the record; no other fork of this user is
given it while that is kept. Nothing holds it while no command of the fork listens: another program may take it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Sequence

from hostfork.errors import Code, HostError, PolicyError

_TRIES = 50


def free_ports(forks: str, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """A port for each variable's name, different from those of all forks in the folder `forks`.

    Raises PolicyError `policy.usage` for a name that is none, HostError `host.missing` where no port is free.
    """
    for name in names:
        _check(name)
    given = _given(forks)
    found = []
    for name in dict.fromkeys(names):
        number = _free(given)
        given.add(number)
        found.append((name, number))
    return tuple(found)


def _check(name: str) -> None:
    letters = name.isascii() and name.replace("_", "a").isalnum() and not name[:1].isdigit()
    if not letters or name.startswith("HOSTFORK"):
        raise PolicyError(
            Code.POLICY_USAGE, f"--port {name}: a port is told by a variable, and that is no name for one",
            place="--port", step="options", hint="letters, digits and `_`, such as --port PORT",
        )  # fmt: skip


def _given(forks: str) -> set[int]:
    given: set[int] = set()
    for fork in os.listdir(forks):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), \
             open(os.path.join(forks, fork, "record.json"), "rb") as file:  # fmt: skip
            given.update(number for _name, number in json.load(file)["ports"])
    return given


def _free(given: set[int]) -> int:
    for _ in range(_TRIES):
        number = _tried(given)
        if number is not None:
            return number
    raise HostError(
        Code.HOST_MISSING, "no port is free", step="port", place="--port",
        hint="ss -ltnup shows who listens · sysctl net.ipv4.ip_local_port_range",
    )  # fmt: skip


def _tried(given: set[int]) -> int | None:
    """A number that nobody has now, in any of the ways in which a server takes one; None where somebody has it."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        try:
            first.bind(("127.0.0.1", 0))
            number = int(first.getsockname()[1])
            if number in given:
                return None
            for family, kind, address in (
                (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
                (socket.AF_INET6, socket.SOCK_STREAM, "::1"),
                (socket.AF_INET6, socket.SOCK_DGRAM, "::1"),
            ):
                with contextlib.suppress(_NoSuchFamily):
                    _bind(stack, family, kind, address, number)
        except OSError:
            return None
        return number


class _NoSuchFamily(Exception):
    """This host has no IPv6, or none on its loopback."""


def _bind(stack: contextlib.ExitStack, family: int, kind: int, address: str, number: int) -> None:
    import errno

    try:
        made = stack.enter_context(socket.socket(family, kind))
        made.bind((address, number))
    except OSError as error:
        if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise _NoSuchFamily from error
        raise
