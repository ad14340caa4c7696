"""Where git keeps what belongs to a work tree, by its own files: no git is started, and nothing of it is run.

In a linked worktree and in a submodule `.git` is a file that names a folder elsewhere (gitrepository-layout(5)): a git
that writes there writes to the host, whatever is private here.
"""

from __future__ import annotations

import os

from hostfork.values import frozen

_LONGEST = 4096
_PACKED = 1 << 24
"""Bytes of a list of packed references that is searched."""


@frozen
class Repository:
    """A work tree at `top`. `folder` holds its HEAD and index, `common` its objects and references; resolved."""

    top: str
    folder: str
    common: str

    @property
    def linked(self) -> bool:
        """Whether the work tree only names it: a linked worktree, or a submodule."""
        return self.folder != os.path.join(self.top, ".git")


def repository_of(path: str) -> Repository | None:
    """The work tree that a path lies in, the innermost; None where there is none or it cannot be told.

    In a repository's own folder there is none.
    """
    top, below = path, ""
    while True:
        if below == ".git":
            return None
        found = _at(top)
        if found is not None or top == "/":
            return found
        top, below = os.path.split(top)


def head_of(repository: Repository) -> str | None:
    """The commit that the work tree is at; None where it has none yet, or it is kept in another form (reftable)."""
    head = _line(os.path.join(repository.folder, "HEAD"))
    if head is None or not head.startswith("ref: "):
        return head if head is not None and _is_commit(head) else None
    name = head.removeprefix("ref: ")
    for folder in (repository.folder, repository.common):
        commit = _line(os.path.join(folder, name))
        if commit is not None:
            return commit if _is_commit(commit) else None
    try:
        with open(os.path.join(repository.common, "packed-refs"), "rb") as file:
            lines = file.read(_PACKED).splitlines()
    except OSError:
        return None
    wanted = b" " + os.fsencode(name)
    return next((os.fsdecode(line[: -len(wanted)]) for line in lines if line.endswith(wanted)), None)


def _at(top: str) -> Repository | None:
    entry = os.path.join(top, ".git")
    if os.path.isdir(entry):
        folder = os.path.realpath(entry)
        return Repository(top, folder, folder) if os.path.lexists(os.path.join(folder, "HEAD")) else None
    link = _line(entry)
    if link is None or not link.startswith("gitdir: "):
        return None
    folder = os.path.realpath(os.path.join(top, link.removeprefix("gitdir: ")))
    if not os.path.isdir(folder):
        return None
    common = _line(os.path.join(folder, "commondir"))
    return Repository(top, folder, os.path.realpath(os.path.join(folder, common)) if common else folder)


def _line(path: str) -> str | None:
    """The one line of a small file; None where it is none or cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        content = os.read(file, _LONGEST)
    except OSError:
        return None
    finally:
        os.close(file)
    return os.fsdecode(content.rstrip(b"\n")) if content.count(b"\n") <= 1 else None


def _is_commit(text: str) -> bool:
    return len(text) in (40, 64) and set(text) <= set("0123456789abcdef")
