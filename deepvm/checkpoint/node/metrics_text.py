"""A node's status as Prometheus reads it: one line for each number, in its text format 0.0.4."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def metrics_text(status: Mapping[str, Any]) -> str:
    """The status of a node (``deepvm.memory-node/1``) in Prometheus's text format."""
    return str(_template().render(status))


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # noqa: S701  the text is no HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(escaped=lambda text: text.translate(_ESCAPES), number=_number)
    return environment.get_template("metrics.txt.j2")


def _number(value: float | str) -> str:
    """``value``: a number, or a time in ISO 8601, which becomes Unix time."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value).timestamp()
    if value == int(value):
        return str(int(value))
    return repr(float(value))
