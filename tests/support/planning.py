"""The planner without simulation: what the closed form alone answers."""

from __future__ import annotations

from typing import Any

from deepvm.core.cluster.instances import Catalog
from deepvm.core.units import Money
from deepvm.planner.explain import WhyNot, why_not
from deepvm.planner.recommend import Recommendations, solve
from deepvm.planner.request import PlanRequest, with_tables


def recommend(
    catalog: Catalog, budget: Money, *, tables: Any = None, **options: Any
) -> Recommendations:
    return solve(with_tables(catalog, tables), PlanRequest.parse(budget, **options))


def explain(
    catalog: Catalog, budget: Money, name: str, *, tables: Any = None, **options: Any
) -> WhyNot:
    request = PlanRequest.parse(budget, **options)
    return why_not(with_tables(catalog, tables), request, name)
