"""The scout of a baseline's walk: what is taken is the same with it, and when it dies, as without."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from hostfork.baseline import errands, scout
from hostfork.baseline.current import current
from hostfork.errors import StorageError
from hostfork.storage import crew
from hostfork.storage.contract import Source
from hostfork.storage.lines import Line
from hostfork.storage.tree import remove_tree
from rigs import Disk, Person
from storage_cases import OverBaseline, facts, sample, write
from test_baseline import change, seen, small

STORAGE = OverBaseline()


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the tree is and busy the machine, a scout looks at as much of it as it can."""
    monkeypatch.setattr(scout, "LEAST", 0)
    monkeypatch.setattr(errands, "_EVERY", 1)
    monkeypatch.setattr(crew, "idle_processors", lambda: 1)
    return


def wide(root: str) -> None:
    """A tree with enough folders that a scout gets some."""
    for number in range(60):
        os.makedirs(f"{root}/{number % 6}/{number}/in")
        write(f"{root}/{number % 6}/{number}/one", b"%d" % number)
        write(f"{root}/{number % 6}/{number}/in/two", b"%d" % number)
    small(root)


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk waits for each answer: it is the scout that looks at all that it may be given."""
    take = errands.Errands.take

    def waiting(self: errands.Errands, wait: bool) -> None:
        take(self, wait or bool(self._given))

    monkeypatch.setattr(errands.Errands, "take", waiting)


@pytest.mark.parametrize("seed", range(8))
def test_random_changes_are_taken_with_a_scout(
    seed: int, ext4_disk: Disk, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletions, types, new folders, renames: a fork shows each time what is there."""
    patient(monkeypatch)
    source, pool = sample(person, ext4_disk, wide)
    choice = random.Random(seed)
    for number in range(8):
        person.call(change, source, random.Random(choice.random()), choice.randrange(12))
        person.call(STORAGE.prepare, f"k{number}", Source(source), pool)
        assert seen(person, f"k{number}", pool) == person.call(facts, source), (seed, number)


def scattered(source: str) -> None:
    """One change each in places far from each other."""
    write(f"{source}/1/1/in/two", b"other")
    os.unlink(f"{source}/2/2/one")
    os.mkdir(f"{source}/3/3/in/new")
    write(f"{source}/3/3/in/new/x", b"x")
    os.chmod(f"{source}/4/4/in", 0o700)
    os.rename(f"{source}/5/5", f"{source}/0/5")


def test_most_of_a_tree_is_the_scouts(ext4_disk: Disk, root: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, and the walk enters none of what it found to be the same."""
    patient(monkeypatch)
    source, pool = sample(root, ext4_disk, wide)
    STORAGE.prepare("a", Source(source), pool)
    answered: dict[str, tuple[str, ...] | None] = {}
    answers = scout.Scout.answers

    def noted(self: scout.Scout, wait: bool) -> list[tuple[str, tuple[str, ...] | None]]:
        found = answers(self, wait)
        answered.update(found)
        return found

    monkeypatch.setattr(scout.Scout, "answers", noted)
    scattered(source)
    with current(Source(source), pool) as ready:
        assert ready.files == 4  # two of them in the folder that was moved
    assert answered
    assert None not in answered.values()
    STORAGE.prepare("b", Source(source), pool)
    assert seen(root, "b", pool) == facts(source)


@pytest.mark.parametrize("at", range(4))
def test_a_scout_that_is_killed_costs_time_alone(
    at: int, ext4_disk: Disk, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk does itself what the scout had."""
    source, pool = sample(person, ext4_disk, wide)
    person.call(STORAGE.prepare, "a", Source(source), pool)
    person.call(scattered, source)
    give, given = scout.Scout.give, []

    def kill(self: scout.Scout, relative: str) -> None:
        given.append(relative)
        if len(given) > at:
            os.kill(self._pid, signal.SIGKILL)
        give(self, relative)

    monkeypatch.setattr(scout.Scout, "give", kill)
    person.call(STORAGE.prepare, "b", Source(source), pool)
    assert seen(person, "b", pool) == person.call(facts, source)


def test_what_a_user_cannot_read_is_named(ext4_disk: Disk, user: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was closed since is an error with its path, whoever came across it."""
    patient(monkeypatch)
    source, pool = sample(user, ext4_disk, wide)
    user.call(STORAGE.prepare, "a", Source(source), pool)
    user.call(os.chmod, f"{source}/2/8/in", 0)

    def refused() -> str:
        with pytest.raises(StorageError) as caught:
            STORAGE.prepare("b", Source(source), pool)
        return str(caught.value.details) + caught.value.message

    assert "2/8/in" in user.call(refused)


def test_deeper_than_a_path_can_say(ext4_disk: Disk, person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change at the end of a chain that is longer than PATH_MAX."""
    patient(monkeypatch)

    def chain(root: str) -> None:
        wide(root)
        here = os.open(root, os.O_RDONLY)
        for _ in range(60):
            name = "d" * 100
            os.mkdir(name, dir_fd=here)
            inner = os.open(name, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(os.open("end", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here))
        os.close(here)

    def lengthen() -> None:
        here = os.open(source, os.O_RDONLY)
        for _ in range(60):
            here = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.write(os.open("end", os.O_WRONLY, dir_fd=here), b"more")

    def files() -> int:
        with current(Source(source), pool) as ready:
            return ready.files

    def clear() -> None:
        for path in (source, pool):
            remove_tree(os.path.basename(path), os.open(os.path.dirname(path), os.O_RDONLY))

    source, pool = sample(person, ext4_disk, chain)
    try:
        person.call(files)
        person.call(lengthen)
        assert person.call(files) == 1
        assert person.call(files) == 0
    finally:
        person.call(clear)


def test_what_is_left_out_is_left_out_by_the_scout(
    ext4_disk: Disk, root: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes in omitted places are none."""
    patient(monkeypatch)
    source, pool = sample(root, ext4_disk, wide)
    omitting = Source(source, omit=("1/7/in", "2/8/one"))
    with current(omitting, pool):
        pass
    write(f"{source}/1/7/in/two", b"other")
    write(f"{source}/2/8/one", b"other")
    with current(omitting, pool) as ready:
        assert ready.files == 0


def test_it_ends_with_its_owner(ext4_disk: Disk, root: Person) -> None:
    """SIGKILL of the walk leaves no scout."""
    source, pool = sample(root, ext4_disk, wide)
    STORAGE.prepare("a", Source(source), pool)
    top = Line.of(Source(source), pool).top()
    assert top is not None
    program = (
        "import sys, os, time\nfrom hostfork.baseline.scout import Scout\n"
        f"one = Scout({top.file('manifest')!r}, {source!r}, ())\n"
        "one.give('1'); one.answers(True)\nprint(one._pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert os.path.exists(f"/proc/{pid}")
        owner.kill()
    end = time.monotonic() + 10
    while _lives(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("seconds", "told"), [(0.05, 0), (1.5, 1)])
def test_a_wait_of_a_moment_is_not_told(seconds: float, told: int, ext4_disk: Disk, root: Person) -> None:
    """What runs in the background holds a line for moments; only who copies makes others wait longer."""
    source, pool = sample(root, ext4_disk, small)
    STORAGE.prepare("a", Source(source), pool)
    line, held, waited = Line.of(Source(source), pool), threading.Event(), list[Any]()

    def hold() -> None:
        with line.held() as free:
            assert free
            held.set()
            time.sleep(seconds)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    with current(Source(source), pool, waiting=lambda: waited.append(1)):
        pass
    holder.join()
    assert len(waited) == told
