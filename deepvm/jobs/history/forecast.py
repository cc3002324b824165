"""What could be expected of a job before it started, next to what came out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.preemption.job import ZERO, Job, Span
from deepvm.core.preemption.preemption_estimators import Notices
from deepvm.core.preemption.savepolicy import SavePolicy
from deepvm.errors import RequestError, SimulationError
from deepvm.jobs.decisions import states
from deepvm.jobs.decisions.injection import Injection
from deepvm.jobs.decisions.markets import is_on_demand
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Reason, Role
from deepvm.jobs.history.history import Events
from deepvm.jobs.history.timeline import DOWNTIME, Downtimes
from deepvm.records import asdict, dataclass, field

_RUNS = 200
FIGURES = ("total_s", "cost_usd", "preemptions")
HOLDING = (Reason.EMERGENCY.value, Reason.RESIZE.value, Reason.STOP.value)
PARTS = ("compute", "recompute", "save", "allocation", "preparation")
_LATENCIES = ("step_s", "stall_s", "took_s", "allocation_s", "preparation_s")


def forecast(
    spec: JsonObject,
    created_s: float,
    world: JobState,
    events: Events,
    machines: Iterable[JsonObject],
    document: JsonDict,
    without: Downtimes = (),
) -> JsonDict | None:
    """The key ``forecast`` of a final document; else its ``unforeseen`` says why there is none."""
    from deepvm.simulator.engine.lifetimes import ListedLifetimes
    from deepvm.simulator.monte_carlo import simulate
    from deepvm.simulator.results import Spread

    done = world.job is states.Job.DONE
    terms = world.terms
    steps = terms.steps or (world.steps if done else 0)
    step_s = step_time(world, events, without)
    document["unforeseen"] = _unforeseen(world, steps, step_s)
    if document["unforeseen"]:
        return None
    kind = (world.pools[0].instance_type, spec.get("cloud"), Role.TRAINER.value)
    took = [
        m["trained_s"] - m["requested_s"]
        for m in machines
        if (m["instance_type"], m["cloud"], m["role"]) == kind
        and m["trained_s"] is not None
        and m["trained_s"] < created_s
    ]
    # From the request for a machine to training
    start_s = fmean(took) if took else terms.restart_s
    injection = None if spec.get("inject") is None else Injection.of(spec["inject"])
    job = _expected(spec, world, steps, step_s, start_s, injection)
    listed = None
    if injection and injection.lives_s:
        listed = ListedLifetimes([start_s + life for life in injection.lives_s[: injection.count]])
    try:
        found = simulate(job, world.terms.policy, runs=_RUNS, lives=listed)
    except SimulationError:
        document["unforeseen"] = "machines are not expected to live long enough"
        return None
    spreads = {name: Spread.of(getattr(found, name)) for name in FIGURES}
    fact = _compared(document, without, step_s)
    return {
        "runs": _RUNS,
        "steps": job.steps,
        "steps_given": terms.steps is not None,
        "step_s": round(step_s, 6),
        "start_s": round(job.preparation_s.mean, 3),
        "mttp_s": terms.mttp_s if job.mttp_s[0] < math.inf else None,
        **{
            name: {k: round(x, 8) for k, x in asdict(spread).items()}
            for name, spread in spreads.items()
        },
        "fact": fact,
        "off": _deviation({n: spreads[n].p50 for n in FIGURES}, fact) if done else None,
    }


def _deviation(forecast: JsonObject, fact: JsonObject) -> JsonDict:
    return {
        name: round(forecast[name] / fact[name] - 1, 4) if fact[name] else None
        for name in ("total_s", "cost_usd")
    }


def _unforeseen(world: JobState, steps: int, step_s: float) -> str:
    terms = world.terms
    if world.progress_unknown:
        return world.progress_unknown
    if not steps:
        return "the number of steps is unknown ('steps' of the job file, --steps)"
    if terms.least != terms.most:
        return "deepvm cannot simulate a job whose number of machines may change"
    if terms.bought:
        return (
            "deepvm cannot simulate a job that may switch to on-demand machines to meet its"
            " deadline"
        )
    return "" if step_s else "no step was timed"


def _compared(document: JsonObject, without: Downtimes, step_s: float) -> JsonDict:
    idle_s = sum(one.idle_s(step_s) for one in without)
    span_s = sum(one.span_s for one in without)
    idle_usd = document["spent_usd"][DOWNTIME] * idle_s / span_s if span_s else 0.0
    fact = {name: document[name] for name in FIGURES}
    fact["total_s"] = round(document["total_s"] - idle_s, 3)
    fact["cost_usd"] = round(document["cost_usd"] - idle_usd, 8)
    return fact


def _expected(
    spec: JsonObject,
    world: JobState,
    steps: int,
    step_s: float,
    start_s: float,
    injection: Injection | None,
) -> Job:
    """The job as it was submitted; the price of a VM is its share of the whole cluster's."""
    terms = world.terms
    pool = world.pools[0]
    spots = 0 if is_on_demand(pool) else terms.most - terms.steadies
    vms = spots or terms.most
    usd = vms * pool.usd_per_hour
    usd += sum(terms.steadies * steady.usd_per_hour for steady in terms.steady[:1])
    usd += sum(terms.anchors * anchor.usd_per_hour for anchor in terms.anchor[:1])
    # Injected lives count from when a machine trains, those of the simulator from its request
    life_s = terms.mttp_s + (start_s if injection else 0.0)
    lives: tuple[float, ...] = (life_s if spots else math.inf,)
    if spots and injection and injection.count is not None:  # anyone who comes later stays
        lives = lives * max(injection.count - vms + 1, min(injection.count, 1)) + (math.inf,)
    missed = injection.missed + injection.silent if injection else float(Notices().missed_rate)
    return Job(
        name="forecast",
        steps=steps,
        step_s=Span.of(step_s),
        save_s=Span.of(terms.version_s),
        stall_s=ZERO,
        preparation_s=Span.of(start_s),
        grace_s=Span.of(pool.grace_s),
        mttp_s=lives,
        save_every_steps=spec.get("save_every_steps"),
        spot_usd_per_hour=usd / vms,
        missed_notice_rate=missed,
        proactive_replacement=True,
        vms=vms,
    )


def refuse_unlike(terms: JobLimits) -> None:
    """Raise RequestError for jobs that the simulator has no like of."""
    if terms.least != terms.most or terms.bought:
        raise RequestError(
            "validate",
            True,
            "a job whose machines.count is a number and that no deadline moves on demand",
        )


@dataclass
class _Generation:
    start_s: float
    first: int
    members: set[str] = field(default_factory=set)
    end_s: float = math.inf
    known: tuple[int, float] = (0, 0.0)
    known_stalls_s: float = 0.0
    stalls_s: float = 0.0
    held_s: float = 0.0

    def reach(self, step: int, at_s: float) -> None:
        self.known = step, at_s
        self.known_stalls_s = self.stalls_s


@dataclass(frozen=True)
class ObservedRun:
    """What happened, seconds and dollars."""

    steps: int
    step_s: float
    stall_s: float
    took_s: float
    allocation_s: float
    preparation_s: float
    lives_s: tuple[float, ...]  # since each machine was needed; infinite: it was not preempted
    graces_s: tuple[float, ...]  # from each notice to the end, 0 without one
    total_s: float
    cost_usd: float
    lost_steps: int
    preemptions: int
    parts_s: Mapping[str, float]  # of the time, as the simulator counts


def observed(created_s: float, world: JobState, events: Events) -> ObservedRun | None:
    """What happened to a job that has trained to its end; None if too little of it is known."""
    generations = _generations(world, events)
    # When the last trainers had ended
    ends_s = [e.at_s for e in events if e.kind == "ended" and not e.facts["code"]]
    if not generations or not ends_s:
        return None
    end_s = ends_s[-1]
    trainers = world.trained
    deaths = {m.id: _death_s(m) for m in trainers}
    needed = _needed_s(created_s, world, trainers, deaths)
    waits = []
    prepared = []
    trained_s = 0.0
    before_s = created_s
    before = set[str]()
    for one in generations:
        launched = [m.launched_s or 0.0 for m in trainers if m.id in one.members - before]
        there_s = min(max([before_s, *launched]), one.start_s)
        waits.append(there_s - before_s)
        prepared.append(one.start_s - there_s)
        trained_s += min(one.end_s, end_s) - one.start_s
        before_s = min(one.end_s, end_s)
        before = one.members
    saved = [e.facts for e in events if e.kind == "safe"]
    unhurried = [float(f["stall_s"]) for f in saved if f["reason"] not in HOLDING]
    took = [float(f["took_s"]) for f in saved]
    step_s = step_time(world, events)
    save_s = sum(g.stalls_s + g.held_s for g in generations)
    lost_steps = _lost_steps(generations, step_s)
    recompute_s = min(lost_steps * step_s, trained_s - save_s)
    parts = (trained_s - save_s - recompute_s, recompute_s, save_s, sum(waits), sum(prepared))
    return ObservedRun(
        steps=world.steps,
        step_s=step_s,
        stall_s=fmean(unhurried) if unhurried else 0.0,
        took_s=fmean(took) if took else 0.0,
        allocation_s=fmean([max((m.launched_s or 0.0) - needed[m.id], 0.0) for m in trainers]),
        preparation_s=fmean(prepared),
        lives_s=tuple(deaths[m.id] - needed[m.id] for m in trainers),
        graces_s=tuple(
            deaths[m.id] - m.noticed_s if m.noticed_s is not None else 0.0 for m in trainers
        ),
        total_s=end_s - created_s,
        cost_usd=sum(
            m.pool.usd_per_hour * m.lived_between(-math.inf, end_s) / 3600 for m in trainers
        ),
        lost_steps=lost_steps,
        preemptions=sum(at_s < math.inf for at_s in deaths.values()),
        parts_s=dict(zip(PARTS, parts, strict=True)),
    )


def _generations(world: JobState, events: Events) -> list[_Generation]:
    found: dict[int, _Generation] = {}
    members: dict[int, set[str]] = {}
    for event in events:
        facts = event.facts
        number = event.generation
        known = found.get(number)
        if event.kind == "started":
            members.setdefault(number, set()).add(facts["id"])
            if facts.get("version") is not None:
                found.setdefault(number, _Generation(event.at_s, facts["version"], members[number]))
        elif known and event.kind == "ended" and not facts["code"]:
            known.end_s = event.at_s
            known.reach(int(facts["step"]), event.at_s)
        elif known and event.kind == "safe" and known.end_s == math.inf:
            took_s = float(facts["took_s"])
            known.reach(int(facts["version"]), event.at_s - took_s)
            if facts["reason"] in HOLDING:  # training waits for it: the generation has ended
                known.end_s = event.at_s
                known.held_s = took_s
            else:
                known.stalls_s += float(facts["stall_s"])
    for one in found.values():
        ends = [m.ended_s or 0.0 for m in world.machines.values() if m.id in one.members]
        one.end_s = min([one.end_s, *(e for e in ends if e > one.start_s)])
    return [found[number] for number in sorted(found)]


def step_time(world: JobState, events: Events, without: Downtimes = ()) -> float:
    """Mean time of a step without what checkpoints cost and downtimes; 0 if it is not known."""
    known = [g for g in _generations(world, events) if g.known[0] > g.first]
    unseen = [
        one
        for one in without
        if any(g.start_s <= one.since_s and one.until_s <= g.known[1] for g in known)
    ]
    steps = sum(g.known[0] - g.first for g in known) - sum(one.steps for one in unseen)
    took_s = sum(g.known[1] - g.start_s - g.known_stalls_s for g in known)
    took_s -= sum(one.span_s for one in unseen)
    if steps > 0 and took_s > 0:
        return took_s / steps
    return float(world.facts.step_s)


def _lost_steps(generations: Sequence[_Generation], step_s: float) -> int:
    """Steps done twice; those since a machine's last checkpoint are estimated by time."""
    lost = 0
    for one, later in pairwise(generations) if step_s else ():
        step, at_s = one.known if one.known[1] else (one.first, one.start_s)
        since_s = 0.0
        if not one.held_s:
            since_s = one.end_s - at_s - (one.stalls_s - one.known_stalls_s)
        lost += max(step + round(since_s / step_s) - later.first, 0)
    return lost


def _death_s(machine: MachineRecord) -> float:
    if machine.noticed_s is not None and machine.taken_s is not None:
        return machine.taken_s
    if machine.was_preempted and machine.ended_s:
        return machine.ended_s
    return math.inf


def _needed_s(
    created_s: float,
    world: JobState,
    trainers: Sequence[MachineRecord],
    deaths: Mapping[str, float],
) -> dict[str, float]:
    """Since when each machine was needed: the start, or the loss or notice it makes up for."""
    lost = sorted(
        min(m.noticed_s or math.inf, deaths[m.id]) for m in trainers if deaths[m.id] < math.inf
    )
    since = [created_s] * world.terms.most + lost + [math.inf] * len(trainers)
    return {m.id: min(at_s, m.requested_s) for m, at_s in zip(trainers, since, strict=False)}


def validation(
    seen: ObservedRun, terms: JobLimits, policy: SavePolicy, usd_per_hour: float
) -> JsonDict:
    """Forecast, fact and deviation as a document: dollars, seconds, shares of the fact."""
    from deepvm.simulator.engine.lifetimes import ListedLifetimes
    from deepvm.simulator.monte_carlo import simulate

    job = Job(  # each latency at its mean
        name="validation",
        steps=max(seen.steps, 1),
        step_s=Span.of(max(seen.step_s, 1e-6)),
        save_s=Span.of(max(seen.took_s, seen.stall_s)),
        stall_s=Span.of(seen.stall_s),
        allocation_s=Span.of(seen.allocation_s),
        preparation_s=Span.of(seen.preparation_s),
        grace_s=Span.of(max(seen.graces_s, default=0.0)),
        mttp_s=(terms.mttp_s,),
        spot_usd_per_hour=usd_per_hour,
        proactive_replacement=True,
        vms=terms.most,
    )
    fact = _figures(
        seen.total_s, seen.cost_usd, float(seen.lost_steps), float(seen.preemptions), seen.parts_s
    )
    measured = {name: round(getattr(seen, name), 6) for name in _LATENCIES}
    try:
        found = simulate(job, policy, runs=1, lives=ListedLifetimes(seen.lives_s, seen.graces_s))
    except SimulationError as error:
        none = {"forecast": None, "deviation": None}
        return {"fact": fact, **none, "measured": measured, "why": str(error)}
    lost = float(found.preemptions[0])
    # The simulator pays from the request on, a cloud's user from the launch
    unpaid_s = seen.allocation_s * (job.vms + lost)
    usd = float(found.cost_usd[0]) - unpaid_s * usd_per_hour / 3600
    again = found.breakdown_s["recompute"] / job.step_s.mean
    forecast = _figures(float(found.total_s[0]), usd, again, lost, found.breakdown_s)
    return {
        "fact": fact,
        "forecast": forecast,
        "deviation": _deviation(forecast, fact),
        "measured": measured,
    }


def _figures(
    total_s: float, usd: float, lost_steps: float, preemptions: float, parts_s: Mapping[str, float]
) -> JsonDict:
    return {
        "total_s": round(total_s, 3),
        "cost_usd": round(usd, 8),
        "lost_steps": round(lost_steps),
        "preemptions": round(preemptions),
        "breakdown_s": {name: round(parts_s[name], 3) for name in PARTS},
    }
