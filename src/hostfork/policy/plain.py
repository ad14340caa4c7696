"""A small part of TOML, read without the parser: what the default policy is written in.

Importing the TOML parser would be felt in every run.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def read_plain(text: str) -> dict[str, Any] | None:
    """The table of a text in its plainest form; None for any other, good or bad.

    Known are comments, `[[outer.inner]]`, and `name = ` a whole number, a string, or a list of strings in one line,
    each with single blanks and without escapes.
    """
    table: dict[str, Any] = {}
    here = table
    for line in text.split("\n"):
        if not line or (line.startswith("# ") and line.isprintable()):
            continue
        if line.startswith("[["):
            outer, dot, inner = line[2:-2].partition(".")
            tables = table.setdefault(outer, {})
            if not (dot and _is_bare(outer) and _is_bare(inner) and line.endswith("]]") and isinstance(tables, dict)):
                return None
            here = {}
            tables.setdefault(inner, []).append(here)
            continue
        name, _, value = line.partition(" = ")
        found = _value(value)
        if found is None or not _is_bare(name) or name in here:
            return None
        here[name] = found
    return table


def _is_bare(name: str) -> bool:
    return name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()


def _value(text: str) -> int | str | list[str] | None:
    if text.isascii() and text.isdigit() and text[0] != "0":
        return int(text)
    if text[:1] == "[" and text[-1:] == "]":
        items = text[1:-1].split(", ")
        return [item[1:-1] for item in items] if all(_is_string(item) for item in items) else None
    return text[1:-1] if _is_string(text) else None


def _is_string(text: str) -> bool:
    inner = text[1:-1]
    return text[:1] == text[-1:] == '"' and len(text) > 2 and not {'"', "\\"} & set(inner) and inner.isprintable()
