"""How long spot VMs live, by the cloud's bands and by a user's history, and what that costs."""

import math
from datetime import datetime, timezone

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.units import Z80, counted, format_seconds, refuse_outside
from deepvm.errors import RequestError
from deepvm.records import dataclass

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


def band_life_s(band: int | None) -> float:
    """Mean lifetime by AWS's band; an unknown one counts as the worst."""
    return mean_life_s(BAND_SHARES[-1 if band is None else band])


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
    """How often a cluster of spot VMs is hit, as ranges; None is an unknown upper end."""

    vms: int
    vm_share: tuple[float, float | None]  # of single VMs that a month takes
    share: tuple[float, float | None]  # probability that it hits the cluster
    losses_per_month: tuple[float, float | None]
    between_s: tuple[float, float]  # mean time between losses

    @classmethod
    def of_band(cls, band: int, vms: int) -> "ClusterRisk":
        """By AWS's band, 0 to 4; raises a RequestError for another one, and below one VM."""
        refuse_outside("vms", vms, 1, what="a number of VMs")
        if band not in range(len(BANDS)):
            raise RequestError("interruption_band", band, f"0 to {len(BANDS) - 1}")
        low, high = BANDS[band]
        share = (cluster_share(low, vms), None if high is None else cluster_share(high, vms))
        longest = mean_life_s(low) / vms
        shortest = 0.0 if high is None else mean_life_s(high) / vms
        losses = (MONTH_S / longest, MONTH_S / shortest if shortest else None)
        return cls(vms, (low, high), share, losses, (shortest, longest))


SHORT_LIFE_S = 4 * 3600.0  # Of a spot VM with GPUs at a busy time, by public traces
# Most that the usual speed of a plan counts above its speed at such a time
MAX_OVER_BAD_TIME = 1.1
FEWEST = 3


@dataclass(frozen=True)
class KnownLifetime:
    """Mean life of a spot VM, seconds, with its 80 % interval; ``newest_s``: seen, Unix time."""

    low_s: float
    mean_s: float
    high_s: float
    preemptions: int
    machines: int
    newest_s: float


def known_life(
    lived_s: float, preemptions: int, machines: int, newest_s: float
) -> KnownLifetime | None:
    """From the total time lived and the preemptions in it; None for fewer than :data:`FEWEST`."""
    if preemptions < FEWEST:
        return None
    # A Gamma prior that counts as one preemption after SHORT_LIFE_S: careful while little is seen
    seen_s = SHORT_LIFE_S + lived_s
    shape = 1.0 + preemptions
    low_s = seen_s / gamma_quantile(shape, Z80)
    high_s = seen_s / gamma_quantile(shape, -Z80)
    return KnownLifetime(low_s, seen_s / shape, high_s, preemptions, machines, newest_s)


def gamma_quantile(shape: float, z: float) -> float:
    """Quantile of a gamma distribution with scale 1, by Wilson and Hilferty (1931)."""
    return shape * max(1.0 - 1.0 / (9.0 * shape) + z / (3.0 * math.sqrt(shape)), 1e-3) ** 3


def share_interval(count: int, of: int) -> tuple[float, float]:
    """80 % interval of a share, after Wilson (1927); all from 0 to 1 where nothing was seen."""
    if not of:
        return 0.0, 1.0
    share = count / of
    z2 = Z80**2 / of
    middle = share + z2 / 2
    half = Z80 * math.sqrt((share * (1 - share) + z2 / 4) / of)
    return max((middle - half) / (1 + z2), 0.0), min((middle + half) / (1 + z2), 1.0)


def history_words(name: str, known: KnownLifetime) -> str:
    """A sentence about how long VMs of a type lived, with the interval and the newest date."""
    low, mean, high = (
        format_seconds(s, digits=3) for s in (known.low_s, known.mean_s, known.high_s)
    )
    seen = counted(known.preemptions, "preemption")
    newest = datetime.fromtimestamp(known.newest_s, timezone.utc).date()
    return (
        f"a spot {name} lives {mean} on average (80 %: {low} to {high}; {seen} of {known.machines}"
        f" until {newest})"
    )


# Ranges of seconds that a new VM takes until it runs, then until it trains (Spotify thesis, 6.2.2)
ALLOCATION_S = (62.0, 218.0)
PREPARATION_S = (143.2, 183.2)
START_S = sum(ALLOCATION_S) / 2 + sum(PREPARATION_S) / 2

# Rates at which nothing happens and at which nothing is left; beyond, exp() overflows
_NEVER, _ALWAYS = 1e-15, 1e6
_LEAST_STALL_S = 0.01


def kept_share(
    rate: FloatArray, stall_s: FloatArray, durable_s: FloatArray, restart_s: FloatArray
) -> FloatArray:
    """Share of the time, restarts and lost work included, that is training kept; 0 to 1.

    ``rate``: preemptions a second of the whole cluster. D, d and R of ``makespan``, seconds.
    """
    rate, stall_s, durable_s, restart_s = np.broadcast_arrays(rate, stall_s, durable_s, restart_s)
    rate = np.clip(rate, _NEVER, _ALWAYS)
    stall = np.maximum(stall_s, _LEAST_STALL_S)
    tau = stall + np.maximum(np.sqrt(2 * stall / rate), durable_s)
    with np.errstate(over="ignore"):
        kept = (
            rate * (tau - stall) / (np.exp(rate * (restart_s + durable_s)) * np.expm1(rate * tau))
        )
    return np.asarray(np.clip(kept, 0.0, 1.0))
