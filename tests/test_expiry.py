"""Kept forks expire when they should, in the right order, and never while anybody uses them; nothing goes untold."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import rigs
from hostfork import api
from hostfork.errors import Code, ForkError
from hostfork.lifecycle import expired, expirer, expiry, unused, uses
from hostfork.lifecycle.config import KeepRules
from hostfork.lifecycle.store import Store, state_folder
from rigs import wait_until
from test_recover import FILES, kill

pytestmark = pytest.mark.usefixtures("leaves_nothing")

DAY = 86400


@pytest.fixture
def project(person, ext4_disk):
    """A small project of the person's, whose `out` is ignored."""
    files = {"a": "a", "b": "b", "d/c": "c", ".gitignore": "out/\n", "scratch/": ""}
    return rigs.make_project(person, ext4_disk.folder(person), files)


def keep(rule, name, script="echo x >new", days=0.0, cwd=None):
    """A kept fork, not used for so many days."""
    rules = api.RuleOptions(private=(rule,))
    request = api.Request(("sh", "-c", script), rules=rules, cwd=cwd or rule, name=name, keep=api.Keep.ALWAYS)
    outcome = api.run(request)
    assert outcome.kept
    if days:
        age(name, days)
    return outcome


def age(name, days):
    moment = time.time() - days * DAY
    os.utime(f"{state_folder()}/forks/{name}/use", (moment, moment))


def names():
    return [fork.name for fork in api.Fork.all()]


def gone(**options):
    """What goes, with the key by which it does."""
    return [(one.name, one.reason) for one in api.gc(**options).gone]


def configure(text):
    path = Path(os.environ["XDG_CONFIG_HOME"], "hostfork/config.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def storage_left():
    pool = f"{state_folder()}/pool"
    return [name for kind in os.listdir(pool) for name in os.listdir(f"{pool}/{kind}")]


# --- what goes -------------------------------------------------------------------------------------------------------


def test_a_fork_goes_a_fortnight_after_its_last_use(person, project):
    assert person.call(_by_age, project)


def _by_age(project):
    keep(project, "young", days=13.9)
    keep(project, "old", days=14.1)
    keep(project, "older", "echo yyy >a", days=30)
    keep(project, "future", days=-5)
    before = os.listdir(f"{state_folder()}/forks")
    assert gone(dry_run=True) == [("older", "keep-days"), ("old", "keep-days")]
    assert os.listdir(f"{state_folder()}/forks") == before
    done = api.gc()
    assert [(one.name, one.why, one.changes, one.paths) for one in done.gone] == [
        ("older", "not used for 30 d (keep-days 14)", 1, (project,)),
        ("old", "not used for 14 d (keep-days 14)", 1, (project,)),
    ]
    assert (done.over, done.waiting, done.spared, done.leftovers) == ((), (), (), ())
    assert names() == ["future", "young"]
    assert [one.name for one in api.expired()] == ["old", "older"]
    assert api.expired()[1].command == ("sh", "-c", "echo yyy >a")
    wait_until(lambda: not [name for name in storage_left() if "old" in name])
    assert api.gc().gone == ()
    return True


def test_what_is_only_in_ignored_folders_goes_after_a_day(person, project):
    assert person.call(_by_ignored, project)


def _by_ignored(project):
    keep(project, "out", "mkdir out; echo x >out/x", days=1.1)
    keep(project, "both", "mkdir out; echo x >out/x; echo y >new", days=1.1)
    keep(project, "nothing", "true", days=1.1)
    keep(project, "fresh", "mkdir out; echo x >out/x", days=0.9)
    assert gone() == [("out", "keep-days-ignored")]
    configure('[keep]\nkeep-days-ignored = "none"\nkeep-days = 2\n')
    age("fresh", 1.9)
    assert gone() == []
    age("fresh", 2.1)
    assert gone() == [("fresh", "keep-days")]
    return True


def test_what_may_not_expire_stays(person, project):
    assert person.call(_never, project)


def _never(project):
    for name in ("pinned", "awaits", "torn-end"):
        keep(project, name, days=100)
    assert api.Fork.open("pinned").pin()
    assert not api.Fork.open("pinned").pin()
    record = Path(state_folder(), "forks/awaits/record.json")
    record.write_text(record.read_text().replace('"disposition":"open"', '"disposition":"awaiting-approval"'))
    journal = Path(state_folder(), "forks/torn-end/journal.jsonl")
    journal.write_text("".join(line for line in journal.read_text().splitlines(True) if '"kept"' not in line))
    done = api.gc()
    assert (done.gone, done.waiting) == ((), ("torn-end",))
    assert [item.name for item in api.recover()] == ["torn-end"]
    assert api.Fork.open("torn-end").last_use > time.time() - 100  # its time begins when it is found
    assert api.Fork.open("pinned").goes() is None
    assert api.Fork.open("pinned").pin(False)
    assert gone() == [("pinned", "keep-days")]
    assert names() == ["awaits", "torn-end"]
    return True


def test_the_least_used_goes_where_there_are_too_many(person, project):
    assert person.call(_by_number, project)


def _by_number(project):
    for days, name in ((9, "nine"), (3, "three"), (5, "five"), (0, "zero"), (2, "two")):
        keep(project, name, days=days)
    configure("[keep]\nmax-forks = 3\n")
    assert gone(dry_run=True) == [("nine", "max-forks"), ("five", "max-forks")]
    api.Fork.open("nine").pin()
    assert gone() == [("five", "max-forks"), ("three", "max-forks")]
    configure("[keep]\nmax-forks = 1\n")
    done = api.gc()
    assert [one.name for one in done.gone] == ["two"]
    (over,) = done.over
    assert over == "3 forks are kept (max-forks 1), and those that are left are pinned or were used within a day"
    assert names() == ["nine", "zero"]
    return True


def test_the_least_used_goes_where_they_take_too_much(person, project):
    assert person.call(_by_bytes, project)


def _by_bytes(project):
    for days, name in ((9, "nine"), (5, "five"), (3, "three"), (0, "zero")):
        keep(project, name, "head -c 1000000 /dev/urandom >new", days=days)
    for name in ("five", "three"):  # never measured; measured by gc, which is no use
        path = Path(state_folder(), f"forks/{name}/use")
        moment = path.stat().st_mtime
        path.write_text("")
        os.utime(path, (moment, moment))
    configure('[keep]\nmax-bytes = "3M"\n')
    assert gone(dry_run=True) == [("nine", "max-bytes")]
    assert api.kept_bytes()[0] == 2
    (one,) = api.gc().gone
    assert one.name == "nine"
    assert 1000000 < one.bytes < 1100000
    assert one.why.startswith("forks in ")
    forks, total = api.kept_bytes()
    assert (forks, total // 1000000) == (3, 3)
    configure("[keep]\nmax-bytes = 500000\n")
    assert gone() == [("five", "max-bytes"), ("three", "max-bytes")]
    assert "max-bytes" in api.gc().over[0]
    assert names() == ["zero"]
    return True


def test_a_size_that_others_share_counts_for_nobody(root, xfs_disk):
    """An upper bound is measured before anything goes for it."""
    assert root.call(_shared, rigs.make_project(root, xfs_disk.folder(root), {"a": "x" * 2000000}))


def _shared(project):
    os.environ["XDG_STATE_HOME"] = os.path.join(os.path.dirname(project), "state")
    keep(project, "one", "echo x >>a", days=3)
    assert api.kept_bytes()[1] > 2000000
    configure("[keep]\nmax-bytes = 1000000\n")
    assert gone() == []
    assert api.kept_bytes()[1] < 100000
    (holder,) = api.usage().holders
    assert holder.space.shared > 1900000
    assert api.Fork.open("one").discard() == ()
    return True


def test_an_automatic_baseline_goes_when_nobody_used_it_for_long(person, project):
    assert person.call(_baselines, project)


def _baselines(project):
    pool = f"{state_folder()}/pool"
    over = project + ":overlay"
    keep(over, "one", "echo x >new; head -c 100000 /dev/urandom >large", cwd=project)
    (line,) = unused.automatic(pool)
    assert (line.in_use, line.goes(KeepRules()), line.line.source.path) == (True, None, project)
    age_line(line, 20)
    assert gone() == []
    holders = {one.kind: one for one in api.usage().holders}
    baseline, fork = holders["baseline"], holders["fork"]
    assert (baseline.name, baseline.path, baseline.state) == (line.line.name, project, "in use")
    assert fork.space.exclusive > 100000 > baseline.space.exclusive > 4
    assert api.usage().pools[0].baselines == baseline.space.exclusive
    assert api.Fork.open("one").discard() == ()
    wait_until(lambda: api.usage().holders[0].state == "unused")
    judged = unused.automatic(pool)[0]
    with line.line.held() as held:  # as by a run that takes it
        assert held
        wait_until(lambda: gone(dry_run=True) == [(line.line.name, "keep-days")])
        assert gone() == []
    age_line(line, 13)
    assert not unused._go(Store(state_folder()), judged, unused._expired(judged, "", "", 0), True)
    age_line(line, 20)
    went = gone_at_last()
    assert (went.kind, went.name, went.paths, went.bytes > 4) == ("baseline", line.line.name, (project,), True)
    assert unused.automatic(pool) == ()
    assert api.expired() == (went,)
    keep(over, "two", "true", cwd=project)  # taken anew
    assert api.Fork.open("two").discard() == ()
    configure("[keep]\nmax-bytes = 4096\n")
    wait_until(lambda: not unused.automatic(pool)[0].in_use)
    assert gone() == []
    age_line(line, 1.1)
    assert gone_at_last().reason == "max-bytes"
    return True


def gone_at_last():
    """What goes, once nobody reads it any more in the background."""
    deadline = time.monotonic() + 30
    while not (went := api.gc().gone) and time.monotonic() < deadline:
        time.sleep(0.01)
    (one,) = went
    return one


@pytest.mark.parametrize("kind", ["btrfs_disk", "xfs_disk"])
def test_a_baseline_that_shares_blocks_counts_once(user, kind, request):
    """With its source, and on Btrfs with what forks have beside it; their layers are theirs."""
    folder = request.getfixturevalue(kind).folder(user)
    project = rigs.make_project(user, folder, {"a": "x" * 3000000})
    assert user.call(_sharing, project)


def _sharing(project):
    os.environ["XDG_STATE_HOME"] = os.path.join(os.path.dirname(project), "state")
    keep(project + ":overlay", "one", "head -c 1000000 /dev/urandom >new", cwd=project)
    holders = {one.kind: one.space for one in api.usage().holders}
    baseline, fork = holders["baseline"], holders["fork"]
    assert 1000000 < fork.exclusive < 1100000
    assert 3000000 <= baseline.exclusive + baseline.shared < 3200000
    (line,) = unused.automatic(f"{state_folder()}/pool")
    assert 3000000 <= unused.size_of(line.line) < 3200000
    assert api.Fork.open("one").discard() == ()
    wait_until(lambda: not unused.automatic(f"{state_folder()}/pool")[0].in_use)
    age_line(line, 20)
    assert gone_at_last().reason == "keep-days"
    wait_until(lambda: not [name for name in storage_left() if line.line.name in name])
    return True


def age_line(one, days):
    moment = time.time() - days * DAY
    os.utime(f"{one.line.path}/source", (moment, moment))


# --- what counts as a use --------------------------------------------------------------------------------------------


def test_whoever_reads_the_content_uses_the_fork(person, project):
    assert person.call(_uses, project)


def _uses(project):
    keep(project, "one", "echo x >>a", days=5)
    fork = api.Fork.open("one")
    former = fork.last_use
    api.Fork.all()
    fork.space()
    fork.counts()
    api.usage()
    api.gc(dry_run=True)
    assert fork.last_use == former
    changes = fork.diff()
    acts = [
        fork.diff,
        lambda: list(fork.patch()),
        lambda: fork.line_counts(changes),
        lambda: fork.export("tree", api.ExportForm.TREE),
        lambda: fork.export_tar(io.BytesIO()),
    ]
    for act in acts:
        age("one", 5)
        act()
        assert fork.last_use > time.time() - 100
    return True


def test_an_older_fork_without_a_time_has_that_of_its_end(person, project):
    assert person.call(_older, project)


def _older(project):
    keep(project, "one")
    keep(project, "two")
    for name, ended in (("one", "2020-01-01T00:00:00Z"), ("two", None)):
        folder = Path(state_folder(), "forks", name)
        (folder / "use").unlink()
        record = json.loads((folder / "record.json").read_text())
        del record["ignored_only"]
        record["ended"] = ended or record["ended"]
        (folder / "record.json").write_text(json.dumps(record))
    assert gone() == [("one", "keep-days")]
    assert api.Fork.open("two").last_use > time.time() - 100
    return True


def test_a_fork_that_a_crash_left_begins_when_it_is_found(person, project, hostfork):
    script = "echo x >new; echo ready; sleep 100"
    argv = [os.path.join(sys.prefix, "bin/hostfork"), "run", "-q", "--name", "one", "--private", project]
    owner = person.popen([*argv, "--", "sh", "-c", script], cwd=project, stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"ready\n"
    owner.kill()
    owner.wait(60)
    assert person.call(_found)


def _found():
    wait_until(lambda: api.Fork.open("one").activity.value == "orphaned")
    done = api.gc()
    assert (done.gone, done.waiting) == ((), ("one",))
    (recovered,) = api.recover()
    assert recovered.name == "one"
    assert api.Fork.open("one").last_use > time.time() - 100
    age("one", 20)
    assert gone() == [("one", "keep-days")]
    return True


# --- nothing goes that is used ---------------------------------------------------------------------------------------


def test_nothing_goes_while_it_is_read(person, project):
    """A process that reads it, however long ago it began; and the lock of its owner."""
    assert person.call(_held, project)


def _held(project):
    keep(project, "one", days=20)
    keep(project, "two", days=19)
    folder = Store(state_folder()).open("two")
    assert folder.lock()
    with in_child(_read_and_wait, "one"):
        age("one", 20)
        done = api.gc()
        assert (done.gone, done.spared) == ((), ("one", "two"))
    folder.close()
    assert gone() == [("one", "keep-days"), ("two", "keep-days")]
    return True


def _read_and_wait(name):
    with uses.using(f"{state_folder()}/forks/{name}"):
        yield


@contextlib.contextmanager
def in_child(function, *args):
    """Let a child go as far as the function yields; it goes on afterwards."""
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        for _ in function(*args):
            os.write(ready[1], b"x")
            os.read(go[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1)
        yield
    finally:
        os.write(go[1], b"x")
        assert os.waitpid(pid, 0)[1] == 0


def test_who_comes_while_it_goes_is_told(person, project):
    """A reader that comes between the judgement and the end of the removal waits, and finds it gone."""
    assert person.call(_too_late, project)


def _too_late(project):
    keep(project, "one", days=20)
    fork = api.Fork.open("one")
    with in_child(_stop_before_release):
        reader = os.fork()
        if reader == 0:
            try:
                fork.diff()
            except ForkError as error:
                os._exit(7 if error.code is Code.FORK_NOT_FOUND else 1)
            os._exit(0)
        time.sleep(0.1)
        assert os.waitpid(reader, os.WNOHANG) == (0, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 7
    assert names() == []
    return True


def _stop_before_release():
    """Expiry that stops where it has both locks and has written down what goes."""
    release, reached, go_on = expiry.release, threading.Event(), threading.Event()

    def stopped(*args):
        reached.set()
        go_on.wait(60)
        return release(*args)

    expiry.release = stopped
    worker = threading.Thread(target=api.gc)
    worker.start()
    assert reached.wait(60)
    yield
    go_on.set()
    worker.join()


def test_a_use_after_the_judgement_spares_it(person, project):
    assert person.call(_spared, project)


def _spared(project):
    store = Store(state_folder())
    acts = {
        "used": lambda: api.Fork.open("used").diff(),
        "pinned": lambda: api.Fork.open("pinned").pin(),
        "another": lambda: (api.Fork.open("another").discard(), keep(project, "another")),
        "discarded": lambda: api.Fork.open("discarded").discard(),
    }
    for name in acts:
        keep(project, name, days=20)
    judged = expiry.judge(store, KeepRules())
    assert len(judged.due) == 4
    time.sleep(1.1)  # another fork of the name is told from the first by its second
    for act in acts.values():
        act()
    assert [expiry.expire(store, due) for due in judged.due] == [None] * 4
    assert names() == ["another", "pinned", "used"]
    assert api.expired() == ()
    return True


@pytest.mark.slow
def test_a_race_of_readers_and_expiry(person, project):
    """A hundred times: all of it is read and it is still there, or it is gone, and said so."""
    read, went = person.call(_race, project)
    assert read + went == 100
    assert read > 0
    assert went > 0


def _race(project):
    read, delay = 0, 0.0
    for number in range(100):
        name = f"n{number}"
        keep(project, name, "echo content >new", days=20)
        fork = api.Fork.open(name)
        start = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(start[1])
            os.read(start[0], 1)
            time.sleep(max(0.0, delay))
            os._exit(_read(fork, f"out{number}"))
        os.close(start[0])
        os.close(start[1])
        time.sleep(max(0.0, -delay))
        went = [one.name for one in api.gc().gone]
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert (status, went) in ((0, []), (7, [name])), (number, status, went)
        assert (name in names()) == (status == 0)
        read += status == 0
        delay += 0.0007 if status == 0 else -0.0005  # to where both are as quick
        if status == 0:
            assert fork.discard() == ()
    return read, 100 - read


def _read(fork, target):
    try:
        fork.export(target, api.ExportForm.CHANGES_ONLY)
        return 0 if Path(target, "new").read_text() == "content\n" else 1
    except ForkError as error:
        return 7 if error.code is Code.FORK_NOT_FOUND else 2


def test_a_kill_of_an_expiry(person, ext4_disk):
    """Before and after each step: the fork is there as it was, or recovery finishes what was begun."""
    project = rigs.make_project(person, ext4_disk.folder(person), FILES)
    for mode in ("", ":live"):
        told = kill(person, "gc", project, mode, 0)
        assert len(told) > 14
        assert {len(one["kept"]) for one in told} == {0, 1}
        assert any("released" in line for one in told for line in one["recovered"])
        assert any("write_down" in one["killed"] for one in told)


# --- what is told ----------------------------------------------------------------------------------------------------


def test_the_list_of_what_expired_is_whole(person, project):
    assert person.call(_listed, project)


def _listed(project):
    keep(project, "one", days=20)
    keep(project, "two", days=20)
    store = Store(state_folder())
    due = {one.fork.record.name: one for one in expiry.judge(store, KeepRules()).due}
    expired.write_down(store, expiry._expired(due["one"]))  # and then killed
    assert api.expired() == ()
    with open(f"{store.expiry}/expired.jsonl", "a") as file:
        file.write('{"name": "half')
    api.gc()
    assert [one.name for one in api.expired()] == ["two", "one"]
    for number in range(1200):
        expired.write_down(store, expired.Expired(f"n{number}", "", "", "", "", "x" * 200))
    assert os.path.getsize(f"{store.expiry}/expired.jsonl") < 300000
    assert api.expired()[0].name == "n1199"
    assert 400 < len(api.expired()) < 1200
    return True


def test_in_the_background_nothing_goes_that_cannot_be_written_down(user, ext4_disk):
    project = rigs.make_project(user, ext4_disk.folder(user), {"a": "a"})
    assert user.call(_not_written, project)


def _not_written(project):
    keep(project, "one", days=20)
    store = Store(state_folder())
    os.chmod(store.expiry, 0o500)
    done = expiry.gc(store, KeepRules(), must_be_noted=True)
    assert done.gone == ()
    assert "the list of expired forks cannot be written" in done.leftovers[0]
    assert names() == ["one"]
    assert gone() == [("one", "keep-days")]  # somebody is told of it on the spot
    os.chmod(store.expiry, 0o700)
    return True


def test_a_full_disk_is_no_obstacle(person, make_disk):
    """That is when people call it: nothing can be written any more, and it goes all the same."""
    disk = make_disk("ext4", 60)
    assert person.call(_full, disk.folder(person))


def _full(folder):
    project = f"{folder}/proj"
    rigs.write_files(project, {"a": "a"})
    os.environ["XDG_STATE_HOME"] = f"{folder}/state"
    keep(project, "one", "head -c 10000000 /dev/urandom >new", days=20)
    with contextlib.suppress(OSError), open(f"{folder}/filler", "wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    with pytest.raises(OSError, match="No space left"), open(f"{folder}/more", "wb") as file:
        file.write(b"x" * 100000)
    (holder,) = api.usage().holders
    assert holder.space.exclusive > 10000000
    done = api.gc()
    assert not done.leftovers, done.leftovers
    assert [one.name for one in done.gone] == ["one"]
    wait_until(lambda: os.statvfs(folder).f_bfree * 4096 > 9000000)
    assert names() == []
    return True


# --- in the background -----------------------------------------------------------------------------------------------


def test_runs_begin_it_once_an_hour(person, project):
    assert person.call(_hourly, project)


def _hourly(project):
    run = api.Request(("true",), rules=api.RuleOptions(private=(project,)), cwd=project)
    store = Store(state_folder())
    assert not store.expiry_is_due()
    api.run(run)
    assert not os.path.exists(store.expiry)  # nothing was kept: there is nothing to do
    keep(project, "one", days=20)
    began = os.stat(store.expiry).st_mtime
    api.run(run)
    assert (names(), os.stat(store.expiry).st_mtime) == (["one"], began)
    for moment in (time.time() - 3700, time.time() + 9999):  # and where the clock went back
        keep(project, f"at{int(moment)}", days=20)
        os.utime(store.expiry, (moment, moment))
        api.run(run)
        wait_until(lambda: names() == [])
        assert os.stat(store.expiry).st_mtime > time.time() - 100
    assert len(api.expired()) == 3
    assert expirer.problem(store) is None
    keep(project, "two", days=20)
    configure("[keep]\nkeep-dais = 3\n")
    os.utime(store.expiry, (0, 0))
    api.run(run)
    wait_until(lambda: expirer.problem(store))
    assert "keep-dais is no key of [keep]" in expirer.problem(store)
    assert "config.toml:2: keep.keep-dais" in expirer.problem(store)
    configure("")
    assert "keep-dais" in api.usage().gc_problem
    return api.Fork.open("two").discard() == ()


def test_two_in_the_background_do_not_meet(root, project):
    """The second one ends at once, and a kill in the middle leaves what the next one does."""
    assert root.call(_two, project)


def _two(project):
    keep(project, "one", days=20)
    store = Store(state_folder())
    command = [sys.executable, "-I", os.path.abspath(expirer.__file__), store.root, "/nowhere"]
    with store.settling():  # the first one waits here
        first = subprocess.Popen(command)
        wait_until(lambda: _is_at_it(store))
        assert subprocess.run(command, timeout=60).returncode == 0
        assert names() == ["one"]
        first.send_signal(signal.SIGKILL)
        first.wait()
    subprocess.run(command, check=True)
    assert names() == []
    return True


def _is_at_it(store):
    import fcntl

    opened = os.open(store.expiry, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False
