"""Fact 27: where rename and RENAME_EXCHANGE from a pool work, and what they change."""

import os
from typing import Any

import spike

QUESTION = "where can rename and RENAME_EXCHANGE put a file in place, and what do they change?"


def exchange(first: str, second: str) -> None:
    """renameat2 with RENAME_EXCHANGE."""
    spike.check(spike.libc.renameat2(-100, first.encode(), -100, second.encode(), 2))


def both(first: str, second: str) -> tuple[str, str]:
    """What rename and exchange give between two existing files."""
    return spike.refused(exchange, first, second), spike.refused(os.rename, first, second)


def moved(place: str) -> str:
    """A user's move of a folder without write permission to another parent."""
    os.mkdir(f"{place}/to")
    os.makedirs(f"{place}/from/folder")
    os.chmod(f"{place}/from/folder", 0o555)
    beside = spike.refused(os.rename, f"{place}/from/folder", f"{place}/from/folder2")
    return f"{beside} beside, {spike.refused(os.rename, f'{place}/from/folder2', f'{place}/to/folder')} elsewhere"


def in_place(place: str) -> dict[str, Any]:
    """Exchange a new file with one that has a hard link and an open writer."""
    for name in ("new", "target"):
        spike.put(f"{place}/{name}", name)
    os.link(f"{place}/target", f"{place}/link")
    writer = os.open(f"{place}/target", os.O_WRONLY | os.O_APPEND)
    before = os.stat(f"{place}/new").st_ctime_ns
    exchange(f"{place}/new", f"{place}/target")
    os.write(writer, b"+late")
    found: dict[str, Any] = {"ctime changed": os.stat(f"{place}/target").st_ctime_ns != before}
    found["a late write lands in"] = "the displaced" if spike.get(f"{place}/new") == "target+late" else "the new"
    found["nlink"] = os.stat(f"{place}/target").st_nlink
    return found


def trial(folder: str) -> spike.Finding:
    """Across subvolumes, across two mounts of one filesystem, and within one."""
    top = spike.disk(folder, "btrfs")
    for name in ("one", "two"):
        spike.subvolume(f"{top}/{name}")
        spike.put(f"{top}/{name}/file", name)
    across = {"subvolumes": both(f"{top}/one/file", f"{top}/two/file")}
    os.mkdir(f"{folder}/bound")
    spike.put(f"{top}/one/second", "")
    spike.bind(f"{top}/one", f"{folder}/bound")
    across["two mounts"] = both(f"{top}/one/file", f"{folder}/bound/second")
    across["one mount"] = both(f"{top}/one/file", f"{top}/one/second")
    os.mkdir(f"{folder}/place")
    inside = in_place(f"{folder}/place")
    spike.own(f"{folder}/user")
    folders = spike.child(moved, f"{folder}/user", user=True)
    expected = {"subvolumes": ("EXDEV",) * 2, "two mounts": ("EXDEV",) * 2, "one mount": ("ok",) * 2}
    return spike.Finding(
        f"(exchange, rename): {spike.told(across)}; after an exchange in one mount: {spike.told(inside)}; a user's "
        f"folder of mode 0555: {folders}",
        across == expected
        and inside == {"ctime changed": True, "a late write lands in": "the displaced", "nlink": 1}
        and folders == "ok beside, EACCES elsewhere",
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs",))
