"""Machines that live and cost although no controller watches them."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from deepvm.core.spelling import one_of
from deepvm.errors import DeepVMError, RequestError
from deepvm.jobs.cloud import (
    Cloud,
    HostsController,
    OwnedHosts,
    RemoteCloud,
    UnknownError,
    head_name,
)
from deepvm.jobs.head.mirror import HeadState
from deepvm.jobs.history.history import History, JobRow
from deepvm.jobs.standing import ALIVE, controller_in
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
            found.problems.extend(_end(job, cloud, orphans))
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
        needed = ""
        if state is not None and alive:
            needed = head_name(state.number)
        for machine, since_s in cloud.heads(job.name).alive.items():
            if machine != needed:
                yield Orphan(job.name, machine, since_s, cloud.end_head, known)
    if not alive:
        for machine, since_s in cloud.listing(job.name).alive.items():
            yield Orphan(job.name, machine, since_s, cloud.release, known)


def _end(job: _Job, cloud: Cloud, orphans: list[Orphan]) -> Iterator[str]:
    for orphan in orphans:
        try:
            orphan.end(orphan.job, orphan.machine)
        except (DeepVMError, OSError) as error:
            yield f"{orphan.job}, {orphan.machine}: {error}"
    over = job.row is not None and job.row.result is not None
    if orphans and over and not isinstance(cloud, RemoteCloud):
        try:
            cloud.finish(job.name)  # a host that was silent at the end has its files still
        except (DeepVMError, OSError) as error:
            yield f"{job.name}: {error}"
