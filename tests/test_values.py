"""Frozen values keep what a frozen dataclass promises: compared with one, field by field."""

import copy
import dataclasses
import json
import os
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostfork.helper.lean import dumps, loads
from hostfork.helper.shapes import NamedTuple
from hostfork.values import frozen, replace


@frozen
class Point:
    """Two numbers and more."""

    x: int
    y: int = 0
    names: tuple[str, ...] = ()


@frozen
class Other:
    x: int
    y: int = 0
    names: tuple[str, ...] = ()


@frozen
class Pair:
    left: int
    right: tuple[str, ...] = ()

    @property
    def both(self) -> tuple[int, int]:
        return self.left, len(self.right)


@dataclasses.dataclass(frozen=True)
class Standard:
    left: int
    right: tuple[str, ...] = ()


def test_values_are_built_as_dataclasses_are() -> None:
    assert Pair(1, ("a",)) == Pair(left=1, right=("a",)) == Pair(1, right=("a",))
    assert (Pair(1).right, Pair(2, ("a", "b")).both) == ((), (2, 2))
    assert Pair.__match_args__ == Standard.__match_args__  # type: ignore[attr-defined]
    assert Point(1).names == ()


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, (), 3), {}), ((1,), {"left": 2}), ((1,), {"middle": 2}), ((), {"right": ()})]
)
def test_what_a_dataclass_refuses_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for kind in (Pair, Standard):
        with pytest.raises(TypeError):
            kind(*args, **kwargs)


def test_equality_and_hash_are_by_content_and_class() -> None:
    assert Pair(1) != Pair(2)
    assert Point(1) != Other(1)
    assert Pair(1).__eq__(1) is NotImplemented
    assert hash(Pair(1, ("a",))) == hash(Pair(1, ("a",)))
    assert {Pair(1): 5}[Pair(1)] == 5


def test_nothing_can_be_changed() -> None:
    pair = Pair(1)
    for act in (lambda: setattr(pair, "left", 2), lambda: delattr(pair, "left"), lambda: setattr(pair, "new", 2)):
        with pytest.raises(dataclasses.FrozenInstanceError, match="Pair is frozen"):
            act()
    assert pair == Pair(1)


def test_the_standard_tools_work() -> None:
    pair = Pair(1, ("a",))
    assert dataclasses.is_dataclass(pair)
    assert [one.name for one in dataclasses.fields(Pair)] == ["left", "right"]  # type: ignore[arg-type]
    assert dataclasses.asdict(pair) == {"left": 1, "right": ("a",)}  # type: ignore[call-overload]
    assert dataclasses.replace(pair, left=2) == Pair(2, ("a",))  # type: ignore[type-var]
    assert repr(pair) == repr(Standard(1, ("a",))).replace("Standard", "Pair")
    assert pickle.loads(pickle.dumps(pair)) == copy.deepcopy(pair) == pair
    match pair:
        case Pair(left, right=("a",)):
            assert left == 1
        case _:
            pytest.fail("patterns do not match")


def test_msgspec_reads_and_writes_them() -> None:
    assert msgspec.json.encode(Pair(1, ("a",))) == b'{"left":1,"right":["a"]}'
    assert msgspec.json.decode(b'{"left":1}', type=Pair) == Pair(1)
    assert hash(msgspec.json.decode(b'{"left":1}', type=Pair)) == hash(Pair(1))
    assert msgspec.json.decode(b'{"x":1}', type=Point) == Point(1)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"left":"x"}', type=Pair)


def test_a_docstring_stays() -> None:
    assert Point.__doc__ == "Two numbers and more."


def test_our_own_replace() -> None:
    assert replace(Pair(1, ("a",)), left=2) == Pair(2, ("a",))
    with pytest.raises(TypeError):
        replace(Pair(1), middle=2)


# --- tuples with named fields ----------------------------------------------------------------------------------------


class Both(NamedTuple):
    """A pair."""

    x: int
    y: int = 2


def test_a_tuple_with_names_is_what_the_standard_one_is() -> None:
    point = Both(1)
    assert point == (1, 2)
    assert (point.x, point.y, len(point), point._fields) == (1, 2, 2, ("x", "y"))
    assert Both(y=5, x=4) == (4, 5)
    assert point._replace(y=9) == Both(1, 9)
    assert repr(point) == "Both(x=1, y=2)"
    assert pickle.loads(pickle.dumps(point)) == point
    assert isinstance(pickle.loads(pickle.dumps(point)), Both)
    match point:
        case Both(x, y=2):
            assert x == 1
        case _:
            raise AssertionError


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, 2, 3), {}), ((1,), {"z": 2}), ((1,), {"x": 2})])
def test_a_tuple_with_names_has_each_once(values: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="x, y"):
        Both(*values, **named)


# --- JSON without its package ----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_json_is_what_the_package_writes_and_reads(value: Any) -> None:
    text = dumps(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert loads(text) == value


def test_json_carries_every_byte_of_a_path() -> None:
    path = os.fsdecode(bytes(range(1, 256)))
    assert os.fsencode(loads(dumps((path,)))[0]) == bytes(range(1, 256))


@pytest.mark.parametrize("text", ["", "{", "[1] 2", "nope", '"a', "[1,]", " 1"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        loads(text)


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="set is no JSON"):
        dumps([{1, 2}])
