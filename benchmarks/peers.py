"""One fork of a project, by each mechanism and by other tools, whole commands in turn: `python benchmarks/peers.py`.

Root makes a fresh filesystem of each kind with a project of `--files` small files and runs `true` in a fork of it. For
hostfork's rows the time of preparing and of releasing stands beside, as `--result` tells them: for a Btrfs snapshot and
a frozen overlay that is the bar of 20 ms, equal for 1,000 and 100,000 files (`--files 1000 100000`). Other tools are
measured where their programs are found; bubblewrap gets a root folder of its own (`--tree`, such as debootstrap's).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

from release import disk, make_source

FORKS = {"btrfs": ("btrfs", "overlay", "reflink", "live"), "xfs": ("reflink", "live"), "ext4": ("copy", "live")}
"""What is worth measuring on each filesystem; `overlay` is over a frozen snapshot."""
WARM = 2


def main() -> int:
    """Measure and print; status 1 where a snapshot or a frozen overlay takes longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[1_000])
    parser.add_argument("--kinds", nargs="+", default=list(FORKS), choices=list(FORKS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--where", default="/var/tmp", help="where the disks' files are made")
    parser.add_argument("--tree", help="a root folder for bubblewrap")
    parser.add_argument("--limit", type=float, default=20.0, help="ms for preparing, and for releasing, a snapshot")
    asked = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, {asked.rounds} rounds; medians in ms")
    held = True
    for kind in asked.kinds:
        with disk(kind, asked.where) as place:
            for files in asked.files:
                held = one_project(kind, place, files, asked) and held
    return 0 if held else 1


def one_project(kind: str, place: str, files: int, asked: argparse.Namespace) -> bool:
    """All tools on one project, one after the other in each round."""
    home = f"{place}/{files}"
    os.mkdir(home, 0o700)
    os.environ.update(HOME=home, XDG_STATE_HOME=f"{home}/state")
    source = make_source(home, files)
    commands = others(kind, source, home, asked.tree) | ours(kind, source, home)
    times: dict[str, list[float]] = {name: [] for name in commands}
    phases: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(asked.rounds + WARM):
        for name, argv in commands.items():
            start = time.perf_counter()
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if number >= WARM:
                times[name].append((time.perf_counter() - start) * 1000)
                phases[name] += told(f"{home}/result") if name.startswith("hostfork") else []
    print(f"\n{kind}, {files:,} files" + " " * 24 + "whole   prepare   release")
    held = True
    for name, found in times.items():
        line = f"{name:40}{statistics.median(found):8.1f}"
        if phases[name]:
            prepare, release = (statistics.median(column) for column in zip(*phases[name], strict=True))
            line += f"{prepare:10.1f}{release:10.1f}"
            held = held and (
                name not in ("hostfork :btrfs", "hostfork :overlay") or max(prepare, release) <= asked.limit
            )
        print(line)
    return held


def told(result: str) -> list[tuple[float, float]]:
    """Milliseconds of preparing and releasing in one run."""
    with open(result, encoding="utf-8") as file:
        timings = json.load(file)["timings"]
    return [(timings["prepare"] * 1000, timings["release"] * 1000)]


def ours(kind: str, source: str, home: str) -> dict[str, list[str]]:
    """hostfork by each mechanism."""
    hostfork = os.path.join(os.path.dirname(sys.executable), "hostfork")
    return {
        f"hostfork :{fork}": [hostfork, "run", "--rm", "--result", f"{home}/result", "--private", f"{source}:{fork}",
                              "--", "true"]
        for fork in FORKS[kind]
    }  # fmt: skip


def others(kind: str, source: str, home: str, tree: str | None) -> dict[str, list[str]]:
    """What others would use, as far as it is here."""
    copy = f"{home}/copy"
    found = {
        "true": ["true"],
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "cp -a; true; rm -rf": ["sh", "-c", f"cp -a {source} {copy} && true && rm -rf {copy}"],
    }
    if kind != "ext4":
        found["cp -a --reflink=always; true; rm -rf"] = [
            "sh", "-c", f"cp -a --reflink=always {source} {copy} && true && rm -rf {copy}",
        ]  # fmt: skip
    if kind == "btrfs":
        found["btrfs subvolume snapshot; true; delete"] = [
            "sh", "-c", f"btrfs subvolume snapshot {source} {copy} && true && btrfs subvolume delete {copy}",
        ]  # fmt: skip
    containerexec = shutil.which("containerexec", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    if containerexec:
        found["containerexec --overlay-dir"] = [
            containerexec, "--quiet", "--keep-system-config", "--network-access", "--keep-tmp", "--dir", source,
            "--full-access-dir", "/", "--overlay-dir", source, "--", "true",
        ]  # fmt: skip
    if shutil.which("git") and make_repository(source, home):
        found["git worktree add; true; remove"] = [
            "sh", "-c", f"git -C {home}/repository worktree add -q --detach {copy} && true && "
                        f"git -C {home}/repository worktree remove --force {copy}",
        ]  # fmt: skip
    if tree and shutil.which("bwrap") and "--overlay-src" in subprocess.getoutput("bwrap --help"):
        for name in ("up", "work"):
            os.makedirs(f"{home}/{name}", exist_ok=True)
        os.makedirs(f"{tree}{source}", exist_ok=True)
        found["bwrap --overlay-src"] = [
            "bwrap", "--bind", tree, "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "--overlay-src", source,
            "--overlay", f"{home}/up", f"{home}/work", source, "--", "true",
        ]  # fmt: skip
    return found


def make_repository(source: str, home: str) -> bool:
    """Put the project's files into a repository beside it; False where there are so many that this takes minutes."""
    place = f"{home}/repository"
    if len(os.listdir(source)) > 500:
        return False
    shutil.copytree(source, place)
    name = ["-c", "user.name=b", "-c", "user.email=b@example.invalid"]
    for words in (["init", "-q"], ["add", "-A"], [*name, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", place, *words], check=True)
    return True


if __name__ == "__main__":
    raise SystemExit(main())
