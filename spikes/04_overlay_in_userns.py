"""Fact 4: what an overlay in a user namespace does differently from a folder."""

import os

import spike

QUESTION = "what does an overlay in a user namespace need, and where does it differ from the plain folder?"


def without_userxattr(folder: str) -> str:
    """What replacing a folder of the base gives on an overlay mounted without userxattr."""
    spike.overlay(f"{folder}/base", f"{folder}/plain", f"{folder}/over")
    os.rmdir(f"{folder}/over/empty")
    return spike.refused(os.mkdir, f"{folder}/over/empty")


def differences(folder: str) -> dict[str, str]:
    """Each difference, by doing it."""
    over = f"{folder}/over"
    spike.overlay(f"{folder}/base", f"{folder}/a", over, ",userxattr")
    found = {"rename of a base folder": spike.refused(os.rename, f"{over}/dir", f"{over}/dir2")}
    with open(f"{over}/one", "a") as file:
        file.write("more")
    found["hard link after a write"] = spike.get(f"{over}/two")
    found["second level"] = spike.refused(spike.overlay, over, f"{folder}/b", f"{folder}/second", ",userxattr")
    found["third level"] = spike.refused(
        spike.overlay, f"{folder}/second", f"{folder}/c", f"{folder}/third", ",userxattr"
    )
    found["same upper twice"] = spike.refused(
        spike.overlay, f"{folder}/base", f"{folder}/a", f"{folder}/again", ",userxattr"
    )
    spike.bind(f"{folder}/end", f"{over}/two")
    found["unlink over an endpoint"] = spike.refused(os.unlink, f"{over}/two")
    found["rename over an endpoint"] = spike.refused(os.rename, f"{over}/one", f"{over}/two")
    return found


def options(folder: str) -> dict[str, str]:
    """Names that the option string does not carry, a string of 300 bytes, and layers given by descriptor."""
    found = {}
    for name in ("a:b", "a,b", "a\\b"):
        os.makedirs(f"{folder}/{name}")
        found[name] = spike.refused(spike.overlay, f"{folder}/{name}", f"{folder}/o", f"{folder}/over", ",userxattr")
    deep = f"{folder}/" + "/".join(["x" * 60] * 5)
    os.makedirs(deep)
    found["300 bytes by fsconfig"] = spike.refused(spike.detached_overlay, deep, f"{folder}/p", "userxattr")
    handle = os.open(deep, os.O_PATH)
    os.makedirs(f"{folder}/a:b,c\\d/" + "y" * 200)
    store = os.open(f"{folder}/a:b,c\\d/" + "y" * 200, os.O_PATH)
    by_number = f"/proc/self/fd/{handle}"
    found["by descriptor"] = spike.refused(spike.detached_overlay, by_number, f"/proc/self/fd/{store}", "userxattr")
    return found


def trial(folder: str) -> spike.Finding:
    """Make a base with hard links and try everything as a user in a user namespace."""
    for name in ("base", "base/dir", "base/empty"):
        spike.own(f"{folder}/{name}")
    spike.put(f"{folder}/base/one", "old")
    os.chown(f"{folder}/base/one", spike.USER, spike.USER)
    os.link(f"{folder}/base/one", f"{folder}/base/two")
    spike.put(f"{folder}/end", "")
    spike.own(folder)
    without = spike.child(without_userxattr, folder, user=True, userns=True)
    tried = spike.child(differences, folder, user=True, userns=True)
    named = spike.child(options, folder, user=True, userns=True)
    wanted = ["EXDEV", "old", "ok", "EINVAL", "ok", "EBUSY", "EBUSY"]
    refusals = [named.pop("by descriptor") == "ok", *(value != "ok" for value in named.values())]
    return spike.Finding(
        f"userxattr: without it a base folder made anew gives {without}; {spike.told(tried)}; as options: "
        f"{spike.told(named)}, by descriptor: {'ok' if refusals[0] else 'refused'}",
        without != "ok" and list(tried.values()) == wanted and all(refusals),
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
