"""Types and descriptions of the fields of files that users write."""

import json
import math
import re
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from deepvm.core.json_types import JsonDict
from deepvm.core.units import MOST_SECONDS, parse_seconds, parse_time

MAX_USD = 100_000
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_SHORT = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
# Control characters break CSV rows and terminals, surrogates cannot be written, the others
# reverse text or are invisible.
_UNFIT = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


class InvalidValueError(ValueError):
    """Why a value is refused, where the description of its field does not give the reason."""


def _plain_digits(value: Any) -> Any:
    odd = isinstance(value, str) and ("_" in value or not value.isascii())
    if odd or isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise ValueError("expected a number")
    return value


def _as_number(value: Any) -> Any:
    value = _plain_digits(value)
    if isinstance(value, str):
        return float(value)
    return value


def _in_full(value: object) -> object:
    if isinstance(value, str) and value[-1:].lower() in _SHORT:
        return float(value[:-1]) * _SHORT[value[-1].lower()]
    return value


def _as_exact(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise ValueError("expected a number")
    return value


def _numbers(value: Any) -> list[float]:
    try:
        return _NUMBERS.validate_python(value if isinstance(value, list) else [value])
    except ValidationError:
        raise ValueError("expected one or more numbers") from None


def _as_span(value: Any) -> tuple[float, float]:
    bounds = _numbers(value)
    low, high = bounds[0], bounds[-1]
    if len(bounds) > 2 or not 0 <= low <= high <= MOST_SECONDS:
        raise ValueError("no time")
    return low, high


def _as_lifetimes(value: Any) -> tuple[float, ...]:
    if value is None:
        return (math.inf,)
    means = _numbers(value)
    if min(means) <= 0:
        raise ValueError("not above 0")
    return tuple(means)


def _visible(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("expected visible characters")
    return value


def _no_text(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("expected a number")
    return value


def _as_day(value: object) -> date:
    # Without this, pydantic takes 20231001 for seconds since 1970, and Python 3.11 for a day.
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        raise ValueError("expected a date YYYY-MM-DD")
    return date.fromisoformat(value)


def _as_moment(value: str) -> str:
    if not 2000 <= parse_time(value).year < 2200:
        raise ValueError("not a moment")
    return value


def _as_instant(value: object) -> datetime:
    if not isinstance(value, str):
        raise ValueError("expected a time in ISO 8601")
    return parse_time(value)


def _as_duration(value: object) -> float:
    if isinstance(value, float):  # read before
        return value
    if not isinstance(value, str):  # 12 without a unit is no time
        raise ValueError("no time with a unit")
    return parse_seconds(value, "time")


def _one_line(value: str) -> str:
    if _UNFIT.search(value) or value != value.strip():
        raise ValueError("expected one line of visible characters without blanks at the ends")
    return value


def _no_comment(value: str) -> str:
    if value.startswith("#"):
        raise ValueError("would be read as a comment line in CSV")
    return _one_line(value)


Number = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_as_number)]
_Whole = Annotated[int, BeforeValidator(_as_number)]
_NUMBERS = TypeAdapter(Annotated[list[Number], Field(min_length=1)])
Stripped = Annotated[str, StringConstraints(strip_whitespace=True)]
_Named = Annotated[str, Field(min_length=1, max_length=100)]
# Types of values, by ``format``, else ``type``
FORMATS: dict[str, Any] = {
    "integer": Annotated[_Whole, BeforeValidator(_no_text)],
    "number": Annotated[Number, BeforeValidator(_no_text)],
    "string": str,
    "boolean": StrictBool,
    "object": JsonDict,
    "null": None,
    "any": Any,
    "not_finite": float,
    "line": Annotated[str, AfterValidator(_one_line)],
    "name": Annotated[_Named, AfterValidator(_one_line)],
    "type": Annotated[_Named, AfterValidator(_no_comment)],
    "time": Annotated[str, AfterValidator(_as_moment)],
    "count": _Whole,
    "amount": Number,
    "short_count": Annotated[_Whole, BeforeValidator(_in_full)],
    "short_amount": Annotated[Number, BeforeValidator(_in_full)],
    "price": Annotated[
        Decimal, Field(gt=0, le=MAX_USD, decimal_places=6), BeforeValidator(_plain_digits)
    ],
    "exact": Annotated[Decimal, BeforeValidator(_as_exact)],
    "day": Annotated[date, BeforeValidator(_as_day)],
    "instant": Annotated[datetime, BeforeValidator(_as_instant)],
    "visible": Annotated[str, AfterValidator(_visible)],
    "span": Annotated[Any, PlainValidator(_as_span)],
    "lifetimes": Annotated[Any, PlainValidator(_as_lifetimes)],
    "flag": bool,
    "stripped": Stripped,
    "duration": Annotated[float, BeforeValidator(_as_duration)],
}


class Strict(BaseModel):
    """An object that people write: unknown fields are refused."""

    # defer_build: pydantic builds a nested model once, within the model that has it, instead of
    # twice.
    model_config = ConfigDict(extra="forbid", defer_build=True)


class Lenient(BaseModel):
    """An object that deepvm writes: later versions may say more."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class Record(BaseModel):
    """What the lab has written: types are exact, other keys are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, defer_build=True)


def schema_of(model: type[BaseModel], name: str) -> JsonDict:
    """The JSON Schema (draft 2020-12) of a file, units and ranges in the descriptions."""
    text = json.dumps(model.model_json_schema())
    # Where a field may be null, pydantic writes ranges by its own words.
    for word, standard in (("gt", "exclusiveMinimum"), ("ge", "minimum"), ("le", "maximum")):
        text = text.replace(f'"{word}": ', f'"{standard}": ')
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{name}.schema.json",
        **json.loads(text),
    }
