"""How values look to people: pure functions, every branch by value."""

import pytest

from hostfork.cli.look import (
    Look,
    age,
    bar,
    columns,
    command_in_words,
    counts_in_words,
    duration,
    encoded,
    harmless,
    look_for,
    number,
    pad,
    plural,
    shorten,
    size,
    table,
    tilde,
    wants_colour,
    wrapped,
)
from hostfork.collect.changeset import Counts


@pytest.mark.parametrize(
    ("choice", "terminal", "environment", "wanted"),
    [
        ("always", False, {"NO_COLOR": "1", "TERM": "dumb"}, True),
        ("never", True, {"FORCE_COLOR": "1", "TERM": "xterm"}, False),
        ("auto", True, {"TERM": "xterm"}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("auto", True, {}, False),
        ("auto", False, {"TERM": "xterm"}, False),
        ("auto", True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        ("auto", True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        ("auto", False, {"FORCE_COLOR": "1"}, True),
        ("auto", False, {"FORCE_COLOR": "0"}, False),
        ("auto", False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_is_chosen_by_option_then_environment_then_terminal(choice, terminal, environment, wanted):
    assert wants_colour(choice, terminal, environment) is wanted


def test_a_look_paints_only_where_colour_is_wanted():
    assert Look(colour=True).paint("x", "red", "bold") == "\x1b[31;1mx\x1b[0m"
    assert Look(colour=True).paint("", "red") == ""
    assert Look(colour=True).paint("x") == "x"
    assert Look().paint("x", "red") == "x"


def test_a_closed_descriptor_and_a_pipe_are_no_terminals(tmp_path):
    with open(tmp_path / "file", "w") as file:
        assert look_for(file.fileno()).width is None
        number_ = file.fileno()
    assert look_for(number_).width is None


def test_a_terminal_has_a_width_and_columns_overrides_it(monkeypatch):
    import fcntl
    import os
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 47, 0, 0))
        monkeypatch.delenv("COLUMNS", raising=False)
        assert look_for(theirs).width == 47
        monkeypatch.setenv("COLUMNS", "33")
        assert look_for(theirs).width == 33
        monkeypatch.setenv("COLUMNS", "many")
        assert look_for(theirs).width == 47
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        assert look_for(theirs).width == 80
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï 日本", "plain ünï 日本"),
        ("a\nb\tc\r", "a\\x0ab\\x09c\\x0d"),
        ("\x1b[31mred\x07\x7f", "\\x1b[31mred\\x07\\x7f"),
        ("\udcff\udc80", "\\xff\\x80"),
        ("\x9b31m", "\\u009b31m"),
        ("a\u202eb", "a\\u202eb"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_what_a_terminal_could_act_on_is_made_harmless(text, shown):
    assert harmless(text) == shown
    assert harmless(text).isprintable()


def test_home_becomes_a_tilde_only_at_its_own_boundary():
    assert tilde("/home/me", "/home/me") == "~"
    assert tilde("/home/me/x", "/home/me/") == "~/x"
    assert tilde("/home/meme", "/home/me") == "/home/meme"
    assert tilde("/x", "/") == "/x"
    assert tilde("/x", "") == "/x"


def test_wide_and_combining_signs_take_their_columns():
    assert columns("abc") == 3
    assert columns("日本") == 4
    assert columns("e\u0301") == 1
    assert pad("日本", 6) == "日本  "
    assert pad("ab", 1) == "ab"


@pytest.mark.parametrize(
    ("path", "room", "shown"),
    [
        ("/a/b/c", None, "/a/b/c"),
        ("/a/b/c", 6, "/a/b/c"),
        ("/home/me/projects/deep/down/here/file.py", 30, "/home/me/…/down/here/file.py"),
        ("/home/me/projects/deep/down/here/file.py", 20, "/home/…/here/file.py"),
        ("/home/me/a-very-long-name-that-stays.py", 10, "…/a-very-long-name-that-stays.py"),
        ("a-very-long-name-that-stays.py", 10, "a-very-long-name-that-stays.py"),
        ("/home/me/projects/folder/", 18, "/home/me/…/folder/"),
        ("/home/me/projects/folder/", 16, "/home/…/folder/"),
    ],
)
def test_a_path_is_shortened_in_the_middle_and_never_its_last_part(path, room, shown):
    assert shorten(path, room) == shown
    assert shorten(path, room).rstrip("/").endswith(path.rstrip("/").rpartition("/")[2])


def test_a_look_shows_paths_harmless_with_tilde():
    assert Look(home="/home/me").path("/home/me/a\nb") == "~/a\\x0ab"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1500, "1.5 KiB"), (12 * 1024 + 100, "12 KiB"),
        (1048575, "1 MiB"), (1300 * 1048576, "1.3 GiB"), (5 << 40, "5 TiB"), (5000 << 40, "5000 TiB"),
    ],
)  # fmt: skip
def test_sizes(value, shown):
    assert size(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-3, "0 s"), (12.9, "12 s"), (60, "1 m"), (7199, "1 h"), (86400, "1 d"), (86400 * 400, "400 d")],
)
def test_ages(value, shown):
    assert age(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 ms"), (0.0414, "41 ms"), (0.9999, "1 s"), (1.24, "1.2 s"), (59.96, "1 m"), (125, "2 m 5 s"),
        (3600, "1 h"), (11040, "3 h 4 m"),
    ],
)  # fmt: skip
def test_durations(value, shown):
    assert duration(value) == shown


def test_counts():
    assert number(34112) == "34,112"
    assert plural(1, "file") == "1 file"
    assert plural(1204, "file") == "1,204 files"
    assert plural(2, "entry", "entries") == "2 entries"
    assert counts_in_words(Counts(created=3, modified=1, deleted=2)) == "3 created, 1 modified, 2 deleted"
    assert counts_in_words(Counts(metadata=1, type=1234)) == "1 metadata, 1,234 type"
    assert counts_in_words(Counts()) == "nothing changed"


def test_a_table_is_aligned_and_has_no_blanks_at_its_ends():
    assert table([("a", "bb", "c"), ("日本", "", "d"), ("x",)]) == ["a     bb  c", "日本      d", "x"]
    assert table([]) == []
    assert table([("a", "b")], paint={1: ("red",)}, look=Look(colour=True)) == ["a  \x1b[31mb\x1b[0m"]


def test_parts_are_wrapped_only_between_them():
    assert wrapped(["one", "two", "three"], 2, 12) == ["  one · two", "  three"]
    assert wrapped(["one", "two"], 0, None) == ["one · two"]
    assert wrapped([], 0, 80) == []


def test_a_command_is_shown_as_a_shell_takes_it():
    assert command_in_words(["sh", "-c", "echo 'a b'", ""]) == """sh -c 'echo '"'"'a b'"'"'' ''"""
    assert command_in_words(["a\nb"]) == "'a\\x0ab'"


def test_what_an_encoding_cannot_say_is_escaped():
    assert encoded("a · b…", "utf-8") == "a · b…".encode()
    assert encoded("a · b… █░", "ascii") == b"a | b... #."
    assert encoded("é日", "latin-1") == b"\xe9\\u65e5"
    assert encoded("é", None) == b"\\xe9"


def test_a_bar():
    assert bar(0, 10, 4) == "░░░░"
    assert bar(5, 10, 4) == "██░░"
    assert bar(20, 10, 4) == "████"
    assert bar(0, 0, 4) == "████"
