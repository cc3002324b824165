"""Machine-readable output: JSON, YAML and CSV of plain data."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any


def to_json(document: Any) -> str:
    """Indented JSON with a newline at the end."""
    # NaN and infinities are refused, because JSON has no such numbers.
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_yaml(document: Any) -> str:
    """Block-style YAML with the keys in the order of the document."""
    import yaml

    text: str = yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return text


def to_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """RFC 4180 rows with plain newlines."""
    # None becomes an empty field, floats keep every digit, lists are JSON.
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_field(value) for value in row] for row in rows)
    return out.getvalue()


def _field(value: Any) -> Any:
    # As in the JSON document: true, not True
    if isinstance(value, (bool, list, tuple, Mapping)):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return value
