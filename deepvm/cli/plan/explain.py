"""``deepvm explain``; apart, so that ``recommend`` need not make its options."""

from __future__ import annotations

from datetime import datetime, timezone

from deepvm.cli.output import Output, note, print_as
from deepvm.cli.parameters import arg, takes_flags
from deepvm.cli.plan.options import opener
from deepvm.errors import RequestError
from deepvm.services.sweep_options import ExplainFlags


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
        # Here the type is an argument; `recommend` has an option --explain.
        raise (
            RequestError("TYPE", error.value, error.allowed) if error.option == "explain" else error
        ) from None
    print_as(
        output,
        lambda: print_why(why, datetime.now(timezone.utc)),
        lambda: data.why_document(why),
        lambda: data.why_rows(why),
    )
