"""What a run says to people, by values."""

import io
import os
import sys

import pytest

import cli_values as values
from hostfork.cli import telling
from hostfork.cli.look import Look, columns
from hostfork.cli.output import Output
from hostfork.cli.telling import ProgressLine, Teller, closing_lines, exit_status, prepared_lines, problem_lines
from hostfork.collect.changeset import Counts
from hostfork.lifecycle.events import (
    Collecting,
    EndedCommand,
    Planned,
    PreparedPath,
    Progress,
    StartedCommand,
    Stopping,
    Warned,
)
from hostfork.lifecycle.record import Problem, Status
from hostfork.vocabulary import Guarantee, Mechanism

LOOK = Look(home="/home/me")
PREPARED = PreparedPath("/home/me/proj", Mechanism.REFLINK, Guarantee.INDEPENDENT, 1204, 0, 0.041)


@pytest.fixture
def stderr(monkeypatch, capfd):
    """What was written to stderr since the last look."""
    monkeypatch.setenv("HOME", "/home/me")

    def read():
        return capfd.readouterr().err

    return read


def test_a_kept_run_says_what_changed_and_what_can_be_done():
    assert closing_lines(values.outcome(), {"/home/me/proj": "/home/me/proj"}, LOOK, None) == [
        "~/proj  3 created, 1 modified, 2 deleted   kept as calm-otter, 12 KiB",
        "hostfork diff calm-otter · hostfork apply calm-otter · hostfork discard calm-otter",
    ]


def test_hints_are_wrapped_between_commands_on_a_narrow_terminal():
    lines = closing_lines(values.outcome(), {}, Look(home="/home/me", width=80), None)
    assert lines[1:] == [
        "hostfork diff calm-otter · hostfork apply calm-otter",
        "hostfork discard calm-otter",
    ]


def test_nothing_is_said_where_nothing_changed():
    quiet = values.outcome(changes=Counts(), changes_by_path=(), kept=False, released=True, bytes_kept=0)
    assert closing_lines(quiet, {}, LOOK, None) == []


def test_a_fork_that_is_kept_without_changes_says_so():
    kept = values.outcome(changes=Counts(), changes_by_path=(("/home/me/proj", Counts()),), bytes_kept=0)
    assert closing_lines(kept, {}, LOOK, None) == [
        "nothing changed   kept as calm-otter",
        "hostfork discard calm-otter",
    ]


def test_several_changed_paths_have_a_line_each_and_the_fate_stands_once():
    several = values.outcome(changes_by_path=(("/home/me/a", Counts(created=1)), ("/home/me/long", Counts(type=2))))
    assert closing_lines(several, {}, LOOK, None)[:2] == [
        "~/a     1 created",
        "~/long  2 type   kept as calm-otter, 12 KiB",
    ]


def test_thrown_away_and_exported_are_fates_too():
    away = values.outcome(kept=False, released=True)
    assert closing_lines(away, {}, LOOK, None)[-1].endswith("2 deleted   thrown away")
    assert closing_lines(away, {}, LOOK, "/out")[-1].endswith("2 deleted   exported to /out")
    assert closing_lines(values.outcome(), {}, LOOK, "/out")[0].endswith("12 KiB, exported to /out")
    nothing = values.outcome(kept=False, released=True, changes=Counts(), changes_by_path=())
    assert closing_lines(nothing, {}, LOOK, "/home/me/out") == ["exported to ~/out"]


@pytest.mark.parametrize(
    ("status", "number"),
    [
        (Status(exit=0), 0),
        (Status(exit=7), 7),
        (Status(signal=9), 137),
        (Status(signal=15, timed_out=True), 124),
        (Status(signal=9, timed_out=True, storage_limited=True), 124),
        (Status(signal=9, storage_limited=True), 125),
        (Status(exit=0, storage_limited=True), 125),
        (Status(), 125),
        (Status(error=Problem("command.not-found", "x")), 127),
        (Status(error=Problem("command.not-executable", "x")), 126),
        (Status(exit=0, error=Problem("collect.failed", "x")), 125),
    ],
)
def test_exit_statuses(status, number):
    assert exit_status(status) == number


def test_an_error_of_a_run_names_the_kernels_words_and_the_way_out():
    assert problem_lines(values.problem(), 125) == [
        "hostfork: the pool is full",
        "  copy: No space left on device",
        "  hostfork discard",
        "  code storage.no-space · status 125",
    ]
    bare = Problem("x.y", "no\nlines", errno=2)
    assert problem_lines(bare, 1)[:2] == ["hostfork: no\\x0alines", "  No such file or directory"]


def test_what_was_chosen_and_the_endpoints_inside():
    assert prepared_lines(PREPARED, values.plan(), LOOK) == [
        "~/proj  private  reflink  independent  1,204 files, 0 B of 38 MiB copied, 41 ms",
        "endpoint ~/proj/.run/db.sock (postgres, pid 812) stays the host's",
    ]
    other = PreparedPath("/x", Mechanism.OVERLAY, Guarantee.LIVE, 0, 0, 2)
    assert prepared_lines(other, None, LOOK) == ["/x  private  overlay  live  0 B copied, 2 s"]


def test_an_endpoint_says_who_holds_it_as_far_as_that_can_be_seen():
    endpoint = values.plan().endpoints[0]
    assert telling.holder(endpoint) == " (postgres, pid 812)"
    from dataclasses import replace

    assert telling.holder(replace(endpoint, process="")) == " (pid 812)"
    assert telling.holder(replace(endpoint, pid=0)) == ""


def test_weaker_promises_are_said_once_in_every_run(stderr):
    teller = Teller(Output(), verbose=False)
    teller(Planned(values.plan()))
    teller(PREPARED)
    teller(Warned("processes are owned by a subreaper"))
    assert stderr() == "hostfork: processes are owned by a subreaper\n"


def test_verbose_says_first_what_was_chosen(stderr):
    teller = Teller(Output(), verbose=True)
    teller(Planned(values.plan()))
    teller(PREPARED)
    teller(StartedCommand(1))
    teller.finish()
    assert stderr().splitlines() == [
        "hostfork: /home/me/tmp  scratch".replace("/home/me", "~"),
        "hostfork: processes are owned by a subreaper",
        "hostfork: ~/proj  private  reflink  independent  1,204 files, 0 B of 38 MiB copied, 41 ms",
        "          endpoint ~/proj/.run/db.sock (postgres, pid 812) stays the host's",
    ]


def test_quiet_says_nothing_of_all_that(stderr):
    teller = Teller(Output(quiet=True), verbose=True)
    for event in (Planned(values.plan()), PREPARED, Warned("x"), Stopping(), Collecting("/x")):
        teller(event)
    assert stderr() == ""


def test_nothing_is_written_into_the_screen_of_a_running_command(stderr):
    teller = Teller(Output(), verbose=False)
    teller(StartedCommand(1))
    teller(Warned("an endpoint went away"))
    assert stderr() == ""
    teller(EndedCommand(Status(exit=0)))
    assert stderr() == "hostfork: an endpoint went away\n"


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self):
        return self.now


def test_progress_is_one_line_at_most_ten_times_a_second(stderr):
    clock, output = Clock(), Output()
    line = ProgressLine(output, clock)
    line.show(Progress("/home/me/mono", 1, 10, 100, 1000))
    clock.now += 0.2
    line.show(Progress("/home/me/mono", 2, 20, 100, 1000))
    assert stderr() == ""  # what is done in a moment is not shown
    clock.now += 0.3
    line.show(Progress("/home/me/mono", 50, 500, 100, 1000))
    shown = stderr()
    assert shown == "\rhostfork: copy of ~/mono  ██████░░░░░░  50 of 100 files  500 B of 1000 B  1 s left"
    clock.now += 0.05
    line.show(Progress("/home/me/mono", 51, 510, 100, 1000))
    assert stderr() == ""
    clock.now += 0.1
    line.show(Progress("/home/me/mono", 9, 9))
    assert stderr() == "\r" + "hostfork: copy of ~/mono  9 files  9 B".ljust(len(shown) - 1)
    line.clear()
    assert stderr() == "\r" + " " * len("hostfork: copy of ~/mono  9 files  9 B") + "\r"
    line.clear()
    assert stderr() == ""


def test_a_long_copy_says_once_what_would_be_faster(stderr):
    clock = Clock()
    line = ProgressLine(Output(), clock)
    for _ in range(3):
        line.show(Progress("/home/me/mono", 1, 10))
        clock.now += 4
    assert stderr().count("`--private ~/mono:live` starts at once, but host changes show through") == 1


def test_a_progress_line_never_wraps():
    event = Progress("/home/me/" + "deep/" * 20 + "mono", 61240, 1 << 30, 100310, 2 << 30)
    for width in (40, 60, 80, 200):
        text = telling.progress_text(event, 7, Look(home="/home/me", width=width))
        assert columns(text) < width or text.count("  ") == 1


def test_where_nothing_is_copied_the_time_left_goes_by_files():
    look = Look(home="/home/me", width=200)
    text = telling.progress_text(Progress("/home/me/mono", 25, 0, 100), 7, look)
    assert text == "hostfork: copy of ~/mono  25 of 100 files  0 B  21 s left"
    assert "left" not in telling.progress_text(Progress("/home/me/mono", 25, 0), 7, look)


def test_nobody_reading_stderr_is_no_error(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    saved = os.dup(2)
    os.dup2(write, 2)
    try:
        Output().say("nobody hears this")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(write)


def test_an_output_without_streams_still_encodes(monkeypatch, capfd):
    monkeypatch.setattr(sys, "stderr", None)
    Output().say("é")
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "utf-8"))
    Output().say("é")
    assert capfd.readouterr().err == "hostfork: \\xe9\nhostfork: é\n"
