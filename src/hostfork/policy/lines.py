"""Where a key stands in a TOML text, for error messages: tomllib does not tell.

A key is looked for below its table's header, line by line. Where that is not sure (the key stands in an inline table,
or text in a multi-line string looks like it too), there is no line: a wrong one is worse than none.
"""

from __future__ import annotations


def line_of(text: str, key: tuple[str | int, ...]) -> int | None:
    """The number of the line that holds `key`, counted from 1; the line of its table where the key is not there."""
    lines = _without_strings(text)
    if lines is None:
        return None
    if len(key) > 1 and isinstance(key[1], int) and key[0] == "rule":
        line = _in_table(lines, "[[rule]]", key[1], str(key[2]) if len(key) > 2 else None)
        return line or _in_table(lines, None, 0, "rule")
    if len(key) > 2 and isinstance(key[2], int) and key[:2] == ("environment", "default"):
        line = _in_table(lines, "[[environment.default]]", key[2], str(key[3]) if len(key) > 3 else None)
        return line or _in_table(lines, "[environment]", 0, "default")
    if len(key) > 1 and isinstance(key[0], str) and not isinstance(key[1], int):
        return _in_table(lines, f"[{key[0]}]", 0, str(key[1]))
    return _in_table(lines, None, 0, str(key[0]))


def _without_strings(text: str) -> list[str] | None:
    """The lines, or None where a string of several lines could hold anything."""
    return None if '"""' in text or "'''" in text else text.split("\n")


def _in_table(lines: list[str], header: str | None, number: int, name: str | None) -> int | None:
    table, start, seen = header is None, None, -1
    for at, line in enumerate(lines, 1):
        words = line.split("#")[0].strip()
        if words.startswith("["):
            if table and header is not None:
                break
            seen += words.replace(" ", "") == header
            table = header is not None and words.replace(" ", "") == header and seen == number
            start = at if table else start
            if header is None and name is not None and words.strip("[] ") == name:
                return at
        elif table and name is not None and words.partition("=")[0].strip().strip("\"'") == name:
            return at
    return start
