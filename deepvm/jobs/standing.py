"""A job's current status from the history, for its page and ``deepvm jobs show``."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deepvm.catalog.store import load_catalog
from deepvm.core.json_types import JsonObject
from deepvm.errors import DeepVMError
from deepvm.io.file_lock import FileLock
from deepvm.jobs.clouds.registry import CLOUDS, find_cloud
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.head.mirror import HeadState
from deepvm.jobs.history import timeline
from deepvm.jobs.history.history import Events, History, JobRow, Sample
from deepvm.jobs.history.job_report import final_document
from deepvm.jobs.steady_clock import job_time_s
from deepvm.records import dataclass, replace

LOCK = "controller.lock"  # A controller holds it in its job's folder
# States of a job's controller; elsewhere: no readable folder or remote state here
ALIVE, GONE, ELSEWHERE, OVER = "alive", "gone", "elsewhere", "over"


@dataclass(frozen=True)
class JobStatus:
    """A job at a time."""

    row: JobRow
    world: JobState  # with what it costs until now_s if it is not over
    events: Events
    samples: Sequence[Sample]
    document: JsonObject  # deepvm.run/1
    controller: str  # ALIVE, GONE, ELSEWHERE, or OVER
    now_s: float
    without: timeline.Downtimes = ()

    @property
    def over(self) -> bool:
        return self.row.result is not None

    @property
    def unwatched(self) -> bool:
        return self.controller == GONE and not self.world.job.over

    @property
    def simulated(self) -> bool:
        """Whether its machines cost nothing: they are processes of this computer."""
        cloud = self.row.spec.get("cloud")
        return cloud in CLOUDS and find_cloud(cloud).near


def standing_of(history: History, row: JobRow, now_s: float, known: Events = ()) -> JobStatus:
    """A job's status; ``now_s``: wall clock; ``known``: first events, not read again."""
    now_s = job_time_s(row.folder, now_s)
    events = [*known, *history.events(row.name, known[-1].number if known else 0)]
    samples = history.samples(row.name)
    known_world = history.world(row.name)
    controller = controller_of(row)
    world = current(known_world, samples, now_s)
    without = timeline.downtimes(events, samples)
    seen_s = timeline.last_seen_s(known_world, samples)
    is_gone = controller == GONE and known_world.machines and not world.job.over
    if is_gone and world.now_s - seen_s >= timeline.LEAST_S:
        without.append(timeline.Downtime(seen_s, world.now_s))
    document = row.result
    if document is None:
        prices = on_demand_prices(world)
        document = final_document(
            row.name, row.created_s, world, events, prices, without, row.spec.get("outputs", ())
        )
    return JobStatus(row, world, events, samples, document, controller, now_s, without)


@dataclass(frozen=True)
class JobLine:
    """A job in short."""

    name: str
    state: str
    controller: str
    created_s: float
    steps: int | None  # None: unknown
    preemptions: int
    machines: int  # that cost something now
    cost_usd: float
    failed_saves: int = 0  # since the newest safe version


def job_lines(history: History, now_s: float) -> list[JobLine]:
    """All jobs in short, the newest first; of one that is over its document says all."""
    found = []
    for row in history.jobs():
        controller = controller_of(row)
        done = row.result
        if done is not None and controller == OVER:
            figures = (done["steps"], done["preemptions"], 0, done["cost_usd"])
            failed = done.get("failed_saves", {}).get("in_a_row", 0)
        else:
            world = history.world(row.name)
            world = current(world, history.samples(row.name), job_time_s(row.folder, now_s))
            costs = sum(m.state.costs for m in world.machines.values())
            steps = None if world.progress_unknown else world.steps
            figures = (steps, world.preemptions, costs, round(world.usd, 8))
            failed = world.failed_saves.in_a_row
        found.append(JobLine(row.name, row.state, controller, row.created_s, *figures, failed))
    return found


def current(world: JobState, samples: Sequence[Sample], now_s: float) -> JobState:
    """Add the time and the steps that the controller did not record."""
    if world.over:
        return world
    return replace(timeline.caught_up(world, samples), now_s=max(world.now_s, now_s))


def on_demand_prices(world: JobState) -> dict[str, float]:
    """On-demand $/h of the instance types a job has used, as far as the catalog knows."""
    with suppress(DeepVMError):
        known = load_catalog().by_name
        types = {m.pool.instance_type for m in world.machines.values()} & known.keys()
        prices = {name: known[name].on_demand_usd_per_hour for name in types}
        return {name: float(usd) for name, usd in prices.items() if usd is not None}
    return {}


def controller_of(row: JobRow) -> str:
    """Whether the controller of a job lives."""
    if row.result is not None and Job(row.state).over:
        return OVER
    return controller_in(row.folder)


def controller_in(folder: Path) -> str:
    """Whether a live controller has its job in this folder, or runs remotely, if known."""
    if not folder.is_dir():
        return ELSEWHERE
    head = HeadState.load(folder)
    if head is not None and not head.here:
        if not head.read:
            return ELSEWHERE
        if head.alive:
            return ALIVE
        return GONE
    if not (folder / LOCK).exists():
        return GONE
    lock = FileLock(folder / LOCK)
    try:
        if lock.take(shared=True):
            return GONE
        return ALIVE
    except OSError:  # no right to: it is another user's
        return ELSEWHERE
    finally:
        lock.release()
