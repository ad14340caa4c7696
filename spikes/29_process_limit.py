"""Fact 29, second half: what RLIMIT_NPROC counts."""

import os
import resource
import signal

import spike

QUESTION = "which processes count against RLIMIT_NPROC set before and after a user namespace was made?"
OUTSIDE, LIMIT = 8, 5


def limit() -> None:
    """Set the limit for this process and its children."""
    resource.setrlimit(resource.RLIMIT_NPROC, (LIMIT, LIMIT))


def room() -> int:
    """How many children can be forked now."""
    pids: list[int] = []
    try:
        while len(pids) < 2 * LIMIT:
            pid = os.fork()
            if pid == 0:
                spike.libc.prctl(1, signal.SIGKILL)
                signal.pause()
            pids.append(pid)
    except BlockingIOError:
        pass
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(pids)


def counted(when: str) -> int:
    """The room inside, with the limit set before the namespace, after it, or without one."""
    if when != "after":
        limit()
    if when != "without":
        spike.enter(userns=True)
    if when == "after":
        limit()
    return room()


def with_others() -> dict[str, int]:
    """The same while this user has more processes outside than the limit."""
    others = []
    for _ in range(OUTSIDE):
        pid = os.fork()
        if pid == 0:
            spike.libc.prctl(1, signal.SIGKILL)
            signal.pause()
        others.append(pid)
    found = {when: spike.child(counted, when) for when in ("without", "before", "after")}
    for pid in others:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return found


def trial(folder: str) -> spike.Finding:
    """As an ordinary user, as root is not limited."""
    spike.child(bool, user=True, userns=True)  # says so where a user may not make one
    found = spike.child(with_others, user=True)
    return spike.Finding(
        f"a limit of {LIMIT} while {OUTSIDE} run outside leaves room for this many children: {spike.told(found)}",
        found["without"] == 0 and found["before"] == 0 and 0 < found["after"] < LIMIT,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
