"""What can be rented: instance types with their prices, quotas, and the catalog that holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from deepvm.core.cluster.memory_nodes import (
    PAPER_TABLE,
    REAL_NODES,
    MemoryNodeRule,
    SaturationTable,
)
from deepvm.core.cluster.provenance import Provenance
from deepvm.core.cluster.speedup import SpeedupCurve
from deepvm.core.lifetimes import KnownLifetime
from deepvm.core.units import GIB, Money, to_decimal, to_micro_usd, to_positive, to_whole
from deepvm.errors import MissingDataError, RequestError
from deepvm.records import dataclass, field, replace

if TYPE_CHECKING:
    from deepvm.core.bill import Rates

# Share of the VMs of a type that are preempted in a month, by AWS's band
INTERRUPTION_BANDS = ("below 5 %", "5 to 10 %", "10 to 15 %", "15 to 20 %", "above 20 %")


class Market(str, Enum):
    """How a VM is bought."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True)
class Gpu:
    """The GPUs of one VM: model, such as ``T4``, how many, and GiB of each, None if unknown."""

    name: str
    count: int = 1
    memory_gib: float | None = None
    manufacturer: str = "NVIDIA"

    def __post_init__(self) -> None:
        count = to_whole(self.count, "gpu.count", "a whole number of GPUs >= 1", least=1)
        _keep(self, count=count)
        if self.memory_gib is not None:
            _keep(self, memory_gib=to_positive(self.memory_gib, "gpu.memory_gib"))


@dataclass(frozen=True)
class ZonePrice:
    """The spot price of a type in one zone."""

    zone: str  # id, the same for every account, such as use1-az4
    usd_per_hour: Decimal
    name: str = ""  # in the user's account, such as us-east-1a
    since: str = ""  # when the market set this price, ISO 8601

    def __post_init__(self) -> None:
        _keep(self, usd_per_hour=_exact(self.usd_per_hour, "usd_per_hour"))

    def __str__(self) -> str:
        if self.name not in ("", self.zone):
            return f"{self.zone} ({self.name})"
        return self.zone


@dataclass(frozen=True)
class Reservation:
    """A pool of reserved VMs; ``left_s``: until its VMs are ended; ``until``: that moment."""

    pool: str
    instance_type: str
    count: int
    kind: str
    left_s: float | None = None
    until: str = ""


@dataclass(frozen=True)
class InstanceType:
    """A VM type in one region.

    Prices are :data:`deepvm.core.units.Money` with at most six decimals, and kept as exact
    decimals. What is unknown is None or empty.

    Attributes:
        name: the provider's name, ``g4dn.xlarge``. memory_gib: main memory.
        network_gbps: bandwidth in Gbit/s that the planner uses. network_baseline_gbps: what it
            sustains beyond a peak of some minutes.
        on_demand_usd_per_hour, spot_usd_per_hour: None where it is not sold in this market.
        gpu: its GPUs, None for a CPU type.
        eflops: operations per second in the catalog's unit. eflops_basis: how they were estimated,
            empty when measured. eflops_source: who measured them, if not the catalog's own source.
        speedups: its speed-up curves, at most one general one of each kind. default_speedup: the
            kind to use, empty for the catalog's. speedup_basis: another type's name for borrowed
            curves.
        quota_family: the provider's quota that its vCPUs count against.
        cpu_architecture: ``x86_64`` or ``arm64``.
        burstable: whether it runs at full speed only while it has credits; AWS's T1 always.
        interruption_band: how often it is preempted, an index into :data:`INTERRUPTION_BANDS`.
        spot_zones: its spot prices by zone: first that of ``spot_usd_per_hour`` (in a catalog the
            cheapest zone, in a cluster the cluster's), then the others, cheapest first.
        zones: ids of the zones that offer it.
        unusable: why no cluster can have it, such as a share of a GPU.
        known_life: how long its spot VMs lived by the user's own history.
        reserved: the pool of reserved VMs that it stands for, None for types of the open market.
        discount: share of the list price that a savings plan takes off the on-demand price.
    """

    name: str
    vcpus: int
    memory_gib: float | None = None
    network_gbps: float | None = None
    on_demand_usd_per_hour: Decimal | None = None
    spot_usd_per_hour: Decimal | None = None
    gpu: Gpu | None = None
    eflops: float | None = None
    speedups: tuple[SpeedupCurve, ...] = ()
    quota_family: str = "Standard"
    note: str = ""
    network_baseline_gbps: float | None = None
    eflops_basis: str = ""
    speedup_basis: str = ""
    cpu_architecture: str = ""
    burstable: bool = False
    current_generation: bool = True
    interruption_band: int | None = None
    spot_zones: tuple[ZonePrice, ...] = ()
    zones: tuple[str, ...] = ()
    unusable: str = ""
    eflops_source: str = ""
    default_speedup: str = ""
    known_life: KnownLifetime | None = None
    reserved: Reservation | None = None
    discount: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip():
            raise RequestError("name", self.name, "a name without surrounding blanks")
        _keep(self, vcpus=to_whole(self.vcpus, "vcpus", "a whole number >= 1", least=1))
        for option in ("memory_gib", "network_gbps", "network_baseline_gbps", "eflops"):
            if (value := getattr(self, option)) is not None:
                _keep(self, **{option: to_positive(value, option)})
        if (band := self.interruption_band) is not None:
            allowed = "0 to 4, or None when unknown"
            band = to_whole(band, "interruption_band", allowed, least=0, most=4)
            _keep(self, interruption_band=band)
        # AWS reports BurstablePerformanceSupported only from T2 on
        if self.name.startswith("t1."):
            _keep(self, burstable=True)
        for option in ("on_demand_usd_per_hour", "spot_usd_per_hour"):
            if (value := getattr(self, option)) is not None:
                _keep(self, **{option: _exact(value, option)})
        if self.spot_zones:
            first, *others = self.spot_zones
            if first.usd_per_hour != self.spot_usd_per_hour:
                allowed = f"spot_usd_per_hour, {self.spot_usd_per_hour}, as the first zone's price"
                raise RequestError("spot_zones", first.usd_per_hour, allowed)
            refuse_twice("spot_zones", (z.zone for z in self.spot_zones))
            _keep(self, spot_zones=(first, *sorted(others, key=lambda z: z.usd_per_hour)))

    @property
    def type_name(self) -> str:
        if self.reserved is None:
            return self.name
        return self.reserved.instance_type

    @property
    def left_s(self) -> float:
        """Seconds until a pool of reserved VMs ends, infinite for everything else."""
        if self.reserved is None or self.reserved.left_s is None:
            return math.inf
        return self.reserved.left_s

    @property
    def memory_bytes(self) -> int | None:
        if self.memory_gib is None:
            return None
        return int(self.memory_gib * GIB)

    def usd_per_hour(self, market: Market) -> Decimal | None:
        if market is Market.SPOT:
            return self.spot_usd_per_hour
        return self.on_demand_usd_per_hour

    def micro_usd_per_hour(self, market: Market) -> int | None:
        price = self.usd_per_hour(market)
        if price is None:
            return None
        return to_micro_usd(price)

    @property
    def flopp_spot(self) -> float | None:
        """Operations per dollar of a spot VM (DeepVM eq. 1); None if unknown."""
        if self.eflops is None or self.spot_usd_per_hour is None:
            return None
        return flopp(self.eflops, float(self.spot_usd_per_hour))

    def memory_node_gbps(self, rule: MemoryNodeRule) -> float | None:
        if rule.sustained and self.network_baseline_gbps is not None:
            return self.network_baseline_gbps
        return self.network_gbps

    def in_zone(self, zone: ZonePrice) -> InstanceType:
        """The type at the spot price of one of its zones, which comes first in ``spot_zones``."""
        if zone == self.spot_zones[0]:
            return self
        others = (z for z in self.spot_zones if z.zone != zone.zone)
        return replace(self, spot_usd_per_hour=zone.usd_per_hour, spot_zones=(zone, *others))

    def only_in(self, zone: str) -> InstanceType | None:
        """The type as sold in one zone, None if it is not; with unknown zones, anywhere."""
        spot = tuple(z for z in self.spot_zones if z.zone == zone)
        if self.zones and zone not in self.zones and not spot:
            return None
        if not self.spot_zones:
            return self
        price = spot[0].usd_per_hour if spot else None
        if price is None and self.on_demand_usd_per_hour is None:
            return None
        return replace(self, spot_zones=spot, spot_usd_per_hour=price)

    def curve(self, kind: str) -> SpeedupCurve | None:
        """The curve of this kind that is not tied to a workload, or None."""
        return next((c for c in self.speedups if c.kind == kind and c.workload is None), None)


@dataclass(frozen=True)
class Quota:
    """The most vCPUs that an account may run in one family and market.

    ``in_use``: by running VMs. ``code``, ``title``: the provider's id and name of it.
    """

    family: str
    market: Market
    vcpus: int
    in_use: int = 0
    code: str = ""
    title: str = ""

    def __post_init__(self) -> None:
        try:
            _keep(self, market=Market(self.market))
        except ValueError:
            raise RequestError(
                "market", self.market, " or ".join(m.value for m in Market)
            ) from None
        for option in ("vcpus", "in_use"):
            value = to_whole(getattr(self, option), option, "a whole number >= 0", least=0)
            _keep(self, **{option: value})

    @property
    def left(self) -> int:
        return max(0, self.vcpus - self.in_use)

    @property
    def label(self) -> str:
        """What to search for in the provider's console: name and code, else the family."""
        if self.code and self.title:
            return f"{self.title} ({self.code})"
        return self.family


@dataclass(frozen=True)
class Catalog:
    """Everything that can be rented in one region, with the tables that the planner needs.

    Attributes:
        region: the provider's region, empty when the types are invented.
        n_sat: senders at network saturation by bandwidth. memory_nodes: what a VM must have to hold
            checkpoints.
        quotas: account limits; a family and market without one is unlimited.
        default_speedup: the kind of curve to use unless the user asks for another.
        absent: why types that people know are not offered, by name or glob (``p2.*``).
        rates: what the cloud charges besides VMs, None if unknown.
        grace_s: from the first warning until a spot VM is gone, None if unknown.
        unsure: why it is unknown whether what is listed can be had there.
    """

    name: str
    instances: tuple[InstanceType, ...]
    region: str = ""
    n_sat: SaturationTable = PAPER_TABLE
    quotas: tuple[Quota, ...] = ()
    default_speedup: str = "hybrid"
    eflops_unit: str = "eFLOPS"
    description: str = ""
    provenance: Provenance = field(default_factory=Provenance)
    absent: Mapping[str, str] = field(default_factory=dict, hash=False)
    memory_nodes: MemoryNodeRule = REAL_NODES
    rates: Rates | None = None
    grace_s: float | None = None
    unsure: str = ""

    def __post_init__(self) -> None:
        """Price each type in its cheapest zone. Raises RequestError: no or duplicate types."""
        if not self.instances:
            raise RequestError("instances", (), "at least one instance type")
        refuse_twice("instances", (i.name for i in self.instances))
        refuse_twice("quotas", (f"{q.family} {q.market.value}" for q in self.quotas))
        cheapest = (
            min(i.spot_zones, key=lambda z: z.usd_per_hour, default=None) for i in self.instances
        )
        sold = zip(self.instances, cheapest, strict=True)
        _keep(self, instances=tuple(i if zone is None else i.in_zone(zone) for i, zone in sold))

    def __repr__(self) -> str:
        gpus = sum(i.gpu is not None for i in self.instances)
        as_of = self.provenance.prices_as_of
        dated = f", prices of {as_of}" if as_of else ""
        return f"<Catalog {self.name}: {len(self.instances)} types, {gpus} with GPUs{dated}>"

    def sustained(self) -> Catalog:
        """The catalog with sustained bandwidths; raises a MissingDataError if no type has one."""
        if all(i.network_baseline_gbps is None for i in self):
            raise MissingDataError(
                f"catalog {self.name} does not say what networks sustain (network_baseline_gbps);"
                " use --network peak"
            )
        return replace(
            self, instances=tuple(replace(i, network_gbps=i.network_baseline_gbps) for i in self)
        )

    @cached_property
    def zones(self) -> Mapping[str, str]:
        """Zone ids that offer something, with their names in the user's account ("" if unknown)."""
        ids = {zone: "" for i in self for zone in i.zones}
        return dict(sorted((ids | {z.zone: z.name for i in self for z in i.spot_zones}).items()))

    @cached_property
    def pool_quotas(self) -> tuple[Quota, ...]:
        pools = [(i, i.reserved) for i in self if i.reserved is not None]
        return tuple(Quota(i.quota_family, Market.ON_DEMAND, r.count * i.vcpus) for i, r in pools)

    def within_zone(self, zone: str) -> Catalog:
        """The types sold in one zone, at its spot prices; the rest goes to ``absent``.

        ``zone``: an id, or a name in the user's account. Raises a RequestError.
        """
        if not self.zones:
            return self
        wanted = next((i for i, name in self.zones.items() if zone in (i, name)), "")
        if not wanted:
            listed = ", ".join(f"{i} ({name})" if name else i for i, name in self.zones.items())
            raise RequestError("zone", zone, f"a zone of catalog {self.name}: {listed}")
        sold = {i.name: i.only_in(wanted) for i in self}
        kept = tuple(i for i in sold.values() if i is not None)
        if not kept:
            raise RequestError("zone", zone, "a zone in which something is offered")
        gone = [name for name, there in sold.items() if there is None]
        absent = {name: f"{name} is not offered in zone {wanted}" for name in gone}
        return replace(self, instances=kept, absent={**self.absent, **absent})

    def __iter__(self) -> Iterator[InstanceType]:
        return iter(self.instances)

    def __len__(self) -> int:
        return len(self.instances)

    @cached_property
    def by_name(self) -> Mapping[str, InstanceType]:
        return {i.name: i for i in self.instances}

    def __getitem__(self, name: str) -> InstanceType:
        if name in self.by_name:
            return self.by_name[name]
        raise MissingDataError(f"catalog {self.name} has no instance type {name!r}")


def _keep(record: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(record, name, value)


def _exact(price: Money, option: str) -> Decimal:
    exact = to_decimal(price, option, unit="$/h")
    to_micro_usd(exact)  # which refuses more than six decimals
    return exact


def refuse_twice(option: str, names: Iterable[str]) -> None:
    """Raise a RequestError for the first name that occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RequestError(option, name, "every name once")
        seen.add(name)


def find_quota(quotas: Iterable[Quota], family: str, market: Market) -> Quota | None:
    """The quota of a family and market, None without a limit."""
    return next((q for q in quotas if q.family == family and q.market is market), None)


def quota_limit(quotas: Iterable[Quota], family: str, market: Market) -> int | None:
    """VCPUs that may still be started in a family and market, None without a limit."""
    quota = find_quota(quotas, family, market)
    if quota is None:
        return None
    return quota.left


def flopp(eflops: float, usd_per_hour: float) -> float:
    """FLOPP, operations per dollar (DeepVM eq. 1): eFLOPS x 3600 / price in $/h."""
    return eflops * 3600 / usd_per_hour
