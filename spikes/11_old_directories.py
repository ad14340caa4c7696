"""Fact 11: what a process holds from before reaches past a new view."""

import os

import spike

QUESTION = "do an old working directory and an inherited directory descriptor read the host's tree in a new view?"


def view(folder: str, handle: int) -> dict[str, str]:
    """Put a private tree over the folder in a new mount namespace, then look by each way."""
    spike.bind(f"{folder}/private", f"{folder}/tree")
    found = {"path": spike.get(f"{folder}/tree/file"), "old working directory": spike.get("file")}
    with open(os.open("file", os.O_RDONLY, dir_fd=handle)) as file:
        found["old descriptor"] = file.read()
    os.chdir(f"{folder}/tree")
    found["working directory entered again"] = spike.get("file")
    return found


def trial(folder: str) -> spike.Finding:
    """Stand in the folder with a descriptor of it, as root and as a user."""
    for name, text in (("tree", "host"), ("private", "private")):
        os.mkdir(f"{folder}/{name}")
        spike.put(f"{folder}/{name}/file", text)
    os.chdir(f"{folder}/tree")
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    root = spike.child(view, folder, handle, mounts=True)
    user = spike.child(view, folder, handle, user=True, userns=True)
    return spike.Finding(
        f"yes: {spike.told(root)}", root == user and list(root.values()) == ["private", "host", "host", "private"]
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
