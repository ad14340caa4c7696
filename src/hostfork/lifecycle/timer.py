"""A timer of the user's systemd manager that runs `hostfork gc` once a day: installed, and taken back.

$XDG_CONFIG_HOME/systemd/user/hostfork-gc.service, hostfork-gc.timer      else in ~/.config
"""

from __future__ import annotations

import os
import sys

from hostfork.errors import Code, HostError
from hostfork.lifecycle.config import config_file
from hostfork.values import frozen

NAME = "hostfork-gc"
MARK = "# made by `hostfork timer install`; `hostfork timer remove` removes it"
_PASSED = ("XDG_STATE_HOME", "XDG_CONFIG_HOME")


@frozen
class TimerDone:
    """What was done: files that were written or removed, and the commands that were run."""

    files: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]


def install() -> TimerDone:
    """Write both units and start the timer. Raises HostError `host.missing`; then nothing of it is left.

    A file of that name that is not hostfork's is never replaced.
    """
    manager = _manager()
    units = dict(zip(unit_files(), (_service(), _TIMER), strict=True))
    before = {path: _content(path) for path in units}
    for path, content in before.items():
        if content is not None and MARK not in content:
            raise HostError(
                Code.HOST_MISSING, f"{path} is there and was not made by hostfork", path=path, step="timer",
                hint="move it away, or put `hostfork gc` into it",
            )  # fmt: skip
    commands = (("--user", "daemon-reload"), ("--user", "enable", "--now", f"{NAME}.timer"))
    try:
        for path, content in units.items():
            _write(path, content)
        for command in commands:
            _call(manager, *command)
    except HostError:
        for path, former in before.items():
            if former is None:
                _unlink(path)
            else:
                _write(path, former)
        raise
    return TimerDone(tuple(units), tuple(("systemctl", *command) for command in commands))


def remove() -> TimerDone:
    """Stop the timer and remove what `install` made; nothing where it made nothing. Raises HostError."""
    ours = tuple(path for path in unit_files() if MARK in (_content(path) or ""))
    if not ours:
        return TimerDone((), ())
    manager = _manager()
    commands = [("--user", "disable", "--now", f"{NAME}.timer"), ("--user", "daemon-reload")]
    _call(manager, *commands[0])
    for path in ours:
        _unlink(path)
    _call(manager, *commands[1])
    return TimerDone(ours, tuple(("systemctl", *command) for command in commands))


def unit_files() -> tuple[str, str]:
    """Where the service and the timer stand."""
    folder = os.path.join(os.path.dirname(os.path.dirname(config_file())), "systemd", "user")
    return os.path.join(folder, f"{NAME}.service"), os.path.join(folder, f"{NAME}.timer")


_TIMER = f"""{MARK}
[Unit]
Description=Once a day: kept forks of hostfork that have expired go

[Timer]
OnCalendar=daily
Persistent=true
RandomizedDelaySec=1h

[Install]
WantedBy=timers.target
"""


def _service() -> str:
    """The unit for this hostfork and this state folder, wherever they are."""
    variables = [f"{name}={os.environ[name]}" for name in _PASSED if os.environ.get(name, "").startswith("/")]
    lines = "".join(f"Environment={_quoted(text)}\n" for text in variables)
    command = " ".join((_quoted(sys.executable), "-P", "-m", "hostfork", "gc"))
    return f"""{MARK}
[Unit]
Description=Kept forks of hostfork that have expired go

[Service]
Type=oneshot
Nice=19
IOSchedulingClass=idle
{lines}ExecStart={command}
"""


def _quoted(text: str) -> str:
    """A word as systemd takes it literally (systemd.syntax(7), systemd.unit(5))."""
    for character, meant in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("\n", "\\n")):
        text = text.replace(character, meant)
    return f'"{text}"'


def _manager() -> str:
    """The program systemctl, once the user's manager has answered it. Raises HostError."""
    import shutil

    program = shutil.which("systemctl")
    if program is None:
        raise HostError(
            Code.HOST_MISSING, "the program systemctl is not installed, and without systemd there is no timer",
            step="timer", hint="hostfork gc in a crontab does the same; runs do it too, at most once an hour",
        )  # fmt: skip
    try:
        _call(program, "--user", "show-environment")
    except HostError as error:
        raise HostError(
            Code.HOST_MISSING, "no systemd manager of this user's answers", step="timer", details=error.details,
            hint=f"sudo loginctl enable-linger {os.geteuid()} starts one, and keeps it after the last logout",
        ) from error  # fmt: skip
    return program


def _call(program: str, *arguments: str) -> None:
    """Raises HostError with what it said."""
    import subprocess

    environment = dict(os.environ) | {"LC_ALL": "C"}
    if "XDG_RUNTIME_DIR" not in environment and os.path.isdir(f"/run/user/{os.geteuid()}"):
        environment["XDG_RUNTIME_DIR"] = f"/run/user/{os.geteuid()}"  # as in a unit, and after su
    done = subprocess.run([program, *arguments], capture_output=True, text=True, errors="replace", check=False,
                          stdin=subprocess.DEVNULL, env=environment)  # fmt: skip
    if done.returncode != 0:
        raise HostError(
            Code.HOST_MISSING, f"systemctl {' '.join(arguments)} ended with {done.returncode}", step="timer",
            details=tuple(done.stderr.strip().splitlines()[-3:]), hint="systemctl --user status",
        )  # fmt: skip


def _content(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def _write(path: str, content: str) -> None:
    """All of it or nothing. Raises HostError."""
    temporary = f"{path}.hostfork-new"
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(content)
        os.rename(temporary, path)
    except OSError as error:
        raise _cannot(path, "written", error) from error


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot(path, "removed", error) from error


def _cannot(path: str, what: str, error: OSError) -> HostError:
    return HostError(
        Code.HOST_MISSING, f"{path} cannot be {what}", path=path, step="timer", errno=error.errno,
        hint="put owner and mode of that folder right",
    )  # fmt: skip
