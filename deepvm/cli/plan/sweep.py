"""``deepvm sweep`` and ``deepvm explain``, whose options ``recommend`` need not make."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from deepvm.cli.long_runs import Progress
from deepvm.cli.output import Output, draw, note, plot_of, print_as, utc_now
from deepvm.cli.parameters import arg, takes_flags
from deepvm.cli.plan.options import opener
from deepvm.core.options import BUDGET, OUTPUT, option
from deepvm.errors import RequestError
from deepvm.records import MISSING, dataclass, replace
from deepvm.services.plan_options import PlanFlags


@dataclass(frozen=True, kw_only=True)
class ExplainFlags(PlanFlags):
    """The options of ``explain``."""


@dataclass(frozen=True, kw_only=True)
class SweepFlags(PlanFlags):
    """The options of ``sweep``, which takes several budgets and several policies."""

    pw: str = option(
        MISSING,
        "Budgets in $/h: 0:10:0.1, or a comma-separated list.",
        "LOW:HIGH:STEP",
        group=BUDGET,
    )
    policy: Any = option(
        [],
        "Only this policy of 'recommend'; repeatable; default: all.",
        "NAME",
        complete="complete_policy",
    )
    simulate: str | None = option(
        None, "Also simulate the best clusters: p5, p50, p95.", "RUNS", group=OUTPUT
    )


@takes_flags
def explain(
    name: str = arg("TYPE", "A type of the catalog.", complete="complete_type"),
    *,
    flags: ExplainFlags,
    output: Output = "table",
) -> None:
    """Answer "why not this type?" with its best cluster and how far that is from the winner.

    Example: deepvm explain g5.xlarge --pw 3
    """
    opened = opener(flags)
    from deepvm.planner.request import PlanRequest
    from deepvm.reports.plans import recommendation_documents as data
    from deepvm.reports.plans.report import print_why
    from deepvm.services.recommend import explain_type

    found = opened.one()
    try:
        request = PlanRequest.parse(flags.pw, opened.planned(found))
        why = explain_type(found, request, name, say=note)
    except RequestError as error:
        if error.option != "explain":
            raise
        # Here the type is an argument; `recommend` has an option --explain.
        raise RequestError("TYPE", error.value, error.allowed) from None
    table = partial(print_why, why, utc_now())
    print_as(output, table, partial(data.why_document, why), partial(data.why_rows, why))


@takes_flags
def sweep(
    flags: SweepFlags, output: Output = "table", plot: str = plot_of("Figure 7, or time and cost")
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
    table = partial(report.print_rows, found)
    print_as(output, table, partial(report.document, found), partial(report.rows_of, found))
    if outside := report.outside(found):
        note(f"the closed form does not hold in {outside} of {len(found)} rows: --simulate 400")
    for line in (*source_lines(catalog, utc_now()), *catalog.provenance.doubts):
        note(line)


def _tracked(rows: Sequence[Any]) -> Iterator[Any]:
    with Progress(len(rows), "rows") as progress:
        for row in rows:
            yield row
            progress.advance(1)
