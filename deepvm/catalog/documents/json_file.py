"""JSON with exact decimals in, readable text out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from deepvm.errors import CatalogFormatError, Problem
from deepvm.io.safe_read import read_text

# Refused before each field is reported as unknown; and unread: 20 000 types, the schema's most,
# hold fewer values.
MAX_FIELDS = 1000
MAX_VALUES = 2_000_000

_WIDTH = 120


class RepeatedKeys(dict[str, Any]):
    """A JSON object with repeated keys; keeps the last value of each, as JSON readers do."""

    repeated: tuple[str, ...] = ()


def read_existing(path: Path, wanted: str) -> str:
    """As :func:`deepvm.io.safe_read.read_text`; a missing file is a CatalogFormatError too."""
    try:
        return read_text(path, wanted)
    except FileNotFoundError:
        raise CatalogFormatError(path, [Problem("file", "does not exist", wanted)]) from None


def exact_number(text: str) -> Decimal | float:
    """The exact value of a number's decimal form; infinity or zero where the exponent is absurd."""
    try:
        return Decimal(text)
    except InvalidOperation:
        # An exponent beyond what Decimal holds; validation refuses infinity and zero
        return float(text)


def parse_json(
    text: str, path: Path, wanted: str, number: Callable[[str], Decimal | float] = exact_number
) -> object:
    """Parse JSON; NaN and infinities are kept for validation to locate.

    ``path`` and what is ``wanted`` there are for messages; ``number`` reads numbers that are no
    short integers.

    Raises:
        CatalogFormatError: not JSON (line and column), nested too deeply, more than 2 000 000
            values, or an object with more than 1000 fields.
    """

    def refused(place: str, found: str) -> CatalogFormatError:
        return CatalogFormatError(path, [Problem(place, found, wanted)])

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(pairs) > MAX_FIELDS:
            raise refused("file", f"an object has {len(pairs)} fields")
        found = dict(pairs)
        if len(found) < len(pairs):
            found = RepeatedKeys(found)
            found.repeated = tuple(
                name for name, count in Counter(name for name, _ in pairs).items() if count > 1
            )
        return found

    def whole(text: str) -> int | Decimal | float:
        # int() of a text takes quadratic time and refuses more than 4300 digits.
        return int(text) if len(text) < 100 else number(text)

    if text.count(",") > MAX_VALUES:
        raise refused("file", f"holds more than {MAX_VALUES} values")
    try:
        return json.loads(
            text,
            parse_float=number,
            parse_int=whole,
            parse_constant=float,
            object_pairs_hook=object_of,
        )
    except json.JSONDecodeError as error:
        raise refused(
            f"line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}"
        ) from None
    except RecursionError:
        raise refused("file", "lists or objects are nested too deeply") from None


def load_exact(text: str) -> dict[str, Any]:
    """Read JSON of our own (an embedded catalog) with its decimals exact."""
    document: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return document


def format_document(document: object) -> str:
    """JSON with a newline at the end: what fits into 120 columns stands on one line, the rest is indented."""
    return _format(document, "") + "\n"


def _format(value: object, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(line) + len(indent) < _WIDTH or not isinstance(value, (dict, list)):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [
            f"{deeper}{json.dumps(k, ensure_ascii=False)}: {_format(v, deeper)}"
            for k, v in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + _format(v, deeper) for v in value) + f"\n{indent}]"
