"""`NamedTuple` and `Protocol` without what the standard ones cost at every start.

Their module, typing, takes 2 ms to import, and each NamedTuple compiles a constructor; owner and helper feel both in
every run. Type checkers see the standard ones. For what only they need, modules have `TYPE_CHECKING = False`, which
they take for true.
"""

from __future__ import annotations

from _operator import itemgetter

__all__ = ["NamedTuple", "Protocol"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple, Protocol
else:

    class Protocol:
        """A class that only says what methods others have."""

    class NamedTuple(tuple):
        """A tuple whose fields have the names of the annotations, in their order; class attributes are defaults."""

        __slots__ = ()
        _fields = ()

        def __init_subclass__(cls):
            names = tuple(cls.__dict__.get("__annotations__", ()))
            cls._fields = cls.__match_args__ = names
            cls._defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
            cls._last = tuple(cls._defaults.values())
            for number, name in enumerate(names):
                setattr(cls, name, property(itemgetter(number)))

        def __new__(cls, *values, **named):
            names = cls._fields
            missing = len(names) - len(values)
            if not named and 0 < missing <= len(cls._last):
                values += cls._last[-missing:]
            elif named or missing:
                given = {**cls._defaults, **dict(zip(names, values, strict=False)), **named}
                if len(values) > len(names) or given.keys() != set(names) or named.keys() & set(names[: len(values)]):
                    raise TypeError(f"{cls.__name__} takes the fields {', '.join(names)}, each once")
                values = [given[name] for name in names]
            return tuple.__new__(cls, values)

        def _replace(self, **changes):
            return type(self)(**{**dict(zip(self._fields, self, strict=True)), **changes})

        def __repr__(self):
            fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({fields})"

        def __reduce__(self):
            return type(self), tuple(self)
