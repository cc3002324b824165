"""``deepvm sweep``: the best cluster of every budget in a range, for several policies."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Annotated

from deepvm.cli.output import Output, draw, note, plot_of, print_as
from deepvm.cli.parameters import takes_flags
from deepvm.cli.plan import options as o


@takes_flags
def sweep(
    flags: o.SweepFlags,
    output: Output = "table",
    plot: Annotated[str, plot_of("Figure 7, or time and cost")] = "",
) -> None:
    """Recommend for a range of budgets under the four policies of the paper (Figure 7).

    Example: deepvm sweep --pw 0:10:0.1 --catalog simulated -o csv
    """
    from deepvm.cli.plan.open_catalogs import one_catalog
    from deepvm.planner.request import PlanRequest
    from deepvm.planner.sweep import ALL_POLICIES, parse_budgets
    from deepvm.planner.sweep import sweep as run
    from deepvm.reports.plans import sweeps as report
    from deepvm.reports.plans.sources import source_lines

    budgets, runs = parse_budgets(flags.pw), None
    if flags.simulate is not None:
        from deepvm.cli.plan.simulated_ranking import runs_of, simulated_rows

        runs = runs_of(flags.simulate, job=flags.has_job)
    found = one_catalog(flags)
    options = flags.planner_options(found)
    rows = run(found, budgets, tuple(dict.fromkeys(flags.policy)) or ALL_POLICIES, **options)
    request = PlanRequest.parse(0, **options)
    if request.work is not None and runs is not None:
        rows = replace(rows, rows=simulated_rows(rows, request, runs))
    units = request.training.workload.units if request.training else ""
    if plot:
        from deepvm.reports.pictures import sweep_figure

        if (work := request.work) is None:
            about = {"catalog_name": found.name, "eflops_unit": found.eflops_unit, "units": units}
            draw(plot, lambda: sweep_figure(rows, **about))
        else:
            draw(plot, lambda: report.outlooks_figure(rows, work, catalog_name=found.name))
        note(f"drew {plot}")
    print_as(
        output,
        lambda: report.print_rows(rows, units),
        lambda: report.document(rows),
        lambda: report.rows_of(rows),
    )
    if outside := report.outside(rows):
        note(
            f"in {outside} of {len(rows)} rows the expected time and cost are outside of the range"
            " of the closed form, and may be far off; '--simulate 400' simulates them"
        )
    for policy in dict.fromkeys(r.policy for r in rows):
        if not any(r.recommendation for r in rows if r.policy is policy):
            note(
                f"nothing is feasible for policy {policy.value} at any of these budgets; 'deepvm"
                " recommend' says why"
            )
    for line in (*source_lines(found, datetime.now(timezone.utc)), *found.provenance.doubts):
        note(line)
