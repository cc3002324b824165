"""``deepvm recommend`` and ``deepvm explain``."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.cli.help.completion import complete_type
from deepvm.cli.output import Output, OutputOrPage, note, print_as, print_document, say
from deepvm.cli.parameters import arg, flag, opt, takes_flags
from deepvm.cli.plan.options import opener
from deepvm.core.options import OUTPUT
from deepvm.errors import RequestError
from deepvm.services.plan_options import PlanFlags, RankFlags

if TYPE_CHECKING:
    from deepvm.catalog.market.open_markets import Placement
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.regions import Comparison


@takes_flags
def recommend(
    flags: RankFlags,
    output: OutputOrPage = "table",
    explain: Annotated[
        str,
        opt(
            "Also say why this type is not in the best cluster.",
            "TYPE",
            autocompletion=complete_type,
            rich_help_panel=OUTPUT,
        ),
    ] = "",
    why: Annotated[
        bool,
        flag(
            "--why",
            "Also show reasons, doubts, alternatives and rejected types.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Rank the clusters that train fastest for a budget.

    Example: deepvm recommend --pw 3
    """
    opened = opener(flags, details=why)
    from deepvm.planner.request import PlanRequest
    from deepvm.services.recommend import explain_type, recommend_in

    catalogs = opened.all()
    request = PlanRequest.parse(flags.pw, opened.planned(catalogs[0]))
    found = recommend_in(catalogs, request, simulate=flags.simulate, say=note)
    asked = None
    if explain:
        best = found.answers[0]
        asked = explain_type(best.catalog, best.request, explain, say=note)
    placement = opened.placement(found)
    if output == "table" and found.ranked and found.answers[0].request.training is not None:
        from deepvm.reports.plans.answer import print_answer

        assumed = not flags.names_a_model
        later = why or asked is not None  # the reasons below say it
        print_answer(
            found, datetime.now(timezone.utc), None if later else placement, assumed=assumed
        )
        if not later:
            return
    if output == "html":
        _write_page(found, flags)
    _print(found, asked, placement, output)
    if not found.ranked:
        raise typer.Exit(3)  # nothing is feasible


def _write_page(found: Comparison, flags: RankFlags) -> None:
    from deepvm import __version__
    from deepvm.cli.plan.repeated import command_of
    from deepvm.planner.search.frontier import frontier_of
    from deepvm.reports.plans.plan_page import PlanPage

    command = f"{command_of('recommend', flags)} -o html"
    assumed = not flags.names_a_model
    page = PlanPage(
        found,
        frontier_of(found.answers[0]),
        command,
        datetime.now(timezone.utc),
        __version__,
        assumed,
    )
    sys.stdout.write(page.render())


def _print(found: Comparison, why: WhyNot | None, placement: Placement | None, output: str) -> None:
    from deepvm.reports.plans import recommendations as report
    from deepvm.reports.plans.sources import source_lines

    now, several = datetime.now(timezone.utc), len(found.answers) > 1
    if output in ("table", "wide") and found.ranked:
        if found.answers[0].request.training is None:
            report.print_report(found, why, placement, now, wide=output == "wide")
        else:
            from deepvm.reports.plans.trained_report import print_trained_report

            print_trained_report(found, why, placement, now, wide=output == "wide")
        return
    # Not for tables: the types of documents take 20 ms to load.
    from deepvm.reports.plans import recommendation_documents as data

    if output == "csv":
        print_document(data.csv_rows(found), output)
    elif output in ("json", "yaml"):
        document = data.comparison(found, why)
        if placement is not None:
            document["placement"] = data.placement(placement)
        print_document(document, output)
    for answer in found.answers:
        if answer.infeasible is not None and not found.ranked:
            where = f"{found.place(answer.catalog)}: " if several else ""
            say(where + report.sentence(answer.infeasible))
        if answer.doubt:
            note(f"not proven: {answer.doubt}")
        for line in source_lines(answer.catalog, now):
            note(line)
    if why is not None and output not in ("json", "yaml"):
        note(why.verdict)


@takes_flags
def explain(
    name: Annotated[str, arg("TYPE", "A type of the catalog.", autocompletion=complete_type)],
    flags: PlanFlags,
    output: Output = "table",
) -> None:
    """Answer "why not this type?" with its best cluster and how far that is from the winner.

    Example: deepvm explain g5.xlarge --pw 3
    """
    opened = opener(flags)
    from deepvm.planner.request import PlanRequest
    from deepvm.reports.plans import recommendation_documents as data
    from deepvm.reports.plans import recommendations as report
    from deepvm.services.recommend import explain_type

    found = opened.one()
    try:
        request = PlanRequest.parse(flags.pw, opened.planned(found))
        why = explain_type(found, request, name, say=note)
    except RequestError as error:
        # Here the type is an argument; `recommend` has an option --explain.
        raise (
            RequestError("TYPE", error.value, error.allowed) if error.option == "explain" else error
        ) from None
    print_as(
        output,
        lambda: report.print_why(why, found, datetime.now(timezone.utc)),
        lambda: data.why_document(why),
        lambda: data.why_rows(why),
    )
