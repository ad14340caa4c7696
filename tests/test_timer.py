"""`hostfork timer`: what it writes, that it is refused where it could not work, and a real systemd that runs it."""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import _or_skip
from hostfork.lifecycle import timer
from rigs import Bench, Person
from systemd_rig import Machine

UNITS = ("hostfork-gc.service", "hostfork-gc.timer")
FAKE = """#!/bin/sh
echo "$*" >>~/asked
case "$*" in *$FAILS*) echo "it says no" >&2; exit 4 ;; esac
"""


def folder(person: Person) -> Path:
    return Path(person.home, ".config/systemd/user")


def given(person: Person, fails: str = "never") -> dict[str, str]:
    """An environment in which systemctl is a script that writes down what it is asked."""
    person.call(_make_fake, person.home)
    return {"PATH": f"{person.home}/fake:{person.environment()['PATH']}", "FAILS": fails}


def _make_fake(home: str) -> None:
    path = Path(home, "fake/systemctl")
    path.parent.mkdir(exist_ok=True)
    path.write_text(FAKE)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def units(person: Person) -> list[str]:
    return sorted(os.listdir(folder(person))) if folder(person).exists() else []


def test_it_is_installed_and_taken_back(person: Person, hostfork: Callable[..., Any]) -> None:
    environment = given(person)
    done = hostfork(person, "timer", "install", check=0, env=environment)
    assert done.stdout.splitlines() == [
        "written: ~/.config/systemd/user/hostfork-gc.service",
        "written: ~/.config/systemd/user/hostfork-gc.timer",
        "done: systemctl --user daemon-reload",
        "done: systemctl --user enable --now hostfork-gc.timer",
    ]
    service = (folder(person) / UNITS[0]).read_text()
    assert f'\nExecStart="{sys.executable}" -P -m hostfork gc\n' in service
    assert f'\nEnvironment="XDG_STATE_HOME={person.home}/.local/state"\n' in service
    assert "Persistent=true" in (folder(person) / UNITS[1]).read_text()
    hostfork(person, "timer", "install", check=0, env=environment)
    again = json.loads(hostfork(person, "timer", "install", "--json", check=0, env=environment).stdout)
    assert [os.path.basename(path) for path in again["files"]] == list(UNITS)
    done = hostfork(person, "timer", "remove", check=0, env=environment)
    assert done.stdout.splitlines()[:2] == [f"removed: ~/.config/systemd/user/{name}" for name in UNITS]
    assert units(person) == []
    assert Path(person.home, "asked").read_text().splitlines()[-2:] == [
        "--user disable --now hostfork-gc.timer", "--user daemon-reload",
    ]  # fmt: skip
    assert hostfork(person, "timer", "remove", check=0, env=environment).stdout == "timer has installed nothing here\n"


def test_without_a_manager_nothing_is_written(person: Person, hostfork: Callable[..., Any]) -> None:
    done = hostfork(person, "timer", "install", check=125, env=given(person, "show-environment"))
    assert "no systemd manager of this user's answers\n  it says no" in done.stderr
    assert f"sudo loginctl enable-linger {person.uid}" in done.stderr
    assert "code host.missing" in done.stderr
    assert units(person) == []
    done = hostfork(person, "timer", "install", env={"PATH": os.path.join(sys.prefix, "bin")})
    assert (done.returncode, "the program systemctl is not installed" in done.stderr) == (125, True)
    assert "crontab" in done.stderr
    assert hostfork(person, "timer").returncode == 2


def test_what_fails_in_the_middle_is_undone(person: Person, hostfork: Callable[..., Any]) -> None:
    done = hostfork(person, "timer", "install", check=125, env=given(person, "enable"))
    assert "systemctl --user enable --now hostfork-gc.timer ended with 4\n  it says no" in done.stderr
    assert units(person) == []
    hostfork(person, "timer", "install", check=0, env=given(person))
    former = (folder(person) / UNITS[0]).read_text() + "# edited\n"
    (folder(person) / UNITS[0]).write_text(former)
    hostfork(person, "timer", "install", check=125, env=given(person, "enable"))
    assert (folder(person) / UNITS[0]).read_text() == former
    hostfork(person, "timer", "remove", check=125, env=given(person, "disable"))
    assert units(person) == list(UNITS)


def test_a_unit_of_somebody_else_is_left_alone(person: Person, hostfork: Callable[..., Any]) -> None:
    person.call(lambda: folder(person).mkdir(parents=True))
    (folder(person) / UNITS[1]).write_text("[Timer]\n")
    done = hostfork(person, "timer", "install", check=125, env=given(person))
    assert "hostfork-gc.timer is there and was not made by hostfork" in done.stderr
    assert (
        hostfork(person, "timer", "remove", check=0, env=given(person)).stdout == "timer has installed nothing here\n"
    )
    assert (units(person), (folder(person) / UNITS[1]).read_text()) == ([UNITS[1]], "[Timer]\n")


def test_words_are_literal_for_systemd() -> None:
    assert timer._quoted('/a b/"c"/100%/\\x') == '"/a b/\\"c\\"/100%%/\\\\x"'


@pytest.fixture(scope="module")
def machine(bench: Bench) -> Iterator[Machine]:
    with _or_skip(lambda: Machine(bench), "systemd") as booted:
        yield booted


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.rig("root", "cgroup", "systemd")
def test_a_real_systemd_runs_it(machine: Machine) -> None:
    """In a login, in a plain unit, and removed again; what has expired goes when it runs."""
    kept = machine.login(
        "hostfork run --private . --name old -- touch new; touch -d '20 days ago' ~/.local/state/hostfork/forks/old/use"
    )
    assert "kept as old" in kept.stderr, kept
    done = machine.login("hostfork timer install")
    assert done.returncode == 0, done
    listed = machine.login("systemctl --user list-timers --all; systemctl --user is-enabled hostfork-gc.timer")
    assert re.search(r"hostfork-gc\.timer +hostfork-gc\.service", listed.stdout), listed
    assert listed.stdout.endswith("enabled\n"), listed
    ran = machine.login(
        "systemctl --user start hostfork-gc.service; systemctl --user show -P Result hostfork-gc.service"
    )
    assert ran.stdout == "success\n", (ran, machine.root("journalctl", "--no-pager", "-n", "20", check=False))
    assert machine.forks() == []
    assert "not used for 20 d" in machine.unit("hostfork list --expired").stdout
    verified = machine.login("systemd-analyze --user verify ~/.config/systemd/user/hostfork-gc.timer")
    assert (verified.returncode, verified.stderr) == (0, ""), verified
    removed = machine.unit(
        "hostfork timer remove; ls ~/.config/systemd/user; systemctl --user is-enabled hostfork-gc.timer"
    )
    assert "removed: ~/.config/systemd/user/hostfork-gc.timer" in removed.stdout, removed
    assert "hostfork-gc" not in removed.stdout.splitlines()[-1], removed
    assert machine.login("systemctl --user list-timers --all").stdout.count("hostfork") == 0
