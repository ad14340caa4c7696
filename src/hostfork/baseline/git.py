"""Checkouts by the git command line, of repositories that nobody has to trust.

A checkout is a clone with all of its history, so that `git log` works in a fork without a network; where only some
folders are wanted (`sparse`) the content of the others is left out of it, if the repository can do that. Nothing of the
repository's own configuration is taken over, no hook of it or of a template runs, and no submodule is taken: their
addresses are the repository's choice. The user's own configuration counts, with its credentials and filters, but for
what would start further programs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable

from hostfork.baseline import leash
from hostfork.errors import BaselineError, Code
from hostfork.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from hostfork.storage.lines import Generation

_OFF = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "protocol.ext.allow=never", "protocol.fd.allow=never",
    "submodule.recurse=false", "fetch.recurseSubmodules=false", "maintenance.auto=false", "gc.auto=0",
    "advice.detachedHead=false", "credential.interactive=false", "core.untrackedCache=false",
    "core.checkStat=default", "core.trustctime=true",
)  # fmt: skip
_IN_FORKS = {"core.checkStat": "minimal", "core.trustctime": "false"}
"""What a checkout's own configuration says: its files have other inode numbers and ctimes in each fork, and are not to
be read again for that."""
_TRANSPORT = ("GIT_SSH", "GIT_SSL_", "GIT_HTTP_", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
"""What of the caller's GIT_* variables stays: how its git reaches and trusts a server."""
_HEADS = "refs/remotes/origin/"
_LINES = 12
"""So much of what git said is shown."""


@frozen
class Wanted:
    """What is to be checked out: `reference` is a branch, tag, commit or full reference, "" what the repository has
    as its HEAD; `sparse` the folders that are wanted, all where it is empty."""

    place: str
    reference: str = ""
    sparse: tuple[str, ...] = ()


@frozen
class CheckedOut:
    """What a checkout holds. `clean`: git says that it is exactly the commit. `submodules`: where they would be."""

    commit: str
    clean: bool
    submodules: tuple[str, ...]


def local_path(place: str) -> str | None:
    """The absolute path of a repository that is named by a path, as git tells those apart; None for an address."""
    colon = place.find(":")
    is_address = colon >= 0 and "/" not in place[:colon]
    return None if is_address and not os.path.exists(place) else os.path.abspath(place)


def work_tree(place: str) -> str | None:
    """Where the work tree of a local repository lies; None for an address and for one that has none."""
    path = local_path(place)
    return path if path is not None and os.path.lexists(os.path.join(path, ".git")) else None


def check_out(wanted: Wanted, tree: str, ticking: Callable[[], None] | None = None) -> CheckedOut:
    """Make a checkout at `tree`, where nothing is yet. Raises BaselineError `baseline.origin`, OSError.

    `ticking` is called some times a second while git works.
    """
    git = _Git(wanted, os.path.dirname(tree), ticking)
    partial = ("--filter=blob:none",) if wanted.sparse and local_path(wanted.place) is None else ()
    git.say("clone", "--quiet", "--no-checkout", "--no-local", "--origin=origin", "--template=", *partial, "--",
            wanted.place, tree)  # fmt: skip
    git.folder = tree
    for name in ("hooks", "info"):
        os.makedirs(os.path.join(tree, ".git", name), exist_ok=True)
    for key, value in _IN_FORKS.items():
        git.say("config", key, value)
    return _checked_out(git, wanted)


def received(tree: str) -> int:
    """How many bytes git has got so far for a checkout that it is making."""
    try:
        with os.scandir(os.path.join(tree, ".git", "objects", "pack")) as packs:
            return sum(pack.stat(follow_symlinks=False).st_size for pack in packs)
    except OSError:
        return 0  # it has not begun, or moves them just now


def update(wanted: Wanted, tree: str, ticking: Callable[[], None] | None = None) -> CheckedOut:
    """Make another checkout of the same repository what is wanted now. Raises as `check_out`."""
    git = _Git(wanted, tree, ticking)
    git.ask("update-index", "-q", "--refresh")  # its files were copied: what is equal is not to be written again
    git.say("remote", "set-url", "origin", wanted.place)
    git.say("fetch", "--quiet", "--prune", "--force", "--no-write-fetch-head", "origin",
            f"+refs/heads/*:{_HEADS}*", "+refs/tags/*:refs/tags/*")  # fmt: skip
    if not wanted.reference and git.ask("remote", "set-head", "origin", "--auto")[0] != 0:
        git.ask("remote", "set-head", "origin", "--delete")  # it is on no branch now
    return _checked_out(git, wanted)


def is_clean(tree: str, commit: str) -> bool:
    """Whether a checkout is exactly that commit, as git says. Raises OSError."""
    git = _Git(Wanted(""), tree)
    status, found, _ = git.ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    return status == 0 and found.strip() == commit.encode() and _says_clean(git)


def head_of(generation: Generation) -> str:
    """The commit that a generation's checkout is at, "" where that cannot be told. Nothing of it is run."""
    from hostfork.collect.reader import TreeReader, read_small

    with TreeReader(generation.lowers) as reader:

        def read(path: str) -> str:
            place = reader.place(f".git/{path}")
            return os.fsdecode((None if place is None else read_small(place, ours=False)) or b"").strip()

        head = read("HEAD")
        name = head.removeprefix("ref: ")
        if name == head:
            return head
        packed = (line.partition(" ") for line in read("packed-refs").splitlines())
        return read(name) or next((commit for commit, _, reference in packed if reference == name), "")


def _checked_out(git: _Git, wanted: Wanted) -> CheckedOut:
    branch, commit = _found(git, wanted)
    if wanted.sparse:
        _check_sparse(git, wanted, commit)
        git.say("sparse-checkout", "set", "--cone", "--stdin", given="".join(f"{one}\n" for one in wanted.sparse))
    elif git.answer("config", "--type=bool", "--default=false", "--get", "core.sparseCheckout") == "true":
        git.say("sparse-checkout", "disable")
    if branch is None:
        git.say("checkout", "--quiet", "--force", "--detach", commit)
    else:
        git.say("checkout", "--quiet", "--force", "--track", "-B", branch, _HEADS + branch)
    heads = git.answer("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").splitlines()
    others = [head for head in heads if head != branch]
    if others:  # what was checked out before the update
        git.say("branch", "--quiet", "-D", "--", *others)
    listed = git.answer("ls-files", "--stage", "-z").split("\0")
    submodules = tuple(line.partition("\t")[2] for line in listed if line.startswith("160000 "))
    return CheckedOut(commit, _says_clean(git), submodules)


def _found(git: _Git, wanted: Wanted) -> tuple[str | None, str]:
    """The branch that is wanted, if it is one, and the commit."""
    reference = wanted.reference
    if not reference:
        head = git.answer("symbolic-ref", "--quiet", _HEADS + "HEAD", default="")
        reference = head.removeprefix(_HEADS)
        if not reference:
            git.say("fetch", "--quiet", "origin", "HEAD")
            return None, git.commit("FETCH_HEAD") or git.refuse(f"{git.place} has no commit that could be taken")
    branch = reference.removeprefix("refs/heads/")
    if git.has(_HEADS + branch):
        return branch, git.commit(_HEADS + branch) or git.refuse(f"{branch} of {git.place} is no commit")
    tag = "refs/tags/" + reference.removeprefix("refs/tags/")
    commit = git.commit(tag) if git.has(tag) else git.commit(reference) if _is_hex(reference) else None
    if commit is None:
        status, _, said = git.ask("check-ref-format", "--allow-onelevel", reference)
        if status == 0:
            status, _, said = git.ask("fetch", "--quiet", "--force", "origin", reference)
        commit = git.commit("FETCH_HEAD") if status == 0 else None
        if commit is None:
            git.refuse(f"{git.place} has no branch, tag or commit {reference}", said)
    return None, commit


def _check_sparse(git: _Git, wanted: Wanted, commit: str) -> None:
    for path in wanted.sparse:
        if git.answer("cat-file", "-t", f"{commit}:{path}", default="") != "tree":
            git.refuse(f"{git.place} has no folder {path} at {wanted.reference or 'its HEAD'}")


def _says_clean(git: _Git) -> bool:
    status, found, _ = git.ask("status", "--porcelain=v2", "--ignored=no", "--untracked-files=normal",
                               "--ignore-submodules=none")  # fmt: skip
    return status == 0 and not found


class _Git:
    """git in one folder, about one repository."""

    def __init__(self, wanted: Wanted, folder: str, ticking: Callable[[], None] | None = None) -> None:
        self.place = without_password(wanted.place)
        self.folder = folder
        self._ticking = ticking
        program = shutil.which("git")
        if program is None:
            raise BaselineError(
                Code.BASELINE_ORIGIN, f"{self.place} cannot be taken without git, which is not installed",
                hint="install git",
            )  # fmt: skip
        self._command = [program, *(word for one in _OFF for word in ("-c", one))]
        self._environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith("GIT_") or name.startswith(_TRANSPORT)
        } | {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "GIT_OPTIONAL_LOCKS": "0"}  # fmt: skip

    def ask(self, *arguments: str, given: str = "") -> tuple[int, bytes, str]:
        """The status, what git wrote and what it said."""
        return leash.run(
            [*self._command, *arguments], self.folder, self._environment, os.fsencode(given), self._ticking
        )

    def say(self, *arguments: str, given: str = "") -> bytes:
        """What git wrote. Raises BaselineError with what it said where it did not work."""
        status, found, said = self.ask(*arguments, given=given)
        if status != 0:
            self.refuse(f"git {arguments[0]} of {self.place} did not work", said or f"status {status}")
        return found

    def answer(self, *arguments: str, default: str | None = None) -> str:
        """One line that git wrote; with a default that, where git has none."""
        if default is None:
            return os.fsdecode(self.say(*arguments)).rstrip("\n")
        status, found, _ = self.ask(*arguments)
        return os.fsdecode(found).rstrip("\n") if status == 0 else default

    def has(self, reference: str) -> bool:
        """Whether there is a reference of exactly that name."""
        return self.ask("show-ref", "--verify", "--quiet", reference)[0] == 0

    def commit(self, reference: str) -> str | None:
        """The commit that a reference or a number names."""
        return self.answer("rev-parse", "--verify", "--quiet", reference + "^{commit}", default="") or None

    def refuse(self, sentence: str, said: str = "") -> NoReturn:
        """Raise the error, with git's own words."""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        raise BaselineError(
            Code.BASELINE_ORIGIN, sentence, step="git", details=tuple(lines[-_LINES:]), hint=_hint(said, self.place)
        )


def _is_hex(reference: str) -> bool:
    return len(reference) >= 4 and set(reference) <= set("0123456789abcdefABCDEF")


def _hint(said: str, place: str) -> str:
    lowered = said.lower()
    for words, hint in _HINTS:
        if any(word in lowered for word in words):
            return hint
    return f"git ls-remote {place}"


_HINTS: Iterable[tuple[tuple[str, ...], str]] = (
    (("dubious ownership",), "run hostfork as the repository's owner, or trust it: git config --global --add "
                             "safe.directory PATH"),
    (("could not read username", "authentication failed", "permission denied (publickey"),
     "store the credentials for git first, or load the key into ssh-agent: nobody is asked here"),
    (("transport 'ext' not allowed", "transport 'fd' not allowed"), "name the repository by https, ssh or a path"),
    (("no space left",), "make room on the pool's disk, or --pool DIR on another one"),
)  # fmt: skip


def without_password(place: str) -> str:
    """An address as it may be shown."""
    scheme, mark, rest = place.partition("://")
    host, slash, path = rest.partition("/")
    if not mark or ":" not in host.rpartition("@")[0]:
        return place
    user, _, server = host.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:***@{server}{slash}{path}"
