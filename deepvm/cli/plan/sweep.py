"""``deepvm sweep``: the best cluster of every budget in a range, for several policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

from deepvm.cli.long_runs import Progress
from deepvm.cli.output import Output, draw, note, plot_of, print_as
from deepvm.cli.parameters import takes_flags
from deepvm.cli.plan.options import opener
from deepvm.services.plan_options import PlanFlags
from deepvm.services.sweep_options import SweepFlags

if TYPE_CHECKING:
    from deepvm.planner.sweep import SweepRow


@takes_flags
def sweep(
    flags: SweepFlags,
    output: Output = "table",
    plot: Annotated[str, plot_of("Figure 7, or time and cost")] = "",
) -> None:
    """Recommend for a range of budgets under the four policies of the paper (Figure 7).

    Example: deepvm sweep --pw 0:10:0.1 --catalog simulated -o csv
    """
    opened = opener(replace(flags, pw="0", policy=PlanFlags.policy))
    from deepvm.planner.request import PlanRequest
    from deepvm.planner.sweep import parse_budgets
    from deepvm.reports.plans import sweeps as report
    from deepvm.reports.plans.sources import source_lines
    from deepvm.services.recommend import sweep_budgets

    budgets = parse_budgets(flags.pw)
    found = opened.one()
    request = PlanRequest.parse(0, opened.planned(found))
    policies = tuple(dict.fromkeys(flags.policy)) or None
    rows = sweep_budgets(
        found, budgets, policies, request, simulate=flags.simulate, say=note, track=_tracked
    )
    units = ""
    if request.training:
        units = request.training.workload.units
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
        note(f"the closed form does not hold in {outside} of {len(rows)} rows: --simulate 400")
    for line in (*source_lines(found, datetime.now(timezone.utc)), *found.provenance.doubts):
        note(line)


def _tracked(rows: Sequence[SweepRow]) -> Iterator[SweepRow]:
    with Progress(len(rows), "rows") as progress:
        for row in rows:
            yield row
            progress.advance(1)
