"""Makes a commit of a tree on a new branch of a repository, and touches neither its work tree nor its index nor HEAD.

git works with an index of its own in a folder of ours. Objects come first, then one new reference by one rename of
git's: killed at any moment, the repository is what it was, with some objects more that git's own gc removes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from hostfork.errors import ApplyError, Code
from hostfork.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_OFF = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.untrackedCache=false", "gc.auto=0",
    "maintenance.auto=false", "advice.addEmbeddedRepo=false", "core.safecrlf=false", "core.splitIndex=false",
    "core.fileMode=true", "core.symlinks=true",
)  # fmt: skip
_NONE = "0" * 40
_LINES = 12


@frozen
class Wanted:
    """A commit to be made. `folder`: the repository's own; `tree` takes the place of its work tree for git.

    `base`: the commit that it follows, None for the first one of all. `paths`: only these, relative to the work tree;
    "" is all of it. `trailers`: lines for the end of the message.
    """

    folder: str
    tree: str
    index: str
    base: str | None
    branch: str
    message: str
    paths: tuple[str, ...] = ("",)
    trailers: tuple[str, ...] = ()


def check_branch(folder: str, branch: str) -> None:
    """Refuse a name that is none, or that a branch has. Raises ApplyError `apply.commit`."""
    git = _Git(folder, folder, None)
    if git.ask("check-ref-format", "--branch", branch)[0] != 0 or branch.startswith("-"):
        git.refuse(f"{branch!r} cannot be the name of a branch", hint="--branch NAME")
    if git.ask("show-ref", "--verify", "--quiet", f"refs/heads/{branch}")[0] == 0:
        git.refuse(f"there is a branch {branch} already", hint="--branch NAME names another one")


def check_commit(folder: str, commit: str) -> None:
    """Refuse where the repository has no such commit. Raises ApplyError `apply.commit`."""
    git = _Git(folder, folder, None)
    if git.ask("cat-file", "-e", f"{commit}^{{commit}}")[0] != 0:
        git.refuse(f"the commit {commit[:12]}, which the fork started from, is not in the repository any more")


def has_commit(folder: str) -> bool:
    """Whether its HEAD is at a commit."""
    return _Git(folder, folder, None).ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}")[0] == 0


def make_commit(wanted: Wanted) -> str | None:
    """Make it; its id, or None where it would hold what its base holds. Raises ApplyError `apply.commit`."""
    check_branch(wanted.folder, wanted.branch)
    git = _Git(wanted.folder, wanted.tree, wanted.index)
    git.say("read-tree", *(["--empty"] if wanted.base is None else [wanted.base]))
    specs = [f":(top,literal){path}" if path else ":(top)" for path in wanted.paths]
    specs += [f":(top,exclude,literal){path}" for path in git.submodules()]
    git.say("add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul", given=os.fsencode("\0".join(specs)))
    tree = git.answer("write-tree")
    if wanted.base is not None and tree == git.answer("rev-parse", "--verify", f"{wanted.base}^{{tree}}"):
        return None
    trailers = [word for line in wanted.trailers for word in ("--trailer", line)]
    message = git.say("interpret-trailers", "--no-divider", *trailers, given=os.fsencode(wanted.message.strip() + "\n"))
    parents = [] if wanted.base is None else ["-p", wanted.base]
    commit = git.answer("commit-tree", tree, *parents, "-F", "-", given=message)
    zero = _NONE if len(commit) == len(_NONE) else "0" * len(commit)
    git.say("update-ref", "-m", "hostfork: a fork's content", f"refs/heads/{wanted.branch}", commit, zero)
    return commit


class _Git:
    """git on one repository, with another folder as its work tree, and another index."""

    def __init__(self, folder: str, tree: str, index: str | None) -> None:
        program = shutil.which("git")
        if program is None:
            raise ApplyError(Code.APPLY_COMMIT, "a commit cannot be made without git", step="git", hint="install git")
        self._folder, self._tree = folder, tree
        self._command = [program, *(word for one in _OFF for word in ("-c", one))]
        # what else the caller's git is told belongs to another repository
        mine = {name: text for name, text in os.environ.items() if not name.startswith("GIT_") or _is_person(name)}
        self._environment = mine | {"GIT_DIR": folder, "GIT_WORK_TREE": tree, "GIT_TERMINAL_PROMPT": "0"}
        if index is not None:
            self._environment["GIT_INDEX_FILE"] = index

    def submodules(self) -> list[str]:
        """What stands in the index as a commit of another repository: it stays as it is."""
        listed = os.fsdecode(self.say("ls-files", "--stage", "-z")).split("\0")
        return [line.partition("\t")[2] for line in listed if line.startswith("160000 ")]

    def ask(self, *arguments: str, given: bytes = b"") -> tuple[int, bytes, str]:
        """The status, what git wrote and what it said."""
        done = subprocess.run(
            [*self._command, *arguments], input=given, capture_output=True, cwd=self._tree, env=self._environment,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, os.fsdecode(done.stderr)

    def say(self, *arguments: str, given: bytes = b"") -> bytes:
        """What git wrote. Raises ApplyError with what it said where it did not work."""
        status, found, said = self.ask(*arguments, given=given)
        if status != 0:
            self.refuse(f"git {arguments[0]} did not work", said or f"status {status}")
        return found

    def answer(self, *arguments: str, given: bytes = b"") -> str:
        """One line that git wrote."""
        return os.fsdecode(self.say(*arguments, given=given)).strip()

    def refuse(self, sentence: str, said: str = "", hint: str | None = None) -> NoReturn:
        """Raise the error, with git's own words."""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        raise ApplyError(
            Code.APPLY_COMMIT, sentence, step="git", path=self._folder, details=tuple(lines[-_LINES:]),
            hint=hint or _hint(said, self._folder),
        )  # fmt: skip


def _is_person(name: str) -> bool:
    return name.startswith(
        ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOS")
    )


def _hint(said: str, folder: str) -> str:
    words: Sequence[tuple[str, str]] = (
        ("tell me who you are", "git config --global user.name NAME, and user.email"),
        ("dubious ownership", "run hostfork as the repository's owner, or trust it: git config --global --add "
                              "safe.directory PATH"),
        ("No space left", "make room on the repository's disk"),
    )  # fmt: skip
    return next((hint for word, hint in words if word in said), f"git --git-dir={folder} fsck")
