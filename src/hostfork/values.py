"""Frozen values: all that `dataclass(frozen=True)` promises, without compiling five methods for each class.

The standard decorator writes and compiles source text, 0.3 to 1 ms a class; a run has some eighty such classes and a
budget of milliseconds. Here the fields are the standard ones (`dataclasses.fields`, `replace` and `asdict` work, as
does msgspec), and the methods are shared by all classes. Type checkers see a frozen dataclass.
"""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[Class]) -> type[Class]:
    """Make a class a frozen value: built by position or name, equal by content, hashable, shown with its fields."""
    # a missing docstring makes the standard decorator inspect the signature, which costs more than all else
    cls.__doc__ = cls.__doc__ or cls.__name__
    for name, method in _METHODS.items():
        setattr(cls, name, method)
    return dataclasses.dataclass(init=False, repr=False, eq=False)(cls)


def _init(self: Any, /, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    names = cls.__match_args__
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or not given.keys().isdisjoint(kwargs):
        raise TypeError(f"{cls.__name__} takes {len(names)} fields, each once: {', '.join(names)}")
    given |= kwargs
    fields = cls.__dataclass_fields__
    for name in names:
        if name not in given:
            given[name] = _default(cls, fields[name])
    if len(given) != len(names):
        raise TypeError(f"{cls.__name__} has no field {', '.join(given.keys() - set(names))}")
    self.__dict__.update(given)


def _default(cls: Any, field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise TypeError(f"{cls.__name__} needs the field {field.name}")


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
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__} is frozen: {name} stays as it is")


_METHODS = {
    "__init__": _init,
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
}
