"""`--storage-limit`: what does not fit is refused, what writes more is ended, and what holds less is left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rigs
from rigs import Disk, Person

Run = Callable[..., "subprocess.CompletedProcess[Any]"]
MIB = 1 << 20
LIMIT = 50 * MIB
MODES = ("", ":live")
PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")

FILL = """
import sys
with open(sys.argv[1], "wb") as file:
    for _ in range(int(sys.argv[2])):
        file.write(bytes(1 << 20))
"""
AGAIN = """
import os
for number in range(15):
    with open(f"f{number}", "wb") as file:
        for _ in range(30):
            file.write(bytes(1 << 20))
    os.unlink(f"f{number}")
"""
NAMELESS = """
import os
file = os.open("f", os.O_RDWR | os.O_CREAT)
os.unlink("f")
for _ in range(1024):
    os.write(file, bytes(1 << 20))
"""
REWRITE = """
import sys
with open("large", "r+b") as file:
    for _ in range(int(sys.argv[1])):
        file.write(b"x" * (1 << 20))
"""


class Place:
    """A project on a disk with a pool beside it, and hostfork run there with a limit."""

    def __init__(self, hostfork: Run, person: Person, disk: Disk) -> None:
        top = disk.folder(person)
        self.project, self.pool, self.file = f"{top}/proj", f"{top}/pool", f"{top}/r.json"
        self._hostfork, self.person = hostfork, person
        person.call(make_project, self.project)

    def run(self, *command: str, mode: str = "", limit: str = "50M", check: int, **options: Any) -> dict[str, Any]:
        """The result document; it always says what the limit was and what was taken."""
        self.said = self._hostfork(
            self.person, "run", "--private", self.project + mode, "--pool", self.pool, "--storage-limit", limit,
            "--result", self.file, *options.pop("words", ()), "--", *command, cwd=self.project, check=check, **options,
        )  # fmt: skip
        assert os.path.exists(self.file), self.said.stderr
        document: dict[str, Any] = json.loads(Path(self.file).read_text())
        return document

    def python(self, script: str, *arguments: str, check: int, **options: Any) -> dict[str, Any]:
        return self.run(sys.executable, "-c", script, *arguments, check=check, **options)

    def discard(self, document: dict[str, Any]) -> None:
        self._hostfork(self.person, "discard", document["fork"], "--yes", check=0)

    def changes(self, document: dict[str, Any]) -> dict[str, str]:
        shown = json.loads(self._hostfork(self.person, "diff", document["fork"], "--json", check=0).stdout)
        return {os.path.relpath(one["path"], self.project): one["change"] for one in shown["entries"]}

    def in_pool(self) -> list[str]:
        """The keys that lie in the pool, but for those that are being erased."""
        kinds = [kind for kind in os.scandir(self.pool) if kind.is_dir(follow_symlinks=False)]
        return [name for kind in kinds for name in os.listdir(kind) if not name.startswith("rm-")]


def make_project(folder: str) -> None:
    os.makedirs(f"{folder}/src")
    Path(f"{folder}/src/a").write_text("a\n")


@pytest.fixture
def roomy(disk: Disk, make_disk: Callable[..., Disk]) -> Disk:
    """Each kind of disk in turn, Btrfs with room for what it gives back late."""
    return make_disk("btrfs", 2000) if disk.kind == "btrfs" else disk


@pytest.fixture
def place(hostfork: Run, person: Person, roomy: Disk) -> Place:
    return Place(hostfork, person, roomy)


@pytest.fixture
def on_ext4(hostfork: Run, person: Person, ext4_disk: Disk) -> Place:
    return Place(hostfork, person, ext4_disk)


@pytest.fixture(params=["btrfs", "xfs"])
def sharing(hostfork: Run, person: Person, make_disk: Callable[..., Disk], request: pytest.FixtureRequest) -> Place:
    """On a filesystem that shares blocks, with a file of 100 MiB in the project."""
    found = Place(hostfork, person, make_disk(request.param, 2000))
    person.call(fill, f"{found.project}/large", 100)
    return found


def fill(path: str, megabytes: int) -> None:
    with open(path, "wb") as file:
        for _ in range(megabytes):
            file.write(bytes(MIB))
        os.fsync(file.fileno())


def assert_limited(document: dict[str, Any], limit: int = LIMIT) -> None:
    assert document["status"]["storage_limited"] is True
    assert document["storage_limit"] == limit
    assert document["storage_taken"] > limit


@pytest.mark.parametrize("mode", MODES)
def test_a_writer_is_ended(place: Place, mode: str) -> None:
    """1 GiB does not fit: 125, said in words and in the result, and what was written is kept as always."""
    document = place.python(FILL, "big", "1024", mode=mode, check=125)
    assert_limited(document)
    assert document["status"]["signal"] == signal.SIGKILL
    assert document["kept"]
    assert place.changes(document) == {"big": "created"}
    assert "the command was ended: its fork takes" in place.said.stderr
    assert "the storage limit is 50 MiB" in place.said.stderr
    assert "code storage.limit · status 125" in place.said.stderr
    place.discard(document)


def test_and_what_it_wrote_goes_where_that_is_asked(on_ext4: Place) -> None:
    document = on_ext4.python(FILL, "big", "1024", words=["--rm"], check=125)
    assert_limited(document)
    assert document["released"]
    assert on_ext4.in_pool() == []


def test_one_that_ends_before_it_is_seen_is_told_all_the_same(place: Place) -> None:
    """A run never succeeds with more than its limit."""
    document = place.python(FILL, "big", "52", check=125)
    assert_limited(document)
    assert "storage.limit" in place.said.stderr
    place.discard(document)


def test_less_is_left_alone(place: Place) -> None:
    """With the writer's file still growing at the end: what XFS sets aside for that is not counted."""
    document = place.python(FILL, "big", "45", check=0)
    assert document["status"]["storage_limited"] is False
    assert document["storage_limit"] == LIMIT
    assert 45 * MIB <= document["storage_taken"] <= LIMIT
    assert place.said.stderr.count("limit") == 0
    place.discard(document)


def test_a_sparse_file_takes_nothing(place: Place) -> None:
    document = place.run("truncate", "-s", "10G", "sparse", check=0)
    assert document["storage_taken"] < MIB
    place.discard(document)


def test_what_is_set_aside_for_a_file_counts(hostfork: Run, person: Person, xfs_disk: Disk) -> None:
    place = Place(hostfork, person, xfs_disk)
    assert_limited(document := place.run("sh", "-c", ": >f; fallocate -n -l 60M f", check=125))
    place.discard(document)


def test_many_small_files(on_ext4: Place) -> None:
    script = "for n in range(20000): open(f'{n}', 'w').write('x')"
    document = on_ext4.python(script, limit="20M", check=125)
    assert_limited(document, 20 * MIB)
    on_ext4.discard(document)


def test_who_writes_again_and_again_holds_no_more(place: Place) -> None:
    document = place.python(AGAIN, check=0)
    assert not document["status"]["storage_limited"]
    assert not document["kept"]


def test_a_file_without_a_name_counts(place: Place) -> None:
    """No walk finds it; its space is the fork's until it is closed."""
    document = place.python(NAMELESS, check=125)
    assert_limited(document)
    assert not document["kept"]


def test_a_file_with_several_names_counts_once(on_ext4: Place) -> None:
    script = FILL + "import os\nfor n in range(5): os.link('big', f'{n}')"
    on_ext4.discard(on_ext4.python(script, "big", "30", check=0))


def test_a_baseline_is_not_the_forks(on_ext4: Place, hostfork: Run) -> None:
    """Only what is written over it counts; a file of it that is written to is copied first, and counts whole."""
    on_ext4.person.call(fill, f"{on_ext4.project}/large", 60)
    pool = ("--pool", on_ext4.pool)
    hostfork(on_ext4.person, "baseline", "create", "b", "--from", on_ext4.project, *pool, check=0)
    run = ("run", "--base", "b", *pool, "--storage-limit", "50M", "--result", on_ext4.file, "--rm", "--", "sh", "-c")
    hostfork(on_ext4.person, *run, "head -c 9M /dev/zero >f", cwd=on_ext4.project, check=0)
    assert 9 * MIB <= json.loads(Path(on_ext4.file).read_text())["storage_taken"] < 10 * MIB
    hostfork(on_ext4.person, *run, "echo x >>large", cwd=on_ext4.project, check=125)
    assert_limited(json.loads(Path(on_ext4.file).read_text()))
    hostfork(on_ext4.person, "baseline", "remove", "b", check=0)


def test_who_is_without_a_cgroup(hostfork: Run, user: Person, ext4_disk: Disk) -> None:
    place = Place(hostfork, user, ext4_disk)
    assert_limited(document := place.python(NAMELESS, check=125, delegated=False))
    assert document["ownership"] == "subreaper"
    children = "import os\nif os.fork(): os.wait()\nelse: os.setsid()\n" + FILL
    assert_limited(document := place.python(children, "big", "1024", check=125, delegated=False))
    place.discard(document)


def test_scratch_on_disk_counts_and_in_memory_not(on_ext4: Place) -> None:
    on_ext4.person.call(os.makedirs, f"{on_ext4.project}/s")
    assert_limited(on_ext4.python(FILL, "s/big", "1024", words=["--scratch", "s"], check=125))
    document = on_ext4.python(FILL, "s/big", "60", words=["--scratch", "s:tmpfs=100M"], check=0)
    assert document["storage_taken"] < MIB


def test_relocated(on_ext4: Place) -> None:
    document = on_ext4.python(NAMELESS, words=["--relocated"], check=125, namespaces=False)
    assert_limited(document)


def test_the_time_limit_first(on_ext4: Place) -> None:
    document = on_ext4.run("sleep", "100", words=["--timeout", "300ms"], check=124)
    assert document["status"]["timed_out"]
    assert not document["status"]["storage_limited"]


def test_the_storage_limit_first(on_ext4: Place) -> None:
    document = on_ext4.python(FILL, "big", "1024", words=["--timeout", "60s"], check=125)
    assert_limited(document)
    assert not document["status"]["timed_out"]
    on_ext4.discard(document)


def test_the_storage_limit_in_the_grace_of_the_time_limit(on_ext4: Place) -> None:
    """It has no grace: who writes on after SIGTERM is ended at once. The time limit was first, and is the status."""
    script = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\ntime.sleep(60)\n" + FILL
    document = on_ext4.python(
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: exec(" + repr(FILL) + "))\nsignal.pause()\n" + script,
        "big", "1024", words=["--timeout", "300ms"], check=124,
    )  # fmt: skip
    assert_limited(document)
    assert document["status"]["timed_out"]
    on_ext4.discard(document)


# --- refused before the command --------------------------------------------------------------------------------------


def test_a_copy_that_does_not_fit_is_refused(on_ext4: Place, hostfork: Run) -> None:
    """By run and by plan; nothing is made."""
    on_ext4.person.call(fill, f"{on_ext4.project}/large", 5)
    document = on_ext4.run("touch", "ran", mode=":copy", limit="4M", check=125)
    assert document["status"]["error"]["code"] == "storage.limit"
    assert "5.0 MiB, and the storage limit is 4.0 MiB" in on_ext4.said.stderr
    assert "larger --storage-limit" in on_ext4.said.stderr
    assert document["fork"] is None
    assert on_ext4.in_pool() == []
    planned = ("--private", f"{on_ext4.project}:copy", "--pool", on_ext4.pool, "--storage-limit")
    assert "storage.limit" in hostfork(on_ext4.person, "plan", *planned, "4M", check=125).stderr
    assert "at most 6 MiB" in hostfork(on_ext4.person, "plan", *planned, "6M", check=0).stdout


@pytest.mark.slow
def test_a_tree_that_a_short_look_does_not_see_is_counted_whole(on_ext4: Place) -> None:
    on_ext4.person.call(make_many, on_ext4.project)
    document = on_ext4.run("true", mode=":copy", limit="1M", check=125)
    assert document["status"]["error"]["code"] == "storage.limit"
    assert "2.0 MiB, and the storage limit is 1.0 MiB" in on_ext4.said.stderr


def make_many(folder: str) -> None:
    """More names than are counted in a short look, of one file."""
    fill(f"{folder}/large", 2)
    for number in range(51_000):
        os.link(f"{folder}/large", f"{folder}/src/{number}")


def test_what_takes_more_than_it_seems_is_refused_once_it_is_there(on_ext4: Place, hostfork: Run) -> None:
    """600 files of a byte: a block each. The command never runs, and nothing stays."""
    on_ext4.person.call(rigs.write_files, on_ext4.project, {f"{number}": "x" for number in range(600)})
    document = on_ext4.run("touch", f"{on_ext4.pool}-ran", mode=":copy", limit="1M", check=125)
    assert document["status"]["error"]["code"] == "storage.limit"
    assert "before its command begins" in on_ext4.said.stderr
    assert not os.path.exists(f"{on_ext4.pool}-ran")
    assert on_ext4.in_pool() == []
    assert json.loads(hostfork(on_ext4.person, "list", "--json", check=0).stdout)["forks"] == []


def test_a_copy_counts_as_it_was_taken_and_as_it_grows(on_ext4: Place) -> None:
    on_ext4.person.call(fill, f"{on_ext4.project}/large", 30)
    assert on_ext4.run("true", mode=":copy", check=0)["storage_taken"] >= 30 * MIB
    document = on_ext4.run("sh", "-c", "head -c 30M /dev/urandom >large", mode=":copy", check=0)
    on_ext4.discard(document)
    document = on_ext4.python(FILL, "more", "30", mode=":copy", check=125)
    assert_limited(document)
    on_ext4.discard(document)


@pytest.mark.parametrize("word", ["0", "x", "-1M", "5X", ""])
def test_no_size(on_ext4: Place, word: str) -> None:
    assert on_ext4.run("true", limit=word, check=125)["status"]["error"]["code"] == "policy.bad-value"


def test_a_policy_has_a_limit_and_the_option_wins(on_ext4: Place, hostfork: Run) -> None:
    policy = f"{on_ext4.project}/p.toml"
    text = f'schema = 1\n[storage]\nlimit = "2M"\n[[rule]]\npath = "{on_ext4.project}"\naccess = "private"\n'
    on_ext4.person.call(rigs.write_files, on_ext4.project, {"p.toml": text})
    write = ("--", "sh", "-c", "head -c 3M /dev/zero >f")
    run = ("run", "--policy", policy, "--pool", on_ext4.pool, "--rm")
    assert "limit is 2 MiB" in hostfork(on_ext4.person, *run, *write, cwd=on_ext4.project, check=125).stderr
    hostfork(on_ext4.person, *run, "--storage-limit", "4M", *write, cwd=on_ext4.project, check=0)


# --- blocks that are shared ------------------------------------------------------------------------------------------


def test_what_is_shared_with_the_base_takes_nothing(sharing: Place) -> None:
    document = sharing.run("true", check=0)
    assert document["storage_taken"] < MIB
    document = sharing.run("mv", "large", "moved", check=0)
    assert document["storage_taken"] < MIB
    sharing.discard(document)


def test_only_what_is_rewritten_counts(sharing: Place) -> None:
    document = sharing.python(REWRITE, "10", check=0)
    assert 10 * MIB <= document["storage_taken"] < 12 * MIB
    sharing.discard(document)
    document = sharing.python(REWRITE, "80", check=125)
    assert_limited(document)
    sharing.discard(document)


def test_an_overlays_copy_of_a_file_may_share_its_blocks(sharing: Place) -> None:
    document = sharing.python(REWRITE, "10", mode=":live", check=0)
    assert document["storage_taken"] < 12 * MIB
    sharing.discard(document)


def test_clones_of_the_base_take_nothing(sharing: Place) -> None:
    """Also where the fork has several: what the filesystem did not grow by is not the fork's."""
    document = sharing.run("sh", "-c", "for n in 1 2 3; do cp --reflink=always large $n; done; sync .", check=0)
    assert document["storage_taken"] < 20 * MIB
    sharing.discard(document)


def test_clones_of_what_the_fork_wrote_count_once(sharing: Place) -> None:
    script = "head -c {0} /dev/zero >f; sync f; for n in 1 2 3; do cp --reflink=always f $n; done"
    document = sharing.run("sh", "-c", script.format("40M"), check=0)
    assert 40 * MIB <= document["storage_taken"] <= LIMIT
    sharing.discard(document)
    document = sharing.run("sh", "-c", script.format("60M"), check=125)
    assert_limited(document)
    sharing.discard(document)


# --- who holds the limit ---------------------------------------------------------------------------------------------


def meters() -> list[int]:
    """The processes that measure."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.endswith(b"/lifecycle/meter.py") for word in words):
                found.append(int(name))
    return found


def children(pid: int) -> set[int]:
    return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def begin(place: Place, script: str) -> "subprocess.Popen[bytes]":
    """A run whose command waits for the file `go` beside the project."""
    wait = f"until [ -e {place.project}-go ]; do sleep .05; done; touch {place.project}-runs; {script}"
    words = ("run", "--private", f"{place.project}:live", "--pool", place.pool, "--storage-limit", "50M")
    return place.person.popen(
        [PROGRAM, *words, "--result", place.file, "--", "sh", "-c", f"echo $$ >{place.project}-there; {wait}"],
        cwd=place.project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def await_file(path: str) -> None:
    end = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < end, path
        time.sleep(0.02)


def test_a_limit_that_nobody_holds_ends_the_command(on_ext4: Place) -> None:
    """Killing what measures is no way round it. The changes are kept."""
    process = begin(on_ext4, "sleep 100")
    await_file(f"{on_ext4.project}-there")
    (meter,) = children(process.pid) & set(meters())
    os.kill(meter, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 125, said
    assert b"workload.meter" in said
    assert json.loads(Path(on_ext4.file).read_text())["status"]["error"]["code"] == "workload.meter"
    assert not os.path.exists(f"{on_ext4.project}-runs")


def test_a_stopped_owner_stops_no_limit(on_ext4: Place) -> None:
    process = begin(on_ext4, "head -c 1G /dev/zero >big; touch ../big-done")
    await_file(f"{on_ext4.project}-there")
    command = int(Path(f"{on_ext4.project}-there").read_text())
    os.kill(process.pid, signal.SIGSTOP)
    Path(f"{on_ext4.project}-go").touch()
    await_end(command)
    os.kill(process.pid, signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 125, said
    assert_limited(document := json.loads(Path(on_ext4.file).read_text()))
    on_ext4.discard(document)


def await_end(pid: int) -> None:
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_measures_goes_with_its_owner(on_ext4: Place, hostfork: Run) -> None:
    process = begin(on_ext4, "sleep 100")
    await_file(f"{on_ext4.project}-there")
    (meter,) = children(process.pid) & set(meters())
    process.kill()
    process.communicate(timeout=60)
    await_end(meter)
    hostfork(on_ext4.person, "recover", check=0)


def loaded(person: Person, folder: str, *words: str) -> set[str]:
    """What a run imports, its owner alone."""
    done = person.run(
        [sys.executable, "-X", "importtime", PROGRAM, "run", "--private", folder, *words, "--", "true"], check=True
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_without_a_limit_nothing_measures(on_ext4: Place, leaves_nothing: None) -> None:
    measuring = {f"hostfork.{name}" for name in ("lifecycle.fits", "lifecycle.meter", "storage.level", "storage.taken")}
    assert measuring <= loaded(on_ext4.person, on_ext4.project, "--storage-limit", "50M")
    assert not measuring & loaded(on_ext4.person, on_ext4.project)


def calls(place: Place, trace: str, *words: str) -> int:
    """How many new programs a run starts."""
    file = f"{place.project}-trace"
    place.person.run(
        ["strace", "-f", "-qq", "-e", f"trace={trace}", "-o", file, PROGRAM, "run", "--private", place.project, *words,
         "--", "true"], check=True,
    )  # fmt: skip
    return sum("= 0" in line for line in Path(file).read_text().splitlines())


@pytest.mark.rig("strace")
def test_without_a_limit_no_process_is_started(hostfork: Run, root: Person, ext4_disk: Disk) -> None:
    place = Place(hostfork, root, ext4_disk)
    assert calls(place, "execve", "--storage-limit", "50M") == calls(place, "execve") + 1
