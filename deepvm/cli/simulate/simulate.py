"""``deepvm simulate``: what preemptions will do to a job, before it starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deepvm.cli.output import TableJsonCsv, check_plot, note, print_document
from deepvm.cli.progress import Progress
from deepvm.cli.signal_handling import cleaning_up

if TYPE_CHECKING:
    from deepvm.core.preemption.job import Job
    from deepvm.core.preemption.savepolicy import SavePolicy
    from deepvm.errors import SimulationError
    from deepvm.simulator.engine.lifetimes import LifeSource
    from deepvm.simulator.engine.markets import Deadline
    from deepvm.simulator.sweeps import Answer, Case


def simulate(
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files of --trace.")] = None,
    job: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="The job: a YAML file; docs/reference/job-file.md lists its keys. Several are compared.",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A job that comes with deepvm: gpt-117m or gpt-1.3b."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="When to save: none, static:STEPS, every:TIME, auto, young, daly, exact, thesis, adaptive or "
            "hazard.  [default: adaptive]",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Several policies, separated by commas; one row for each.")
    ] = None,
    runs: Annotated[int, typer.Option(help="How many trainings.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trainings.")] = 1,
    market: Annotated[
        Literal["spot", "on-demand"] | None,
        typer.Option(help="Where the VMs come from.  [default: what the job says]", show_default=False),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LOW:HIGH[:STEP]",
            help="One row for each value of mttp, grace, save, backup, allocation, preparation (such as 1h:12h), "
            "missed or vms.",
        ),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Replay the lives of recorded machines; more files are more pools."),
    ] = None,
    deadline: Annotated[
        str,
        typer.Option(metavar="TIME", help="Be done by then, such as 150h, with on-demand VMs if need be."),
    ] = "",
    deadline_policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Who chooses the market: uniform-progress (the default), greedy or on-demand."
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Processes to use: they share all rows, and the runs of a row by 10 000.")
    ] = 1,
    executor: Annotated[
        str, typer.Option(metavar="dask://HOST:PORT", help="A Dask cluster to use in their place.")
    ] = "",
    plot: Annotated[str, typer.Option(metavar="FILE", help="Draw the answer as well: a .png or .svg.")] = "",
    output: TableJsonCsv = "table",
) -> None:
    """Simulate a training on preemptible VMs: time, cost and what they go into, with the spread over many runs.

    Examples: deepvm simulate --preset gpt-1.3b --compare static:33,thesis,adaptive --plot bars.png

    deepvm simulate --job job.yaml --sweep mttp=1h:12h --runs 1000
    """
    check_plot(plot)
    trace = [*(trace or []), *_more_traces(more or [], trace)]
    all_jobs = _jobs(job or [], preset or [], market)
    if trace:
        all_jobs = [_with_prior(each) for each in all_jobs]
    policies = _policies(policy, compare)
    cases = [case for each in all_jobs for case in _cases(each, policies, sweep or [], bool(trace))]
    lives, limit = _lives(trace), _deadline(deadline, deadline_policy)
    _refuse_half_a_bill(all_jobs, deadline)
    answers, hopeless = _simulated(cases, runs, seed, lives, jobs, executor, limit)
    from deepvm.errors import SimulationError
    from deepvm.reports.simulation import simulations

    many = bool(compare is not None or sweep or len(all_jobs) > 1)
    error = SimulationError("\n".join(str(e) for e in hopeless)) if hopeless else None
    if error and not answers:
        raise error
    if output == "json":
        document: Any = simulations.comparison(answers) if many else answers[0].results.document()
        print_document(document)
    elif output == "csv":
        sys.stdout.write(simulations.csv_text(answers))
    else:
        simulations.print_answers(answers)
    if plot:
        from deepvm.reports.pictures import save_picture

        save_picture(simulations.answers_figure(answers), Path(plot))
    if error:
        raise error


def _more_traces(files: list[Path], traces: list[Path] | None) -> list[Path]:
    """What stands behind ``--trace FILE``, as a shell writes ``--trace *.json``."""
    from deepvm.errors import RequestError

    if files and not traces:
        raise RequestError("job", "", f"--job {files[0]} for a job, or --trace {files[0]} for the lives of machines")
    return files


def _jobs(paths: list[Path], presets: list[str], market: str | None) -> list[Job]:
    from dataclasses import replace

    from deepvm.core.cluster.instances import Market
    from deepvm.errors import RequestError
    from deepvm.simulator.jobfile import PRESETS, preset, read_job

    found = [preset(name) for name in presets] + [read_job(path) for path in paths]
    if not found:
        raise RequestError("job", "", f"a job file, or --preset {' or '.join(PRESETS)}")
    names = [job.name for job in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise RequestError("job", twice[0], "jobs whose names differ; the key 'name' of a job file")
    return [replace(job, market=Market(market)) for job in found] if market else found


def _with_prior(job: Job) -> Job:
    """A job that is replayed on lives that were seen, and that policies believe something of before they saw any."""
    import math
    from dataclasses import replace

    from deepvm.core.units import format_seconds
    from deepvm.simulator.traces.replay import MTTP_S

    if job.mttp_s[0] < math.inf:
        return job
    note(f"{job.name}: no mttp_s is given; until lives are seen, policies believe {format_seconds(MTTP_S)}")
    return replace(job, mttp_s=(MTTP_S,))


def _policies(policy: str | None, compare: str | None) -> list[SavePolicy]:
    from deepvm.core.preemption.savepolicy import parse_policy
    from deepvm.errors import RequestError

    if compare is None:
        return [parse_policy("adaptive" if policy is None else policy)]
    if policy is not None:
        raise RequestError("policy", policy, "no --policy beside --compare, which names all of them")
    names = [name.strip() for name in compare.split(",") if name.strip()]
    if not names:
        raise RequestError("compare", compare, "policies, separated by commas")
    return list(dict.fromkeys(parse_policy(name, "compare") for name in names))


def _cases(job: Job, policies: list[SavePolicy], sweep: list[str], traced: bool) -> list[Case]:
    from deepvm.errors import RequestError
    from deepvm.simulator.sweeps import Case, swept

    if traced and any(text.startswith("mttp=") for text in sweep):
        raise RequestError("sweep", " ".join(sweep), "a key other than mttp: the lives are those of --trace")
    return [Case(varied, chosen, values) for varied, values in swept(job, sweep) for chosen in policies]


def _lives(files: list[Path]) -> LifeSource | None:
    if not files:
        return None
    from deepvm.errors import DataError
    from deepvm.simulator.engine.lifetimes import Seen, whole_lives
    from deepvm.simulator.traces.trace import pools_of, read_traces

    traces = read_traces(files, note)
    whole = [whole_lives(pool.pairs) for pool in pools_of(traces, say=note)]
    if not any(whole):
        raise DataError(f"{', '.join(map(str, files))}: no machine is lost there; name another trace, or leave it away")
    lives = Seen(whole)
    time_s = sum(trace.gap_s * trace.counts.size for trace in traces)
    short_s = sum(trace.gap_s * float((trace.counts < trace.nodes).sum()) for trace in traces)
    note(
        f"--trace replays how long machines lived, not the {short_s / time_s:.0%} of the time in which they were not "
        "to be had: a replacement comes after allocation_s; 'deepvm traces deadline' counts those hours, too"
    )
    return lives


def _deadline(time: str, policy: str | None) -> Deadline | None:
    from deepvm.core.preemption.deadlines import parse_deadline_policy
    from deepvm.core.units import parse_seconds
    from deepvm.errors import RequestError
    from deepvm.simulator.engine.markets import Deadline

    if policy is not None and not time:
        raise RequestError("deadline_policy", policy, "no --deadline-policy without --deadline")
    decides = parse_deadline_policy("uniform-progress" if policy is None else policy, "deadline_policy")
    return Deadline(parse_seconds(time, "deadline"), decides) if time else None


def _refuse_half_a_bill(jobs: list[Job], deadline: str) -> None:
    """A job whose VMs are partly free of charge would look the cheaper, the more of them it takes."""
    from deepvm.core.cluster.instances import Market
    from deepvm.errors import RequestError

    for job in jobs:
        if not job.spot_usd_per_hour or job.on_demand_usd_per_hour:
            continue
        missing = f"a job with a price on demand: {job.name} has spot_usd_per_hour, and no on_demand_usd_per_hour"
        if job.market is Market.ON_DEMAND:
            raise RequestError("market", job.market.value, missing)
        if deadline:
            raise RequestError("deadline", deadline, missing)


def _simulated(
    cases: list[Case],
    runs: int,
    seed: int,
    lives: LifeSource | None,
    jobs: int,
    executor: str,
    deadline: Deadline | None,
) -> tuple[list[Answer], list[SimulationError]]:
    """The answers, and why there is none for the other cases."""
    from deepvm.core.preemption.savepolicy import policy_name
    from deepvm.errors import SimulationError
    from deepvm.simulator.monte_carlo import simulate_each
    from deepvm.simulator.sweeps import Answer

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
    answers: list[Answer] = []
    hopeless: list[SimulationError] = []
    for case, came in zip(cases, found, strict=True):
        if isinstance(came, SimulationError):
            where = [f"{key}={value:g}" for key, value in case.values] + [policy_name(case.policy)]
            hopeless.append(SimulationError(f"{', '.join(where)}: {came}"))
        else:
            answers.append(Answer(came, case.values))
    return answers, hopeless
