"""How often spot VMs are preempted, by AWS's Spot Advisor: one VM, and a cluster of n of them.

AWS gives a band for the share r of a type's VMs that was preempted in the last month. At a constant
rate their mean lifetime is ``-month / ln(1 - r)``. If n VMs are preempted independently and
replaced at once, ``1 - (1 - r)^n`` of the months bring a loss, and ``-n ln(1 - r)`` losses are
expected in a month. In fact VMs of one type and zone often go together: that makes for fewer
interruptions, which take more VMs each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deepvm.errors import RequestError

MONTH_S = 365.25 / 12 * 86400
# Share of the VMs of a type that is preempted in a month, from and to, by AWS's band; and as one
# figure.
BANDS: tuple[tuple[float, float | None], ...] = (
    (0.0, 0.05),
    (0.05, 0.1),
    (0.1, 0.15),
    (0.15, 0.2),
    (0.2, None),
)
BAND_SHARES = (0.025, 0.075, 0.125, 0.175, 0.25)  # the open band's is a guess


def mean_life_s(share: float) -> float:
    """Mean lifetime, s, if a share has ended after a month: -month / ln(1 - share)."""
    if share:
        return -MONTH_S / math.log1p(-share)
    return math.inf


def share_over(mean_life_s: float) -> float:
    """Share of lifetimes that are over after a month."""
    return -math.expm1(-MONTH_S / mean_life_s)


def cluster_share(share: float, vms: int) -> float:
    """Probability that a month hits at least one of n independent VMs: 1 - (1 - share)^n."""
    if share < 1:
        return -math.expm1(vms * math.log1p(-share))
    return 1.0


def hits(share: float, vms: int) -> str:
    """A monthly share of single VMs in words for several, as a sentence's end; empty for one."""
    if vms == 1:
        return ""
    return (
        f", which takes one or more of {vms} in {100 * cluster_share(share, vms):.0f} % of the"
        " months"
    )


@dataclass(frozen=True)
class ClusterRisk:
    """How often a cluster of spot VMs is hit, as ranges; None is an unknown upper end.

    ``vm_share``: share of single VMs that is preempted in a month. ``share``: probability that it
    hits the cluster.
    ``between_s``: mean time between losses, seconds, shortest first, 0 to infinite.
    """

    vms: int
    vm_share: tuple[float, float | None]
    share: tuple[float, float | None]
    losses_per_month: tuple[float, float | None]
    between_s: tuple[float, float]

    @classmethod
    def of_band(cls, band: int, vms: int) -> ClusterRisk:
        """By AWS's band, 0 to 4; raises a RequestError for another one, and below one VM."""
        if vms < 1:
            raise RequestError("vms", vms, "a number of VMs from 1")
        if band not in range(len(BANDS)):
            raise RequestError("interruption_band", band, f"0 to {len(BANDS) - 1}")
        low, high = BANDS[band]
        share = (cluster_share(low, vms), None if high is None else cluster_share(high, vms))
        longest = mean_life_s(low) / vms
        shortest = 0.0 if high is None else mean_life_s(high) / vms
        losses = (MONTH_S / longest, MONTH_S / shortest if shortest else None)
        return cls(vms, (low, high), share, losses, (shortest, longest))
