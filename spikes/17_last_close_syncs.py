"""Fact 17: the last close of a plain overlay syncs the upper folder's whole filesystem."""

import os

import spike

QUESTION = "does the end of an overlay write out what others have dirty on the upper folder's filesystem?"
SIZE = 100 << 20


def end(disk: str, name: str, *flags: str) -> tuple[int, int, float]:
    """Dirty pages of somebody's file before and after the last close of an overlay, and how long the close took."""
    other = f"{disk}/other-{name}"
    with open(other, "wb") as file:
        file.write(b"x" * SIZE)
    tree = spike.detached_overlay(f"{disk}/base", f"{disk}/store-{name}", *flags)
    os.close(os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=tree))
    before = spike.cached(other)[1]
    took = spike.milliseconds(os.close, tree)
    after = spike.cached(other)[1]
    os.unlink(other)
    return before, after, took


def trial(folder: str) -> spike.Finding:
    """Plain, then volatile, each with 100 MB dirty by somebody else."""
    disk = spike.disk(folder, "ext4", 900)
    os.mkdir(f"{disk}/base")
    for number in range(5):
        plain = end(disk, f"plain{number}")
        if plain[0] > 0:
            break
    for number in range(5):  # again if a sync(2) of anybody on this host came in between
        volatile = end(disk, f"volatile{number}", "volatile")
        if volatile[1] > 0:
            break
    return spike.Finding(
        f"plain yes: {plain[0]} dirty pages before the last close, {plain[1]} after it, {plain[2]:.0f} ms; volatile "
        f"no: {volatile[0]} before, {volatile[1]} after, {volatile[2]:.1f} ms",
        plain[0] > 0 and plain[1] == 0 and volatile[0] > 0 and volatile[1] > 0,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.ext4",))
