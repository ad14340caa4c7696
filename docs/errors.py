"""Writes errors.md and troubleshooting.md beside itself, from the table of codes: `python docs/errors.py`."""

import os
import textwrap

from hostfork.cli.report import exit_status
from hostfork.cli.troubles import TROUBLES
from hostfork.errors import Code, HostforkError

SPECIAL = {Code.WORKLOAD_INTERRUPTED: "128+N"}
"""Where `run` does not end as the table of the errors says: signal N ended it."""

TABLE = """\
# Errors

<!-- written by docs/errors.py from hostfork.errors.Code -->

An error of hostfork has a code that stays the same. It stands in the last line of the message, as `code` in JSON
([json.md](json.md)), and as `error.code` in Python. An error of the command is none of hostfork's.

    hostfork: nope does not exist                               what, with the path
      in --private                                              where: the option, or file and line
      No such file or directory                                 why: further lines, and the kernel's words
      create it first: hostfork makes nothing in your own tree  what helps
      code policy.bad-path · nothing was made · status 125

[troubleshooting.md](troubleshooting.md) says of each why it happens and what to do; so does `hostfork help CODE`.

| code | meaning | `run` | other verbs |
| --- | --- | --- | --- |
"""

PAGE = """\
# Troubleshooting

<!-- written by docs/errors.py from hostfork.errors.Code and hostfork.cli.troubles -->

By the code in the last line of a message. `hostfork help CODE` shows the same in the terminal. The message itself is
more exact than this page: it names the path, and its hint is a command that fits. Whatever happened: `hostfork doctor`
tries what this host can do, and `hostfork recover` is safe at any time.
[errors.md](errors.md) has the exit status of each code, [limits.md](limits.md) what does not work by design.

"""

GROUPS = {
    "policy": "What was asked",
    "config": "The configuration file",
    "host": "What the host offers",
    "storage": "Private storage",
    "view": "The view",
    "command": "The command",
    "workload": "The processes",
    "collect": "What a fork contains",
    "fork": "Forks",
    "checkpoint": "Checkpoints",
    "apply": "Applying and taking back",
    "baseline": "Baselines",
    "internal": "hostfork itself",
}
"""The part of a code before the point; `base.gone` belongs to what a fork contains."""


def table() -> str:
    """errors.md: one line a code."""
    return TABLE + "".join(_row(code) for code in Code)


def _row(code: Code) -> str:
    error = HostforkError(code, "")
    run = SPECIAL.get(code, str(exit_status(error, "run")))
    anchor = code.text.replace(".", "")
    return f"| [`{code.text}`](troubleshooting.md#{anchor}) | {code.meaning} | {run} | {exit_status(error, 'list')} |\n"


def page() -> str:
    """troubleshooting.md: a section a code."""
    lines = [PAGE]
    group = ""
    for code in Code:
        if _group(code) != group:
            group = _group(code)
            lines.append(f"## {GROUPS[group]}\n\n")
        trouble = TROUBLES[code]
        meaning = f"**{code.meaning[:1].upper()}{code.meaning[1:]}.** {trouble.why}"
        lines.append(f"### {code.text}\n\n{_wrapped(meaning)}\n\n")
        lines += [f"- {_wrapped(remedy, '  ')}\n" for remedy in trouble.remedies]
        lines.append("\n")
    return "".join(lines).rstrip("\n") + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    """Lines as long as those of the other pages."""
    return textwrap.fill(
        text, 120 - len(indent), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _group(code: Code) -> str:
    part = code.text.partition(".")[0]
    return "collect" if part == "base" else part


def pages() -> dict[str, str]:
    """What is written, by name."""
    return {"errors.md": table(), "troubleshooting.md": page()}


if __name__ == "__main__":
    for name, text in pages().items():
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), "w", encoding="utf-8") as file:
            file.write(text)
