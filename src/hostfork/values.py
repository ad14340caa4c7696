"""Frozen values: all that `dataclass(frozen=True)` promises, without what it costs at every start.

The standard decorator compiles five methods for each class, 0.3 to 1 ms, and its module imports `inspect`, 8 ms; a run
has some eighty such classes and a budget of milliseconds. Here all classes share the methods. Type checkers see a
frozen dataclass, and so do the standard tools (`fields`, `replace`, `asdict`) and msgspec when they look.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar, dataclass_transform

    Class = TypeVar("Class")
    Value = TypeVar("Value")
else:

    def dataclass_transform(**_):
        """Nothing: what it says is for type checkers."""
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
def frozen(cls: type[Class]) -> type[Class]:
    """Make a class a frozen value: built by position or name, equal by content, hashable, shown with its fields.

    Defaults are immutable values and stay class attributes.
    """
    for name, method in _METHODS.items():
        setattr(cls, name, method)
    cls.__match_args__ = tuple(cls.__annotations__)  # type: ignore[attr-defined, misc]
    cls.__dataclass_fields__ = _Fields()  # type: ignore[attr-defined]
    return cls


def replace(value: Value, **changes: Any) -> Value:
    """The same value with some fields changed."""
    return type(value)(**{**value.__dict__, **changes})


class _Fields:
    """The standard fields of a class, made when a tool first looks."""

    def __get__(self, _value: object, cls: Any) -> dict[str, Any]:
        import dataclasses

        content = {name: cls.__dict__[name] for name in cls.__match_args__ if name in cls.__dict__}
        body = {"__annotations__": cls.__annotations__, "__module__": cls.__module__, **content}
        twin: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(type(cls.__name__, (), body))
        cls.__dataclass_fields__ = twin.__dataclass_fields__
        return cls.__dataclass_fields__  # type: ignore[no-any-return]


def _init(self: Any, /, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    names = cls.__match_args__
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or not given.keys().isdisjoint(kwargs):
        raise TypeError(f"{cls.__name__} takes {len(names)} fields, each once: {', '.join(names)}")
    given |= kwargs
    for name in names:
        if name not in given:
            if name not in cls.__dict__:
                raise TypeError(f"{cls.__name__} needs the field {name}")
            given[name] = cls.__dict__[name]
    if len(given) != len(names):
        raise TypeError(f"{cls.__name__} has no field {', '.join(given.keys() - set(names))}")
    self.__dict__.update(given)


def _content(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in type(self).__match_args__)


def _equal(self: Any, other: object) -> Any:
    return _content(self) == _content(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_content(self))


def _repr(self: Any) -> str:
    fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__match_args__)
    return f"{type(self).__qualname__}({fields})"


def _refuse(self: Any, name: str, *_: Any) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name} stays as it is")


_METHODS = {
    "__init__": _init,
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
}
