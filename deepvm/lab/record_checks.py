"""What the audit reads in a run's documents and lines.

Damaged records raise DataError with file and key; what a run did wrong is a question for the gates.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from deepvm.documents.declared import Schema, definitions, may_be_null, properties, without_null
from deepvm.errors import DataError

_TYPES: dict[str, type | tuple[type, ...]] = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "string": str,
}


def check_config(config: Mapping[str, Any], where: object) -> None:
    """Of a run. Raises DataError."""
    check("lab.LabRun", config, where)
    batch = config["global_batch"]
    size = config["dataset_size"]
    worlds = config["worlds"]
    if batch > size:
        raise DataError(f"{where}: damaged: global_batch is {batch}, of {size} samples")
    steps = [step for step, _ in worlds]
    if steps[0] or steps != sorted(set(steps)) or any(not w or batch % w for _, w in worlds):
        allowed = f"steps from 0 that increase, with numbers of ranks that divide {batch} samples"
        raise DataError(f"{where}: damaged: worlds is {worlds}; expected {allowed}")


def check_steps(rows: Sequence[Mapping[str, Any]], path: object) -> None:
    """Of a rank's log: both forms of a loss are one number. Raises DataError."""
    check_lines("logs.Step", rows, path)
    for number, row in enumerate(rows, 1):
        if float(row["loss"]).hex() != row["loss_hex"]:
            loss = f"{row['loss']}, not {row['loss_hex']}"
            raise DataError(f"{path}, line {number}: damaged: loss is {loss}")


def check_events(rows: Sequence[Mapping[str, Any]], path: object) -> None:
    """Of a rank's other log. Raises DataError."""
    check_lines("logs.Event", rows, path)
    for number, row in enumerate(rows, 1):
        if "extends" in definitions("logs").get(row["event"], ()):
            check(f"logs.{row['event']}", row, f"{path}, line {number}")


def check_lines(kind: str, rows: Sequence[Mapping[str, Any]], path: object) -> None:
    """Of a log whose lines are of one kind. Raises DataError."""
    for number, row in enumerate(rows, 1):
        check(kind, row, f"{path}, line {number}")


def check(kind: str, document: Mapping[str, Any], where: object) -> None:
    """Of a document of a kind; keys that are not declared are ignored. Raises DataError."""
    for key, schema in properties(kind).items():
        if key in document:
            _check_value(schema, document[key], f"{where}", key)
        elif not schema.get("optional"):
            raise DataError(f"{where}: damaged: it has no {key}")


def _check_value(schema: Schema, value: Any, where: str, key: str) -> None:
    if value is None and may_be_null(schema):
        return
    schema = without_null(schema)
    if not _fits(schema, value):
        expected = ", ".join(f"{word} {schema[word]}" for word in schema if word != "description")
        raise DataError(f"{where}: damaged: {key} is {repr(value)[:60]}; expected {expected}")
    if "$ref" in schema:
        check(schema["$ref"], value, f"{where}, {key}")
    if schema.get("items"):
        for number, element in enumerate(value):
            _check_value(schema["items"], element, where, f"{key}[{number}]")
    if schema.get("additionalProperties"):
        for name, element in value.items():
            _check_value(schema["additionalProperties"], element, f"{where}, {key}", name)


def _fits(schema: Schema, value: Any) -> bool:
    """Whether a value has the type and keeps the limits of a schema, but for what it holds."""
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind = schema.get("type", "object")
    # To Python a bool is a whole number, to a record it is not
    if isinstance(value, bool) or not isinstance(value, _TYPES[kind]):
        return kind == "boolean" and isinstance(value, bool)
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", sys.maxsize))
    if isinstance(value, float) and not math.isfinite(value):
        return "not_finite" in schema
    # JSON may hold whole numbers that are too large for a float
    if kind == "number" and isinstance(value, int) and abs(value) > sys.float_info.max:
        return False
    if isinstance(value, (int, float)):
        above = schema.get("exclusiveMinimum", -math.inf)
        return bool(value >= schema.get("minimum", -math.inf) and value > above)
    return True
