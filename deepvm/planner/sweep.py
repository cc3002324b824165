"""The best cluster per budget and policy: one enumeration each, no solver (Figure 7)."""

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from deepvm.core.answer import Rows
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.units import budget_micro_usd, counted, to_decimal
from deepvm.errors import RequestError
from deepvm.planner.candidates import gather
from deepvm.planner.describe import describe
from deepvm.planner.ranking import first
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.core.training.workload import Workload

MOST_BUDGETS = 100_000
ALL_POLICIES = tuple(p.value for p in PolicyName)


@dataclass(frozen=True)
class SweepRow:
    """One policy's best cluster at one budget, $/h; None if infeasible."""

    budget: Decimal
    policy: PolicyName
    recommendation: Recommendation | None
    reference: InstanceType | None = None


@dataclass(frozen=True, repr=False)
class Sweep(Rows[SweepRow]):
    """A row per budget and policy, in the requested order; ``workload``: None for eFLOPS."""

    catalog: Catalog
    objective: Objective
    rows: tuple[SweepRow, ...]
    workload: "Workload | None" = None

    def __repr__(self) -> str:
        asked = ""
        if budgets := [row.budget for row in self.rows]:
            asked = f", ${min(budgets):f} to ${max(budgets):f}/h"
        empty = sum(row.recommendation is None for row in self.rows)
        return (
            f"<Sweep of {self.catalog.name}: {counted(len(self.rows), 'row')}{asked}, {empty}"
            " infeasible>"
        )


def parse_budgets(text: str) -> tuple[Decimal, ...]:
    """Read ``low:high:step`` (inclusive) or comma-separated budgets, $/h. Raises RequestError."""
    parts = text.split(":")
    if len(parts) == 1:
        return tuple(to_decimal(part, "pw", zero=True, unit="$/h") for part in text.split(","))
    if len(parts) != 3:
        allowed = "low:high:step or a comma-separated list of budgets in $/h, such as 0:10:0.1"
        raise RequestError("pw", text, allowed)
    low, high, step = (to_decimal(p, "pw", zero=i < 2, unit="$/h") for i, p in enumerate(parts))
    if high < low:
        raise RequestError("pw", text, "low:high:step with high >= low")
    count = int((high - low) / step) + 1
    if count > MOST_BUDGETS:
        raise RequestError("pw", text, f"at most {MOST_BUDGETS} budgets; this asks for {count}")
    return tuple(low + i * step for i in range(count))


def solve_budgets(
    catalog: Catalog,
    budgets: Sequence[Decimal],
    policies: Sequence[PolicyName],
    request: PlanRequest,
) -> Sweep:
    """Answer every budget, $/h, for every policy: one row each, budgets first, as given."""
    gathered = [gather(catalog, replace(request, policy=policy)) for policy in policies]
    enumerations = [candidates.plans() for candidates in gathered]
    rows = []
    for budget in budgets:
        for candidates, enumeration in zip(gathered, enumerations, strict=True):
            choice = first(enumeration, candidates.request, budget_micro_usd(budget))
            best = None if choice is None else describe(choice, candidates)
            rows.append(SweepRow(budget, candidates.request.policy, best, candidates.reference))
    return Sweep(catalog, request.objective, tuple(rows), request.workload)
