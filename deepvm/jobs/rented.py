"""What a job rents: as its file says, by a plan, or what is recommended for its budget."""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from deepvm.catalog import clouds
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.cluster import Cluster
from deepvm.core.cluster.instances import InstanceType
from deepvm.core.cluster.plan import Plan
from deepvm.core.options import USUAL_MODEL
from deepvm.documents.inputs.plan import load_plan
from deepvm.errors import DataError, RequestError
from deepvm.jobs.jobfile import JobFile
from deepvm.jobs.static_hosts import StaticHosts, pool_of
from deepvm.records import dataclass, replace


@dataclass(frozen=True)
class RentalPlan:
    """Machines of one type, some on demand, and anchors."""

    type: str
    least: int
    most: int
    steadies: int
    anchor: str = ""
    anchors: int = 0
    others: tuple[str, ...] = ()  # types of the next-ranked clusters, as replacements
    other_anchors: tuple[str, ...] = ()
    usd_per_hour: float | None = None  # the budget for which it was recommended


def rented_of(job: JobFile, job_folder: Path) -> RentalPlan:
    """What the job file in ``job_folder`` asks for. Raises RequestError."""
    machines = job.machines
    if machines.type is not None:
        least, most = _counts(job, 1)
        steadies = most if machines.market == "on-demand" else 0
        rented = RentalPlan(machines.type, least, most, steadies)
    elif machines.plan is not None:
        rented = _planned(job_folder / machines.plan, machines.plan)
    else:
        assert job.budget.usd_per_hour is not None
        rented = _recommended(job.budget.usd_per_hour)
    if job.anchor is None:
        return rented
    if job.anchor == "none":
        return replace(rented, anchor="", anchors=0, other_anchors=())
    return replace(rented, anchor=job.anchor.type, anchors=max(rented.anchors, 1), other_anchors=())


def taken_of(job: JobFile, own: StaticHosts) -> RentalPlan:
    """The hosts that a job takes: all that train, or ``count``. Raises RequestError: too few."""
    anchor = job.anchor.type if job.anchor not in (None, "none") else ""
    if anchor and not any(p.instance_type == anchor for p in own.pools()):
        raise RequestError(
            "anchor.type", anchor, "the type= of a host in the file of machines.hosts"
        )
    train = [pool_of(host) for host in own.hosts if pool_of(host).instance_type != anchor]
    least, most = _counts(job, len(train))
    if not 1 <= most <= len(train):
        raise RequestError("machines.count", most, f"at most {len(train)}, the hosts that train")
    return RentalPlan(train[0].instance_type, least, most, most, anchor, 1 if anchor else 0)


def _counts(job: JobFile, default: int) -> tuple[int, int]:
    count = job.machines.count or default
    if isinstance(count, int):
        return (count, count)
    return (count.min, count.max)


def _planned(file: Path, name: str) -> RentalPlan:
    try:
        plan = load_plan(file)
    except DataError as error:
        allowed = f"a plan of 'deepvm recommend -o json': {error}"
        raise RequestError("machines.plan", name, allowed) from None
    if not (sold_by := clouds.cloud_of(plan.source.catalog)).has_api:
        there = f"'deepvm export --to skypilot' starts those of {sold_by.title}"
        allowed = f"a plan of AWS, where jobs rent machines; {there}"
        raise RequestError("machines.plan", name, allowed)
    if plan.reserved:
        there = "'deepvm export --to torchrun' trains on reserved ones"
        allowed = f"a plan without reserved VMs: jobs rent theirs; {there}"
        raise RequestError("machines.plan", name, allowed)
    others = []
    with suppress(RequestError):  # until there is no such rank
        for rank in itertools.count(2):
            others.append(_of_plan(load_plan(file, rank)))
    rented = _with_fallbacks(_of_plan(plan), others)
    return replace(rented, usd_per_hour=None if plan.budget is None else float(plan.budget))


def _of_plan(plan: Plan) -> RentalPlan:
    count = plan.training_count
    rented = RentalPlan(plan.training.instance_type, count, count, plan.training.on_demand_count)
    memory = plan.memory
    if memory is None:
        return rented
    return replace(rented, anchor=memory.instance_type, anchors=memory.on_demand_count)


def _recommended(usd_per_hour: float) -> RentalPlan:
    from deepvm.catalog.published.performance import workload
    from deepvm.planner.recommend import solve
    from deepvm.planner.request import PlanRequest

    request = PlanRequest.parse(usd_per_hour, training=workload(model=USUAL_MODEL))
    answer = solve(load_catalog(), request)
    if answer.infeasible:
        raise RequestError(
            "budget.usd_per_hour",
            usd_per_hour,
            f"one that buys a cluster: {answer.infeasible.reason}",
        )
    best, *others = (_of_cluster(row.cluster) for row in answer)
    return _with_fallbacks(best, others)


def _of_cluster(cluster: Cluster) -> RentalPlan:
    count = cluster.gpu_count
    rented = RentalPlan(cluster.gpu.name, count, count, cluster.on_demand_count)
    memory = cluster.memory
    if memory is None:
        return rented
    return replace(rented, anchor=memory.instance.name, anchors=memory.count)


def _with_fallbacks(best: RentalPlan, others: Iterable[RentalPlan]) -> RentalPlan:
    known = load_catalog().by_name
    ranked = list(others)

    def pairs(name: str, names: Iterable[str]) -> Iterator[tuple[InstanceType, InstanceType]]:
        for other in dict.fromkeys(names):
            if name in known and other in known and other != name:
                yield known[name], known[other]

    types = [
        other.name
        for own, other in pairs(best.type, (plan.type for plan in ranked))
        if own.gpu and other.gpu and own.gpu.count == other.gpu.count  # ranks per machine
    ]
    anchors = [
        other.name
        for own, other in pairs(best.anchor, (plan.anchor for plan in ranked))
        if 0 < (own.memory_gib or 0) <= (other.memory_gib or 0)
    ]
    return replace(best, others=tuple(types), other_anchors=tuple(anchors))
