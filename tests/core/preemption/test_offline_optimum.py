"""The bound with foresight is what trying every schedule finds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.preemption.offline_optimum import least_cost
from deepvm.errors import RequestError


def cheapest_of_all(
    up: list[bool], gap: float, work: float, deadline: float, restart: float, price: float
) -> float:
    """Every sequence of waiting (0), spot (1) and on-demand (2), by seconds within a tick."""
    best = math.inf
    for plan in itertools.product((0, 1, 2), repeat=len(up)):
        on = starting = 0.0
        left, cost = work, 0.0
        for tick, market in enumerate(plan):
            if market == 1 and not up[tick]:
                break
            if market != on:
                on, starting = market, restart
            if not market:
                continue
            before = min(starting, gap)
            starting -= before
            run = min(gap - before, left)
            left -= run
            cost += (before + run if left <= 1e-9 else gap) * (price if market == 1 else 1.0)
            if left <= 1e-9:
                if tick * gap + before + run <= deadline + 1e-9:
                    best = min(best, cost)
                break
    return best


@given(
    st.lists(st.booleans(), min_size=4, max_size=7),
    st.sampled_from([0, 3, 10, 14, 20, 25]),
    st.integers(1, 60),
    st.integers(0, 9),
    st.sampled_from([0.1, 0.33, 0.9]),
)
def test_least_cost_is_that_of_the_best_of_all_schedules(
    up: list[bool], restart: int, work: int, cut: int, price: float
) -> None:
    gap, deadline = 10.0, len(up) * 10.0 - cut
    expected = cheapest_of_all(up, gap, work, deadline, restart, price)
    found = least_cost(
        np.array([up, up]),
        gap,
        work_s=work,
        deadline_s=deadline,
        restart_s=restart,
        spot_price=price,
    ).tolist()
    assert found == pytest.approx([expected, expected])


def test_each_start_has_its_own_bound() -> None:
    up = np.array([[True] * 6, [False] * 6, [False, False, True, True, True, True]])
    found = least_cost(up, 10.0, work_s=30.0, deadline_s=60.0, restart_s=10.0, spot_price=0.25)
    assert found.tolist() == [10.0, 40.0, 10.0]


def test_a_table_that_is_too_large_is_refused() -> None:
    with pytest.raises(RequestError, match="multiple of the traces' gap of 10 s"):
        least_cost(
            np.ones((1, 99), dtype=bool),
            10.0,
            work_s=1e5,
            deadline_s=2e6,
            restart_s=300.001,
            spot_price=0.3,
        )
