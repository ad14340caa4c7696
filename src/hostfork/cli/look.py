"""How values look to people: colour, widths, sizes, ages, harmless and shortened paths.

Pure functions from values to text. What is rounded here is exact in `documents`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hostfork.collect.changeset import Counts
from hostfork.values import frozen

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_PLAIN_SIGNS = {0xB7: "|", 0x2026: "...", 0x2588: "#", 0x2591: "."}


@frozen
class Look:
    """What the reader's end can show. `width` None: not a terminal, nothing is shortened."""

    colour: bool = False
    width: int | None = None
    home: str = ""

    def paint(self, text: str, *styles: str) -> str:
        """`text` in these styles, or as it is where colour is not wanted."""
        if not self.colour or not text or not styles:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def path(self, path: str, room: int | None = None) -> str:
        """A path for people: `~` for home, harmless, shortened in the middle to `room` columns."""
        return shorten(harmless(tilde(path, self.home)), room)


def wants_colour(choice: str, terminal: bool, environment: Mapping[str, str]) -> bool:
    """`--color` first, then NO_COLOR, FORCE_COLOR and TERM=dumb as their conventions say, then the terminal."""
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return terminal and environment.get("TERM", "") not in ("", "dumb")


def look_for(descriptor: int, choice: str = "auto") -> Look:
    """The look for what is written to an open descriptor."""
    terminal = os.isatty(descriptor)
    return Look(
        colour=wants_colour(choice, terminal, os.environ),
        width=_columns(descriptor) if terminal else None,
        home=os.path.expanduser("~"),
    )


def _columns(descriptor: int) -> int:
    asked = os.environ.get("COLUMNS", "")
    if asked.isascii() and asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return os.get_terminal_size(descriptor).columns or 80


def encoded(text: str, encoding: str | None) -> bytes:
    """`text` for a stream: what its encoding cannot say is replaced by plain signs or an escape, never an error."""
    name = (encoding or "ascii").lower().replace("-", "").replace("_", "")
    if name != "utf8":
        text = text.translate(_PLAIN_SIGNS)
    return text.encode(encoding or "ascii", "backslashreplace")


def harmless(text: str) -> str:
    r"""Text that a terminal cannot act on: control characters and bytes that are no text as `\xNN`, other signs that
    do not show (direction marks, for one) as `\uNNNN`."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(ord(character)) for character in text)


def _escape(number: int) -> str:
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def tilde(path: str, home: str) -> str:
    """`~` for the home folder, where the path lies in it."""
    home = home.rstrip("/")
    if home and path == home:
        return "~"
    return f"~{path[len(home) :]}" if home and path.startswith(home + "/") else path


def columns(text: str) -> int:
    """How many columns of a terminal a text without escapes takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)


def shorten(path: str, room: int | None) -> str:
    """A path in at most `room` columns where that can be done: parts in the middle give way to one `…`.

    The last part is never cut: it says what the path is.
    """
    if room is None or columns(path) <= room:
        return path
    body = path.rstrip("/")
    cut = body.rfind("/")
    if cut < 0:
        return path
    head, last = body[:cut], path[cut:]
    parts = head.split("/")
    for kept in range(len(parts) - 1, 0, -1):
        # the beginning says whose it is, the end what it is: keep both, else the beginning
        for front in ((kept + 1) // 2, kept):
            candidate = "/".join([*parts[:front], "…", *parts[len(parts) - kept + front :]]) + last
            if columns(candidate) <= room:
                return candidate
    return "…" + last


def pad(text: str, room: int, shown: str | None = None) -> str:
    """`shown` (or `text`) with blanks up to `room` columns; `text` is it without colour."""
    return (text if shown is None else shown) + " " * max(0, room - columns(text))


def table(rows: Sequence[Sequence[str]], gap: int = 2, paint: Mapping[int, tuple[str, ...]] | None = None,
          look: Look | None = None) -> list[str]:  # fmt: skip
    """Rows as lines with aligned columns, no blanks at the end. `paint` gives columns a style."""
    if not rows:
        return []
    count = max(len(row) for row in rows)
    widths = [max((columns(row[index]) for row in rows if index < len(row)), default=0) for index in range(count)]
    lines = []
    for row in rows:
        cells = []
        for index, cell in enumerate(row):
            shown = look.paint(cell, *paint[index]) if look and paint and index in paint else cell
            cells.append(pad(cell, widths[index], shown))
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def size(number: int) -> str:
    """Bytes for people, in powers of 1024: `0 B`, `12 KiB`, `1.3 GiB`."""
    if number < 1024:
        return f"{number} B"
    value, units = number / 1024, ["TiB", "GiB", "MiB", "KiB"]
    unit = units.pop()
    while value >= 1023.5 and units:
        value, unit = value / 1024, units.pop()
    text = f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"
    return f"{text} {unit}"


def age(seconds: float) -> str:
    """How long ago, in one unit: `12 s`, `3 m`, `2 h`, `1 d`."""
    whole = max(0, int(seconds))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def duration(seconds: float) -> str:
    """How long something took: `41 ms`, `1.2 s`, `2 m 5 s`, `3 h 4 m`."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} m" if whole % 3600 // 60 else "")


def number(value: int) -> str:
    """A count for people: `34,112`."""
    return f"{value:,}"


def plural(value: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2 files`, `3 entries`."""
    return f"{number(value)} {one if value == 1 else many or one + 's'}"


def counts_in_words(counts: Counts) -> str:
    """`3 created, 1 modified, 2 deleted`: what there is, in the order of the changeset's words."""
    words = (
        (counts.created, "created"),
        (counts.modified, "modified"),
        (counts.deleted, "deleted"),
        (counts.metadata, "metadata"),
        (counts.type, "type"),
    )
    return ", ".join(f"{number(value)} {word}" for value, word in words if value) or "nothing changed"


def command_in_words(command: Sequence[str]) -> str:
    """A command as a shell would take it, harmless."""
    import shlex

    return harmless(" ".join(shlex.quote(word) for word in command))


def wrapped(parts: Sequence[str], indent: int, width: int | None, separator: str = " · ") -> list[str]:
    """Parts in lines of at most `width` columns, broken only between parts."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}{separator}{part}" if lines else ""
        if lines and (width is None or columns(joined) <= width):
            lines[-1] = joined
        else:
            lines.append(" " * indent + part)
    return lines


def bar(done: int, total: int, room: int = 12) -> str:
    """A picture of how far something is."""
    filled = room if total <= 0 else min(room, done * room // total)
    return "█" * filled + "░" * (room - filled)
