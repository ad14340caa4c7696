"""A Debian of its own on a disk of its own, with hostfork in it, to install packages in without a network.

The tree is that of `systemd_rig`, copied. Each command runs as its root, or as a user of it, in mount and PID
namespaces that end with it: what is `/` there is the disk. On Btrfs `/`, /home and /var/log are subvolumes, as
installers make them.
"""

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterator

from blake3 import blake3

import rigs
from rigs import Disk, Person
from systemd_rig import PATH, UID, kept_tree
from test_packaging import ROOT, build

STATE = "/root/.local/state/hostfork"
_SUBVOLUMES = {"@": "", "@home": "home", "@log": "var/log"}

_ENTER = """
root=$1 device=$2 user=$3 script=$4
shift 4
mkdir -p "$root"
[ $# -gt 0 ] || mount "$device" "$root"
for pair; do mount -o "subvol=${pair%%=*}" "$device" "$root/${pair#*=}"; done
cd "$root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mkdir -m 1777 run/lock
mkdir -p run/user/1000
mount -t tmpfs -o mode=700,uid=1000 tmpfs run/user/1000
pivot_root . mnt
umount -l /mnt
home=/root
[ "$user" = root ] || home=/home/$user
exec chroot . setpriv --reuid="$user" --regid="$user" --init-groups --inh-caps=-all \
    env -i HOME="$home" USER="$user" LANG=C.UTF-8 PATH="$PATH" PYTHONDONTWRITEBYTECODE=1 \
    DEBIAN_FRONTEND=noninteractive sh -euc 'cd; eval "$1"' sh "$script"
"""


class System:
    """One. `place` shows its files from outside, hostfork's state folder too."""

    def __init__(self, disk: Disk, root: Person) -> None:
        self._disk, self._root = disk, root
        self._subvolumes = _SUBVOLUMES if disk.kind == "btrfs" else {}
        self.place = f"{disk.path}/@" if self._subvolumes else disk.path
        self._device = next(
            line.split(" - ")[1].split(" ")[1] for line in rigs.mountinfo() if line.split(" ")[4] == disk.path
        )
        for name in self._subvolumes:
            _do("btrfs", "subvolume", "create", f"{disk.path}/{name}")
        tree, lock = kept_tree()
        try:
            _do("cp", "-a", f"{tree}/.", self.place)
        finally:
            os.close(lock)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(f"{self.place}/lost+found")
        if self._subvolumes:  # as systemd makes it
            _do("btrfs", "subvolume", "create", f"{self.place}/var/lib/machines")
        wheel = build("wheel", ROOT, f"{self.place}/root")
        self._inside("/opt/hostfork/bin/pip", "install", "--quiet", "--no-deps", "--no-index",
                     f"/root/{os.path.basename(wheel)}")  # fmt: skip
        os.unlink(wheel)
        os.mkdir(f"{disk.path}/@home/ana" if self._subvolumes else f"{disk.path}/home/ana")
        os.chown(f"{disk.path}/@home/ana" if self._subvolumes else f"{disk.path}/home/ana", UID, UID)

    def package(self, name: str, version: int, files: dict[str, str], **scripts: str) -> None:
        """Make /root/NAME_VERSION.deb; `files` by their paths without the first slash, all of /etc configuration."""
        folder = f"{self.place}/root/{name}"
        control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@example.org>\n"
        meta = {"DEBIAN/control": control + "Description: a trial\n"}
        meta |= {f"DEBIAN/{script}": f"#!/bin/sh\nset -e\n{text}\n" for script, text in scripts.items()}
        conffiles = "".join(f"/{path}\n" for path in files if path.startswith("etc/"))
        if conffiles:
            meta["DEBIAN/conffiles"] = conffiles
        rigs.write_files(folder, meta | files)
        self._inside("dpkg-deb", "--root-owner-group", "--build", f"/root/{name}", f"/root/{name}_{version}.deb")
        rigs.remove_tree(folder)

    def run(self, script: str, *, user: str = "root", check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a shell script, in the home folder."""
        namespaces = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
        pairs = [f"{name}={place}" for name, place in self._subvolumes.items()]
        root = os.path.join(os.path.dirname(self._disk.path), "root-of-" + os.path.basename(self._disk.path))
        command = ["unshare", *namespaces, "sh", "-euc", _ENTER, "sh", root, self._device, user, script, *pairs]
        return self._root.run(command, cwd="/", env={"PATH": PATH}, check=check)

    def manifest(self) -> dict[str, tuple[object, ...]]:
        """Every entry but hostfork's own: BLAKE3 or link, mode, owners, size, links, times, attributes."""
        places = [f"{self._disk.path}/{name}" for name in self._subvolumes] or [self.place]
        skip = f"{self.place}{STATE}"
        return {path: _entry(path) for place in places for path in _walk(place, skip)}

    def changed_since(self, before: dict[str, tuple[object, ...]]) -> list[str]:
        """The entries that are not as in that manifest."""
        now = self.manifest()
        return [path for path in sorted({*before, *now}) if before.get(path) != now.get(path)]

    def _inside(self, *command: str) -> None:
        _do("chroot", self.place, *command)


def _walk(place: str, skip: str) -> Iterator[str]:
    for folder, names, files in os.walk(place):
        if folder == skip:
            names.clear()
            continue
        yield folder
        yield from (os.path.join(folder, name) for name in files)
        yield from (path for path in (os.path.join(folder, name) for name in names) if os.path.islink(path))


def _entry(path: str) -> tuple[object, ...]:
    found = os.lstat(path)
    content: object = None
    if stat.S_ISREG(found.st_mode):
        with open(path, "rb") as file:
            content = blake3(file.read()).hexdigest()
    elif stat.S_ISLNK(found.st_mode):
        content = os.readlink(path)
    names = sorted(os.listxattr(path, follow_symlinks=False))
    attributes = tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return (
        content, found.st_mode, found.st_uid, found.st_gid, found.st_rdev, size, found.st_nlink, found.st_mtime_ns,
        found.st_ctime_ns, attributes,
    )  # fmt: skip


def _do(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={"PATH": PATH})
    assert done.returncode == 0, (command, done)
