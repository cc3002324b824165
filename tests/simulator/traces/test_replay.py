"""Replay: against a loop over single steps, against what is known in closed form, and on the real
traces.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.simulator.engine_runs import Lives
from support.simulator.trace_files import REAL, needs_traces, pool

from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.preemption_estimators import LomaxHistory
from deepvm.core.preemption.savepolicy import (
    EverySeconds,
    EverySteps,
    Hazard,
    Never,
    SaveFacts,
    SavePolicy,
    Thesis,
    parse_policy,
    whole_steps,
)
from deepvm.errors import RequestError
from deepvm.simulator.engine.engine import run
from deepvm.simulator.engine.state import PARTS
from deepvm.simulator.traces.replay import Cost, best_fixed, emergency, replay, replay_all
from deepvm.simulator.traces.trace import TraceLives, lives_of

# Whether a life that ends with the very end of a save loses it is nobody's business: none does.
lives_lists = st.lists(
    st.tuples(st.floats(1, 3000).map(lambda s: s + math.pi / 1000), st.booleans()),
    min_size=1,
    max_size=6,
)


def one_life(
    policy: SavePolicy, end: float, ended: bool, save_s: float, step_s: float, known: SaveFacts
) -> Cost:
    """One machine, one step after another."""
    now = saved_at = saves = 0.0
    steps = 0
    facts = known
    while True:
        if now + step_s > end:
            return Cost(end, saves, end - saved_at if ended else 0.0, int(ended))
        now += step_s
        steps += 1
        if isinstance(policy, EverySteps):
            due = steps == policy.steps
        elif isinstance(policy, Never):
            due = False
        elif isinstance(policy, EverySeconds):  # a time that was asked for is over first
            due = now - saved_at >= policy.seconds - 1e-6
        else:  # another step would take it past its interval
            due = now + step_s - saved_at > policy.interval_s(facts) + 1e-6  # type: ignore[attr-defined]
        if due:
            if now + save_s > end:
                return Cost(
                    end,
                    saves + (0.0 if ended else end - now),
                    end - saved_at if ended else 0.0,
                    int(ended),
                )
            now += save_s
            saves += save_s
            saved_at, steps = now, 0
            facts = SaveFacts(**(vars(known) | {"age_s": now}))


def naive(
    lives: TraceLives, policy: SavePolicy, save_s: float, step_s: float, ends: int = 1
) -> Cost:
    """All lives in turn, and what was learnt of those before; the mean over ends within the gap."""
    total, seen, deaths = Cost(), 10_800.0, 1.0
    law = LomaxHistory.around(10_800.0)
    for life, ended in lives.pairs:
        shape, scale = law.most_probable()
        facts = SaveFacts(
            save_s=save_s, mttp_s=seen / deaths, shape=float(shape), scale_s=float(scale)
        )
        spread = (np.arange(ends) + 0.5) / ends - 0.5
        own = [
            one_life(policy, life + lives.gap_s * s, ended, save_s, step_s, facts) for s in spread
        ]
        saves, lost = (
            float(np.mean([getattr(c, name) for c in own])) for name in ("saves_s", "lost_s")
        )
        total += Cost(life, saves, lost, int(ended))
        seen, deaths = seen + life, deaths + ended
        law = law.after(life, ended)
    return total


def close(one: Cost, other: Cost, rel: float = 1e-4) -> bool:
    pairs = (
        (getattr(one, n), getattr(other, n))
        for n in ("machine_s", "saves_s", "lost_s", "preemptions")
    )
    return all(a == pytest.approx(b, rel=rel, abs=1e-3) for a, b in pairs)


@settings(max_examples=examples(80))
@given(
    lives_lists,
    st.sampled_from(
        ["thesis", "hazard", "daly", "exact", "adaptive", "every:100", "static:7", "none"]
    ),
    st.floats(0.5, 100),
    st.floats(1, 50),
)
def test_a_loop_over_single_steps_costs_the_same(
    lives: list[tuple[float, bool]], name: str, save_s: float, step_s: float
) -> None:
    made, policy = pool(lives), parse_policy(name)
    assert close(
        replay([made], policy, save_s, step_s=step_s)[0], naive(made, policy, save_s, step_s)
    )


def test_intervals_are_those_of_a_simulated_job() -> None:
    """One machine, never taken away: saves after the same steps, counted by the time that they
    take.
    """
    for name in ["thesis", "young", "daly", "exact", "adaptive", "auto", "every:100", "static:7"]:
        policy, steps = parse_policy(name), 10_000
        facts = SaveFacts(save_s=2.5, step_s=4.6, mttp_s=10_800.0, missed_rate=0.1)
        job = Job(steps, Span.of(4.6), save_s=Span.of(2.5), mttp_s=(10_800.0,))
        simulated = run(job, policy, Lives(1e9), 1, np.random.default_rng(0))
        replayed = replay([pool([(float(simulated.total_s[0]), False)])], policy, 2.5, step_s=4.6)[
            0
        ]
        every = (
            policy.steps if isinstance(policy, EverySteps) else float(whole_steps(policy, facts))
        )  # type: ignore[arg-type]
        assert round(simulated.parts_s[PARTS.index("save"), 0] / 2.5) == steps // every
        assert round(replayed.saves_s / 2.5) == steps // every


def test_ends_are_spread_over_the_gap() -> None:
    """The closed form is the mean over many ends."""
    for name in ["thesis", "hazard", "static:7"]:
        made = pool([(600.0, True), (1800.0, True), (1200.0, False), (300.0, True)], gap_s=300)
        policy = parse_policy(name)
        assert close(
            replay([made], policy, 20, step_s=5)[0], naive(made, policy, 20, 5, ends=600), rel=5e-3
        )


@settings(max_examples=examples(40))
@given(lives_lists, st.floats(1, 600), st.floats(0.5, 100), st.floats(1, 20))
def test_the_best_fixed_interval_costs_what_its_replay_costs(
    lives: list[tuple[float, bool]], gap: float, save_s: float, step_s: float
) -> None:
    """And no other interval is better by more than what lies between two candidates."""
    made = pool(lives, gap_s=gap)
    cost = best_fixed(made, save_s, step_s=step_s)
    assert cost.interval_s is not None
    policy = EverySeconds(cost.interval_s) if math.isfinite(cost.interval_s) else Never()
    assert close(replay([made], policy, save_s, step_s=step_s)[0], cost, rel=1e-6)
    never = replay([made], Never(), save_s, step_s=step_s)[0]
    assert cost.share <= never.share + 1e-9
    assert cost.share <= replay([made], EverySteps(1), save_s, step_s=step_s)[0].share + 1e-9


def test_the_best_fixed_interval_is_near_to_daly_for_exponential_lives() -> None:
    """And costs sqrt(2 d / M), to first order in d / M."""
    life = np.random.default_rng(3).exponential(20_000, 4000)
    made = pool([(float(t), True) for t in life], gap_s=60)
    cost = best_fixed(made, 10, step_s=1)
    assert cost.interval_s == pytest.approx(math.sqrt(2 * 10 * 20_000), rel=0.2)
    assert cost.share == pytest.approx(math.sqrt(2 * 10 / 20_000), rel=0.05)


def test_lives_of_whole_gaps_do_not_help_a_fixed_interval() -> None:
    """All lives look like 600 s.

    An interval that ends just before would cost a save and nothing else.
    """
    made = pool([(600.0, True)] * 50, gap_s=600)
    cost = best_fixed(made, 5, step_s=1)
    assert cost.share > 0.1
    exact = best_fixed(pool([(600.0, True)] * 50), 5, step_s=1)
    assert exact.share < 0.05


def test_a_policy_knows_only_the_past_of_its_own_pool() -> None:
    first = [(1000.0, True), (700.0, True), (5000.0, False)]
    one, other = pool([*first, (50.0, True)]), pool([*first, (90_000.0, True)])
    for policy in (Thesis(), Hazard()):
        alone = replay([pool(first)], policy, 20)[0]
        last = [replay([p], policy, 20)[0] for p in (one, other)]
        # The cost of the last life is what is left; it is below the life itself.
        assert last[0].saves_s - alone.saves_s >= -1e-6 and last[
            0
        ].lost_s - alone.lost_s == pytest.approx(50, abs=1)
        assert last[1].saves_s > alone.saves_s
        together = replay([one, other, pool(first)], policy, 20)
        assert (
            close(together[0], last[0], 1e-9)
            and close(together[1], last[1], 1e-9)
            and close(together[2], alone, 1e-9)
        )


def test_the_policy_learns() -> None:
    """Lives of a minute after a prior of three hours: from some life on the thesis's policy saves
    within them.
    """
    made = pool([(60.0, True)] * 400, gap_s=10)
    none = replay([made], Never(), 1, step_s=1)[0]
    for policy in (Thesis(), Hazard()):
        assert replay([made], policy, 1, step_s=1)[0].share < 0.7 * none.share


def test_emergency_saves() -> None:
    """A step and a save at each preemption; a life that is shorter costs itself."""
    made = pool([(1000.0, True), (2000.0, False), (22.0, True), (5.0, True)])
    assert emergency(made, 20, step_s=4) == Cost(3027, 20 + 20 + 5, 4 + 2, 3)


def test_costs_add_up() -> None:
    pools = [pool([(1000.0, True), (400.0, True)]), pool([(9000.0, False)])]
    rows = replay_all(pools, ("thesis", "best-fixed", "emergency"), (5.0, 50.0))
    assert [(r.policy, r.save_s) for r in rows] == [
        (p, s) for p in ("thesis", "best-fixed", "emergency") for s in (5.0, 50.0)
    ]
    for row in rows:
        assert row.total.machine_s == 10_400 and row.total.preemptions == 2
        assert row.total.share == pytest.approx(
            sum(c.saves_s + c.lost_s for c in row.pools) / 10_400
        )
        assert all((c.interval_s is not None) == (row.policy == "best-fixed") for c in row.pools)


def test_wrong_wishes() -> None:
    for wrong, option in [
        ({"policies": ("thesiss",)}, "policies"),
        ({"policies": ("",)}, "policies"),
        ({"saves_s": (0.0,)}, "save"),
        ({"saves_s": (math.nan,)}, "save"),
        ({"step_s": -1.0}, "step"),
        ({"mttp_s": math.inf}, "mttp"),
    ]:
        with pytest.raises(RequestError) as error:
            replay_all([pool([(100.0, True)])], **wrong)  # type: ignore[arg-type]
        assert error.value.option == option


def test_a_save_every_moment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepvm.simulator.traces.replay.MOST_CYCLES", 2000)
    with pytest.raises(RequestError, match="at most 2000 saves in a lifetime"):
        replay([pool([(1e6, True)])], EverySeconds(1e-3), 1e-3, step_s=1e-3)


@needs_traces
def test_on_the_real_traces_the_hazard_pays() -> None:
    """The issue: no more than the thesis's policy at each latency, 5 % less at 2.55 and 19.5 s.

    The other figures are those of the design, within a tenth.
    """
    rows = replay_all(lives_of([REAL]))
    share = {(r.policy, r.save_s): 100 * r.total.share for r in rows}
    saves = (2.55, 19.5, 120.0)
    assert all(share["hazard", s] <= share["thesis", s] for s in saves)
    assert all(share["hazard", s] <= 0.95 * share["thesis", s] for s in saves[:2])
    stated = {
        "thesis": (2.31, 6.20, 14.21),
        "best-fixed": (2.20, 5.88, 13.44),
        "hazard": (2.11, 5.77, 13.34),
        "emergency": (0.08, 0.28, 1.44),
    }
    for name, figures in stated.items():
        assert [share[name, s] for s in saves] == pytest.approx(figures, rel=0.1)
