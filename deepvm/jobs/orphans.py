"""Machines that live and cost although no controller watches them."""

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from deepvm.core.spelling import one_of
from deepvm.errors import DeepVMError, RequestError
from deepvm.io.file_lock import FileLock
from deepvm.jobs.cloud import (
    Cloud,
    HostsController,
    OwnedHosts,
    RemoteCloud,
    UnknownError,
    head_name,
)
from deepvm.jobs.controller.changes import rows_of
from deepvm.jobs.decisions import apply_events
from deepvm.jobs.decisions.states import MachineEvent, replace
from deepvm.jobs.head.mirror import HeadState
from deepvm.jobs.history.history import History, JobRow
from deepvm.jobs.standing import ALIVE, GONE, LOCK, controller_in
from deepvm.jobs.steady_clock import job_time_s
from deepvm.records import dataclass


@dataclass(frozen=True)
class Orphan:
    """A machine, or a head, that no job needs, alive since ``since_s``; ``end`` ends it."""

    job: str
    machine: str
    since_s: float
    end: Callable[[str, str], None]
    known: bool = True  # its job is in this history; else others may know that it is needed


@dataclass(frozen=True)
class Search:
    """What was found, and what could not be asked or ended: others may live."""

    orphans: list[Orphan]
    problems: list[str]


@dataclass(frozen=True)
class _Job:
    name: str
    cloud: str
    folder: Path
    row: JobRow | None = None


def search(
    history: History,
    cloud_of: Callable[[str], Cloud],
    *,
    release: bool,
    named: Collection[str] = (),
    folder: Path = Path(),
    owned: Collection[str] = (),
) -> Search:
    """Orphans of all jobs, or of ``named`` ones. Raises RequestError: an unknown name."""
    # Jobs in ``folder`` that the history lacks may be others': released only if they are named
    found = Search([], [])
    jobs = [_Job(row.name, row.spec["cloud"], row.folder, row) for row in history.jobs()]
    jobs += _lost(jobs, cloud_of, folder, owned, found.problems)
    known = dict.fromkeys(job.name for job in jobs)
    for name in named:  # no orphans would mean that nothing of it lives
        if name not in known and not found.problems:
            raise RequestError("NAME", name, one_of(name, known) or "the name of a job")
    for job in jobs:
        if named and job.name not in named:
            continue
        try:
            cloud = cloud_of(job.cloud)
            orphans = list(_orphans(job, cloud))
        except (DeepVMError, OSError) as error:
            found.problems.append(f"{job.name}: {error}")
            continue
        found.orphans.extend(orphans)
        if release and (job.row is not None or job.name in named):
            found.problems.extend(_end(job, cloud, orphans, history))
    return found


def _lost(
    jobs: Collection[_Job],
    cloud_of: Callable[[str], Cloud],
    folder: Path,
    owned: Collection[str],
    problems: list[str],
) -> Iterator[_Job]:
    known = {(job.name, job.cloud) for job in jobs}
    for name in owned:
        try:
            cloud = cloud_of(name)
            there = cloud.jobs() if isinstance(cloud, OwnedHosts) else ()
        except (DeepVMError, OSError) as error:
            problems.append(f"{name}: {error}")
            continue
        yield from (_Job(job, name, folder / job) for job in there if (job, name) not in known)


def _orphans(job: _Job, cloud: Cloud) -> Iterator[Orphan]:
    alive = controller_in(job.folder) == ALIVE
    known = job.row is not None
    if isinstance(cloud, HostsController):
        state = HeadState.load(job.folder)
        if state is not None and not state.here and not state.read:
            raise UnknownError(
                "whether its head runs is not known, as what that has written cannot be read"
            )
        needed = head_name(state.number) if state is not None and alive else ""
        for machine, since_s in cloud.heads(job.name).alive.items():
            if machine != needed:
                yield Orphan(job.name, machine, since_s, cloud.end_head, known)
    if not alive:
        for machine, since_s in cloud.listing(job.name).alive.items():
            yield Orphan(job.name, machine, since_s, cloud.release, known)


def _end(job: _Job, cloud: Cloud, orphans: list[Orphan], history: History) -> Iterator[str]:
    ended = []
    for orphan in orphans:
        try:
            orphan.end(orphan.job, orphan.machine)
            ended.append(orphan)
        except (DeepVMError, OSError) as error:
            yield f"{orphan.job}, {orphan.machine}: {error}"
    row = job.row
    try:
        if row is not None and row.result is None:
            _record(history, row, cloud, ended)
        elif row is not None and orphans and not isinstance(cloud, RemoteCloud):
            cloud.finish(job.name)  # a host that was silent at the end has its files still
    except (DeepVMError, OSError) as error:
        yield f"{job.name}: {error}"


def _record(history: History, row: JobRow, cloud: Cloud, released: list[Orphan]) -> None:
    """Write down that machines have ended: no controller does, and they cost nothing more."""
    # A remote controller's mirror of the history takes no events of others
    if controller_in(row.folder) != GONE or HeadState.load(row.folder) is not None:
        return
    lock = FileLock(row.folder / LOCK)
    try:
        if not lock.take(shared=False):  # a controller has started, which sees what has ended
            return
        before = history.world(row.name)
        now_s = job_time_s(row.folder, time.time())
        world = replace(before, now_s=now_s)
        listing = cloud.listing(row.name)
        ended = dict(listing.ended)
        for one in released:
            if one.machine in world.machines:
                record = world.machines[one.machine]
                world = apply_events.with_event(world, record, MachineEvent.RELEASE)
                ended.setdefault(one.machine, (one.since_s, now_s))
        world = apply_events.known(world, replace(listing, ended=ended))
        rows = rows_of(before, world, ())
        # How long there was no controller follows from the time of its last record
        history.commit(row.name, before, replace(world, now_s=before.now_s), rows)
    finally:
        lock.release()
