"""The configuration file: what it may say, where it is, and that a mistake names its line."""

import os
from pathlib import Path

import pytest

from hostfork.errors import Code, PolicyError
from hostfork.lifecycle.config import KeepRules, config_file, keep_rules


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config.toml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("[keep]\n", {}),
        ("[keep]\nkeep-days = 30\n", {"keep_days": 30}),
        ('[keep]\nkeep-days = "none"\nkeep-days-ignored = 3\n', {"keep_days": None, "keep_days_ignored": 3}),
        ("keep = { max-forks = 1 }", {"max_forks": 1}),
        ("[keep]\nlog-days = 3\n", {"log_days": 3}),
        ('[keep]\nlog-days = "none"\n', {"log_days": None}),
        ("[keep]\nundo-days = 3\n", {"undo_days": 3}),
        ('[keep]\nundo-days = "none"\n', {"undo_days": None}),
        ('[keep]\nmax-bytes = "20G"\n', {"max_bytes": 20 << 30, "max_percent": None}),
        ("[keep]\nmax-bytes = 4096\n", {"max_bytes": 4096, "max_percent": None}),
        ('[keep]\nmax-bytes = "5%"\n', {"max_bytes": None, "max_percent": 5}),
        ('[keep]\nmax-bytes = "none"\n', {"max_bytes": None, "max_percent": None}),
    ],
)
def test_what_it_may_say(file, text, expected):
    file.write_text(text)
    assert keep_rules(str(file)) == KeepRules(**expected, file=str(file), given=True)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("[keep]\nkeep-days = 14\nkeep-day = 1\n", ":3: keep.keep-day", "keep-day is no key of [keep]"),
        ("[kept]\n", ":1: kept", "kept is no key of the configuration file"),
        ("x = 1\n", ":1: x", "x is no key of the configuration file"),
        ("keep = 3\n", ":1: keep", "keep must be a table: [keep]"),
        ("[keep]\nkeep-days = 0\n", ":2: keep.keep-days", "keep-days cannot be 0"),
        ("[keep]\nkeep-days = 1.5\n", ":2: keep.keep-days", "keep-days cannot be 1.5"),
        ("[keep]\nmax-forks = true\n", ":2: keep.max-forks", "max-forks cannot be True"),
        ("[keep]\nmax-forks = -1\n", ":2: keep.max-forks", "max-forks cannot be -1"),
        ('[keep]\nkeep-days-ignored = "a"\n', ":2: keep.keep-days-ignored", "keep-days-ignored cannot be 'a'"),
        ('[keep]\nmax-bytes = "0%"\n', ":2: keep.max-bytes", "max-bytes cannot be '0%'"),
        ('[keep]\nmax-bytes = "101%"\n', ":2: keep.max-bytes", "max-bytes cannot be '101%'"),
        ('[keep]\nmax-bytes = "20 GB"\n', ":2: keep.max-bytes", "max-bytes cannot be '20 GB'"),
        ("[keep]\nmax-bytes = 0\n", ":2: keep.max-bytes", "max-bytes cannot be 0"),
        ("[keep\n", "", "the configuration file is not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(file, text, place, message):
    file.write_text(text)
    with pytest.raises(PolicyError) as raised:
        keep_rules(str(file))
    assert raised.value.code is Code.CONFIG_INVALID
    assert raised.value.message.startswith(message)
    assert raised.value.place == f"{file}{place}"
    assert raised.value.hint


def test_a_file_that_cannot_be_read(file):
    file.write_bytes(b"\xff")
    with pytest.raises(PolicyError, match="cannot be read") as raised:
        keep_rules(str(file))
    assert raised.value.details == ("it is not UTF-8 text",)
    file.unlink()
    file.mkdir()
    with pytest.raises(PolicyError, match="cannot be read") as raised:
        keep_rules(str(file))
    assert raised.value.details == ("Is a directory",)


def test_none_is_needed(file):
    assert keep_rules(str(file)) == KeepRules(file=str(file))
    assert KeepRules().most_bytes(1000) == 100
    assert KeepRules(max_bytes=5, max_percent=None).most_bytes(1000) == 5
    assert KeepRules(max_percent=None).most_bytes(1000) is None


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_file() == f"{tmp_path}/hostfork/config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert config_file() == "/home/me/.config/hostfork/config.toml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert config_file() == "/home/me/.config/hostfork/config.toml"


def test_a_run_reads_none(person, ext4_disk, hostfork):
    """Not even one that keeps something, and whatever stands there."""
    source = ext4_disk.folder(person)
    folder = Path(person.home, ".config/hostfork")
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("nonsense")
    os.chmod(folder, 0o755)
    hostfork(person, "run", "--private", source, "--", "touch", f"{source}/new", check=0)
    assert "code config.invalid · status 125" in hostfork(person, "usage", check=125).stderr
    assert "code config.invalid" in hostfork(person, "gc", check=125).stderr
    hostfork(person, "list", check=0)
    hostfork(person, "discard", "--all", "--yes", check=0)
