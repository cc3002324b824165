"""Types and descriptions of the fields of files that users write.

A description states unit and range. It is in the JSON Schema and, word for word, in the error
about the field.
"""

from __future__ import annotations

import json
import math
import re
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from deepvm.core.units import MICRO
from deepvm.io.times import parse_time

MAX_USD = 100_000
MAX_NODES = 1_000_000
MAX_NETWORK_GBPS = 25_600
_PRICE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
# Control characters break CSV rows and terminals, surrogates cannot be written, the others
# reverse text or are invisible.
_UNFIT = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


class InvalidValueError(ValueError):
    """The reason for which a validator refuses a value, where the description does not tell it."""


def finite(value: Any) -> Any:
    """A finite number, also as text: CSV has only texts, and YAML reads 1e6 as one."""
    if isinstance(value, str):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("expected a number")
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _no_text(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("expected a number")
    return value


def _as_price(value: object) -> Decimal:
    """An exact price in $/h from a number or its decimal form as text."""
    if not isinstance(value, str):
        finite(value)
    elif not _PRICE.fullmatch(value):
        raise ValueError("expected a number")
    price = Decimal(str(value))
    if not -MAX_USD <= price <= MAX_USD or price != price.quantize(MICRO):
        raise ValueError("too large, or too many decimals")
    return price


def _as_day(value: object) -> date:
    # Without this, pydantic takes 20231001 for seconds since 1970.
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        raise ValueError("expected a date YYYY-MM-DD")
    return date.fromisoformat(value)


def _as_moment(value: str) -> str:
    if not 2000 <= parse_time(value).year < 2200:
        raise ValueError("not a moment")
    return value


def _one_line(value: str) -> str:
    if _UNFIT.search(value) or value != value.strip():
        raise ValueError("expected one line of visible characters without blanks at the ends")
    return value


def _no_comment(value: str) -> str:
    if value.startswith("#"):
        raise ValueError("would be read as a comment line in CSV")
    return _one_line(value)


Number = Annotated[float, BeforeValidator(finite)]
Whole = Annotated[int, BeforeValidator(finite)]
StrictNumber = Annotated[Number, BeforeValidator(_no_text)]
StrictWhole = Annotated[Whole, BeforeValidator(_no_text)]
Price = Annotated[Decimal, Field(gt=0, le=MAX_USD), BeforeValidator(_as_price)]
Day = Annotated[date, BeforeValidator(_as_day)]
Moment = Annotated[str, AfterValidator(_as_moment)]
Text = Annotated[str, AfterValidator(_one_line)]
Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_one_line)]
TypeName = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_no_comment)]


def number(
    what: str,
    largest: float,
    *,
    least: float | None = None,
    whole: bool = False,
    default: Any = ...,
    null: str = "",
) -> Any:
    """A numeric field, above 0 unless ``least`` is given; ``null``: when it may be null."""
    article = "a whole number" if whole else "a number"
    if least is None:
        text = f"{what}: {article} above 0 and at most {_digits(largest)}"
        field: dict[str, Any] = {"gt": 0}
    else:
        text = f"{what}: {article} from {_digits(least)} to {_digits(largest)}"
        field = {"ge": least}
    if null:
        default = None
        text = f"{text}, or null {null}"
    return Field(default, le=largest, description=text, **field)


def described(text: str, null: str = "") -> Any:
    """A field with this description, required unless ``null`` says when it may be null."""
    if null:
        return Field(None, description=f"{text}, or null {null}")
    return Field(description=text)


def price(what: str, null: str = "") -> Any:
    """A field for a price, required unless it may be null."""
    money = f"a number above 0 and at most {MAX_USD} with at most 6 decimals"
    return described(f"{what} in US dollars an hour ($/h): {money}", null)


def text(what: str, longest: int = 2000, default: str = "") -> Any:
    """A field for one line of text that may be left out."""
    size = f"1 to {longest}" if default else f"at most {longest}"
    description = f"{what}: one line of {size} visible characters without blanks at the ends"
    return Field(
        default, min_length=int(bool(default)), max_length=longest, description=description
    )


def name_of(what: str, null: str = "") -> Any:
    """A field for a :data:`Name`, required unless it may be null."""
    return described(
        f"{what}: one line of 1 to 100 visible characters without blanks at the ends", null
    )


def rows(
    what: str, longest: int, *, least: int = 0, required: bool = False, of: str = "objects"
) -> Any:
    """A field for a list."""
    text = f"{what}: a list of {least} to {longest} {of}"
    default: Any = ... if required else []
    return Field(default, min_length=least, max_length=longest, description=text)


def _digits(value: float) -> str:
    if value > 1e9:
        return f"{value:g}"
    return format(Decimal(repr(value)).normalize(), "f")


class Strict(BaseModel):
    """An object that people write: unknown fields are refused."""

    # defer_build: parts are built once, as parts of the whole, and not each by itself too.
    model_config = ConfigDict(extra="forbid", defer_build=True)


class Lenient(BaseModel):
    """An object that deepvm writes: later versions may say more."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


def schema_of(model: type[BaseModel], name: str) -> dict[str, Any]:
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
