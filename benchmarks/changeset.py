"""How long finding 20 changes in 100,000 files takes: an overlay's upper folder, a copy and Btrfs snapshots.

Run as root: `.venv/bin/python benchmarks/changeset.py [FOLDER]`. The snapshots are on a Btrfs in a file, mounted for
this run alone. Ratios are of one run, best of several rounds each, to a bare walk of the same tree.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from hostfork.collect.manifest import StatManifest, StatManifestWriter
from hostfork.collect.scan import scan_layer, scan_pair, scan_tree
from hostfork.collect.stamp import stamp
from hostfork.storage.btrfs import Btrfs
from hostfork.storage.contract import Source

FOLDERS, FILES, CHANGES, ROUNDS = 5000, 20, 20, 9
LAYER_BAR, TREE_BAR, TOUCHED_BAR = 0.010, 1.5, 0.020
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 1 << 14, 1 << 18


def make_project(root: str) -> None:
    """100,000 small files in 5,000 folders, with an ignore file."""
    for number in range(FOLDERS):
        folder = f"{root}/d{number % 500}/s{number // 500}"
        os.makedirs(folder)
        for file in range(FILES):
            with open(f"{folder}/f{file}.py", "wb") as content:
                content.write(b"x" * (file * 37))
    with open(f"{root}/.gitignore", "wb") as content:
        content.write(b"*.pyc\nnode_modules/\n/build/\n")


def change(root: str) -> None:
    """20 changes: created, modified, touched, deleted, renamed."""
    for number in range(CHANGES // 4):
        folder = f"{root}/d{number * 7}/s3"
        with open(f"{folder}/new.py", "wb") as content:
            content.write(b"new\n")
        with open(f"{folder}/f1.py", "ab") as content:
            content.write(b"more\n")
        os.unlink(f"{folder}/f2.py")
        os.chmod(f"{folder}/f3.py", 0o755)
        os.utime(f"{folder}/f4.py")


def bare_walk(folder: int) -> int:
    """What any stat walk must do: every folder opened and listed, every entry's stat."""
    count, folders = 0, []
    with os.scandir(folder) as entries:
        for entry in entries:
            count += 1
            if entry.stat(follow_symlinks=False).st_mode & 0o170000 == 0o040000:
                folders.append(entry.name)
    for name in folders:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        count += bare_walk(inner)
        os.close(inner)
    return count


def witness(writer: StatManifestWriter, source: bytes, copy: bytes, relative: bytes) -> None:
    """Tell the manifest about every entry, as a copying mechanism does."""
    one, two = os.lstat(os.path.join(source, relative)), os.lstat(os.path.join(copy, relative))
    writer.witness(relative, one, two)
    if one.st_mode & 0o170000 == 0o040000:
        for name in os.listdir(os.path.join(source, relative)):
            witness(writer, source, copy, relative + b"/" + name if relative else name)


def overlay(folder: str, base: str) -> str:
    """An upper folder with the changes in it, written through a real mount in a child's own namespace."""
    for name in ("upper", "work", "merged"):
        os.mkdir(f"{folder}/{name}")
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"lowerdir={base},upperdir={folder}/upper,workdir={folder}/work,userxattr"
        failed = libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        failed = failed or libc.mount(b"overlay", f"{folder}/merged".encode(), b"overlay", 0, options.encode())
        if not failed:
            change(f"{folder}/merged")
        os._exit(1 if failed else 0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("the overlay could not be mounted: run as root")
    return f"{folder}/upper"


def best(*measured: Callable[[], object]) -> list[float]:
    """Seconds of the fastest round of each; the rounds take turns, so that all meet the same load."""
    times: list[list[float]] = [[] for _ in measured]
    for _ in range(ROUNDS):
        for taken, function in zip(times, measured, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return [min(taken) for taken in times]


def main() -> int:
    """Measure, print, and answer whether both bars hold."""
    folder = tempfile.mkdtemp(prefix="hf-collect-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        base, copy = f"{folder}/base", f"{folder}/copy"
        os.mkdir(base)
        make_project(base)
        subprocess.run(["cp", "-a", base, copy], check=True)
        with StatManifestWriter(f"{folder}/manifest") as writer:
            witness(writer, base.encode(), copy.encode(), b"")
        change(copy)
        upper = overlay(folder, base)
        held = _report(folder, base, copy, upper)
        return 0 if _snapshots(folder) and held else 1
    finally:
        shutil.rmtree(folder)


def fresh(upper: str, base: str) -> float:
    """Seconds of the first scan in a process, its imports included; best of several processes."""
    code = (
        "import sys, time, click, hostfork.collect.scan as scan, hostfork.collect.layer; start = time.perf_counter();"
        "scan.scan_layer(sys.argv[1], sys.argv[2], sys.argv[2]); print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", code, upper, base]
    return min(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(ROUNDS))


def _report(folder: str, base: str, copy: str, upper: str) -> bool:
    first = fresh(upper, base)
    root = os.open(copy, os.O_RDONLY | os.O_DIRECTORY)
    layer, bare, load, tree = best(
        lambda: scan_layer(upper, base, base),
        lambda: bare_walk(root),
        lambda: StatManifest.load(f"{folder}/manifest"),
        lambda: scan_tree(copy, StatManifest.load(f"{folder}/manifest"), base, base),
    )
    os.close(root)
    size = os.stat(f"{folder}/manifest").st_size
    print(
        f"layer scan         {layer * 1e3:7.1f} ms   bar {LAYER_BAR * 1e3:.0f} ms; first in a process {first * 1e3:.1f}"
    )
    print(f"bare walk          {bare * 1e3:7.1f} ms")
    print(f"manifest load      {load * 1e3:7.1f} ms   {size / 1e6:.1f} MB")
    print(f"load and tree scan {tree * 1e3:7.1f} ms   {tree / bare:.2f} x the bare walk, bar {TREE_BAR}")
    return max(layer, first) <= LAYER_BAR and tree <= TREE_BAR * bare


def _snapshots(folder: str) -> bool:
    """The same changes in a snapshot, found by the touched paths, by stamps, and entry by entry."""
    image, disk = f"{folder}/image", f"{folder}/btrfs"
    os.mkdir(disk)
    with open(image, "wb") as file:
        file.truncate(2 << 30)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    # Reading a folder for the first time writes the time of that, which is a change to Btrfs.
    subprocess.run(["mount", "-o", "loop,noatime", image, disk], check=True)
    try:
        source, pool, storage = f"{disk}/source", f"{disk}/pool", Btrfs()
        subprocess.run(["btrfs", "-q", "subvolume", "create", source], check=True)
        make_project(source)
        os.mkdir(pool)
        storage.prepare("fork.0", Source(source), pool)
        since = stamp(pool).ctime_ns
        content = storage.content("fork.0", pool)
        change(content.tree)
        return _report_snapshots(storage, pool, content.tree, content.base or "", since)
    finally:
        subprocess.run(["umount", disk], check=True)


def _report_snapshots(storage: Btrfs, pool: str, tree: str, base: str, since: int) -> bool:
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    wanted = scan_pair(tree, base, tree)
    assert len(wanted.changes) == CHANGES
    assert wanted == scan_pair(tree, base, tree, since=since)
    assert wanted == scan_pair(tree, base, tree, touched=storage.touched("fork.0", pool))
    bare, walk, every = best(
        lambda: bare_walk(root),
        lambda: scan_pair(tree, base, tree, since=since),
        lambda: scan_pair(tree, base, tree),
    )
    os.close(root)
    (touched,) = best(lambda: scan_pair(tree, base, tree, touched=storage.touched("fork.0", pool), since=since))
    print(f"btrfs, touched     {touched * 1e3:7.1f} ms   bar {TOUCHED_BAR * 1e3:.0f} ms")
    print(f"bare walk          {bare * 1e3:7.1f} ms")
    print(f"btrfs, by stamps   {walk * 1e3:7.1f} ms   {walk / bare:.2f} x the bare walk, bar {TREE_BAR}")
    print(f"btrfs, every entry {every * 1e3:7.1f} ms   {every / bare:.2f} x the bare walk")
    return touched <= TOUCHED_BAR and walk <= TREE_BAR * bare


if __name__ == "__main__":
    raise SystemExit(main())
