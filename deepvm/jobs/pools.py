"""What the history says of pools: how long their machines lived, how often no notice came, how fast they came."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from deepvm.core.interval import Z80
from deepvm.jobs.world import LOST, PREEMPTED


@dataclass(frozen=True)
class PoolHistory:
    """The machines of one type in one zone and market.

    Attributes:
        machines: how many were launched. preemptions: how many were taken back or lost; the lives of the others are
            censored: they ended for another reason, or have not ended.
        lived_s: all lives together. missed: preemptions without a notice. allocation_s: mean time to a launch.
    """

    instance_type: str
    zone: str
    market: str
    machines: int
    preemptions: int
    missed: int
    lived_s: float
    allocation_s: float

    @property
    def mttp_s(self) -> float | None:
        """Mean time to preemption: of an exponential life, the best estimate is all lives over preemptions."""
        return self.lived_s / self.preemptions if self.preemptions else None

    @property
    def mttp_interval_s(self) -> tuple[float, float | None]:
        """80 % interval of the mean time to preemption; the end is open before the first.

        Preemptions follow a Poisson distribution: ends by its chi-square quantiles (Garwood 1936), after Wilson and
        Hilferty (1931).
        """
        low = self.lived_s / _quantile(self.preemptions + 1, Z80)
        return low, self.lived_s / _quantile(self.preemptions, -Z80) if self.preemptions else None


def _quantile(shape: float, z: float) -> float:
    """Of a gamma distribution with scale 1, at a standard normal quantile."""
    return shape * max(1.0 - 1.0 / (9.0 * shape) + z / (3.0 * math.sqrt(shape)), 1e-3) ** 3


def pools_of(machines: Iterable[Mapping[str, Any]], now_s: float) -> list[PoolHistory]:
    """The pools of these machines, as the history has them, by type, zone and market."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for m in machines:
        if m["launched_s"] is not None:
            groups.setdefault((m["instance_type"], m["zone"], m["market"]), []).append(m)
    found = []
    for key, rows in sorted(groups.items()):
        taken = [m for m in rows if m["end_reason"] in (PREEMPTED, LOST)]
        found.append(
            PoolHistory(
                *key,
                machines=len(rows),
                preemptions=len(taken),
                missed=sum(m["noticed_s"] is None for m in taken),
                lived_s=sum(_lived_s(m, now_s) for m in rows),
                allocation_s=fmean(max(m["launched_s"] - m["requested_s"], 0.0) for m in rows),
            )
        )
    return found


def _lived_s(machine: Mapping[str, Any], now_s: float) -> float:
    ended_s = now_s if machine["ended_s"] is None else machine["ended_s"]
    return max(float(ended_s - machine["launched_s"]), 0.0)
