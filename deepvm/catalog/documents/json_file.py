"""JSON with exact decimals in, readable text out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from deepvm.errors import CatalogFormatError, Problem

MAX_FIELDS = 1000
"""More fields in one object are not a catalog; refused before each is reported as unknown."""

MAX_VALUES = 2_000_000
"""More values in a file are refused unread: 20 000 types, the most that the schema allows, hold fewer."""

_WIDTH = 120


class RepeatedKeys(dict[str, Any]):
    """A JSON object with repeated keys; keeps the last value of each, as JSON readers do.

    Attributes:
        repeated: the repeated keys.
    """

    def __init__(self, pairs: Sequence[tuple[str, Any]], repeated: Sequence[str]) -> None:
        """Keep the pairs and the repeated keys."""
        super().__init__(pairs)
        self.repeated = tuple(repeated)


_A_CATALOG = "allowed: one JSON object, as `deepvm catalog show paper -o json` prints it"


def parse_json(text: str, path: Path, wanted: str = _A_CATALOG) -> object:
    """Parse JSON with exact decimals; NaN and infinities are kept for validation to locate.

    Args:
        text: the JSON.
        path: where it comes from, for messages.
        wanted: what belongs there, for messages.

    Raises:
        CatalogFormatError: not JSON (line and column), nested too deeply, more than 2 000 000 values, or an object with
            more than 1000 fields.
    """
    if text.count(",") > MAX_VALUES:
        raise CatalogFormatError(path, [Problem("file", f"holds more than {MAX_VALUES} values", wanted)])
    try:
        return json.loads(
            text, parse_float=exact_number, parse_int=_whole, parse_constant=float, object_pairs_hook=_object_of_pairs
        )
    except json.JSONDecodeError as error:
        problem = Problem(f"line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}", wanted)
    except RecursionError:
        problem = Problem("file", "lists or objects are nested too deeply", wanted)
    except _TooManyFieldsError as error:
        problem = Problem("file", f"an object has {error} fields", wanted)
    raise CatalogFormatError(path, [problem])


def load_exact(text: str) -> dict[str, Any]:
    """Read JSON of our own (an embedded catalog) with its decimals exact."""
    document: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return document


def format_document(document: object) -> str:
    """JSON with a newline at the end: what fits into 120 columns stands on one line, the rest is indented."""
    return _format(document, "") + "\n"


class _TooManyFieldsError(Exception):
    pass


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_FIELDS:
        raise _TooManyFieldsError(len(pairs))
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    times = Counter(name for name, _ in pairs)
    return RepeatedKeys(pairs, [name for name, count in times.items() if count > 1])


def exact_number(text: str) -> Decimal | float:
    """The exact value of a number's decimal form; infinity or zero where the exponent is absurd."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)  # an exponent beyond what Decimal holds; validation refuses infinity and zero


def _whole(text: str) -> int | Decimal:
    # int() of a text takes quadratic time and refuses more than 4300 digits.
    return int(text) if len(text) < 100 else Decimal(text)


def _format(value: object, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(line) + len(indent) < _WIDTH or not isinstance(value, (dict, list)):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [f"{deeper}{json.dumps(k, ensure_ascii=False)}: {_format(v, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + _format(v, deeper) for v in value) + f"\n{indent}]"
