"""Markdown of the lab."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deepvm.lab.results import Estimate
from deepvm.reports.lab.columns import COSTS, RECOVERY, format_interval, format_number
from deepvm.reports.lab.summary import label
from deepvm.reports.pages import render_markdown


def markdown(template: str, **data: Any) -> str:
    """Render a template."""
    filters: Mapping[str, Callable[..., str]] = {
        "number": format_number,
        "interval": format_interval,
        "gain": _gain,
        "points": _points,
    }
    columns = {**COSTS, **RECOVERY}
    return render_markdown(template, filters, columns=columns, label=label, **data)


def _gain(ratio: Estimate) -> str:
    """A ratio as a change, with its interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean - 1:+.4%} (n = {ratio.n})"
    return f"{ratio.mean - 1:+.4%} ({ratio.low - 1:+.2%} to {ratio.high - 1:+.2%})"


def _points(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.4f} pp"
