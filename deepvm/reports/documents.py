"""Machine-readable output: JSON, YAML and CSV of plain data."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any


def to_json(document: Any) -> str:
    """Indented JSON with a newline at the end; NaN and infinities are refused, because JSON has no such numbers."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_yaml(document: Any) -> str:
    """Block-style YAML with the keys in the order of the document."""
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text


def to_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """RFC 4180 rows with plain newlines; None becomes an empty field, floats keep every digit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()
