"""Policies for a whole system: which guarantee is taken, what is read-only instead, and `private-files` in a Debian."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rigs
from policy_rig import tmpfs
from rigs import Disk, Person, in_child

Run = Callable[..., Any]

# --- the first of several guarantees ---------------------------------------------------------------------------------

_EITHER = """
schema = 1
[[rule]]
path = "/"
access = "read-only"
[[rule]]
path = "~/proj"
access = "private"
first-of = ["btrfs", "live"]
otherwise = "read-only"
[[rule]]
path = "~/work"
access = "private"
first-of = ["btrfs", "live"]
"""


def _home_with_either(disk: Disk, person: Person) -> str:
    """A home on that disk with a project, another folder, and a policy for both."""
    home = disk.folder(person)
    for name in ("proj", "proj/mnt", "work"):
        os.mkdir(f"{home}/{name}")
    Path(f"{home}/proj/a").write_text("a\n")
    Path(f"{home}/either.toml").write_text(_EITHER)
    for folder, _, files in os.walk(home):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            os.chown(path, person.uid, person.gid)
    return home


def _at(home: str) -> dict[str, str]:
    return {"HOME": home, "XDG_STATE_HOME": f"{home}/.state"}


@pytest.mark.parametrize("kind", ["ext4", "btrfs"])
def test_the_first_guarantee_that_can_be_had_is_taken(
    hostfork: Run, root: Person, kind: str, request: pytest.FixtureRequest
) -> None:
    home = _home_with_either(request.getfixturevalue(f"{kind}_disk"), root)
    done = hostfork(
        root, "run", "--rm", "--policy", f"{home}/either.toml", "--result", f"{home}/result", "--", "sh", "-c",
        "echo b >proj/a; cat proj/a; touch other", cwd=home, env=_at(home), check=1,
    )  # fmt: skip
    assert done.stdout == "b\n"
    assert "Read-only" in done.stderr
    assert Path(f"{home}/proj/a").read_text() == "a\n"
    taken = {path["path"]: (path["mechanism"], path["guarantee"]) for path in _json(f"{home}/result")["paths"]}
    wanted = ("btrfs", "snapshot") if kind == "btrfs" else ("overlay", "live")
    assert taken == {f"{home}/proj": wanted, f"{home}/work": wanted}


def _json(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _with_a_mount(point: str, run: Callable[[], Any]) -> Any:
    def child() -> Any:
        rigs._check(rigs._libc.unshare(rigs.CLONE_NEWNS), "unshare")
        rigs._check(rigs._libc.mount(b"none", b"/", None, rigs.MS_REC | rigs.MS_SLAVE, None), "mount")
        tmpfs(point)
        return run()

    return in_child(child)


@pytest.mark.rig("root")
def test_what_cannot_be_private_is_read_only(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    """The kernel lays no overlay over a folder with a host mount beneath it for an ordinary user."""
    home = _home_with_either(ext4_disk, user)
    script = "cat proj/a; echo b >work/b; echo b >proj/a"

    def run(*args: str, check: int) -> Any:
        done = hostfork(user, *args, cwd=home, env=_at(home), check=check)
        return done.stdout, done.stderr

    policy = ("--policy", f"{home}/either.toml")
    out, err = _with_a_mount(f"{home}/proj/mnt", lambda: run("run", "--rm", *policy, "--", "sh", "-c", script, check=2))
    assert out == "a\n"
    assert "proj/a: Read-only" in err
    plan = json.loads(_with_a_mount(f"{home}/proj/mnt", lambda: run("plan", *policy, "--json", check=0))[0])
    (path,) = (path for path in plan["paths"] if path["path"] == f"{home}/proj")
    assert (path["access"], path["mechanism"]) == ("read-only", None)
    assert any("mounted beneath it" in refusal["reason"] for refusal in path["refused"])
    assert any(notice["kind"] == "not-private" and notice["path"] == path["path"] for notice in plan["notices"])


@pytest.mark.rig("root")
def test_host_mounts_are_read_only_where_all_else_is(hostfork: Run, root: Person, ext4_disk: Disk) -> None:
    home = _home_with_either(ext4_disk, root)
    policy = ("--rm", "--policy", f"{home}/either.toml")

    def run(*args: str) -> Any:
        done = hostfork(root, "run", *policy, *args, "--", "touch", "proj/mnt/x", cwd=home, env=_at(home))
        return done.returncode, done.stderr, os.listdir(f"{home}/proj/mnt")

    status, err, found = _with_a_mount(f"{home}/proj/mnt", run)
    assert (status, found) == (1, [])
    assert "Read-only" in err
    shared = _with_a_mount(f"{home}/proj/mnt", lambda: run("--shared", f"{home}/proj/mnt"))
    assert (shared[0], shared[2]) == (0, ["x"])
