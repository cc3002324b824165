"""From a job file to a job for a controller: its folder, code, secret and pools."""

import itertools
import logging
import math
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.core.cluster.prices import PricedType, PriceSanityCheck
from deepvm.core.json_types import JsonObject
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.core.spelling import did_you_mean
from deepvm.core.units import MOST_USD
from deepvm.errors import DataError, Issue, JobFormatError, OptionMismatchError, RequestError
from deepvm.io.atomic_write import write_private
from deepvm.io.failpoints import point
from deepvm.io.file_lock import FileLock
from deepvm.jobs.cloud import Cloud, HostsController, RefusedError, RemoteCloud
from deepvm.jobs.clouds.registry import find_cloud, open_cloud
from deepvm.jobs.controller.controller import ControlledJob
from deepvm.jobs.decisions.injection import Injection
from deepvm.jobs.decisions.markets import (
    in_order,
    is_on_demand,
    least_usd_per_hour,
    most_of,
    record_of,
    within_budget,
)
from deepvm.jobs.decisions.reconcile import BUDGET, DEADLINE
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import GenerationProgress, JobLimits, JobState, Pool, Pools
from deepvm.jobs.head.mirror import HeadState
from deepvm.jobs.head.remote import has_head, is_head, is_to_be_read, needs_head
from deepvm.jobs.history.history import History, JobRow, own_folder
from deepvm.jobs.history.pools import expected_life_s, is_of_a_market
from deepvm.jobs.jobfile import FORMAT, JobFile
from deepvm.jobs.rented import rented_of, taken_of
from deepvm.jobs.standing import LOCK
from deepvm.jobs.static_hosts import SSH, StaticHosts
from deepvm.jobs.steady_clock import job_time_s
from deepvm.jobs.storage import job_code
from deepvm.jobs.storage.output_store import SCHEMES
from deepvm.jobs.wire import new_secret
from deepvm.profiling.hosts.launcher import read_hosts
from deepvm.records import dataclass, replace

log = logging.getLogger("deepvm.jobs")

CODE = "code.tar.gz"
SECRET = "secret"
ORPHAN_AFTER_S = 1800.0
_MEMORY = "1GiB"
# Limits of jobs whose machines come within seconds and whose agents report each second
_NEAR: Mapping[str, Any] = {
    "silent_s": 4.0,
    "lost_s": 15.0,
    "absent_s": 10.0,
    "restart_s": 15.0,
    "version_s": 2.0,
}
# One whose script can be looked up: no module or other work of a shell
_SCRIPT_COMMAND = re.compile(
    r"python[0-9.]*(?: -[^mc ]\S*)* ([^-\s$;&|'\"][^\s$;&|'\"]*\.py)(?: [^$;&|]*)?"
)
_SHORT_S = 600.0  # Of training without a step that is known
_GRACE_S = 120.0  # From a notice to the end, of AWS
# Keys of a job file that agents get as they are
_COPIED = ("train", "launcher", "env", "setup", "save_policy", "keep", "save_every_steps", "data")


def jobs_folder() -> Path:
    """Where the jobs of this user are."""
    return own_folder() / "jobs"


def instance_of(name: str, option: str = "machines.type") -> InstanceType:
    """A type of the embedded catalog. Raises RequestError: there is none of that name."""
    catalog = load_catalog()
    if name not in catalog.by_name:
        near = did_you_mean(name, catalog.by_name)
        allowed = "an instance type of the catalog; " + (near or "'deepvm catalog show' lists them")
        raise RequestError(option, name, allowed)
    return catalog[name]


def world_of(
    job: JobFile, job_folder: Path, now_s: float, lives: Iterable[JsonObject] = ()
) -> JobState:
    """The first world; ``lives``: history's. Raises RequestError, RefusedError, UnknownError."""
    hosts = hosts_of(job, job_folder)
    budget = job.budget
    grace_s = job.inject.grace if job.inject else _GRACE_S
    cloud = cloud_of(job.cloud)
    rents = isinstance(cloud, RemoteCloud)
    known = [m for m in lives if is_of_a_market(m)]
    whole = job.machines.zone or (cloud.whole() if isinstance(cloud, RemoteCloud) else job.cloud)

    def pool(
        name: str, market: Market, option: str, zone: str = whole, usd: float | None = None
    ) -> Pool:
        price = instance_of(name, option).usd_per_hour(market) if usd is None else usd
        if price is None:
            raise RequestError(option, name, f"a type with a price in the market {market.value}")
        return Pool(name, zone, market.value, float(price), grace_s)

    def offered(name: str, market: Market) -> dict[str, float | None]:
        if not isinstance(cloud, RemoteCloud):
            return {}
        found = plausible_prices(name, market, cloud.zones(name, market.value))
        prices = {z: usd for z, usd in found.items() if z.startswith(whole)}
        if not prices:
            raise RequestError(
                "machines.zone",
                whole,
                f"a zone of {cloud.whole()} with a subnet that offers {name}",
            )
        return prices

    def spots(name: str) -> Pools:
        """The pools of a type by zone: traffic between zones costs more than the machines."""
        prices = offered(name, Market.SPOT) or {whole: None}
        # It has no peers: the cloud knows best
        if wanted.most == 1 and not wanted.anchors:
            prices = {whole: min((usd for usd in prices.values() if usd is not None), default=None)}
        found = [
            pool(name, Market.SPOT, "machines.type", zone, usd) for zone, usd in prices.items()
        ]
        return in_order(found, known, now_s)

    def on_demand(name: str, option: str = "machines.type") -> Pools:
        offered(name, Market.ON_DEMAND)
        return (pool(name, Market.ON_DEMAND, option),)

    def ranked(pools: Callable[[str], Pools], first: str, others: Iterable[str]) -> Pools:
        found = pools(first)
        for name in others if rents else ():
            with suppress(RequestError, RefusedError):
                found += pools(name)
        return found

    bought: Pools = ()
    anchor: Pools = ()
    if hosts is not None:
        wanted = taken_of(job, hosts)
        spot = moves = False
        own = hosts.pools()
        pools = tuple(p for p in own if p.instance_type != wanted.anchor)
        anchor = tuple(p for p in own if p.instance_type == wanted.anchor)[:1]
    else:
        wanted = rented_of(job, job_folder)
        spot = wanted.steadies < wanted.most
        moves = spot and budget.deadline is not None and job.steps is not None
        if wanted.steadies or moves:
            bought = ranked(on_demand, wanted.type, wanted.others)
        if wanted.anchors:
            anchor = ranked(
                lambda name: on_demand(name, "anchor.type"), wanted.anchor, wanted.other_anchors
            )
        if spot:
            pools = ranked(spots, wanted.type, wanted.others)
        else:
            pools = bought
    hourly = [usd for usd in (budget.usd_per_hour, budget.max_price) if usd is not None]
    terms = JobLimits(
        # A host is free again as soon as its machine has ended.
        cool_s=30.0 if hosts is None else 2.0,
        least=wanted.least,
        most=wanted.most,
        total_usd=budget.total_usd,
        end_s=None if budget.deadline is None else now_s + budget.deadline,
        policy=parse_policy(job.save_policy),
        anchor=anchor,
        anchors=wanted.anchors,
        steady=bought if spot and wanted.steadies else (),
        steadies=wanted.steadies if spot else 0,
        usd_per_hour=min(hourly, default=None),
        max_price=budget.max_price,
        steps=job.steps,
        begun_s=now_s,
        deadline_policy=budget.deadline_policy if moves else "",
        bought=bought if moves else (),
        start_timeout_s=None if job.start_timeout == "none" else job.start_timeout,
        step_timeout_s=None if job.step_timeout == "none" else job.step_timeout,
        **(_NEAR if cloud.near else {}),
    )
    priors = {p: record_of(p, known, now_s) for p in pools if hosts is None}
    world = JobState(terms=terms, now_s=now_s, pools=pools, priors=priors)
    markets = [("", world)]
    if moves:  # on demand costs more: what buys that is enough
        markets.append((" on demand, which the deadline may need", replace(world, on_demand=True)))
    if short := [(market, asked) for market, asked in markets if most_of(asked) < wanted.least]:
        market, asked = short[-1]
        least_usd = math.ceil(least_usd_per_hour(asked) * 10_000) / 10_000
        allowed = f"{least_usd:g} or more, which buys {wanted.least} x {wanted.type}{market}"
        option = "max_price" if terms.usd_per_hour == budget.max_price else "usd_per_hour"
        raise RequestError(f"budget.{option}", terms.usd_per_hour, allowed)
    if terms.usd_per_hour is not None:
        return within_budget(world, terms.usd_per_hour)
    return within_budget(world, wanted.usd_per_hour, {wanted.type, wanted.anchor})


def plausible_prices(
    name: str, market: Market, prices: Mapping[str, float | None]
) -> dict[str, float | None]:
    """Prices of a type by zone, $/h; None, and logged, if it cannot be true by the catalog's."""
    catalog = load_catalog()
    found = dict(prices)
    if market is not Market.SPOT or name not in catalog.by_name:
        return found
    judged = PriceSanityCheck(
        {
            i.name: PricedType(i.vcpus, i.on_demand_usd_per_hour, i.spot_usd_per_hour)
            for i in catalog
        }
    )
    for zone, usd in prices.items():
        doubt = usd is not None and judged.spot(name, Decimal(str(usd)))
        if doubt:
            log.warning("the spot price of %s in %s is left out: %s", name, zone, doubt)
            found[zone] = None
    return found


def check_script(job: JobFile, job_folder: Path) -> None:
    """Raise RequestError for a command whose script no machine would find."""
    try:
        shlex.split(job.train)
    except ValueError as error:
        raise RequestError("train", job.train, f"a command of words and quotes: {error}") from None
    command = _SCRIPT_COMMAND.fullmatch(job.train)
    code = job.code or ""
    if command is None or job_code.parse(code) is not None:
        return
    script = command[1]
    is_path = script.startswith("/")
    is_free = job.cloud == SSH or job.setup is not None  # others may bring the script
    folder = os.path.abspath(job_folder / code)
    is_here = code and os.path.exists(os.path.join(folder, script))
    # An image of a cloud may have a script that this computer has not
    is_lost = is_path and is_here and not (is_free or find_cloud(job.cloud).near)
    if is_lost or (code and os.path.normpath(script).startswith("../")):
        allowed = (
            f"a path in the code folder: machines get {folder} and nothing else of this computer;"
            " run deepvm in the folder of the script, or set 'code' in a job file"
        )
    elif is_path or is_free or is_here:
        return
    elif code:
        allowed = f"a script that 'code: {code}' has; there is no {script} in it"
    else:
        allowed = "a script that machines have; they get none without 'code', such as 'code: .'"
    raise RequestError("train", job.train, allowed)


def hosts_of(job: JobFile, job_folder: Path) -> StaticHosts | None:
    """The hosts of a job file; None if it has none. Raises RequestError, CatalogFormatError."""
    machines = job.machines
    if (machines.hosts is None) != (job.cloud != SSH):
        wanted = "one without hosts"
        if machines.hosts:
            wanted = f"the cloud {SSH}, as there are machines.hosts"
        raise RequestError("cloud", job.cloud, f"{wanted}; {SSH} and machines.hosts go together")
    if machines.hosts is None:
        return None
    hosts = [
        replace(h, type=h.type or machines.type or "")
        for h in read_hosts(job_folder / machines.hosts, "machines.hosts")
    ]
    found = StaticHosts(
        f"{job.name}-{secrets.token_hex(4)}",
        machines.launcher or SSH,
        machines.python or "",
        tuple(hosts),
    )
    try:
        is_here = found.reach.local
    except RequestError as error:
        error.option = f"machines.{error.option}"
        raise
    if not (job.tiers or is_here):
        allowed = "what all hosts reach: [s3://bucket/run], or file:// of a folder that they share"
        if job.anchor not in (None, "none"):
            allowed += ", as the anchor's memory ends with the job"
        raise RequestError("tiers", "none", allowed)
    return found


def cloud_of(name: str) -> Cloud:
    """The cloud of this name, for this user's jobs. Raises RequestError, RefusedError."""
    return open_cloud(name, jobs_folder())


@contextmanager
def about(file: Path) -> Iterator[None]:
    """Turn errors about keys of a job file into errors that name the file and the line."""
    try:
        yield
    except RequestError as error:
        raise JobFormatError(
            file,
            [Issue(error.about(error.option), FORMAT.line_of(file, error.option), error.option)],
        ) from None


def reached_cloud(job: JobFile, *, detach: bool) -> Cloud:
    """The cloud of a job, if its machines would reach a controller. Raises as :func:`checked`."""
    cloud = cloud_of(job.cloud)
    if detach and isinstance(cloud, HostsController) and needs_head(cloud):
        cloud.check_head()
    elif isinstance(cloud, RemoteCloud):
        cloud.host(job.name)
    return cloud


def checked(
    job: JobFile,
    file: Path,
    now_s: float,
    lives: Iterable[JsonObject] = (),
    *,
    detach: bool = False,
) -> tuple[JobState, Cloud]:
    """What a job starts with, and its cloud. Raises RequestError, RefusedError, UnknownError."""
    with about(file):
        cloud = reached_cloud(job, detach=detach)
        world = world_of(job, file.parent, now_s, lives)
        check_script(job, file.parent)
    return world, cloud


def head_cloud(row: JobRow) -> HostsController | None:
    """The cloud of a job whose controller runs there, or has to; None: it runs here."""
    cloud = cloud_of(row.spec["cloud"])
    # A head may not see its own address for a moment, and the next one would end this one
    if is_head(row) or not isinstance(cloud, HostsController):
        return None
    if has_head(row) or needs_head(cloud):
        return cloud
    return None


def head_pool(cloud: Cloud) -> Pool | None:
    """The machine for the controller of a job detached here; None: it would run here."""
    if isinstance(cloud, HostsController) and isinstance(cloud, RemoteCloud) and needs_head(cloud):
        return Pool(
            cloud.head_type(), cloud.whole(), Market.ON_DEMAND.value, cloud.head_usd_per_hour()
        )
    return None


def submit(
    job: JobFile, file: Path, history: History, *, detach: bool = False, replaces: bool = False
) -> tuple[ControlledJob, JobState]:
    """Write a new job down, so that it can be resumed. Raises DataError, or as :func:`checked`.

    ``replaces``: an ended job of this name goes, with its folder.
    """
    now_s = time.time()
    known = history.job(job.name)
    if known is None:
        return _submit(job, file, history, now_s, {}, 0, detach=detach)
    if not replaces:
        raise name_is_taken(known, history)
    check_replaceable(known)
    # Clouds know machines by their names, and answer a second request with the first machine
    head = HeadState.load(known.folder)
    heads = known.spec.get("earlier_heads", 0) if head is None else head.number
    changes = {"tiers": _other_tiers(job, now_s), "earlier_heads": heads}
    requests = history.world(job.name).requests
    with _errors(known.folder), _set_aside(known, history):
        return _submit(job, file, history, now_s, changes, requests, detach=detach)


def name_is_taken(known: JobRow, history: History) -> RequestError:
    """The error for a second job of a name, with the ways to continue."""
    name = known.name
    cures = []
    if known.result is None or known.result["state"] != "done":
        cures = [f"'deepvm jobs resume {name}' continues it, with the code that was submitted"]
    if not _irreplaceable(known):
        cures.append("'--replace' starts over in its place")
    cures.append(f"'--name {free_name(name, history)}' starts a new job")
    return RequestError("name", name, f"a name that no job has had; {', '.join(cures)}")


def check_replaceable(known: JobRow) -> None:
    """Raise RequestError for a job that must not go."""
    if allowed := _irreplaceable(known):
        raise RequestError("replace", known.name, allowed)


def _irreplaceable(known: JobRow) -> str:
    """What a job would have to be that may go; empty: it may."""
    name = known.name
    if known.folder.parent != jobs_folder():
        return f"a job of this user and computer; {known.folder} is not among them"
    if known.result is None:
        return f"a job that has ended; 'deepvm jobs stop {name}' ends it"
    if is_to_be_read(known):
        return f"a job whose bucket was read to its end; 'deepvm jobs show {name}' reads it"
    return ""


def _other_tiers(job: JobFile, now_s: float) -> list[str]:
    """Where a job's checkpoints go that takes the name of another: the old ones stay, unseen."""
    cloud = cloud_of(job.cloud)
    tiers = list(job.tiers)
    if not tiers and isinstance(cloud, RemoteCloud):
        tiers = [cloud.tier(job.name)]
    for tier in tiers:
        if tier.partition(":")[0].lower() not in ("file", "s3"):
            raise OptionMismatchError(
                "replace",
                job.name,
                f"does not go with {tier}, which keeps checkpoints by the job's name",
                "a new job, with --name",
            )
    folder = f"{job.name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_s))}"
    return [f"{tier.rstrip('/')}/{folder}" for tier in tiers]


def starts_over(known: JobRow, history: History) -> bool:
    """Whether a job has ended before it kept anything: another one may have its name."""
    if _irreplaceable(known):
        return False
    world = history.world(known.name)
    kept = world.steps or world.saves or any(kept.files for kept in world.outputs.values())
    # A folder may have been made for what was never saved
    kept = kept or any(p.is_file() for p in (known.folder / "versions").rglob("[!.]*"))
    if known.result is None or kept or world.alive or world.job is Job.DONE:
        return False
    # What it has printed may be all that there is of a script that reports no steps
    return bool(known.result["breakdown_s"]["compute"] < _SHORT_S)


@contextmanager
def _set_aside(known: JobRow, history: History) -> Iterator[None]:
    """Move an ended job's folder away, and back if the new job cannot be written down."""
    folder = known.folder
    if not folder.is_dir():
        yield
        return
    lock = FileLock(folder / LOCK)
    if not lock.take(shared=False, limit_s=1.0):
        raise DataError(f"another process has {folder.name}; try again when it has ended")
    aside = _aside_of(known)
    try:
        folder.rename(aside)
        point("replace.moved")
        try:
            yield
        finally:
            point("replace.recorded")
            _settle(aside, history)
    finally:
        lock.release()


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or folder}: {error.strerror or error}") from None


def _aside_of(job: JobRow) -> Path:
    return job.folder.with_name(f".{job.name}.{job.created_s:.0f}.replaced")


def _settle(aside: Path, history: History) -> None:
    """Give a folder back to its job if the history still has that, else remove it."""
    known = history.job(aside.name.split(".")[1])
    if known is not None and aside == _aside_of(known):
        shutil.rmtree(known.folder, ignore_errors=True)
        point("replace.settling")
        aside.rename(known.folder)
    elif known is not None:
        shutil.rmtree(aside, ignore_errors=True)


def settle_replacements(rows: Iterable[JobRow], history: History) -> None:
    """Undo or complete the replacements that were killed, among the folders of these jobs."""
    for parent in {row.folder.parent for row in rows}:
        for aside in parent.glob(".*.replaced"):
            lock = FileLock(aside / LOCK)
            # Anyone who still replaces the job has the lock
            with suppress(OSError):
                if lock.take(shared=False):
                    _settle(aside, history)
            lock.release()


def _submit(
    job: JobFile,
    file: Path,
    history: History,
    now_s: float,
    changes: JsonObject,
    requests: int,
    *,
    detach: bool,
) -> tuple[ControlledJob, JobState]:
    """``changes``: of what is written down, and ``requests``: of a job that is replaced."""
    job_folder = file.parent
    world, cloud = checked(job, file, now_s, history.machines(), detach=detach)
    world = replace(world, requests=requests)
    folder = jobs_folder() / job.name
    with about(file):
        hosts = hosts_of(job, job_folder)
    code = job.code
    with _errors(folder), about(file):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        write_private(folder / SECRET, new_secret())
        if code is not None:
            # The file may have secrets in env
            code = _packed(code, job_folder, folder / CODE, file if job.env else None)
        if hosts is not None:
            hosts.save(folder)
            cloud.host(job.name)
    world = _with_lives(job, world, history)
    spec = {
        **job.model_dump(mode="json"),
        "code": code,
        "instance_type": world.pools[0].instance_type,
        **changes,
    }
    point("replace.written")
    if not history.add_job(job.name, now_s, folder, spec, world, replaces=bool(changes)):
        raise RequestError("name", job.name, "a name that no job has had")
    return submitted(job.name, folder, spec), world


def free_name(name: str, history: History) -> str:
    """The name of another job like this one."""
    taken = {row.name for row in history.jobs()}
    names = (f"{name[:36]}-{number}" for number in itertools.count(2))
    return next(free for free in names if free not in taken)


def _with_lives(job: JobFile, world: JobState, history: History) -> JobState:
    if job.inject is not None:
        life_s = Injection.of(job.inject.model_dump()).mean_s
    else:
        pool = world.pools[0]
        known = load_catalog().by_name.get(pool.instance_type)
        band = None if known is None else known.interruption_band
        life_s = expected_life_s(pool, job.cloud, history.machines(), band, world.now_s)
    terms = replace(world.terms, mttp_s=life_s)
    return replace(world, terms=terms, facts=replace(world.facts, mttp_s=life_s))


def _packed(code: str, job_folder: Path, target: Path, without: Path | None) -> str:
    found = job_code.parse(code)
    if found is None:
        job_code.pack(job_folder / code, target, without)
        return code
    return replace(found, ref=job_code.fetch_code(found, target)).shown


def secret_in(folder: Path) -> str:
    """The secret of a job. Raises DataError."""
    try:
        return (folder / SECRET).read_text(encoding="ascii").strip()
    except OSError as error:
        raise DataError(
            f"{folder / SECRET}: {error.strerror or error}; without it the job cannot be reached"
        ) from None


@dataclass(frozen=True)
class JobStorage:
    """Where a job's checkpoints and outputs are."""

    tiers: Sequence[str]
    outputs: str  # The tier of outputs, empty if none takes any
    patterns: Sequence[str]  # Of outputs; none of a job of an older deepvm


def storage_of(name: str, folder: Path, spec: JsonObject) -> JobStorage:
    """The storage of a job, from what was written down. Raises RefusedError, RequestError."""
    hosts = StaticHosts.load(folder)
    tiers = list(spec["tiers"])
    for_outputs = [tier for tier in tiers if tier.partition(":")[0].lower() in SCHEMES]
    if not for_outputs:
        cloud = cloud_of(spec["cloud"])
        if isinstance(cloud, RemoteCloud):
            for_outputs = [cloud.tier(name)]
        elif hosts is None or hosts.reach.local:  # other hosts do not see this folder
            for_outputs = [(folder / "versions").as_uri()]
    return JobStorage(tiers or for_outputs, next(iter(for_outputs), ""), spec.get("outputs", ()))


def submitted(name: str, folder: Path, spec: JsonObject) -> ControlledJob:
    """A job as its controller runs it, from what was written down. Raises DataError."""
    inject = spec["inject"]
    gpus = gpus_of(spec["instance_type"], StaticHosts.load(folder))
    storage = storage_of(name, folder, spec)
    memory = spec["anchor"].get("memory") if isinstance(spec["anchor"], dict) else None
    agent_spec = {
        **{key: spec[key] for key in _COPIED},
        "tiers": list(storage.tiers),
        "outputs": list(storage.patterns),
        "outputs_to": storage.outputs,
        "grace_s": inject["grace"] if inject else _GRACE_S,
        "per_machine": processes_of(spec.get("processes_per_machine", "gpus"), gpus),
        "gpus": gpus,
        "independent": spec.get("independent_processes", False),
        "orphan_after_s": spec.get("orphan_after", ORPHAN_AFTER_S),
        "anchor_memory": memory or _MEMORY,
    }
    injection = Injection.of(inject) if inject else None
    return ControlledJob(
        name,
        folder,
        secret_in(folder),
        agent_spec,
        folder / CODE if (folder / CODE).exists() else None,
        injection,
        1.0 if cloud_of(spec["cloud"]).near else 5.0,
    )


def gpus_of(instance_type: str, hosts: StaticHosts | None) -> int:
    """GPUs of each machine of a job. Raises RequestError: there is no such type."""
    if hosts is not None:
        if hosts.slots:
            return hosts.slots
        # Hosts may be of types that the catalog does not have
        if instance_type not in load_catalog().by_name:
            return 0
    gpu = instance_of(instance_type).gpu
    return gpu.count if gpu else 0


def processes_of(key: int | str, gpus: int) -> int:
    """Trainers on each machine, by ``processes_per_machine`` of the job file."""
    if isinstance(key, int):
        return key
    return gpus or 1


def resumed(
    row: JobRow,
    history: History,
    total_usd: float | None = None,
    deadline_s: float | None = None,
    timeouts: JsonObject = MappingProxyType({}),
    max_price: float | None = None,
) -> tuple[ControlledJob, JobState]:
    """A job without a live controller, maybe stopped or failed, with new limits if given.

    ``timeouts``: of :class:`JobLimits`; ``max_price``: $/h; ``deadline_s``: from now on. Raises
    RequestError: it would end again at once; DataError: the job's secret is gone.
    """
    world = history.world(row.name)
    now_s = job_time_s(row.folder, time.time())
    # A remote controller restarts controllers itself
    if world.job in (Job.STOPPED, Job.FAILED) and not is_head(row):
        _check_limits(row.name, world, now_s, total_usd, deadline_s)
        world = replace(
            world,
            job=Job.PENDING,
            ending="",
            failure="",
            no_data=False,
            unready={},
            pulse=GenerationProgress(),
            save=None,
            unsaved_s=None,
            formed=False,
            exits={},
            suspected_s=None,
            crashed_at=-1,
            crashes=0,
            now_s=max(now_s, world.now_s),  # until now it needed no controller
        )
    terms = replace(world.terms, **timeouts)
    if max_price is not None:
        if not 0 < max_price <= MOST_USD:
            raise RequestError("max_price", f"{max_price:g}", "dollars an hour, above 0")
        planned = (row.spec["budget"] or {}).get("usd_per_hour") or max_price
        hourly = min(planned, max_price)
        terms = replace(terms, max_price=max_price, usd_per_hour=hourly)
        needed = least_usd_per_hour(replace(world, terms=terms))
        if needed > hourly + 1e-9:
            raise RequestError(
                "max_price",
                f"{max_price:g}",
                f"{needed:.4g} or more, which the fewest machines of {row.name} cost",
            )
    if total_usd is not None:
        if not world.usd < total_usd <= MOST_USD:
            raise RequestError(
                "total_usd",
                f"{total_usd:g}",
                f"more than the ${world.usd:.4f} that {row.name} has cost",
            )
        terms = replace(terms, total_usd=total_usd)
    if deadline_s is not None:
        terms = replace(terms, end_s=now_s + deadline_s, begun_s=now_s, begun=world.version)
        if terms.steps is not None and not terms.bought and not is_on_demand(world.pools[0]):
            pools = {p.instance_type: p for p in reversed(world.pools)}
            if terms.usd_per_hour is not None:  # others may be too dear for it
                pools = {world.pools[0].instance_type: world.pools[0]}
            names = [p.instance_type for p in world.pools if p in pools.values()]
            prices = {name: instance_of(name).on_demand_usd_per_hour for name in names}
            bought = tuple(
                replace(pools[name], market=Market.ON_DEMAND.value, usd_per_hour=float(usd))
                for name, usd in prices.items()
                if usd
            )
            terms = replace(
                terms, bought=bought, deadline_policy=row.spec["budget"]["deadline_policy"]
            )
    world = replace(world, terms=terms)
    return submitted(row.name, row.folder, row.spec), world


def _check_limits(
    name: str, world: JobState, now_s: float, total_usd: float | None, deadline_s: float | None
) -> None:
    terms = world.terms
    ending = world.ending
    used_up = terms.total_usd is not None and world.usd >= terms.total_usd
    if total_usd is None and (used_up or ending.startswith(BUDGET)):
        raise RequestError(
            "total_usd",
            None,
            f"more than the budget of ${terms.total_usd:g}, at which {name} has stopped, such as"
            f" {more_money(world.usd, terms)}",
        )
    if (
        deadline_s is None
        and terms.end_s is not None
        and (now_s >= terms.end_s or ending.startswith(DEADLINE))
    ):
        raise RequestError(
            "deadline",
            None,
            f"a time from now, as the deadline of {name} has passed, such as {more_time(terms)}",
        )


def more_money(paid_usd: float, terms: JobLimits) -> str:
    """The option with which a job continues whose budget is used up: twice as much as there was."""
    usd = Decimal(f"{2 * max(paid_usd, terms.total_usd or 0.0):.2g}")
    return f"--total-usd {usd:f}"


def more_time(terms: JobLimits) -> str:
    """The option to continue a job past its deadline: as long again, plus start and save."""
    minutes = math.ceil(
        max((terms.end_s or 0.0) - terms.begun_s, terms.restart_s + 2 * terms.version_s) / 60
    )
    if minutes >= 60:
        return f"--deadline {minutes / 60:.3g}h"
    return f"--deadline {max(minutes, 1)}min"
