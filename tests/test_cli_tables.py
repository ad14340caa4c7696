"""Lists, single forks and plans as people see them, by values."""

import os
from dataclasses import replace

import cli_values as values
from hostfork.cli.list import broken_row, list_lines, paths_in_words, row
from hostfork.cli.look import Look, columns
from hostfork.cli.plan import plan_lines
from hostfork.cli.show import ended_in_words, show_lines
from hostfork.collect.changeset import Counts
from hostfork.lifecycle.record import Status
from hostfork.storage.contract import Usage
from hostfork.vocabulary import Activity, Ownership, SourceChanged
from hostfork.workload.identity import identify

LOOK = Look(home="/home/me")
LONG = values.record(name="agent-1", command=("claude", "--with", "many " * 20), paths=values.record().paths[2:])


def rows(*activities):
    return [row(values.record(), activity, 180, Usage(12 << 10, 3), "6", LOOK) for activity in activities]


def test_a_list_is_a_table():
    assert list_lines(rows(Activity.IDLE), LOOK) == [
        "NAME        STATE  AGE  PATHS      CHANGES  SPACE   COMMAND",
        "calm-otter  idle   3 m  ~/proj +1  6        12 KiB  make 'te\\xffst'",
    ]


def test_what_needs_something_done_says_what():
    lines = list_lines([*rows(Activity.ORPHANED), broken_row("odd-heron")], LOOK)
    assert lines[1].endswith("hostfork recover")
    assert lines[2].split()[:2] == ["odd-heron", "broken"]
    assert lines[2].endswith("hostfork discard odd-heron")


def test_a_long_command_is_cut_to_the_terminal():
    many = [*rows(Activity.RUNNING), row(LONG, Activity.RUNNING, 7200, Usage(1, 1, True), "?", LOOK)]
    lines = list_lines(many, Look(home="/home/me", width=80))
    assert max(map(columns, lines)) <= 80
    assert lines[2].endswith("…")
    assert "1 B at most" in lines[2]
    assert list_lines(many, LOOK)[2].endswith("…")
    # a command keeps its first word, whatever the width
    assert "claude" in list_lines(many, Look(width=20))[2]


def test_paths_in_words():
    assert paths_in_words(values.record(), LOOK) == "~/proj +1"
    assert paths_in_words(values.record(paths=values.record().paths[:1]), LOOK) == "~/proj"
    assert paths_in_words(LONG, LOOK) == "~/tmp"
    assert paths_in_words(values.record(paths=()), LOOK) == "-"


def test_a_fork_in_full():
    lines = show_lines(values.record(), Activity.IDLE, 180, Usage(12 << 10, 3), Counts(created=6), LOOK)
    assert lines == [
        "fork        calm-otter",
        "state       idle, open",
        "command     make 'te\\xffst'",
        "in          ~/proj",
        "made        3 m ago, 2026-01-02T03:04:05Z",
        "ended       with 3, 2026-01-02T03:05:05Z",
        "policy      workspace",
        "paths       ~/proj  private  copy  independent  38 MiB copied  base only while the source is unchanged  "
        "source not checked",
        "            ~/proj/\\xff\\x0a:,\\  private  overlay  live  0 B copied  source changed",
        "            ~/tmp  scratch  never collected",
        "changes     6 created",
        "space       12 KiB, 3 inodes",
        "storage     ~/.local/state/hostfork/pool",
        "owned by    cgroup /sys/fs/cgroup/hostfork-calm-otter",
        "torn        the machine went down before the changes were on disk",
        "same paths  no: the copy lies at another path (--relocated)",
        "next        hostfork diff calm-otter · hostfork discard calm-otter",
    ]


def test_a_fork_with_less():
    bare = values.record(
        paths=(), cgroup=None, ownership=Ownership.SUBREAPER, status=None, ended=None, torn=False, same_paths=True,
        keeper=identify(os.getpid()),
    )  # fmt: skip
    lines = show_lines(bare, Activity.ORPHANED, 1, Usage(1, 1, True), None, LOOK)
    assert "paths       none" in lines
    assert "changes     not known" in lines
    assert "owned by    subreaper" in lines
    assert f"processes   keeper {os.getpid()}" in lines
    assert lines[-1] == "next        hostfork recover"
    running = show_lines(bare, Activity.RUNNING, 1, Usage(1, 1), None, LOOK)
    assert not any(line.startswith("next") for line in running)
    same = replace(values.record().paths[0], source_changed=SourceChanged.IRRELEVANT)
    kept = show_lines(values.record(paths=(same,)), Activity.IDLE, 1, Usage(1, 1), Counts(), LOOK)
    assert kept[-1] == "next        hostfork discard calm-otter"


def test_how_a_command_ended():
    assert ended_in_words(None, None) == ""
    assert ended_in_words(Status(exit=0), None) == "with 0"
    assert ended_in_words(Status(signal=9), "t") == "by signal 9, t"
    assert ended_in_words(Status(signal=9, timed_out=True), None) == "at its time limit"
    assert ended_in_words(Status(signal=9, storage_limited=True), None) == "over its storage limit"
    assert ended_in_words(Status(), None) == "nobody saw how"
    assert ended_in_words(Status(error=values.problem()), None) == "the pool is full (storage.no-space)"


def test_a_plan_in_full(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert plan_lines(values.plan(), LOOK) == [
        "~/proj                 private   copy            independent  ext4 does not share blocks, copies 38 MiB",
        "  ~/proj/mnt           shared    tmpfs                        host mount beneath, put back",
        "  ~/proj/.run/db.sock  endpoint  postgres (812)               found alive: acts on the host",
        "~/tmp                  scratch   tmpfs 1 MiB",
        "/run/x.fifo            endpoint  fifo                         asked for: acts on the host",
        "everything else     shared, writable   with: /tmp, ~/.ssh",
        "also reaches it     /data/proj is ~/proj too (bind): writes change the original",
        "owned by            a cgroup of its own in /sys/fs/cgroup/user.slice",
        "private storage     ~/.local/state/hostfork/pool",
        "weaker              processes are owned by a subreaper",
        "note                localhost is shared",
        "refused             btrfs: not on Btrfs",
        "                    reflink: no shared blocks",
    ]


def test_a_path_that_is_not_what_was_written_says_what_it_is(monkeypatch):
    monkeypatch.setenv("HOME", "/elsewhere")
    first = plan_lines(values.plan(), Look(home="/elsewhere"))[0]
    assert "independent  is /home/me/proj; ext4 does not share blocks" in first


def test_a_plan_with_other_facts(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    private = values.plan().paths[0]
    plain = replace(private, refused=(), offer=None, reason="it is a file")
    odd = values.plan(
        paths=(plain,), nested_mounts=(), endpoints=(), aliases=(), notices=(), neighbours=(), read_only_root=True,
        ownership=Ownership.SUBREAPER,
    )  # fmt: skip
    assert plan_lines(odd, LOOK) == [
        "~/proj  private      it is a file",
        "everything else     read-only",
        "owned by            subreaper: a process that leaves its parents is found by its mount namespace alone",
        "private storage     ~/.local/state/hostfork/pool",
    ]
    no_parent = plan_lines(values.plan(cgroup_parent=None, neighbours=()), LOOK)
    assert "owned by            a cgroup of its own" in no_parent
    assert "everything else     shared, writable" in no_parent
    nothing = plan_lines(values.plan(paths=(), nested_mounts=(), endpoints=()), LOOK)
    assert not any(line.startswith("private storage") for line in nothing)
    two = values.plan(paths=(private, replace(private, written="other", path="/other")))
    assert "refused             ~/proj and other btrfs: not on Btrfs" in plan_lines(two, LOOK)
    scratch = replace(values.plan().paths[1], tmpfs_size=None)
    assert plan_lines(values.plan(paths=(scratch,), endpoints=(), nested_mounts=()), LOOK)[0].split() == [
        "~/tmp", "scratch", "empty",
    ]  # fmt: skip
    narrow = plan_lines(values.plan(), Look(home="/home/me", width=60))
    assert max(columns(line) for line in narrow if line.startswith(("note", "owned", " " * 20))) <= 60
