"""Fact 13: who can push input into the caller's terminal, and what stops it without breaking job control."""

import ctypes
import fcntl
import os
import platform
import signal
import struct
import termios
from collections.abc import Callable
from typing import Any

import spike

QUESTION = "what stops TIOCSTI on the caller's terminal, and does job control still work then?"
IOCTL = {"x86_64": 16, "aarch64": 29}


def inject(slave: int) -> str:
    """Push one line into the terminal's input."""
    return spike.refused(lambda: [fcntl.ioctl(slave, termios.TIOCSTI, bytes([c])) for c in b"x\n"])


def foreground(slave: int) -> str:
    """Take the terminal's foreground for an own process group, as a shell does for its job."""
    os.setpgid(0, 0) if os.getsid(0) != os.getpid() else None
    return spike.refused(os.tcsetpgrp, slave, os.getpgrp())


def after_setsid(slave: int, act: Callable[[int], str]) -> str:
    """Act as the leader of a new session."""
    os.setsid()
    return act(slave)


def after_filter(slave: int, act: Callable[[int], str]) -> str:
    """Act under a seccomp filter that refuses this one ioctl."""
    number = IOCTL[platform.machine()]
    code = [(0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 24), (0x15, 0, 1, termios.TIOCSTI)]
    code += [(0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in code))
    request = struct.pack("@HP", len(code), ctypes.addressof(program))
    spike.check(spike.libc.prctl(38, 1, 0, 0, 0))
    spike.check(spike.libc.prctl(22, 2, request, 0, 0))
    return act(slave)


def leader(slave: int) -> dict[str, Any]:
    """A session leader with the terminal; each way is a child of it."""
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    found = {
        "user": spike.child(inject, slave, user=True),
        "user after setsid": spike.child(after_setsid, slave, inject, user=True),
        "root": spike.child(inject, slave),
        "root after setsid": spike.child(after_setsid, slave, inject),
        "root under seccomp": spike.child(after_filter, slave, inject),
    }
    queued = struct.unpack("i", fcntl.ioctl(slave, termios.FIONREAD, b"\0" * 4))[0]
    found["bytes that arrived"] = queued
    found["job control after setsid"] = spike.child(after_setsid, slave, foreground)
    found["job control under seccomp"] = spike.child(after_filter, slave, foreground)
    return found


def trial(folder: str) -> spike.Finding:
    """On a new pseudo-terminal."""
    if platform.machine() not in IOCTL:
        raise spike.Missing(f"no seccomp filter is written for {platform.machine()}")
    master, slave = os.openpty()
    found = spike.child(leader, slave)
    os.close(master)
    setting = "/proc/sys/dev/tty/legacy_tiocsti"  # Linux 6.2
    legacy = spike.get(setting).strip() if os.path.exists(setting) else "1"
    wanted = ["ok" if legacy == "1" else "EIO", "EPERM" if legacy == "1" else "EIO", "ok", "ok", "EPERM"]
    arrived = 2 * wanted.count("ok")
    return spike.Finding(
        f"a filter on the ioctl (dev.tty.legacy_tiocsti is {legacy}): {spike.told(found)}",
        list(found.values()) == [*wanted, arrived, "ENOTTY", "ok"],
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
