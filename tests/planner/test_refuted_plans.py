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


def is_beaten_at_a_bad_time(answer: Recommendations) -> bool:
    """Whether a row costs less, has a narrower bill, and is no slower at a bad time than a wide
    first one.
    """
    rows = [r for r in answer if r.outlook is not None and r.outlook.costs_usd is not None]
    bills = [(r, *r.outlook.costs_usd, float(r.usd_per_hour)) for r in rows]
    if not bills or bills[0][0] is not answer[0]:
        return False
    (first, good, bad, price), *others = bills
    return bad > MAX_BILL_SPREAD * good * (1 + 1e-9) and any(
        high <= MAX_BILL_SPREAD * low and its <= price and high / its < bad / price * (1 - 1e-9)
        for r, low, high, its in others
        if not r.refuted and r.outlook.late_probability in (None, 0.0)
    )


def test_no_first_plan_is_refuted_by_its_own_warning() -> None:
    """But where each plan in time and within what was measured is."""
    refuted = passed_over = wide = 0
    for seed in range(400):
        shop = drawn(random.Random(f"refuted {seed}")) | {"architectures": (), "quotas": {}}
        answer = solve(catalog_of(shop), request_of(shop))
        if not answer:
            continue
        passed_over += answer.passed_over is not None
        if refuted_at_a_bad_time(answer):
            assert answer[0].refuted
            refuted += 1
        if is_beaten_at_a_bad_time(answer):
            assert answer[0].refuted
            wide += 1
        assert answer.passed_over is None or not answer[0].refuted
    assert passed_over >= 1
