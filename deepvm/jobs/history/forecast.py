"""What could be expected of a job before it started, next to what came out: for its final report.

It is what ``deepvm simulate`` says of the job by what was known at its submission: steps, prices,
policy, the mean life of its machines, and how long earlier machines of their kind took to start.
Only the time of a step is measured, as it is unknown before; and, where their number is not given,
the steps of a job that is done. A job that may change its size or its market has no
forecast: of those the simulator has no like.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.preemption.job import ZERO, Job, Span
from deepvm.core.preemption.preemption_estimators import Notices
from deepvm.errors import SimulationError
from deepvm.jobs.decisions import states
from deepvm.jobs.decisions.injection import Injection
from deepvm.jobs.decisions.markets import is_on_demand
from deepvm.jobs.decisions.world import JobState, Role
from deepvm.jobs.history.downtime import DOWNTIME, Downtimes
from deepvm.jobs.history.history import Events
from deepvm.jobs.history.validation import step_time

_RUNS = 200
FIGURES = ("total_s", "cost_usd", "preemptions")


def forecast(
    spec: JsonObject,
    created_s: float,
    world: JobState,
    events: Events,
    machines: Iterable[JsonObject],
    document: JsonDict,
    without: Downtimes = (),
) -> JsonDict | None:
    """The key ``forecast`` of a final document; where there is none, ``unforeseen`` of it says why.

    ``machines``: of the history; those of other jobs, from before this one, say how long a start
    takes. ``without``: when there was no controller; it is compared with what was spent but for the
    part of that in which nothing trained.
    """
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
    if spec.get("inject") is None:
        injection = None
    else:
        injection = Injection.of(spec["inject"])
    job = _expected(spec, world, steps, step_s, start_s, injection)
    listed = None
    if injection is not None and injection.lives_s:
        listed = ListedLifetimes([start_s + life for life in injection.lives_s[: injection.count]])
    try:
        found = simulate(job, world.terms.policy, runs=_RUNS, lives=listed)
    except SimulationError:
        document["unforeseen"] = "machines are not expected to live long enough"
        return None
    spreads = {name: Spread.of(getattr(found, name)) for name in FIGURES}
    fact = _compared(document, without, step_s)
    off = {
        n: round(spreads[n].p50 / fact[n] - 1, 4) if fact[n] else None
        for n in ("total_s", "cost_usd")
    }
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
        "off": off if done else None,
    }


def _unforeseen(world: JobState, steps: int, step_s: float) -> str:
    """Why a job has no forecast; empty if it has."""
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
    if step_s:
        return ""
    return "no step was timed"


def _compared(document: JsonObject, without: Downtimes, step_s: float) -> JsonDict:
    """The result without idle controller downtime, and without its share of the cost."""
    idle_s = sum(one.idle_s(step_s) for one in without)
    span_s = sum(one.span_s for one in without)
    idle_usd = 0.0
    if span_s:
        idle_usd = document["spent_usd"][DOWNTIME] * idle_s / span_s
    less = {
        "total_s": round(document["total_s"] - idle_s, 3),
        "cost_usd": round(document["cost_usd"] - idle_usd, 8),
    }
    return {name: less.get(name, document[name]) for name in FIGURES}


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
    if is_on_demand(pool):
        spots = 0
    else:
        spots = terms.most - terms.steadies
    usd = spots * pool.usd_per_hour
    usd += sum(terms.steadies * steady.usd_per_hour for steady in terms.steady[:1])
    usd += sum(terms.anchors * anchor.usd_per_hour for anchor in terms.anchor[:1])
    vms = spots or terms.most
    if not spots:
        usd += vms * pool.usd_per_hour
    # Lives that are ended on purpose count from when a machine trains, those of the simulator from
    # its request.
    life_s = terms.mttp_s + (start_s if injection else 0.0)
    if spots:
        lives: tuple[float, ...] = (life_s,)
    else:
        lives = (math.inf,)
    if spots and injection and injection.count is not None:  # whoever comes later stays
        lives = lives * max(injection.count - vms + 1, min(injection.count, 1)) + (math.inf,)
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
        missed_notice_rate=(
            injection.missed + injection.silent if injection else float(Notices().missed_rate)
        ),
        proactive_replacement=True,
        vms=vms,
    )
