"""``deepvm.records.dataclass`` against the library's own, for classes of all kinds of fields."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm import records

NAMES = ("a", "b", "c", "d")


@st.composite
def pairs(draw: st.DrawFn) -> tuple[type, type]:
    """A class made by the library and one made here, alike in all else."""
    fields: list[Any] = []
    for name in NAMES[: draw(st.integers(0, 4))]:
        flags = {key: draw(st.booleans()) for key in ("compare", "repr")}
        flags["hash"] = draw(st.sampled_from((None, False)))
        fields.append((name, int, flags))
    options = {key: draw(st.booleans()) for key in ("frozen", "eq", "repr", "kw_only")}
    own = draw(st.lists(st.sampled_from(("__eq__", "__hash__", "__repr__")), unique=True))
    bodies = {
        "__eq__": lambda self, other: True,
        "__hash__": lambda self: 7,
        "__repr__": lambda self: "own",
    }

    def cls() -> type:
        namespace = {name: dataclasses.field(default=1, **flags) for name, _, flags in fields}
        namespace |= {name: bodies[name] for name in own}
        namespace["__annotations__"] = {name: kind for name, kind, _ in fields}
        namespace["__qualname__"] = "Made"
        return type("Made", (), namespace)

    return dataclasses.dataclass(cls(), **options), records.dataclass(cls(), **options)


def outcome(action: Any) -> Any:
    try:
        return action()
    except (TypeError, dataclasses.FrozenInstanceError) as error:
        return type(error)


@given(pairs(), st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=2, max_size=2))
def test_as_the_library(classes: tuple[type, type], values: list[tuple[int, ...]]) -> None:
    theirs, ours = classes
    assert observed(ours, *values) == observed(theirs, *values)


def observed(cls: type, *values: tuple[int, ...]) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(cls)]
    first, second = (cls(**dict(zip(names, row, strict=False))) for row in values)
    identity = cls.__hash__ is object.__hash__
    hashes = outcome(lambda: hash(first))
    if not identity and hashes is not TypeError and first == second:
        assert hash(first) == hash(second)
    return {
        "repr": cls.__repr__ is object.__repr__ or repr(second),
        "equal": (first == second, first == copy.copy(first), first == object()),
        "hash": (identity, hashes is TypeError),
        "of a list": outcome(lambda: isinstance(hash(cls(**dict.fromkeys(names, []))), int)),
        "set": outcome(lambda: setattr(first, "a", 9)),
        "new": outcome(lambda: setattr(first, "new", 9)),
        "deleted": outcome(lambda: delattr(second, names[0])) if names else None,
    }


@records.dataclass(frozen=True)
class Point:
    x: int
    y: list[int] = records.field(default_factory=list, compare=False)


@records.dataclass(frozen=True)
class Named(Point):
    name: str = ""


def test_inherited_replaced_and_pickled() -> None:
    point = Named(1, [2], "p")
    assert point == Named(1, [], "p") != Named(1, [], "q")
    assert Point(1) != Named(1)
    assert records.replace(point, x=3) == Named(3, name="p")
    assert pickle.loads(pickle.dumps(point)) == point
    assert records.asdict(point) == {"x": 1, "y": [2], "name": "p"}
    assert repr(point) == "Named(x=1, y=[2], name='p')"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
