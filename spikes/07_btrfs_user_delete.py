"""Fact 7: how an ordinary user gets rid of a Btrfs snapshot."""

import os
import shutil

import spike

QUESTION = "can an ordinary user delete a Btrfs snapshot without the mount option user_subvol_rm_allowed?"
FILES = 5000


def by_user(pool: str) -> dict[str, str]:
    """Snapshot, make it read-only, and try each way to remove it."""
    spike.snapshot(f"{pool}/sub", f"{pool}/snap")
    spike.control(f"{pool}/snap", spike.SETFLAGS, bytearray((2).to_bytes(8, "little")))
    found = {"ioctl": spike.refused(spike.delete_subvolume, f"{pool}/snap")}
    found["write while read-only"] = spike.refused(spike.put, f"{pool}/snap/new", "")
    found["clear read-only"] = spike.refused(spike.control, f"{pool}/snap", spike.SETFLAGS, bytearray(8))
    shutil.rmtree(f"{pool}/snap/files")
    found["remove a foreign folder with content"] = spike.refused(shutil.rmtree, f"{pool}/snap/foreign")
    found["rmdir with it inside"] = spike.refused(os.rmdir, f"{pool}/snap")
    return found


def clean(pool: str) -> dict[str, str]:
    """The same where nothing foreign lies in the subvolume."""
    spike.snapshot(f"{pool}/sub", f"{pool}/snap2")
    spent = spike.milliseconds(shutil.rmtree, f"{pool}/snap2/files")
    return {"rmdir when emptied": spike.refused(os.rmdir, f"{pool}/snap2"), "ms": f"{spent:.0f}"}


def trial(folder: str) -> spike.Finding:
    """Fill a user's subvolume, once with a folder of root's in it."""
    pool = spike.disk(folder, "btrfs") + "/pool"
    spike.own(pool)
    spike.subvolume(f"{pool}/sub")
    spike.own(f"{pool}/sub", f"{pool}/sub/files")
    for number in range(FILES):
        spike.put(f"{pool}/sub/files/{number}", "x")
    os.mkdir(f"{pool}/sub/foreign")
    spike.put(f"{pool}/sub/foreign/file", "x")
    stuck = spike.child(by_user, pool, user=True)
    shutil.rmtree(f"{pool}/sub/foreign")
    freed = spike.child(clean, pool, user=True)
    took = freed.pop("ms")
    spike.run("mount", "-n", "-o", "remount,user_subvol_rm_allowed", f"{folder}/btrfs")
    allowed = spike.child(spike.refused, spike.delete_subvolume, f"{pool}/snap", user=True)
    return spike.Finding(
        f"not by ioctl: {spike.told(stuck)}; nothing foreign in it: {spike.told(freed)}, emptying {FILES} files took "
        f"{took} ms; with the option the ioctl gives {allowed}",
        list(stuck.values()) == ["EPERM", "EROFS", "ok", "EACCES", "ENOTEMPTY"]
        and freed == {"rmdir when emptied": "ok"}
        and allowed == "ok",
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
