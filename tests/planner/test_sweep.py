from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import paper, simulated
from support.planning import recommend

from deepvm.errors import RequestError
from deepvm.planner.request import PolicyName
from deepvm.planner.sweep import parse_budgets
from deepvm.services.recommend import sweep


def test_both_ends_count() -> None:
    found = parse_budgets("0:10:0.1")
    assert len(found) == 101
    assert (found[0], found[1], found[-1]) == (0, Decimal("0.1"), 10)
    assert found[3] == Decimal("0.3")  # binary floats would give 0.30000000000000004


def test_budgets() -> None:
    for text, expected in [
        ("3", ["3"]),
        ("1,2.5, 3", ["1", "2.5", "3"]),
        ("0:1:0.3", ["0", "0.3", "0.6", "0.9"]),
        ("2:2:1", ["2"]),
        (" 1 : 2 : 1 ", ["1", "2"]),
        ("0:1:5", ["0"]),
        ("5,1", ["5", "1"]),
    ]:
        assert parse_budgets(text) == tuple(Decimal(e) for e in expected)


@given(low=st.integers(0, 1000), steps=st.integers(0, 300), step=st.integers(1, 999))
def test_no_budget_is_lost_to_rounding(low: int, steps: int, step: int) -> None:
    a, s = Decimal(low) / 100, Decimal(step) / 1000
    found = parse_budgets(f"{a}:{a + steps * s}:{s}")
    assert len(found) == steps + 1
    assert found[-1] == a + steps * s


def test_what_are_no_budgets() -> None:
    for text in [
        "",
        "a",
        "1:2",
        "1:2:3:4",
        "2:1:0.1",
        "0:1:0",
        "0:1:-1",
        "-1:1:1",
        "0::1",
        ",",
        "1,,2",
        "0:1e9:0.001",
        "nan",
    ]:
        with pytest.raises(RequestError) as caught:
            parse_budgets(text)
        assert caught.value.option == "pw"
        assert caught.value.allowed


def test_as_many_as_are_allowed() -> None:
    assert len(parse_budgets("1:100000:1")) == 100_000
    with pytest.raises(RequestError, match="at most 100000 budgets; this asks for 100001"):
        parse_budgets("0:100000:1")


def test_no_row_is_left_out_and_their_order_is_the_caller_s() -> None:
    rows = sweep(paper(), ["3", "0.1", "6.5"], ["cost-first", "deepvm"])
    assert [(str(r.budget), r.policy.value) for r in rows] == [
        ("3", "cost-first"),
        ("3", "deepvm"),
        ("0.1", "cost-first"),
        ("0.1", "deepvm"),
        ("6.5", "cost-first"),
        ("6.5", "deepvm"),
    ]
    assert [r.recommendation is None for r in rows] == [False, False, True, True, False, False]


def test_all_four_policies_by_default() -> None:
    rows = sweep(simulated(), [2])
    assert [r.policy for r in rows] == list(PolicyName)


def test_no_budgets() -> None:
    assert not sweep(paper(), [])
    assert not sweep(paper(), [3], [])


def test_options_are_those_of_recommend() -> None:
    rows = sweep(
        paper(),
        [3, "6.5"],
        ["deepvm"],
        objective="flopp",
        checkpoint_size="5GB",
        architecture="tiering",
    )
    for row in rows:
        best = recommend(
            paper(),
            row.budget,
            objective="flopp",
            checkpoint_size="5GB",
            architecture="tiering",
            solver="frontier",
        )[0]
        assert row.recommendation is not None
        assert row.recommendation.cluster == best.cluster
        assert row.recommendation.throughput == best.throughput


@pytest.mark.parametrize(
    ("budgets", "policies", "option"), [([-1], ["deepvm"], "pw"), ([1], ["best"], "policy")]
)
def test_mistakes_are_named(budgets: list[int], policies: list[str], option: str) -> None:
    with pytest.raises(RequestError) as caught:
        sweep(paper(), budgets, policies)
    assert caught.value.option == option
