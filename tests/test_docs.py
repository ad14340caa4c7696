"""The documents tell the truth: links lead somewhere, generated pages are fresh, commands and options exist."""

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import click
import pytest

from hostfork.cli.group import ALIASES, GROUP, VERBS
from hostfork.cli.troubles import TROUBLES
from hostfork.cli.verb import Verb
from hostfork.errors import Code
from hostfork.helper import protocol, steps
from hostfork.policy.document import parse

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOSTFORK = os.path.join(os.path.dirname(sys.executable), "hostfork")
PAGES = sorted(
    ["README.md", "CONTRIBUTING.md", "spikes/README.md"]
    + [f"docs/{name}" for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md")]
)
EVERY = pytest.mark.parametrize("page", PAGES)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@cache
def text(page: str) -> str:
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return file.read()


def prose(page: str) -> str:
    """A page without its blocks of code: fenced ones, indented ones, and words in backquotes."""
    without = FENCE.sub("", text(page))
    lines = [line for line in without.split("\n") if not line.startswith("    ")]
    return re.sub(r"`[^`\n]*`", lambda found: found[0].replace("(", " ").replace("[", " "), "\n".join(lines))


def anchors(page: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found = re.findall(r"^#+ (.*)$", FENCE.sub("", text(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def broken(page: str, links: list[str]) -> list[str]:
    """The links that lead nowhere. None of the pages needs one to the outside."""
    wrong = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        known = os.path.exists(os.path.join(ROOT, target))
        if not known or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@EVERY
def test_links_lead_somewhere(page: str) -> None:
    assert broken(page, LINK.findall(prose(page))) == []


def test_a_broken_link_is_seen() -> None:
    assert broken("docs/guide.md", ["no-such.md", "limits.md#no-such", "#no-such", "limits.md#copy", "#policies"]) == [
        "no-such.md", "limits.md#no-such", "#no-such",
    ]  # fmt: skip


def test_every_page_can_be_reached_from_the_first() -> None:
    seen, waiting = set(), ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.endswith(".md"):
            continue
        seen.add(page)
        paths = [link.partition("#")[0] for link in LINK.findall(prose(page))]
        waiting += [os.path.normpath(os.path.join(os.path.dirname(page), path)) for path in paths if path]
    assert [page for page in PAGES if page not in seen] == []


# --- commands --------------------------------------------------------------------------------------------------------


def commands(page: str) -> Iterator[str]:
    """The lines that somebody types in the console blocks of a page, continued ones joined."""
    for kind, block in FENCE.findall(text(page)):
        if kind == "console":
            for typed in re.findall(r"^\$ (.*(?:\n> .*)*)", block, re.MULTILINE):
                yield typed.split("\n> ")[0]


def invocations(line: str) -> Iterator[list[str]]:
    """The words of each `hostfork …` in a shell line, up to the next operator; the line itself must be good shell."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    current: list[str] | None = None
    for word in [*words, ";"]:
        if set(word) <= set(";&|()<>"):
            if current is not None:
                yield current
            current = None
        elif current is not None:
            current.append(word)
        elif word == "hostfork":
            current = []


@cache
def options_of(verb: str) -> dict[str, bool]:
    """Every option of a verb and whether it takes a value."""
    command = GROUP.get_command(None, ALIASES.get(verb, verb))
    assert isinstance(command, Verb)
    options = [option for option in command.get_params(command.context()) if isinstance(option, click.Option)]
    return {name: not option.is_flag for option in options for name in option.opts}


MISTYPED = "rum"
"""A verb that the guide gets wrong to show what is said then."""


def unknown(words: list[str]) -> list[str]:
    """What of a command line hostfork would not understand: verb and options, not what they are given."""
    if not words or words[0] in ("VERB", MISTYPED):
        return []
    if ALIASES.get(words[0], words[0]) not in VERBS:
        return words[:1] if words and not words[0].startswith("-") else []
    known, wrong, waiting = options_of(words[0]), [], False
    for word in words[1:]:
        if waiting:
            waiting = False
        elif word == "--":
            break
        elif word.startswith("-") and word != "-":
            waiting = known.get(word, False)
            wrong += [] if word in known else [word]
        elif words[0] == "run":
            break
    return wrong


@EVERY
def test_commands_are_understood(page: str) -> None:
    wrong = [(line, bad) for line in commands(page) for words in invocations(line) if (bad := unknown(words))]
    assert wrong == []


def test_a_wrong_command_is_seen() -> None:
    lines = {
        "hostfork run --privat . -- make": ["--privat"],
        "hostfork diff calm --nope | less": ["--nope"],
        "hostfork aply calm": ["aply"],
        "cd x; hostfork run --private . --name a -- sh -c 'b --c'; hostfork list --json": [],
    }
    for line, wrong in lines.items():
        assert [bad for words in invocations(line) for bad in unknown(words)] == wrong


def test_the_documents_show_commands() -> None:
    shown = {words[0] for page in PAGES for line in commands(page) for words in invocations(line) if words}
    assert shown >= set(VERBS) - {"completion"}


@EVERY
def test_only_verbs_that_exist_are_named(page: str) -> None:
    named = set(re.findall(r"`(?:\w+ )*hostfork ([a-z]\w*)", FENCE.sub("", text(page))))
    assert named - set(VERBS) - set(ALIASES) == set()


def test_the_first_page_names_every_verb() -> None:
    assert [verb for verb in VERBS if f"`{verb}`" not in text("README.md")] == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_has_every_option(verb: str) -> None:
    chapter = text("docs/reference.md").partition(f"## hostfork {verb}\n")[2].partition("\n## ")[0]
    missing = [name for name in options_of(verb) if name != "--color" and not re.search(rf"[` ]{name}\b", chapter)]
    assert missing == []


def test_the_first_page_is_read_in_two_minutes() -> None:
    assert len(FENCE.sub("", text("README.md")).split()) < 700
    assert text("README.md").split("\n")[2].startswith("`hostfork run --private")


# --- pages that repeat the code --------------------------------------------------------------------------------------


def errors_page() -> Any:
    spec = importlib.util.spec_from_file_location("errors_page", os.path.join(ROOT, "docs/errors.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_of_errors_are_fresh() -> None:
    pages = errors_page().pages()
    assert set(pages) == {"errors.md", "troubleshooting.md"}
    assert {name: text(f"docs/{name}") for name in pages} == pages, "python docs/errors.py"


def test_every_error_is_explained() -> None:
    assert list(TROUBLES) == list(Code)
    for code, trouble in TROUBLES.items():
        assert trouble.why.endswith("."), code
        assert trouble.remedies, code
        for remedy in trouble.remedies:
            assert remedy.count("`") % 2 == 0, code
            wrong = [bad for words in invocations_in(remedy) if (bad := unknown(words))]
            assert wrong == [], (code, remedy)


def invocations_in(sentence: str) -> Iterator[list[str]]:
    """The words of each `hostfork …` in backquotes."""
    for typed in re.findall(r"`([^`]*hostfork [^`]*)`", sentence):
        yield from invocations(typed)


def test_policies_in_the_documents_are_good() -> None:
    found = re.findall(r"\.toml <<'END'\n((?:> .*\n)+?)> END", text("docs/guide.md"))
    assert found != []
    for block in found:
        content = "\n".join(line[2:] for line in block.splitlines())
        assert parse(content, "example.toml", "example", "/home/ana").rules != ()


def test_every_key_of_a_policy_is_in_the_guide() -> None:
    described = " ".join(re.findall(r"^\| (`.*?) \|", text("docs/guide.md"), re.MULTILINE))
    words = set(re.findall(r"[\w-]+", described))
    keys = set(re.findall(r"^    (?:\[+)?([a-z-]+)", parse.__globals__["__doc__"], re.MULTILINE))
    assert len(keys) > 15
    assert keys - words == set()


def test_the_architecture_has_every_message_step_and_package() -> None:
    page = text("docs/architecture.md")
    messages = [message.__name__ for message in get_args(protocol.Message)]
    names = re.findall(r"^([a-z]+)  +\w", steps.__doc__ or "", re.MULTILINE)
    assert len(names) == 11
    packages = [name for name in os.listdir(os.path.join(ROOT, "src/hostfork")) if name.isalpha()]
    assert len(packages) == 10
    rows = set(re.findall(r"`(\w+)/?`", page))
    assert [name for name in (*messages, *names, *packages) if name not in rows] == []


def test_files_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`((?:\w+/)+[\w-]+\.\w+)", text("docs/architecture.md"))
    places = ("", "src/hostfork", "docs")
    assert len(named) > 15
    assert [
        name
        for name in named
        if name != "storage/NAME.py" and not any(os.path.exists(os.path.join(ROOT, place, name)) for place in places)
    ] == []


def test_functions_that_the_architecture_names_exist() -> None:
    table = text("docs/architecture.md").partition("## The packages")[0]
    named = re.findall(r"`((?:policy|lifecycle|storage|workload|collect)\.[\w.]+)`", table)
    assert len(named) > 8
    for name in named:
        assert reachable(name), name


def reachable(name: str) -> bool:
    """Whether a dotted name leads to a module or to something in one."""
    found: Any = importlib.import_module("hostfork")
    for part in name.split("."):
        if not hasattr(found, part):
            try:
                importlib.import_module(f"{found.__name__}.{part}")
            except ImportError:
                return False
        found = getattr(found, part)
    return True


@EVERY
def test_no_machine_and_nothing_unfinished(page: str) -> None:
    paths = re.findall(r"/(?:home|work|Users|root)/\w+", text(page))
    assert [path for path in paths if not path.startswith(("/home/ana", "/home/me"))] == []
    assert not re.search(r"\b(TODO|FIXME|XXX|TBD)\b", text(page))
