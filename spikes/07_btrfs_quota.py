"""Fact 7, second half: quota groups make many snapshots slow."""

import spike

QUESTION = "do Btrfs quota groups make many snapshots slower?"
FILES, SNAPSHOTS = 3000, 60


def fork_all(top: str, name: str) -> None:
    """Make snapshots with a change in each, and write it all out."""
    for number in range(SNAPSHOTS):
        spike.snapshot(f"{top}/sub", f"{top}/{name}{number}")
        spike.put(f"{top}/{name}{number}/{number}", "changed")
    spike.run("sync", "-f", top)


def trial(folder: str) -> spike.Finding:
    """Without quotas, then with them on the same filesystem."""
    top = spike.disk(folder, "btrfs", 800)
    spike.subvolume(f"{top}/sub")
    for number in range(FILES):
        spike.put(f"{top}/sub/{number}", "x" * 3000)
    spike.run("sync", "-f", top)
    plain = spike.milliseconds(fork_all, top, "plain")
    spike.run("btrfs", "quota", "enable", top)
    spike.run("btrfs", "quota", "rescan", "-w", top)
    quota = spike.milliseconds(fork_all, top, "quota")
    return spike.Finding(
        f"yes: {SNAPSHOTS} snapshots of {FILES} files with a change in each take {plain:.0f} ms without quotas and "
        f"{quota:.0f} ms with them",
        quota > 2 * plain,
    )


if __name__ == "__main__":
    spike.main(QUESTION, trial, tools=("mkfs.btrfs", "btrfs"))
