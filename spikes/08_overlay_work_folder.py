"""Fact 8: what an overlay leaves in its work folder."""

import os
import shutil
import stat

import spike

QUESTION = "can the work folder of an overlay be removed with rmtree, and used again?"


def by_user(folder: str) -> list[str]:
    """Mount and unmount in a user namespace; the folder is the user's own afterwards."""
    spike.overlay(f"{folder}/base", f"{folder}/store", f"{folder}/over", ",userxattr")
    return ["mounted"]


def remove(folder: str) -> list[str]:
    """The mode that is left, and what rmtree gives before and after a chmod."""
    left = f"{folder}/store/work/work"
    mode = oct(stat.S_IMODE(os.stat(left).st_mode))
    first = spike.refused(shutil.rmtree, f"{folder}/store")
    os.chmod(left, 0o700)
    return [mode, first, spike.refused(shutil.rmtree, f"{folder}/store")]


def volatile(folder: str) -> list[str]:
    """Use one work folder with volatile, then again without, then a fresh one."""
    found = []
    for store, options in (("v", ",volatile"), ("v", ""), ("v", ",volatile"), ("fresh", "")):
        found.append(spike.refused(spike.overlay, f"{folder}/base", f"{folder}/{store}", f"{folder}/o", options))
        if found[-1] == "ok":
            spike.umount(f"{folder}/o")
    return found


def trial(folder: str) -> spike.Finding:
    """A user's overlay for the mode, root's for volatile."""
    spike.own(folder, f"{folder}/base")
    spike.child(by_user, folder, user=True, userns=True)
    mode, first, then = spike.child(remove, folder, user=True)
    again = spike.child(volatile, folder, mounts=True)
    return spike.Finding(
        f"no: work/work is left with mode {mode}, rmtree gives {first}, after a chmod {then}; a work folder used with "
        f"volatile gives {again[0]}, then without {again[1]}, with {again[2]}; a fresh one {again[3]}",
        (mode, first, then) == ("0o0", "EACCES", "ok") and again == ["ok", "EINVAL", "EINVAL", "ok"],
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
