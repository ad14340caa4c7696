"""Pools on filesystems that lack something: found before anything is made, named, with what helps (CASES 31)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from rigs import Disk, Person


@pytest.fixture(params=["overlay", "ramfs", "xfs without reflink", "ext2"])
def pool(request: Any, root: Person, ext4_disk: Disk) -> Iterator[tuple[str, str]]:
    """The kind of an unusual filesystem, and a pool on it."""
    kind, folder = request.param, ext4_disk.folder(root)
    place = f"{folder}/mounted"
    os.mkdir(place)
    if kind == "overlay":  # as inside a container
        for name in ("lower", "upper", "work"):
            os.mkdir(f"{folder}/{name}")
        layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
        subprocess.run(["mount", "-t", "overlay", "none", place, "-o", layers], check=True)
    elif kind == "ramfs":
        subprocess.run(["mount", "-t", "ramfs", "none", place], check=True)
    else:
        with open(f"{folder}/image", "wb") as image:
            image.truncate(320 << 20)
        maker = ["mkfs.ext2", "-q"] if kind == "ext2" else ["mkfs.xfs", "-q", "-m", "reflink=0"]
        subprocess.run([*maker, image.name], check=True)
        subprocess.run(["mount", "-o", "loop", image.name, place], check=True)
    os.mkdir(f"{place}/pool", 0o700)
    yield kind, f"{place}/pool"
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def project(root: Person, ext4_disk: Disk) -> str:
    folder = ext4_disk.folder(root)
    root.run(["sh", "-c", "echo one >a; ln a hard; ln -s a link; mkdir d; echo two >d/b"], cwd=folder, check=True)
    return folder


SHOW = "cat a hard link d/b && echo more >>a && rm d/b"


@pytest.mark.rig("root")
def test_a_copy_can_lie_on_each(hostfork: Any, root: Person, pool: tuple[str, str], project: str) -> None:
    done = hostfork(root, "run", "--pool", pool[1], "--private", ".:copy", "--name", "c", "--", "sh", "-c", SHOW,
                    cwd=project, check=0)  # fmt: skip
    assert done.stdout == "one\none\none\ntwo\n"
    assert hostfork(root, "diff", "c", check=0).stdout.split()[::2][:1] == ["M"]
    hostfork(root, "discard", "c", "--yes", check=0)
    assert not [files for _, _, files in os.walk(pool[1]) if files]


@pytest.mark.rig("root")
def test_what_lacks_is_named_and_another_pool_is_suggested(
    hostfork: Any, root: Person, pool: tuple[str, str], project: str
) -> None:
    """Reflink needs the source's disk; an overlay's upper folder needs whiteouts and attributes."""
    _kind, place = pool
    for word, why in ((":reflink", "is on another filesystem"), (":live", "cannot hold an upper folder")):
        done = hostfork(root, "run", "--pool", place, "--private", f".{word}", "--rm", "--", "sh", "-c", SHOW,
                        cwd=project)  # fmt: skip
        if word == ":live" and done.returncode == 0:
            assert done.stdout == "one\none\none\ntwo\n"  # this one has all that an upper folder needs
            continue
        assert done.returncode == 125
        assert "storage.unsupported" in done.stderr
        assert f"the pool {place}" in done.stderr
        assert why in done.stderr
        assert "--pool DIR names a folder on the disk of ." in done.stderr
        assert not [files for _, _, files in os.walk(place) if files]


@pytest.mark.rig("root")
def test_memory_is_no_pool_unless_it_is_named(hostfork: Any, root: Person, tmpfs_disk: Disk, project: str) -> None:
    """A state folder in memory would lose what was kept: refused with what helps; `--pool` means it."""
    place = tmpfs_disk.folder(root)
    os.chmod(place, 0o700)
    done = hostfork(root, "run", "--private", ".", "--", "true", cwd=project, env={"XDG_STATE_HOME": place})
    assert done.returncode == 125
    assert "lies in memory (tmpfs" in done.stderr
    assert "--pool DIR" in done.stderr
    hostfork(root, "run", "--pool", place, "--private", ".:copy", "--rm", "--", "true", cwd=project, check=0)
