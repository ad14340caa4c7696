"""Fact 30: an overlay over idmapped layers."""

import os
import signal

import spike

QUESTION = "where must an overlay over idmapped layers be mounted so that it can be written?"
FIRST = 300000


def namespace() -> tuple[int, int]:
    """A process that holds a user namespace with 65536 numbers, and the namespace's descriptor."""
    come, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        spike.libc.prctl(1, signal.SIGKILL)
        spike.check(spike.libc.unshare(spike.NEWUSER))
        os.write(go, b"x")
        signal.pause()
    os.read(come, 1)
    for name in ("uid_map", "gid_map"):
        spike.put(f"/proc/{pid}/{name}", f"0 {FIRST} 65536")
    return pid, os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)


def idmapped(path: str, target: str, handle: int) -> None:
    """Attach an idmapped clone."""
    os.mkdir(target)
    tree = spike.clone_tree(path)
    spike.set_attributes(tree, "", spike.ATTR_IDMAP, spike.AT_EMPTY_PATH, handle)
    spike.attach(tree, target)


def writes(folder: str, store: str, handle: int) -> list[str]:
    """Mount here, or within the namespace if its descriptor is given, and write a file."""
    if handle >= 0:
        spike.check(spike.libc.setns(handle, spike.NEWUSER))
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        spike.check(spike.libc.unshare(spike.NEWNS))
    made = spike.refused(
        spike.overlay, f"{folder}/base-mapped", f"{folder}/pool-mapped/{store}", f"{folder}/over", ",userxattr"
    )
    written = spike.refused(spike.put, f"{folder}/over/file", "new")
    return [made, "read-only" if os.statvfs(f"{folder}/over").f_flag & os.ST_RDONLY else "writable", written]


def trial(folder: str) -> spike.Finding:
    """Idmap clones of base and pool, then mount outside and inside."""
    disk = spike.disk(folder, "ext4", 64)
    pid, handle = namespace()
    for name in ("base", "pool/out/upper", "pool/out/work", "pool/in/upper", "pool/in/work", "over"):
        os.makedirs(f"{disk}/{name}")
    spike.put(f"{disk}/base/file", "old")
    for name in ("base", "pool"):
        idmapped(f"{disk}/{name}", f"{disk}/{name}-mapped", handle)
    outside = spike.child(writes, disk, "out", -1, mounts=True)
    inside = spike.child(writes, disk, "in", handle)
    owner = os.stat(f"{disk}/pool/in/upper/file").st_uid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return spike.Finding(
        f"in the user namespace: mount, state and write are {spike.told(inside)}, and the new file is {owner}'s on the "
        f"disk; outside they are {spike.told(outside)}",
        inside == ["ok", "writable", "ok"] and owner == 0 and outside == ["ok", "read-only", "EROFS"],
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.ext4",))
