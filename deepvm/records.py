"""``dataclasses`` of the standard library, with classes that take a third of the time to make.

Until Python 3.12 the library compiles up to six methods for each class, about 0.6 ms: for the 80
classes of ``deepvm recommend`` a sixth of its time. Here only ``__init__`` is compiled; the other
methods are shared by all classes and find the fields when they are called.
"""

import dataclasses as library
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, MISSING, Field, InitVar, asdict, astuple, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, eq=True, frozen=False, repr=True, **options):
        """As in the library, but a frozen object accepts each field once."""

        def made(cls):
            own = cls.__dict__
            methods = {}
            if eq:
                methods["__eq__"] = _equal
                if own.get("__hash__") is None:
                    methods["__hash__"] = _hash if frozen else None
            if repr:
                methods["__repr__"] = _repr
            if frozen:
                methods |= {"__setattr__": _set_once, "__delattr__": _refuse}
            defined = own.keys() - {"__hash__"}
            cls = library.dataclass(cls, eq=False, repr=False, **options)
            for name in methods.keys() - defined:
                setattr(cls, name, methods[name])
            compared = [f for f in fields(cls) if f.compare]
            cls._compared = _values_of(compared)
            cls._hashed = _values_of(f for f in compared if f.hash is not False)
            return cls

        return made if cls is None else made(cls)


__all__ = (
    "KW_ONLY",
    "MISSING",
    "Field",
    "InitVar",
    "asdict",
    "astuple",
    "dataclass",
    "field",
    "fields",
    "replace",
)


def _values_of(some: Iterable[Field[Any]]) -> Callable[[Any], Any]:
    names = [field.name for field in some]
    return attrgetter(*names) if names else type


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._hashed(self))


def _repr(self: Any) -> str:
    shown = (field.name for field in fields(self) if field.repr)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{self.__class__.__qualname__}({values})"


def _set_once(self: Any, name: str, value: object) -> None:
    values = self.__dict__
    if name in values or name not in self.__dataclass_fields__:
        raise library.FrozenInstanceError(f"cannot assign to field {name!r}")
    values[name] = value


def _refuse(self: Any, name: str) -> None:
    raise library.FrozenInstanceError(f"cannot delete field {name!r}")
