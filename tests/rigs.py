"""Real disks, real people and real cgroups for the tests, and what of them this machine can give.

Every process that runs tests as root gets a mount namespace and a cgroup of its own: the disks are gone with it, even
after SIGKILL, and what a test left behind is told apart from the work of a parallel test process.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import pickle
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

USER_NAME = "hostfork-test"
DISK_KINDS = ("ext4", "btrfs", "xfs", "tmpfs")
FOLDER_PREFIX = "hostfork-tests-"

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_REC, MS_SLAVE, MS_SHARED = 0x4000, 0x80000, 0x100000
PR_SET_DUMPABLE = 4

_libc = ctypes.CDLL(None, use_errno=True)


class Missing(Exception):
    """This machine cannot give a rig; the message says why."""


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# --- what this machine has -------------------------------------------------------------------------------------------

PROGRAMS = {
    "strace": "strace",
    "bubblewrap": "bwrap",
    "tmux": "tmux",
    "git": "git",
    "compiler": "cc",
    "acl tools": "setfacl",
    "attr tools": "setfattr",
    "ssh": "ssh",
    "vim": "vi",
    "less": "less",
    "setpriv": "setpriv",
    "apparmor": "apparmor_parser",
    "zsh": "zsh",
    "fish": "fish",
    "man": "man",
    "mandoc": "mandoc",
    "make": "make",
    "curl": "curl",
    "shellcheck": "shellcheck",
    "node": "npm",
    "ninja": "ninja",
    "cmake": "cmake",
    "rust": "cargo",
}
_MAKERS = {"ext4": "mkfs.ext4", "btrfs": "mkfs.btrfs", "xfs": "mkfs.xfs"}
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_program(name: str) -> str | None:
    """Where a program is, sbin included."""
    return shutil.which(name, path=os.environ.get("PATH", "") + os.pathsep + _SBIN)


def missing_rigs() -> dict[str, str | None]:
    """Every rig by name; None where it is there, else why it is not."""
    from real_projects import why_no_network

    rigs: dict[str, str | None] = {}
    rigs["root"] = None if os.geteuid() == 0 else "the tests run as an ordinary user"
    rigs["user"] = _why_no_user()
    rigs["user namespaces"] = _why_no_user_namespaces()
    rigs["cgroup"] = _why_no_cgroup()
    for kind in DISK_KINDS:
        rigs[kind] = _why_no_disk(kind)
    rigs["systemd"] = _why_no_systemd()
    rigs["network"] = why_no_network()
    for rig, program in PROGRAMS.items():
        rigs[rig] = None if find_program(program) else f"no program {program}"
    return rigs


def _why_no_disk(kind: str) -> str | None:
    if os.geteuid() != 0:
        return None if _disk_of_caller(kind) else f"only root can mount it, and no folder of {base_folder()} is on it"
    if kind in _MAKERS and find_program(_MAKERS[kind]) is None:
        return f"no program {_MAKERS[kind]}"
    with open("/proc/filesystems", encoding="ascii") as file:
        known = {line.split()[-1] for line in file}
    if kind in known or subprocess.run(["modprobe", "-n", "-q", kind], check=False).returncode == 0:
        return None
    return f"this kernel has no {kind}"


def _why_no_user() -> str | None:
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(USER_NAME)
    except KeyError:
        return f"no user {USER_NAME}, and no useradd to make it" if find_program("useradd") is None else "not made yet"
    try:
        probe = subprocess.run(
            [sys.executable, "-c", "import hostfork.errors"],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            preexec_fn=lambda: _become(entry.pw_uid, entry.pw_gid),
        )
    except OSError as error:
        return f"it cannot run {sys.executable}: {error.strerror}"
    return None if probe.returncode == 0 else f"it cannot run {sys.executable}: {probe.stderr.strip()[-200:]}"


def _why_no_user_namespaces() -> str | None:
    """Tried as the ordinary user, capabilities included: some hosts make the namespace and then deny all in it."""

    def attempt() -> None:
        if os.geteuid() == 0:
            _become(65534, 65534)
        uid, gid = os.geteuid(), os.getegid()
        _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
        _map_itself(uid, gid)
        _check(_libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mount")

    try:
        in_child(attempt)
    except OSError as error:
        return str(error)
    return None


def _why_no_cgroup() -> str | None:
    try:
        own = own_cgroup()
    except Missing as reason:
        return str(reason)
    if os.access(own, os.W_OK) and os.access(os.path.join(own, "cgroup.procs"), os.W_OK):
        return None
    return f"{own} is not delegated; start the tests with: systemd-run --user --scope -p Delegate=yes ./dev test"


def _why_no_systemd() -> str | None:
    """A machine of `systemd_rig`, as far as that is known without making one."""
    if os.geteuid() != 0:
        return "only root can boot it"
    programs = ("mmdebstrap", "unshare", "nsenter", "setpriv")
    return next((f"no program {name}" for name in programs if find_program(name) is None), None)


def make_user() -> None:
    """Make the ordinary user once, when root runs the tests."""
    if os.geteuid() != 0 or find_program("useradd") is None:
        return
    with contextlib.suppress(KeyError):
        pwd.getpwnam(USER_NAME)
        return
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    subprocess.run([*command, "--shell", "/bin/sh", USER_NAME], check=False, env={"PATH": _SBIN}, capture_output=True)


# --- the process that runs tests -------------------------------------------------------------------------------------


def base_folder() -> str:
    """Where disks and homes are made: on a disk, for /tmp may lie in memory."""
    return os.environ.get("HOSTFORK_TEST_DIR", "/var/tmp")


def own_cgroup() -> str:
    """The folder of this process's group in the cgroup v2 tree."""
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        paths = [line.rstrip("\n").split(":", 2)[2] for line in file if line.startswith("0:")]
    if not paths:
        raise Missing("this process is in no cgroup v2 tree")
    for line in mountinfo():
        words = line.split(" ")
        root, place = words[3], words[4]
        if line.split(" - ")[1].startswith("cgroup2 ") and (paths[0] + "/").startswith(root.rstrip("/") + "/"):
            return os.path.normpath(place + "/" + paths[0][len(root.rstrip("/")) :])
    raise Missing("no cgroup v2 tree is mounted")


def mountinfo() -> list[str]:
    """The lines of this process's mount table."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return file.read().splitlines()


@dataclass
class Bench:
    """What one process that runs tests has of its own: a folder, a mount namespace, a cgroup. `close` undoes it."""

    folder: str
    cgroup: str | None
    _came_from: str | None
    _lock: int
    _machine_mounts: int
    mounted: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    @classmethod
    def open(cls) -> "Bench":
        """Make them. Only the folder where this is not root."""
        # Not by the number alone: a PID namespace beside this one, with the same cgroups, has the same numbers.
        folder = os.path.join(base_folder(), f"{FOLDER_PREFIX}{os.getpid()}-{os.urandom(3).hex()}")
        _sweep_old(os.path.dirname(folder))
        os.mkdir(folder, 0o755)
        lock = os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # An open table stays that of the namespace in which it was opened.
        machine_mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        if os.geteuid() == 0:
            _check(_libc.unshare(CLONE_NEWNS), "unshare")
            # The machine must not see the disks; what is shared here is as on a systemd host, so a mount that leaks
            # out of a fork is seen.
            _check(_libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mount")
            _check(_libc.mount(b"none", b"/", None, MS_REC | MS_SHARED, None), "mount")
        came_from, cgroup = None, None
        if _why_no_cgroup() is None:
            came_from = own_cgroup()
            cgroup = os.path.join(came_from, os.path.basename(folder))
            os.mkdir(cgroup)
            _enter(cgroup)
        return cls(folder, cgroup, came_from, lock, machine_mounts)

    def close(self) -> None:
        """End what is left in the cgroup, unmount, delete. A disk that cannot be unmounted is an error."""
        if self.cgroup is not None and self._came_from is not None:
            _enter(self._came_from)
            remove_cgroup(self.cgroup)
        for place in reversed(self.mounted):
            unmount(place)
        for path in (*self.elsewhere, self.folder):
            remove_tree(path)
        os.close(self._machine_mounts)
        os.close(self._lock)

    def machine_mounts(self) -> list[str]:
        """The lines of the machine's own mount table, as it is now: what others mount comes from there."""
        os.lseek(self._machine_mounts, 0, os.SEEK_SET)
        with open(self._machine_mounts, encoding="utf-8", errors="surrogateescape", closefd=False) as file:
            return file.read().splitlines()

    def person_cgroup(self, person_name: str, uid: int, gid: int) -> str | None:
        """A group delegated to one person, as a service manager does it."""
        if self.cgroup is None:
            return None
        path = os.path.join(self.cgroup, person_name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            if os.geteuid() == 0:
                for name in ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"):
                    os.chown(os.path.join(path, name), uid, gid)
        return path


def _reset_signals() -> None:
    """As a login has them, whatever started the tests (nohup ignores SIGHUP)."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _enter(cgroup: str) -> None:
    with open(os.path.join(cgroup, "cgroup.procs"), "w", encoding="ascii") as file:
        file.write("0")


def _sweep_old(parent: str) -> None:
    """Remove the folders and groups of test processes that were killed: their lock is free. Others may do the same."""
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if not name.startswith(FOLDER_PREFIX):
            continue
        try:
            if os.lstat(path).st_uid != os.geteuid():
                continue
            lock = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(Missing, FileNotFoundError):
                remove_cgroup(os.path.join(own_cgroup(), name))
            remove_tree(path)
        os.close(lock)


_SUBVOL_SETFLAGS = 0x4008941A


def _make_writable(path: str) -> None:
    """Take the read-only flag from a Btrfs subvolume, whose root alone has this inode number."""
    if os.path.isdir(path) and os.stat(path).st_ino == 256 and os.statvfs(path).f_flag & os.ST_RDONLY == 0:
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # another filesystem's folder of that number
                fcntl.ioctl(opened, _SUBVOL_SETFLAGS, bytes(8))
        finally:
            os.close(opened)


def remove_tree(path: str) -> None:
    """Delete a tree, closed folders too (overlay leaves one of mode 000), and read-only snapshots.

    What goes meanwhile is no fault: a release's eraser may still be at work below.
    """
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                if not os.path.islink(inner):
                    _make_writable(inner)
                if not os.path.islink(inner) and stat.S_IMODE(os.lstat(inner).st_mode) & 0o700 != 0o700:
                    with contextlib.suppress(OSError):
                        os.chmod(inner, 0o700)
    deadline = time.monotonic() + 10
    while os.path.lexists(path):
        shutil.rmtree(path, onerror=_unless_others_are_at_it if time.monotonic() < deadline else None)


def _unless_others_are_at_it(_in: object, _path: str, failure: tuple[type[BaseException], Any, object]) -> None:
    if not (isinstance(failure[1], OSError) and failure[1].errno in (errno.ENOENT, errno.ENOTEMPTY)):
        raise failure[1]


def remove_cgroup(path: str) -> None:
    """End all that is in a group and below it, and remove it."""
    with open(os.path.join(path, "cgroup.kill"), "w", encoding="ascii") as file:
        file.write("1")
    deadline = time.monotonic() + 30
    while pids_below(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes stay in {path}: {sorted(pids_below(path))}")
        time.sleep(0.01)
    for folder, _, _ in os.walk(path, topdown=False):
        _remove_empty_cgroup(folder, deadline)


def _remove_empty_cgroup(path: str, deadline: float) -> None:
    # A group whose last process has just died answers EBUSY for a moment.
    while True:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def pids_below(cgroup: str) -> set[int]:
    """The processes of a group and of the groups below it, without those that are dead."""
    pids: set[int] = set()
    for folder, _, _ in os.walk(cgroup):
        with contextlib.suppress(OSError), open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
            pids.update(int(line) for line in file)
    return {pid for pid in pids if is_alive(pid)}


def is_alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def unmount(place: str) -> None:
    """Unmount a disk; a holder that is just ending gets a moment."""
    for attempt in range(50):
        done = subprocess.run(["umount", place], check=False, capture_output=True, text=True, env={"PATH": _SBIN})
        if done.returncode == 0:
            return
        time.sleep(0.02 * attempt)
    raise OSError(f"{place} cannot be unmounted: {done.stderr.strip()}")


# --- people ----------------------------------------------------------------------------------------------------------


def _become(uid: int, gid: int) -> None:
    """Give up root for good; the process stays readable for its new owner, as after an exec."""
    if os.geteuid() == 0 and uid != 0:
        os.setgroups([gid])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        _check(_libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def _map_itself(uid: int, gid: int) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _deny_user_namespaces(uid: int, gid: int) -> None:
    """From here on no user namespace can be made: a limit of 0, inside a user namespace that holds only this."""
    _check(_libc.unshare(CLONE_NEWUSER), "unshare")
    _map_itself(uid, gid)
    with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
        file.write("0")


@dataclass(frozen=True)
class Person:
    """Somebody who uses hostfork: root, or an ordinary user. `home` is fresh and belongs to them."""

    name: str
    uid: int
    gid: int
    home: str
    cgroup: str | None = None

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a login would give: HOME and XDG folders below `home`, the tested hostfork first on PATH."""
        variables = {
            "HOME": self.home,
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "PATH": os.path.join(sys.prefix, "bin") + ":" + _SBIN,
            "XDG_STATE_HOME": os.path.join(self.home, ".local/state"),
            "XDG_CONFIG_HOME": os.path.join(self.home, ".config"),
            "XDG_CACHE_HOME": os.path.join(self.home, ".cache"),
            "XDG_DATA_HOME": os.path.join(self.home, ".local/share"),
            "XDG_RUNTIME_DIR": os.path.join(self.home, ".run"),
            "HOSTFORK_TEST": str(os.getpid()),
        }
        for name in ("PYTHONDONTWRITEBYTECODE", "TMPDIR"):
            if name in os.environ:
                variables[name] = os.environ[name]
        return variables | dict(extra or {})

    @property
    def state(self) -> str:
        """hostfork's state folder of this person."""
        return os.path.join(self.home, ".local/state/hostfork")

    def enter(self, *, delegated: bool = True, namespaces: bool = True) -> Callable[[], None]:
        """What a forked child calls before its exec to be this person (also pexpect's `preexec_fn`).

        `delegated` False leaves it in a cgroup that an ordinary user cannot write. `namespaces` False denies it all
        user namespaces.
        """

        def before_exec() -> None:
            if delegated and self.cgroup is not None:
                _enter(self.cgroup)
            _become(self.uid, self.gid)
            os.umask(0o022)
            _reset_signals()
            if not namespaces:
                _deny_user_namespaces(self.uid, self.gid)

        return before_exec

    def popen(
        self,
        argv: Sequence[str | bytes],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        delegated: bool = True,
        namespaces: bool = True,
        **options: Any,
    ) -> "subprocess.Popen[Any]":
        """Start a program as this person, in their home unless `cwd` says where. Ends up to the caller."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(
            list(argv),
            cwd=cwd or self.home,
            env=self.environment(env),
            preexec_fn=self.enter(delegated=delegated, namespaces=namespaces),
            **options,
        )

    def run(
        self,
        argv: Sequence[str | bytes],
        *,
        input: str | bytes | None = None,
        check: bool = False,
        binary: bool = False,
        timeout: float = 100,
        **options: Any,
    ) -> "subprocess.CompletedProcess[Any]":
        """Run a program as this person and catch its output: text with surrogates, or bytes if `binary`.

        Takes the options of `popen`. stdin is empty unless `input` is given.
        """
        if not binary:
            options |= {"encoding": "utf-8", "errors": "surrogateescape"}
        if input is not None:
            options["stdin"] = subprocess.PIPE
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        with self.popen(argv, **options) as process:
            try:
                out, err = process.communicate(input, timeout=timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(list(argv), process.returncode, out, err)
        if check and done.returncode != 0:
            raise AssertionError(f"{argv} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def call(self, function: Callable[..., Any], *args: Any, delegated: bool = True, namespaces: bool = True) -> Any:
        """Call a function in a forked child as this person; its result, or its exception with its cause."""

        def child() -> Any:
            os.environ.clear()
            os.environ.update(self.environment())
            self.enter(delegated=delegated, namespaces=namespaces)()
            os.chdir(self.home)
            return function(*args)

        return in_child(child)


def find_person(name: str) -> tuple[str, int, int]:
    """Name, uid and gid of "root" or "user"; `Missing` if this test process cannot be them."""
    if name == "root":
        if os.geteuid() != 0:
            raise Missing("the tests run as an ordinary user")
        return "root", 0, 0
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid()
    reason = _why_no_user()
    if reason is not None:
        raise Missing(reason)
    entry = pwd.getpwnam(USER_NAME)
    return entry.pw_name, entry.pw_uid, entry.pw_gid


def make_home(folder: str, uid: int, gid: int) -> str:
    """A fresh home in `folder` with what a login would find there."""
    home = os.path.join(folder, "home")
    for name in ("", ".local", ".local/state", ".local/share", ".config", ".cache", ".run"):
        os.mkdir(os.path.join(home, name), 0o700)
        os.chown(os.path.join(home, name), uid, gid)
    config = os.path.join(home, ".gitconfig")
    with open(config, "w", encoding="ascii") as file:
        file.write("[user]\n\tname = A Tester\n\temail = tester@example.org\n[init]\n\tdefaultBranch = main\n")
    os.chown(config, uid, gid)
    return home


def write_files(root: str, files: Mapping[str, str]) -> None:
    """Write files below `root`; a name that ends in a slash is a folder, and a script can be executed."""
    for name, text in files.items():
        path = os.path.join(root, name)
        os.makedirs(path if name.endswith("/") else os.path.dirname(path), exist_ok=True)
        if not name.endswith("/"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        if text.startswith("#!"):
            os.chmod(path, 0o755)


def left_in_state(folder: str) -> list[str]:
    """Every file in a state folder, every fork and every key there; but the logs, which outlive their forks."""
    found = []
    for here, _folders, files in os.walk(folder):
        if here == os.path.join(folder, "logs"):
            continue
        found += [os.path.join(here, name) for name in files]
        if os.path.basename(os.path.dirname(here)) in ("copy", "overlay", "scratch", "forks"):
            found.append(here)
    return found


def wait_until(true: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something that comes, or fail."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen")
        time.sleep(0.005)


def make_project(person: Person, parent: str, files: Mapping[str, str]) -> str:
    """A new folder `proj` of the person's in `parent` that holds these files."""
    folder = os.path.join(parent, "proj")
    person.call(write_files, folder, files)
    return folder


# --- calls in a child ------------------------------------------------------------------------------------------------


def in_child(function: Callable[[], Any]) -> Any:
    """Call a function in a forked child and return its result or raise its exception."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _answer(function, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not answer:
        raise ChildProcessError(f"the child ended with {os.waitstatus_to_exitcode(status)} before it answered")
    result, failure = pickle.loads(answer)
    if failure is not None:
        raise _rebuild(failure)
    return result


def _answer(function: Callable[[], Any], writer: int) -> NoReturn:
    answer = b""
    try:
        try:
            answer = pickle.dumps((function(), None))
        except BaseException as error:
            answer = pickle.dumps((None, _take_apart(error)))
        with open(writer, "wb", closefd=False) as pipe:
            pipe.write(answer)
    finally:
        os._exit(0 if answer else 70)


def _take_apart(error: BaseException) -> tuple[Any, ...]:
    """An exception as plain values: exceptions with a constructor of their own do not pickle."""
    cause = None if error.__cause__ is None else _take_apart(error.__cause__)
    values: tuple[Any, ...] = error.args
    if isinstance(error, OSError) and error.filename is not None:
        values = (error.errno, error.strerror, error.filename, None, error.filename2)
    story = "".join(traceback.format_exception(error))
    return type(error), values, error.__dict__, cause, story


def _rebuild(failure: tuple[Any, ...]) -> BaseException:
    kind, values, attributes, cause, story = failure
    error: BaseException = kind.__new__(kind, *values)
    if issubclass(kind, OSError):
        error = kind(*values)
    error.__dict__.update(attributes)
    error.__cause__ = None if cause is None else _rebuild(cause)
    error.add_note("in the child:\n" + story)
    return error


# --- disks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disk:
    """A mounted filesystem of one kind. Anybody may make folders at its root, as in /tmp."""

    kind: str
    path: str
    _made: list[str] = field(default_factory=list, compare=False, repr=False)

    def folder(self, person: Person, name: str = "p") -> str:
        """A fresh, empty folder that belongs to `person`; deleted at the end of the test."""
        for number in range(1_000_000):
            path = os.path.join(self.path, f"{name}{number}")
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o755)
                os.chown(path, person.uid, person.gid)
                self._made.append(path)
                return path
        raise FileExistsError(self.path)


def make_disk(bench: Bench, kind: str, megabytes: int | None = None) -> Disk:
    """Mount a fresh filesystem, or name a folder on one where this is not root and no size is asked for."""
    reason = _why_no_disk(kind)
    if reason is not None:
        raise Missing(reason)
    if os.geteuid() != 0:
        if megabytes is not None:
            raise Missing("only root can mount a disk of a certain size")
        return Disk(kind, _caller_folder(kind, bench))
    megabytes = megabytes or 600
    place = _free_place(bench.folder, kind)
    if kind == "tmpfs":
        _system("mount", "-t", "tmpfs", "-o", f"size={megabytes}M,mode=1777,noatime", "tmpfs", place)
    else:
        image = place + ".image"
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        _system(*_maker(kind), image)
        # The loop device goes with the mount (autoclear).
        _system("mount", "-t", kind, "-o", "loop,noatime", image, place, tries=20)
    bench.mounted.append(place)
    os.chmod(place, 0o1777)
    return Disk(kind, place)


def _maker(kind: str) -> tuple[str, ...]:
    program = find_program(_MAKERS[kind]) or _MAKERS[kind]
    options = {"ext4": ("-q", "-F"), "btrfs": ("-q", "-f"), "xfs": ("-q", "-f", "-m", "reflink=1")}
    return (program, *options[kind])


def _free_place(folder: str, kind: str) -> str:
    for number in range(1000):
        place = os.path.join(folder, kind if number == 0 else f"{kind}-{number}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(place)
            return place
    raise FileExistsError(folder)


def _system(*command: str, tries: int = 1) -> None:
    """Run a system program. More tries for what another process may take at the same moment, such as a loop device."""
    for attempt in range(tries):
        done = subprocess.run(command, check=False, capture_output=True, text=True, env={"PATH": _SBIN})
        if done.returncode == 0:
            return
        time.sleep(0.01 * attempt)
    raise Missing(f"{' '.join(command)}: {done.stderr.strip()}")


def _disk_of_caller(kind: str) -> str | None:
    for folder in (base_folder(), "/dev/shm"):
        if os.access(folder, os.W_OK) and filesystem_of(folder) == kind:
            return folder
    return None


def _caller_folder(kind: str, bench: Bench) -> str:
    parent = _disk_of_caller(kind)
    if parent is None:
        raise Missing(f"no folder on {kind}")
    if parent == base_folder():
        return _free_place(bench.folder, kind)
    place = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)
    bench.elsewhere.append(place)
    os.chmod(place, 0o755)
    return place


def filesystem_of(path: str) -> str:
    """The kind of filesystem that a path is on. By mount place: on Btrfs the device numbers differ from the table's."""
    real = os.path.realpath(path) + "/"
    found = [line for line in mountinfo() if real.startswith(line.split(" ")[4].rstrip("/") + "/")]
    nearest = max(range(len(found)), key=lambda index: (len(found[index].split(" ")[4]), index))
    return found[nearest].split(" - ")[1].split(" ")[0]


# --- what a test left behind -----------------------------------------------------------------------------------------


def _mounts(table: list[str]) -> Iterator[str]:
    """Each mount: its place, device and root, and after `#` its own number."""
    for words in (line.split(" ") for line in table):
        yield f"{words[4]} {words[2]}{words[3]}#{words[0]}"


@dataclass(frozen=True)
class Leftovers:
    """Mounts, groups and processes that belong to this test process."""

    mounts: frozenset[str]
    cgroups: frozenset[str]
    pids: frozenset[int]
    machine: frozenset[str] = frozenset()
    """The mounts in the machine's own namespace."""

    @classmethod
    def look(cls, bench: Bench) -> "Leftovers":
        """What is there now, the rigs' own disks and groups left out: they may be made while a test runs.

        An ordinary user has no mount namespace of their own here, and can leave no mount in the machine's.
        """
        machine = frozenset(_mounts(bench.machine_mounts()))  # first: what comes between the two is looked at again
        mounts = frozenset(name for name in _mounts(mountinfo()) if name.partition(" ")[0] not in bench.mounted)
        if bench.cgroup is None:
            return cls(mounts, frozenset(), frozenset(_marked_pids()), machine)
        own = {os.path.join(bench.cgroup, name) for name in ("root", "user")}
        groups = frozenset(folder for folder, _, _ in os.walk(bench.cgroup) if folder not in own)
        return cls(mounts, groups, frozenset(pids_below(bench.cgroup)), machine)

    def beyond(self, before: "Leftovers") -> "Leftovers":
        """What is here and was not there before, without what came to the machine too."""
        arrived = {name.rpartition("#")[0] for name in self.machine - before.machine}
        mounts = frozenset(name for name in self.mounts - before.mounts if name.rpartition("#")[0] not in arrived)
        return Leftovers(mounts, self.cgroups - before.cgroups, self.pids - before.pids)

    def __bool__(self) -> bool:
        return bool(self.mounts or self.cgroups or self.pids)

    def describe(self) -> str:
        """One line for each thing."""
        lines = [f"mount {name}" for name in sorted(self.mounts)]
        lines += [f"cgroup {name}" for name in sorted(self.cgroups)]
        lines += [f"process {pid}: {_command_line(pid)}" for pid in sorted(self.pids)]
        return "\n".join(lines)

    def remove(self) -> None:
        """End and remove them, so that the next test starts clean."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        for group in sorted(self.cgroups, key=len, reverse=True):
            _remove_empty_cgroup(group, deadline)
        for name in self.mounts:
            subprocess.run(["umount", "-l", name.rpartition(" ")[0]], check=False, capture_output=True)


def settle(bench: Bench, before: Leftovers, seconds: float = 10) -> Leftovers:
    """What a test left behind, after those that are just ending had their time."""
    deadline = time.monotonic() + seconds
    while True:
        left = Leftovers.look(bench).beyond(before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _marked_pids() -> Iterator[int]:
    mark = f"HOSTFORK_TEST={os.getpid()}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and is_alive(int(name)):
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    yield int(name)


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return "gone"
