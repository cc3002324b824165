"""How long spot VMs live, by what a user has seen of them: with a prior, and with doubt.

Preemptions come at a rate of which little is known beforehand: its Gamma prior counts as one life
of four hours (:data:`SHORT_LIFE_S`). With n preemptions in all the time that machines have lived,
those censored included, the rate is Gamma(1 + n, 4 h + time): the mean life is ``(4 h + time) / (1
+ n)``, the interval is that of the rate. A history of fewer than :data:`FEWEST` preemptions says
too little: a band of the cloud's is asked instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timezone

from deepvm.core.interval import Z80
from deepvm.core.units import counted, format_seconds

SHORT_LIFE_S = 4 * 3600.0
"""Of a spot VM with GPUs at a busy time, by public traces."""
FEWEST = 3


@dataclass(frozen=True)
class KnownLifetime:
    """Mean life of a spot VM of a type, seconds, with the ends of its 80 % interval.

    ``preemptions`` of ``machines``, the newest seen at ``newest_s``, seconds since the epoch.
    """

    low_s: float
    mean_s: float
    high_s: float
    preemptions: int
    machines: int
    newest_s: float


def known_life(
    lived_s: float, preemptions: int, machines: int, newest_s: float
) -> KnownLifetime | None:
    """By all lives together, None if the history is too thin; see the module."""
    if preemptions < FEWEST:
        return None
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
    """How long VMs of a type lived by the user's history: with its doubt and its age."""
    low, mean, high = (
        format_seconds(s, digits=3) for s in (known.low_s, known.mean_s, known.high_s)
    )
    seen = counted(known.preemptions, "preemption")
    newest = datetime.fromtimestamp(known.newest_s, timezone.utc).date()
    return (
        f"a spot {name} lives {mean} on average (80 %: {low} to {high}; {seen} of {known.machines}"
        f" until {newest})"
    )
