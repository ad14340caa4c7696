"""Man pages: made from what `--help` is made of, fresh, clean for both formatters, and whole."""

import importlib.util
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from hostfork.cli.group import VERBS
from hostfork.cli.pages import pages
from rigs import Person

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "man")
NAMES = ["hostfork", *(f"hostfork-{verb}" for verb in VERBS)]
EVERY = pytest.mark.parametrize("name", NAMES)
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("manpages", os.path.join(ROOT, "docs/manpages.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["manpages"] = module
    spec.loader.exec_module(module)
    return module


def path_of(name: str) -> str:
    return os.path.join(FOLDER, f"{name}.1")


def rendered(name: str, width: int = 80) -> str:
    """As man shows it, without bold and underline."""
    done = subprocess.run(
        ["man", "--warnings=w", "-E", "UTF-8", "-l", path_of(name)],
        env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": str(width), "MAN_KEEP_FORMATTING": "0"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return re.sub(r"\x1b\[[\d;]*m|.\x08", "", done.stdout)


def test_pages_are_fresh() -> None:
    written = generator().written()
    assert sorted(os.listdir(FOLDER)) == sorted(os.path.basename(path) for path in written if path.startswith("man/"))
    for path, text in written.items():
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            assert file.read() == text, f"{path}: python docs/manpages.py"


def test_there_is_one_for_each_verb() -> None:
    assert sorted(NAMES) == sorted(page.name for page in pages())
    assert sorted(f"{name}.1" for name in NAMES) == sorted(os.listdir(FOLDER))


@EVERY
@pytest.mark.rig("mandoc")
def test_mandoc_finds_nothing(name: str) -> None:
    done = subprocess.run(["mandoc", "-T", "lint", path_of(name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@EVERY
@pytest.mark.rig("man")
def test_a_page_is_whole(name: str) -> None:
    told = rendered(name)
    titles = re.findall(r"^([A-Z][A-Z ]+)$", told, re.MULTILINE)
    assert [title for title in titles if title in SECTIONS] == SECTIONS
    assert "`" not in told.replace("`hostfork", "")
    assert re.search(rf"^ +{name} +- [a-z]", told, re.MULTILINE)
    assert f"{name.upper()}(1)" in told.splitlines()[0]
    assert max(map(len, told.splitlines())) <= 80
    if name not in ("hostfork-completion", "hostfork-help", "hostfork-policy", "hostfork-setup"):
        assert "\nENVIRONMENT\n" in told
        assert "\nFILES\n" in told


@EVERY
@pytest.mark.rig("man")
def test_what_is_to_be_typed_can_be_copied(name: str) -> None:
    """Hyphens, quotes and tildes of commands and options come out as ASCII."""
    page = next(page for page in pages() if page.name == name)
    told = " ".join(rendered(name, 200).split())
    for example in page.examples:
        assert " ".join(example.line.split()) in told
    for section in page.sections:
        for item in section.items:
            assert item.term in told


@pytest.mark.rig("man")
def test_man_finds_a_page_by_its_name(root: Person) -> None:
    """As installed: below share/man, found through MANPATH; the short description too."""
    place = os.path.join(root.home, "man", "man1")
    os.makedirs(place)
    for name in NAMES:
        os.symlink(path_of(name), os.path.join(place, f"{name}.1"))
    environment = {"MANPATH": os.path.join(root.home, "man"), "MANWIDTH": "80"}
    assert "HOSTFORK-RUN(1)" in root.run(["man", "hostfork-run"], env=environment, check=True).stdout
    # `man hostfork run`, as git has it
    assert "HOSTFORK-RUN(1)" in root.run(["man", "hostfork", "run"], env=environment, check=True).stdout
    described = root.run(
        ["lexgrog", *(os.path.join(place, f"{name}.1") for name in NAMES)], env=environment, check=True
    )
    assert [name for name in NAMES if f"{name} - " not in described.stdout] == []


def test_signs_that_roff_would_take_are_escaped() -> None:
    page = generator()
    assert page.escaped("a-b '`~^\\…") == "a\\-b \\(aq\\(ga\\(ti\\(ha\\e\\[u2026]"
    assert page.literal(".x") == "\\&.x"
    assert page.prose("use `--no` at ~/.x, well-known") == "use \\fB\\-\\-no\\fR at \\(ti/.x, well-known"
    lines = page._filled("One. Then " + "word " * 30 + "'quoted'. .dot")
    assert lines[0] == "One."
    assert not [line for line in lines if line[:1] in (".", "'")]
