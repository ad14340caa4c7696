"""Where the tests on real projects run: somebody's home folder on a disk, and the mechanism that they ask for."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from real_projects import Picture, difference, picture
from rigs import Disk, Person, make_home
from storage_cases import make_subvolume

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
PYTHON = os.path.realpath(sys.executable)
MODES = ("ext4:copy", "ext4:live", "btrfs:btrfs", "btrfs:overlay", "btrfs:reflink", "xfs:reflink", "xfs:live")
"""What a person may ask for on which disk: each mechanism where it is most used."""
_ALTERNATING = tuple(f"{'user' if index % 2 else 'root'}-{mode}" for index, mode in enumerate(MODES))
CROSSED = tuple(f"{'root' if index % 2 else 'user'}-{mode}" for index, mode in enumerate(MODES))
OVER_BASELINES = ("user-ext4:overlay", "root-xfs:overlay")
ALTERNATING = (*_ALTERNATING, OVER_BASELINES[0])
ONCE_EACH = (*CROSSED[:4], CROSSED[5], OVER_BASELINES[1])
"""Each mechanism by one person, """
EVERYWHERE = (*_ALTERNATING[:4], _ALTERNATING[5], OVER_BASELINES[0], *ONCE_EACH)
"""and by both."""


@dataclass(frozen=True)
class Spot:
    """Somebody's place on a disk, and what they ask for there."""

    person: Person
    """Their home folder is on the disk."""
    disk: Disk
    mode: str
    hostfork: Run

    @property
    def project(self) -> str:
        """Where their project lies."""
        return f"{self.person.home}/proj"

    @property
    def aside(self) -> str:
        """A shared folder beside it."""
        return f"{self.person.home}/aside"

    def on_host(self, *argv: str, **options: Any) -> str:
        """Run a program on the host in the project; what it printed."""
        options.setdefault("timeout", 600)
        done = self.person.run(argv, cwd=self.project, check=True, **options)
        return str(done.stdout)

    def command(self, *argv: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
        """hostfork's arguments to run `argv` in a fork of the project."""
        return ("run", *options, "--private", f"{self.project}{self.mode}", "--", *argv)

    def run(self, *argv: str, options: tuple[str, ...] = ("--rm",), **more: Any) -> str:
        """Run it, and be content with status 0 only; what it printed."""
        more.setdefault("timeout", 600)
        done = self.hostfork(
            self.person, *self.command(*argv, options=options), cwd=self.project, **({"check": 0} | more)
        )
        return str(done.stdout)

    def offer(self) -> dict[str, Any]:
        """What the plan says of the project: the mechanism's guarantees."""
        private = f"{self.project}{self.mode}"
        plan = json.loads(self.hostfork(self.person, "plan", "--private", private, "--json", check=0).stdout)
        planned = next(path for path in plan["paths"] if path["path"] == self.project)
        offer: dict[str, Any] = {"guarantee": planned["guarantee"]} | planned["offer"]
        return offer

    def await_erased(self) -> None:
        """What was thrown away is erased in the background; then nothing is left, and the folder can be removed."""
        self.hostfork(self.person, "recover", check=0)
        while (left := json.loads(self.hostfork(self.person, "list", "--json", check=0).stdout))["reclaiming"]:
            time.sleep(0.1)
        assert left["forks"] == left["broken"] == []

    @contextlib.contextmanager
    def untouched(self) -> Iterator[Picture]:
        """The host's project is the same, byte for byte, before and after."""
        before = picture(self.project)
        yield before
        assert difference(before, picture(self.project)) == []


def spots(*names: str) -> pytest.MarkDecorator:
    """Run the test at these: `person-disk:mode`."""
    return pytest.mark.parametrize("spot", names, indirect=True)


def settle(person: Person, disk: Disk, mode: str, hostfork: Run) -> Spot:
    """A home folder on the disk, on Btrfs in a subvolume that is theirs."""
    folder = disk.folder(person)
    if disk.kind == "btrfs":
        folder = f"{folder}/own"
        person.call(make_subvolume, folder)
    at_home = replace(person, home=make_home(folder, person.uid, person.gid))
    made = Spot(at_home, disk, mode, hostfork)
    at_home.call(os.mkdir, made.aside)
    return made
