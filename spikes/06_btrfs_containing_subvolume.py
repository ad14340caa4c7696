"""Fact 6: a snapshot of the containing Btrfs subvolume makes any folder in it a snapshot."""

import os

import spike

QUESTION = "can an ordinary folder on Btrfs become a snapshot at its own path, and for whom?"


def as_user(home: str, pool: str) -> dict[str, str]:
    """A user's snapshot of a subvolume whose root is root's, and of an own one; and a reflink instead."""
    found = {"root-owned subvolume": spike.refused(spike.snapshot, home, f"{pool}/snap-user")}
    spike.subvolume(f"{pool}/mine")
    found["own subvolume"] = spike.refused(spike.snapshot, f"{pool}/mine", f"{pool}/snap-mine")
    spike.put(f"{pool}/clone", "")
    with open(f"{home}/proj/file") as source, open(f"{pool}/clone", "r+") as target:
        import fcntl

        found["reflink"] = spike.refused(fcntl.ioctl, target.fileno(), spike.FICLONE, source.fileno())
    return found


def trial(folder: str) -> spike.Finding:
    """Snapshot a subvolume that holds a project and a nested subvolume, and bind the project's folder over it."""
    top = spike.disk(folder, "btrfs")
    home, pool = f"{top}/home", f"{top}/pool"
    spike.subvolume(home)
    spike.own(pool)
    os.mkdir(f"{home}/proj")
    spike.put(f"{home}/proj/file", "before" * 1000)
    spike.subvolume(f"{home}/proj/nested")
    spike.put(f"{home}/proj/nested/inside", "x")
    host_device = os.stat(f"{home}/proj").st_dev
    took = spike.milliseconds(spike.snapshot, home, f"{pool}/snap")
    spike.bind(f"{pool}/snap/proj", f"{home}/proj")
    spike.put(f"{home}/proj/file", "private")
    spike.umount(f"{home}/proj")
    kept = spike.get(f"{home}/proj/file").startswith("before")
    nested = os.listdir(f"{pool}/snap/proj/nested")
    other_device = os.stat(f"{pool}/snap/proj").st_dev != host_device
    spike.own(f"{folder}/tmp")
    spike.overlay(home, f"{pool}/store", f"{folder}/over")
    overlay_device = os.stat(f"{folder}/over/proj/file").st_dev != os.stat(f"{home}/proj/file").st_dev
    user = spike.child(as_user, home, pool, user=True)
    return spike.Finding(
        f"yes: root's snapshot took {took:.1f} ms, a write at the original path stayed in it: {spike.told(kept)}, the "
        f"nested subvolume in it holds {spike.told(nested)}, st_dev differs: {spike.told(other_device)} (overlay too: "
        f"{spike.told(overlay_device)}); a user: {spike.told(user)}",
        kept
        and nested == []
        and other_device
        and overlay_device
        and user == {"root-owned subvolume": "EPERM", "own subvolume": "ok", "reflink": "ok"},
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
