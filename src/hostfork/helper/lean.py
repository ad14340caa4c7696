"""`signal` and JSON without what their packages import: `enum`, `functools`, `collections` and `re`, which cost the
helper 8 ms of its start and its owner 3, in every run. Their C modules, used here, are CPython's own for both.

Type checkers see the standard ones.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    import _signal as signal

__all__ = ["dumps", "loads", "signal"]


def dumps(value: Any) -> str:
    """Plain values as JSON in ASCII, as `json.dumps` without blanks. Raises TypeError for anything else."""
    if isinstance(value, str):
        return str(encode_basestring_ascii(value))
    if value is None or value is True or value is False:
        return _WORDS[value]
    if isinstance(value, int):
        return int.__repr__(value)  # a signal's number may be a member of an enum
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(dumps, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{encode_basestring_ascii(name)}:{dumps(item)}' for name, item in value.items())}}}"
    raise TypeError(f"{type(value).__name__} is no JSON: {value!r}")


_WORDS = {None: "null", True: "true", False: "false"}


class _Settings:
    """What the scanner asks of a decoder: everything as it comes."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def loads(text: str) -> Any:
    """The value of one JSON text, with nothing before it. Raises ValueError on anything else."""
    try:
        value, end = make_scanner(_Settings)(text, 0)  # type: ignore[arg-type]
    except StopIteration:
        raise ValueError(f"not JSON: {text[:40]!r}") from None
    if text[end:].strip():
        raise ValueError(f"more than one JSON value: {text[:40]!r}")
    return value
