"""A plan: a cluster read from ``deepvm recommend -o json``; names and prices, no catalog."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal

from deepvm.core.cluster.instances import Market, ZonePrice
from deepvm.errors import RequestError
from deepvm.records import dataclass, replace

# Roles of VMs: training, training and keeping the checkpoints, holding checkpoints in memory
TRAINING, ANCHOR, MEMORY = "training", "anchor", "memory"


@dataclass(frozen=True)
class PlannedVms:
    """Equal VMs of a plan; what the plan does not say is None or empty."""

    instance_type: str
    spot_count: int = 0
    on_demand_count: int = 0
    spot_usd_per_hour: Decimal | None = None
    on_demand_usd_per_hour: Decimal | None = None
    gpu_name: str = ""
    gpus_per_vm: int | None = None
    cpu_architecture: str = ""
    zones: tuple[ZonePrice, ...] = ()  # spot prices, cheapest first
    offered_in: tuple[str, ...] = ()  # ids of all zones that offer the type
    on_demand_discount: Decimal = Decimal(0)  # that a savings plan takes off
    reserved: str = ""  # the pool of reserved VMs


@dataclass(frozen=True)
class PlannedGroup:
    """Equal VMs of a plan, in one market for one role (:data:`TRAINING`, :data:`ANCHOR`...)."""

    role: str
    vms: PlannedVms
    market: Market
    count: int

    @property
    def instance_type(self) -> str:
        return self.vms.instance_type

    @property
    def usd_per_hour(self) -> Decimal | None:
        if self.market is Market.SPOT:
            return self.vms.spot_usd_per_hour
        return self.vms.on_demand_usd_per_hour

    def __str__(self) -> str:
        return f"{self.count} x {self.instance_type} ({self.market.value})"


@dataclass(frozen=True)
class PlanSource:
    """The source of a plan's prices (see ``deepvm.core.cluster.provenance``); empty if unknown."""

    catalog: str = ""
    kind: str = ""
    prices_as_of: date | None = None
    source: str = ""
    basis: str = ""


@dataclass(frozen=True)
class PlannedDisk:
    """The disk that a plan's bill counts per VM; ``kind``: empty for the cloud's default."""

    gb: int
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.gb} GB" + (f" of {self.kind}" if self.kind else "")


@dataclass(frozen=True)
class Plan:
    """One configuration of a recommendation, rank 1 being the best."""

    rank: int
    architecture: str
    training: PlannedVms
    memory: PlannedVms | None
    usd_per_hour: Decimal  # of all VMs together
    region: str = ""
    zone: str = ""  # id of the one to start in
    budget: Decimal | None = None
    source: PlanSource = PlanSource()
    warnings: tuple[str, ...] = ()
    disk: PlannedDisk | None = None  # that the bill counts
    nat: bool = False  # whether the bill counts a gateway

    @property
    def groups(self) -> tuple[PlannedGroup, ...]:
        """The groups that are not empty: VMs that train, spot first, then memory nodes."""
        vms = self.training
        memory = self.memory
        kept = ANCHOR if vms.spot_count else TRAINING
        groups = [
            PlannedGroup(TRAINING, vms, Market.SPOT, vms.spot_count),
            PlannedGroup(kept, vms, Market.ON_DEMAND, vms.on_demand_count),
        ]
        if memory:
            groups.append(PlannedGroup(MEMORY, memory, Market.ON_DEMAND, memory.on_demand_count))
        return tuple(g for g in groups if g.count)

    @property
    def reserved(self) -> tuple[str, ...]:
        return tuple(
            vms.reserved for vms in (self.training, self.memory) if vms is not None and vms.reserved
        )

    @property
    def training_count(self) -> int:
        return self.training.spot_count + self.training.on_demand_count

    @property
    def rendezvous(self) -> PlannedGroup:
        """The group whose first VM is the meeting point: an on-demand one if there is any."""
        return min(self.groups, key=lambda g: g.market is Market.SPOT)

    @property
    def mixes_cpu_architectures(self) -> bool:
        known = {vms.cpu_architecture for vms in (self.training, self.memory) if vms is not None}
        return len(known - {""}) > 1

    def in_zones(self, zones: Sequence[str]) -> Plan:
        """The plan in these zones (ids or names), in all if none is given. Raises RequestError."""
        if not zones:
            return self
        known = self.training.zones
        complete = self.sound().training.zones
        for zone in zones:
            found = [z for z in known if zone in (z.zone, z.name)]
            if not found:
                none = (
                    "none: this plan was made from prices without zones; --subnet decides where it"
                    " starts"
                )
                raise RequestError(
                    "zone", zone, f"zones of the plan: {', '.join(map(str, known)) or none}"
                )
            if self.memory and found[0] not in complete:
                both = ", ".join(map(str, complete)) or "none"
                raise RequestError(
                    "zone", zone, f"zones that offer {self.memory.instance_type} too: {both}"
                )
        return self._only([z for z in known if z.zone in zones or (z.name and z.name in zones)])

    def _only(self, zones: Sequence[ZonePrice]) -> Plan:
        start = self.zone
        if zones and all(z.zone != start for z in zones):
            start = zones[0].zone
        return replace(self, zone=start, training=replace(self.training, zones=tuple(zones)))

    def usd_per_hour_in(self, zone: ZonePrice) -> Decimal:
        """Price of all VMs together, $/h, when the spot VMs run in this zone."""
        spot = self.training.spot_usd_per_hour or zone.usd_per_hour
        return self.usd_per_hour + self.training.spot_count * (zone.usd_per_hour - spot)

    @property
    def most_usd_per_hour(self) -> Decimal:
        """$/h of all VMs together if the spot VMs run in the plan's most expensive zone."""
        return max([self.usd_per_hour, *(self.usd_per_hour_in(z) for z in self.training.zones)])

    def sound(self) -> Plan:
        """The plan in the zones that offer its memory nodes, as far as known, at any price."""
        nodes = self.memory.offered_in if self.memory else ()
        kept = [z for z in self.training.zones if not nodes or z.zone in nodes]
        if len(kept) == len(self.training.zones):
            return self
        return self._only(kept)

    def within_budget(self) -> Plan:
        """The plan in the zones within the budget, and in the one to start in."""
        if self.budget is None:
            most = Decimal("inf")
        else:
            most = self.budget
        kept = [
            z for z in self.training.zones if z.zone == self.zone or self.usd_per_hour_in(z) <= most
        ]
        if kept:
            return self._only(kept)
        return self

    def __str__(self) -> str:
        return " + ".join(map(str, self.groups))
