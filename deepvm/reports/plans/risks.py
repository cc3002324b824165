"""How often a cluster is interrupted, by AWS's bands: in words and for programs.

Ranges are rounded outwards, so that no more is said than is known.
"""

from __future__ import annotations

import math
from typing import Any

from deepvm.core.cluster.cluster import Cluster
from deepvm.core.preemption.interruption_bands import ClusterRisk

_DAY_S = 86_400
_HAIR = 1e-9
"""Tolerance: 5.000000000000001 % is 5 %."""


def risk_of(cluster: Cluster) -> ClusterRisk | None:
    """None without spot VMs, or where AWS has no band for the type."""
    band = cluster.gpu.interruption_band
    return None if band is None or not cluster.spot_count else ClusterRisk.of_band(band, cluster.spot_count)


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
    losses = _between(_digits(least) if least else "", None if most is None else _digits(most, up=True), "")
    shortest, longest = (s / _DAY_S for s in risk.between_s)
    if math.isinf(longest):
        every = f"{_digits(shortest)} d or more rarely"
    elif not shortest:
        every = f"{_digits(longest, up=True)} d or sooner"
    else:
        every = f"{_digits(shortest)} to {_digits(longest, up=True)} d"
    return (
        f"Risk of the cluster: if each of the {risk.vms} goes independently of the others, {share_words(risk)} of the "
        f"months take one or more: {losses} losses a month, one every {every}."
    )


def document(risk: ClusterRisk) -> dict[str, Any]:
    """For programs; null where a range has no end."""
    shortest, longest = risk.between_s
    ranges = {
        "vm_monthly_share": risk.vm_share,
        "cluster_monthly_share": risk.share,
        "losses_per_month": risk.losses_per_month,
        "mean_time_between_losses_s": (shortest or None, longest if math.isfinite(longest) else None),
    }
    found = {name: {"min": low, "max": high} for name, (low, high) in ranges.items()}
    return {"vms": risk.vms, "independent": True, **found}


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
