"""Performance of instances and clusters (DeepVM III-B2)."""

from __future__ import annotations

SECONDS_PER_HOUR = 3600


def flopp(eflops: float, usd_per_hour: float) -> float:
    """FLOPP, operations per dollar (DeepVM eq. 1): eFLOPS x 3600 / price.

    Args:
        eflops: measured operations per second, in the catalog's eFLOPS unit.
        usd_per_hour: price in $/h, above 0.
    """
    return eflops * SECONDS_PER_HOUR / usd_per_hour
