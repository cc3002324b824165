"""From a job file to a job that a controller can run: its folder, its code, its secret, the pools of its machines."""

from __future__ import annotations

import os
import secrets
import subprocess
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.errors import DataError, RequestError
from deepvm.jobs.clouds.base import Cloud
from deepvm.jobs.clouds.local import LocalCloud
from deepvm.jobs.clouds.netns import NetnsCloud
from deepvm.jobs.controller.controller import Submitted
from deepvm.jobs.controller.injector import Injection
from deepvm.jobs.history import History, JobRow, own_folder
from deepvm.jobs.jobfile import Anchor, JobFile, Range
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


def world_of(job: JobFile, now_s: float) -> World:
    """What the controller knows before anything has happened. Raises RequestError."""
    machines, budget = job.machines, job.budget
    if machines.type is None:
        raise RequestError("machines", "no type", "a type, such as g4dn.xlarge")
    instance = instance_of(machines.type)
    market = Market(machines.market)
    price = instance.usd_per_hour(market)
    if price is None:
        raise RequestError("machines.market", machines.market, f"one in which {machines.type} has a price")
    count = machines.count or 1
    least, most = (count.min, count.max) if isinstance(count, Range) else (count, count)
    grace_s = job.inject.grace if job.inject else 120.0
    pool = Pool(machines.type, machines.zone or job.cloud, machines.market, float(price), grace_s)
    terms = Terms(
        least=least,
        most=most,
        total_usd=budget.total_usd,
        end_s=None if budget.deadline is None else now_s + budget.deadline,
        policy=parse_policy(job.save_policy),
        absent_s=10.0 if job.cloud in ("local", "netns") else 60.0,
        anchor=_anchor_of(job, grace_s),
    )
    return World(terms=terms, now_s=now_s, pools=(pool,))


def _anchor_of(job: JobFile, grace_s: float) -> Pool | None:
    """Where the anchor comes from: on demand, as nothing would be saved of versions in a memory that goes first."""
    if not isinstance(job.anchor, Anchor):
        return None
    price = instance_of(job.anchor.type, "anchor.type").on_demand_usd_per_hour
    if price is None:
        raise RequestError("anchor.type", job.anchor.type, "a type with an on-demand price")
    return Pool(job.anchor.type, job.machines.zone or job.cloud, Market.ON_DEMAND.value, float(price), grace_s)


def cloud_of(name: str) -> Cloud:
    """The cloud of this name."""
    if name == "local":
        return LocalCloud(jobs_folder())
    if name == "netns":
        return NetnsCloud(jobs_folder())
    raise RequestError("cloud", name, "local or netns")


def submit(job: JobFile, beside: Path, history: History) -> tuple[Submitted, World]:
    """Write a new job down: from now on it can be resumed. Raises RequestError, DataError."""
    now_s = time.time()
    world, folder = world_of(job, now_s), jobs_folder() / job.name
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
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(new_secret())
        if job.code is not None:
            pack(beside / job.code, folder / CODE)
    except OSError as error:
        raise DataError(f"{error.filename or folder}: {error.strerror or error}") from None
    spec = job.model_dump(mode="json")
    if not history.add_job(job.name, now_s, folder, spec, world):
        raise RequestError("name", job.name, "a name that no job has had")
    return submitted(job.name, folder, spec), world


def secret_in(folder: Path) -> str:
    """The secret of a job. Raises DataError."""
    try:
        return (folder / SECRET).read_text(encoding="ascii").strip()
    except OSError as error:
        raise DataError(f"{folder / SECRET}: {error.strerror or error}; without it the job cannot be reached") from None


def submitted(name: str, folder: Path, spec: Mapping[str, Any]) -> Submitted:
    """A job as its controller runs it, from what was written down. Raises DataError."""
    instance = instance_of(spec["machines"]["type"])
    inject = spec["inject"]
    tiers = list(spec["tiers"]) or [(folder / "versions").as_uri()]
    told = {
        "train": spec["train"],
        "launcher": spec["launcher"],
        "env": spec["env"],
        "setup": spec["setup"],
        "tiers": tiers,
        "save_policy": spec["save_policy"],
        "per_machine": instance.gpu.count if instance.gpu else 1,
        "orphan_after_s": ORPHAN_AFTER_S,
        "anchor_memory": (spec["anchor"] or {}).get("memory") or _MEMORY if spec["anchor"] != "none" else "",
    }
    injection = None
    if inject is not None:
        injection = Injection(inject["mttp"], inject["seed"], inject["count"], inject["grace"], inject["missed"])
    code = folder / CODE
    return Submitted(name, folder, secret_in(folder), told, code if code.exists() else None, injection)


def resumed(row: JobRow, history: History) -> tuple[Submitted, World]:
    """A job whose controller is gone, or that was stopped."""
    world = history.world(row.name)
    if world.job is Job.STOPPED:
        world = replace(world, job=Job.PENDING, ending="", save=None, formed=False, idle_s=None)
    return submitted(row.name, row.folder, row.spec), world


def on_demand_price(spec: Mapping[str, Any]) -> Decimal | None:
    """What a machine of the job costs on demand, $/h."""
    return instance_of(spec["machines"]["type"]).on_demand_usd_per_hour


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
