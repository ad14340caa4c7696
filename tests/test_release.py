"""Release: off the list at once, storage erased in the background, reported until it is gone, whoever is killed."""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rigs
from hostfork.lifecycle import prepare
from hostfork.lifecycle.record import PathRecord
from hostfork.storage import pace, reclaim, tree
from hostfork.storage import tally as tally_program
from hostfork.storage.choose import MECHANISMS, owner_of, storage_of
from hostfork.storage.contract import Guarantees, Offer, Removal, Source
from hostfork.storage.keys import Keys
from hostfork.storage.tally import Tally
from hostfork.vocabulary import Access, Guarantee, StorageKind

PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
SMALL = {"a": "a", "d/c": "d/c"}


def many(path, folders=30, files=100):
    """More than is erased while somebody waits."""
    for folder in range(folders):
        os.makedirs(f"{path}/many/{folder}")
        for file in range(files):
            Path(f"{path}/many/{folder}/{file}").touch()


@pytest.fixture
def project(person, ext4_disk):
    """A small project of the person's."""
    return rigs.make_project(person, ext4_disk.folder(person), SMALL)


@pytest.fixture
def large(person, project):
    """One with 3,000 files."""
    person.call(many, project)
    return project


def pool_of(person):
    return f"{person.state}/pool"


def waiting(pool):
    """The names of what is set aside."""
    return [one.name for one in reclaim.asides(pool)]


def erasers(pool):
    """The pids of the processes that erase in this pool."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if any(word.endswith(b"/reclaimer.py") for word in words) and os.fsencode(pool) in words:
                found.append(int(name))
    return found


@contextlib.contextmanager
def held(path):
    """Nobody can erase the storage at `path`, wherever it is moved, until the end."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def keep(hostfork, person, project, name="one", *extra):
    hostfork(person, "run", "-q", "--name", name, "--private", f"{project}:copy", *extra, "--", "touch",
             f"{project}/new", check=0)  # fmt: skip


def listed(hostfork, person):
    return json.loads(hostfork(person, "list", "--json", check=0).stdout)


def gone(person):
    """All of it is erased and nobody is at it any more."""
    rigs.wait_until(lambda: not waiting(pool_of(person)) and not erasers(pool_of(person)))


# --- a run and a discard ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["copy", "live"])
def test_a_small_fork_leaves_nothing_to_the_background(leaves_nothing, hostfork, person, project, mode):
    result = f"{person.home}/result.json"
    rules = ("--private", f"{project}:{mode}", "--scratch", f"{project}/d", "--result", result)
    hostfork(person, "run", *rules, "--", "true", check=0)
    assert waiting(pool_of(person)) == []
    assert erasers(pool_of(person)) == []
    found = json.loads(Path(result).read_text())
    assert (found["released"], found["leftovers"], found["reclaiming"]) == (True, [], False)


def run_held(person, large, *extra, **options):
    """A run that is over while the eraser of its storage waits for the test; gives the process, ended, and a lock."""
    script = "echo ready; read line"
    argv = [PROGRAM, "run", "--name", "one", "--private", f"{large}:copy", *extra, "--", "sh", "-c", script]
    owner = person.popen(argv, cwd=large, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    assert owner.stdout.readline() == b"ready\n"
    lock = contextlib.ExitStack()
    lock.enter_context(held(f"{pool_of(person)}/copy/one.0"))
    owner.communicate(b"go\n", timeout=60)
    assert owner.returncode == 0
    return lock


def test_a_large_fork_is_off_the_list_and_erased_by_nobodys_child(leaves_nothing, hostfork, person, large):
    """The process has none of the caller's descriptors, sessions and folders, and the lowest priority."""
    result = f"{person.home}/result.json"
    reader, writer = os.pipe()
    with run_held(person, large, "--result", result, pass_fds=(writer,)):
        os.close(writer)
        assert os.read(reader, 1) == b""  # whoever reads from the caller's pipeline sees its end
        found = json.loads(Path(result).read_text())
        assert (found["released"], found["leftovers"], found["reclaiming"]) == (True, [], True)
        assert listed(hostfork, person)["forks"] == []
        rigs.wait_until(lambda: reclaim.is_active(pool_of(person)))
        (pid,) = erasers(pool_of(person))
        opened = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        inside = [path for path in opened if path != "/dev/null"]
        assert all(path.startswith(pool_of(person)) for path in inside), opened
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert os.getsid(pid) not in (os.getsid(0), os.getpid())
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        assert rigs.find_program("ionice") is None or "idle" in subprocess.run(
            ["ionice", "-p", str(pid)], capture_output=True, text=True, check=True
        ).stdout  # fmt: skip
        assert os.stat(f"/proc/{pid}").st_uid == person.uid
        assert "hostfork-one" not in Path(f"/proc/{pid}/cgroup").read_text()  # its life holds no fork's group
        assert os.stat(f"/proc/{pid}/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino
    os.close(reader)
    gone(person)
    assert hostfork(person, "recover", check=0).stdout == ""


def test_what_waits_is_listed_and_the_name_is_free(leaves_nothing, hostfork, person, large):
    keep(hostfork, person, large)
    with held(f"{pool_of(person)}/copy/one.0"):
        done = hostfork(person, "discard", "one", "--yes", check=0)
        rigs.wait_until(lambda: reclaim.is_active(pool_of(person)))
        assert done.stdout.startswith("discarded one")
        (one,) = listed(hostfork, person)["reclaiming"]
        assert one == {
            "fork": "one", "pool": pool_of(person), "path": f"{pool_of(person)}/copy/rm-one.0", "active": True,
            "errno": None, "problem": None,
        }  # fmt: skip
        assert "one   reclaiming" in hostfork(person, "list", check=0).stdout
        keep(hostfork, person, large)
        with held(f"{pool_of(person)}/copy/one.0"):
            hostfork(person, "discard", "one", "--yes", check=0)
            names = waiting(pool_of(person))
            assert names[0] == "rm-one.0"
            assert names[1].startswith("rm-one.0~")
        assert len(erasers(pool_of(person))) <= 2
        rigs.wait_until(lambda: len(erasers(pool_of(person))) == 1)  # the others saw that one is at it
    gone(person)
    assert hostfork(person, "list", check=0).stdout == ""


def test_discard_says_that_space_comes_later_only_where_it_does(leaves_nothing, hostfork, person, project):
    keep(hostfork, person, project)
    assert hostfork(person, "discard", "one", "--yes", check=0).stdout == "discarded one\n"
    person.call(many, project)
    for words in (("--json",), ()):
        keep(hostfork, person, project)
        person.call(_keep_every_copy, pool_of(person))
        with held(f"{pool_of(person)}/copy/one.0"):
            said = hostfork(person, "discard", "one", "--yes", *words, check=0).stdout
        assert (json.loads(said)["reclaiming"] == ["one"]) if words else "comes back in the background" in said
        gone(person)


def _keep_every_copy(pool):
    """A kept copy holds only what changed."""
    many(f"{pool}/copy/one.0/tree")


def test_scratch_of_a_kept_fork_goes_in_the_background_too(leaves_nothing, hostfork, person, project):
    script = "mkdir d/x; i=0; while [ $i -lt 900 ]; do : >d/x/$i; i=$((i+1)); done; : >new; echo ready; read line"
    argv = [PROGRAM, "run", "-q", "--name", "one", "--private", f"{project}:copy", "--scratch", f"{project}/d", "--"]
    owner = person.popen([*argv, "sh", "-c", script], cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"ready\n"
    keys = os.listdir(f"{pool_of(person)}/scratch")
    (key,) = [key for key in keys if os.path.isdir(f"{pool_of(person)}/scratch/{key}/tree/x")]
    with held(f"{pool_of(person)}/scratch/{key}"):
        owner.communicate(b"\n", timeout=60)
        assert f"rm-{key}" in waiting(pool_of(person))
        assert [fork["activity"] for fork in listed(hostfork, person)["forks"]] == ["idle"]
    gone(person)
    hostfork(person, "discard", "one", "--yes", check=0)


# --- death of the eraser ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["run", "recover", "discard"])
def test_what_a_killed_eraser_left_is_erased_by_the_next(leaves_nothing, hostfork, person, large, how):
    with run_held(person, large):
        rigs.wait_until(lambda: reclaim.is_active(pool_of(person)))
        (pid,) = erasers(pool_of(person))
        os.kill(pid, signal.SIGKILL)
        rigs.wait_until(lambda: not erasers(pool_of(person)))
        assert "reclaiming" in (said := hostfork(person, "list", check=0).stdout)
        assert "hostfork recover" in said
        assert not listed(hostfork, person)["reclaiming"][0]["active"]
    time.sleep(reclaim.OLD)
    if how == "recover":
        assert "1 piece of private storage" in hostfork(person, "recover", check=0).stdout
        assert waiting(pool_of(person)) == []
    elif how == "run":
        hostfork(person, "run", "--private", f"{large}/many/1:copy", "--", "true", check=0)
    else:
        keep(hostfork, person, f"{large}/many/1", "two")
        hostfork(person, "discard", "two", "--yes", check=0)
    gone(person)


def test_kills_at_any_moment_of_an_erasure(leaves_nothing, person, large, ext4_disk):
    """Each next one goes on; in the end there is nothing."""
    pool, storage, choice = ext4_disk.folder(person, "pool"), storage_of(StorageKind.COPY), random.Random(7)
    person.call(storage.prepare, "k.0", Source(large), pool)
    person.call(storage.set_aside, "k.0", pool)
    left, kills = [], 0
    while waiting(pool):
        person.call(reclaim.start, (pool,))
        rigs.wait_until(lambda: erasers(pool) or not waiting(pool))
        time.sleep(choice.random() * 0.12)
        for pid in erasers(pool):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        rigs.wait_until(lambda: not erasers(pool))
        left.append(sum(len(files) for _, _, files in os.walk(pool)))
        assert len(left) < 200
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    assert os.listdir(f"{pool}/copy") == []


def test_one_at_a_time_in_a_pool(leaves_nothing, person, large, ext4_disk):
    pool, storage = ext4_disk.folder(person, "pool"), storage_of(StorageKind.COPY)
    person.call(storage.prepare, "k.0", Source(large), pool)
    person.call(storage.set_aside, "k.0", pool)
    with held(f"{pool}/copy/rm-k.0"):
        person.call(reclaim.start, (pool,))
        rigs.wait_until(lambda: reclaim.is_active(pool))
        (first,) = erasers(pool)
        for _ in range(3):
            person.call(reclaim.start, (pool,))
        rigs.wait_until(lambda: erasers(pool) == [first])
    rigs.wait_until(lambda: not erasers(pool))
    assert waiting(pool) == []


def test_what_comes_as_the_eraser_ends_is_not_left(leaves_nothing, person, project, ext4_disk):
    """Set aside by others while it works: it looks again before it ends."""
    pool, storage = ext4_disk.folder(person, "pool"), storage_of(StorageKind.COPY)
    for key in ("k.0", "k.1"):
        person.call(storage.prepare, key, Source(project), pool)
    person.call(storage.set_aside, "k.0", pool)
    with held(f"{pool}/copy/rm-k.0"):
        person.call(reclaim.start, (pool,))
        rigs.wait_until(lambda: reclaim.is_active(pool))
        person.call(storage.set_aside, "k.1", pool)
    rigs.wait_until(lambda: not erasers(pool))
    assert waiting(pool) == []


def test_what_others_are_just_at_is_left_to_them(leaves_nothing, person, large, ext4_disk, monkeypatch):
    """Many runs that end at once start no process for each other's storage; what has waited for a while is nobody's."""
    pool, storage = ext4_disk.folder(person, "pool"), storage_of(StorageKind.COPY)
    person.call(storage.prepare, "k.0", Source(large), pool)
    person.call(storage.set_aside, "k.0", pool)
    monkeypatch.setattr(reclaim, "OLD", 1000.0)
    assert person.call(reclaim.erase_soon, pool, ()) == (Removal.GONE, [])
    assert erasers(pool) == []
    monkeypatch.setattr(reclaim, "OLD", -1.0)
    person.call(reclaim.erase_soon, pool, ())
    rigs.wait_until(lambda: not waiting(pool) and not erasers(pool))


# --- what cannot be erased --------------------------------------------------------------------------------------------


def stuck(person, hostfork, project, path):
    """A discard whose storage cannot be erased at `path`; it is said everywhere, and nobody tries for ever."""
    done = hostfork(person, "discard", "one", "--yes", check=0)
    assert "private storage one.0" in done.stderr
    found = listed(hostfork, person)
    assert found["forks"] == []
    (one,) = found["reclaiming"]
    assert (one["fork"], one["path"], one["active"]) == ("one", path, False)
    assert path in one["problem"]
    assert one["problem"] in hostfork(person, "list", check=0).stderr
    assert (
        path in hostfork(person, "doctor").stdout.replace("\n", " ")
        or path in hostfork(person, "doctor", "--json").stdout
    )
    hostfork(person, "run", "--private", f"{project}:copy", "--", "true", check=0)
    assert erasers(pool_of(person)) == []
    assert one["problem"] in hostfork(person, "recover", check=1).stderr
    assert erasers(pool_of(person)) == []
    return one


def test_a_mount_in_it(leaves_nothing, hostfork, root, ext4_disk):
    project = rigs.make_project(root, ext4_disk.folder(root), SMALL)
    keep(hostfork, root, project)
    place = f"{pool_of(root)}/copy/one.0/tree/mounted"
    os.mkdir(place)
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    path = f"{pool_of(root)}/copy/rm-one.0/tree/mounted"
    try:
        one = stuck(root, hostfork, project, path)
        assert "mounted there" in one["problem"]
    finally:
        subprocess.run(["umount", path], check=True)
    assert "1 piece of private storage" in hostfork(root, "recover", check=0).stdout
    assert hostfork(root, "list", check=0).stdout == ""


def test_a_folder_of_others_in_it(leaves_nothing, hostfork, root, user, ext4_disk):
    project = rigs.make_project(user, ext4_disk.folder(user), SMALL)
    keep(hostfork, user, project)
    os.makedirs(f"{pool_of(user)}/copy/one.0/tree/theirs/deep")
    path = f"{pool_of(user)}/copy/rm-one.0/tree/theirs/deep"
    one = stuck(user, hostfork, project, path)
    assert "rm -r" in one["problem"]
    shutil.rmtree(f"{pool_of(user)}/copy/rm-one.0/tree/theirs")
    hostfork(user, "recover", check=0)
    assert waiting(pool_of(user)) == []


# --- pools that were named --------------------------------------------------------------------------------------------


def litter(pool):
    os.mkdir(f"{pool}/.probe-{2**22 + 1}-7")
    os.makedirs(f"{pool}/copy/new-nobody.0/tree")
    os.makedirs(f"{pool}/scratch/rm-nobody.1/tree")


def test_recovery_knows_named_pools(leaves_nothing, hostfork, person, project, ext4_disk):
    """Trials and storage that no fork owns go there too; what is a fork's of another state folder stays."""
    pool = ext4_disk.folder(person, "pool\n")
    os.chmod(pool, 0o700)
    other = {"XDG_STATE_HOME": ext4_disk.folder(person)}
    arguments = ("run", "-q", "--pool", pool, "--private", f"{project}:copy", "--keep")
    hostfork(person, *arguments, "--name", "theirs", "--", "true", env=other, check=0)
    hostfork(person, *arguments, "--name", "ours", "--", "true", check=0)
    person.call(litter, pool)
    assert "3 pieces of private storage" in hostfork(person, "recover", check=0).stdout
    assert sorted(os.listdir(f"{pool}/copy")) == ["ours.0", "theirs.0"]
    assert [name for name in os.listdir(pool) if "probe" in name] == []
    hostfork(person, "discard", "theirs", "--yes", env=other, check=0)
    hostfork(person, "discard", "ours", "--yes", check=0)
    assert os.listdir(f"{pool}/copy") == []


def test_a_state_folder_that_is_away_keeps_its_storage(leaves_nothing, hostfork, person, project, ext4_disk):
    pool = ext4_disk.folder(person, "pool")
    os.chmod(pool, 0o700)
    away = ext4_disk.folder(person)
    arguments = (
        "run",
        "-q",
        "--pool",
        pool,
        "--private",
        f"{project}:copy",
        "--keep",
        "--name",
        "theirs",
        "--",
        "true",
    )
    hostfork(person, *arguments, env={"XDG_STATE_HOME": away}, check=0)
    hostfork(person, "run", "--pool", pool, "--private", f"{project}:copy", "--", "true", check=0)
    os.rename(f"{away}/hostfork", f"{away}/elsewhere")
    assert hostfork(person, "recover", check=0).stdout == ""
    assert os.listdir(f"{pool}/copy") == ["theirs.0"]


def test_a_named_pool_is_forgotten_when_it_is_empty_and_old(leaves_nothing, hostfork, person, project, ext4_disk):
    pool = ext4_disk.folder(person, "pool")
    os.chmod(pool, 0o700)
    arguments = ("run", "--pool", pool, "--private", f"{project}:copy", "--", "true")
    hostfork(person, *arguments, check=0)
    (link,) = Path(person.state, "pools").iterdir()
    assert os.readlink(link) == pool
    hostfork(person, "recover", check=0)
    assert os.path.lexists(link)
    os.utime(link, (0, 0), follow_symlinks=False)
    hostfork(person, "recover", check=0)
    assert not os.path.lexists(link)


# --- exports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["", "--changes-only"])
def test_what_a_killed_export_left_is_removed(leaves_nothing, hostfork, person, project, ext4_disk, form):
    """It is named in the state folder before it is made; the fork stays."""
    script = "i=0; while [ $i -lt 4000 ]; do : >d/$i; i=$((i+1)); done"
    command = ("--private", f"{project}:copy", "--", "sh", "-c", script)
    hostfork(person, "run", "-q", "--name", "one", *command, cwd=project, check=0)
    above = ext4_disk.folder(person)
    owner = person.popen([PROGRAM, "export", "one", f"{above}/out", *filter(None, [form])])
    rigs.wait_until(lambda: list(Path(above).glob(".hostfork-export-*/d/*")))
    owner.send_signal(signal.SIGSTOP)
    assert len(os.listdir(f"{person.state}/stages")) == 1
    hostfork(person, "recover", check=0)
    assert list(Path(above).glob(".hostfork-export-*"))  # its owner lives
    owner.kill()
    owner.wait()
    left = list(Path(above).glob(".hostfork-export-*"))
    assert len(left) == 1, os.listdir(above)
    assert (
        f"{left[0]}, which an export that was killed left, was removed" in hostfork(person, "recover", check=0).stdout
    )
    assert os.listdir(above) == []
    assert os.listdir(f"{person.state}/stages") == []
    hostfork(person, "discard", "one", "--yes", check=0)
    gone(person)


# --- how far a copy is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [True, False])
def test_a_long_copy_is_counted_beside_it(leaves_nothing, person, project, monkeypatch, copies):
    """What the short look did not come to the end of is told with totals as soon as a process of its own knows them."""
    monkeypatch.setattr(prepare, "_COUNT_AFTER", -1.0)

    def life():
        os.mkdir(f"{project}/left out")
        for name in ("one", "left out/other"):
            Path(project, name).write_bytes(b"x" * 5000)
        os.link(f"{project}/one", f"{project}/two")
        record = PathRecord(Access.PRIVATE, project, "p", True, "k.0", StorageKind.COPY, omit=("left out",))
        offer = Offer(StorageKind.COPY, Guarantees(Guarantee.INDEPENDENT), "", None if copies else 0, None)
        told = []
        progress = prepare._Progress(record, offer, told.append)
        rigs.wait_until(lambda: progress(1, 7) or told[-1].files_total is not None)
        progress.end()
        progress.end()
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        return told[0], told[-1]

    first, last = person.call(life)
    assert (first.files, first.bytes) == (1, 7)
    assert last.files_total == 5  # a, d, d/c, one, two
    assert last.bytes_total == (5004 if copies else None)


def test_without_a_count_there_is_no_total(person, project, monkeypatch):
    for program in ("/nowhere", "/bin/false"):
        monkeypatch.setattr(sys, "executable", program)
        count = Tally(project, ())
        time.sleep(0.05)
        assert count.found() is None
        count.end()


def test_a_count_is_for_its_owner_alone(person, project):
    """One whose owner died before it began counts nothing."""
    for owner, said in ((os.getpid(), b"3 4\n"), (1, b"")):
        command = [sys.executable, "-I", "-S", tally_program.__file__, str(owner), project]
        assert person.call(_output, command, owner) == said


def _output(command, owner):
    if owner != 1:
        command[4] = str(os.getpid())
    return subprocess.run(command, check=True, capture_output=True).stdout


# --- the pieces -------------------------------------------------------------------------------------------------------


def test_the_kinds_are_those_of_the_mechanisms(tmp_path):
    others = {StorageKind.SCRATCH, StorageKind.BASELINE}
    assert set(MECHANISMS) | others == set(StorageKind)
    for kind in StorageKind:
        owner = owner_of(kind)
        assert kind in others or owner.keys_of(str(tmp_path)).folder == f"{tmp_path}/{kind.value}"
        assert getattr(owner, "mechanism", None) is kind.mechanism


def removal(path, entries, largest=1 << 30):
    """A removal of `path` in no time at all beyond so many entries; what it gave."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        tree.remove_tree(os.path.basename(path), folder, pace.Brief(entries, -1.0, largest))
    except pace.OutOfTime:
        return "out of time"
    finally:
        os.close(folder)
    return "done"


def test_a_brief_removal_goes_on_for_some_entries_whatever_the_time(tmp_path):
    many(tmp_path / "t", folders=3, files=50)
    assert removal(str(tmp_path / "t"), 1000) == "done"
    many(tmp_path / "t", folders=3, files=100)
    assert removal(str(tmp_path / "t"), 200) == "out of time"
    assert 0 < sum(len(files) for _, _, files in os.walk(tmp_path)) <= 100
    assert removal(str(tmp_path / "t"), 1000) == "done"
    assert os.listdir(tmp_path) == []


def test_a_brief_removal_does_not_begin_with_a_large_file(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "large").write_bytes(b"x" * 100_000)
    assert removal(str(tmp_path / "t"), 1000, largest=50_000) == "out of time"
    os.link(tmp_path / "t" / "large", tmp_path / "other")  # then no block is freed
    assert removal(str(tmp_path / "t"), 1000, largest=50_000) == "done"


def test_a_key_can_be_made_again_while_its_old_storage_waits(ext4_disk, person):
    def life(pool):
        keys, names = Keys(pool, "copy"), []
        for _ in range(3):
            Path(keys.begin("k"), "file").touch()
            keys.commit("k")
            names += keys.set_aside("k")
        Path(keys.begin("k"), "half").touch()
        names += keys.set_aside("k")
        return names, keys.asides(), keys.set_aside("k"), keys.remove("k"), keys.asides()

    names, asides, none, removed, left = person.call(life, ext4_disk.folder(person))
    assert sorted(names) == list(asides)
    assert len(set(names)) == 4
    assert (none, removed, left) == ((), Removal.GONE, ())


def test_where_it_cannot_be_started_nothing_fails(person, ext4_disk, monkeypatch):
    pool, storage = ext4_disk.folder(person, "pool"), storage_of(StorageKind.COPY)
    monkeypatch.setattr(sys, "executable", "")
    person.call(reclaim.start, (pool,))
    assert erasers(pool) == []
    assert storage.keys(pool) == ()
