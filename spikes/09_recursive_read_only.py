"""Fact 9: mount_setattr makes a subtree read-only where a remount drops flags or fails."""

import os

import spike

QUESTION = "does mount_setattr with AT_RECURSIVE make a subtree read-only and keep the other flags?"


def flags(path: str) -> str:
    """The flags of the last mount at the path."""
    found = [line.split()[5] for line in spike.get("/proc/self/mountinfo").splitlines() if line.split()[4] == path]
    return ",".join(flag for flag in found[-1].split(",") if flag != "relatime")


def tries(folder: str) -> dict[str, str]:
    """A remount of the inner mount, then one recursive call on a fresh bind of the whole."""
    for name in ("a", "b"):
        spike.bind(f"{folder}/tree", f"{folder}/{name}", spike.REC)
    inner = f"{folder}/a/inner"
    result = spike.refused(spike.mount, "none", inner, "", spike.BIND | spike.REMOUNT | spike.RDONLY)
    found = {"remount": f"{result} {flags(inner)}"}
    took = spike.milliseconds(spike.set_attributes, -100, f"{folder}/b", spike.ATTR_RDONLY, spike.AT_RECURSIVE)
    found["mount_setattr"] = f"ok {flags(folder + '/b/inner')}"
    found["write"] = spike.refused(spike.put, f"{folder}/b/inner/new", "x")
    found["ms"] = f"{took:.2f}"
    return found


def trial(folder: str) -> spike.Finding:
    """Mount a tmpfs with nosuid and nodev beneath a folder, then try as root and as a user."""
    for name in ("tree/inner", "a", "b"):
        os.makedirs(f"{folder}/{name}")
    spike.mount("tmpfs", f"{folder}/tree/inner", "tmpfs", spike.NOSUID | spike.NODEV, "mode=777")
    root = spike.child(tries, folder, mounts=True)
    user = spike.child(tries, folder, user=True, userns=True)
    took = [root.pop("ms"), user.pop("ms")]
    kept = {"mount_setattr": "ok ro,nosuid,nodev", "write": "EROFS"}
    return spike.Finding(
        f"yes, in {took[0]} and {took[1]} ms: as root {spike.told(root)}; as a user {spike.told(user)}",
        root == {"remount": "ok ro", **kept} and user == {"remount": "EPERM rw,nosuid,nodev", **kept},
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
