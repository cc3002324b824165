"""Expected time and bill of a job: as columns of a table, in words, and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from deepvm.core.cluster.cluster import Outlook
from deepvm.core.units import format_seconds
from deepvm.reports.tables import Column


def simulated(outlooks: Iterable[Outlook | None]) -> bool:
    """Whether any of them is the mean of simulated runs."""
    return any(o is not None and o.spread is not None for o in outlooks)


def expected_cells(outlook: Outlook | None, *, spread: bool) -> dict[Column, str]:
    """Columns for time and bill, dashes without an outlook; with ``spread`` also their 95th percentiles."""
    own = None if outlook is None or math.isinf(outlook.total_s) else outlook.spread
    time, cost = ("-", "-") if outlook is None else _time_and_bill(outlook)
    late, dear = ("-", "-") if own is None else (format_seconds(own.p95_s), f"{own.p95_usd:.2f} $")
    return {
        Column("expected time", "right"): time,
        **({Column("time 95 %", "right", drop=4): late} if spread else {}),
        Column("expected cost", "right", drop=2): cost,
        **({Column("cost 95 %", "right", drop=4): dear} if spread else {}),
    }


def in_words(outlook: Outlook) -> str:
    """``expected 29.1 h (95 %: 30.1 h) and 82.92 $ (95 %: 85.10 $)``; the 95 % of simulated runs."""
    time, cost = _time_and_bill(outlook)
    own = outlook.spread
    if own is not None and math.isfinite(outlook.total_s):
        time, cost = f"{time} (95 %: {format_seconds(own.p95_s)})", f"{cost} (95 %: {own.p95_usd:.2f} $)"
    return f"expected {time} and {cost}"


def expected_document(outlook: Outlook | None) -> dict[str, Any]:
    """Expected time and bill of the job, null where it never ends; empty without an outlook."""
    if outlook is None:
        return {}
    ends, spread = math.isfinite(outlook.total_s), outlook.spread
    found: dict[str, Any] = {
        "makespan_s": outlook.total_s if ends else None,
        "total_cost_usd": outlook.cost_usd if ends else None,
        "preemptions": outlook.preemptions if ends else None,
        "by": "closed form" if spread is None else "simulation",
        "closed_form_holds": outlook.sound,
    }
    if spread is not None:
        found |= {
            "runs": spread.runs,
            "makespan_p5_s": spread.p5_s,
            "makespan_p50_s": spread.p50_s,
            "makespan_p95_s": spread.p95_s,
            "total_cost_p5_usd": spread.p5_usd,
            "total_cost_p50_usd": spread.p50_usd,
            "total_cost_p95_usd": spread.p95_usd,
            "late_share": spread.late,
        }
    return found


def _time_and_bill(outlook: Outlook) -> tuple[str, str]:
    if math.isinf(outlook.total_s):
        return "never ends", "-"
    return format_seconds(outlook.total_s), f"{outlook.cost_usd:.2f} $"
