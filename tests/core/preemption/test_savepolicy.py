"""When to save: steps, time, and Young's interval within a budget."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.preemption.savepolicy import (
    POLICIES,
    Auto,
    EverySeconds,
    EverySteps,
    Never,
    SaveContext,
    SaveFacts,
    SavePolicy,
    parse_policy,
    whole_steps,
)
from deepvm.errors import RequestError

times = st.floats(0.001, 1e5)


def steps_saved(
    policy: SavePolicy, steps: int, step_s: float, stall_s: float = 0.0, busy_s: float = 0.0
) -> list[int]:
    """A training that does what the policy says."""
    saved: list[int] = []
    now = last = 0.0
    for step in range(1, steps + 1):
        now += step_s
        facts = SaveFacts(save_s=stall_s, backup_s=busy_s) if saved else SaveFacts()
        if policy.due(SaveContext(step, now, saved[-1] if saved else 0, last, facts)):
            saved.append(step)
            last = now
            now += stall_s
    return saved


def test_steps_and_time() -> None:
    assert steps_saved(Never(), 50, 1) == []
    assert steps_saved(EverySteps(7), 30, 1) == [7, 14, 21, 28]
    assert steps_saved(EverySeconds(10), 35, 1) == [10, 20, 30]
    assert steps_saved(EverySeconds(0.1), 3, 1) == [1, 2, 3]


def test_a_time_counts_from_the_end_of_a_save() -> None:
    """As in the simulator: between two saves the training gets the time that the user asks for, in
    full.
    """
    assert steps_saved(EverySeconds(30), 10, 10, stall_s=10) == [3, 6, 9]
    assert steps_saved(EverySeconds(30), 10, 10, stall_s=3000) == [3, 6, 9]


def test_names_of_policies() -> None:
    for text in [*POLICIES, "static:51", "every:600", "every:0.1", "every:123456.789012345"]:
        assert parse_policy(text).name == text


def test_times_of_policies() -> None:
    for text in ["every:10min", "every:600s", "every:6e2", " every:0.1666666666666666667h"]:
        assert parse_policy(text) == EverySeconds(600)


def test_what_is_no_policy() -> None:
    for text in [
        "every",
        "every:",
        "every:0",
        "every:-5",
        "every:10 weeks",
        "every:nan",
        "auto:5",
        "auto:",
        "static:" + "9" * 5000,
    ]:
        with pytest.raises(RequestError) as caught:
            parse_policy(text, "save_policy")
        assert (caught.value.option, caught.value.value) == ("save_policy", text)


@given(times, times, st.floats(0.001, 0.5))
def test_young_minimizes_the_loss(stall_s: float, mtbf_s: float, other: float) -> None:
    """Lost: stall / interval for the versions, interval / (2 mtbf) for what is done again."""

    def lost(interval: float) -> float:
        return stall_s / interval + interval / (2 * mtbf_s)

    best = math.sqrt(2 * stall_s * mtbf_s)
    assert Auto(mtbf_s, 0.999999).interval_s(SaveFacts(save_s=stall_s)) == pytest.approx(
        max(best, stall_s / 0.999999)
    )
    assert lost(best) <= lost(best * (1 + other)) and lost(best) <= lost(best * (1 - other))


@given(
    st.floats(0.001, 10),
    st.floats(0.01, 100),
    st.floats(60, 1e5),
    st.floats(0.001, 0.2),
    st.floats(0.01, 1),
)
def test_auto_keeps_its_budget_and_never_overtakes_itself(
    stall_s: float, busy_s: float, mtbf_s: float, overhead: float, step_s: float
) -> None:
    interval = Auto(mtbf_s, overhead).interval_s(SaveFacts(save_s=stall_s, backup_s=busy_s))
    assert stall_s / interval <= overhead * (1 + 1e-9) and interval >= busy_s
    saved = steps_saved(Auto(mtbf_s, overhead), 300, step_s, stall_s, busy_s)
    assert saved[0] == 1
    gaps = [(b - a) * step_s for a, b in zip(saved, saved[1:], strict=False)]
    assert all(gap >= max(stall_s / overhead, busy_s) * (1 - 1e-9) for gap in gaps)
    # Young's interval is rounded down
    assert all(interval - step_s < gap * (1 + 1e-9) for gap in gaps)


def test_what_cannot_be() -> None:
    for make in [
        lambda: EverySteps(0),
        lambda: EverySteps(True),
        lambda: EverySeconds(0),
        lambda: EverySeconds(math.inf),
        lambda: Auto(0),
        lambda: Auto(60, 0),
        lambda: Auto(60, 1),
    ]:
        with pytest.raises(RequestError):
            make()  # type: ignore[operator]


def test_the_exact_interval_of_one_job_needs_no_scipy() -> None:
    """Bisection gives what Lambert's function gives, from the shortest saves to absurd ones."""
    from deepvm.core.preemption.save_intervals import exact_s

    for share in (1e-12, 1e-9, 4.9e-7, 5.1e-7, 1e-5, 0.003, 0.2, 1.0, 7.0, 30.0):
        of_many = np.asarray(exact_s(np.array([share * 3600.0]), np.array([3600.0])))
        assert exact_s(share * 3600, 3600.0) == pytest.approx(float(of_many[0]), rel=1e-9)
    assert exact_s(10.0, math.inf) == math.inf and exact_s(0.0, 3600.0) == 0


def test_whole_steps() -> None:
    for policy, steps in [
        (EverySeconds(0.05), 1),
        (EverySeconds(0.25), 3),
        (EverySeconds(3 * 0.1), 3),  # which is 3.0000000000000004 steps
        (parse_policy("young"), 5),  # 5.66
        (parse_policy("exact"), 5),
        (Auto(16.0, 0.5), 5),
        (Auto(16.0, 0.0145), 7),  # 6.9 steps are 1.45 %
    ]:
        facts = SaveFacts(save_s=0.01, step_s=0.1, mttp_s=16.0)
        assert whole_steps(policy, facts) == steps
        assert whole_steps(policy, replace(facts, save_s=np.array([0.01, 0.01]))) == pytest.approx(
            [steps, steps]
        )


def test_a_whole_number_of_steps_is_not_rounded_off() -> None:
    """sqrt(2 x 0.01 x 4.5) = 0.3 s, which is 2.9999999999999996 steps of 0.1 s."""
    assert whole_steps(parse_policy("young"), SaveFacts(save_s=0.01, step_s=0.1, mttp_s=4.5)) == 3


@given(
    st.sampled_from(
        [name for name in POLICIES if name not in ("none", "hazard")] + ["every:7.5", "every:100"]
    ),
    st.floats(0.01, 10),
    st.floats(0.01, 10),
    st.floats(10, 1e4),
    st.floats(0, 100),
)
def test_a_running_job_saves_after_as_many_steps_as_are_simulated(
    name: str, step_s: float, stall_s: float, mttp_s: float, busy_s: float
) -> None:
    """One rule: the steps between two versions of a job whose steps are all alike are those of
    ``whole_steps``.
    """
    policy = parse_policy(name)
    assert policy.has_interval
    facts = SaveFacts(save_s=stall_s, backup_s=busy_s, mttp_s=mttp_s)
    expected = float(whole_steps(policy, replace(facts, step_s=step_s)))
    steps, now = 7, 1e5
    begun = now
    now += stall_s
    while True:
        steps, now = steps + 1, now + step_s
        if policy.due(SaveContext(steps, now, 7, begun, facts)) or steps - 7 > expected:
            break
    # Just short of a whole number of steps the clock's last digit decides.
    assert steps - 7 == expected or abs(policy.interval_s(facts) / step_s % 1 - 0.5) > 0.499999


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"] + ["every:30"])
@pytest.mark.parametrize("step", [1, 49, 50])
def test_a_job_whose_last_version_is_ahead_of_it_saves_again(name: str, step: int) -> None:
    """Whoever counts steps back: time passes all the same."""
    policy = parse_policy(name)
    facts = SaveFacts(save_s=1.0, mttp_s=1000.0)
    assert not policy.due(SaveContext(step, 1002.0, 50, 1000.0, facts))
    assert policy.due(SaveContext(step, 1500.0, 50, 1000.0, facts))


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
def test_the_first_version_behind_a_restore_shows_what_one_costs(name: str) -> None:
    assert parse_policy(name).due(SaveContext(51, 1000.1, 50, 1000.0, SaveFacts(mttp_s=1000.0)))
