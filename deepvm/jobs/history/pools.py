"""Statistics of pools by rows of the history: lifetimes, missing notices, time to launch."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from deepvm.core import lifetimes
from deepvm.core.grouping import grouped
from deepvm.core.json_types import JsonObject
from deepvm.core.preemption.gang_survival import Lifetime, OwnPool
from deepvm.core.preemption.preemption_estimators import Lifetimes, Notices
from deepvm.core.units import Z80
from deepvm.jobs.clouds.registry import CLOUDS, find_cloud
from deepvm.jobs.decisions.markets import is_on_demand
from deepvm.jobs.decisions.world import LOST, PREEMPTED, REFUSED, JobState, Pool, Role
from deepvm.records import dataclass

TOGETHER_S = 600.0
# A pool's next machine within this time of a refusal or preemption starts a spell
SCARCE_S = 3600.0
_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class PoolHistory:
    """The machines of one type in one zone and market."""

    instance_type: str
    zone: str
    market: str
    machines: int
    preemptions: int  # or losses; other lifetimes are censored
    missed: int  # preemptions without a notice
    lived_s: float  # all lifetimes together
    allocation_s: float  # mean time to a launch
    allocations_s: tuple[float, float, float] = (0.0, 0.0, 0.0)  # its 10, 50 and 90 % quantiles
    leads_s: float | None = None  # mean time from a notice to its preemption
    newest_s: float = 0.0  # when the newest ended, or was still alive
    rebalances: int = 0  # machines that the cloud had recommended to replace

    @property
    def mttp_s(self) -> float | None:
        if self.preemptions:
            return self.lived_s / self.preemptions
        return None

    @property
    def mttp_interval_s(self) -> tuple[float, float | None]:
        """80 % interval, Poisson (Garwood 1936); the end is open before the first preemption."""
        low = self.lived_s / lifetimes.gamma_quantile(self.preemptions + 1, Z80)
        if not self.preemptions:
            return low, None
        return low, self.lived_s / lifetimes.gamma_quantile(self.preemptions, -Z80)

    @property
    def missed_interval(self) -> tuple[float, float]:
        return lifetimes.share_interval(self.missed, self.preemptions)


def pools_of(machines: Iterable[JsonObject], now_s: float) -> list[PoolHistory]:
    """The pools of these machines, as the history has them, by type, zone and market."""
    groups = grouped(
        ((m["instance_type"], m["zone"], m["market"]), m)
        for m in machines
        if m["launched_s"] is not None
    )
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
    """Whether its end was a preemption; else its lifetime is censored."""
    return machine["end_reason"] in (PREEMPTED, LOST)


def lived_s(machine: JsonObject, now_s: float) -> float:
    """From its launch to its end, or until now, seconds."""
    ended_s = now_s if machine["ended_s"] is None else machine["ended_s"]
    return max(float(ended_s - machine["launched_s"]), 0.0)


def lives_in(
    machines: Iterable[JsonObject], now_s: float, wanted: tuple[str, ...] = ()
) -> list[tuple[float, bool]]:
    """(seconds, whether a preemption ended it) of spot machines; ``wanted``: type, zone."""
    return [
        (lived_s(m, now_s), is_taken(m))
        for m in machines
        if m["launched_s"] is not None
        and m["market"] == "spot"
        and (len(wanted) == 2 or is_of_a_market(m))
        and (m["instance_type"], m["zone"])[: len(wanted)] == wanted
    ]


def own_pool(
    machines: Iterable[JsonObject], now_s: float, name: str, region: str = "", zone: str = ""
) -> OwnPool | None:
    """What was seen of spot machines of a type, in a region or zone; None: nothing."""
    own = [
        m
        for m in machines
        if (m["instance_type"], m["market"]) == (name, "spot")
        and is_of_a_market(m)
        # A zone's name starts with that of its region.
        and (m["zone"] == zone if zone else m["zone"].startswith(region))
    ]
    had = sorted(
        (m for m in own if m["launched_s"] is not None),
        key=lambda m: (m["job"], m["zone"], m["launched_s"]),
    )
    refused = sum(m["end_reason"] == REFUSED for m in own)
    if not had and not refused:
        return None
    out = [m for m in own if m["end_reason"] == REFUSED or is_taken(m)]
    scarce = sorted((m["zone"], m["ended_s"]) for m in out if m["ended_s"] is not None)
    gangs = [1]  # machines of one job and zone that were launched within TOGETHER_S of each other
    for before, one in pairwise(had):
        alike = (before["job"], before["zone"]) == (one["job"], one["zone"])
        if alike and one["launched_s"] - before["launched_s"] <= TOGETHER_S:
            gangs[-1] += 1
        else:
            gangs.append(1)
    # A machine's gang, not a gang's size: the mean over machines.
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
) -> tuple[dict[str, lifetimes.KnownLifetime], set[str]]:
    """Mean lifetimes of spot machines by type over all zones, and the types with too few."""
    pools = pools_of((m for m in machines if is_of_a_market(m)), now_s)
    groups = grouped((pool.instance_type, pool) for pool in pools if pool.market == "spot")
    found = {
        name: lifetimes.known_life(
            sum(p.lived_s for p in own),
            sum(p.preemptions for p in own),
            sum(p.machines for p in own),
            max(p.newest_s for p in own),
        )
        for name, own in groups.items()
    }
    known = {name: life for name, life in found.items() if life}
    return known, found.keys() - known.keys()


def is_of_a_market(machine: JsonObject) -> bool:
    """Whether only the market ends a machine; on other clouds deepvm may have preempted it."""
    cloud = machine["cloud"]
    return cloud not in CLOUDS or not find_cloud(cloud).can_preempt


def expected_life_s(
    pool: Pool, cloud: str, machines: Iterable[JsonObject], band: int | None, now_s: float
) -> float:
    """Mean lifetime of a pool's machines by history, before this job has seen any."""
    for p in pools_of((m for m in machines if m["cloud"] == cloud), now_s):
        if (p.instance_type, p.zone, p.market) == pool.place:
            known = lifetimes.known_life(p.lived_s, p.preemptions, p.machines, p.newest_s)
            if known is not None:
                return known.mean_s
    # By the cloud's band, at most what public traces show at a busy hour: insurance is cheap
    return min(lifetimes.SHORT_LIFE_S, lifetimes.band_life_s(band))


def learnt(world: JobState) -> tuple[float, float]:
    """Mean seconds to the generation's next preemption (inf on demand); missing notices' share."""
    spot = [m for m in world.of(Role.TRAINER) if not is_on_demand(m.pool)]
    taken = [m for m in spot if m.was_preempted]
    seen_s = sum(m.lived_s(world.now_s) for m in spot)
    lives = Lifetimes(world.terms.mttp_s, seen_s=seen_s, preemptions=float(len(taken)))
    missed = sum(m.noticed_s is None for m in taken)
    notices = Notices(Notices.missed + missed, Notices.seen + len(taken))
    members = set(world.members)
    at_risk = sum(m.id in members and not m.state.over for m in spot)
    return float(lives.mean_s) / at_risk if at_risk else math.inf, float(notices.missed_rate)
