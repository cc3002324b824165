"""``deepvm sweep``: the best cluster of every budget in a range, for several policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

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
    plot: str = plot_of("Figure 7, or time and cost"),
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
    catalog = opened.one()
    request = PlanRequest.parse(0, opened.planned(catalog))
    policies = tuple(dict.fromkeys(flags.policy)) or None
    found = sweep_budgets(
        catalog, budgets, policies, request, simulate=flags.simulate, say=note, track=_tracked
    )
    if plot:
        draw(plot, lambda: report.figure_of(found, request.work))
        note(f"drew {plot}")
    print_as(
        output,
        lambda: report.print_rows(found),
        lambda: report.document(found),
        lambda: report.rows_of(found),
    )
    if outside := report.outside(found):
        note(f"the closed form does not hold in {outside} of {len(found)} rows: --simulate 400")
    for line in (*source_lines(catalog, datetime.now(timezone.utc)), *catalog.provenance.doubts):
        note(line)


def _tracked(rows: Sequence[SweepRow]) -> Iterator[SweepRow]:
    with Progress(len(rows), "rows") as progress:
        for row in rows:
            yield row
            progress.advance(1)
