"""``deepvm simulate``: what preemptions will do to a job, before it starts."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from deepvm.cli.long_runs import Progress, cleaning_up
from deepvm.cli.output import Output, draw, plot_of, print_named
from deepvm.cli.parameters import SAVE_POLICIES, arg, opt
from deepvm.errors import OptionMismatchError, RequestError, SimulationError


def simulate(
    more: list[Path] | None = arg("[FILE]...", "Additional files for --trace.", None),
    job: list[Path] | None = opt(
        None, "Simulation file, see 'deepvm schema job'; repeat to compare.", "FILE"
    ),
    preset: list[str] | None = opt(
        None, "A built-in job: gpt-117m or gpt-1.3b; repeatable.", "NAME"
    ),
    policy: str | None = opt(
        None,
        f"When to save: {SAVE_POLICIES}; default: adaptive.",
        "NAME",
        complete="complete_save_policy",
    ),
    compare: str | None = opt(
        None, "Several save policies, comma-separated; one row each.", "NAMES"
    ),
    runs: int = opt(100, "Number of simulated training runs.", "N"),
    seed: int = opt(1, "Random seed; the same seed gives the same runs.", "N"),
    market: Literal["spot", "on-demand"] | None = opt(
        None, "Market of the VMs; default: the job's."
    ),
    sweep: list[str] | None = opt(
        None,
        "A row per mttp, grace, save, backup, allocation, preparation, missed or vms.",
        "KEY=LOW:HIGH[:STEP]",
    ),
    trace: list[Path] | None = opt(
        None, "Replay recorded lifetimes; repeat for several pools.", "FILE"
    ),
    lives: str = opt(
        "",
        "Lifetimes of your own machines: history, or history:TYPE or history:TYPE/ZONE.",
        "history[:TYPE]",
    ),
    deadline: str = opt("", "Finish by then, such as 150h, with on-demand VMs if need be.", "TIME"),
    deadline_policy: str | None = opt(
        None, "uniform-progress (default), greedy or on-demand.", "NAME"
    ),
    jobs: int = opt(1, "Worker processes, for rows and for chunks of 10 000 runs.", "N"),
    executor: str = opt("", "A Dask cluster instead of local processes.", "dask://HOST:PORT"),
    plot: str = plot_of("the result"),
    output: Output = "table",
) -> None:
    """Simulate training runs on preemptible VMs: time, cost and what they go into.

    The spread over many runs is shown as well.

    Examples: deepvm simulate --preset gpt-1.3b --compare static:33,thesis,adaptive --plot bars.png

    deepvm simulate --job simulation.yaml --sweep mttp=1h:12h --runs 1000
    """
    from deepvm.cli.simulate.cases import deadline_of, jobs_of, own_lives, policies_of, traced_lives
    from deepvm.reports.simulation import simulations as report
    from deepvm.simulator.jobfile import swept
    from deepvm.simulator.monte_carlo import simulate_each
    from deepvm.simulator.results import Results

    # Arguments are additional files for --trace, as a shell writes `--trace *.json`
    if more and not trace:
        named = f"--job {more[0]} for a job, or --trace {more[0]} for recorded lifetimes"
        raise RequestError("job", "", named)
    traces = [*(trace or []), *(more or [])]
    if lives and traces:
        raise OptionMismatchError.with_other("lives", lives, "--trace")
    source = own_lives(lives) if lives else traced_lives(traces) if traces else None
    all_jobs = jobs_of(job or [], preset or [], market, replayed=source is not None)
    limit = deadline_of(deadline, deadline_policy, all_jobs)
    policies = policies_of(policy, compare)
    ranges = sweep or []
    if source is not None and any(text.startswith("mttp=") for text in ranges):
        allowed = "a key other than mttp: the lifetimes are those of --trace or --lives"
        raise RequestError("sweep", " ".join(ranges), allowed)
    varied = [(one, values) for each in all_jobs for one, values in swept(each, ranges)]
    cases = [(one, each, values) for one, values in varied for each in policies]
    with cleaning_up(), Progress(len(cases) * runs, "runs") as progress:
        found = simulate_each(
            [case[:2] for case in cases],
            runs=runs,
            seed=seed,
            lives=source,
            jobs=jobs,
            executor=executor,
            deadline=limit,
            progress=progress.advance,
        )
    results: list[Results] = []
    failed: list[str] = []
    for (_, saves, values), result in zip(cases, found, strict=True):
        if isinstance(result, SimulationError):
            where = [*(f"{key}={value:g}" for key, value in values), saves.name]
            failed.append(f"{', '.join(where)}: {result}")
        else:
            results.append(replace(result, sweep=dict(values)))
    if results:
        name = "simulate"
        document: Any = results[0]
        if compare is not None or sweep or len(all_jobs) > 1:
            name = "simulate-comparison"
            document = {"rows": results}
        table = partial(report.print_results, results)
        print_named(output, table, name, document, partial(report.csv_rows, results))
        draw(plot, lambda: report.results_figure(results))
    if failed:
        raise SimulationError("\n".join(failed))
