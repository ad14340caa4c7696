"""One `[[rule]]` of a policy file: its table to rules."""

from __future__ import annotations

import os

from hostfork.errors import Code
from hostfork.policy.document import Document, Key, name_of
from hostfork.policy.options import PRIVATE_WORDS
from hostfork.policy.paths import normal
from hostfork.policy.rules import Rule
from hostfork.vocabulary import Access, Guarantee, Mechanism

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RULE = {"path", "access", "mechanism", "guarantee", "first-of", "otherwise", "tmpfs-size", "optional"}
_ONLY = {
    "mechanism": Access.PRIVATE,
    "guarantee": Access.PRIVATE,
    "first-of": Access.PRIVATE,
    "otherwise": Access.PRIVATE,
    "tmpfs-size": Access.SCRATCH,
}


def rule_of(document: Document, table: dict[str, Any], key: Key) -> list[Rule]:
    """The rules of one `[[rule]]`: one for each path that its pattern matches. Raises PolicyError."""
    document.known(table, _RULE, key)
    for name in ("path", "access"):
        if name not in table:
            raise document.error(Code.POLICY_BAD_VALUE, f"{name_of(key)} has no {name}", key)
    access = document.word(table["access"], Access, (*key, "access"))
    for name, only in _ONLY.items():
        if name in table and access is not only:
            raise document.error(Code.POLICY_BAD_VALUE, f"{name} is only for {only.value} rules", (*key, name))
    if len({"mechanism", "guarantee", "first-of"} & table.keys()) > 1:
        hint = "a mechanism brings its own guarantee, and first-of may name both kinds: keep one of them"
        raise document.error(Code.POLICY_CONFLICT, "a rule names a mechanism or a guarantee, not both", key, hint)
    optional = document.get(table, "optional", bool, False, key)
    written, _ = document.plain(table["path"], (*key, "path"))
    mechanism = document.word(table["mechanism"], Mechanism, (*key, "mechanism")) if "mechanism" in table else None
    guarantee = document.word(table["guarantee"], Guarantee, (*key, "guarantee")) if "guarantee" in table else None
    wanted = _first_of(document, table["first-of"], (*key, "first-of")) if "first-of" in table else ()
    if wanted and isinstance(wanted[0], Mechanism):
        mechanism = wanted[0]
    elif wanted:
        guarantee = Guarantee(wanted[0].value)
    otherwise = _otherwise(document, table["otherwise"], (*key, "otherwise")) if "otherwise" in table else None
    size = document.size(table["tmpfs-size"], (*key, "tmpfs-size")) if "tmpfs-size" in table else None
    place = f"{document.file}: {name_of(key)}"
    return [
        Rule(
            access, path, written, place, mechanism, guarantee, size, optional,
            lesser=wanted[1:], otherwise=otherwise,
        )
        for path in _paths(document, table["path"], (*key, "path"), optional)
    ]  # fmt: skip


def _first_of(document: Document, value: object, key: Key) -> tuple[Mechanism | Guarantee, ...]:
    """What is wanted of storage, in the order in which it is tried."""
    if not isinstance(value, list):
        raise document.wrong("a list", value, key)
    found = tuple(PRIVATE_WORDS.get(word) if isinstance(word, str) else None for word in value)
    wanted = tuple(word for word in found if word is not None)
    if len(wanted) < len(found):
        at = found.index(None)
        known = ", ".join(PRIVATE_WORDS)
        message = f"{name_of((*key, at))} cannot be {value[at]!r}"
        raise document.error(Code.POLICY_BAD_VALUE, message, (*key, at), f"one of: {known}")
    if not wanted or len(set(wanted)) < len(wanted):
        what = "is empty" if not wanted else "names one twice"
        raise document.error(Code.POLICY_BAD_VALUE, f"{name_of(key)} {what}", key, 'such as ["btrfs", "live"]')
    return wanted


def _otherwise(document: Document, value: object, key: Key) -> Access:
    """Only what lets nothing of the host's be written that was to be private."""
    access = document.word(value, Access, key)
    if access is not Access.READ_ONLY:
        hint = f"only {Access.READ_ONLY.value}: nothing that was to be private is ever written on the host instead"
        raise document.error(Code.POLICY_BAD_VALUE, f"{name_of(key)} cannot be {access.value!r}", key, hint)
    return access


def _paths(document: Document, value: object, key: Key, optional: bool) -> list[str]:
    """The paths that a rule's `path` means: patterns are expanded here, once."""
    written, literal = document.plain(value, key)
    if written.startswith("$"):
        hint = "write the path; variables are expanded only at the start of an endpoint"
        raise document.error(Code.POLICY_BAD_PATH, f"{written} begins with a variable", key, hint)
    path = normal(written, base=None, home=document.home, place=document.place(key))
    if literal or not any(mark in path for mark in "*?["):
        return [path]
    return _expand(document, path, written, key, optional)


def _expand(document: Document, pattern: str, written: str, key: Key, optional: bool) -> list[str]:
    import glob
    import re

    name = re.sub(r"\[([*?[])\]", r"\1", pattern)
    if glob.escape(name) == pattern:
        return [name]
    if "**" in pattern:
        raise document.error(Code.POLICY_BAD_PATH, f"{written} would walk whole trees", key, "use `*` for one level")
    found = sorted(glob.glob(pattern), key=os.fsencode)
    if not found and not optional:
        hint = "add optional = true; a `[` that belongs to a name is written `[[]`"
        raise document.error(Code.POLICY_BAD_PATH, f"{written} matches nothing", key, hint)
    return found
