"""Fact 5: an overlay's upper folder holds marks that are not content."""

import os
import stat

import spike

QUESTION = "what does the upper folder hold for a deleted file and for a folder that was deleted and made again?"


def trial(folder: str) -> spike.Finding:
    """Delete and recreate in a user's overlay, and read the upper folder from outside."""
    spike.own(folder, f"{folder}/base", f"{folder}/base/dir", f"{folder}/made")
    for name in ("gone", "dir/inside"):
        spike.put(f"{folder}/base/{name}", "x")
        os.chown(f"{folder}/base/{name}", spike.USER, spike.USER)
    spike.child(change, folder, user=True, userns=True)
    gone = os.lstat(f"{folder}/store/upper/gone")
    opaque = os.getxattr(f"{folder}/store/upper/dir", "user.overlay.opaque").decode()
    shown = os.listdir(f"{folder}/store/upper/dir")
    zero = stat.S_ISCHR(gone.st_mode) and gone.st_rdev == 0
    plain = spike.child(make_zero, f"{folder}/made/zero", user=True)
    return spike.Finding(
        f"the file: a character device {os.major(gone.st_rdev)}:{os.minor(gone.st_rdev)}; the folder: xattr "
        f"user.overlay.opaque={opaque} and no trace of its old entries ({spike.told(shown)} in it); an ordinary user's "
        f"mknod of 0:0: {plain}, of 1:3: {spike.child(make_null, f'{folder}/made/null', user=True)}",
        zero and opaque == "y" and shown == [] and plain == "ok",
    )


def change(folder: str) -> None:
    """Delete a file; delete a folder with content and make it again empty."""
    over = f"{folder}/over"
    spike.overlay(f"{folder}/base", f"{folder}/store", over, ",userxattr")
    os.unlink(f"{over}/gone")
    os.unlink(f"{over}/dir/inside")
    os.rmdir(f"{over}/dir")
    os.mkdir(f"{over}/dir")


def make_zero(path: str) -> str:
    """Make the device that means 'deleted'."""
    return spike.refused(os.mknod, path, stat.S_IFCHR | 0o600, 0)


def make_null(path: str) -> str:
    """Make any other device."""
    return spike.refused(os.mknod, path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


if __name__ == "__main__":
    spike.main(QUESTION, trial)
