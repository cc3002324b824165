"""Figures of a plan in words, for tables, notes and sentences; and what to measure next."""
# Ranges of risks come from AWS's bands and are rounded outwards, as narrower ones would look more
# certain than the bands are.

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING

from deepvm.core.cluster.cluster import Cluster, JobEstimate, Recommendation
from deepvm.core.lifetimes import ClusterRisk
from deepvm.core.units import as_budget as as_budget
from deepvm.core.units import format_money, format_seconds, format_usd
from deepvm.planner.request import Objective

if TYPE_CHECKING:
    from deepvm.core.bill import Bill, BillItem
    from deepvm.core.training.speed import Training
    from deepvm.planner.measurement import NextMeasurement
    from deepvm.planner.request import PlanRequest


_MANY_DIGITS = 1e8
_DAY_S = 86_400


def cluster_words(cluster: Cluster) -> str:
    """``17 x g4dn.xlarge spot + c5.xlarge``: the shortest form that can still be rented."""
    spot = cluster.spot_count
    on_demand = cluster.on_demand_count
    text = f"{spot or on_demand} x {cluster.gpu.name}{' spot' if spot else ''}"
    if spot and on_demand:
        text += f" + {on_demand} on demand"
    memory = cluster.memory
    if memory:
        many = f"{memory.count} x " if memory.count > 1 else ""
        text += f" + {many}{memory.instance.name}"
    return text


def dollars(usd: float) -> str:
    """``5.00``, ``1,930``."""
    if usd < 9.995:
        return f"{usd:.2f}"
    return f"{usd:,.0f}"


def gpu_words(cluster: Cluster) -> str:
    """``4 A10G``; the model as people call it."""
    gpu = cluster.gpu.gpu
    if gpu is None:
        return "-"
    return f"{cluster.gpus} {gpu.name.replace(' Server', '')}"


def thousands(value: float) -> str:
    """Three digits, ``2,320``; thousands and millions in full."""
    digits = float(f"{value:.3g}")
    if digits >= 100:
        return f"{digits:,.0f}"
    return f"{digits:g}"


def time_and_bill(outlook: JobEstimate | None, digits: int = 3) -> tuple[str, str]:
    """Expected; the bill is ``$193-202`` at a good and at a bad time for spot VMs."""
    if outlook is None or math.isinf(outlook.total_s):
        return "never", "-"
    ends = dict.fromkeys(map(dollars, outlook.costs_usd or [outlook.cost_usd]))
    return format_seconds(outlook.total_s, digits=digits), f"${'-'.join(ends)}"


def limits_words(request: PlanRequest) -> str:
    """``for up to $3/h``, ``for up to $300 within 7 d``."""
    amounts = []
    if not request.derives_budget:
        amounts.append(f"${plain_usd(request.budget)}/h")
    work = request.work
    if work is not None and work.total_budget is not None:
        amounts.append(f"${plain_usd(work.total_budget)}{' in all' if amounts else ''}")
    words = [f"for up to {' and '.join(amounts)}"] if amounts else []
    if work is not None and work.deadline_s is not None:
        words.append(f"within {format_seconds(work.deadline_s)}")
    return " ".join(words)


def lost_words(r: Recommendation) -> str:
    """The share that preemptions cost at a good and at a bad time."""
    if r.prediction is None or not r.cluster.spot_count:
        return "-"
    lost = (1 - r.prediction.kept.high, 1 - r.prediction.kept.low)
    ends = dict.fromkeys(f"{100 * x:.1f}" if x < 0.0995 else f"{100 * x:.0f}" for x in lost)
    return f"{' to '.join(ends)} %"


def gain_words(gain: float, objective: Objective) -> str:
    """``buys 57% more speed``, ``buys 39 times the speed``, ``lowers the bill by 8%``."""
    share = f"{gain:.0%}" if gain >= 0.01 else "less than 1%"
    if objective is Objective.TOTAL_COST:
        return f"lowers the bill by {share}"
    if objective is Objective.COST_PER_WORK:
        return f"lowers the cost of the work by {share}"
    if objective is Objective.FLOPP:
        return f"buys {share} more operations per dollar"
    if gain >= 2:
        return f"buys {1 + gain:.3g} times the speed"
    return f"buys {share} more speed"


def format_work(throughput: float) -> str:
    """A throughput in the catalog's unit; FLOP/s, which have a dozen digits, in four of them."""
    if throughput < _MANY_DIGITS:
        return f"{throughput:.1f}"
    return f"{throughput:.4g}"


def amount(bill: Bill | BillItem, once: str = " once") -> str:
    """``$0.04/h``, ``$4.50 once``, or both."""
    parts = []
    if bill.usd_per_hour or not bill.usd_once:
        parts.append(rate(bill.usd_per_hour))
    if bill.usd_once:
        parts.append(f"${bill.usd_once:.2f}{once}")
    return " + ".join(parts)


def about(bill: Bill) -> str:
    """``~`` where the rates are of another region."""
    if bill.other_region:
        return "~"
    return ""


def plain_usd(usd: Decimal) -> str:
    """An amount as it was typed, ``3`` or ``0.35``."""
    return f"{usd.normalize():f}"


def exact_usd(usd: Decimal) -> str:
    """``$2.8526/h``, where prices differ by less than a cent."""
    return f"${format_usd(usd)}/h"


def rate(usd: Decimal) -> str:
    """``$2.85/h``."""
    return f"{format_money(usd)}/h"


def risk_of(cluster: Cluster) -> ClusterRisk | None:
    """None without spot VMs, or where AWS has no band for the type."""
    band = cluster.gpu.interruption_band
    if band is None or not cluster.spot_count:
        return None
    return ClusterRisk.of_band(band, cluster.spot_count)


def share_words(risk: ClusterRisk) -> str:
    """``at least 86 %``: the probability that a month takes one VM of the cluster or more."""
    low, high = risk.share
    # Never 100 %: a month may always be lucky.
    return _outwards(min(100 * low, 99.0), None if high is None else 100 * high, " %")


def losses_words(risk: ClusterRisk) -> str:
    """``0.75 to 2.3 a month, or one in 13 to 41 d``."""
    shortest_s, longest_s = risk.between_s
    losses = _outwards(*risk.losses_per_month, " a month")
    return f"{losses}, or one in {_outwards(shortest_s / _DAY_S, longest_s / _DAY_S, ' d')}"


def _outwards(low: float, high: float | None, unit: str) -> str:
    """A range with ends of two digits, rounded so that it only grows."""
    # 5.000000000000001 % is 5 %.
    least = Context(2, ROUND_FLOOR).create_decimal(f"{low:.9g}")
    if high is None or math.isinf(high):
        return f"at least {least:f}{unit}"
    most = Context(2, ROUND_CEILING).create_decimal(f"{high:.9g}")
    if low:
        return f"{least:f} to {most:f}{unit}"
    return f"at most {most:f}{unit}"


def measure_command(found: NextMeasurement, training: Training) -> str:
    """The command for a run."""
    # Imported late: most answers advise no measurement
    from deepvm.catalog.published.workloads import presets
    from deepvm.planner.measurement import REPEATS
    from deepvm.profiling.workload.spec import DTYPES, PRESETS
    from deepvm.reports.pages import sentences

    command = sentences("measure.j2").command
    text: str = command(found, training, presets(), PRESETS, DTYPES, REPEATS)
    return " ".join(text.split())
