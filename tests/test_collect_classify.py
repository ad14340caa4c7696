"""Class, ignored folder and active mark of changes, and that ignoring is git's."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from hostfork.collect.active import ACTIVE_FILES, is_active
from hostfork.collect.changeset import Change
from hostfork.collect.classify import classify
from hostfork.collect.ignores import Ignores, _patterns
from hostfork.vocabulary import ChangeClass, ChangeKind, EntryKind

AT = "/home/me/proj"


class Content:
    """A final content that is only its ignore files."""

    def __init__(self, files: dict[str, str] | None = None) -> None:
        self.files = files or {}

    def read(self, relative: str) -> bytes | None:
        text = self.files.get(relative)
        return None if text is None else text.encode("utf-8", "surrogateescape")

    def exists(self, relative: str) -> bool:
        return any(name == relative or name.startswith(relative + "/") for name in self.files)


def one(relative: str, kind: EntryKind = EntryKind.FILE, content: Content | None = None, **fields: object) -> Change:
    """One classified change."""
    change = Change(f"{AT}/{relative}", ChangeKind.CREATED, kind, **fields)  # type: ignore[arg-type]
    return classify([change], AT, content or Content())[0]


@pytest.mark.parametrize(
    ("path", "kind", "expected"),
    [
        ("src/a.py", EntryKind.FILE, ChangeClass.SOURCE),
        ("node_modules/x/index.js", EntryKind.FILE, ChangeClass.DEPENDENCY),
        ("node_modules/x/build/y.js", EntryKind.FILE, ChangeClass.DEPENDENCY),
        (".venv", EntryKind.FOLDER, ChangeClass.DEPENDENCY),
        ("lib/python3/site-packages/x.py", EntryKind.FILE, ChangeClass.DEPENDENCY),
        ("target/debug/a", EntryKind.FILE, ChangeClass.GENERATED),
        ("src/build", EntryKind.FILE, ChangeClass.SOURCE),
        ("a/__pycache__/b.pyc", EntryKind.FILE, ChangeClass.GENERATED),
        ("b.pyc", EntryKind.FILE, ChangeClass.GENERATED),
        ("run/server", EntryKind.SOCKET, ChangeClass.RUNTIME),
        ("app.pid", EntryKind.FILE, ChangeClass.RUNTIME),
        ("odd\nname.log", EntryKind.FILE, ChangeClass.RUNTIME),
        (".git/index.lock", EntryKind.FILE, ChangeClass.RUNTIME),
        (".git/objects/ab/cd", EntryKind.FILE, ChangeClass.GENERATED),
        ("Cargo.lock", EntryKind.FILE, ChangeClass.SOURCE),
        ("x.log", EntryKind.FOLDER, ChangeClass.SOURCE),
    ],
)
def test_known_names(path: str, kind: EntryKind, expected: ChangeClass) -> None:
    assert one(path, kind).class_ is expected


RULES = {
    ".gitignore": "*.gen\n/top\nlogs/\n!keep.gen\ncache/*\n!cache/kept\n[bad\n",
    "sub/.gitignore": "!b.gen\nown\n",
    "sub/.ignore": "from-ignore\n",
    ".git/info/exclude": "private-*\nkeep.gen\n",
    "nested/.git/HEAD": "",
    "nested/.gitignore": "only-here\n",
}


def test_ignored_paths_are_generated_and_name_their_outermost_folder() -> None:
    content = Content(RULES)
    inside = one("logs/a/b", content=content)
    assert (inside.class_, inside.ignored_by) == (ChangeClass.GENERATED, f"{AT}/logs")
    assert one("logs", EntryKind.FOLDER, content).ignored_by == f"{AT}/logs"
    assert one("logs/a", EntryKind.FOLDER, content).ignored_by == f"{AT}/logs"
    single = one("x.gen", content=content)
    assert (single.class_, single.ignored_by) == (ChangeClass.GENERATED, None)
    assert one("sub/from-ignore", content=content).class_ is ChangeClass.GENERATED
    assert one("nested/x.gen", content=content).class_ is ChangeClass.SOURCE
    assert one("nested/only-here", content=content).class_ is ChangeClass.GENERATED
    assert one("\udcff.gen", content=content).class_ is ChangeClass.GENERATED


@pytest.mark.parametrize("rule", ["!", "a\\", "[z-a]", "[[a]]&&~", "*a" * 60 + "b", "**/" * 60 + "b"])
def test_rules_that_are_malformed_or_costly_are_passed_over(rule: str, recwarn: pytest.WarningsRecorder) -> None:
    content = Content({".gitignore": f"{rule}\n*.gen\n"})
    assert one("a" * 250, content=content).class_ is ChangeClass.SOURCE
    assert one("x.gen", content=content).class_ is ChangeClass.GENERATED
    assert not recwarn.list


LINES = st.lists(st.text(st.sampled_from("ab.*?[]!-\\\\/# "), max_size=8), max_size=4)
PATH = st.lists(st.text(st.sampled_from("ab.!-[ #"), min_size=1, max_size=4), min_size=1, max_size=3).map("/".join)


@settings(max_examples=400, deadline=None, database=None)
@given(lines=LINES, path=PATH, folder=st.booleans())
def test_what_is_decided_without_pathspec_is_what_it_says(lines: list[str], path: str, folder: bool) -> None:
    rules = Ignores(Content({".gitignore": "\n".join(lines)}))
    spec = GitIgnoreSpec([pattern for line in "\n".join(lines).splitlines() for pattern in _patterns(line)])
    outer = path.split("/")
    asked = ["/".join(outer[: count + 1]) + "/" for count in range(len(outer) - (not folder))]
    asked += [] if folder else [path]
    wanted = any(spec.check_file(part).include for part in asked)
    parent = path if folder else path.rpartition("/")[0]
    assert (rules.folder(parent) is not None or (not folder and rules.file(path))) == wanted


_FRESH = """
import sys
from hostfork.collect.changeset import Change
from hostfork.collect.classify import classify
from hostfork.vocabulary import ChangeKind, EntryKind
class Final:
    def read(self, relative): return b"*.gen\\n# comment\\n/mine/\\n" if relative == ".gitignore" else None
    def exists(self, relative): return False
(change,) = classify([Change("/p/" + sys.argv[1], ChangeKind.CREATED, EntryKind.FILE)], "/p", Final())
print(change.class_.value, "pathspec" in sys.modules)
"""


@pytest.mark.parametrize(
    ("path", "said"), [("src/a.py", "source False"), ("a.gen", "generated True"), ("mine/x", "generated True")]
)
def test_pathspec_is_loaded_only_where_a_rule_may_be_about_the_path(path: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", _FRESH, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said


@pytest.mark.rig("git")
def test_ignoring_is_what_git_does(tmp_path: os.PathLike[str]) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    rules = {name: text for name, text in RULES.items() if not name.startswith("nested") and "/.ignore" not in name}
    for name, text in rules.items():
        os.makedirs(os.path.dirname(f"{tmp_path}/{name}"), exist_ok=True)
        with open(f"{tmp_path}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    names = ["a.gen", "keep.gen", "private-x", "sub/private-y", "top", "sub/top", "sub/b.gen", "sub/c.gen", "sub/own"]
    names += ["own", "cache/a", "cache/kept", "logs", "sub/logs/x", "logs/keep.gen", "plain"]
    for name in names:
        if name != "logs":
            os.makedirs(os.path.dirname(f"{tmp_path}/{name}"), exist_ok=True)
            with open(f"{tmp_path}/{name}", "w", encoding="utf-8"):
                pass
    asked = subprocess.run(
        ["git", "check-ignore", "-z", "--stdin"], cwd=tmp_path, input="\0".join(names), text=True, capture_output=True
    )
    ignored = set(asked.stdout.split("\0")) - {""}
    content = Content(rules)
    kinds = {"logs": EntryKind.FOLDER}
    found = {
        name for name in names if one(name, kinds.get(name, EntryKind.FILE), content).class_ is not ChangeClass.SOURCE
    }
    assert found == ignored


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/pre-commit",
        "sub/.git/hooks/post-checkout",
        ".git/config",
        ".git/info/attributes",
        ".envrc",
        ".vscode/tasks.json",
        ".github/workflows/ci.yml",
        ".gitlab-ci.yml",
        ".bashrc",
        ".husky/pre-commit",
        ".husky/_/husky.sh",
        "lefthook.yml",
        ".pre-commit-config.yaml",
        "lib/site-packages/x.pth",
        ".config/systemd/user/a.service.d/b.conf",
    ],
)
def test_active_files(path: str) -> None:
    assert is_active(f"{AT}/{path}")
    assert one(path).active
    assert not classify([Change(f"{AT}/{path}", ChangeKind.DELETED, EntryKind.FILE)], AT, Content())[0].active


@pytest.mark.parametrize("pattern", ACTIVE_FILES)
def test_every_entry_of_the_table_is_found(pattern: str) -> None:
    """Each by itself, below other folders too."""
    path = pattern.replace("**", "a/b").replace("*", "x")
    assert is_active(f"/{path}")
    assert one(f"sub/{path}").active
    assert not is_active(f"{AT}/{path}x/y.txt") or pattern.endswith("**")


@pytest.mark.parametrize(("path", "leads"), [
    (".vscode", True), (".husky", True), ("sub/.github", True), (".git/hooks", True), (".config", False),
    ("link", False), (".local/bin", True),
])  # fmt: skip
def test_a_symlink_in_place_of_a_folder_of_active_files(path: str, leads: bool) -> None:
    assert one(path, EntryKind.SYMLINK, target="elsewhere").active is leads


@pytest.mark.parametrize(("config", "found"), [
    ("[core]\n\thooksPath = tools/hooks\n", True),
    ("[user]\n\thooksPath = tools/hooks\n", False),
    ("[CORE] hookspath=\"./tools/hooks/\"\n", True),
    ("[core]\n\thooksPath = /etc/hooks\n", False),
    ("", False),
])  # fmt: skip
def test_the_folder_that_git_runs_hooks_from(config: str, found: bool) -> None:
    content = Content({".git/config": config})
    assert one("tools/hooks/pre-commit", content=content).active is found
    assert not one("tools/other", content=content).active


@pytest.mark.parametrize(
    "path",
    [
        "Makefile",
        ".git/hooks/pre-commit.sample",
        ".git/HEAD",
        "src/config",
        "my.envrc",
        ".github/workflows/a/b",
        "a.bashrc",
    ],
)
def test_files_that_nobody_runs(path: str) -> None:
    assert not one(path).active


def test_a_folder_is_not_active_but_a_link_in_its_place_is() -> None:
    assert not one(".git/hooks", EntryKind.FOLDER).active
    assert one(".git/hooks", EntryKind.SYMLINK).active


def test_the_private_path_itself() -> None:
    change = Change(AT, ChangeKind.METADATA, EntryKind.FOLDER)
    assert classify([change], AT, Content({".gitignore": "*\n"})) == (change,)
