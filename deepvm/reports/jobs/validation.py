"""What the simulator says of a job beside what happened: before it began, and given the lives that it had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepvm.core.units import counted, format_seconds
from deepvm.jobs.history.forecast import rows_of as rows_of_forecast
from deepvm.jobs.history.validation import rows_of
from deepvm.reports.tables import Column, print_lines, print_table


def forecast_words(document: Mapping[str, Any]) -> str:
    """From what a job's forecast was made."""
    found = document["forecast"]
    lives = "no preemptions"
    if found["mttp_s"] is not None:
        lives = f"a mean lifetime of {format_seconds(found['mttp_s'], digits=2)}"
    start = f"starts of {format_seconds(found['start_s'], digits=2)}"
    steps = counted(found["steps"], "step")
    if not found.get("steps_given", True):
        steps = f"the {steps} completed"
    said = f"forecast for {steps}, with {lives} and {start} on average"
    left_out_s = document["total_s"] - found.get("fact", document)["total_s"]
    return (
        f"{said}; {format_seconds(left_out_s, digits=2)} without a controller are left out"
        if left_out_s
        else said
    )


def unforeseen_words(document: Mapping[str, Any]) -> str:
    """Why there is no forecast."""
    return f"no forecast: {document['unforeseen']}"


def forecast_cells(document: Mapping[str, Any]) -> list[list[str]]:
    """Rows of what was expected, its range, what came out, and how far that is off."""
    rows, far = [], document["forecast"]["off"] or {}
    for name, mean, low, high, fact, unit in rows_of_forecast(document):
        digits = {"s": 1, "$": 4, "": 1}[unit]
        share = far.get({"s": "total_s", "$": "cost_usd"}.get(unit))
        off = "" if share is None else f"{100 * share:+.1f} %"
        end = f"{fact}" if unit == "" else f"{fact:.{digits}f}"
        rows.append(
            [name, f"{mean:.{digits}f}", f"{low:.{digits}f} to {high:.{digits}f}", end, off, unit]
        )
    return rows


FORECAST_COLUMNS = ("forecast", "9 of 10", "fact", "off by", "")


def print_forecast(document: Mapping[str, Any]) -> None:
    """What was to be expected of a job before it began, and what came out.

    Or why nobody knows the former.
    """
    if not document.get("forecast"):
        if document.get("unforeseen"):
            print_lines(["", unforeseen_words(document)])
        return
    print_lines(["", f"{forecast_words(document)}:"])
    print_table(
        [Column(""), *(Column(name, "right") for name in FORECAST_COLUMNS)],
        forecast_cells(document),
    )


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
