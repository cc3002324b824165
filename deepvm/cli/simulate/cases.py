"""The jobs, policies, deadlines and lifetimes that ``deepvm simulate`` simulates."""

import math
import time
from dataclasses import replace
from pathlib import Path

from deepvm.cli.output import note
from deepvm.core.cluster.instances import Market
from deepvm.core.options import words
from deepvm.core.preemption.deadlines import parse_deadline_policy
from deepvm.core.preemption.job import Job
from deepvm.core.preemption.savepolicy import SavePolicy, parse_policy
from deepvm.core.spelling import joined
from deepvm.core.units import format_seconds, parse_seconds
from deepvm.errors import DataError, OptionMismatchError, RequestError
from deepvm.simulator.engine.lifetimes import LifeSource, ObservedLifetimes, whole_lives
from deepvm.simulator.engine.markets import Deadline
from deepvm.simulator.jobfile import PRESETS, preset, read_job
from deepvm.simulator.traces.replay import MTTP_S
from deepvm.simulator.traces.trace import pools_of, read_traces


def jobs_of(
    paths: list[Path], presets: list[str], market: str | None, *, replayed: bool
) -> list[Job]:
    """The jobs. Raises RequestError: there is none, or two have one name."""
    given = [preset(name) for name in presets] + [read_job(path) for path in paths]
    if not given:
        raise RequestError("job", "", f"a simulation file, or --preset {' or '.join(PRESETS)}")
    names = [job.name for job in given]
    if twice := [name for name in names if names.count(name) > 1]:
        raise RequestError(
            "job", twice[0], "jobs whose names differ; the key 'name' of a simulation file"
        )
    jobs = []
    for job in given:
        if market:
            job = replace(job, market=Market(market))
        if replayed and job.mttp_s[0] == math.inf:
            assumed = f"until lifetimes are seen, policies assume {format_seconds(MTTP_S)}"
            note(f"{job.name}: no mttp_s is given; {assumed}")
            job = replace(job, mttp_s=(MTTP_S,))
        jobs.append(job)
    return jobs


def policies_of(policy: str | None, compare: str | None) -> list[SavePolicy]:
    """The save policies, each once."""
    if compare is None:
        return [parse_policy("adaptive" if policy is None else policy)]
    if policy is not None:
        raise OptionMismatchError.with_other("policy", policy, "--compare")
    names = list(filter(None, words(compare, "compare"))) or [compare]
    return list(dict.fromkeys(parse_policy(name, "compare") for name in names))


def deadline_of(time: str, policy: str | None, jobs: list[Job]) -> Deadline | None:
    """The deadline, if any."""
    if policy is not None and not time:
        raise OptionMismatchError("deadline_policy", policy, "needs --deadline")
    if policy is None:
        policy = "uniform-progress"
    decides = parse_deadline_policy(policy, "deadline_policy")
    deadline = None
    if time:
        deadline = Deadline(parse_seconds(time, "deadline"), decides)
    for job in jobs:
        on_demand = job.market is Market.ON_DEMAND
        only_spot = job.spot_usd_per_hour and not job.on_demand_usd_per_hour
        if only_spot and (on_demand or deadline):
            reason = f"{job.name} has spot_usd_per_hour, and no on_demand_usd_per_hour"
            option, value = ("market", job.market.value) if on_demand else ("deadline", time)
            raise RequestError(option, value, f"a job with a price on demand: {reason}")
    return deadline


def own_lives(text: str) -> LifeSource:
    """Lifetimes of the machines of this user's jobs."""
    name, _, pool = text.partition(":")
    if name != "history":
        raise RequestError("lives", text, "history, history:TYPE or history:TYPE/ZONE")
    from deepvm.jobs.history.history import History
    from deepvm.jobs.history.pools import lives_in
    from deepvm.simulator.traces.lifetime_fit import ResampledLifetimes

    with History.open() as history:
        rows = history.machines()
    lifetimes = lives_in(rows, time.time(), tuple(pool.split("/")) if pool else ())
    if not lifetimes:
        spot = [m for m in rows if m["market"] == "spot"]
        kinds = sorted({f"history:{m['instance_type']}/{m['zone']}" for m in spot})
        known = "a --trace: no job of yours has had spot machines yet"
        if kinds:
            known = joined(kinds, "or")
        raise RequestError("lives", text, known)
    lives = ResampledLifetimes(lifetimes)
    ended = f"{sum(end for _, end in lifetimes)} ended by a preemption"
    note(f"{len(lifetimes)} lifetimes, {ended}; mean {format_seconds(lives.mean_s)}")
    return lives


def traced_lives(files: list[Path]) -> LifeSource:
    """The lifetimes of traces. Raises DataError: no machine is preempted there."""
    traces = read_traces(files, note)
    whole = [whole_lives(pool.pairs) for pool in pools_of(traces, say=note)]
    if not any(whole):
        named = ", ".join(map(str, files))
        raise DataError(f"{named}: no machine is preempted there; name another trace, or none")
    note(
        "--trace replays how long machines lived, not when they were unavailable: a replacement"
        " comes after allocation_s; 'deepvm traces deadline' counts those hours, too"
    )
    return ObservedLifetimes(whole)
