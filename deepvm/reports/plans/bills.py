"""What a cluster costs besides its VMs: a line for an answer, all items with their sources."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.units import format_usd
from deepvm.planner.request import PlanRequest

if TYPE_CHECKING:
    from deepvm.core.bill.bill import Bill, BillItem


def bill_in_short(r: Recommendation, request: PlanRequest) -> Iterator[str]:
    """``besides VMs: ~0.1095 $/h + 4.50 $ (disk, addresses, egress), 3.12 $/h in all.

    Without bucket``.

    With ``~`` where a rate is not the cloud's own word, or another region's; with ``!`` in front
    where it is more than what was to be paid, which holds for VMs alone unless users say something
    of the rest.
    """
    bill, budget = r.bill, request.budget
    most = None if request.work is None else request.work.total_budget
    if bill is None:
        return
    left = ", ".join(part.name for part in bill.not_counted if not part.included)
    if not bill.items:
        if left:
            yield f"not counted besides VMs: {left}"
        return
    counted = f"{_about(bill)}{_both(bill, '')} ({', '.join(item.name for item in bill.items)})"
    # In few words: the answer is one screen of 100 columns.
    dear = bill.total_usd_per_hour > budget
    in_all = [
        f"{format_usd(bill.total_usd_per_hour) if dear else f'{bill.total_usd_per_hour:.2f}'} $/h"
    ]
    limits = [f"{budget.normalize():f} $/h"] if dear else []
    if r.whole_usd is not None:
        in_all.append(f"{r.whole_usd:.2f} $" if r.whole_usd < 99.995 else f"{r.whole_usd:.0f} $")
        limits += [f"{most.normalize():f} $"] if most is not None and r.whole_usd > most else []
    line = f"besides VMs: {counted}, {' and '.join(in_all)} in all"
    line = f"! {line}, more than {' and '.join(limits)}" if limits else line
    yield line + (f"; without {left}" if left else "")


def bill_cell(bill: Bill | None) -> str:
    """The same in a table's cell: ``~0.0050 $/h + 4.50 $ + ?``, with ``?`` for what has no known rate."""
    if bill is None:
        return "?"
    unknown = any(part.unknown for part in bill.not_counted)
    known = f"{_about(bill)}{_both(bill, '')}" if bill.items else ""
    return " + ".join([*([known] if known else []), *(["?"] if unknown else [])]) or "-"


def _about(bill: Bill) -> str:
    return "~" if bill.doubtful or bill.borrowed else ""


def bill_lines(r: Recommendation, more: str = "") -> Iterator[str]:
    """Every item with how it is counted and who says so, the totals, and what is left out and why.

    ``more``: this too.

    Without rates, only that disks and traffic are left out.
    """
    bill = r.bill
    if bill is None:
        yield (
            f"Not counted: disks, data transfer, and {more}."
            if more
            else "Not counted: disks and data transfer."
        )
        return
    for item in bill.items:
        source = f" ({item.source})" if item.source else ""
        yield f"Besides VMs, {item.name}: {amount(item)}, {item.what}{source}."
    if bill.items:
        job = f"; {r.whole_usd:.2f} $ for the whole job" if r.whole_usd is not None else ""
        yield (
            f"Besides VMs in all: {_both(bill)}; with the VMs {format_usd(bill.total_usd_per_hour)}"
            f" $/h{job}."
        )
    if bill.borrowed and bill.items:
        yield f"Doubt: these rates are those of {bill.borrowed}; other regions may cost more."
    if bill.doubtful:
        yield (
            f"Doubt: the rates of {', '.join(bill.doubtful)} were read elsewhere than at the cloud"
            " itself."
        )
    left = [*(f"{part.name} ({part.why})" for part in bill.not_counted), *([more] if more else [])]
    if left:
        yield f"Not counted: {'; '.join(left)}."


def amount(item: BillItem) -> str:
    """``0.0438 $/h``, ``4.50 $``, or both."""
    return _sum(item.usd_per_hour, item.usd_once)


def _both(bill: Bill, once: str = " once") -> str:
    return _sum(bill.usd_per_hour, bill.usd_once, once)


def _sum(per_hour: Decimal, once: Decimal, word: str = " once") -> str:
    parts = [f"{per_hour:.4f} $/h"] if per_hour or not once else []
    return " + ".join([*parts, *([f"{once:.2f} ${word}"] if once else [])])
