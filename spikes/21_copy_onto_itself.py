"""Fact 21: copying a file onto itself through an alias empties it."""

import os
import shutil

import spike

QUESTION = "what becomes of a host file that is copied onto itself through another name, and what tells in advance?"


def copy(source: str, target: str) -> None:
    """Copy as many tools do: open the source, truncate the target, then read."""
    with open(source) as come, open(target, "w") as go:
        go.write(come.read())


def trial(folder: str) -> spike.Finding:
    """Through a bind mount, a hard link and a symlink."""
    left, same = {}, []
    for name in ("bind", "hard link", "symlink"):
        source, alias = f"{folder}/{name}", f"{folder}/alias of {name}"
        spike.put(source, "nameserver 192.0.2.1\n")
        if name == "bind":
            spike.put(alias, "")
            spike.bind(source, alias)
        else:
            (os.link if name == "hard link" else os.symlink)(source, alias)
        first, second = os.stat(source), os.stat(alias)
        same.append((first.st_dev, first.st_ino) == (second.st_dev, second.st_ino))
        copy(source, alias)
        left[name] = os.path.getsize(source)
    try:
        shutil.copyfile(f"{folder}/bind", f"{folder}/alias of bind")
        guarded = False
    except shutil.SameFileError:
        guarded = True
    return spike.Finding(
        f"it is emptied: bytes left {spike.told(left)}; device and inode are equal in advance: "
        f"{spike.told(all(same))}, which is what shutil.copyfile compares (it refused: {spike.told(guarded)})",
        set(left.values()) == {0} and all(same) and guarded,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
