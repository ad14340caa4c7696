"""Fact 28: a process group's signals leave PID namespaces; locks and watches meet across read-only views."""

import fcntl
import os
import signal
import time

import spike

QUESTION = "do kill(0), flock and inotify reach the host from inside own namespaces?"


def shoot(mode: str) -> None:
    """Signal the own process group, from pid 1 of new user and PID namespaces."""
    spike.check(spike.libc.unshare(spike.NEWPID))
    pid = os.fork()
    if pid == 0:
        if mode == "landlock":
            spike.landlock(0, 2)  # LANDLOCK_SCOPE_SIGNAL
        if mode == "session":
            os.setsid()
        os.kill(0, signal.SIGUSR1)
        os._exit(0)
    os.waitpid(pid, 0)


def reached(mode: str) -> bool:
    """Whether a process outside that is in the same process group gets the signal."""
    os.setpgid(0, 0)
    outside = os.fork()
    if outside == 0:
        spike.libc.prctl(1, signal.SIGKILL)
        time.sleep(60)
        os._exit(0)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    spike.child(shoot, mode, userns=True)
    os.kill(outside, signal.SIGUSR2)  # of two pending signals the lower number is taken first
    return os.WTERMSIG(os.waitpid(outside, 0)[1]) == signal.SIGUSR1


def read_only(folder: str) -> list[str]:
    """Lock and watch through a read-only bind, while the host holds the lock and writes."""
    spike.bind(f"{folder}/host", f"{folder}/view", spike.RDONLY)
    handle = os.open(f"{folder}/view/file", os.O_RDONLY)
    lock = spike.refused(fcntl.flock, handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    watch = spike.check(spike.libc.inotify_init1(os.O_NONBLOCK))
    spike.check(spike.libc.inotify_add_watch(watch, f"{folder}/view/file".encode(), 2))
    spike.put(f"{folder}/host/file", "changed")
    return [lock, spike.refused(os.read, watch, 4096)]


def trial(folder: str) -> spike.Finding:
    """Signals as a user; locks as root."""
    abi = spike.landlock_abi()
    modes = ["plain", "session", *(["landlock"] if abi >= 6 else [])]
    signals = {mode: spike.child(reached, mode, user=True) for mode in modes}
    scoped = spike.told(signals.pop("landlock")) if abi >= 6 else "not offered before ABI 6"
    for name in ("host", "view"):
        os.mkdir(f"{folder}/{name}")
    spike.put(f"{folder}/host/file", "")
    holder = os.open(f"{folder}/host/file", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    lock, watch = spike.child(read_only, folder, mounts=True)
    return spike.Finding(
        f"kill(0) from own user and PID namespaces reaches the host's process group: {spike.told(signals['plain'])}, "
        f"under Landlock's signal scope (ABI {abi}): {scoped}, in an own session: "
        f"{spike.told(signals['session'])}; through a read-only view flock against the host's lock gives {lock}, and "
        f"inotify tells of the host's write: {watch}",
        signals == {"plain": True, "session": False} and scoped != "yes" and (lock, watch) == ("EAGAIN", "ok"),
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
