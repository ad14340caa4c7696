"""Fact 29, first half: RLIMIT_CORE and a core handler behind a pipe."""

import os
import resource
import signal

import spike

QUESTION = "does RLIMIT_CORE 0 stop a piped core handler, and does 1?"


def dumped(limit: int) -> bool:
    """Whether the kernel says that it handed out a core of a process with this limit."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
        os.kill(os.getpid(), signal.SIGQUIT)
        os._exit(1)
    return os.WCOREDUMP(os.waitpid(pid, 0)[1])


def trial(folder: str) -> spike.Finding:
    """Crash a child with each limit, where this host's pattern is a pipe."""
    os.chdir(folder)
    pattern = spike.get("/proc/sys/kernel/core_pattern").strip()
    found = {f"with limit {limit}": dumped(limit) for limit in (0, 1)}
    answer = f"core_pattern is {pattern!r}; a core is handed out {spike.told(found)}"
    if not pattern.startswith("|"):
        raise spike.Missing(
            f"{answer} | core_pattern is no pipe here and is the whole machine's; run this file where it is, as on "
            "Ubuntu with apport or with systemd-coredump"
        )
    return spike.Finding(answer, list(found.values()) == [True, False])


if __name__ == "__main__":
    spike.main(QUESTION, trial)
