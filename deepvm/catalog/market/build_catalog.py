"""Signals of a region joined into a catalog, each figure with its signal's source and age."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.market.eflops_estimates import performance_table
from deepvm.catalog.market.price_filter import drop_implausible_prices
from deepvm.catalog.price_sources import MAX_HISTORY_DAYS
from deepvm.catalog.public.public_market import wanted_source
from deepvm.catalog.published.cloud_rates import rates_of
from deepvm.catalog.serialization import build_quotas
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.signal import (
    ADVISOR,
    HISTORY,
    OFFERINGS,
    ON_DEMAND,
    QUOTAS,
    SPECS,
    SPOT,
    ZONES,
    Signal,
    title,
)
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, ZonePrice
from deepvm.core.cluster.prices import IMPLAUSIBLE, PriceBasis, PricePoint, price_over_time
from deepvm.core.cluster.provenance import Origin, Provenance
from deepvm.core.spelling import did_you_mean, listed, one_of, refuse_unknown
from deepvm.core.units import counted
from deepvm.errors import CloudError, DeepVMError, MissingDataError, RequestError

_MAX_NAMED = 4
"""Implausible prices that a note names."""

LISTED_ALIKE = "every type in every region, whether or not there are any"


@dataclass(frozen=True)
class MarketRequest:
    """How to get prices: the options of :func:`deepvm.catalog.store.load_catalog`.

    ``network`` None means ``peak``.

    ``source``: the public catalog to use, ``auto`` or ``none``.
    ``price_history``: a clone of skypilot-catalog, whose stored versions are the history; empty:
    the cloud's.
    """

    prices: str = "auto"
    offline: bool = False
    profile: str = ""
    zone: str = ""
    price_basis: str = PriceBasis.CURRENT.value
    days: int | str = 30
    network: str | None = None
    source: str = "auto"
    price_history: str = ""

    def __post_init__(self) -> None:
        """Check the values, else raise a RequestError.

        ``days`` becomes a number, ``price_basis`` a plain string.
        """
        refuse_unknown("prices", self.prices, ("auto", "live", "snapshot"))
        refuse_unknown("price_basis", self.price_basis, [b.value for b in PriceBasis])
        if self.network is not None:
            refuse_unknown("network", self.network, ("peak", "baseline"))
        if self.offline and self.prices == "live":
            raise RequestError("prices", self.prices, "auto or snapshot together with offline")
        days = str(self.days).strip()
        if not re.fullmatch("[0-9]{1,3}", days) or not 1 <= int(days) <= MAX_HISTORY_DAYS:
            raise RequestError("days", self.days, f"a whole number from 1 to {MAX_HISTORY_DAYS}")
        object.__setattr__(self, "source", wanted_source(self.source))
        object.__setattr__(self, "days", int(days))
        object.__setattr__(self, "price_basis", PriceBasis(self.price_basis).value)

    @property
    def history(self) -> str:
        """The signal that the basis needs, empty when it needs none."""
        if self.price_basis == PriceBasis.CURRENT.value:
            return ""
        return f"{HISTORY}:{self.days}"

    @property
    def spot(self) -> str:
        """The signal that has the spot prices."""
        return self.history or SPOT

    @property
    def window(self) -> str:
        """The days of the history in words."""
        return "day" if self.days == 1 else f"{self.days} days"


@dataclass(frozen=True)
class RegionMarket:
    """What is known of a region, which :meth:`catalog` joins.

    Attributes:
        now: UTC; the end of the window of a history.
        notes: they become part of the provenance.
        errors: why signals are missing, by kind.
    """

    region: str
    signals: Mapping[str, Signal]
    request: MarketRequest
    now: datetime
    cloud: Cloud = DEFAULT_CLOUD
    notes: Sequence[str] = ()
    errors: Mapping[str, CloudError] = field(default_factory=dict)

    def catalog(self) -> Catalog:
        """Join the signals.

        Implausible prices are left out, counted and noted; so are types without a price, see
        ``Catalog.absent``.

        Raises:
            MissingDataError: no specifications, no prices at all, or what the request needs is not
                there. CloudError: so it is because the cloud did not answer.
            RequestError: the region has no such zone.
        """
        region = self.region
        cloud = self.cloud
        if SPECS not in self.signals:
            raise self._missing(f"no specifications of region {region}", SPECS)
        if not {ON_DEMAND, SPOT} & self.signals.keys():
            raise self._missing(f"no prices of region {region}", ON_DEMAND, SPOT)
        zone = self._zone_id()
        if self.request.spot not in {SPOT, *self.signals}:
            subject = f"--price-basis {self.request.price_basis} needs the spot prices of the last"
            subject = f"{subject} {self.request.window} in {region}, which are not known"
            raise self._missing(subject, self.request.spot)
        table = performance_table()
        absent = dict(table.absent)
        offered = self._data(OFFERINGS)
        specs = self._data(SPECS)
        sizes = {name: spec["vcpus"] for name, spec in specs.items()}
        listed_usd = {n: Decimal(p) for n, p in self._data(ON_DEMAND).items() if n in specs}
        changes = {name: self._changes(name) for name in specs}
        wrong: Sequence[str] = ()
        if self.request.history:
            # With all zones, even those that sell nothing today: which prices are plausible must
            # not depend on the request.
            wrong = drop_implausible_prices(sizes, dict(listed_usd), changes)[SPOT]
        vcpus = {}
        on_demand = {}
        spot = {}
        for name, spec in sorted(specs.items()):
            if zone and offered and zone not in offered.get(name, ()):
                absent[name] = f"{name} is not offered in zone {zone}"
                continue
            vcpus[name] = sizes[name]
            if name in listed_usd and spec.get("on_demand", True):
                on_demand[name] = listed_usd[name]
            if spec.get("spot", True):
                spot[name] = self._over_time(name, changes[name], zone)
        # Before types are built: a wrong price must not become that of the cheapest zone.
        refused = drop_implausible_prices(vcpus, on_demand, spot)
        instances = []
        for name in vcpus:
            zones = self._zone_prices(spot.get(name, {}))
            if zones or name in on_demand:
                instances.append(self._instance(name, on_demand.get(name), zones))
            else:
                absent[name] = f"{name} has no price in {region}"
        refused[self.request.spot] = [*wrong, *refused.pop(SPOT)]
        doubted = []
        for kind, texts in refused.items():
            if texts:
                left_out = f"{counted(len(texts), 'price')} left out that cannot be true"
                names = listed(texts, _MAX_NAMED)
                doubted.append(f"{title(kind)} of {region}: {left_out}: {names}")
        if not instances:
            raise self._no_price(doubted)
        alike = cloud.rules.regions_alike
        return Catalog(
            name=f"{cloud.name}-{region}",
            instances=tuple(instances),
            region=region,
            quotas=build_quotas(self._data(QUOTAS), cloud),
            default_speedup="ring",
            eflops_unit=table.eflops_unit,
            description=f"{cloud.title}'s types and prices in {region}",
            provenance=self._provenance(refused, (*self.notes, *doubted)),
            absent=absent,
            rates=rates_of(cloud.name, region),
            grace_s=cloud.rules.grace_s,
            unsure=f"{cloud.title} is listed with {LISTED_ALIKE}" if alike else "",
        )

    def _data(self, kind: str) -> Any:
        if kind in self.signals:
            return self.signals[kind].data
        return {}

    def _missing(self, subject: str, *kinds: str) -> DeepVMError:
        """The error where signals of some kinds are missing: the cloud's, or how to fetch them.

        With a hint if a region of a similar name may be meant.
        """
        refused = next((self.errors[kind] for kind in kinds if kind in self.errors), None)
        if refused is not None:
            detail = f"{refused.what}: {refused.detail}"
            return CloudError(subject, refused.why, detail, refused.advice)
        history = kinds[0].partition(":")[2]
        if history and not self.cloud.has_api:
            return MissingDataError(f"{subject}, and no public catalog has them")
        command = f"--cloud {self.cloud.name}"
        if self.cloud.has_api:
            command = f"--region {self.region}"
        if history:
            command += f" --days {history}"
        message = f"{subject}: 'deepvm catalog refresh {command}' fetches them"
        regions = self.cloud.known_regions()
        if self.region not in regions:
            meant = did_you_mean(self.region, sorted(regions))
            message = f"{message}; {meant}".removesuffix("; ")
        return MissingDataError(message)

    def _no_price(self, doubted: Sequence[str]) -> DeepVMError:
        zone = self.request.zone
        if zone:
            others = {z for zones in self._data(OFFERINGS).values() for z in zones}
            sold = one_of(zone, sorted(others - {self._zone_id()}), ", ")
            return RequestError("zone", zone, f"a zone in which something is offered: {sold}")
        none = f"no type has a price in region {self.region}"
        if not doubted:
            return self._missing(none, ON_DEMAND, SPOT)
        # To fetch the same prices again would not help.
        others_have = "'--prices snapshot' has others, and in a --catalog file any price counts"
        return MissingDataError(f"{none} that can be true; {'; '.join(doubted)}; {others_have}")

    def _zone_id(self) -> str:
        """The id of the wanted zone, which may be given by name; empty if none is wanted."""
        wanted = self.request.zone
        if not wanted:
            return ""
        names: Mapping[str, str] = self._data(ZONES)
        priced = [*self._data(SPOT).values(), *self._data(self.request.spot).values()]
        ids: set[str] = {*names, *(zone for zones in priced for zone in zones if zone)}
        if not ids and not {ZONES, OFFERINGS} & {*self.cloud.kinds}:
            allowed = f"none: no catalog has zones of {self.cloud.title}"
            raise RequestError("zone", wanted, allowed)
        if not ids:
            prices = f"the known prices of {self.region} are not by zone"
            raise self._missing(f"--zone {wanted}: {prices}", ZONES, SPOT)
        for zone in ids:
            if wanted in (zone, names.get(zone)):
                return zone
        known = ", ".join(f"{i} ({names[i]})" if i in names else i for i in sorted(ids))
        raise RequestError("zone", wanted, f"a zone of {self.region}: {known}")

    def _changes(self, name: str) -> dict[str, list[PricePoint]]:
        """A type's spot prices by zone: the current ones, or all of the history."""
        zones = self._data(self.request.spot).get(name, {})
        if self.request.history:
            return {z: [PricePoint(at_s, Decimal(p)) for at_s, p in zones[z]] for z in zones}
        return {zone: [PricePoint(0, Decimal(p), since)] for zone, (p, since) in zones.items()}

    def _over_time(
        self, name: str, changes: Mapping[str, Sequence[PricePoint]], wanted: str
    ) -> dict[str, list[PricePoint]]:
        """A type's spot prices by the price basis, in each zone that counts."""
        today = self.signals.get(SPOT)
        start = self.now - timedelta(days=int(self.request.days))
        window = (int(start.timestamp()), int(self.now.timestamp()))
        prices = {}
        for zone, points in changes.items():
            # A zone without a price today sells none, even if its history has prices.
            sold = today is None or not today.fresh or zone in today.data.get(name, ())
            price = price_over_time(points, *window, PriceBasis(self.request.price_basis))
            if price is not None and sold and wanted in ("", zone):
                prices[zone] = [PricePoint(0, price, points[-1].since)]
        return prices

    def _zone_prices(self, zones: Mapping[str, Sequence[PricePoint]]) -> list[ZonePrice]:
        """A type's spot price by zone, cheapest first."""
        names: Mapping[str, str] = self._data(ZONES)
        shuffled = ZONES in self.cloud.kinds  # else a zone has one name for all accounts
        prices = [
            ZonePrice(zone, p.usd_per_hour, names.get(zone, "" if shuffled else zone), p.since)
            for zone, points in zones.items()
            for p in points
        ]
        return sorted(prices, key=lambda z: (z.usd_per_hour, z.zone))

    def _instance(
        self, name: str, on_demand: Decimal | None, zones: Sequence[ZonePrice]
    ) -> InstanceType:
        """One type with its spot prices by zone, cheapest first."""
        spec = self._data(SPECS)[name]
        gpu = Gpu(**spec["gpu"]) if "gpu" in spec else None
        unusable = spec.get("unusable", "")
        if not unusable and gpu is None and not self.cloud.rules.has_cpu_vms:
            unusable = f"{self.cloud.title} has no VMs without GPUs that could hold checkpoints"
        baseline = spec.get("baseline_gbps")
        return InstanceType(
            name=name,
            vcpus=spec["vcpus"],
            memory_gib=spec.get("memory_gib"),
            network_gbps=spec.get("peak_gbps", baseline),
            on_demand_usd_per_hour=on_demand,
            spot_usd_per_hour=zones[0].usd_per_hour if zones else None,
            gpu=gpu,
            **performance_table().of(name, gpu, baseline)._asdict(),
            quota_family=self.cloud.quota_family(name),
            network_baseline_gbps=baseline,
            cpu_architecture=spec.get("arch", ""),
            burstable=spec.get("burstable", False),
            current_generation=spec.get("current", True),
            interruption_band=self._data(ADVISOR).get(name),
            spot_zones=tuple(zone for zone in zones if zone.zone),
            zones=tuple(self._data(OFFERINGS).get(name, ())),
            unusable=unusable,
        )

    def _provenance(
        self, implausible: Mapping[str, Sequence[str]], notes: Sequence[str]
    ) -> Provenance:
        request = self.request
        origins = []
        for kind, s in self.signals.items():
            if kind == SPOT and request.history:
                continue
            origin = "embedded" if s.origin == "snapshot" else s.origin
            refused = Counter(s.refused) + Counter({IMPLAUSIBLE: len(implausible.get(kind, ()))})
            counts = tuple(sorted(refused.items()))
            origins.append(Origin(kind, origin, s.observed_at, s.source, counts, s.dated))
        prices = [o for o in origins if o.signal in (ON_DEMAND, request.spot)]
        kinds = {o.kind for o in prices}
        return Provenance(
            kind=kinds.pop() if len(kinds) == 1 else "mixed",
            prices_as_of=min(o.observed_at for o in prices).date(),
            source="; ".join(dict.fromkeys(f"{o.signal}: {o.source}" for o in prices)),
            origins=tuple(origins),
            basis=f"{request.price_basis} of {request.window}" if request.history else "",
            notes=tuple(notes),
        )
