"""The options of `run` and `plan` as one table, and a reader for the plain case that needs no command-line library.

Importing click takes as long as all else that a run imports. So the table is read here where every word is plain; at
the first word that is not (an unknown option, `--help`, a missing value, short options run together) the reader gives
up, and click, whose parameters are made from the same table, says what is to be said. A test holds the two together.
"""

from collections.abc import Sequence
from enum import Enum, unique
from typing import Any, NamedTuple

from hostfork.values import frozen


@unique
class Completes(Enum):
    """What a shell offers for a value."""

    NOTHING = "nothing"
    FILES = "files"
    FOLDERS = "folders"
    POLICIES = "policies"
    REQUIRES = "requires"


@frozen
class Option:
    """One option. Without `metavar` it is a flag. `many`: it may be repeated."""

    names: tuple[str, ...]
    help: str
    metavar: str | None = None
    many: bool = False
    completes: Completes = Completes.NOTHING

    @property
    def key(self) -> str:
        """The name of its value, as click makes it: the long name with underscores."""
        return self.names[-1].lstrip("-").replace("-", "_")


def _flag(*names: str, help: str) -> Option:
    return Option(names, help)


def _value(name: str, metavar: str, help: str, completes: Completes = Completes.NOTHING) -> Option:
    return Option((name,), help, metavar, completes=completes)


def _values(name: str, metavar: str, help: str, completes: Completes = Completes.NOTHING) -> Option:
    return Option((name,), help, metavar, many=True, completes=completes)


RULES = (
    _values("--private", "PATH[:WORD]", "own writable copy; WORD: copy, overlay, live, …", Completes.FILES),
    _values("--read-only", "PATH", "cannot be written", Completes.FILES),
    _values("--shared", "PATH", "stays the host's, inside another rule's path", Completes.FILES),
    _values("--scratch", "PATH[:tmpfs=SIZE]", "private and empty, never collected", Completes.FOLDERS),
    _values("--hidden", "PATH", "empty and unreadable", Completes.FILES),
    _values("--endpoint", "PATH", "a socket or FIFO that stays the host's", Completes.FILES),
    _value("--policy", "NAME|FILE", "a shipped policy, or a TOML file", Completes.POLICIES),
    _values("--require", "WHAT", "refuse unless kept: stable, snapshot, cgroup, …", Completes.REQUIRES),
    _flag("--share-all", help="no rule is needed: everything stays the host's"),
    _flag("--relocated", help="no namespaces: the copy lies at another path"),
)
"""What the command gets: rules for paths, and promises."""

CONTEXT = (
    _value("--cwd", "DIR", "working directory", Completes.FOLDERS),
    _values("--env", "K[=V]", "set a variable, or keep it with --clear-env"),
    _values("--env-file", "FILE", "lines of K=V", Completes.FILES),
    _flag("--clear-env", help="start from an empty environment"),
    _values("--fd", "N", "this descriptor stays open in the command"),
    _value("--timeout", "TIME", "end everything after 90, 90s, 5m, 1h; status 124"),
    _value("--pool", "DIR", "where private copies lie", Completes.FOLDERS),
)
"""What surrounds the command: folder, environment, descriptors, time, place for private storage."""

ENDING = (
    _value("--name", "NAME", "the fork's name, else one is found"),
    _flag("--keep", help="keep the fork also if nothing changed"),
    _flag("--rm", help="throw the changes away at the end"),
    _value("--export", "DIR", "write the final content there", Completes.FOLDERS),
    _value("--result", "FILE", "write how it went, as JSON", Completes.FILES),
    _value("--status-fd", "N", "write what happens there, a JSON object a line"),
    _flag("-v", "--verbose", help="say first what was chosen"),
    _flag("-q", "--quiet", help="say nothing but errors"),
    _flag("--dry-run", help="show the plan only"),
)
"""What becomes of a run, and what is said about it."""

_COMMON = (_flag("--json", help=""), _flag("--debug", help=""))


class Read(NamedTuple):
    """The values of all options by key, and the command."""

    options: dict[str, Any]
    command: tuple[str, ...]


def read_run(words: Sequence[str]) -> Read | None:
    """What the words behind `run` say, or None where click is needed to say it."""
    table = {name: option for option in (*RULES, *CONTEXT, *ENDING, *_COMMON) for name in option.names}
    found: dict[str, Any] = {option.key: _unset(option) for option in table.values()}
    index = 0
    while index < len(words) and words[index][:1] == "-" and words[index] not in ("-", "--"):
        name, equals, content = words[index].partition("=")
        option = table.get(name)
        if option is None or (equals and (option.metavar is None or not name.startswith("--"))):
            return None
        index += 1
        if option.metavar is None:
            found[option.key] = True
            continue
        if not equals:
            if index == len(words):
                return None
            content = words[index]
            index += 1
        found[option.key] = (*found[option.key], content) if option.many else content
    return Read(found, tuple(words[index + (words[index : index + 1] == ["--"]) :]))


def _unset(option: Option) -> Any:
    return () if option.many else None if option.metavar is not None else False
