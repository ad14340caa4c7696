"""Help fits a screen, says what there is, and every example in it is run as it is shown."""

import json
import os
import re
import sys

import pytest

import rigs
from hostfork.cli import pages as pages_module
from hostfork.cli.completion import _of_verb
from hostfork.cli.group import ALIASES, GROUP, VERBS, help_lines
from hostfork.cli.manual import ENVIRONMENT, FILES, GROUP_EXAMPLES, Example, Manual
from hostfork.cli.options import CONTEXT, ENDING, RULES, Option
from hostfork.cli.pages import page_of, pages
from hostfork.cli.verb import SCREEN, Verb, options, verb
from hostfork.errors import Code
from rigs import Person

PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
LONG = {"": 60, "run": 40, "plan": 40, "create": 40}
"""Lines of those that do not fit the smallest terminal."""


def verb_of(name: str) -> Verb:
    command = GROUP.get_command(None, name)
    assert isinstance(command, Verb)
    return command


def examples_of(name: str) -> tuple[Example, ...]:
    return verb_of(name).examples if name else GROUP_EXAMPLES


# --- one screen ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_a_screen(root: Person, verb: str) -> None:
    done = root.run([PROGRAM, *([verb] if verb else []), "--help"], check=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) <= LONG.get(verb, SCREEN)
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith(".")
    assert lines[2].startswith("Usage: hostfork")
    start = lines.index("Examples:")
    shown = lines[start + 1 : lines.index("", start)]
    assert shown == [f"  {example.line}" for example in examples_of(verb)]
    assert len(shown) == 3
    assert all("hostfork" in line for line in shown)
    options = lines[lines.index("Options:") + 1 :]
    assert all(line[:3] in ("  -", "") or line.startswith(("`hostfork", "More options")) for line in options)


@pytest.mark.parametrize(("verb", "table"), [("run", (*RULES, *CONTEXT, *ENDING)), ("plan", (*RULES, *CONTEXT))])
def test_every_option_of_the_table_is_in_the_help_in_its_order(root: Person, verb: str, table: tuple) -> None:
    told = root.run([PROGRAM, verb, "--help"], check=True).stdout
    plain, _, rare = told.partition("More options")
    explained = [option for option in table if not option.rare]
    places = [plain.index(f"  {', '.join(option.names)}") for option in explained]
    assert places == sorted(places)
    assert all(option.help in plain for option in explained)
    for name in (option.names[-1] for option in table if option.rare):
        assert re.search(rf"{name}\b", rare)
        assert f"  {name}" not in plain


def test_a_verb_says_the_same_of_itself_everywhere() -> None:
    for name, sentence in VERBS.items():
        assert verb_of(name).help == sentence
        assert f"  {name:<11} {sentence}" in help_lines()


# --- the manual ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_the_manual_of_a_verb(root: Person, verb: str) -> None:
    told = root.run([PROGRAM, "help", verb], check=True).stdout
    head = root.run([PROGRAM, verb, "--help"], check=True).stdout.splitlines()[:3]
    assert told.splitlines()[:3] == head
    for title in ("DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
        assert f"\n\n{title}\n" in told
    for option in verb_of(verb).get_params(verb_of(verb).context()):
        if option.param_type_name == "option" and not option.hidden:
            assert all(name in told for name in option.opts)
    assert max(map(len, told.splitlines())) <= 80
    assert told.count("``") == 0


def test_help_of_a_short_name_of_nothing_and_of_no_verb(root: Person) -> None:
    told = root.run([PROGRAM, "help", "list"], check=True).stdout
    assert root.run([PROGRAM, "help", *[short for short, name in ALIASES.items() if name == "list"]]).stdout == told
    assert root.run([PROGRAM, "help"], check=True).stdout == root.run([PROGRAM, "--help"], check=True).stdout
    for words, near in ((["help", "dif"], "diff"), (["rum"], "run"), (["help", "storage.pol"], "storage.pool")):
        done = root.run([PROGRAM, *words])
        assert (done.returncode, done.stdout) == (2, "")
        assert f"did you mean {near}" in done.stderr
    done = root.run([PROGRAM, "help", "zzzzzz"])
    assert "there is no verb 'zzzzzz'\n" in done.stderr
    assert root.run([PROGRAM, "help", "run", "diff"]).returncode == 2


@pytest.mark.parametrize("code", Code)
def test_help_of_an_error(root: Person, code: Code) -> None:
    told = root.run([PROGRAM, "help", code.text], check=True).stdout
    assert told.partition("\n\n")[0].replace("\n", " ") == f"{code.text}: {code.meaning}"
    assert "\n- " in told
    assert max(map(len, told.splitlines())) <= 80


def test_help_as_json(root: Person) -> None:
    told = json.loads(root.run([PROGRAM, "help", "fork.busy", "--json"], check=True).stdout)
    assert told["code"] == "fork.busy"
    assert told["remedies"] != []
    assert root.run([PROGRAM, "help", "run", "--json"]).returncode == 2


def test_tables_of_the_manual_are_used() -> None:
    manuals = [verb_of(name).manual for name in VERBS]
    assert {name for manual in manuals for name in manual.environment} == set(ENVIRONMENT)
    assert {name for manual in manuals for name in manual.files} == set(FILES)
    known = {page.name for page in pages()}
    assert all(set(page.see) <= known for page in pages())
    assert page_of(None).see == tuple(f"hostfork-{name}" for name in VERBS)


def test_an_option_stands_in_one_place() -> None:
    """A line of the table is enough for click, help, manual and completion."""
    new = Option(("--new",), "what it is", "WHAT", many=True, words=("one", "two"), more="More of it.", rare=True)
    table = [Option((f"--filler-{number}",), "fills") for number in range(20)]

    @verb("made", "Do it.", Example("hostfork made", "Why."), manual=Manual(about=("About.",)))
    @options(*table, new)
    def made_verb(output: object, **given: object) -> int:
        return 0

    context = made_verb.make_context("made", ["--new", "one", "--new", "x"])
    assert context.params["new"] == ("one", "x")
    told = made_verb.get_help(made_verb.context())
    assert "More options, explained by `hostfork help made`:\n  --new WHAT, --debug" in told
    item = next(item for item in pages_module._options(made_verb) if item.term == "--new WHAT")
    assert item.text == "What it is. More of it. It can be repeated."
    assert [one.value for one in _of_verb(made_verb, ["--new"], "t", 2)] == ["two"]


# --- examples --------------------------------------------------------------------------------------------------------

PROJECT = {
    "Makefile": "all:\n\techo made > made\ntest:\n\techo tested\n\techo more > made.txt\n",
    "build.sh": "#!/bin/sh\necho built > built.txt\n",
    "test_it.py": "def test_it():\n    assert True\n",
    "src/a.py": "one\n",
    "mine.toml": 'schema = 1\n[[rule]]\npath = "~/proj"\naccess = "private"\n',
}


@pytest.fixture
def project(person: Person) -> str:
    """A project in git, with two forks, and the folders that the examples write to."""
    folder = rigs.make_project(person, person.home, PROJECT)
    setup = "chmod +x build.sh; git init -q; git add .; git commit -q -m first; "
    setup += "mkdir -p ~/.zfunc ~/.config/fish/completions ~/bin; "
    setup += "printf '#!/bin/sh\\nexec \"$@\"\\n' > ~/bin/sudo; chmod +x ~/bin/sudo; "
    setup += "printf '#!/bin/sh\\n' > ~/bin/systemctl; chmod +x ~/bin/systemctl"
    person.run(["sh", "-c", setup], cwd=folder, check=True)
    for name, change in (("calm-otter", "echo two >> src/a.py; mkdir d; echo x > d/x"), ("odd-heron", "rm src/a.py")):
        argv = [PROGRAM, "run", "--private", ".", "--name", name, "--", "sh", "-c", change]
        person.run(argv, cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("verb", ["", *VERBS])
@pytest.mark.rig("user namespaces", "git", "make", "less")
def test_examples_are_run(person: Person, project: str, verb: str, leaves_nothing: None) -> None:
    """In the order of the help, each in the shell, without a terminal; as root `setup` finds nothing to install."""
    if verb in ("ps", "logs", "wait", "stop", "suspend", "resume"):
        command = ["sh", "-c", "sleep 300"] if verb in ("suspend", "resume") else ["true"]
        person.run([PROGRAM, "exec", "--detach", "calm-otter", "--", *command], cwd=project, check=True)
        if command == ["true"]:
            person.run([PROGRAM, "wait", "calm-otter"], check=True)
        elif verb == "resume":
            person.run([PROGRAM, "suspend", "calm-otter"], check=True)
    if verb == "restore":
        person.run([PROGRAM, "checkpoint", "calm-otter"], check=True)
    if verb == "undo":
        person.run([PROGRAM, "apply", "calm-otter", "--yes"], cwd=project, check=True)
    for example in examples_of(verb):
        path = f"{person.home}/bin:{person.environment()['PATH']}"
        done = person.run(["bash", "-o", "pipefail", "-c", example.line], cwd=project, env={"PATH": path})
        assert done.returncode == example.status, (example.line, done.stdout, done.stderr)
        if example.status == 0:
            assert "code " not in done.stderr, (example.line, done.stderr)
            assert "rror" not in done.stderr, (example.line, done.stderr)
    person.run([PROGRAM, "discard", "--all", "--yes"], check=True)


def test_an_example_that_fails_would_be_seen(person: Person) -> None:
    wrong = person.run(["bash", "-o", "pipefail", "-c", "hostfork diff no-such | cat"], cwd=person.home)
    assert wrong.returncode == 125
