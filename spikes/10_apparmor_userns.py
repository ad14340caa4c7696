"""Fact 10: Ubuntu lets an ordinary process create a user namespace and then denies it all capabilities."""

import os

import spike

QUESTION = "can an ordinary process create a user namespace and use its capabilities?"
SETTING = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"


def make() -> str:
    """Only create the namespace."""
    return spike.refused(lambda: spike.check(spike.libc.unshare(spike.NEWUSER)))


def use(folder: str) -> str:
    """Create it, map the own number, make the mounts private and mount."""

    def steps() -> None:
        spike.enter(userns=True)
        spike.mount("tmpfs", folder, "tmpfs")

    return spike.refused(steps)


def trial(folder: str) -> spike.Finding:
    """Create and use one as an ordinary user; judge only where AppArmor's setting is on."""
    made, used = spike.child(make, user=True), spike.child(use, folder, user=True)
    answer = f"creating gives {made}, mounting in it {used}"
    if not os.path.exists(SETTING):
        raise spike.Missing(
            f"{answer}; this host has no {os.path.basename(SETTING)} | this kernel has no AppArmor restriction of user "
            "namespaces; run this file on Ubuntu 24.04 or newer"
        )
    if spike.get(SETTING).strip() == "0":
        raise spike.Missing(f"{answer} | {SETTING} is 0; run this file where it is 1, as on a fresh Ubuntu 24.04")
    return spike.Finding(f"{answer}; {SETTING} is 1", (made, used != "ok") == ("ok", True))


if __name__ == "__main__":
    spike.main(QUESTION, trial)
