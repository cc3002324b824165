"""Machines that live and cost although no controller watches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deepvm.errors import DeepVMError
from deepvm.jobs.cloud import Cloud, Distant, Headed, UnknownError, head_name
from deepvm.jobs.head.head_state import HeadState
from deepvm.jobs.history.history import History, JobRow
from deepvm.jobs.standing import ALIVE, controller_in


@dataclass(frozen=True)
class Orphan:
    """A machine, or a head, that no job needs; since when it lives. ``end`` ends it."""

    job: str
    machine: str
    since_s: float
    end: Callable[[str, str], None]


@dataclass(frozen=True)
class Search:
    """What was found, and what could not be asked or ended: others may live."""

    orphans: list[Orphan]
    problems: list[str]


def search(history: History, cloud_of: Callable[[str], Cloud], *, release: bool) -> Search:
    """Look at all jobs, each by itself: a cloud that does not answer hides no other's machines."""
    found = Search([], [])
    for row in history.jobs():
        try:
            cloud = cloud_of(row.spec["cloud"])
            orphans = list(_orphans(row, cloud))
        except (DeepVMError, OSError) as error:
            found.problems.append(f"{row.name}: {error}")
            continue
        found.orphans.extend(orphans)
        if release:
            found.problems.extend(_end(row, cloud, orphans))
    return found


def _orphans(row: JobRow, cloud: Cloud) -> Iterator[Orphan]:
    alive = controller_in(row.folder) == ALIVE
    if isinstance(cloud, Headed):
        state = HeadState.load(row.folder)
        if state is not None and not state.here and not state.read:
            raise UnknownError("whether its head lives is not known, as what that has written cannot be read")
        needed = head_name(state.number) if state is not None and alive else ""
        for machine, since_s in cloud.heads(row.name).alive.items():
            if machine != needed:
                yield Orphan(row.name, machine, since_s, cloud.end_head)
    if not alive:
        for machine, since_s in cloud.listing(row.name).alive.items():
            yield Orphan(row.name, machine, since_s, cloud.release)


def _end(row: JobRow, cloud: Cloud, orphans: list[Orphan]) -> Iterator[str]:
    """End them; yields what could not be ended."""
    for orphan in orphans:
        try:
            orphan.end(orphan.job, orphan.machine)
        except (DeepVMError, OSError) as error:
            yield f"{orphan.job}, {orphan.machine}: {error}"
    if orphans and row.result is not None and not isinstance(cloud, Distant):
        try:
            cloud.finish(row.name)  # a host that was silent at the end has its files still
        except (DeepVMError, OSError) as error:
            yield f"{row.name}: {error}"
