"""A policy file: TOML text to a `Policy`, every refusal with file, line and key; and back.

    schema = 1
    description = "…"
    requires = ["independent"]
    share-all = false
    host-mounts-appear = true
    private-git = false        # true: a worktree's repository is private too, where it lies elsewhere
    prefer = "native"          # or "memory"
    unreadable = "refuse"      # or "skip": what cannot be read is left out of a copy or clone

    [[rule]]
    path = "~/proj"            # absolute or from ~; patterns (`*`, `?`, `[…]`) are expanded once, `[*]` is a plain `*`
    access = "private"         # private, read-only, shared, scratch, hidden
    mechanism = "reflink"      # or guarantee = "independent"; only for private
    first-of = ["btrfs", "live"]    # or the first of these mechanisms and guarantees that can be had here
    otherwise = "read-only"    # what a private path is where it cannot be private; else that is refused
    tmpfs-size = "512M"        # only for scratch
    optional = true            # passed over where it does not exist

    [endpoints]
    search = "automatic"       # or "listed"
    paths = ["$SSH_AUTH_SOCK", { path = "/run/x.sock", optional = true }]

    [environment]
    clear = false
    set = { CI = "1" }

    [[environment.default]]    # for a tool that would link from its cache, where that is on another mount
    name = "UV_LINK_MODE"      # nobody has set it
    value = "copy"             # without it: the cache's path
    cache = ["$UV_CACHE_DIR", "~/.cache/uv"]    # the first of which the variable is set must be there
    marks = ["uv.lock"]        # only where one of these names is in the private path's top, or above the working folder

    [process]
    timeout = "10m"            # or seconds

    [storage]
    limit = "2G"               # what the fork may take in its pool

    [apply]
    approval = true            # only what was approved from outside the fork is applied
    trust = [".github/*"]      # what the host runs by itself is applied there without `--allow-active`; `*` takes `/`

    [quiesce]                  # while a fork is made
    command = "pg_ctl …"       # by the shell, before
    undo = "pg_ctl …"          # by the shell, afterwards in any case
    freeze = "user.slice/…"    # a cgroup, by its folder or its name from the root

    [ssh]
    config-copies = true

TOML is UTF-8; a path or value of other bytes is written `{ base64 = "…" }` and taken literally.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum

from hostfork.errors import Code, PolicyError
from hostfork.policy.options import check_quiesce, parse_duration, parse_require, parse_size
from hostfork.policy.paths import normal
from hostfork.policy.plain import read_plain
from hostfork.policy.rules import Default, EndpointRule, EndpointSearch, Environment, Policy, Quiesce, Rule
from hostfork.values import frozen
from hostfork.vocabulary import Prefer, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Word = TypeVar("Word", bound=Enum)
    Value = TypeVar("Value")

SCHEMA = 1

_TOP = {
    "schema",
    "description",
    "requires",
    "share-all",
    "host-mounts-appear",
    "private-git",
    "rule",
    "endpoints",
    "environment",
    "prefer",
    "unreadable",
    "apply",
    "process",
    "quiesce",
    "ssh",
    "storage",
}

Key = tuple[str | int, ...]


@frozen
class Document:
    """A parsed file with what is needed to name a place in it and to expand its paths."""

    file: str
    text: str
    home: str

    def place(self, key: Key) -> str:
        """`FILE:LINE: rule[0].access`, without the line where it cannot be found."""
        from hostfork.policy.lines import line_of

        line = line_of(self.text, key)
        return f"{self.file}{'' if line is None else f':{line}'}: {name_of(key)}"

    def error(self, code: Code, message: str, key: Key, hint: str | None = None) -> PolicyError:
        return PolicyError(code, message, place=self.place(key), hint=hint)

    def known(self, table: Mapping[str, Any], names: set[str], key: Key) -> None:
        """Refuse a key that is not one of `names`."""
        for name in table:
            if name not in names:
                raise self.error(
                    Code.POLICY_UNKNOWN_KEY,
                    f"{name_of((*key, name))} is no key of a policy",
                    (*key, name),
                    f"known here: {', '.join(sorted(names))}",
                )

    def get(self, table: Mapping[str, Any], name: str, kind: type[Value], default: Value, key: Key = ()) -> Value:
        """The value of that name, exactly of that type."""
        value = table.get(name, default)
        if type(value) is not kind:
            raise self.wrong(f"{_TYPES[kind]}", value, (*key, name))
        return value

    def wrong(self, wanted: str, value: object, key: Key) -> PolicyError:
        found = "missing" if value is None else f"{_TYPES.get(type(value), 'a date or time')}"
        return self.error(Code.POLICY_BAD_VALUE, f"{name_of(key)} must be {wanted}: it is {found}", key)

    def word(self, value: object, words: type[Word], key: Key) -> Word:
        """The member of an enum that has this value."""
        for word in words:
            if word.value == value:
                return word
        known = ", ".join(str(word.value) for word in words)
        raise self.error(Code.POLICY_BAD_VALUE, f"{name_of(key)} cannot be {value!r}", key, f"one of: {known}")

    def plain(self, value: object, key: Key) -> tuple[str, bool]:
        """A string, or the bytes of `{ base64 = "…" }` and True."""
        if isinstance(value, str):
            return value, False
        if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
            import base64

            try:
                return os.fsdecode(base64.b64decode(value["base64"], validate=True)), True
            except ValueError as error:
                raise self.error(Code.POLICY_BAD_VALUE, f"{name_of(key)} is not base64", key) from error
        raise self.wrong("a string", value, key)

    def size(self, value: object, key: Key) -> int:
        """Bytes, above zero: a number, or a text such as 512M."""
        if type(value) is int and value > 0:
            return value
        if isinstance(value, str):
            return parse_size(value, self.place(key))
        raise self.wrong("a size such as 512M", value, key)


_TYPES: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def name_of(key: Key) -> str:
    """`rule[0].access`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def parse(text: str, file: str, name: str, home: str) -> Policy:
    """The policy of a file's text. Raises PolicyError with the place."""
    table = _toml(text, file)
    document = Document(file, text, home)
    document.known(table, _TOP, ())
    schema = document.get(table, "schema", int, 0)
    if schema != SCHEMA:
        found = "has no schema number" if schema == 0 else f"is of schema {schema}"
        raise document.error(
            Code.POLICY_BAD_VALUE, f"{file} {found}", ("schema",), f"this hostfork reads schema = {SCHEMA}"
        )
    endpoints, search = _endpoints(document, document.get(table, "endpoints", dict, {}))
    process = document.get(table, "process", dict, {})
    document.known(process, {"timeout"}, ("process",))
    ssh = document.get(table, "ssh", dict, {})
    document.known(ssh, {"config-copies"}, ("ssh",))
    storage = document.get(table, "storage", dict, {})
    document.known(storage, {"limit"}, ("storage",))
    apply = document.get(table, "apply", dict, {})
    document.known(apply, {"approval", "trust"}, ("apply",))
    requires = document.get(table, "requires", list, [])
    return Policy(
        name=name,
        description=document.get(table, "description", str, ""),
        rules=_rules(document, document.get(table, "rule", list, [])),
        endpoints=endpoints,
        endpoint_search=search,
        requires=tuple(parse_require(word, document.place(("requires", at))) for at, word in enumerate(requires)),
        environment=_environment(document, document.get(table, "environment", dict, {})),
        share_all=document.get(table, "share-all", bool, False),
        host_mounts_appear=document.get(table, "host-mounts-appear", bool, True),
        private_git=document.get(table, "private-git", bool, False),
        ssh_config_copies=document.get(ssh, "config-copies", bool, True, ("ssh",)),
        timeout=_timeout(document, process.get("timeout")),
        storage_limit=document.size(storage["limit"], ("storage", "limit")) if "limit" in storage else None,
        prefer=document.word(table.get("prefer", Prefer.NATIVE.value), Prefer, ("prefer",)),
        unreadable=document.word(table.get("unreadable", Unreadable.REFUSE.value), Unreadable, ("unreadable",)),
        quiesce=_quiesce(document, document.get(table, "quiesce", dict, {})),
        approval=document.get(apply, "approval", bool, False, ("apply",)),
        trusted=_strings(document, apply, "trust", ("apply",)) if "trust" in apply else (),
    )


def _toml(text: str, file: str) -> dict[str, Any]:
    plain = read_plain(text)
    if plain is not None:
        return plain
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # the line stands only in the parser's words: `… (at line 3, column 5)`
        words = str(error)
        where = words.rpartition("(at line ")[2].split(",")[0]
        place = f"{file}:{where}" if where.isdigit() else file
        raise PolicyError(Code.POLICY_SYNTAX, f"{file} is not valid TOML", place=place, details=(words,)) from error


def _rules(document: Document, tables: list[Any]) -> tuple[Rule, ...]:
    if not tables:
        return ()  # as in the default policy
    from hostfork.policy.ruling import rule_of

    rules: list[Rule] = []
    for at, table in enumerate(tables):
        key: Key = ("rule", at)
        if not isinstance(table, dict):
            raise document.wrong("a table", table, key)
        rules.extend(rule_of(document, table, key))
    return tuple(rules)


def _timeout(document: Document, value: object) -> float | None:
    key: Key = ("process", "timeout")
    if value is None:
        return None
    if isinstance(value, str):
        return parse_duration(value, document.place(key))
    if type(value) in (int, float) and 0 < float(str(value)) < float("inf"):
        return float(str(value))
    raise document.wrong("a time above zero, such as 10m", value, key)


def _quiesce(document: Document, table: dict[str, Any]) -> Quiesce:
    if not table:
        return Quiesce()  # a place in the file is looked for only where there is something
    names = ("command", "undo", "freeze")
    document.known(table, set(names), ("quiesce",))
    words = [document.plain(table[name], ("quiesce", name))[0] if name in table else None for name in names]
    return check_quiesce(Quiesce(*words), document.place(("quiesce", "undo")))


def _endpoints(document: Document, table: dict[str, Any]) -> tuple[tuple[EndpointRule, ...], EndpointSearch]:
    document.known(table, {"search", "paths"}, ("endpoints",))
    search = document.word(table.get("search", "automatic"), EndpointSearch, ("endpoints", "search"))
    items = document.get(table, "paths", list, [], ("endpoints",))
    rules = (_endpoint(document, item, ("endpoints", "paths", at)) for at, item in enumerate(items))
    return tuple(rule for rule in rules if rule is not None), search


def _endpoint(document: Document, item: Any, key: Key) -> EndpointRule | None:
    optional = False
    if isinstance(item, dict) and "base64" not in item:
        document.known(item, {"path", "optional"}, key)
        optional = document.get(item, "optional", bool, False, key)
        item = item.get("path")
    written, literal = document.plain(item, key)
    path = written
    if written.startswith("$") and not literal:
        name, slash, rest = written[1:].partition("/")
        value = os.environ.get(name, "")
        if not value and optional:
            return None
        if not value:
            raise document.error(
                Code.POLICY_BAD_PATH, f"{written}: {name or '$'} is not set", key, "or optional = true"
            )
        path = value + slash + rest
    path = normal(path, base=None, home=document.home, place=document.place(key))
    return EndpointRule(path, written, f"{document.file}: {name_of(key)}", optional)


def _environment(document: Document, table: dict[str, Any]) -> Environment:
    place: Key = ("environment",)
    document.known(table, {"clear", "set", "default"}, place)
    values = document.get(table, "set", dict, {}, place)
    variables = []
    for name, value in values.items():
        key: Key = (*place, "set", name)
        text, _ = document.plain(value, key)
        variables.append(_variable(document, name, text, key))
    items = document.get(table, "default", list, [], place)
    defaults = tuple(_default(document, item, (*place, "default", at)) for at, item in enumerate(items))
    return Environment(document.get(table, "clear", bool, False, place), tuple(variables), defaults)


def _variable(document: Document, name: str, text: str, key: Key) -> tuple[str, str]:
    if not name or "=" in name or "\0" in name + text:
        raise document.error(Code.POLICY_BAD_VALUE, f"{name!r} is no variable of an environment", key)
    return name, text


def _default(document: Document, item: Any, key: Key) -> Default:
    if not isinstance(item, dict):
        raise document.wrong("a table", item, key)
    document.known(item, {"name", "value", "cache", "marks"}, key)
    value = document.plain(item["value"], (*key, "value"))[0] if "value" in item else None
    name, _ = _variable(document, document.get(item, "name", str, "", key), value or "", (*key, "name"))
    caches = _strings(document, item, "cache", key)
    for cache in caches:
        if not cache.startswith(("/", "~/", "$")) or "\0" in cache:
            hint = "write it from `/`, from `~/`, or from a variable: $XDG_CACHE_HOME/uv"
            raise document.error(Code.POLICY_BAD_PATH, f"{cache!r} is no place for a cache", (*key, "cache"), hint)
    marks = _strings(document, item, "marks", key) if "marks" in item else ()
    return Default(name, value, caches, marks)


def _strings(document: Document, table: dict[str, Any], name: str, key: Key) -> tuple[str, ...]:
    """One string or several, none of them empty."""
    value = table.get(name)
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
        raise document.wrong("a string, or a list of strings", value, (*key, name))
    return tuple(found)
