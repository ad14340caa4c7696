"""The options of `run` and `plan` as one table, and a reader for the plain case that needs no command-line library.

Importing click takes as long as all else that a run imports. So the table is read here where every word is plain; at
the first word that is not (an unknown option, `--help`, a missing value, short options run together) the reader gives
up, and click, whose parameters are made from the same table, says what is to be said. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, unique

from hostfork.helper.shapes import NamedTuple
from hostfork.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@unique
class Completes(Enum):
    """What a shell offers for a value."""

    NOTHING = "nothing"
    FILES = "files"
    FOLDERS = "folders"
    PRIVATE = "private"
    SCRATCH = "scratch"
    POLICIES = "policies"
    BASELINES = "baselines"
    REQUIRES = "requires"


@frozen
class Option:
    """One option. Without `metavar` it is a flag. `many`: it may be repeated.

    `help` is its line in `--help`; `more`, whole sentences, follow it in the manual. One that is `rare` is only named
    in `--help` where its line would not fit. `words`: what a shell offers, where that is a fixed list.
    """

    names: tuple[str, ...]
    help: str
    metavar: str | None = None
    many: bool = False
    completes: Completes = Completes.NOTHING
    words: tuple[str, ...] = ()
    more: str = ""
    rare: bool = False

    @property
    def key(self) -> str:
        """The name of its value, as click makes it: the long name with underscores."""
        return self.names[-1].lstrip("-").replace("-", "_")


def _flag(*names: str, help: str, more: str = "", rare: bool = False) -> Option:
    return Option(names, help, more=more, rare=rare)


def _value(name: str, metavar: str, help: str, completes: Completes = Completes.NOTHING, **settings: Any) -> Option:
    return Option((name,), help, metavar, completes=completes, **settings)


def _values(name: str, metavar: str, help: str, completes: Completes = Completes.NOTHING, **settings: Any) -> Option:
    return Option((name,), help, metavar, many=True, completes=completes, **settings)


RULES = (
    _values(
        "--private", "PATH[:WORD]", "own writable copy; WORD: copy, overlay, live, …", Completes.PRIVATE,
        more="The command has a folder or file of its own at the same path; the host's stays as it is. WORD names a "
             "promise (`independent`, `live`, `snapshot`) or a mechanism (`copy`, `overlay`, `btrfs`, `reflink`); "
             "without one it is `independent` or better. What cannot be had is refused, never replaced. `:live` "
             "copies nothing and lets later host changes show through. Any other `:` belongs to the path.",
    ),
    _value(
        "--base", "NAME", "start from a baseline, at its folders' own paths", Completes.BASELINES,
        more="Its folders are private, and hold what the baseline holds, whatever is at these paths now; it starts in "
             "a moment whatever their size (`hostfork help baseline`).",
    ),
    _value(
        "--at", "PATH", "have the baseline's folder there instead", Completes.FOLDERS, rare=True,
        more="With `--base`, for a baseline of a single folder. PATH must be there.",
    ),
    _values(
        "--read-only", "PATH", "cannot be written", Completes.FILES,
        more="Writes fail with EROFS. Sockets below it still accept connections. With `/`, everything is read-only "
             "that no other rule makes writable.",
    ),
    _values(
        "--shared", "PATH", "stays the host's, inside another rule's path", Completes.FILES,
        more="The nearest rule at or above a path counts.",
    ),
    _values(
        "--scratch", "PATH[:tmpfs=SIZE]", "private and empty, never collected", Completes.SCRATCH,
        more="An empty, writable folder, dropped at the end; on disk in the pool, or in memory with at most SIZE "
             "(`512M`, `2G`).",
    ),
    _values("--hidden", "PATH", "empty and unreadable", Completes.FILES),
    _values(
        "--endpoint", "PATH", "a socket or FIFO that stays the host's", Completes.FILES,
        more="Live ones below private paths are found without it; it names one that nothing has open yet, or one "
             "below a scratch or hidden folder.",
    ),
    _value(
        "--policy", "NAME|FILE", "a shipped policy, or a TOML file", Completes.POLICIES,
        more="A name that holds a `/` or ends in `.toml` is a file. Options are added to it; for the same path the "
             "option counts. Without it: `workspace`, which shares everything that is not named.",
    ),
    _values(
        "--require", "WHAT", "refuse unless kept: stable, snapshot, cgroup, …", Completes.REQUIRES,
        more="Fails before anything is made where this host or the chosen mechanism cannot keep it. WHAT: "
             "`independent`, `snapshot`, `stable`, `same-paths`, `cgroup`, `folder-rename`, `hard-links`, "
             "`native-watchers`, `private-git`.",
    ),
    _value(
        "--prefer", "native|memory", "which of equal mechanisms comes first", rare=True, words=("native", "memory"),
        more="`native` (the default) takes writable snapshots and clones: folders can be renamed, hard links hold, "
             "watchers see every write. `memory` takes an overlay over a frozen snapshot: forks of a source that stays "
             "as it is share its page cache.",
    ),
    _value(
        "--unreadable", "refuse|skip", "what becomes of what cannot be read", rare=True, words=("refuse", "skip"),
        more="Where a private path is copied or cloned. `refuse` (the default) makes nothing and names each. `skip` "
             "puts an empty stand-in in its place that is as closed, names it, and never collects it.",
    ),
    _flag(
        "--private-git", help="a worktree's repository is private too", rare=True,
        more="Of a linked worktree, a submodule, or a folder of a work tree: git keeps objects, references and index "
             "elsewhere, and would write there to the host. With it that folder is private, in the same way.",
    ),
    _flag(
        "--share-all", help="no rule is needed: everything stays the host's",
        more="Then only the processes are the fork's own, and end with it.",
    ),
    _flag(
        "--relocated", help="no namespaces: the copy lies at another path", rare=True,
        more="Its path is in `HOSTFORK_ROOT`, where the command starts too. The original can still be written. Only "
             "`--private FOLDER` as a copy works so.",
    ),
)  # fmt: skip
"""What the command gets: rules for paths, and promises."""

CONTEXT = (
    _value(
        "--cwd", "DIR", "working directory", Completes.FOLDERS,
        more="Relative paths in other options are still those of your shell.",
    ),
    _values("--env", "K[=V]", "set a variable, or keep it with --clear-env"),
    _values(
        "--env-file", "FILE", "lines of K=V", Completes.FILES, rare=True,
        more="Empty lines and lines that begin with `#` are passed over, quotes mean nothing.",
    ),
    _flag("--clear-env", help="start from an empty environment", rare=True),
    _values(
        "--fd", "N", "this descriptor stays open in the command", rare=True,
        more="0, 1 and 2 are the command's anyway; others are closed.",
    ),
    _value(
        "--quiesce", "CMD", "run on the host before private paths are taken", rare=True,
        more="By the shell; nothing is made where it fails. Its output goes to stderr.",
    ),
    _value(
        "--unquiesce", "CMD", "run there afterwards, in any case", rare=True,
        more="Also where `--quiesce` failed or hostfork was killed; it may run twice.",
    ),
    _value(
        "--freeze-cgroup", "PATH", "hold a cgroup's processes while they are taken", Completes.FOLDERS, rare=True,
        more="Its folder, or its name from the root such as `user.slice/db.scope`. hostfork must not be in it.",
    ),
    _values(
        "--port", "NAME", "a free port's number, as this variable", rare=True,
        more="Found once for the fork and the same for every command in it; no other fork of yours is given it. Ports "
             "are the host's: nothing holds it until the command listens.",
    ),
    _value(
        "--timeout", "TIME", "end everything after 90, 90s, 5m, 1h; status 124",
        more="The command gets SIGTERM, and two seconds later everything is ended.",
    ),
    _value(
        "--storage-limit", "SIZE", "end everything that would store more: 500M, 2G", rare=True,
        more="Counted is what the fork takes in its pool: copies that were made for it, and what it wrote, scratch on "
             "disk included. Copies that do not fit are refused before anything is made. A command that goes over it "
             "is ended, status 125; its changes are kept as always.",
    ),
    _value(
        "--pool", "DIR", "where private copies lie", Completes.FOLDERS,
        more="A folder of yours, closed to others, on a disk; else they lie in the state folder, or, where PATH "
             "is on another disk, in `.hostfork-UID` at its root, if you may write there.",
    ),
)  # fmt: skip
"""What surrounds the command: folder, environment, descriptors, time, place for private storage."""

TAG = _values(
    "--tag", "K=V", "a note of yours, kept in the fork's log", rare=True,
    more="Such as the number of a task or the name of an agent; `hostfork log FORK` shows it.",
)  # fmt: skip
"""Of every verb whose use is logged."""

DETACH = _flag(
    "--detach", help="run in the background; `logs` shows its output", rare=True,
    more="It has no terminal and reads nothing, and does not end with the terminal from which it was started: it has a "
         "session of its own, and a scope of your systemd manager's where there is one. What is printed says whether "
         "it goes on after you log out. `logs`, `wait`, `stop` and `ps` work with it by the fork's name, which is kept "
         "with its output (with `--rm` only until the command ends).",
)  # fmt: skip

ENDING = (
    _value(
        "--name", "NAME", "the fork's name, else one is found",
        more="Letters, digits, `.`, `_`, `-`, at most 64.",
    ),
    _flag("--keep", help="keep the fork also if nothing changed"),
    _flag("--rm", help="throw the changes away at the end"),
    _value(
        "--export", "DIR", "write the final content there", Completes.FOLDERS,
        more="DIR is new or empty. With one private path it becomes that path's content; with several, each lies "
             "below it at its absolute path.",
    ),
    _value(
        "--result", "FILE", "write how it went, as JSON", Completes.FILES,
        more="It is written whole at the end of every run, also of one that was refused, and tells the command's "
             "failure from hostfork's.",
    ),
    TAG,
    DETACH,
    _value("--status-fd", "N", "write what happens there, a JSON object a line", rare=True),
    _flag("-v", "--verbose", help="say first what was chosen"),
    _flag("-q", "--quiet", help="say nothing but errors"),
    _flag("--dry-run", help="show the plan only"),
)  # fmt: skip
"""What becomes of a run, and what is said about it."""

GRACE = _value(
    "--time",
    "TIME",
    "how long to wait for it to end by itself: 10s",
    more="As for `--timeout`: 90, 90s, 5m, 1h; 0 kills at once.",
)
"""Of `stop`."""

_QUIET = _flag("-q", "--quiet", help="say nothing but errors")

ENTERING = (
    *(option for option in CONTEXT if option.key in ("cwd", "env", "env_file", "clear_env", "fd", "timeout")),
    *(option for option in ENDING if option.key in ("result", "tag", "detach", "status_fd")),
    _QUIET,
)  # fmt: skip
"""Of a command in a kept fork."""

_COMMON = (_flag("--json", help=""), _flag("--debug", help=""))


class Read(NamedTuple):
    """The values of all options by key, and the command."""

    options: dict[str, Any]
    command: tuple[str, ...]


def read_run(words: Sequence[str]) -> Read | None:
    """What the words behind `run` say, or None where click is needed to say it."""
    return _read(words, (*RULES, *CONTEXT, *ENDING, *_COMMON))


def read_exec(words: Sequence[str]) -> Read | None:
    """The same for `exec`; the first word of the command is the fork."""
    return _read(words, (*ENTERING, *_COMMON))


def _read(words: Sequence[str], options: Sequence[Option]) -> Read | None:
    table = {name: option for option in options for name in option.names}
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
