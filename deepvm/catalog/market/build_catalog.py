"""Signals of a region joined into a catalog, each figure with its signal's source and age."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.price_sources import MAX_HISTORY_DAYS
from deepvm.catalog.public.public_market import wanted_source
from deepvm.catalog.published.cloud_rates import rates_of
from deepvm.catalog.serialization import build_instance, build_quotas
from deepvm.catalog.signals import signal as kinds
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT, ZONES, Signal, title
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, ZonePrice
from deepvm.core.cluster.prices import (
    IMPLAUSIBLE,
    PriceBasis,
    PricedType,
    PricePoint,
    PriceSanityCheck,
    PriceWarning,
    price_over_time,
)
from deepvm.core.cluster.provenance import Origin, Provenance
from deepvm.core.cluster.speedup import RingSpeedup, SpeedupCurve
from deepvm.core.spelling import did_you_mean, listed, one_of, refuse_unknown
from deepvm.core.units import counted
from deepvm.errors import (
    CloudError,
    DeepVMError,
    MissingDataError,
    OptionMismatchError,
    RequestError,
)
from deepvm.io.user_dirs import data_folder, read_data
from deepvm.records import dataclass, field

_MAX_RATIO = 4  # Speed over that of the fastest measured GPU beyond which the scaling is a guess


class _Performance(NamedTuple):
    eflops: float | None = None
    eflops_basis: str = ""
    speedups: tuple[SpeedupCurve, ...] = ()
    speedup_basis: str = ""


class PerformanceTable:
    """Speeds by type: measured on itself, on one with the same GPU, or estimated."""

    # Three types of the embedded catalog ``paper`` are measured. Types with their GPUs have as
    # many times the eFLOPS and the same curves: each GPU keeps its batch. Another NVIDIA GPU has
    # eFLOPS in proportion to its memory bandwidth, and a ring with scaled costs: both are counted
    # in step times, so they grow with the GPU's eFLOPS, and c shrinks with the network that the VM
    # sustains.

    def __init__(self) -> None:
        text = (data_folder() / "paper.json").read_text(encoding="utf-8")
        paper = json.loads(text, parse_float=Decimal)
        profiled = (build_instance(i) for i in paper["instances"] if i.get("eflops") is not None)
        self.measured: Mapping[str, InstanceType] = {i.name: i for i in profiled}
        self.eflops_unit: str = paper["eflops_unit"]
        self._known = read_data("aws/performance.json")
        self.absent: Mapping[str, str] = self._known["absent"]

    def of(self, name: str, gpu: Gpu | None, baseline_gbps: float | None) -> _Performance:
        """Speed of a type with these GPUs (None: a CPU type) and this sustained network."""
        if gpu is None:
            return _Performance()
        own = self.measured.get(name)
        if own is not None:
            return _Performance(own.eflops, "", own.speedups, "")
        for same in self.measured.values():
            if same.gpu and same.gpu.name == gpu.name and same.eflops is not None:
                basis = ""
                if gpu.count > 1:
                    basis = f"{gpu.count} x one {gpu.name}'s"
                curves = tuple(c for c in same.speedups if c.workload is None)
                curve_basis = f"those of {same.name}, the same GPU"
                return _Performance(gpu.count * same.eflops, basis, curves, curve_basis)
        for row in self._known["memory_gb_per_s"] if gpu.manufacturer == "NVIDIA" else ():
            if row["gpu"] == gpu.name and row.get("memory_gib") in (None, gpu.memory_gib):
                return self._estimated(gpu, float(row["gb_per_s"]), baseline_gbps)
        return _Performance()

    def _estimated(self, gpu: Gpu, gb_per_s: float, baseline_gbps: float | None) -> _Performance:
        scale = self._known["scale"]
        one = _rounded(gb_per_s * scale["eflops_per_gb_per_s"])
        measured = " and ".join(self._known["references"])
        each = ""
        if gpu.count > 1:
            each = f"{gpu.count} x "
        basis = f"{each}{gb_per_s:g} GB/s of memory bandwidth, in proportion to {measured}"
        if baseline_gbps is None:
            return _Performance(gpu.count * one, basis)
        c = _rounded(scale["ring_c_gbps_per_eflops"] * one / baseline_gbps)
        ring = RingSpeedup(c, _rounded(scale["ring_l_per_eflops"] * one), fitted_to=32.0)
        curve_basis = f"the rings of {measured}, scaled by eFLOPS of a GPU and sustained network"
        times = one / scale["fastest_eflops"]
        if times > _MAX_RATIO:
            basis += f"; it is {times:.0f} times as fast as any GPU that was measured, so take this"
            basis += " for a guess"
            curve_basis += ", which EFA and larger models would soften"
        return _Performance(gpu.count * one, basis, (ring,), curve_basis)


performance_table = lru_cache(maxsize=1)(PerformanceTable)  # The table that comes with deepvm


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


# By type and zone, or the path of a zone's price in a file
SpotPrices = Mapping[str, Mapping[Any, list[PricePoint]]]


def drop_implausible_prices(
    vcpus: Mapping[str, int], on_demand: dict[str, Decimal], spot: SpotPrices
) -> dict[str, list[str]]:
    """Remove prices that are implausible given those of comparable types."""
    refused: dict[str, list[str]] = {ON_DEMAND: [], SPOT: []}
    for name, zone, point, doubt in [*_doubts(vcpus, on_demand, spot)]:
        if point is None:
            del on_demand[name]
            refused[ON_DEMAND].append(f"{name} on demand at {doubt}")
        else:
            spot[name][zone].remove(point)
            where = f" in {zone}" if zone else ""
            refused[SPOT].append(f"{name} on the spot market{where} at {doubt}")
    return refused


def file_doubts(catalog: Catalog) -> Iterator[tuple[tuple[str | int, ...], PriceWarning]]:
    """Prices of a user's own file that cannot be AWS's, with their places in its document."""
    numbers = {instance.name: number for number, instance in enumerate(catalog)}
    on_demand = {}
    spot: dict[str, dict[Any, list[PricePoint]]] = {}
    for i in catalog:
        prices = [z.usd_per_hour for z in i.spot_zones]
        if i.spot_usd_per_hour is not None:
            prices[:1] = [i.spot_usd_per_hour]  # that of the first zone
        spot[i.name] = {}
        for zone, price in enumerate(prices):
            path = ("spot_zones", zone, "usd_per_hour") if zone else ("spot_usd_per_hour",)
            spot[i.name][path] = [PricePoint(0, price)]
        if i.on_demand_usd_per_hour is not None:
            on_demand[i.name] = i.on_demand_usd_per_hour
    for name, path, _, doubt in _doubts({i.name: i.vcpus for i in catalog}, on_demand, spot):
        yield ("instances", numbers[name], *(path or ("on_demand_usd_per_hour",))), doubt


def _doubts(
    vcpus: Mapping[str, int], on_demand: Mapping[str, Decimal], spot: SpotPrices
) -> Iterator[tuple[str, Any, PricePoint | None, PriceWarning]]:
    """Implausible prices with their type and zone; the point is None for on-demand prices."""
    priced = {}
    for name, size in vcpus.items():
        prices = sorted(p.usd_per_hour for points in spot.get(name, {}).values() for p in points)
        # The higher median: statistics.median_high takes 10 ms to import.
        median = prices[len(prices) // 2] if prices else None
        priced[name] = PricedType(size, on_demand.get(name), median)
    check = PriceSanityCheck(priced)
    for name, price in on_demand.items():
        doubt = check.on_demand(name, price)
        if doubt is not None:
            yield name, None, None, doubt
    for name, zones in spot.items():
        for zone, points in zones.items():
            for point in points:
                doubt = check.spot(name, point.usd_per_hour)
                if doubt is not None:
                    yield name, zone, point, doubt


_MAX_NAMED = 4  # Implausible prices that a note names
LISTED_ALIKE = "every type in every region, whether or not there are any"


@dataclass(frozen=True)
class MarketRequest:
    """How to get prices: the options of :func:`deepvm.catalog.store.load_catalog`."""

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
        refuse_unknown("prices", self.prices, ("auto", "live", "snapshot"))
        refuse_unknown("price_basis", self.price_basis, [b.value for b in PriceBasis])
        if self.network is not None:
            refuse_unknown("network", self.network, ("peak", "baseline"))
        if self.offline and self.prices == "live":
            raise OptionMismatchError.with_other("prices", self.prices, "--offline")
        days = str(self.days).strip()
        if not re.fullmatch("[0-9]{1,3}", days) or not 1 <= int(days) <= MAX_HISTORY_DAYS:
            raise RequestError("days", self.days, f"a whole number from 1 to {MAX_HISTORY_DAYS}")
        object.__setattr__(self, "source", wanted_source(self.source))
        object.__setattr__(self, "days", int(days))
        object.__setattr__(self, "price_basis", PriceBasis(self.price_basis).value)

    @property
    def history(self) -> str:
        if self.price_basis == PriceBasis.CURRENT.value:
            return ""
        return f"{kinds.HISTORY}:{self.days}"

    @property
    def spot(self) -> str:
        return self.history or SPOT

    @property
    def window(self) -> str:
        if self.days == 1:
            return "day"
        return f"{self.days} days"


@dataclass(frozen=True)
class RegionMarket:
    """What is known of a region, which :meth:`catalog` joins. ``now`` is in UTC."""

    region: str
    signals: Mapping[str, Signal]
    request: MarketRequest
    now: datetime
    cloud: Cloud = DEFAULT_CLOUD
    notes: Sequence[str] = ()
    errors: Mapping[str, CloudError] = field(default_factory=dict)

    def catalog(self) -> Catalog:
        """Join the signals; implausible prices are left out, counted and noted."""
        region = self.region
        cloud = self.cloud
        if SPECS not in self.signals:
            raise self._missing(f"no specifications of region {region}", SPECS)
        if not {ON_DEMAND, SPOT} & self.signals.keys():
            raise self._missing(f"no prices of region {region}", ON_DEMAND, SPOT)
        zone = self._zone_id()
        if self.request.spot not in {SPOT, *self.signals}:
            raise self._missing(
                f"--price-basis {self.request.price_basis} needs the spot prices of the last"
                f" {self.request.window} in {region}, which are not known",
                self.request.spot,
            )
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
            quotas=build_quotas(self._data(kinds.QUOTAS), cloud),
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
        refused = next((self.errors[kind] for kind in kinds if kind in self.errors), None)
        if refused is not None:
            return CloudError(
                subject, refused.why, f"{refused.what}: {refused.detail}", refused.advice
            )
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
        return MissingDataError(
            f"{none} that can be true; {'; '.join(doubted)}; '--prices snapshot' has others, and in"
            " a --catalog file any price counts"
        )

    def _zone_id(self) -> str:
        wanted = self.request.zone
        if not wanted:
            return ""
        names: Mapping[str, str] = self._data(ZONES)
        priced = [*self._data(SPOT).values(), *self._data(self.request.spot).values()]
        ids: set[str] = {*names, *(zone for zones in priced for zone in zones if zone)}
        if not ids and not {ZONES, OFFERINGS} & {*self.cloud.kinds}:
            raise OptionMismatchError(
                "zone", wanted, f"does not fit: no catalog has zones of {self.cloud.title}"
            )
        if not ids:
            raise self._missing(
                f"--zone {wanted}: the known prices of {self.region} are not by zone", ZONES, SPOT
            )
        for zone in ids:
            if wanted in (zone, names.get(zone)):
                return zone
        known = ", ".join(f"{i} ({names[i]})" if i in names else i for i in sorted(ids))
        raise RequestError("zone", wanted, f"a zone of {self.region}: {known}")

    def _changes(self, name: str) -> dict[str, list[PricePoint]]:
        zones = self._data(self.request.spot).get(name, {})
        if self.request.history:
            return {z: [PricePoint(at_s, Decimal(p)) for at_s, p in zones[z]] for z in zones}
        return {zone: [PricePoint(0, Decimal(p), since)] for zone, (p, since) in zones.items()}

    def _over_time(
        self, name: str, changes: Mapping[str, Sequence[PricePoint]], wanted: str
    ) -> dict[str, list[PricePoint]]:
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
        spec = self._data(SPECS)[name]
        gpu = None
        if "gpu" in spec:
            gpu = Gpu(**spec["gpu"])
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
            interruption_band=self._data(kinds.ADVISOR).get(name),
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
            origin = s.origin
            if origin == "snapshot":
                origin = "embedded"
            refused = Counter(s.refused) + Counter({IMPLAUSIBLE: len(implausible.get(kind, ()))})
            counts = tuple(sorted(refused.items()))
            origins.append(Origin(kind, origin, s.observed_at, s.source, counts, s.dated))
        prices = [o for o in origins if o.signal in (ON_DEMAND, request.spot)]
        used = {o.kind for o in prices}
        return Provenance(
            kind=used.pop() if len(used) == 1 else "mixed",
            prices_as_of=min(o.observed_at for o in prices).date(),
            source="; ".join(dict.fromkeys(f"{o.signal}: {o.source}" for o in prices)),
            origins=tuple(origins),
            basis=f"{request.price_basis} of {request.window}" if request.history else "",
            notes=tuple(notes),
        )
