"""``deepvm recommend``."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from deepvm.cli.output import OutputOrPage, note, print_document, say, utc_now
from deepvm.cli.parameters import flag, opt, takes_flags, words_of
from deepvm.cli.plan.options import opener
from deepvm.cli.settings import BARE_BUDGET
from deepvm.core.options import OUTPUT
from deepvm.services.plan_options import RankFlags

if TYPE_CHECKING:
    from deepvm.planner.explain import WhyNot
    from deepvm.reports.plans.plan_view import PlanView


@takes_flags
def recommend(
    ctx: typer.Context,
    flags: RankFlags,
    output: OutputOrPage = "table",
    explain: str = opt(
        "",
        "Also say why this type is not in the best cluster.",
        "TYPE",
        complete="complete_type",
        rich_help_panel=OUTPUT,
    ),
    why: bool = flag(
        "--why", "Also show reasons, risks, alternatives and sources.", rich_help_panel=OUTPUT
    ),
    every: bool = flag("--all", "Also show the types that are left out.", rich_help_panel=OUTPUT),
) -> None:
    """Rank the clusters that train fastest for a budget.

    Example: deepvm recommend --pw 3
    """
    opened = opener(flags, details=why or every)
    from deepvm.planner.request import PlanRequest
    from deepvm.reports.plans.plan_view import PlanView
    from deepvm.services.recommend import budget_warning, explain_type, recommend_in

    catalogs = opened.all()
    request = PlanRequest.parse(flags.pw, opened.planned(catalogs[0]))
    warning = ""
    if BARE_BUDGET in ctx.meta and (warning := budget_warning(ctx.meta[BARE_BUDGET])):
        note(warning)
    if request.training is not None and "/" in flags.model:
        note(f"{flags.model}: planned as {request.training.workload.model.name}")
    printed = output in ("table", "wide")
    found = recommend_in(
        catalogs,
        request,
        simulate=flags.simulate,
        say=note,
        reasons=printed,
        left_out=opened.left_out,
    )
    asked = None
    if explain:
        best = found.answers[0]
        asked = explain_type(best.catalog, best.request, explain, say=note)
    now = utc_now()
    assumed = not flags.names_a_model
    view = PlanView(found, now, opened.placement(found), assumed=assumed, epochs=flags.epochs)
    tables = printed and found.ranked
    if tables:
        _print_tables(view, asked, why=why or every, wide=output == "wide", every=every)
    elif output == "html":
        from deepvm.reports.plans.plan_page import plan_page

        command = shlex.join(["deepvm", "recommend", *words_of(flags), "-o", "html"])
        sys.stdout.write(plan_page(view, command))
    elif not printed:
        # Not for tables: the types of documents take 20 ms to load.
        from deepvm.reports.plans import recommendation_documents as data

        if output == "csv":
            print_document(data.csv_rows(found), output)
        else:
            print_document(data.document(found, asked, view.placement, [warning]), output)
    if not tables:
        _print_notes(view)
        if asked is not None and output not in ("json", "yaml"):
            note(asked.verdict)
    if not found.ranked:
        raise typer.Exit(3)  # nothing is feasible
    if opened.left_out:
        raise typer.Exit(4)


def _print_tables(
    view: PlanView, asked: WhyNot | None, *, why: bool, wide: bool, every: bool
) -> None:
    more = wide or why or asked is not None
    if view.workload is not None and not wide:
        from deepvm.reports.plans.answer import print_answer

        print_answer(replace(view, placement=None) if more else view)
    if view.workload is None or more:
        from deepvm.reports.plans.report import print_report

        print_report(view, asked, wide=wide, all_types=every)


def _print_notes(view: PlanView) -> None:
    from deepvm.reports.plans.sources import source_lines

    found = view.found
    for answer in found.answers:
        if answer.infeasible is not None and not found.ranked:
            where = ""
            if len(found.answers) > 1:
                where = f"{found.place(answer.catalog)}: "
            say(f"{where}{answer.infeasible.sentence}")
        if answer.doubt:
            note(f"not proven: {answer.doubt}")
        for line in source_lines(answer.catalog, view.now):
            note(line)
