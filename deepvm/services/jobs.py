"""What a job would rent, before anything is rented: ``deepvm run --dry-run``."""

import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from deepvm.catalog.published.cloud_rates import rates_of
from deepvm.catalog.store import load_catalog
from deepvm.core.bill import Bill, Rates, RentedVms, bill_of
from deepvm.core.cluster.instances import Market
from deepvm.core.extras import Extras
from deepvm.jobs.cloud import Cloud, RemoteCloud
from deepvm.jobs.clouds.registry import find_cloud
from deepvm.jobs.decisions.markets import most_usd_per_hour
from deepvm.jobs.decisions.world import JobState, Pool, Role
from deepvm.jobs.jobfile import JobFile
from deepvm.jobs.static_hosts import SSH, StaticHosts
from deepvm.jobs.submission import checked, head_pool, hosts_of, jobs_folder
from deepvm.records import dataclass, replace

# The role of the machine that runs the controller of a detached job
HEAD = "head"


@dataclass(frozen=True)
class MachineGroup:
    """Machines of one role, from ``least`` to ``most``; the first of ``pools`` is asked first."""

    role: str
    pools: Sequence[Pool]
    least: int
    most: int
    most_usd_per_hour: float | None = None
    hosts_usd_per_hour: Sequence[float] = ()  # of own hosts, each with its price

    @property
    def pool(self) -> Pool:
        return self.pools[0]

    @property
    def dearest_usd_per_hour(self) -> float:
        """What one machine can cost: its limit, else its price on demand."""
        if self.most_usd_per_hour is not None:
            return self.most_usd_per_hour
        if self.hosts_usd_per_hour:
            return self.each_usd_per_hour
        known = load_catalog().by_name
        types = [known[p.instance_type] for p in self.pools if p.instance_type in known]
        usd = [i.on_demand_usd_per_hour for i in types if self.pool.market == Market.SPOT.value]
        return max(float(one) for one in [*usd, *(p.usd_per_hour for p in self.pools)] if one)

    @property
    def each_usd_per_hour(self) -> float:
        """The price of one that is asked first; of own hosts the mean of the dearest."""
        taken = sorted(self.hosts_usd_per_hour)[-self.most :]
        if taken:
            return sum(taken) / len(taken)
        return self.pool.usd_per_hour

    @property
    def usd_per_hour(self) -> float:
        if self.hosts_usd_per_hour:
            return self.most * self.each_usd_per_hour
        return self.most * max(p.usd_per_hour for p in self.pools)


@dataclass(frozen=True)
class JobPlan:
    """What a job would rent."""

    name: str
    world: JobState
    head: Pool | None
    names: Mapping[str, str]
    rates: Rates | None = None
    hosts: StaticHosts | None = None

    @property
    def machines(self) -> list[MachineGroup]:
        terms = self.world.terms
        least = terms.least - terms.steadies
        most = terms.most - terms.steadies
        groups = [
            self._group(Role.TRAINER, self.world.pools, least, most),
            self._group(Role.TRAINER, terms.steady, terms.steadies, terms.steadies),
            self._group(Role.ANCHOR, terms.anchor, terms.anchors, terms.anchors),
        ]
        if self.head is not None:
            groups.append(MachineGroup(HEAD, (self.head,), 1, 1))
        return [group for group in groups if group.pools]

    def _group(self, role: Role, pools: Sequence[Pool], least: int, most: int) -> MachineGroup:
        limit = None
        if self.names and pools:
            limit = most_usd_per_hour(self.world, pools[0], role)
        usd = [h.usd_per_hour for p in pools for h in (self.hosts.of(p) if self.hosts else ())]
        return MachineGroup(role.value, pools, least, most, limit, usd)

    @property
    def usd_per_hour(self) -> float:
        return round(sum(group.usd_per_hour for group in self.machines), 8)

    @property
    def most_usd_per_hour(self) -> float:
        """What the machines can cost when spot prices rise, at most to those on demand."""
        return sum(group.most * group.dearest_usd_per_hour for group in self.machines)

    @property
    def most_usd(self) -> float | None:
        """What the job can still cost before it is stopped; None: no limit stops it."""
        terms = self.world.terms
        limits = [] if terms.total_usd is None else [terms.total_usd - self.world.usd]
        if terms.end_s is not None:
            limits.append(self.most_usd_per_hour * (terms.end_s - self.world.now_s) / 3600)
        return min(limits, default=None)

    @property
    def bill(self) -> Bill | None:
        """What comes besides machines, counted as in a recommendation."""
        if self.rates is None:
            return None
        spot = sum(g.most for g in self.machines if g.pool.market == Market.SPOT.value)
        count = sum(group.most for group in self.machines)
        usd_per_hour = Decimal(str(round(self.usd_per_hour, 6)))
        return bill_of(RentedVms(spot, count - spot, usd_per_hour), self.rates, Extras())


def plan_job(job: JobFile, file: Path, *, detach: bool = False) -> JobPlan:
    """The plan of a job file at ``file``; nothing is rented, the cloud is asked what is free."""
    world, cloud = checked(job, file, time.time(), detach=detach)
    plan = plan_of(job.name, job.cloud, world, cloud, detach=detach)
    return replace(plan, hosts=hosts_of(job, file.parent))


def plan_of(
    name: str, cloud_name: str, world: JobState, cloud: Cloud, *, detach: bool = False
) -> JobPlan:
    """What a job would rent from now on."""
    head = None
    if detach:
        head = head_pool(cloud)
    if not isinstance(cloud, RemoteCloud):
        hosts = None
        if cloud_name == SSH:
            hosts = StaticHosts.load(jobs_folder() / name)
        return JobPlan(name, world, head, {}, hosts=hosts)
    rates = rates_of(cloud_name, cloud.whole())
    return JobPlan(name, world, head, cloud.names(name), rates)


def costs(cloud_name: str, hosts: StaticHosts | None) -> bool:
    """Whether machines cost money."""
    if hosts is None:
        return not find_cloud(cloud_name).near
    return not hosts.reach.local and any(host.usd_per_hour for host in hosts.hosts)
