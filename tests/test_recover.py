"""What crashes leave, and that recovery puts all of it right: nothing stays behind, and no evidence is lost."""

import json
import os
import sys
from pathlib import Path

import pytest

KILLER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kill_runs.py")
MODES = ("", ":live")


@pytest.fixture
def project(person, ext4_disk):
    """A small project of the person's."""
    folder = os.path.join(ext4_disk.folder(person), "proj")
    person.call(_make_project, folder)
    return folder


def _make_project(folder):
    os.makedirs(f"{folder}/d/e")
    os.mkdir(f"{folder}/scratch")
    for name in ("a", "b", "d/c", "d/e/f"):
        Path(folder, name).write_text(name)


def kill(person, how, project, mode, rounds, seed=1):
    """Let the program kill that often; gives its rounds. A round that left something is told whole."""
    done = person.run([sys.executable, KILLER, how, project, mode, str(rounds), str(seed)], timeout=150)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{done.stderr}\n" + (json.dumps(told[-1], indent=1) if told else "")
    assert len(told) == rounds
    return told


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("how", "rounds"),
    [("times", 40), ("group", 25), ("calls", 60), ("program", 15), ("life", 15), ("keeper", 25), ("command", 10)],
)
def test_a_kill_at_any_moment(leaves_nothing, person, project, mode, how, rounds):
    """Five hundred and more kills (CASES 21): no process, no mount, no storage, no group, no lost evidence."""
    kill(person, how, project, mode, rounds)
