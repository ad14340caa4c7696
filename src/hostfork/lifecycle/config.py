"""The user's configuration file, read only by what needs it: how long forks are kept.

    [keep]
    keep-days = 14             # after the last use; "none": no limit, for each of these keys
    keep-days-ignored = 1      # where every change is in folders that the project ignores, if that is shorter
    max-forks = "none"         # kept forks
    log-days = 90              # what happened to a fork, after it is gone
    undo-days = 14             # what an apply displaced, so that it can be undone
    max-bytes = "10%"          # of kept forks in one pool: of its filesystem, or a size: "20G"

It is $XDG_CONFIG_HOME/hostfork/config.toml, else ~/.config/hostfork/config.toml, and need not be there.
"""

from __future__ import annotations

import os

from hostfork.errors import Code, PolicyError
from hostfork.lifecycle.store import home_folder
from hostfork.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_NONE = "none"
_KEYS = ("keep-days", "keep-days-ignored", "max-forks", "log-days", "undo-days", "max-bytes")


@frozen
class KeepRules:
    """How long forks are kept; None is no limit. Of `max_bytes` and `max_percent` (of a pool's filesystem) one counts.

    `file` is where that stands; `given`: it is there.
    """

    keep_days: int | None = 14
    keep_days_ignored: int | None = 1
    max_forks: int | None = None
    max_bytes: int | None = None
    max_percent: int | None = 10
    log_days: int | None = 90
    undo_days: int | None = 14
    file: str = ""
    given: bool = False

    def most_bytes(self, filesystem: int) -> int | None:
        """What the forks in one pool may take, of a filesystem of that size."""
        return self.max_bytes if self.max_percent is None else filesystem * self.max_percent // 100


def config_file() -> str:
    """Where the configuration file is, or would be."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(home_folder(), ".config")
    return os.path.join(base, "hostfork", "config.toml")


def keep_rules(file: str) -> KeepRules:
    """What the file says, and the defaults for what it does not say. Raises PolicyError `config.invalid`."""
    try:
        with open(file, "rb") as stream:
            text = stream.read().decode("utf-8")
    except FileNotFoundError:
        return KeepRules(file=file)
    except (OSError, ValueError) as error:
        why = "it is not UTF-8 text" if isinstance(error, ValueError) else error.strerror or str(error)
        number = error.errno if isinstance(error, OSError) else None
        raise PolicyError(
            Code.CONFIG_INVALID, "the configuration file cannot be read", path=file, place=file, errno=number,
            details=(why,), hint="put it right, or move it away: the defaults hold without it",
        ) from error  # fmt: skip
    return _Reader(file, text).keep()


class _Reader:
    """One file's text; each refusal names the line and the key."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._text = text

    def keep(self) -> KeepRules:
        import tomllib

        try:
            table = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            raise PolicyError(
                Code.CONFIG_INVALID, f"the configuration file is not valid TOML: {error}", path=self._file,
                place=self._file, hint="put it right, or move it away: the defaults hold without it",
            ) from error  # fmt: skip
        self._known(table, ("keep",), ())
        keep = table.get("keep", {})
        if not isinstance(keep, dict):
            self._refuse("keep must be a table: [keep]", ("keep",), "write [keep] above its keys")
        self._known(keep, _KEYS, ("keep",))
        rules: dict[str, Any] = {
            name.replace("-", "_"): self._number(keep[name], name) for name in _KEYS[:-1] if name in keep
        }
        if "max-bytes" in keep:
            rules["max_bytes"], rules["max_percent"] = self._bytes(keep["max-bytes"])
        return KeepRules(**rules, file=self._file, given=True)

    def _number(self, value: object, name: str) -> int | None:
        if value == _NONE:
            return None
        if type(value) is not int or value < 1:
            self._refuse(f"{name} cannot be {value!r}", ("keep", name), f'a whole number from 1 on, or "{_NONE}"')
        return value

    def _bytes(self, value: object) -> tuple[int | None, int | None]:
        from hostfork.policy.options import parse_size

        if value == _NONE:
            return None, None
        if type(value) is int and value > 0:
            return value, None
        if isinstance(value, str):
            number = value.removesuffix("%")
            if number != value and number.isascii() and number.isdigit() and 1 <= int(number) <= 100:
                return None, int(number)
            try:
                return parse_size(value, ""), None
            except PolicyError:
                pass
        return self._refuse(
            f"max-bytes cannot be {value!r}", ("keep", "max-bytes"),
            f'a size such as "20G", a part of the filesystem such as "10%", or "{_NONE}"',
        )  # fmt: skip

    def _known(self, table: dict[str, Any], names: tuple[str, ...], above: tuple[str, ...]) -> None:
        for name in table:
            if name not in names:
                where = f"of [{above[0]}]" if above else "of the configuration file"
                self._refuse(f"{name} is no key {where}", (*above, name), f"known here: {', '.join(names)}")

    def _refuse(self, message: str, key: tuple[str, ...], hint: str) -> NoReturn:
        from hostfork.policy.lines import line_of

        line = line_of(self._text, key)
        place = f"{self._file}{'' if line is None else f':{line}'}: {'.'.join(key)}"
        raise PolicyError(Code.CONFIG_INVALID, message, path=self._file, place=place, hint=hint)
