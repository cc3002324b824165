"""What can be rented: instance types with their prices, quotas, and the catalogue that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum

from deepvm.core.saturation import PAPER_TABLE, SaturationTable
from deepvm.core.speedup import SpeedupCurve
from deepvm.core.units import GIB, Money, to_decimal, to_micro_usd
from deepvm.errors import MissingDataError, RequestError


class Market(str, Enum):
    """How a VM is bought."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True)
class Gpu:
    """The GPUs of one VM.

    Attributes:
        name: model, such as ``T4``. count: whole GPUs in the VM. memory_gib: GiB of each GPU, None if unknown.
    """

    name: str
    count: int = 1
    memory_gib: float | None = None
    manufacturer: str = "NVIDIA"

    def __post_init__(self) -> None:
        """Refuse fractional or absent GPUs.

        Raises:
            RequestError: count below 1.
        """
        if not 1 <= self.count < float("inf") or self.count != int(self.count):
            raise RequestError("gpu.count", self.count, "a whole number of GPUs >= 1")


@dataclass(frozen=True)
class InstanceType:
    """A VM type in one region.

    Prices may be given as anything that :data:`deepvm.core.units.Money` allows; they are kept as exact decimals with
    at most six decimals.

    Attributes:
        name: the provider's name, ``g4dn.xlarge``.
        vcpus: virtual CPUs.
        memory_gib: GiB of main memory, None if unknown.
        network_gbps: network bandwidth in Gbit/s, None if unknown.
        on_demand_usd_per_hour: $/h, None where it is not sold on demand.
        spot_usd_per_hour: $/h, None where it has no spot market.
        gpu: its GPUs, None for a CPU type.
        eflops: measured operations per second in the catalogue's unit, None when nobody has profiled it.
        speedups: its speed-up curves, at most one general one of each kind.
        quota_family: the provider's quota that its vCPUs count against.
        note: anything a person should know.
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

    def __post_init__(self) -> None:
        """Make prices exact and refuse figures that cannot be true.

        Raises:
            RequestError: naming the attribute, the value and what is allowed.
        """
        if not self.name or self.name != self.name.strip():
            raise RequestError("name", self.name, "a name without surrounding blanks")
        if not 1 <= self.vcpus < float("inf") or self.vcpus != int(self.vcpus):
            raise RequestError("vcpus", self.vcpus, "a whole number >= 1")
        for option in ("memory_gib", "network_gbps", "eflops"):
            value = getattr(self, option)
            if value is not None and not 0 < value < float("inf"):
                raise RequestError(option, value, "a finite number > 0, or None when unknown")
        for option in ("on_demand_usd_per_hour", "spot_usd_per_hour"):
            price: Money | None = getattr(self, option)
            if price is not None:
                exact = to_decimal(price, option, unit="$/h")
                to_micro_usd(exact)
                object.__setattr__(self, option, exact)

    @property
    def memory_bytes(self) -> int | None:
        """Main memory in whole bytes."""
        return None if self.memory_gib is None else int(self.memory_gib * GIB)

    def usd_per_hour(self, market: Market) -> Decimal | None:
        """The price in a market, None where it is not sold there."""
        return self.spot_usd_per_hour if market is Market.SPOT else self.on_demand_usd_per_hour

    def micro_usd_per_hour(self, market: Market) -> int | None:
        """The price in whole micro-dollars an hour, None where it is not sold in this market."""
        price = self.usd_per_hour(market)
        return None if price is None else to_micro_usd(price)

    def curve(self, kind: str) -> SpeedupCurve | None:
        """The general curve of this kind (the one that is not tied to a workload), or None."""
        return next((c for c in self.speedups if c.kind == kind and c.workload is None), None)


@dataclass(frozen=True)
class Quota:
    """The most vCPUs that an account may run in one family and market, inclusive.

    ``market`` may be given as its value, ``"spot"`` or ``"on-demand"``.
    """

    family: str
    market: Market
    vcpus: int

    def __post_init__(self) -> None:
        """Read the market and refuse a limit that is not a whole number >= 0.

        Raises:
            RequestError: naming the attribute, the value and what is allowed.
        """
        try:
            object.__setattr__(self, "market", Market(self.market))
        except ValueError:
            raise RequestError("market", self.market, " or ".join(m.value for m in Market)) from None
        if not 0 <= self.vcpus < float("inf") or self.vcpus != int(self.vcpus):
            raise RequestError("vcpus", self.vcpus, "a whole number >= 0")


@dataclass(frozen=True)
class Provenance:
    """Where a catalogue's figures come from.

    Attributes:
        kind: ``embedded`` or ``file`` (later also ``live``, ``cache``).
        prices_as_of: the day the prices were true, None when the catalogue is invented.
        source: the publication or service, in words.
    """

    kind: str = "file"
    prices_as_of: date | None = None
    source: str = ""


@dataclass(frozen=True)
class Catalog:
    """Everything that can be rented in one region, with the tables that the planner needs.

    Attributes:
        name: what the user calls it. region: the provider's region, empty when the types are invented.
        instances: the types, names unique.
        n_sat: senders at network saturation by bandwidth.
        quotas: account limits; a family and market without one is unlimited.
        default_speedup: the kind of curve to use unless the user says otherwise.
        eflops_unit: what ``eflops`` counts, in words.
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

    def __post_init__(self) -> None:
        """Refuse an empty catalogue and names or quotas that stand twice.

        Raises:
            RequestError: naming the duplicates.
        """
        if not self.instances:
            raise RequestError("instances", (), "at least one instance type")
        refuse_twice("instances", (i.name for i in self.instances))
        refuse_twice("quotas", (f"{q.family} {q.market.value}" for q in self.quotas))

    def __iter__(self) -> Iterator[InstanceType]:
        """The types in the catalogue's order."""
        return iter(self.instances)

    def __len__(self) -> int:
        """How many types there are."""
        return len(self.instances)

    def __getitem__(self, name: str) -> InstanceType:
        """One type by its name.

        Raises:
            MissingDataError: no such type.
        """
        for instance in self.instances:
            if instance.name == name:
                return instance
        raise MissingDataError(f"catalogue {self.name} has no instance type {name!r}")


def refuse_twice(option: str, names: Iterable[str]) -> None:
    """Make sure that every name stands once.

    Raises:
        RequestError: naming the first that stands twice.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RequestError(option, name, "every name once")
        seen.add(name)


def quota_limit(quotas: Iterable[Quota], family: str, market: Market) -> int | None:
    """VCPUs allowed in a family and market, None without a limit."""
    return next((q.vcpus for q in quotas if q.family == family and q.market is market), None)
