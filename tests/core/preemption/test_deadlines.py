"""Deadlines: the net never lets a job be late, and the policies do what they promise.

Numbers and arrays alike.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.preemption.deadlines import (
    DEADLINE_POLICIES,
    ON_DEMAND,
    SPOT,
    WAIT,
    DeadlinePolicy,
    DeadlineProgress,
    Greedy,
    OnDemandOnly,
    UniformProgress,
    on_demand_next,
    parse_deadline_policy,
)
from deepvm.errors import RequestError

POLICIES = [Greedy(), UniformProgress(), UniformProgress(restarts=0.0)]
HOUR = 3600.0


def standing(work_h: float, left_h: float, **more: object) -> DeadlineProgress:
    """Of a job of 10 h with a deadline after 15 h."""
    facts: dict[str, object] = {"restart_s": 300.0, "horizon_s": 60.0} | more
    return DeadlineProgress(work_h * HOUR, left_h * HOUR, 10 * HOUR, 15 * HOUR, **facts)  # type: ignore[arg-type]


def test_spot_is_used_and_its_absence_tells_the_policies_apart() -> None:
    for policy in POLICIES:
        assert policy.choose(standing(10, 15)) == SPOT
    behind, ahead = standing(9, 12, spot_up=False), standing(7, 12, spot_up=False)
    assert [Greedy().choose(s) for s in (behind, ahead)] == [WAIT, WAIT]
    assert [UniformProgress().choose(s) for s in (behind, ahead)] == [ON_DEMAND, WAIT]
    assert OnDemandOnly().choose(ahead) == ON_DEMAND


def test_the_net_pulls_exactly_where_it_is_documented() -> None:
    """On spot: spare <= horizon.

    Elsewhere: spare <= horizon + restart + version, the 2d of the paper.
    """
    for policy in POLICIES:
        edge = 5 * HOUR + 300 + 60
        on = {"on": SPOT, "version_s": 100.0}
        assert policy.choose(standing(5, (edge + 1) / HOUR, **on)) == SPOT
        assert policy.choose(standing(5, edge / HOUR, **on)) == ON_DEMAND
        edge += 300 + 100
        waits = {"on": WAIT, "version_s": 100.0}
        assert policy.choose(standing(5, (edge + 1) / HOUR, **waits)) == SPOT
        assert policy.choose(standing(5, edge / HOUR, **waits)) == ON_DEMAND


def test_on_demand_is_left_a_restart_before_the_line_and_not_by_greedy() -> None:
    # Half of the time is over; the line is at 5 h of work, and 300 s of line are 200 s of work.
    back = [standing(5 - s / HOUR, 7.5, on=ON_DEMAND) for s in (0.0, 199.0, 201.0)]
    assert [UniformProgress().choose(s) for s in back] == [ON_DEMAND, ON_DEMAND, SPOT]
    assert [Greedy().choose(s) for s in back] == [ON_DEMAND] * 3
    gone = standing(4, 7.5, on=ON_DEMAND, spot_up=False)
    # To stop and to start again would cost a restart
    assert UniformProgress().choose(gone) == ON_DEMAND


facts = st.fixed_dictionaries(
    {
        "work_s": st.floats(0, 1e5),
        "left_s": st.floats(-100, 3e5),
        "total_s": st.floats(1e5, 1.1e5),
        "deadline_s": st.floats(1e5, 3e5),
        "restart_s": st.floats(0, 2000),
        "version_s": st.floats(0, 2000),
        "horizon_s": st.floats(0, 600),
        "on": st.sampled_from([WAIT, SPOT, ON_DEMAND]),
        "spot_up": st.booleans(),
    }
)


@given(st.lists(facts, min_size=1, max_size=8))
def test_arrays_and_numbers_agree(runs: list[dict[str, float]]) -> None:
    together = DeadlineProgress(**{name: np.array([run[name] for run in runs]) for name in runs[0]})  # type: ignore[arg-type]
    for policy in [*POLICIES, OnDemandOnly()]:
        alone = [DeadlineProgress(**run) for run in runs]  # type: ignore[arg-type]
        chosen = policy.choose(together)
        assert isinstance(chosen, np.ndarray) and chosen.tolist() == [
            policy.choose(s) for s in alone
        ]
        assert np.broadcast_to(policy.stay_s(together), len(runs)).tolist() == [
            policy.stay_s(s) for s in alone
        ]
        assert np.asarray(on_demand_next(policy, together)).tolist() == [
            on_demand_next(policy, s) for s in alone
        ]


def drawn_lives(
    policy: DeadlinePolicy,
    work: float,
    deadline: float,
    restart: float,
    cycle: float,
    backup: float,
    lives: list[float],
) -> float:
    """When a job ends in a world where spot can always be asked for and each VM lives as drawn from
    the request on.

    A caller of ``on_demand_next`` and ``stay_s`` as an engine is: it asks again after each new
    durable version.
    """
    now, kept, drawn = 0.0, 0.0, iter(lives)

    def at(on: int) -> DeadlineProgress:
        version = cycle + backup
        return DeadlineProgress(
            work - kept, deadline - now, work, deadline, restart, version, on=on, spot_up=True
        )

    on_demand = on_demand_next(policy, at(WAIT))
    while True:
        if on_demand:
            now += restart
            hold = policy.stay_s(at(ON_DEMAND))
            if hold >= work - kept:
                return now + work - kept
            now, kept, on_demand = now + hold, kept + hold, False
            continue
        dies = now + next(drawn, math.inf)
        if dies == math.inf and restart + work - kept <= 0:
            return now
        safe_at = now + restart + cycle + backup
        while not on_demand:
            last = (
                safe_at - backup - cycle + (work - kept)
                if safe_at - backup - cycle < math.inf
                else math.inf
            )
            leave = now + policy.stay_s(at(SPOT))
            first = min(dies, leave, safe_at, last)
            now = first
            if first == last:
                return now
            if first == dies:
                break
            if first == leave:
                on_demand = True
            else:
                kept, safe_at = kept + cycle, safe_at + cycle
        if not on_demand:
            on_demand = on_demand_next(policy, at(WAIT))


@given(
    st.sampled_from(POLICIES),
    st.floats(0.0, 2.0),
    st.floats(0, 900),
    st.floats(60, 3000),
    st.floats(0, 300),
    st.lists(st.floats(1, 2e4), max_size=60),
)
def test_no_deadline_is_missed_with_drawn_lives(
    policy: DeadlinePolicy,
    slack: float,
    restart: float,
    cycle: float,
    backup: float,
    lives: list[float],
) -> None:
    """At any time, with the restart and the work since the newest durable version lost by each
    preemption.
    """
    work = 36_000.0
    deadline = (1 + slack) * work + restart
    assert drawn_lives(policy, work, deadline, restart, cycle, backup, lives) <= deadline + 1e-5


def test_holding_ends_where_the_choice_changes() -> None:
    near = standing(5, 6, on=SPOT, horizon_s=0.0)
    hold = Greedy().stay_s(near)
    assert hold == HOUR - 300
    assert Greedy().choose(standing(5, 6 - (hold - 1) / HOUR, on=SPOT, horizon_s=0.0)) == SPOT
    assert Greedy().choose(standing(5, 6 - (hold + 1) / HOUR, on=SPOT, horizon_s=0.0)) == ON_DEMAND
    behind = standing(6, 7.5, on=ON_DEMAND, horizon_s=0.0)
    hold = float(UniformProgress().stay_s(behind))
    for aside, expected in ((-1.0, ON_DEMAND), (1.0, SPOT)):
        hours = (hold + aside) / HOUR
        assert (
            UniformProgress().choose(standing(6 - hours, 7.5 - hours, on=ON_DEMAND, horizon_s=0.0))
            == expected
        )
    assert Greedy().stay_s(behind) == OnDemandOnly().stay_s(behind) == math.inf
    # The net does not let it go
    assert UniformProgress().stay_s(standing(7.4, 7.5, on=ON_DEMAND)) == math.inf


def test_names() -> None:
    assert {name: type(parse_deadline_policy(name)) for name in DEADLINE_POLICIES} == {
        "on-demand": OnDemandOnly,
        "greedy": Greedy,
        "uniform-progress": UniformProgress,
    }
    with pytest.raises(RequestError, match="one of on-demand, greedy, uniform-progress"):
        parse_deadline_policy("greddy")
