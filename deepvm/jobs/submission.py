"""From a job file to a job that a controller can run: its folder, its code, its secret, the pools of its machines."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from deepvm.catalog.documents.plan_file import load_plan
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.errors import DataError, JobFormatError, RequestError
from deepvm.jobs.clouds.base import Cloud, Distant
from deepvm.jobs.clouds.registry import find_cloud, open_cloud
from deepvm.jobs.controller.controller import Submitted
from deepvm.jobs.controller.injector import Injection
from deepvm.jobs.history import History, JobRow, own_folder
from deepvm.jobs.jobfile import Anchor, JobFile, Range
from deepvm.jobs.pool_choice import in_order
from deepvm.jobs.states import Job
from deepvm.jobs.wire import new_secret
from deepvm.jobs.world import Pool, Terms, World

CODE, SECRET = "code.tar.gz", "secret"
ORPHAN_AFTER_S = 1800.0
_MEMORY = "1GiB"


@dataclass(frozen=True)
class Prices:
    """Of one machine of a job, $/h: what it pays, and on demand (None if unknown)."""

    usd: float
    on_demand_usd: float | None


def jobs_folder() -> Path:
    """Where the jobs of this user are."""
    return own_folder() / "jobs"


def instance_of(name: str, option: str = "machines.type") -> InstanceType:
    """A type of the embedded catalog. Raises RequestError: there is none of that name."""
    catalog = load_catalog()
    if name not in catalog.by_name:
        raise RequestError(option, name, "an instance type of the catalog; see 'deepvm catalog show'")
    return catalog[name]


def world_of(job: JobFile, beside: Path, now_s: float, lives: Iterable[Mapping[str, Any]] = ()) -> World:
    """What the controller knows before anything has happened.

    ``beside``: the job file's folder. ``lives``: the history's machines, by which zones are put in order.

    Raises RequestError, RefusedError, UnknownError, or what reading its plan raises.
    """
    wanted, budget = rented_of(job, beside), job.budget
    grace_s = job.inject.grace if job.inject else 120.0
    cloud, known = cloud_of(job.cloud), list(lives)
    whole = job.machines.zone or (cloud.whole() if isinstance(cloud, Distant) else job.cloud)

    def pool(name: str, market: Market, option: str, zone: str = whole, usd: float | None = None) -> Pool:
        price = instance_of(name, option).usd_per_hour(market) if usd is None else usd
        if price is None:
            raise RequestError(option, name, f"a type with a price in the market {market.value}")
        return Pool(name, zone, market.value, float(price), grace_s)

    def spots(name: str) -> tuple[Pool, ...]:
        """The pools of a type, zone by zone: between zones traffic costs more than the machines do."""
        if not isinstance(cloud, Distant):
            return (pool(name, Market.SPOT, "machines.type"),)
        prices = {z: usd for z, usd in cloud.zones(name, Market.SPOT.value).items() if z.startswith(whole)}
        if not prices:
            raise RequestError("machines.zone", whole, f"a zone of {cloud.whole()} with a subnet that offers {name}")
        if wanted.most == 1 and not wanted.anchors:  # it has nobody to talk to: the cloud knows best
            known_usd = [usd for usd in prices.values() if usd is not None]
            return (pool(name, Market.SPOT, "machines.type", usd=min(known_usd, default=None)),)
        found = [pool(name, Market.SPOT, "machines.type", zone, usd) for zone, usd in prices.items()]
        return in_order(found, known, now_s)

    on_demand = pool(wanted.type, Market.ON_DEMAND, "machines.type") if wanted.steadies else None
    spot = wanted.steadies < wanted.most
    near = find_cloud(job.cloud).near
    terms = Terms(
        silent_s=4.0 if near else 15.0,
        lost_s=15.0 if near else 45.0,
        absent_s=10.0 if near else 60.0,
        least=wanted.least,
        most=wanted.most,
        total_usd=budget.total_usd,
        end_s=None if budget.deadline is None else now_s + budget.deadline,
        policy=parse_policy(job.save_policy),
        anchor=pool(wanted.anchor, Market.ON_DEMAND, "anchor.type") if wanted.anchors else None,
        anchors=wanted.anchors,
        steady=on_demand if spot else None,
        steadies=wanted.steadies if spot else 0,
    )
    if isinstance(cloud, Distant) and not spot:
        cloud.zones(wanted.type, Market.ON_DEMAND.value)  # says what is missing before anything is written down
    others = wanted.others if isinstance(cloud, Distant) else ()
    pools = [p for name in (wanted.type, *others) for p in spots(name)] if spot else [on_demand]
    return World(terms=terms, now_s=now_s, pools=tuple(p for p in pools if p is not None))


@dataclass(frozen=True)
class Rented:
    """What a job rents: machines of one type, so many of them on demand, and those that keep versions.

    ``others``: the types of the next-ranked clusters, for when none of this one are to be had.
    """

    type: str
    least: int
    most: int
    steadies: int
    anchor: str = ""
    anchors: int = 0
    others: tuple[str, ...] = ()


def rented_of(job: JobFile, beside: Path) -> Rented:
    """As the job file says: by type and count, by a plan, or what is recommended for its budget."""
    machines, count = job.machines, job.machines.count
    found: Rented
    if machines.type is not None:
        least, most = (count.min, count.max) if isinstance(count, Range) else (count or 1, count or 1)
        found = Rented(machines.type, least, most, most if machines.market == "on-demand" else 0)
    elif machines.plan is not None:
        plan = load_plan(beside / machines.plan)
        vms, memory = plan.training, plan.memory
        found = Rented(vms.instance_type, plan.training_count, plan.training_count, vms.on_demand_count)
        found = replace(found, others=_alike(vms.instance_type, _next_of_plan(beside / machines.plan)))
        if memory is not None:
            found = replace(found, anchor=memory.instance_type, anchors=memory.on_demand_count)
    else:
        assert job.budget.usd_per_hour is not None
        found = _recommended(job.budget.usd_per_hour)
    if isinstance(job.anchor, Anchor):
        return replace(found, anchor=job.anchor.type, anchors=max(found.anchors, 1))
    return replace(found, anchor="", anchors=0) if job.anchor == "none" else found


def _recommended(usd_per_hour: float) -> Rented:
    """The best cluster for a budget. Raises RequestError: it buys none."""
    from deepvm.planner.recommend import recommend

    answer = recommend(load_catalog(), str(usd_per_hour))
    if not answer:
        why = "" if answer.infeasible is None else answer.infeasible.reason
        raise RequestError("budget.usd_per_hour", usd_per_hour, f"one that buys a cluster: {why}")
    best = answer[0].cluster
    memory = best.memory
    return Rented(
        best.gpu.name,
        best.gpu_count,
        best.gpu_count,
        best.on_demand_count,
        "" if memory is None else memory.instance.name,
        0 if memory is None else memory.count,
        _alike(best.gpu.name, [row.cluster.gpu.name for row in answer[1:]]),
    )


def _next_of_plan(file: Path) -> Iterator[str]:
    """The types of the configurations of a plan's file, from the second on."""
    for rank in itertools.count(2):
        try:
            yield load_plan(file, rank).training.instance_type
        except RequestError:  # there is no such rank
            return


def _alike(name: str, others: Iterable[str]) -> tuple[str, ...]:
    """Types that can stand in for one: known ones with as many GPUs, as each machine has as many ranks."""
    catalog = load_catalog()

    def gpus(one: str) -> int:
        found = catalog.by_name.get(one)
        return 0 if found is None or found.gpu is None else found.gpu.count

    return tuple(dict.fromkeys(other for other in others if other != name and 0 < gpus(other) == gpus(name)))


def cloud_of(name: str) -> Cloud:
    """The cloud of this name, for this user's jobs. Raises RequestError, RefusedError."""
    return open_cloud(name, jobs_folder())


@contextlib.contextmanager
def about(file: Path) -> Iterator[None]:
    """Turn errors about keys of a job file into errors that name the file."""
    try:
        yield
    except RequestError as error:
        raise JobFormatError(str(file), [error.about(error.option)]) from None


def submit(job: JobFile, file: Path, history: History) -> tuple[Submitted, World]:
    """Write a new job down: from now on it can be resumed. Raises RequestError, JobFormatError, DataError."""
    now_s, beside = time.time(), file.parent
    with about(file):
        cloud = cloud_of(job.cloud)
        if isinstance(cloud, Distant):
            cloud.host(job.name)  # whether its machines would find a controller here
        world, folder = world_of(job, beside, now_s, history.machines()), jobs_folder() / job.name
    known = history.job(job.name)
    if known is not None:
        cure = f"another name: --name {job.name}-2"
        if known.result is None:
            cure += f", or go on with it: deepvm jobs resume {job.name}"
        raise RequestError("name", job.name, f"a name that no job has had; {cure}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        descriptor = os.open(folder / SECRET, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="ascii") as secret:
            secret.write(new_secret())
        if job.code is not None:
            pack(beside / job.code, folder / CODE)
    except OSError as error:
        raise DataError(f"{error.filename or folder}: {error.strerror or error}") from None
    spec = {**job.model_dump(mode="json"), "instance_type": _trains(world).instance_type}
    if not history.add_job(job.name, now_s, folder, spec, world):
        raise RequestError("name", job.name, "a name that no job has had")
    return submitted(job.name, folder, spec), world


def _trains(world: World) -> Pool:
    return world.pools[0]


def secret_in(folder: Path) -> str:
    """The secret of a job. Raises DataError."""
    try:
        return (folder / SECRET).read_text(encoding="ascii").strip()
    except OSError as error:
        raise DataError(f"{folder / SECRET}: {error.strerror or error}; without it the job cannot be reached") from None


def submitted(name: str, folder: Path, spec: Mapping[str, Any]) -> Submitted:
    """A job as its controller runs it, from what was written down. Raises DataError."""
    instance = instance_of(spec["instance_type"])
    inject = spec["inject"]
    cloud = cloud_of(spec["cloud"])
    own = cloud.tier(name) if isinstance(cloud, Distant) else (folder / "versions").as_uri()
    tiers = list(spec["tiers"]) or [own]
    told = {
        "train": spec["train"],
        "launcher": spec["launcher"],
        "env": spec["env"],
        "setup": spec["setup"],
        "tiers": tiers,
        "save_policy": spec["save_policy"],
        "per_machine": instance.gpu.count if instance.gpu else 1,
        "orphan_after_s": ORPHAN_AFTER_S,
        "anchor_memory": (spec["anchor"].get("memory") if isinstance(spec["anchor"], dict) else None) or _MEMORY,
    }
    injection = None
    if inject is not None:
        injection = Injection(inject["mttp"], inject["seed"], inject["count"], inject["grace"], inject["missed"])
    code = folder / CODE
    list_s = 1.0 if cloud.near else 5.0
    return Submitted(name, folder, secret_in(folder), told, code if code.exists() else None, injection, list_s)


def resumed(row: JobRow, history: History) -> tuple[Submitted, World]:
    """A job whose controller is gone, or that was stopped."""
    world = history.world(row.name)
    if world.job is Job.STOPPED:
        world = replace(world, job=Job.PENDING, ending="", save=None, formed=False, idle_s=None)
    return submitted(row.name, row.folder, row.spec), world


def on_demand_price(spec: Mapping[str, Any]) -> Decimal | None:
    """What a machine of the job costs on demand, $/h."""
    return instance_of(spec["instance_type"]).on_demand_usd_per_hour


def pack(folder: Path, target: Path) -> None:
    """An archive of a folder's code: what git would commit, or all of it where there is no git. Raises OSError."""
    names = _of_git(folder)
    hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with tarfile.open(hidden, "w:gz", compresslevel=1) as archive:
            if names is None:
                archive.add(folder, ".")
            for name in names or ():
                if (folder / name).exists() or (folder / name).is_symlink():
                    archive.add(folder / name, name, recursive=False)
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)


def _of_git(folder: Path) -> list[str] | None:
    try:
        words = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(words, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return [n for n in done.stdout.decode("utf-8", "surrogateescape").split("\0") if n] if not done.returncode else None
