"""Fact 23: generations of a baseline as overlay layers, and what their marks mean."""

import os
import stat

import spike

QUESTION = "can a user stack generations of layers, and what do the wrong marks, or marks in the base, do?"


def layer(folder: str) -> str:
    """Write a younger layer by hand as a user: one file changed, one deleted, one folder made anew."""
    os.makedirs(f"{folder}/young/dir")
    spike.put(f"{folder}/young/changed", "new")

    def marks() -> None:
        os.mknod(f"{folder}/young/deleted", stat.S_IFCHR, 0)
        os.setxattr(f"{folder}/young/dir", "user.overlay.opaque", b"y")

    return spike.refused(marks)


def shown(folder: str, option: str) -> list[str]:
    """What an overlay over both layers shows."""
    store = f"{folder}/store{len(option)}"
    spike.overlay(f"{folder}/young:{folder}/old", store, f"{folder}/over", option)
    found = sorted(os.listdir(f"{folder}/over")) + sorted(os.listdir(f"{folder}/over/dir"))
    return [*found, spike.get(f"{folder}/over/changed")]


def own_marks(folder: str) -> list[str]:
    """What a base that holds a 0:0 device and an overlay xattr of its own shows as a lower folder."""
    spike.overlay(f"{folder}/marked", f"{folder}/store-marked", f"{folder}/over", ",userxattr")
    return [name for name in ("device", "dir") if name not in os.listdir(f"{folder}/over")] + [
        f"xattr {'kept' if 'user.overlay.opaque' in os.listxattr(f'{folder}/over/dir') else 'hidden'}"
    ]


def trial(folder: str) -> spike.Finding:
    """Stack two layers as a user and as root, with the right and the wrong kind of marks."""
    spike.own(folder, f"{folder}/old", f"{folder}/old/dir", f"{folder}/over", f"{folder}/marked/dir")
    for name in ("changed", "deleted", "dir/inside"):
        spike.put(f"{folder}/old/{name}", "old")
    os.mknod(f"{folder}/marked/device", stat.S_IFCHR | 0o600, 0)
    os.setxattr(f"{folder}/marked/dir", "user.overlay.opaque", b"y")
    made = spike.child(layer, folder, user=True)
    user = spike.child(shown, folder, ",userxattr", user=True, userns=True)
    root = spike.child(shown, folder, ",userxattr", mounts=True)
    wrong = spike.child(shown, folder, "", mounts=True)
    lost = spike.child(own_marks, folder, mounts=True)
    return spike.Finding(
        f"a user's hand-made layer: {made}, shows {spike.told(user)}; root with userxattr {spike.told(root)}; without "
        f"it {spike.told(wrong)} and no error; a base with a 0:0 device and an overlay xattr of its own loses: "
        f"{spike.told(lost)}",
        made == "ok"
        and user == root == ["changed", "dir", "new"]
        and wrong == ["changed", "dir", "inside", "new"]
        and lost == ["device", "xattr hidden"],
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial)
