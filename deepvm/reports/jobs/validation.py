"""What the simulator says of a job beside what happened, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepvm.jobs.history.validation import rows_of
from deepvm.reports.tables import Column, print_lines, print_table


def print_validation(found: Mapping[str, Any]) -> None:
    """Forecast and fact of each figure, and by how much the forecast is off."""
    if found["forecast"] is None:
        print_lines(["", f"deepvm simulate has no forecast of these lives: {found['why']}"])
        return
    print_lines(["", "deepvm simulate, given the lives and latencies that it had:"])
    columns = [Column(""), *(Column(name, "right") for name in ("forecast", "fact", "off by", ""))]
    total_s = found["fact"]["total_s"]
    body = []
    for name, forecast, fact, unit in rows_of(found):
        digits = {"s": 2, "$": 6}.get(unit, 0)
        off = f"{100 * (forecast / fact - 1):+.1f} %" if fact else "" if forecast == fact else "-"
        # What is next to nothing is off by next to nothing, whatever its ratio.
        if unit == "s" and total_s and abs(forecast - fact) < 0.005 * total_s:
            off = f"{forecast - fact:+.2f} s"
        body.append([name, f"{forecast:.{digits}f}", f"{fact:.{digits}f}", off, unit])
    print_table(columns, body)
