"""The small languages of options: the word after a path, sizes, times; and how options become rules.

`--private PATH[:WORD]`: a suffix counts only if it is a word of `PRIVATE_WORDS` after a path that is not empty;
anything else belongs to the path. One `:` at the end is taken off where what stands before it (without further `:`)
would end in such a word; so `/a:copy:` is the path `/a:copy`, and `/a:` is the path `/a:`.
"""

from __future__ import annotations

import os

from hostfork.errors import Code, PolicyError
from hostfork.policy.paths import normal
from hostfork.policy.rules import EndpointRule, Quiesce, Rule, RuleOptions
from hostfork.vocabulary import Access, Guarantee, Mechanism, Prefer, Require, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import Enum
    from typing import TypeVar

    Word = TypeVar("Word", bound=Enum)

PRIVATE_WORDS: dict[str, Mechanism | Guarantee] = {
    **{word.value: word for word in Mechanism},
    **{word.value: word for word in Guarantee},
}

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_GLOB = "*?["
_TMPFS = ":tmpfs="


def split_private(text: str) -> tuple[str, Mechanism | Guarantee | None]:
    """`PATH[:WORD]` as path and word."""
    path, _, word = text.rpartition(":")
    if path and word in PRIVATE_WORDS:
        return path, PRIVATE_WORDS[word]
    return (text[:-1] if text.endswith(":") and _ends_in_word(text.rstrip(":")) else text), None


def join_private(path: str, word: Mechanism | Guarantee | None = None) -> str:
    """What `split_private` reads back as `path` and `word`."""
    if word is not None:
        return f"{path}:{word.value}"
    return path + ":" if _ends_in_word(path.rstrip(":")) else path


def _ends_in_word(text: str) -> bool:
    path, _, word = text.rpartition(":")
    return bool(path) and word in PRIVATE_WORDS


def split_scratch(text: str) -> tuple[str, int | None]:
    """`PATH[:tmpfs=SIZE]` as path and bytes; a `:` at the end makes all before it the path.

    Raises PolicyError (`policy.bad-value`) for a size that is none.
    """
    path, mark, size = text.rpartition(_TMPFS)
    if not mark or not path or "/" in size:
        return text, None
    if size.endswith(":"):
        return text[:-1], None
    return path, parse_size(size, f"--scratch {text}")


def parse_size(text: str, place: str) -> int:
    """`512M` in bytes: a whole number with K, M, G or T (of 1024), above zero. Raises PolicyError otherwise."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not (number.isascii() and number.isdigit()) or unit not in _UNITS or int(number) == 0:
        raise _value(f"{text!r} is not a size", place, "a size is a number with K, M, G or T: 512M")
    return int(number) * _UNITS[unit]


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads back as `size`."""
    for unit in ("T", "G", "M", "K"):
        if size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


def parse_duration(text: str, place: str) -> float:
    """`10m` in seconds: a number with ms, s, m, h or d, seconds without. Raises PolicyError otherwise."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    factor = _SECONDS.get(text[len(number) :] or "s")
    try:
        seconds = float(number) * factor if factor and number.replace(".", "", 1).isdigit() else 0.0
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise _value(f"{text!r} is not a time", place, "a time is a number with s, m, h or d: 10m")
    return seconds


def parse_require(text: str, place: str) -> Require:
    """The promise of that name. Raises PolicyError (`policy.bad-value`) with the names there are."""
    return _word(Require, text, place, "nothing that can be required")


def parse_prefer(text: str, place: str) -> Prefer:
    """The preference of that name. Raises PolicyError (`policy.bad-value`) with the names there are."""
    return _word(Prefer, text, place, "nothing that can be preferred")


def parse_unreadable(text: str, place: str) -> Unreadable:
    """What is to be done with what cannot be read. Raises PolicyError (`policy.bad-value`) with the words there are."""
    return _word(Unreadable, text, place, "nothing to do with what cannot be read")


def _word(kind: type[Word], text: str, place: str, wrong: str) -> Word:
    try:
        return kind(text)
    except ValueError as error:
        known = ", ".join(str(word.value) for word in kind)
        raise _value(f"{text!r} is {wrong}", place, f"known: {known}") from error


def check_quiesce(quiesce: Quiesce, place: str) -> Quiesce:
    """The same, if it makes sense. Raises PolicyError (`policy.usage`) for an undoing of nothing."""
    if quiesce.undo is not None and quiesce.command is None:
        raise PolicyError(
            Code.POLICY_USAGE,
            "what undoes quiescing is named, and nothing that quiesces",
            place=place,
            hint="--quiesce CMD --unquiesce CMD belong together",
        )
    return quiesce


def option_rules(options: RuleOptions, cwd: str, home: str) -> tuple[Rule, ...]:
    """The rules that the options ask for; relative paths start from `cwd`."""
    rules = [_private(text, cwd, home) for text in options.private]
    plain = (
        (Access.READ_ONLY, "--read-only", options.read_only),
        (Access.SHARED, "--shared", options.shared),
        (Access.HIDDEN, "--hidden", options.hidden),
    )
    for access, option, texts in plain:
        for text in texts:
            rules.append(Rule(access, _option_path(text, option, cwd, home), text, option, from_option=True))
    rules.extend(_scratch(text, cwd, home) for text in options.scratch)
    return tuple(rules)


def option_endpoints(options: RuleOptions, cwd: str, home: str) -> tuple[EndpointRule, ...]:
    """The endpoints that the options name."""
    return tuple(
        EndpointRule(_option_path(text, "--endpoint", cwd, home), text, "--endpoint") for text in options.endpoint
    )


def _private(text: str, cwd: str, home: str) -> Rule:
    written, word = split_private(text)
    return Rule(
        Access.PRIVATE,
        _option_path(written, "--private", cwd, home),
        written,
        "--private",
        mechanism=word if isinstance(word, Mechanism) else None,
        guarantee=word if isinstance(word, Guarantee) else None,
        from_option=True,
    )


def _scratch(text: str, cwd: str, home: str) -> Rule:
    written, size = split_scratch(text)
    path = _option_path(written, "--scratch", cwd, home)
    return Rule(Access.SCRATCH, path, written, "--scratch", tmpfs_size=size, from_option=True)


def _option_path(written: str, option: str, cwd: str, home: str) -> str:
    path = normal(written, base=cwd, home=home, place=option)
    if any(mark in written for mark in _GLOB) and not os.path.lexists(path):
        raise PolicyError(
            Code.POLICY_BAD_PATH,
            f"{written} does not exist, and options do not expand patterns",
            path=path,
            place=option,
            hint=f"name each path: {option} A {option} B; a policy file expands patterns",
        )
    return path


def _value(message: str, place: str, hint: str) -> PolicyError:
    return PolicyError(Code.POLICY_BAD_VALUE, message, place=place, hint=hint)
