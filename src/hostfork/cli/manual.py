"""What the manual says of a verb beyond its `--help`, and what it says of all of them.

A verb's sentence, usage, options and examples stand with the verb (`hostfork.cli.verb`); the manual adds what is here.
Words in backquotes are typed or literal.
"""

from __future__ import annotations

from hostfork.values import frozen


@frozen
class Example:
    """A command line that was run: a test does so. `why` says what it is for, `status` what it ends with."""

    line: str
    why: str
    status: int = 0


@frozen
class Manual:
    """A verb's own part: paragraphs about it, its statuses, and names in the tables below."""

    about: tuple[str, ...]
    statuses: tuple[tuple[str, str], ...] = ()
    environment: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    see: tuple[str, ...] = ()


STATUSES = (
    ("0", "done; the answer is yes"),
    ("2", "used wrongly"),
    ("125", "hostfork failed; the message has a code"),
    ("130", "interrupted"),
    ("141", "the reader of the output went away"),
)
"""Of every verb but `run`."""

ENVIRONMENT = {
    "HOME": "What `~` means, and where the state folder lies without `XDG_STATE_HOME`.",
    "PATH": "The folders in which the command is looked for.",
    "XDG_STATE_HOME": "The folder in which hostfork keeps its state, in `hostfork`; else `~/.local/state`.",
    "XDG_CONFIG_HOME": "The folder of the configuration file, in `hostfork`, and of units; else `~/.config`.",
    "XDG_RUNTIME_DIR": "Where the user's systemd manager is asked for a cgroup, if the caller's own is not theirs.",
    "COLUMNS": "The width of a terminal, instead of what the terminal says.",
    "NO_COLOR": "If it is set, nothing is coloured.",
    "FORCE_COLOR": "If it is set and not 0, output is coloured also where it is no terminal.",
    "SHELL": "The shell that `shell` opens; else `/bin/sh`.",
    "TERM": "With `dumb`, nothing is coloured and nothing is drawn.",
    "HOSTFORK": "Set to 1 for the command.",
    "HOSTFORK_FORK": "Set for the command: the name of its fork.",
    "HOSTFORK_OWNER": "Set for the command: pid and start time of the hostfork that owns it.",
    "HOSTFORK_ROOT": "Set for the command with `--relocated`: where the private copy lies.",
}
"""Variables by name, in the order in which they are told."""

FILES = {
    "~/.local/state/hostfork/forks/": "A folder for each fork: `record.json`, what it is, and `journal.jsonl`, what "
    "happened.",
    "~/.local/state/hostfork/pool/": "Private storage, unless `--pool` says otherwise.",
    "~/.local/state/hostfork/expiry/": "`expired.jsonl`, what expired, and what expiry in the background could not do.",
    "~/.local/state/hostfork/logs/": "A log for each fork that was kept; it stays when the fork is gone, for 90 days.",
    "~/.config/hostfork/config.toml": "How long forks are kept: the table `[keep]`. It need not be there.",
    "~/.config/systemd/user/hostfork-gc.timer": "What `timer install` makes, with `hostfork-gc.service`.",
    "/etc/apparmor.d/hostfork": "The profile that `setup` installs where AppArmor denies user namespaces.",
    "/etc/sysctl.d/90-hostfork.conf": "The limit that `setup` installs where it is 0.",
    "~/.local/state/hostfork/applies/": "A folder for each apply that can be undone: what it did, step by step.",
    "~/.bashrc": "Where the line for completion in bash belongs.",
    "~/.zfunc/_hostfork": "Completion for zsh, in a folder of `fpath`.",
    "~/.config/fish/completions/hostfork.fish": "Completion for fish.",
}
"""Files by name, in the order in which they are told."""

STATE = tuple(FILES)[:2]
"""What every verb that works with forks reads."""

LOGS = tuple(FILES)[3:4]
"""What verbs about what happened read."""

APPLIES = ("~/.local/state/hostfork/applies/",)
"""What `apply` writes and `undo` reads."""

CONFIG = (tuple(FILES)[2], tuple(FILES)[4])
"""What verbs about keeping read."""

TIMER = tuple(FILES)[5:6]
"""What `timer` writes."""

LOOK = ("HOME", "XDG_STATE_HOME", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM")
"""What every verb that shows something reads."""

GROUP_EXAMPLES = (
    Example("hostfork run --private ~/proj -- make test", "Run the tests in a private copy of a project."),
    Example("hostfork diff calm-otter", "See what that changed, by the name that the run told."),
    Example("hostfork discard calm-otter --yes", "Throw it away."),
)

GROUP = Manual(
    about=(
        "`hostfork run --private PATH -- COMMAND` runs a command on the host as it is: same paths, same user, same "
        "network, same installed tools. But PATH is a private, writable copy at its own path. When the command ends, "
        "every process that it started is gone; what changed can be read, exported or thrown away; and the host's own "
        "PATH is what it was.",
        "A run whose command changed something keeps a fork and tells its name, such as `calm-otter`. The other verbs "
        "work with forks by name; a beginning that no other name has is enough.",
        "This is workspace isolation: ordinary work in one fork does not disturb the paths that were named, nor "
        "another fork. It is not security isolation: do not run hostile code in it. `hostfork plan` says all that is "
        "shared and all that is weaker.",
        "`hostfork help VERB` prints the manual of a verb, `hostfork VERB --help` one screen of it, and `hostfork help "
        "CODE` explains the code of an error, such as `storage.no-space`.",
    ),
    statuses=(
        ("0", "done; the answer is yes. Of `run`: the command's own status, whatever it is"),
        ("1", "the answer is no: changes were found, something is missing, something is left"),
        ("2", "used wrongly; of `run` it is 125"),
        ("124", "`run`: the time limit ended the command"),
        ("125", "hostfork failed or refused; the message has a code"),
        ("126, 127", "`run`: the command cannot be executed, does not exist"),
        ("128+N", "`run`: signal N ended the command"),
        ("130", "interrupted"),
        ("141", "the reader of the output went away"),
    ),
    environment=tuple(ENVIRONMENT),
    files=STATE,
)
"""Of `hostfork` itself."""

RELEASED = "2026-11-29"
"""The date of this version, as the man pages show it."""
