"""A machine that systemd boots: a small Debian in namespaces and a cgroup of its own, with hostfork installed in it.

The tree is made once (a minute, from a Debian mirror) and kept beside the tests' other folders; each machine is an
overlay over it. HOSTFORK_FRESH_SUITE and HOSTFORK_FRESH_MIRROR name another Debian.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import zlib
from typing import Any

import rigs
from rigs import Bench, Missing
from test_packaging import ROOT, build

PACKAGES = "systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,python3,python3-venv,procps,mount,login"
PATH = "/opt/hostfork/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UID = 1000
APP = f"/sys/fs/cgroup/user.slice/user-{UID}.slice/user@{UID}.service/app.slice"
_MASKED = ("systemd-sysctl", "systemd-udevd", "systemd-modules-load", "console-getty")

# The kernel's settings are read-only in it, and no device is there but those that programs need.
_BOOT = """
overlay=$1 root=$2 home=$3
mount -t overlay -o "$overlay" overlay "$root"
cd "$root"
mount --bind "$home" home
mount -t proc -o nosuid,nodev,noexec proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
    : >dev/$node
    mount --bind /dev/$node dev/$node
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
pivot_root . mnt
umount -l /mnt
exec chroot . setpriv --bounding-set=-sys_time,-sys_module,-sys_rawio,-sys_boot \
    env -i container=hostfork-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init
"""


class Machine:
    """A running one. As a context: it ends with it, and also when the tests are killed."""

    def __init__(self, bench: Bench) -> None:
        if bench.cgroup is None:
            raise Missing("no cgroup of the tests' own")
        tree, self._lock = kept_tree()
        self.folder = os.path.join(bench.folder, "systemd")
        self._cgroup = os.path.join(bench.cgroup, "systemd")
        for path in (self.folder, self._cgroup, *(os.path.join(self.folder, name) for name in _FOLDERS)):
            os.mkdir(path, 0o755)
        upper, work, root, home = (os.path.join(self.folder, name) for name in _FOLDERS)
        namespaces = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net", "--fork", "--kill-child")
        overlay = f"lowerdir={tree},upperdir={upper},workdir={work}"
        with open(os.path.join(self.folder, "log"), "wb") as log:
            self._process = subprocess.Popen(
                ["unshare", *namespaces, "sh", "-euc", _BOOT, "sh", overlay, root, home],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=self._enter,
            )
        self._home = home

    def __enter__(self) -> "Machine":
        try:
            self._await_boot()
            os.mkdir(f"{self._home}/ana")
            os.chown(f"{self._home}/ana", UID, UID)
            build("wheel", ROOT, self._home)
            self.root("sh", "-c", "/opt/hostfork/bin/pip install --quiet --no-deps --no-index /home/hostfork-*.whl")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        rigs.remove_cgroup(self._cgroup)
        rigs.remove_tree(self.folder)
        os.close(self._lock)

    def root(self, *argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a program as root beside the units."""
        entered = ("nsenter", "--target", self._init(), "--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net",
                   "--root", "--wd")  # fmt: skip
        done = subprocess.run(
            [*entered, "env", "-i", f"PATH={PATH}", "HOME=/root", *argv],
            stdin=subprocess.DEVNULL,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 or not check, (argv, done)
        return done

    def unit(self, script: str, *properties: str, user: str = "ana") -> "subprocess.CompletedProcess[str]":
        """Run a shell script in a unit of its own, whose cgroup is root's, in a fresh project folder."""
        options = [f"--property={text}" for text in ("RuntimeMaxSec=40", *properties)]
        script = f'cd "$(mktemp -d)"; echo a >a; {script}'
        unit = ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--uid={user}", f"--setenv=PATH={PATH}")
        return self.root(*unit, "--setenv=TMPDIR=/home/ana", *options, "/bin/sh", "-c", script, check=False)

    def login(self, script: str) -> "subprocess.CompletedProcess[str]":
        """Run it in a login session's scope, as after ssh."""
        return self.unit(script, "PAMName=login")

    def forks(self) -> list[dict[str, Any]]:
        """What `hostfork list` says."""
        found: list[dict[str, Any]] = json.loads(self.unit("hostfork list --json").stdout)["forks"]
        return found

    def scopes(self) -> list[str]:
        """The scopes of forks, after those that just end had their time."""
        deadline = time.monotonic() + 10
        while True:
            found = [name for name in self.root("ls", APP).stdout.split() if name.startswith("hostfork-")]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def _enter(self) -> None:
        with open(f"{self._cgroup}/cgroup.procs", "wb", buffering=0) as file:
            file.write(b"0")
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def _init(self) -> str:
        with open(f"/proc/{self._process.pid}/task/{self._process.pid}/children", encoding="ascii") as file:
            return file.read().strip()

    def _await_boot(self) -> None:
        deadline = time.monotonic() + 60
        state = ""
        while state not in ("running", "degraded"):
            if time.monotonic() > deadline or self._process.poll() is not None:
                with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as file:
                    raise Missing(f"systemd does not boot: {state} {file.read()[-300:]}")
            time.sleep(0.1)
            if _name(self._init()) == "systemd":
                state = self.root("systemctl", "is-system-running", check=False).stdout.strip()
        self.root("systemctl", "start", f"user@{UID}")


_PREFIX = "hostfork-systemd-"
_FOLDERS = ("upper", "work", "root", "home")


def _name(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def kept_tree() -> tuple[str, int]:
    """The kept tree, made by the first test process that needs it, and the lock that keeps it while it is used."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        needs = tomllib.load(file)["project"]["dependencies"]
    suite = os.environ.get("HOSTFORK_FRESH_SUITE", "bookworm")
    number = zlib.crc32(repr((suite, PACKAGES, _MASKED, needs)).encode())
    tree = os.path.join(rigs.base_folder(), f"{_PREFIX}{number:08x}")
    lock = _lock(tree)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not os.path.lexists(tree):
        _remove_older(tree)
        _make(f"{tree}.new", suite, needs)
        os.rename(f"{tree}.new", tree)
    fcntl.flock(lock, fcntl.LOCK_SH)
    # Everybody may make names in /var/tmp.
    found = os.lstat(tree)
    if found.st_uid != 0 or found.st_mode & 0o022:
        raise Missing(f"{tree} is not root's")
    return tree, lock


def _lock(tree: str) -> int:
    return os.open(f"{tree}.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _remove_older(tree: str) -> None:
    """Those that were made for other dependencies, unless they are in use."""
    for name in os.listdir(os.path.dirname(tree)):
        path = os.path.join(os.path.dirname(tree), name)
        if name.startswith(_PREFIX) and "." not in name and os.lstat(path).st_uid == 0:
            lock = _lock(path)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rigs.remove_tree(path)
            os.close(lock)


def _make(tree: str, suite: str, needs: list[str]) -> None:
    if os.path.lexists(tree):
        rigs.remove_tree(tree)
    mirror = os.environ.get("HOSTFORK_FRESH_MIRROR")  # else mmdebstrap's own choice
    wheels = f"{tree}/opt/hostfork-wheels"
    _do("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={PACKAGES}",
        "--aptopt=Acquire::Check-Valid-Until \"false\"", suite, tree, *([mirror] if mirror else []))  # fmt: skip
    version = _do("chroot", tree, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    _do(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--python-version={version}",
        "--dest", wheels, *needs)  # fmt: skip
    _do("chroot", tree, "python3", "-m", "venv", "/opt/hostfork")
    _do("chroot", tree, "/opt/hostfork/bin/pip", "install", "--quiet", "--no-index",
        "--find-links=/opt/hostfork-wheels", *needs)  # fmt: skip
    _do("chroot", tree, "useradd", "--no-create-home", f"--uid={UID}", "--shell=/bin/bash", "ana")
    _do("chroot", tree, "systemctl", "mask", *(f"{name}.service" for name in _MASKED))
    os.makedirs(f"{tree}/var/lib/systemd/linger", exist_ok=True)
    with open(f"{tree}/var/lib/systemd/linger/ana", "wb"):
        pass
    os.chmod(tree, 0o755)


def _do(*command: str) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, check=False, capture_output=True, text=True,
        env=os.environ | {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
    )  # fmt: skip
    if done.returncode != 0:
        raise Missing(f"{command[0]} {command[1]}: {done.stderr.strip()[-300:]}")
    return done.stdout
