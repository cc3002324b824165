"""The first plan is none that its own warning refutes: at a bad time, or by its bill."""

from __future__ import annotations

import random
from datetime import datetime, timezone

from support.planner.trained_cases import catalog_of, drawn, request_of

from deepvm.planner.ranking import MAX_BILL_SPREAD
from deepvm.planner.recommend import Recommendations, solve
from deepvm.planner.regions import compare
from deepvm.reports.plans.plan_view import PlanView, bad_time_note

NOW = datetime.now(timezone.utc)


def refuted_at_a_bad_time(answer: Recommendations) -> bool:
    """As the warning under the table has it."""
    rows = PlanView(compare([answer]), NOW).rows
    return any("faster and cheaper" in str(note) for note in bad_time_note(rows))


def has_a_wild_bill(answer: Recommendations) -> bool:
    outlook = answer[0].outlook
    if outlook is None or outlook.costs_usd is None:
        return False
    return outlook.costs_usd[1] > MAX_BILL_SPREAD * outlook.costs_usd[0] * (1 + 1e-9)


def test_no_first_plan_is_refuted_by_its_own_warning() -> None:
    """But where each plan in time and within what was measured is."""
    refuted = passed_over = 0
    for seed in range(400):
        shop = drawn(random.Random(f"refuted {seed}")) | {"architectures": (), "quotas": {}}
        answer = solve(catalog_of(shop), request_of(shop))
        if not answer:
            continue
        passed_over += answer.passed_over is not None
        if refuted_at_a_bad_time(answer) or has_a_wild_bill(answer):
            assert answer[0].refuted
            refuted += 1
        assert answer.passed_over is None or not answer[0].refuted
    assert passed_over >= 3
