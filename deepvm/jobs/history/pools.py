"""Statistics of pools: lifetimes, missing notices, time to launch.

It takes plain rows, and the time. Machines that were preempted on purpose, on clouds that
can, say nothing of the market: they are pools of their own for people, and left out of what is
planned with.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from deepvm.core.json_types import JsonObject
from deepvm.core.lifetimes import (
    BAND_SHARES,
    SHORT_LIFE_S,
    KnownLifetime,
    gamma_quantile,
    known_life,
    mean_life_s,
    share_interval,
)
from deepvm.core.preemption.gang_survival import Lifetime, OwnPool
from deepvm.core.preemption.preemption_estimators import Lifetimes, Notices
from deepvm.core.units import Z80
from deepvm.jobs.clouds.registry import CLOUDS, find_cloud
from deepvm.jobs.decisions.markets import is_on_demand
from deepvm.jobs.decisions.world import LOST, PREEMPTED, REFUSED, JobState, Pool, Role

TOGETHER_S = 600.0
SCARCE_S = 3600.0
"""A pool's next machine within this time of a refusal or preemption starts a spell."""
_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class PoolHistory:
    """The machines of one type in one zone and market.

    Attributes:
        machines: how many were launched. preemptions: how many were preempted or lost; lifetimes of
            the others are censored: they ended for another reason, or have not ended.
        missed: preemptions without a notice. rebalances: machines that the cloud had recommended to
            replace.
        leads_s: mean time from a notice to its preemption, None without any.
        lived_s: all lives together. allocation_s: mean time to a launch; allocations_s: its 10, 50
            and 90 % quantiles.
        newest_s: when the newest of them ended, or was still alive, seconds since the epoch.
    """

    instance_type: str
    zone: str
    market: str
    machines: int
    preemptions: int
    missed: int
    lived_s: float
    allocation_s: float
    allocations_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    leads_s: float | None = None
    newest_s: float = 0.0
    rebalances: int = 0

    @property
    def mttp_s(self) -> float | None:
        """Mean time to preemption, for exponential lifetimes: total lifetime over preemptions."""
        if self.preemptions:
            return self.lived_s / self.preemptions
        return None

    @property
    def mttp_interval_s(self) -> tuple[float, float | None]:
        """80 % interval of the mean time to preemption; the end is open before the first.

        Preemptions follow a Poisson distribution: ends by its chi-square quantiles (Garwood 1936).
        """
        low = self.lived_s / gamma_quantile(self.preemptions + 1, Z80)
        return low, (
            self.lived_s / gamma_quantile(self.preemptions, -Z80) if self.preemptions else None
        )

    @property
    def missed_interval(self) -> tuple[float, float]:
        """80 % interval of the share of preemptions without a notice."""
        return share_interval(self.missed, self.preemptions)


def pools_of(machines: Iterable[JsonObject], now_s: float) -> list[PoolHistory]:
    """The pools of these machines, as the history has them, by type, zone and market."""
    groups: dict[tuple[str, str, str], list[JsonObject]] = {}
    for m in machines:
        if m["launched_s"] is not None:
            groups.setdefault((m["instance_type"], m["zone"], m["market"]), []).append(m)
    return [_pool_of(key, rows, now_s) for key, rows in sorted(groups.items())]


def _pool_of(key: tuple[str, str, str], rows: list[JsonObject], now_s: float) -> PoolHistory:
    taken = [m for m in rows if is_taken(m)]
    waits = sorted(max(m["launched_s"] - m["requested_s"], 0.0) for m in rows)
    leads_s = [
        m["ended_s"] - m["noticed_s"]
        for m in taken
        if m["noticed_s"] is not None and m["ended_s"] is not None
    ]
    return PoolHistory(
        *key,
        machines=len(rows),
        preemptions=len(taken),
        missed=sum(m["noticed_s"] is None for m in taken),
        lived_s=sum(lived_s(m, now_s) for m in rows),
        allocation_s=fmean(waits),
        allocations_s=tuple(waits[min(int(q * len(waits)), len(waits) - 1)] for q in _QUANTILES),
        leads_s=fmean(leads_s) if leads_s else None,
        newest_s=max(now_s if m["ended_s"] is None else m["ended_s"] for m in rows),
        rebalances=sum(m.get("rebalanced_s") is not None for m in rows),
    )


def is_taken(machine: JsonObject) -> bool:
    """Whether its end was a preemption; else its life is censored."""
    return machine["end_reason"] in (PREEMPTED, LOST)


def lived_s(machine: JsonObject, now_s: float) -> float:
    """From its launch to its end, or until now, seconds."""
    if machine["ended_s"] is None:
        ended_s = now_s
    else:
        ended_s = machine["ended_s"]
    return max(float(ended_s - machine["launched_s"]), 0.0)


def lives_in(
    machines: Iterable[JsonObject], now_s: float, wanted: tuple[str, ...] = ()
) -> list[tuple[float, bool]]:
    """(seconds, whether a preemption ended it) of spot machines.

    ``wanted``: type, zone, as far as they are named.

    Machines that may have been preempted on purpose count only where their zone is named.
    """
    return [
        (lived_s(m, now_s), is_taken(m))
        for m in machines
        if m["launched_s"] is not None
        and m["market"] == "spot"
        and (len(wanted) == 2 or is_of_a_market(m))
        and all(
            one == other
            for one, other in zip(wanted, (m["instance_type"], m["zone"]), strict=False)
        )
    ]


def own_pool(
    machines: Iterable[JsonObject], now_s: float, name: str, region: str = "", zone: str = ""
) -> OwnPool | None:
    """What was seen of spot machines of a type, of a region's zones or one of them; None: nothing.

    Machines of one job and zone that were launched within ``TOGETHER_S`` of each other count as had
    together.
    """
    own = [
        m
        for m in machines
        if (m["instance_type"], m["market"]) == (name, "spot")
        and is_of_a_market(m)
        # A zone's name begins with that of its region.
        and (m["zone"] == zone if zone else m["zone"].startswith(region))
    ]
    had = sorted(
        (m for m in own if m["launched_s"] is not None),
        key=lambda m: (m["job"], m["zone"], m["launched_s"]),
    )
    refused = sum(m["end_reason"] == REFUSED for m in own)
    if not had and not refused:
        return None
    ended = (m for m in own if m["ended_s"] is not None)
    scarce = sorted(
        (m["zone"], m["ended_s"]) for m in ended if m["end_reason"] == REFUSED or is_taken(m)
    )
    gangs: list[int] = []
    before: JsonObject | None = None
    for one in had:
        if (
            before is not None
            and (before["job"], before["zone"]) == (one["job"], one["zone"])
            and one["launched_s"] - before["launched_s"] <= TOGETHER_S
        ):
            gangs[-1] += 1
        else:
            gangs.append(1)
        before = one
    # A machine's gang, not a gang's size: the mean over machines.
    gang = 1.0
    if gangs:
        gang = sum(g * g for g in gangs) / sum(gangs)
    lives = tuple(Lifetime(lived_s(m, now_s), is_taken(m), _waited(m, scarce)) for m in had)
    return OwnPool(lives, gang, refused)


def _waited(machine: JsonObject, scarce: Sequence[tuple[str, float]]) -> bool:
    """Whether a machine came just after its pool was out; ``scarce``: sorted (zone, time)."""
    place = bisect_right(scarce, (machine["zone"], machine["launched_s"])) - 1
    if place < 0:
        return False
    zone, at_s = scarce[place]
    return zone == machine["zone"] and bool(machine["launched_s"] - at_s <= SCARCE_S)


def lives_by_type(
    machines: Iterable[JsonObject], now_s: float
) -> tuple[dict[str, KnownLifetime], set[str]]:
    """Mean lifetimes of spot machines by type over all zones, and the types with too few."""
    groups: dict[str, list[PoolHistory]] = {}
    for pool in pools_of((m for m in machines if is_of_a_market(m)), now_s):
        if pool.market == "spot":
            groups.setdefault(pool.instance_type, []).append(pool)
    found = {
        name: known_life(
            sum(p.lived_s for p in pools),
            sum(p.preemptions for p in pools),
            sum(p.machines for p in pools),
            max(p.newest_s for p in pools),
        )
        for name, pools in groups.items()
    }
    return {name: life for name, life in found.items() if life}, {
        name for name, life in found.items() if not life
    }


def is_of_a_market(machine: JsonObject) -> bool:
    """Whether only the market ends a machine; on other clouds deepvm may have preempted it."""
    cloud = machine["cloud"]
    return cloud not in CLOUDS or not find_cloud(cloud).can_preempt


def expected_life_s(
    pool: Pool, cloud: str, machines: Iterable[JsonObject], band: int | None, now_s: float
) -> float:
    """Mean lifetime of a pool's machines by history, before this job has seen any.

    Else by the cloud's band, but no more than public traces show at a busy hour: an insurance save
    costs seconds, a loss that was not expected hours.
    """
    of_cloud = (m for m in machines if m["cloud"] == cloud)
    known = None
    for p in pools_of(of_cloud, now_s):
        if (p.instance_type, p.zone, p.market) == pool.place:
            known = known_life(p.lived_s, p.preemptions, p.machines, p.newest_s)
    if known is not None:
        return known.mean_s
    return min(SHORT_LIFE_S, mean_life_s(BAND_SHARES[-1 if band is None else band]))


def learnt(world: JobState) -> tuple[float, float]:
    """What this job has learned, as policies in ``deepvm simulate`` learn it.

    The mean time until the first of the generation's machines is preempted, seconds, infinite on
    demand; and the share of preemptions without a notice.
    """
    spot = [
        m for m in world.machines.values() if m.role is Role.TRAINER and not is_on_demand(m.pool)
    ]
    taken = [m for m in spot if m.noticed_s is not None or m.end_reason in (PREEMPTED, LOST)]
    seen_s = sum(m.lived_s(world.now_s) for m in spot)
    lives = Lifetimes(world.terms.mttp_s, seen_s=seen_s, preemptions=float(len(taken)))
    notices = Notices(
        Notices.missed + sum(m.noticed_s is None for m in taken), Notices.seen + len(taken)
    )
    members = set(world.members)
    at_risk = sum(m.id in members and not m.state.over for m in spot)
    return float(lives.mean_s) / at_risk if at_risk else math.inf, float(notices.missed_rate)
