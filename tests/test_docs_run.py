"""The commands in the documents are run, in their order, and print what the documents say.

`HOSTFORK_WRITE_DOCS=1` writes what they print into the documents instead. The names of forks, sizes, times and numbers
of processes differ from run to run and are not compared. A line `…` stands for any lines. Before a block of commands
may stand `<!-- first: COMMAND -->`, which is run and not shown, or `<!-- elsewhere: REASON -->`: it was run, not here.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from rigs import Person
from test_docs import FENCE, ROOT

RUN = ["README.md"]
RUN += [
    f"docs/{name}.md"
    for name in (
        "guide",
        "agents",
        "untrusted",
        "experiments",
        "mechanisms",
        "limits",
        "tools",
        "space",
        "baselines",
        "audit",
        "apply",
        "kept-forks",
        "branches",
        "checkpoints",
    )
]
COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)\n?", re.MULTILINE)
END = "=== end of output ==="
NAMED = re.compile(r"(?:kept as |HOSTFORK_FORK=|\"fork\": \"|pool/copy/)([a-z]+-[a-z]+)\b")
NOTE = re.compile(r"<!-- (first|elsewhere): ((?:(?!-->).)*) -->\n*\Z", re.DOTALL)
VARYING = (
    # what a repository's folder holds depends on git's version, and on the moment
    (r"\b\d+ files, \d+(?:\.\d+)? [KMGi]*B copied", "COPIED"),
    (r"\d{4}-\d\d-\d\d[T ][\d:]+(?:\.\d+)?Z?", "TIME"),
    (r"(?m), \d\d:\d\d$", ", TIME"),
    (r"\b(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{12})\b", "ID"),
    (r"\S+, Linux \S+, hostfork \S+", "HOST"),
    (r"\b\d+(?:[.,]\d+)? (?:B|KiB|MiB|GiB|ms|s|m)\b", "SIZE"),
    (r"\b\d+\.\d+s\b", "SECONDS"),
    (r"/dev/loop\d+", "/dev/loop"),
    (r"cpython-\d+", "cpython"),
    (r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d", "DATE"),
    (r"\b\d+(?:\.\d+)?[MG]\b", "SIZE"),
    (r"\b\d+\.\d+(?:e-\d+)?\b", "NUMBER"),
    (r"bash: line \d+:\s+\d+ Killed.*", "Killed"),
    (r"tried: (?:python-prctl|/proc/self/status)", "tried: PRIVILEGES"),
    (r"/sys/fs/cgroup/\S+", "CGROUP"),
    (r"\b\d{3,7}\b", "NUMBER"),
)


@dataclass
class Typed:
    """One command of a page, and what the page says that it prints."""

    command: str
    told: str
    start: int
    end: int
    hidden: bool = False


def typed(text: str) -> Iterator[Typed]:
    for fence in FENCE.finditer(text):
        if fence[1] != "console":
            continue
        note = NOTE.search(text, 0, fence.start())
        if note is not None and note[1] == "elsewhere":
            continue
        if note is not None:
            yield Typed(note[2], "", fence.start(), fence.start(), hidden=True)
        found = list(COMMAND.finditer(fence[2]))
        for one, after in zip(found, [*found[1:], None], strict=True):
            end = len(fence[2]) if after is None else after.start()
            told = fence[2][one.end() : end]
            at = fence.start(2)
            yield Typed(one[1].replace("\n> ", "\n"), told, at + one.end(), at + end)


@dataclass
class Shell:
    """One bash for a page. Names of forks in the page are those that its own runs got."""

    person: Person
    names: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> "Shell":
        environment = {"BASH_ENV": "", "PYTHONDONTWRITEBYTECODE": ""}
        pipe = subprocess.PIPE
        self.process = self.person.popen(["bash", "--norc"], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT,
                                         env=environment, encoding="utf-8")  # fmt: skip
        self.run("unset PYTHONDONTWRITEBYTECODE")
        return self

    def __exit__(self, *_exception: object) -> None:
        self.process.communicate()

    def run(self, command: str) -> str:
        """What a command prints, without the place of the home folder."""
        for page, real in self.names.items():
            command = re.sub(rf"\b{page}\b", real, command)
        heredoc = f"{{ {command}\n}} </dev/null\necho '{END}'\n"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(heredoc)
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line == END + "\n":
                break
            lines.append(line)
        return "".join(lines).replace(self.person.home, "/home/ana").replace(self.person.name, "ana")

    def learn(self, told: str, printed: str) -> None:
        """The names that a run found, in the order of the page."""
        for page, real in zip(NAMED.findall(told), NAMED.findall(printed), strict=False):
            if page != real:
                self.names[page] = real


def plain(text: str, names: dict[str, str]) -> list[str]:
    """Lines without what differs from run to run."""
    for page, real in names.items():
        text = re.sub(rf"\b{page}\b", real, text)
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    # where a line of hints is broken depends on the length of names
    text = text.replace("·", "")
    return [" ".join(line.split()) for line in text.strip("\n").split("\n")]


def agrees(told: str, printed: str, names: dict[str, str]) -> bool:
    pattern = [".*" if line == "…" else re.escape(line) for line in plain(told, names)]
    return re.fullmatch(r"\s+".join(pattern), " ".join(plain(printed, names)), re.DOTALL) is not None or (
        re.fullmatch(r" ".join(pattern).replace(r"\ ", r"\s+"), " ".join(plain(printed, names)), re.DOTALL) is not None
    )


@pytest.mark.parametrize("page", RUN)
@pytest.mark.rig("user namespaces", "git", "cgroup", "curl")
def test_commands_print_what_the_page_says(page: str, user: Person, leaves_nothing: None) -> None:
    path = os.path.join(ROOT, page)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    setup = [os.path.join(ROOT, "tests/docs_setup.sh"), os.path.join(ROOT, "demo/project.sh")]
    user.run(["sh", *setup], check=True)
    wrong, pieces, done = [], [], 0
    with Shell(user) as shell:
        for one in typed(text):
            printed = shell.run(one.command)
            if one.hidden:
                continue
            shell.learn(one.told, printed)
            pieces += [text[done : one.start], printed]
            done = one.end
            if not agrees(one.told, printed, shell.names):
                wrong.append(f"$ {one.command}\n--- the page says\n{one.told}--- it prints\n{printed}")
    cleared = user.run([os.path.join(sys.prefix, "bin/hostfork"), "discard", "--all", "--yes"])
    assert cleared.returncode == 0, cleared.stderr
    if os.environ.get("HOSTFORK_WRITE_DOCS"):
        pieces.append(text[done:])
        rewritten = "".join(pieces)
        for name, real in shell.names.items():
            rewritten = re.sub(rf"\b{name}\b", real, rewritten)
        with open(path, "w", encoding="utf-8") as file:
            file.write(rewritten)
    elif wrong:
        pytest.fail("\n".join(wrong))


def test_what_differs_is_seen() -> None:
    names = {"calm-otter": "odd-heron"}
    assert agrees("kept as calm-otter, 12 KiB\n", "kept as  odd-heron, 8 KiB\n", names)
    assert agrees("a\n…\nz\n", "a\nb\nc\nz\n", {})
    assert agrees("a b · c\n", "a b ·\n  c\n", {})
    assert not agrees("a\n", "b\n", {})
    assert not agrees("", "b\n", {})
    assert not agrees("1 created\n", "2 created\n", {})
