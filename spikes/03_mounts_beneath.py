"""Fact 3: what a host mount beneath a folder forbids in a user namespace."""

import os

import spike

QUESTION = "can a folder with a host mount beneath it be an overlay's lower folder or be bound, in a user namespace?"


def tries(folder: str, inner: str) -> dict[str, str]:
    """The three ways over the folder that holds the host's mount `inner`, and over one with a mount made here."""
    store = f"{folder}/store"
    found = {
        "overlay": spike.refused(spike.overlay, f"{folder}/tree", f"{store}/a", f"{store}/over", ",userxattr"),
        "bind": spike.refused(spike.bind, f"{folder}/tree", f"{store}/bound"),
        "recursive bind": spike.refused(spike.bind, f"{folder}/tree", f"{store}/all", spike.REC),
    }
    spike.mount("tmpfs", f"{folder}/plain/{inner}", "tmpfs")
    found["overlay, mount made here"] = spike.refused(
        spike.overlay, f"{folder}/plain", f"{store}/b", f"{store}/over2", ",userxattr"
    )
    return found


def trial(folder: str) -> spike.Finding:
    """Mount a tmpfs beneath a folder, then try as root and as a user."""
    spike.mount("tmpfs", folder, "tmpfs", 0, "mode=755")
    for name in ("tree/inner", "plain/inner", "store/bound", "store/all"):
        os.makedirs(f"{folder}/{name}")
    spike.own(f"{folder}/store", f"{folder}/plain", f"{folder}/plain/inner")
    spike.mount("tmpfs", f"{folder}/tree/inner", "tmpfs")
    as_user = spike.child(tries, folder, "inner", user=True, userns=True)
    as_root = spike.child(tries, folder, "inner", mounts=True)
    wanted = {"overlay": "EINVAL", "bind": "EINVAL", "recursive bind": "ok", "overlay, mount made here": "ok"}
    return spike.Finding(
        f"not in a user namespace: {spike.told(as_user)}; as root: {spike.told(as_root)}",
        as_user == wanted and set(as_root.values()) == {"ok"},
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
