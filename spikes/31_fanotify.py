"""Fact 31: fanotify marks from a user namespace."""

import ctypes

import spike

QUESTION = "can a process in a user's namespace put fanotify marks on host mounts?"


def marks(folder: str) -> dict[str, str]:
    """A mark on the host's mount, its filesystem and one folder, and on a mount made here."""
    group = spike.check(spike.libc.fanotify_init(0x200 | 1, 0))  # FAN_REPORT_FID, which a user may ask for

    def mark(flags: int, path: str) -> str:
        call = spike.libc.fanotify_mark
        return spike.refused(lambda: spike.check(call(group, flags | 1, ctypes.c_uint64(2), -100, path.encode())))

    found = {"host mount": mark(0x10, folder), "host filesystem": mark(0x100, folder), "one folder": mark(0, folder)}
    spike.mount("tmpfs", f"{folder}/own", "tmpfs")
    found["own filesystem"] = mark(0x100, f"{folder}/own")
    return found


def trial(folder: str) -> spike.Finding:
    """As a user in a user namespace, and as root outside."""
    spike.own(folder, f"{folder}/own")
    user = spike.child(marks, folder, user=True, userns=True)
    root = spike.child(marks, folder, mounts=True)
    return spike.Finding(
        f"no: {spike.told(user)}; as root outside: {spike.told(root)}",
        user["host mount"] == user["host filesystem"] == "EPERM" and root["host mount"] == "ok",
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
