"""What this machine lacks for ordinary users' forks: found in its settings, installed by root, taken back exactly.

One AppArmor profile where the kernel denies user namespaces to programs without one (Ubuntu 24.04), one sysctl file
where their number is limited to none. Nothing else is ever written. `Machine` names the places, so that a test can give
its own.
"""

from __future__ import annotations

import os

from hostfork.errors import Code, HostError
from hostfork.values import frozen
from hostfork.workload.spawn import helper_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "# made by `hostfork setup`; `hostfork setup --undo` removes it"
_FORMER = "# before: "
_RESTRICT = "sys/kernel/apparmor_restrict_unprivileged_userns"
_LIMITS = {
    # a number like the kernel's own default on a small machine
    "user.max_user_namespaces": "15000",
    "kernel.unprivileged_userns_clone": "1",
}
_NOBODY = 65534


@frozen
class Machine:
    """Where settings are read and written, and where programs are looked for."""

    proc: str = "/proc"
    etc: str = "/etc"
    programs: str = "/usr/sbin:/sbin:/usr/bin:/bin"

    @property
    def profile(self) -> str:
        """The AppArmor profile's file."""
        return os.path.join(self.etc, "apparmor.d/hostfork")

    @property
    def limits(self) -> str:
        """The sysctl file."""
        return os.path.join(self.etc, "sysctl.d/90-hostfork.conf")


@frozen
class Measure:
    """One file that remedies a lack: what it holds, what it grants, and the commands that put it into effect."""

    name: str
    why: str
    file: str
    content: str
    grants: str
    apply: tuple[tuple[str, ...], ...]
    undo: tuple[tuple[str, ...], ...]


@frozen
class Trial:
    """Whether an ordinary user can make the namespaces of a view now. `available` None: nobody to try it as."""

    available: bool | None
    sentence: str


def missing(machine: Machine) -> tuple[Measure, ...]:
    """What is to be installed, in order. Reads settings only."""
    measures = []
    limits = {name: value for name in _LIMITS if (value := _setting(machine, name)) == "0"}
    if limits:
        measures.append(_limits_measure(machine, limits))
    if _read(os.path.join(machine.proc, _RESTRICT)) == "1" and _content(machine.profile) != _profile(helper_path()):
        measures.append(_profile_measure(machine))
    return tuple(measures)


def install(machine: Machine, measures: tuple[Measure, ...]) -> None:
    """Write and load. Raises HostError; a file that is not hostfork's is never replaced."""
    for measure in measures:
        present = _content(measure.file)
        if present is not None and MARK not in present:
            raise HostError(
                Code.HOST_MISSING, f"{measure.file} is there and was not made by hostfork", path=measure.file,
                step="setup", hint="move it away, or merge what `hostfork setup --print` shows",
            )  # fmt: skip
        _write(measure.file, measure.content)
        for command in measure.apply:
            _call(machine, command)


def installed(machine: Machine) -> tuple[Measure, ...]:
    """What setup made on this machine and is still there."""
    found = []
    limits = _content(machine.limits)
    if limits is not None and MARK in limits:
        former = dict(
            line.removeprefix(_FORMER).split("=", 1) for line in limits.splitlines() if line.startswith(_FORMER)
        )
        found.append(_limits_measure(machine, former))
    profile = _content(machine.profile)
    if profile is not None and MARK in profile:
        found.append(_profile_measure(machine))
    return tuple(found)


def undo(machine: Machine, measures: tuple[Measure, ...]) -> None:
    """Take back: unload, remove the file. Raises HostError."""
    for measure in measures:
        for command in measure.undo:
            _call(machine, command)
        try:
            os.unlink(measure.file)
        except OSError as error:
            raise _cannot(f"{measure.file} cannot be removed", measure.file, error) from error


def try_as_user() -> Trial:
    """Let the helper try the namespaces as an ordinary user: the caller, the one behind sudo, or nobody."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        uid, gid = int(os.environ.get("SUDO_UID", _NOBODY)), int(os.environ.get("SUDO_GID", _NOBODY))
    if uid == 0:
        uid = gid = _NOBODY
    who = f"user {uid}"
    try:
        number, step = _try(uid, gid)
    except OSError as error:
        return Trial(None, f"{who} cannot start {helper_path()}: {os.strerror(error.errno or 0)}")
    if number == 0:
        return Trial(True, f"tried: {who} can make the namespaces that a fork needs")
    return Trial(False, f"tried: {who} cannot make them, step {step}: {os.strerror(number)}")


def _try(uid: int, gid: int) -> tuple[int, str]:
    """Start the helper itself as that user: a security profile goes by its file."""
    import socket
    import subprocess
    import sys

    from hostfork.helper.protocol import Channel, Ready

    ours, theirs = socket.socketpair()
    identity: dict[str, Any] = {}
    if uid != os.geteuid():
        identity = {"user": uid, "group": gid, "extra_groups": []}
    with theirs:
        process = subprocess.Popen(
            [helper_path(), sys.executable, "1", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **identity,
        )
    channel = Channel(ours.detach())
    try:
        message = channel.receive()
    finally:
        channel.close()
        process.wait()
    if not isinstance(message, Ready):
        raise PermissionError(13, "the helper did not start")
    return message.errno, message.step


def delegation(systemd: str = "/run/systemd/system") -> tuple[str, ...]:
    """The commands that give this user a cgroup to own processes by; none where there is one, or nothing can be had.

    Raises ViewError where no helper can be started. Where systemd runs, its manager for this user gives one once it
    runs, and it lingers after the last logout then (loginctl(1)).
    """
    from hostfork.workload.cgroup import own_folder

    folder, uid = own_folder(), os.geteuid()
    if folder is None or _has_place():
        return ()
    if os.path.isdir(systemd):
        return (f"sudo loginctl enable-linger {uid}",)
    own = f"{folder}/hostfork-user-{uid}"
    files = " ".join(f"{own}/{name}" for name in ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control"))
    return (
        f"sudo mkdir {own}",
        f"sudo chown {uid} {own} {files}",
        f"echo $$ | sudo tee {own}/cgroup.procs",
    )


def _has_place() -> bool:
    from hostfork.workload.launch import Helper

    helper = Helper.spawn()
    try:
        return helper.place().parent is not None
    finally:
        helper.abandon()


def _profile_measure(machine: Machine) -> Measure:
    file = helper_path()
    return Measure(
        name="AppArmor profile",
        why="kernel.apparmor_restrict_unprivileged_userns is 1: programs without a profile get no user namespace",
        file=machine.profile,
        content=_profile(file),
        grants=f"{file} may make user namespaces, and so may every program that is started through it: this reaches "
        "whoever can run that file, and whoever can write it",
        apply=(("apparmor_parser", "--replace", machine.profile),),
        undo=(("apparmor_parser", "--remove", machine.profile),),
    )


def _profile(file: str) -> str:
    return f"""{MARK}
abi <abi/4.0>,
include <tunables/global>

# It confines nothing; it only allows user namespaces to this one file and what it starts.
profile hostfork "{_apparmor_escaped(file)}" flags=(unconfined) {{
  userns,
}}
"""


def _apparmor_escaped(path: str) -> str:
    """A path as AppArmor matches it literally (apparmor.d(5)): its patterns and quotes lose their meaning."""
    return "".join("\\" + character if character in '\\*?[]{}^"@' else character for character in path)


def _limits_measure(machine: Machine, former: dict[str, str]) -> Measure:
    lines = [MARK, *(f"{_FORMER}{name}={value}" for name, value in former.items())]
    lines += [f"{name} = {_LIMITS[name]}" for name in former]
    return Measure(
        name="sysctl limits",
        why=", ".join(f"{name} is {value}" for name, value in former.items()) + ": no user namespace can be made",
        file=machine.limits,
        content="\n".join(lines) + "\n",
        grants="every user of this machine may make user namespaces",
        apply=(("sysctl", "--quiet", f"--load={machine.limits}"),),
        undo=tuple(("sysctl", "--quiet", "--write", f"{name}={value}") for name, value in former.items()),
    )


def _setting(machine: Machine, name: str) -> str | None:
    return _read(os.path.join(machine.proc, "sys", name.replace(".", "/")))


def _read(path: str) -> str | None:
    content = _content(path)
    return None if content is None else content.strip()


def _content(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def _write(path: str, content: str) -> None:
    """All of it or nothing; the folder is the system's and must be there."""
    temporary = f"{path}.hostfork-new"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(descriptor, 0o644)
            file.write(content)
        os.rename(temporary, path)
    except OSError as error:
        raise _cannot(f"{path} cannot be written", path, error) from error


def _cannot(message: str, path: str, error: OSError) -> HostError:
    return HostError(
        Code.HOST_MISSING, message, path=path, step="setup", errno=error.errno, hint="hostfork setup as root"
    )


def _call(machine: Machine, command: tuple[str, ...]) -> None:
    """Run a program of the system's. Raises HostError with what it said."""
    import shutil
    import subprocess

    program = shutil.which(command[0], path=machine.programs)
    if program is None:
        raise HostError(
            Code.HOST_MISSING, f"the program {command[0]} is not installed", step="setup",
            hint=f"install it, then: {' '.join(command)}",
        )  # fmt: skip
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, errors="replace", check=False,
                          env={"PATH": machine.programs, "LC_ALL": "C"})  # fmt: skip
    if done.returncode != 0:
        raise HostError(
            Code.HOST_MISSING, f"{' '.join(command)} ended with {done.returncode}", step="setup",
            details=tuple(done.stderr.strip().splitlines()[-3:]), hint="hostfork setup --undo takes back what was made",
        )  # fmt: skip
