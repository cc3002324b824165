"""``deepvm simulate``: what preemptions will do to a job, before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from deepvm.cli.help.completion import complete_save_policy
from deepvm.cli.output import Output, draw, plot_of, print_as
from deepvm.cli.parameters import SAVE_POLICIES, arg, opt
from deepvm.errors import RequestError, SimulationError


def simulate(
    more: Annotated[list[Path] | None, arg("[FILE]...", "Additional files for --trace.")] = None,
    job: Annotated[
        list[Path] | None, opt("Job file (docs/reference/job-file.md); repeat to compare.", "FILE")
    ] = None,
    preset: Annotated[
        list[str] | None, opt("A built-in job: gpt-117m or gpt-1.3b; repeatable.", "NAME")
    ] = None,
    policy: Annotated[
        str | None,
        opt(
            f"When to save: {SAVE_POLICIES}; default: adaptive.",
            "NAME",
            autocompletion=complete_save_policy,
        ),
    ] = None,
    compare: Annotated[
        str | None, opt("Several save policies, comma-separated; one row each.", "NAMES")
    ] = None,
    runs: Annotated[int, opt("Number of simulated training runs.", "N")] = 100,
    seed: Annotated[int, opt("Random seed; the same seed gives the same runs.", "N")] = 1,
    market: Annotated[
        Literal["spot", "on-demand"] | None, opt("Market of the VMs; default: the job's.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        opt(
            "A row per mttp, grace, save, backup, allocation, preparation, missed or vms.",
            "KEY=LOW:HIGH[:STEP]",
        ),
    ] = None,
    trace: Annotated[
        list[Path] | None, opt("Replay recorded lifetimes; repeat for several pools.", "FILE")
    ] = None,
    lives: Annotated[
        str,
        opt(
            "Lives of your own machines: history, or history:TYPE or history:TYPE/ZONE.",
            "history[:TYPE]",
        ),
    ] = "",
    deadline: Annotated[
        str, opt("Finish by then, such as 150h, with on-demand VMs if need be.", "TIME")
    ] = "",
    deadline_policy: Annotated[
        str | None, opt("uniform-progress (default), greedy or on-demand.", "NAME")
    ] = None,
    jobs: Annotated[int, opt("Worker processes, for rows and for chunks of 10 000 runs.", "N")] = 1,
    executor: Annotated[
        str, opt("A Dask cluster instead of local processes.", "dask://HOST:PORT")
    ] = "",
    plot: Annotated[str, plot_of("the result")] = "",
    output: Output = "table",
) -> None:
    """Simulate training runs on preemptible VMs: time, cost and what they go into.

    The spread over many runs is shown as well.

    Examples: deepvm simulate --preset gpt-1.3b --compare static:33,thesis,adaptive --plot bars.png

    deepvm simulate --job job.yaml --sweep mttp=1h:12h --runs 1000
    """
    from deepvm.cli.simulate import cases
    from deepvm.reports.simulation import simulations as report

    # Arguments are additional files for --trace, as a shell writes `--trace *.json`
    if more and not trace:
        named = f"--job {more[0]} for a job, or --trace {more[0]} for recorded lifetimes"
        raise RequestError("job", "", named)
    traces = [*(trace or []), *(more or [])]
    if lives and traces:
        raise RequestError("lives", lives, "either --lives or --trace")
    source = cases.own_lives(lives) if lives else cases.traced_lives(traces) if traces else None
    all_jobs = cases.jobs_of(job or [], preset or [], market, replayed=source is not None)
    limit = cases.deadline_of(deadline, deadline_policy, all_jobs)
    asked = cases.cases_of(
        all_jobs, cases.policies_of(policy, compare), sweep or [], replayed=source is not None
    )
    results, failed = cases.simulated(asked, runs, seed, source, jobs, executor, limit)
    if results:
        compared = bool(compare is not None or sweep or len(all_jobs) > 1)
        print_as(
            output,
            lambda: report.print_results(results),
            lambda: report.document(results, compared=compared),
            lambda: report.csv_rows(results),
        )
        draw(plot, lambda: report.results_figure(results))
    if failed:
        raise SimulationError("\n".join(map(str, failed)))
