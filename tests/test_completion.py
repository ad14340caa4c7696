"""Tab in real shells: what is offered and what is written on the line, and that the line stays clean."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pexpect
import pyte
import pytest

import rigs
from hostfork.cli.completion import SHELLS, answers
from hostfork.cli.group import ALIASES, VERBS
from hostfork.policy.options import PRIVATE_WORDS
from hostfork.vocabulary import Require
from rigs import Person

PROGRAM = os.path.join(sys.prefix, "bin", "hostfork")
WIDTH, HEIGHT = 110, 80
OF_SHELLS = ["bash", *(pytest.param(name, marks=pytest.mark.rig(name)) for name in ("zsh", "fish"))]
IN_SHELL = pytest.mark.parametrize("shell", OF_SHELLS)


@pytest.fixture
def project(person: Person) -> Iterator[str]:
    """A project, two forks of it, and odd names; in the folder above, nothing but it."""
    folder = rigs.make_project(person, person.home, {"a.txt": "one\n", "sub/dir/x": "", "sub/my file": ""})
    for name in ("calm-otter", "calm-owl"):
        argv = [PROGRAM, "run", "--private", ".", "--name", name, "--", "sh", "-c", "echo x > new"]
        person.run(argv, cwd=folder, check=True)
    os.mkdir(os.path.join(person.home, "bin"))
    os.symlink(PROGRAM, os.path.join(person.home, "bin", "hostfork"))
    yield folder
    person.run([PROGRAM, "discard", "--all", "--yes"], check=True)


# --- what is answered ------------------------------------------------------------------------------------------------


def ask(person: Person, folder: str, shell: str, *words: str) -> list[tuple[str, str]]:
    """Kind and value of each answer to the last of the words."""
    done = person.run([PROGRAM, "--", *words], cwd=folder, env={"_HOSTFORK_COMPLETE": shell})
    assert (done.returncode, done.stderr) == (0, ""), words
    return [(line.split("\t")[0], line.split("\t")[1]) for line in done.stdout.splitlines()]


def values(person: Person, folder: str, *words: str) -> list[str]:
    return [value for _, value in ask(person, folder, "zsh", *words)]


def test_every_place_has_its_answers(person: Person, project: str) -> None:
    assert set(VERBS) <= set(values(person, project, ""))
    assert values(person, project, "--col") == ["--color"]
    assert values(person, project, "--color", "") == ["auto", "always", "never"]
    assert values(person, project, "--debug", "dif") == ["diff"]
    assert values(person, project, "diff", "") == values(person, project, "diff", "--stat", "calm") == [
        "calm-otter", "calm-owl",
    ]  # fmt: skip
    assert values(person, project, "discard", "calm-otter", "ca") == ["calm-owl"]
    assert ask(person, project, "zsh", "diff", "calm-otter", "s") == [("file", "s")]
    assert ask(person, project, "zsh", "diff", "--", "") != []
    assert values(person, project, "run", "--policy", "b") == values(person, project, "run", "--policy=b") == ["build"]
    assert ask(person, project, "zsh", "run", "--policy", "./x") == [("file", "./x")]
    assert values(person, project, "run", "--require", "") == [one.value for one in Require]
    assert values(person, project, "policy", "") == ["list", "show", "check"]
    assert values(person, project, "policy", "show", "w") == ["workspace"]
    assert values(person, project, "completion", "") == list(SHELLS)
    assert values(person, project, "help", "dis") == ["discard"]
    assert values(person, project, "help", "storage.no") == ["storage.no-space"]
    assert ask(person, project, "zsh", "run", "--cwd", "") == [("dir", "")]
    assert values(person, project, "run", "--timeout", "") == []
    assert values(person, project, "run", "--no-such=", "") == ["3"]


def test_mechanisms_and_promises_behind_a_private_path(person: Person, project: str) -> None:
    assert ask(person, project, "zsh", "run", "--private", "su") == [("file", "su")]
    assert ask(person, project, "zsh", "run", "--private", "sub:") == [("after", word) for word in PRIVATE_WORDS]
    assert ask(person, project, "zsh", "run", "--private=sub:c") == [("after", "copy")]
    assert ask(person, project, "zsh", "run", "--private", "odd:name/x") == [("file", "odd:name/x")]
    assert ask(person, project, "zsh", "run", "--private", ":") == [("file", ":")]
    assert ask(person, project, "zsh", "run", "--scratch", "sub:t") == [("after", "tmpfs=")]
    assert ask(person, project, "zsh", "run", "--scratch", "sub") == [("dir", "sub")]


def test_options_once_unless_they_repeat(person: Person, project: str) -> None:
    assert values(person, project, "diff", "--st") == ["--stat"]
    assert "--stat" not in values(person, project, "diff", "--stat", "--")
    assert values(person, project, "run", "--private", ".", "--priv") == ["--private", "--private-git"]
    assert values(person, project, "run", "--private-git", "--priv") == ["--private"]
    assert "-v" in values(person, project, "run", "-")
    assert "--color" not in values(person, project, "run", "--")
    assert values(person, project, "list", "--no") == []
    assert values(person, project, "diff", "--", "-") == []


def test_a_command_is_a_line_of_its_own(person: Person, project: str) -> None:
    assert ask(person, project, "zsh", "run", "--private", ".", "--", "") == [("command", "5")]
    assert ask(person, project, "zsh", "run", "ls", "--al") == [("command", "2")]
    assert ask(person, project, "zsh", "run", "--rm", "") == [("command", "3")]
    assert ask(person, project, "zsh", "run", "--private", ".", "--", "make", "--pri") == [("command", "5")]
    assert ask(person, project, "zsh", "--debug", "plan", "--", "ls", "") == [("command", "4")]


def test_bash_gives_words_as_they_stand_on_the_line(person: Person, project: str) -> None:
    assert ask(person, project, "bash", "run", "--private", "'my proj:c") == [("after", "copy")]
    assert ask(person, project, "bash", "run", "--policy", '"bui') == [("word", "build")]
    assert ask(person, project, "bash", "run", "--cwd", "a\\ b", "--policy", "\\") != []


def test_whatever_is_wrong_the_line_stays_clean(person: Person, project: str) -> None:
    quiet = (0, "", "")

    def told(*words: str, **variables: str) -> tuple[int, str, str]:
        done = person.run([PROGRAM, *words], env={"_HOSTFORK_COMPLETE": "fish", **variables}, cwd=project)
        return done.returncode, done.stdout, done.stderr

    assert told("--", "diff", "x", XDG_STATE_HOME="/proc/none") == quiet
    assert told("--", "no-such-verb", "x") == quiet
    assert told("--", "policy", "show", "nothing/") == (0, "file\tnothing/\t\n", "")
    assert told("--", "run", "--no-such", "--")[0] == 0
    for words in (["run", ""], [], ["--"]):
        assert told(*words) == (1, "", "")
    assert told("--", "", _HOSTFORK_COMPLETE="tcsh") == (1, "", "")
    record = os.path.join(person.state, "forks", "calm-owl", "record.json")
    with open(record) as file:
        content = file.read()
    with open(record, "w") as file:
        file.write("{")
    assert values(person, project, "show", "") == ["calm-otter", "calm-owl"]
    with open(record, "w") as file:
        file.write(content)


def test_a_shell_that_goes_away(root: Person) -> None:
    read, write = os.pipe()
    os.close(read)
    done = root.run([PROGRAM, "--", ""], env={"_HOSTFORK_COMPLETE": "bash"}, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.rig("strace")
def test_nothing_is_started_and_no_run_is_prepared(user: Person) -> None:
    """At every Tab: modules are read, and nothing else is done. A run's helper above all is not started."""
    done = user.run(["strace", "-f", "-e", "trace=process", "-o", "trace", PROGRAM, "--", "run", "--pri"],
                    env={"_HOSTFORK_COMPLETE": "zsh"}, check=True)  # fmt: skip
    assert done.stdout.startswith("word\t--private\t")
    with open(os.path.join(user.home, "trace")) as file:
        trace = file.read()
    assert "execve(" in trace
    assert not re.search(r"\b(fork|vfork|clone3?)\(", trace)


@pytest.mark.parametrize("verb", [*VERBS, *ALIASES])
def test_every_verb_completes_its_options(verb: str) -> None:
    assert "--json" in [item.value for item in answers([verb], "--")]


# --- scripts ---------------------------------------------------------------------------------------------------------


@IN_SHELL
def test_a_script_is_one_that_the_shell_takes(root: Person, shell: str) -> None:
    script = root.run([PROGRAM, "completion", shell], check=True).stdout
    assert json.loads(root.run([PROGRAM, "completion", shell, "--json"], check=True).stdout)["script"] == script
    done = root.run([shell, "-n"], input=script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.rig("shellcheck")
def test_the_bash_script_is_checked() -> None:
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src/hostfork/cli/shells")
    done = subprocess.run(["shellcheck", "-s", "bash", os.path.join(folder, "hostfork.bash")], capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.stdout == ""


# --- real shells, keys and a screen ----------------------------------------------------------------------------------

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SETUP = {
    "bash": "bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; bind 'set enable-bracketed-paste off'; "
    'bind "set completion-query-items 0"; bind "set page-completions off"; PS1="READY> "; '
    'eval "$(hostfork completion bash)"',
    "zsh": "unsetopt beep zle_bracketed_paste prompt_sp; PS1='READY> '; autoload -Uz compinit; compinit -D; "
    'LISTMAX=0; eval "$(hostfork completion zsh)"',
    "fish": "function fish_prompt; echo -n 'READY> '; end; set -g fish_greeting; set -g fish_autosuggestion_enabled 0; "
    "hostfork completion fish | source",
}


AS_FILES = {
    "zsh": "mkdir -p ~/.zfunc; hostfork completion zsh > ~/.zfunc/_hostfork; fpath+=(~/.zfunc); "
    "unsetopt beep zle_bracketed_paste prompt_sp; PS1='READY> '; autoload -Uz compinit; compinit -D",
    "fish": "function fish_prompt; echo -n 'READY> '; end; set -g fish_autosuggestion_enabled 0; "
    "mkdir -p ~/.config/fish/completions; set -p fish_complete_path ~/.config/fish/completions; "
    "hostfork completion fish > ~/.config/fish/completions/hostfork.fish",
    "zsh without compinit": "unsetopt beep zle_bracketed_paste prompt_sp; PS1='READY> '; "
    'eval "$(hostfork completion zsh)"',
}
"""The other ways that the help names: a file that the shell finds by itself."""


class Shell:
    """An interactive shell on a screen."""

    def __init__(self, person: Person, shell: str, folder: str, setup: str) -> None:
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self.stream = pyte.ByteStream(self.screen)
        command = START[shell]
        self.child = pexpect.spawn(
            command[0], command[1:], cwd=folder, env=person.environment({"TERM": "xterm", "HISTFILE": ""}),
            preexec_fn=person.enter(), dimensions=(HEIGHT, WIDTH), timeout=20,
        )  # fmt: skip
        self.child.delaybeforesend = None
        self.wait(r"[$#%>]\Z")
        self.press(setup + "\r")
        self.wait(r"READY>\Z")

    def press(self, keys: str) -> None:
        self.child.send(keys.encode())

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip("\n")

    def wait(self, pattern: str) -> str:
        """Read until the screen shows this; the screen."""
        seen = re.compile(pattern, re.MULTILINE)
        while not seen.search(self.text()):
            try:
                self.stream.feed(self.child.read_nonblocking(65536, timeout=20))
            except (pexpect.TIMEOUT, pexpect.EOF) as error:
                raise AssertionError(f"{pattern!r} does not come:\n{self.text()}") from error
        return self.text()

    def line(self, typed: str, keys: str = "\t") -> None:
        """A fresh line on a fresh screen, and keys."""
        # Not Ctrl-C: a shell may see it at the next key only.
        self.press("\x15clear\r")
        self.wait(r"\AREADY>\Z")
        self.press(typed + keys)

    def close(self) -> None:
        self.child.close(force=True)


@pytest.fixture
def in_shell(request: pytest.FixtureRequest, person: Person, project: str) -> Iterator[Shell]:
    shell = Shell(person, request.param, project, SETUP[request.param])
    yield shell
    shell.close()


EVERY_SHELL = pytest.mark.parametrize("in_shell", OF_SHELLS, indirect=True)


@EVERY_SHELL
def test_tab_writes_what_is_meant(in_shell: Shell) -> None:
    for typed, written in {
        "hostfork dif": "hostfork diff ",
        "~/bin/hostfork show calm-ot": "~/bin/hostfork show calm-otter ",
        "hostfork show calm-ot": "hostfork show calm-otter ",
        "hostfork discard calm-otter calm": "hostfork discard calm-otter calm-owl ",
        "hostfork run --read": "hostfork run --read-only ",
        "hostfork run --policy bu": "hostfork run --policy build ",
        "hostfork run --policy=bu": "hostfork run --policy=build ",
        "hostfork run --require sna": "hostfork run --require snapshot ",
        "hostfork run --private su": "hostfork run --private sub/",
        "hostfork run --private=su": "hostfork run --private=sub/",
        "hostfork run --private sub:cop": "hostfork run --private sub:copy ",
        "hostfork run --private=sub:liv": "hostfork run --private=sub:live ",
        "hostfork run --private ~/proj:ref": "hostfork run --private ~/proj:reflink ",
        "hostfork run --scratch sub:tm": "hostfork run --scratch sub:tmpfs=",
        "hostfork run --cwd sub/d": "hostfork run --cwd sub/dir/",
        "hostfork run --private sub/my": "hostfork run --private sub/my\\ file ",
        "hostfork policy sh": "hostfork policy show ",
        "hostfork help storage.no": "hostfork help storage.no-space ",
        "hostfork run --private . -- mkte": "hostfork run --private . -- mktemp ",
        "hostfork run --private . -- cat a.t": "hostfork run --private . -- cat a.txt ",
    }.items():
        for _ in range(2):  # on a busy machine fish may draw its prompt once more by itself
            in_shell.line(typed)
            in_shell.press("@")
            screen = in_shell.wait(re.escape(f"READY> {written}@") + r"\Z")
            if screen.count("\n") == 0:
                break
        assert screen.count("\n") == 0


@EVERY_SHELL
def test_tab_offers_what_there_is(in_shell: Shell, person: Person) -> None:
    for typed, offered in {
        "hostfork ": [*VERBS],
        "hostfork show calm-o": ["calm-otter", "calm-owl"],
        "hostfork run --private sub:": [*PRIVATE_WORDS],
        "hostfork run --ex": ["--export"],
        "hostfork completion ": [*SHELLS],
    }.items():
        in_shell.line(typed)
        for word in offered:
            in_shell.wait(rf"(?<![\w-]){re.escape(word)}\b")


@pytest.mark.parametrize("way", AS_FILES)
@pytest.mark.rig("zsh", "fish")
def test_a_script_is_found_where_the_help_puts_it(person: Person, project: str, way: str) -> None:
    shell = Shell(person, way.split()[0], project, AS_FILES[way])
    try:
        for typed in ("hostfork show calm-ot", "hostfork discard calm-ot"):
            shell.line(typed)
            shell.press("@")
            assert shell.wait(re.escape(f"READY> {typed}ter @") + r"\Z").count("\n") == 0
    finally:
        shell.close()


def test_many_forks_are_names_alone(person: Person, project: str) -> None:
    """No record is read then: these have none that could be."""
    for number in range(400):
        folder = os.path.join(person.state, "forks", f"many-{number}")
        person.call(os.mkdir, folder)
    told = person.run([PROGRAM, "--", "show", "many-"], env={"_HOSTFORK_COMPLETE": "fish"}, check=True).stdout
    assert len(told.splitlines()) == 400
    assert {line.split("\t")[2] for line in told.splitlines()} == {""}
    few = person.run([PROGRAM, "--", "show", "calm-ot"], env={"_HOSTFORK_COMPLETE": "fish"}, check=True).stdout
    assert few == "word\tcalm-otter\tsh -c 'echo x > new'\n"
    for number in range(400):
        os.rmdir(os.path.join(person.state, "forks", f"many-{number}"))
