"""What ``deepvm simulate`` is asked to simulate, and its answers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from deepvm.cli.long_runs import Progress, cleaning_up
from deepvm.cli.output import note
from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.deadlines import parse_deadline_policy
from deepvm.core.preemption.job import Job
from deepvm.core.preemption.savepolicy import SavePolicy, parse_policy
from deepvm.core.spelling import joined
from deepvm.core.units import format_seconds, parse_seconds
from deepvm.errors import DataError, RequestError, SimulationError
from deepvm.simulator.engine.lifetimes import LifeSource, ObservedLifetimes, whole_lives
from deepvm.simulator.engine.markets import Deadline
from deepvm.simulator.jobfile import PRESETS, preset, read_job
from deepvm.simulator.monte_carlo import simulate_each
from deepvm.simulator.results import Results
from deepvm.simulator.sweeps import Case, swept
from deepvm.simulator.traces.replay import MTTP_S
from deepvm.simulator.traces.trace import pools_of, read_traces


def jobs_of(
    paths: list[Path], presets: list[str], market: str | None, *, replayed: bool
) -> list[Job]:
    """The jobs.

    ``replayed``: on recorded lifetimes, for which policies need a prior until they have seen some.
    """
    found = [preset(name) for name in presets] + [read_job(path) for path in paths]
    if not found:
        raise RequestError("job", "", f"a job file, or --preset {' or '.join(PRESETS)}")
    names = [job.name for job in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise RequestError("job", twice[0], "jobs whose names differ; the key 'name' of a job file")
    if market:
        jobs = [replace(job, market=Market(market)) for job in found]
    else:
        jobs = found
    for i, job in enumerate(jobs):
        if replayed and job.mttp_s[0] == math.inf:
            note(
                f"{job.name}: no mttp_s is given; until lifetimes are seen, policies assume"
                f" {format_seconds(MTTP_S)}"
            )
            jobs[i] = replace(job, mttp_s=(MTTP_S,))
    return jobs


def policies_of(policy: str | None, compare: str | None) -> list[SavePolicy]:
    """The save policies, each once."""
    if compare is None:
        return [parse_policy("adaptive" if policy is None else policy)]
    if policy is not None:
        raise RequestError(
            "policy", policy, "no --policy beside --compare, which names all of them"
        )
    names = [name.strip() for name in compare.split(",") if name.strip()]
    if not names:
        raise RequestError("compare", compare, "policies, separated by commas")
    return list(dict.fromkeys(parse_policy(name, "compare") for name in names))


def cases_of(
    jobs: list[Job], policies: list[SavePolicy], sweep: list[str], *, replayed: bool
) -> list[Case]:
    """Every job with every value of the sweep under every policy."""
    if replayed and any(text.startswith("mttp=") for text in sweep):
        raise RequestError(
            "sweep",
            " ".join(sweep),
            "a key other than mttp: the lifetimes are those of --trace or --lives",
        )
    return [
        Case(varied, p, values)
        for job in jobs
        for varied, values in swept(job, sweep)
        for p in policies
    ]


def deadline_of(time: str, policy: str | None, jobs: list[Job]) -> Deadline | None:
    """The deadline, if any.

    Raises RequestError: a job may need on-demand VMs and has only a spot price.
    """
    if policy is not None and not time:
        raise RequestError("deadline_policy", policy, "no --deadline-policy without --deadline")
    decides = parse_deadline_policy(
        "uniform-progress" if policy is None else policy, "deadline_policy"
    )
    deadline = None
    if time:
        deadline = Deadline(parse_seconds(time, "deadline"), decides)
    for job in (j for j in jobs if j.spot_usd_per_hour and not j.on_demand_usd_per_hour):
        missing = (
            f"a job with a price on demand: {job.name} has spot_usd_per_hour, and no"
            " on_demand_usd_per_hour"
        )
        if job.market is Market.ON_DEMAND:
            raise RequestError("market", job.market.value, missing)
        if deadline:
            raise RequestError("deadline", time, missing)
    return deadline


def simulated(
    cases: list[Case],
    runs: int,
    seed: int,
    lives: LifeSource | None,
    jobs: int,
    executor: str,
    deadline: Deadline | None,
) -> tuple[list[Results], list[SimulationError]]:
    """The answers, and the errors of the cases that make no progress."""
    with cleaning_up(), Progress(len(cases) * runs, "runs") as progress:
        found = simulate_each(
            [(case.job, case.policy) for case in cases],
            runs=runs,
            seed=seed,
            lives=lives,
            jobs=jobs,
            executor=executor,
            deadline=deadline,
            progress=progress.advance,
        )
    results = list[Results]()
    failed = list[SimulationError]()
    for case, result in zip(cases, found, strict=True):
        if isinstance(result, SimulationError):
            where = [f"{key}={value:g}" for key, value in case.values] + [case.policy.name]
            failed.append(SimulationError(f"{', '.join(where)}: {result}"))
        else:
            results.append(replace(result, sweep=dict(case.values)))
    return results, failed


def own_lives(text: str) -> LifeSource:
    """Lives of the machines of this user's jobs.

    ``text`` is ``history``, ``history:TYPE`` or ``history:TYPE/ZONE``.

    Raises:
        RequestError: another text, or a pool without a history. MissingExtraError: no SQLAlchemy.
        DataError: the history cannot be read, or no machine in it was taken back.
    """
    name, _, pool = text.partition(":")
    if name != "history":
        raise RequestError("lives", text, "history, history:TYPE or history:TYPE/ZONE")
    import time

    from deepvm.jobs.history.history import History
    from deepvm.jobs.history.pools import lives_in
    from deepvm.simulator.traces.resampled import ResampledLifetimes

    with History.open() as history:
        rows = history.machines()
    found = lives_in(rows, time.time(), tuple(pool.split("/")) if pool else ())
    if not found:
        kinds = sorted(
            {f"history:{m['instance_type']}/{m['zone']}" for m in rows if m["market"] == "spot"}
        )
        known = "a --trace: no job of yours has had spot machines yet"
        if kinds:
            known = joined(kinds, "or")
        raise RequestError("lives", text, known)
    lives = ResampledLifetimes(found)
    ended = sum(end for _, end in found)
    note(
        f"{len(found)} lives, {ended} ended by a preemption; mean life"
        f" {format_seconds(lives.mean_s)}"
    )
    return lives


def traced_lives(files: list[Path]) -> LifeSource:
    """The lifetimes of traces. Raises DataError: no machine is preempted there."""
    traces = read_traces(files, note)
    whole = [whole_lives(pool.pairs) for pool in pools_of(traces, say=note)]
    if not any(whole):
        raise DataError(
            f"{', '.join(map(str, files))}: no machine is preempted there; name another trace, or"
            " none"
        )
    note(
        "--trace replays how long machines lived, not when they were unavailable: a replacement"
        " comes after allocation_s; 'deepvm traces deadline' counts those hours, too"
    )
    return ObservedLifetimes(whole)
