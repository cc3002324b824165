"""What is known of a spot pool: public traces, band, own jobs, placement score, prices."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

from deepvm.core.cluster.prices import PriceBasis, PricePoint, price_over_time, windows_below
from deepvm.core.preemption.gang_survival import (
    Availability,
    ClusterSurvival,
    LifetimePosterior,
    LossRate,
    OwnPool,
    life_for_work,
    windows_kept,
)
from deepvm.core.units import Interval
from deepvm.errors import RequestError
from deepvm.io.user_dirs import read_data
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.catalog.market.stored_prices import StoredPrices
    from deepvm.core.cluster.instances import Catalog, InstanceType


PRIOR = "survival/public_traces.json"  # Written by ``scripts/calibrate_survival.py``


@dataclass(frozen=True)
class Prior:
    """A belief and its traces."""

    belief: LifetimePosterior
    pools: int  # traces of one machine
    gangs: int  # of several
    lives: int  # of the pools
    days: float
    source: str = ""
    as_of: str = ""


@lru_cache(maxsize=1)
def public_prior() -> Prior:
    """The file that comes with deepvm."""
    raw = read_data(PRIOR)
    belief = LifetimePosterior(
        LossRate(**raw["rate"]),
        Availability(**raw["availability"]),
        tuple(raw["loss_correlations"]),
        tuple(raw["had_correlations"]),
    )
    about = {key: raw[key] for key in ("pools", "gangs", "lives", "days", "source", "as_of")}
    return Prior(belief, **about)


@dataclass(frozen=True)
class ZonePrices:
    """Stored spot prices in a zone, $/h."""

    zone: str
    newest: Decimal
    p95: Decimal
    sold: int  # in how many of the versions
    versions: int
    kept: int  # in how many windows of the wanted length it stayed within the limit
    windows: int

    @property
    def stays(self) -> Interval:
        return windows_kept(self.kept, self.windows)


@dataclass(frozen=True)
class PriceEvidence:
    """What stored prices say."""

    zones: tuple[ZonePrices, ...]  # best first
    limit_usd_per_hour: Decimal
    days: int
    source: str
    as_of: str
    asked: bool = True  # the user set the limit


@dataclass(frozen=True)
class Answer:
    """Whether VMs can be had and live."""

    instance_type: str
    region: str
    zone: str
    band: int | None
    forecast: ClusterSurvival
    both: Interval  # of the forecast, times that of the price where the user has a limit
    life_for_work_s: Interval  # see gang_survival.life_for_work
    prior: Prior
    own: OwnPool | None
    score: int | None
    prices: PriceEvidence | None


def answer(
    catalog: Catalog,
    kind: InstanceType,
    count: int,
    for_s: float,
    *,
    zone: str = "",
    own: OwnPool | None = None,
    score: int | None = None,
    prices: PriceEvidence | None = None,
) -> Answer:
    """Forecast from all that is known. Raises RequestError."""
    prior = public_prior()
    belief = replace(
        prior.belief, rate=prior.belief.rate.of_band(kind.interruption_band), placement_score=score
    )
    forecast = (belief.after(own) if own else belief).forecast(count, for_s)
    both = forecast.both
    if prices is not None and prices.asked:
        stays = prices.zones[0].stays
        both = Interval(both.low * stays.low, both.value * stays.value, both.high * stays.high)
    life = life_for_work(forecast.lasts, count, for_s)
    return Answer(
        kind.name,
        catalog.region,
        zone,
        kind.interruption_band,
        forecast,
        both,
        life,
        prior,
        own,
        score,
        prices,
    )


def by_public_traces(kind: InstanceType, vms: int, for_s: float) -> tuple[Interval, Interval]:
    """Probability that all VMs live for a time by traces and band alone; the same for --work."""
    belief = public_prior().belief
    lasts = (
        replace(belief, rate=belief.rate.of_band(kind.interruption_band)).forecast(vms, for_s).lasts
    )
    return lasts, life_for_work(lasts, vms, for_s)


def price_evidence(
    stored: StoredPrices, kind: InstanceType, for_s: float, zone: str, most: Decimal | None
) -> PriceEvidence | None:
    """Of one zone, or of all; None: none has sold the type. Raises RequestError: no limit."""
    limit = most  # the user's
    if limit is None:
        limit = kind.on_demand_usd_per_hour
    if limit is None:
        raise RequestError(
            "max_price", "", f"a price in $/h: no on-demand price of {kind.name} is known"
        )
    start_s = int(stored.first.timestamp())
    end_s = int(stored.last.timestamp())
    found = []
    for pool, sold in stored.sold.items():
        instance_type, name = pool
        if instance_type != kind.name or zone not in ("", name):
            continue
        points = [PricePoint(t, Decimal(p)) for t, p in stored.changes[pool]]
        p95 = price_over_time(points, start_s, end_s + 1, PriceBasis.P95)
        assert p95 is not None  # it was sold
        # Where none is sold, no limit is high enough.
        gone = [PricePoint(t, Decimal("Infinity")) for t in stored.gone.get(pool, ())]
        kept, windows = windows_below([*points, *gone], start_s, end_s + 1, for_s, limit)
        found.append(
            ZonePrices(name, points[-1].usd_per_hour, p95, sold, stored.versions, kept, windows)
        )
    if not found:
        return None
    found.sort(key=lambda z: (-z.stays.value, -z.sold, z.newest, z.zone))
    as_of = stored.last.date().isoformat()
    return PriceEvidence(tuple(found), limit, stored.days, stored.source, as_of, most is not None)
