"""``deepvm simulate``: what preemptions will do to a job, before it starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deepvm.cli.ending import cleaning_up
from deepvm.cli.progress import Progress

if TYPE_CHECKING:
    from deepvm.core.job import Job
    from deepvm.simulator.lives import LifeSource
    from deepvm.simulator.markets import Deadline
    from deepvm.simulator.sweeps import Answer, Case


def simulate(
    job: Annotated[str, typer.Option(metavar="FILE", help="The job: a YAML file; the README lists its keys.")] = "",
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="A job that comes with deepvm: gpt-117m or gpt-1.3b.")
    ] = "",
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="When to save: none, static:STEPS, every:SECONDS, auto, young, daly, exact, thesis, adaptive or "
            "hazard.",
        ),
    ] = "adaptive",
    compare: Annotated[
        str, typer.Option(metavar="NAMES", help="Several policies, separated by commas; one row for each.")
    ] = "",
    runs: Annotated[int, typer.Option(help="How many trainings.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trainings.")] = 1,
    market: Annotated[
        Literal["", "spot", "on-demand"],
        typer.Option(help="Where the VMs come from.  [default: what the job says]", show_default=False),
    ] = "",
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
        str,
        typer.Option(metavar="NAME", help="Who chooses the market: uniform-progress, greedy or on-demand."),
    ] = "uniform-progress",
    jobs: Annotated[int, typer.Option(help="Processes to use.")] = 1,
    executor: Annotated[
        str, typer.Option(metavar="dask://HOST:PORT", help="A Dask cluster to use in their place.")
    ] = "",
    plot: Annotated[str, typer.Option(metavar="FILE", help="Draw the answer as well: a .png or .svg.")] = "",
    output: Annotated[
        Literal["table", "json", "csv"], typer.Option("--output", "-o", help="How to print the answer.")
    ] = "table",
) -> None:
    """Simulate a training on preemptible VMs: time, cost and what they go into, with the spread over many runs.

    Examples: deepvm simulate --preset gpt-1.3b --compare static:33,thesis,adaptive --plot bars.png

    deepvm simulate --job job.yaml --sweep mttp=1h:12h --runs 1000
    """
    if plot:
        from deepvm.reports.pictures import picture_format

        picture_format(Path(plot))  # a wrong name is found before anything is simulated
    cases = _cases(_job(job, preset, market), policy, compare, sweep or [])
    answers = _simulated(cases, runs, seed, _lives(trace or []), jobs, executor, _deadline(deadline, deadline_policy))
    from deepvm.reports import simulations

    many = bool(compare or sweep)
    if output == "json":
        from deepvm.reports.documents import to_json

        document: Any = simulations.comparison(answers) if many else answers[0].results.document()
        sys.stdout.write(to_json(document))
    elif output == "csv":
        sys.stdout.write(simulations.csv_text(answers))
    else:
        simulations.print_answers(answers)
    if plot:
        from deepvm.reports.simulation_pictures import draw_answers

        draw_answers(answers, Path(plot))


def _job(path: str, preset_name: str, market: str) -> Job:
    from dataclasses import replace

    from deepvm.core.instances import Market
    from deepvm.errors import RequestError
    from deepvm.simulator.jobfile import PRESETS, preset, read_job

    if bool(path) == bool(preset_name):
        raise RequestError("job", path, f"a job file, or --preset {' or '.join(PRESETS)}; one of the two")
    found = read_job(Path(path)) if path else preset(preset_name)
    return replace(found, market=Market(market)) if market else found


def _cases(job: Job, policy: str, compare: str, sweep: list[str]) -> list[Case]:
    from deepvm.core.savepolicy import parse_policy
    from deepvm.errors import RequestError
    from deepvm.simulator.sweeps import Case, swept

    names = [name.strip() for name in compare.split(",") if name.strip()] if compare else [policy]
    if not names:
        raise RequestError("compare", compare, "policies, separated by commas")
    option = "compare" if compare else "policy"
    policies = [parse_policy(name, option) for name in names]
    return [Case(varied, chosen, values) for varied, values in swept(job, sweep) for chosen in policies]


def _lives(files: list[Path]) -> LifeSource | None:
    if not files:
        return None
    from deepvm.cli.options import note
    from deepvm.simulator.lives import Seen, whole_lives
    from deepvm.simulator.traces import lives_of

    return Seen([whole_lives(pool.pairs) for pool in lives_of(files, say=note)])


def _deadline(time: str, policy: str) -> Deadline | None:
    from deepvm.core.deadlines import parse_deadline_policy
    from deepvm.core.units import parse_seconds
    from deepvm.simulator.markets import Deadline

    decides = parse_deadline_policy(policy)  # also refused when there is no deadline
    return Deadline(parse_seconds(time, "deadline"), decides) if time else None


def _simulated(
    cases: list[Case],
    runs: int,
    seed: int,
    lives: LifeSource | None,
    jobs: int,
    executor: str,
    deadline: Deadline | None,
) -> list[Answer]:
    from deepvm.simulator.runs import simulate as run_all
    from deepvm.simulator.sweeps import Answer

    answers = []
    with cleaning_up(), Progress(len(cases) * runs, "runs") as progress:
        for case in cases:
            found = run_all(
                case.job,
                case.policy,
                runs=runs,
                seed=seed,
                lives=lives,
                jobs=jobs,
                executor=executor,
                deadline=deadline,
                progress=progress.advance,
            )
            answers.append(Answer(found, case.values))
    return answers
