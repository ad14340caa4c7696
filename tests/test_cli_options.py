"""The plain reader of `run`'s options and click's parser give the same, or the reader gives up."""

from typing import Any

import click
from hypothesis import given, settings
from hypothesis import strategies as st

from hostfork.cli.options import CONTEXT, ENDING, RULES, read_run
from hostfork.cli.run import run_verb

TABLE = (*RULES, *CONTEXT, *ENDING)
NAMES = [name for option in TABLE for name in option.names]
WORDS = st.one_of(
    st.sampled_from([*NAMES, "--json", "--debug", "--help", "-h", "--", "-", "-vq", "--no-such", "--name=x", "--rm=x"]),
    st.sampled_from(NAMES).map(lambda name: f"{name}=value"),
    st.sampled_from(["true", "sh", "-c", "", "a=b", "\udcff", "x y", "--private"]),
)


def by_click(words: list[str]) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """What click makes of it, None where it refuses or shows its help."""
    try:
        context = run_verb.make_context("run", list(words))
    except (click.UsageError, click.exceptions.Exit):
        return None
    found = dict(context.params)
    found.pop("color")
    command = found.pop("command")
    return found, command


@settings(max_examples=600, deadline=None)
@given(st.lists(WORDS, max_size=8))
def test_the_reader_agrees_with_click(words: list[str]) -> None:
    read = read_run(words)
    expected = by_click(words)
    if read is not None:
        assert expected is not None
        assert (read.options, read.command) == expected


def test_plain_command_lines_are_read_without_click() -> None:
    for words in (
        ["--private", ".", "--", "true"],
        ["--private", "a", "--private=b", "--rm", "-v", "make", "--jobs", "2"],
        ["--read-only", "/", "--fd", "3", "--timeout", "5m", "--", "--odd"],
        ["--json", "--dry-run", "--share-all"],
        [],
    ):
        read = read_run(words)
        assert read is not None
        assert (read.options, read.command) == by_click(words)


def test_what_is_not_plain_is_clicks() -> None:
    for line in ("--help", "--no-such x", "--name", "--rm=x true", "-vq true", "--color never true"):
        words = line.split()
        assert read_run(words) is None
