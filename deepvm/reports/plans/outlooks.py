"""Expected time and bill of a job, and how often its cluster is interrupted: in tables and words.

Ranges of the risk come from AWS's bands and are rounded outwards, so that no more is said than is
known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from deepvm.core.cluster.cluster import Cluster, JobEstimate
from deepvm.core.preemption.interruption_bands import ClusterRisk
from deepvm.core.units import format_seconds
from deepvm.reports.tables import Column

_DAY_S = 86_400
_HAIR = 1e-9
"""Tolerance: 5.000000000000001 % is 5 %."""


def simulated(outlooks: Iterable[JobEstimate | None]) -> bool:
    """Whether any of them is the mean of simulated runs."""
    return any(o is not None and o.spread is not None for o in outlooks)


def expected_cells(outlook: JobEstimate | None, *, spread: bool) -> dict[Column, str]:
    """Columns for time and bill, dashes without an outlook.

    With ``spread`` also their 95th percentiles.
    """
    own = None if outlook is None or math.isinf(outlook.total_s) else outlook.spread
    time, cost = ("-", "-") if outlook is None else _time_and_bill(outlook)
    late, dear = ("-", "-") if own is None else (format_seconds(own.p95_s), f"{own.p95_usd:.2f} $")
    return {
        Column("expected time", "right"): time,
        **({Column("time 95 %", "right", drop=4): late} if spread else {}),
        Column("expected cost", "right", drop=2): cost,
        **({Column("cost 95 %", "right", drop=4): dear} if spread else {}),
    }


def in_words(outlook: JobEstimate) -> str:
    """``expected 29.1 h (95 %: 30.1 h) and 82.92 $ (95 %: 85.10 $)``.

    The 95 % of simulated runs.
    """
    time, cost = _time_and_bill(outlook)
    own = outlook.spread
    if own is not None and math.isfinite(outlook.total_s):
        time, cost = (
            f"{time} (95 %: {format_seconds(own.p95_s)})",
            f"{cost} (95 %: {own.p95_usd:.2f} $)",
        )
    return f"expected {time} and {cost}"


def _time_and_bill(outlook: JobEstimate) -> tuple[str, str]:
    if math.isinf(outlook.total_s):
        return "never ends", "-"
    return format_seconds(outlook.total_s), f"{outlook.cost_usd:.2f} $"


def risk_of(cluster: Cluster) -> ClusterRisk | None:
    """None without spot VMs, or where AWS has no band for the type."""
    band = cluster.gpu.interruption_band
    return (
        None
        if band is None or not cluster.spot_count
        else ClusterRisk.of_band(band, cluster.spot_count)
    )


def share_words(risk: ClusterRisk) -> str:
    """``at least 86 %``: the probability that a month takes one VM of the cluster or more."""
    low, high = risk.share
    most = None if high is None else f"{math.ceil(100 * high - _HAIR)}"
    # Never 100 %: a month may always be lucky.
    return _between(f"{min(math.floor(100 * low + _HAIR), 99)}" if low else "", most, " %")


def cluster_sentence(risk: ClusterRisk) -> str:
    """What AWS's band means for the whole cluster, and on what assumption; empty for one VM."""
    if risk.vms == 1:
        return ""
    least, most = risk.losses_per_month
    losses = _between(
        _digits(least) if least else "", None if most is None else _digits(most, up=True), ""
    )
    shortest, longest = (s / _DAY_S for s in risk.between_s)
    if math.isinf(longest):
        every = f"{_digits(shortest)} d or more rarely"
    elif not shortest:
        every = f"{_digits(longest, up=True)} d or sooner"
    else:
        every = f"{_digits(shortest)} to {_digits(longest, up=True)} d"
    return (
        f"Risk of the cluster: if the {risk.vms} are preempted independently, {share_words(risk)}"
        f" of months see a preemption: {losses} a month, one every {every}."
    )


def _between(low: str, high: str | None, unit: str) -> str:
    if high is None:
        return f"at least {low}{unit}"
    return f"{low} to {high}{unit}" if low else f"at most {high}{unit}"


def _digits(value: float, *, up: bool = False) -> str:
    """Two significant digits, rounded down or up; ``2.0``, ``16``, ``150``."""
    last = math.floor(math.log10(value)) - 1
    unit = 10.0**last
    whole = math.ceil(value / unit - _HAIR) if up else math.floor(value / unit + _HAIR)
    return f"{whole * unit:.{max(0, -last)}f}"
