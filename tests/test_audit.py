"""The log of a fork: what it tells, that it outlives the fork, and that damage of every kind is found."""

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from hostfork.errors import Code, ForkError
from hostfork.lifecycle import audit
from hostfork.lifecycle.audit import Event
from hostfork.lifecycle.context import who
from hostfork.lifecycle.record import DISPOSITION_AFTER, Record, must_be_open
from hostfork.lifecycle.store import Store
from hostfork.values import replace
from hostfork.vocabulary import Disposition, Ownership
from rigs import Disk, Person

Run = Callable[..., Any]
DECIDED = [(one, other) for one in Disposition for other in Disposition]


def new_record(name: str, number: str = "a1") -> Record:
    return Record(
        name=name, schema=1, created="2026-01-01T00:00:00Z", boot_id="b", command=("true",), cwd="/", policy="p",
        pool="/pool", paths=(), ownership=Ownership.CGROUP, same_paths=True, id=number, by=who((("task", "7"),)),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Any) -> Store:
    made = Store(str(tmp_path / "state"))
    made.make_folders()
    return made


def told(store: Store, *events: Event, number: str = "a1") -> audit.Log:
    """The log of a fork of which that was told."""
    for event in events:
        audit.tell(store, new_record("f", number), event)
    return audit.find(store, "f")[-1]


@pytest.mark.parametrize(("one", "other"), DECIDED, ids=lambda one: one.value)
def test_only_decisions_of_the_table_follow(store: Store, one: Disposition, other: Disposition) -> None:
    with store.create("f") as folder:
        record = folder.save(replace(new_record("f"), disposition=one))
        if other is one or other in DISPOSITION_AFTER[one]:
            assert folder.decide(record, other, cwd="/x") == folder.load()
            assert (folder.load().disposition, folder.load().cwd) == (other, "/x")
            return
        with pytest.raises(ForkError) as refused:
            folder.decide(record, other)
        assert refused.value.code is Code.FORK_DECIDED
        assert refused.value.hint is not None
        assert "f" in refused.value.hint
        assert folder.load() == record


@pytest.mark.parametrize("decided", Disposition)
def test_what_is_sealed_or_waits_is_not_written(decided: Disposition) -> None:
    record = replace(new_record("f"), disposition=decided)
    if decided in (Disposition.OPEN, Disposition.APPLIED):
        must_be_open(record, "entered")
        return
    with pytest.raises(ForkError, match="and cannot be entered") as refused:
        must_be_open(record, "entered")
    assert refused.value.code is Code.FORK_DECIDED


def test_a_line_says_who_what_when_and_which_content(store: Store) -> None:
    audit.tell(store, new_record("f"), Event.APPLIED, by=who((("task", "7"),)), before="b1", after="a1", paths=["x"])
    (entry,), problems = audit.read(audit.find(store, "f")[0])
    assert problems == ()
    assert (entry.n, entry.event, entry.before, entry.after) == (1, "applied", "b1", "a1")
    assert entry.facts == {"paths": ["x"]}
    assert entry.by["uid"] == os.getuid()
    assert entry.by["tags"] == {"task": "7"}
    assert entry.by["argv"]
    assert time.strptime(entry.at, "%Y-%m-%dT%H:%M:%S.%fZ")


DAMAGE: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a changed line": lambda lines: [lines[0], lines[1].replace(b"sealed", b"kepted"), *lines[2:]],
    "a changed last line": lambda lines: [*lines[:3], lines[3].replace(b"discarded", b"kept")],
    "a lost line": lambda lines: [lines[0], *lines[2:]],
    "a lost first line": lambda lines: lines[1:],
    "a lost last line": lambda lines: lines[:-1],
    "two lost last lines": lambda lines: lines[:-2],
    "all lines lost": lambda lines: [],
    "lines in another order": lambda lines: [lines[1], lines[0], *lines[2:]],
    "a line twice": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "no line at all": lambda lines: [*lines[:2], b"\x00\xff\n", *lines[2:]],
    "half of the last line": lambda lines: [*lines[:3], lines[3][:20]],
    "a blank": lambda lines: [lines[0].replace(b",", b", ", 1), *lines[1:]],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("later", [False, True], ids=["", "and one more line"])
def test_damage_is_found(store: Store, damage: str, later: bool) -> None:
    log = told(store, Event.CREATED, Event.SEALED, Event.UNSEALED, Event.DISCARDED)
    assert audit.read(log)[1] == ()
    with open(log.path, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    with open(log.path, "wb") as file:
        file.writelines(DAMAGE[damage](lines))
    if later:
        told(store, Event.KEPT)
    assert audit.read(log)[1] != ()


def test_a_log_of_another_fork_and_a_lost_end_are_found(store: Store) -> None:
    log = told(store, Event.CREATED)
    os.rename(log.path.replace(".jsonl", ".end"), os.path.join(store.root, "logs", "g@a1.end"))
    assert "where it ends" in audit.read(log)[1][0]
    os.rename(log.path, os.path.join(store.root, "logs", "g@a1.jsonl"))
    assert audit.read(audit.find(store, "g")[0])[1] != ()


def test_a_writer_that_was_killed_between_its_two_writes_leaves_a_good_log(store: Store) -> None:
    log = told(store, Event.CREATED)
    end = log.path.replace(".jsonl", ".end")
    with open(end, "rb") as file:
        before = file.read()
    told(store, Event.SEALED)
    with open(end, "wb") as file:
        file.write(before)
    assert [entry.event for entry in audit.read(log)[0]] == ["created", "sealed"]
    assert audit.read(log)[1] == ()
    told(store, Event.UNSEALED)
    assert [entry.n for entry in audit.read(log)[0]] == [1, 2, 3]
    assert audit.read(log)[1] == ()
    os.truncate(end, 0)  # it was made, and then the machine went down
    told(store, Event.SEALED)
    assert audit.read(log)[1] == ()


def _tell_many(root: str) -> None:
    for _ in range(20):
        audit.tell(Store(root), new_record("f"), Event.STARTED)


def test_many_tell_at_once(store: Store) -> None:
    several = [multiprocessing.Process(target=_tell_many, args=(store.root,)) for _ in range(4)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    entries, problems = audit.read(audit.find(store, "f")[0])
    assert problems == ()
    assert [entry.n for entry in entries] == list(range(1, 81))


def test_forks_of_one_name_are_told_apart(store: Store) -> None:
    first = told(store, Event.CREATED, Event.DISCARDED)
    os.utime(first.path, (1, 1))
    told(store, Event.CREATED, number="b2")
    assert [log.words for log in audit.find(store, "f")] == ["f@a1", "f@b2"]
    assert [log.words for log in audit.find(store, "f@a")] == ["f@a1"]
    with store.create("f") as folder:
        folder.save(new_record("f", "a1"))
        assert audit.find(store, "f")[-1].id == "a1"
    audit.tell(store, "f", Event.SEALED)
    assert audit.read(first)[0][-1].event == "sealed"
    with pytest.raises(ForkError, match="no log"):
        audit.find(store, "x")


def test_old_logs_of_forks_that_are_gone_are_forgotten(store: Store) -> None:
    for number in ("a1", "b2", "c3"):
        os.utime(told(store, Event.CREATED, number=number).path, (1, 1))
    told(store, Event.SEALED, number="c3")
    with store.create("f") as folder:
        folder.save(new_record("f", "b2"))
        assert audit.forget(store, None) == 0
        assert audit.forget(store, 90) == 1
    assert sorted(os.listdir(os.path.join(store.root, "logs"))) == [
        "f@b2.end", "f@b2.jsonl", "f@c3.end", "f@c3.jsonl",
    ]  # fmt: skip


def fill(path: str) -> None:
    """Take all the room of a filesystem, page by page."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_leaves_the_log_as_it_was(make_disk: Callable[..., Disk], root: Person) -> None:
    store = Store(os.path.join(make_disk("tmpfs", 1).folder(root), "state"))
    store.make_folders()
    log = told(store, Event.CREATED)
    fill(store.root + "/full")
    with pytest.raises(ForkError) as refused:
        audit.tell(store, new_record("f"), Event.SEALED, text="x" * 5000)
    assert refused.value.code is Code.FORK_STATE
    assert len(audit.try_to_tell(store, new_record("f"), Event.SEALED, text="x" * 5000)) == 1
    assert ([entry.event for entry in audit.read(log)[0]], audit.read(log)[1]) == (["created"], ())
    os.unlink(store.root + "/full")
    told(store, Event.UNSEALED)
    assert [entry.n for entry in audit.read(log)[0]] == [1, 2]


def test_a_run_that_keeps_nothing_leaves_no_log(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    source = ext4_disk.folder(person)
    hostfork(person, "run", "--private", source, "--cwd", source, "--", "true", check=0)
    hostfork(person, "run", "--private", source, "--cwd", source, "--rm", "--", "touch", "x", check=0)
    assert not os.path.exists(os.path.join(person.state, "logs"))


def test_the_log_of_a_kept_run_outlives_it(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    source = ext4_disk.folder(person)
    hostfork(
        person, "run", "--name", "f", "--private", source, "--cwd", source, "--", "sh", "-c", "touch x; exit 3", check=3
    )
    hostfork(person, "discard", "f", "--yes", check=0)
    (log,) = audit.find(Store(person.state), "f")
    entries, problems = audit.read(log)
    assert problems == ()
    assert [entry.event for entry in entries] == ["created", "ended", "kept", "discarded"]
    assert entries[0].facts["command"] == ["sh", "-c", "touch x; exit 3"]
    assert entries[1].facts["exit"] == 3
    assert entries[2].facts["changes"] == 1
    assert entries[3].by["argv"][1:] == ["discard", "f", "--yes"]
    assert {entry.by["uid"] for entry in entries} == {person.uid}
    with open(log.path) as file:
        assert [json.loads(line)["n"] for line in file] == [1, 2, 3, 4]


def test_a_run_that_was_killed_is_told_as_recovered(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    source = ext4_disk.folder(person)
    program = os.path.join(sys.prefix, "bin", "hostfork")
    run = [program, "run", "--name", "f", "--private", source, "--cwd", source, "--tag", "a=b", "--", "sh", "-c",
           "echo x >x; echo; sleep 1000"]  # fmt: skip
    running = person.popen(run, stdout=subprocess.PIPE)
    try:
        running.stdout.readline()
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
    hostfork(person, "recover", check=0)
    entries, problems = audit.read(audit.find(Store(person.state), "f")[0])
    assert problems == ()
    assert [entry.event for entry in entries] == ["created", "ended", "recovered"]
    assert entries[0].by["tags"] == {"a": "b"}
    assert entries[2].by["argv"][1:] == ["recover"]
    hostfork(person, "discard", "f", "--yes", check=0)


def test_gc_removes_old_logs(hostfork: Run, person: Person, ext4_disk: Disk) -> None:
    source = ext4_disk.folder(person)
    for name in ("gone", "kept"):
        run = ["run", "--name", name, "--private", source, "--cwd", source, "--", "touch", "x"]
        hostfork(person, *run, check=0)
    hostfork(person, "discard", "gone", "--yes", check=0)
    for file in os.listdir(os.path.join(person.state, "logs")):
        person.call(os.utime, os.path.join(person.state, "logs", file), (1, 1))
    hostfork(person, "gc", "--dry-run", check=0)
    hostfork(person, "log", "gone", check=0)
    hostfork(person, "gc", check=0)
    assert "fork.not-found" in hostfork(person, "log", "gone", check=125).stderr
    hostfork(person, "log", "kept", check=0)
    hostfork(person, "discard", "kept", "--yes", check=0)
