"""What a cluster costs besides its VMs: a line for an answer, all items with their sources, and the document."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from deepvm.core.bill.bill import Bill, BillItem
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.units import format_usd
from deepvm.planner.request import PlanRequest


def bill_in_short(r: Recommendation, request: PlanRequest) -> Iterator[str]:
    """``besides VMs: 0.1095 $/h + 4.50 $ once (disk, addresses, egress), 3.12 $/h in all; not counted: bucket``.

    With ``!`` in front where that is more than what was to be paid, of which VMs alone are kept within.
    """
    bill, budget = r.bill, request.budget
    most = None if request.work is None else request.work.total_budget
    if bill is None:
        return
    counted = ", ".join(item.name for item in bill.items)
    line = f"besides VMs: {_both(bill)} ({counted}), {bill.total_usd_per_hour:.2f} $/h in all" if counted else ""
    above = bool(counted) and bill.total_usd_per_hour > budget
    if above:
        line = f"besides VMs: {_both(bill)} ({counted}), {format_usd(bill.total_usd_per_hour)} $/h in all"
        line += f", more than {budget.normalize():f}"
    if r.whole_usd is not None and counted:
        line += f", {r.whole_usd:.2f} $ for the job" if r.whole_usd < 99.995 else f", {r.whole_usd:.0f} $ for the job"
        if most is not None and r.whole_usd > most:
            line, above = f"{line}, more than {most.normalize():f} $", True
    left = ", ".join(part.name for part in bill.not_counted if not part.included)
    text = "; ".join(part for part in (line, f"not counted: {left}" if left else "") if part)
    if text:
        yield f"! {text}" if above else text


def bill_lines(r: Recommendation, more: str = "") -> Iterator[str]:
    """Every item with how it is counted and who says so, the totals, and what is left out and why; ``more``: this too.

    Without rates, only that disks and traffic are left out.
    """
    bill = r.bill
    if bill is None:
        yield f"Not counted: disks, data transfer, and {more}." if more else "Not counted: disks and data transfer."
        return
    for item in bill.items:
        source = f" ({item.source})" if item.source else ""
        yield f"Besides VMs, {item.name}: {amount(item)}, {item.what}{source}."
    if bill.items:
        job = f"; {r.whole_usd:.2f} $ for the whole job" if r.whole_usd is not None else ""
        yield f"Besides VMs in all: {_both(bill)}; with the VMs {format_usd(bill.total_usd_per_hour)} $/h{job}."
    if bill.borrowed and bill.items:
        yield f"Doubt: these rates are those of {bill.borrowed}; other regions cost up to twice as much."
    left = [*(f"{part.name} ({part.why})" for part in bill.not_counted), *([more] if more else [])]
    if left:
        yield f"Not counted: {'; '.join(left)}."


def amount(item: BillItem) -> str:
    """``0.0438 $/h``, ``4.50 $``, or both."""
    return _sum(item.usd_per_hour, item.usd_once)


def _both(bill: Bill) -> str:
    return _sum(bill.usd_per_hour, bill.usd_once)


def _sum(per_hour: Decimal, once: Decimal) -> str:
    parts = [f"{per_hour:.4f} $/h"] if per_hour or not once else []
    return " + ".join([*parts, *([f"{once:.2f} $ once"] if once else [])])


def bill_document(r: Recommendation) -> dict[str, Any]:
    """The key ``bill`` of a configuration."""
    bill = r.bill
    assert bill is not None
    return {
        "items": [
            {
                "name": item.name,
                "usd_per_hour": float(item.usd_per_hour),
                "usd_once": float(item.usd_once),
                "counted": item.what,
                "source": item.source and item.source.url,
                "as_of": item.source and item.source.date,
            }
            for item in bill.items
        ],
        "not_counted": [{"name": part.name, "reason": part.why} for part in bill.not_counted],
        "usd_per_hour": float(bill.usd_per_hour),
        "usd_once": float(bill.usd_once),
        "total_usd_per_hour": float(bill.total_usd_per_hour),
        "total_usd": r.whole_usd,
        "rates_of_region": bill.borrowed or None,
    }
