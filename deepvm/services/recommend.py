"""Plan: rank clusters for a budget, explain why not another type, sweep budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from deepvm.core.units import Money, to_decimal
from deepvm.errors import MissingDataError, RequestError
from deepvm.planner.recommend import Recommendations, solve
from deepvm.planner.request import PlanRequest, with_tables

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import Catalog
    from deepvm.core.progress import Say
    from deepvm.planner.explain import WhyNot
    from deepvm.planner.regions import Comparison, Omission
    from deepvm.planner.request import MeasuredTables
    from deepvm.planner.sweep import Sweep, SweepRow


def _ignore(text: str) -> None: ...


def recommend_in(
    catalogs: Sequence[Catalog],
    request: PlanRequest,
    *,
    simulate: Any = None,
    say: Say = _ignore,
    reasons: bool = False,
    left_out: Sequence[Omission] = (),
) -> Comparison:
    """Answer a request for each catalog of a cloud and region, and rank the answers together.

    ``left_out``: what the catalogs lack already.
    """
    from deepvm.planner.regions import Omission, cloud_name, compare
    from deepvm.services.new_account import new_account

    answers: list[Recommendations] = []
    failed: list[tuple[Catalog, RequestError | MissingDataError]] = []
    for catalog in catalogs:
        try:
            answers.append(solve(catalog, request))
        except (RequestError, MissingDataError) as error:
            failed.append((catalog, error))
    if not answers:
        raise failed[0][1]
    several = len({cloud_name(catalog) for catalog in catalogs}) > 1
    missing = [*left_out]
    for catalog, reason in failed:
        cloud = f"{cloud_name(catalog)}, " if several else ""
        say(f"{cloud}region {catalog.region} is left out: {reason}")
        missing.append(Omission(cloud_name(catalog), str(reason), catalog.region))
    simulates = request.work is not None or simulate is not None
    if simulates:
        from deepvm.services import simulated_ranking as simulated

        runs = simulated.read_runs(simulate, job=request.work is not None)
        answers = [simulated.simulate_ranking(answer, runs, say) for answer in answers]
    comparison = compare(answers)
    comparison = replace(comparison, left_out=tuple(missing), new_account=new_account(comparison))
    best, *others = comparison.answers
    if not (simulates and reasons and best.configurations):
        return comparison
    return replace(comparison, answers=(simulated.with_traced_lifetimes(best), *others))


# A bare number above it is more often meant as a total than as a price of an hour
_MAX_USUAL_BUDGET = 50


def budget_warning(budget: str) -> str:
    """How an amount without a name was read, if it may be meant as a total; else empty."""
    if to_decimal(budget, "budget", zero=True) <= _MAX_USUAL_BUDGET:
        return ""
    return f"{budget} was read as ${budget}/h; a total for the whole job: --total-budget {budget}"


def explain(
    catalog: Catalog,
    budget: Money,
    name: str,
    *,
    tables: MeasuredTables | None = None,
    say: Say = _ignore,
    **options: Any,
) -> WhyNot:
    """Answer "why not this type?" with its best cluster and how far that is from the winner.

    ``name``: a type of the catalog, one that trains or a memory node; the rest is as for
    :func:`deepvm.recommend`. Raises a RequestError for an unknown type, or an option that cannot be
    used.
    """
    own = with_tables(catalog, tables)
    return explain_type(own, PlanRequest.parse(budget, **options), name, say=say)


def explain_type(
    catalog: Catalog, request: PlanRequest, name: str, *, say: Say = _ignore
) -> WhyNot:
    """Answer a validated request; see :func:`explain`."""
    from deepvm.planner.explain import why_not

    answer = why_not(catalog, request, name)
    if request.work is None:
        return answer
    from deepvm.services.simulated_ranking import simulate_why

    return simulate_why(answer, request, say)


def sweep(
    catalog: Catalog,
    budgets: Iterable[Money],
    policies: Sequence[str] | None = None,
    *,
    tables: MeasuredTables | None = None,
    simulate: int | str | None = None,
    say: Say = _ignore,
    **options: Any,
) -> Sweep:
    """Answer every budget, $/h, for every policy: one row each, budgets first, in the order given.

    The rest is as for :func:`deepvm.recommend`; ``policy``, ``top``, ``solver`` and
    ``time_limit_s`` have no effect. ``policies``: None for all. Raises a RequestError for a budget,
    a policy or an option that cannot be used.
    """
    amounts = [to_decimal(b, "pw", zero=True, unit="$/h") for b in budgets]
    request = PlanRequest.parse(0, **options)
    catalog = with_tables(catalog, tables)
    return sweep_budgets(catalog, amounts, policies, request, simulate=simulate, say=say)


def sweep_budgets(
    catalog: Catalog,
    budgets: Sequence[Decimal],
    policies: Sequence[str] | None,
    request: PlanRequest,
    *,
    simulate: Any = None,
    say: Say = _ignore,
    track: Callable[[Sequence[SweepRow]], Iterable[SweepRow]] = iter,
) -> Sweep:
    """As :func:`sweep`; ``track`` yields the rows, to show how many are simulated."""
    from deepvm.planner.sweep import ALL_POLICIES, solve_budgets

    names = ALL_POLICIES if policies is None else policies
    chosen = [PlanRequest.parse(0, policy=name).policy for name in names]
    answer = solve_budgets(catalog, budgets, chosen, request)
    if simulate is None:
        return answer
    from deepvm.services.simulated_ranking import read_runs, simulate_rows

    runs = read_runs(simulate, job=request.work is not None)
    assert runs is not None
    return replace(answer, rows=simulate_rows(track(answer.rows), request, runs, say))
