"""Policies for a whole system: which guarantee is taken, what is read-only instead, and `private-files` in a Debian."""

import errno
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rigs
from policy_rig import tmpfs
from rigs import Bench, Disk, Person, in_child

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


# --- `private-files` in a Debian of its own --------------------------------------------------------------------------

_CAPABILITY = "0100000200200000000000000000000000000000"
"""cap_net_raw=p as setcap(8) writes it."""

_POSTINST = f"""
adduser --quiet --system --group --home /var/lib/hf-new --no-create-home hfnew
chown hfnew:hfnew /var/lib/hf-new
chmod 4755 /usr/bin/hf-new
python3 -c 'import os; os.setxattr("/usr/bin/hf-cap", "security.capability", bytes.fromhex("{_CAPABILITY}"))'
ln -f /usr/share/hf-new/a /usr/share/hf-new/b
mkdir -p /run/hf-new
ldconfig
systemctl daemon-reload
systemctl enable hf-new.service
deb-systemd-invoke start hf-new.service
"""
_UNIT = "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n"

_INSTALL = """
apt-get install -y --allow-downgrades ./hf-old_2.deb ./hf-new_1.deb </dev/null >apt.log 2>&1 || { cat apt.log; exit 1; }
[ -z "$(dpkg --audit)" ]
[ -z "$(dpkg --verify hf-old hf-new)" ]
test -u /usr/bin/hf-new
[ "$(stat -c %U /var/lib/hf-new) $(stat -c %h /usr/share/hf-new/a)" = "hfnew 2" ]
python3 -c 'import os; print(os.getxattr("/usr/bin/hf-cap", "security.capability").hex())'
test -L /usr/share/hf-old/folder
mv /etc/skel /etc/skel.moved
touch /outside /mnt/outside 2>&1 | sort || true
apt-get remove -y hf-old </dev/null >>apt.log 2>&1
test ! -e /usr/bin/hf-old
dpkg --configure -a
"""


@pytest.fixture
def system(request: pytest.FixtureRequest, make_disk: Callable[..., Disk], root: Person, leaves_nothing: None) -> Any:
    """A Debian in which one package is installed; another one, and a newer one of that, lie in root's home."""
    from system_rig import System

    found = System(make_disk(request.param, 1500), root)
    old = {"usr/bin/hf-old": "#!/bin/sh\n", "usr/share/hf-old/gone": "x\n", "usr/share/hf-old/other/": ""}
    found.package("hf-old", 1, old | {"usr/share/hf-old/folder/x": "x\n", "etc/hf-old.conf": "one\n"})
    moved = 'dpkg-maintscript-helper dir_to_symlink /usr/share/hf-old/folder other 2~ hf-old -- "$@"'
    del old["usr/share/hf-old/gone"]
    found.package("hf-old", 2, old | {"etc/hf-old.conf": "two\n"}, preinst=moved, postinst=moved, postrm=moved)
    files = dict.fromkeys(("usr/bin/hf-new", "usr/bin/hf-cap"), "#!/bin/sh\n")
    files |= {"usr/share/hf-new/a": "a\n", "var/lib/hf-new/": "", "usr/lib/systemd/system/hf-new.service": _UNIT}
    found.package("hf-new", 1, files, postinst=_POSTINST)
    # The first run makes hostfork's own folders; the state folder lies in the private /root.
    found.run("dpkg -i hf-old_1.deb && hostfork run --rm --policy private-files -- true && ldconfig && sync")
    return found


KINDS = pytest.mark.parametrize("system", ["ext4", "btrfs"], indirect=True)


@pytest.mark.slow
@pytest.mark.rig("root", "systemd")
@KINDS
def test_an_installation_is_tried_and_thrown_away(system: Any) -> None:
    """By apt: folders of the base are moved, users made, set-uid programs, capabilities, links and units installed."""
    before = system.manifest()
    assert len(before) > 5000
    done = system.run(f"hostfork run --name trial --policy private-files -- sh -euc {shlex.quote(_INSTALL)}")
    assert done.stdout.splitlines() == [
        _CAPABILITY,
        "touch: cannot touch '/mnt/outside': Read-only file system",
        "touch: cannot touch '/outside': Read-only file system",
    ]
    entries = json.loads(system.run("hostfork diff trial --json").stdout)["entries"]
    changed = {entry["path"]: entry["change"] for entry in entries}
    wanted = {
        "/usr/bin/hf-new": "created", "/usr/share/hf-old/folder": "type", "/usr/share/hf-old/gone": "deleted",
        "/usr/bin/hf-old": "deleted", "/etc/hf-old.conf": "modified", "/etc/passwd": "modified",
        "/etc/skel": "deleted", "/etc/skel.moved": "created", "/var/lib/dpkg/status": "modified",
        "/etc/systemd/system/multi-user.target.wants/hf-new.service": "created", "/run/hf-new": "created",
        "/root/apt.log": "created", "/var/log/apt/history.log": "created",
    }  # fmt: skip
    assert {path: changed.get(path) for path in wanted} == wanted
    assert not [path for path in changed if path.startswith("/root/.local")]  # hostfork's own folders
    system.run("hostfork discard trial --yes")
    assert json.loads(system.run("hostfork list --json").stdout)["forks"] == []
    assert system.changed_since(before) == []


@pytest.mark.slow
@pytest.mark.rig("root", "systemd")
@KINDS
def test_an_installation_is_killed(system: Any) -> None:
    """SIGKILL of hostfork in the middle: recovery keeps what was done, and the host is as before."""
    before = system.manifest()
    inside = "dpkg --unpack hf-new_1.deb >/dev/null; echo unpacked; sleep 1000"
    done = system.run(
        "mkfifo /run/said; sleep 1000 <>/run/said &\n"
        f"hostfork run --name killed --policy private-files -- sh -c {shlex.quote(inside)} >/run/said & owner=$!\n"
        "read _ </run/said; kill -KILL $owner; wait $owner || echo $?; hostfork recover >/dev/null\n"
        "ls /usr/bin/hf-new 2>/dev/null || echo none; hostfork diff killed --json; hostfork discard killed --yes >&2"
    )
    status, mark, document = done.stdout.partition("{")
    assert status.split() == ["137", "none"]
    changed = {entry["path"]: entry["change"] for entry in json.loads(mark + document)["entries"]}
    assert (changed["/usr/bin/hf-new"], changed["/var/lib/dpkg/status"]) == ("created", "modified")
    assert system.changed_since(before) == []


@pytest.mark.slow
@pytest.mark.rig("root", "systemd")
@KINDS
def test_what_root_gets(system: Any, request: pytest.FixtureRequest) -> None:
    """Snapshots or overlays; sockets in /run stay and are listed, those that start services are hidden."""
    kind = request.node.callspec.params["system"]
    listen = """
import os, socket, sys, time
kept = []
for path in ("/run/app.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    kept.append(server)
print(flush=True)
time.sleep(100)
"""
    connect = """
import socket
for path in ("/run/app.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"):
    with socket.socket(socket.AF_UNIX) as client:
        print(path, client.connect_ex(path))
"""
    done = system.run(
        f"mkfifo ready; python3 -c {shlex.quote(listen)} >ready & read _ <ready; rm ready\n"
        f"hostfork run --rm --policy private-files -- python3 -c {shlex.quote(connect)}\n"
        "hostfork plan --policy private-files --json"
    )
    connected, mark, document = done.stdout.partition("{")
    refused = errno.ECONNREFUSED
    assert connected.splitlines() == [
        "/run/app.sock 0", f"/run/systemd/private {refused}", f"/run/dbus/system_bus_socket {refused}",
    ]  # fmt: skip
    plan = json.loads(mark + document)
    by_path = {path["path"]: path for path in plan["paths"]}
    taken = {path: (by_path[path]["mechanism"], by_path[path]["guarantee"]) for path in ("/etc", "/usr", "/root")}
    wanted = ("btrfs", "snapshot") if kind == "btrfs" else ("overlay", "live")
    assert set(taken.values()) == {wanted}
    # A subvolume in it makes several snapshots of it, which is not one instant, and still more than `live`.
    var = by_path["/var"]["mechanism"], by_path["/var"]["guarantee"]
    assert var == (("btrfs", "independent") if kind == "btrfs" else wanted)
    assert by_path["/run"]["guarantee"] == "live"
    assert by_path["/"]["access"] == "read-only"
    assert ("/var/log" in by_path) == (kind == "btrfs")
    assert [end["path"] for end in plan["endpoints"]] == ["/run/app.sock"]
    assert {path for path in by_path if by_path[path]["access"] == "hidden" and not by_path[path]["automatic"]} == {
        "/run/systemd/private", "/run/dbus/system_bus_socket",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.rig("root", "systemd")
@KINDS
def test_what_a_user_gets(system: Any, request: pytest.FixtureRequest) -> None:
    """Home and temporary folders of their own; what is root's they can still not write; the rest is named."""
    script = (
        "touch here /tmp/here /var/tmp/here /run/user/1000/there; mkdir d; mv d e; ls;"
        "for path in /etc/passwd /usr/x /root/x /run/x /var/lib/x; do echo x >>$path || echo no $path; done 2>/dev/null"
    )
    done = system.run(f"hostfork run --name mine --policy private-files -- sh -c {shlex.quote(script)}", user="ana")
    denied = ("/etc/passwd", "/usr/x", "/root/x", "/run/x", "/var/lib/x")
    assert done.stdout.splitlines() == ["e", "here", *(f"no {path}" for path in denied)]
    look = "hostfork diff mine --json; hostfork discard --yes mine >/dev/null"
    entries = json.loads(system.run(look, user="ana").stdout)
    assert {entry["path"] for entry in entries["entries"]} == {
        "/home/ana/e", "/home/ana/here", "/tmp/here", "/var/tmp/here",
    }  # fmt: skip
    found = "ls -A ~ /tmp /var/tmp | grep here || echo none"
    assert system.run(found, user="ana").stdout == "none\n"
    plan = json.loads(system.run("hostfork plan --policy private-files --json", user="ana").stdout)
    instead = {notice["path"] for notice in plan["notices"] if notice["kind"] == "not-private"}
    # /run holds a mount, as does /var where /var/log is a subvolume of its own.
    btrfs = request.node.callspec.params["system"] == "btrfs"
    assert instead == {"/root", "/run", *(["/var"] if btrfs else [])}
    foreign = {notice["path"] for notice in plan["notices"] if notice["kind"] == "foreign-owners"}
    assert {"/etc", "/usr", "/home"} <= foreign


@pytest.mark.slow
@pytest.mark.rig("root", "systemd")
def test_services_of_the_host_are_not_touched(bench: Bench, leaves_nothing: None) -> None:
    """What a package's scripts do with systemd stays in the fork; without the policy's rules for that it would not."""
    from systemd_rig import Machine

    stop = "systemctl stop victim; env -u SYSTEMD_OFFLINE systemctl --no-ask-password stop victim"
    with Machine(bench) as machine:
        unit = "[Service]\nExecStart=/bin/sleep 10000\n"
        machine.root("sh", "-c", f"printf '{unit}' >/etc/systemd/system/victim.service; systemctl start victim")
        policy = ("hostfork", "run", "--rm", "--policy", "private-files")
        refused = machine.root(*policy, "--", "true", check=False)
        assert refused.returncode == 125  # the machine's own disk is an overlay, which can be no upper folder
        assert "--pool DIR" in refused.stderr
        run = (*policy, "--pool", "/home/pool")

        def state() -> str:
            return machine.root("systemctl", "is-active", "victim", check=False).stdout.strip()

        done = machine.root(*run, "--", "sh", "-c", stop, check=False)
        assert "ignoring command" in done.stderr
        assert "Failed to connect to" in done.stderr
        assert state() == "active"
        machine.root(*run, "--shared", "/run/systemd/private", "--", "sh", "-c", stop)
        assert state() == "inactive"
