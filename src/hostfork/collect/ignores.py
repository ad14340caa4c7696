"""Which paths the project's own ignore files name, with git's rules.

`.gitignore` and `.ignore` at every level and `.git/info/exclude`, as they are in the final content. A deeper file
outranks a shallower one, the last matching line wins, nothing can be taken back below an ignored folder, and a nested
repository starts afresh. That git does not ignore what it tracks is not known here: the index is not read.

Loading pathspec takes longer than finding some changes. A rule can match only a path that holds the rule's plain
letters, so pathspec is asked, and loaded, for such paths alone.
"""

from __future__ import annotations

from hostfork.collect.difference import below
from hostfork.helper.shapes import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

IGNORE_FILES = (".gitignore", ".ignore", ".git/info/exclude")
_MOST_LINES = 2000
_MOST_STARS = 3
"""Stars in one name. Matching tries all ways to place them, and the fork may have written the file."""
_IN_ORDER = (".git/info/exclude", ".gitignore", ".ignore")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
"""Characters that stand for themselves everywhere in a rule but between brackets."""


class Final(Protocol):
    """The final visible content of a private path."""

    def read(self, relative: str) -> bytes | None:
        """The content of a small regular file, else None."""

    def exists(self, relative: str) -> bool:
        """Whether there is an entry at that path."""


class _Rules:
    """The rules of one folder's ignore files. pathspec reads them when a path comes that they may be about."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = [line for line in lines[:_MOST_LINES] if line.strip() and not line.startswith("#")]
        self._needles = tuple({_needle(line) for line in self._lines})
        self._spec: GitIgnoreSpec | None = None

    def answer(self, path: str) -> bool | None:
        """Whether the path (relative to that folder, a folder with a slash) is ignored; None where no rule is."""
        if not any(needle in path for needle in self._needles):
            return None
        if self._spec is None:
            from pathspec import GitIgnoreSpec

            self._spec = GitIgnoreSpec([pattern for line in self._lines for pattern in _patterns(line)])
        return self._spec.check_file(path).include


def _needle(line: str) -> str:
    """Letters that every path holds which the rule of this line matches; "" where that is not plain to see."""
    longest = run = ""
    for letter in line.partition("[")[0]:
        run = run + letter if letter in _PLAIN else ""
        longest = max(longest, run, key=len)
    return longest


class Ignores:
    """Answers for one private path; folders are looked at once."""

    def __init__(self, final: Final) -> None:
        self._final = final
        self._levels: dict[str, tuple[tuple[str, _Rules], ...]] = {}
        self._folders: dict[str, str | None] = {"": None}

    def folder(self, relative: str) -> str | None:
        """The outermost ignored folder that is or holds the folder `relative`, or None."""
        if relative not in self._folders:
            parent, _, name = relative.rpartition("/")
            outer = self.folder(parent)
            if outer is None and name != ".git" and not _in_git(parent) and self._matches(relative + "/", parent):
                outer = relative
            self._folders[relative] = outer
        return self._folders[relative]

    def file(self, relative: str) -> bool:
        """Whether a path that is no folder, in no ignored folder, is ignored itself."""
        parent, _, name = relative.rpartition("/")
        return name != ".git" and not _in_git(parent) and self._matches(relative, parent)

    def _matches(self, relative: str, parent: str) -> bool:
        for folder, rules in self._level(parent):
            answer = rules.answer(relative[len(folder) + 1 :] if folder else relative)
            if answer is not None:
                return answer
        return False

    def _level(self, folder: str) -> tuple[tuple[str, _Rules], ...]:
        """The rules that hold in a folder, the deepest first."""
        if folder not in self._levels:
            own = self._own(folder)
            outer: tuple[tuple[str, _Rules], ...] = ()
            if folder and not self._final.exists(below(folder, ".git")):
                outer = self._level(folder.rpartition("/")[0])
            self._levels[folder] = (((folder, own),) if own is not None else ()) + outer
        return self._levels[folder]

    def _own(self, folder: str) -> _Rules | None:
        lines: list[str] = []
        for name in _IN_ORDER:
            content = self._final.read(below(folder, name))
            if content:
                lines += content.decode("utf-8", "surrogateescape").splitlines()
        return _Rules(lines) if lines else None


def _patterns(line: str) -> list[GitIgnoreSpecPattern]:
    """The rule of one line; none for a malformed one, which git ignores too, and for one that is costly to match."""
    from re import error as bad_expression
    from warnings import catch_warnings, simplefilter

    from pathspec import GitIgnoreSpec

    if line.count("**") > _MOST_STARS or any(part.count("*") > _MOST_STARS for part in line.split("/")):
        return []
    with catch_warnings():
        simplefilter("ignore")  # about sets in brackets that git reads in another way
        try:
            return list(GitIgnoreSpec.from_lines([line]).patterns)
        except (ValueError, bad_expression):
            return []


def _in_git(folder: str) -> bool:
    return folder == ".git" or folder.startswith(".git/") or "/.git/" in folder + "/"
