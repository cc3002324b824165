"""Which pool is asked next: by what happened there, and not where one has just refused or taken a
machine back.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.jobs.simulation import Faults, Simulation, finished

from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.markets import (
    free_pools,
    in_order,
    least_usd_per_hour,
    record_of,
    refused,
    rested,
    usd_per_useful_hour,
    within_budget,
)
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import (
    LOST,
    PREEMPTED,
    REFUSED,
    RELEASED,
    JobLimits,
    JobState,
    MachineRecord,
    Pool,
    PoolRecord,
    Role,
)
from deepvm.jobs.decisions.world_document import from_document, to_document, to_row

NOW = 1_000_000_000.0
A, B, C = (Pool("g4dn.xlarge", f"us-east-1{z}", "spot", 0.3) for z in "abc")
OTHER = Pool("g5.xlarge", "us-east-1a", "spot", 0.5)


def row(
    pool: Pool, hours: float, reason: str = RELEASED, ago_h: float = 24.0 * 3
) -> dict[str, Any]:
    """A machine of the history, that was asked for so long ago, and lived so long."""
    began = NOW - ago_h * 3600
    had = reason != REFUSED
    return {
        "instance_type": pool.instance_type,
        "zone": pool.zone,
        "market": pool.market,
        "requested_s": began,
        "launched_s": began if had else None,
        "ended_s": began + hours * 3600 if had else None,
        "end_reason": reason,
    }


def test_figures_by_hand() -> None:
    found = PoolRecord(lived_h=30.0, taken=3, granted=4, refused=2)
    assert found.preemptions_per_hour == pytest.approx((1 + 3) / (10 + 30))
    assert found.refusals == pytest.approx((0.5 + 2) / (3 + 4 - 1))
    assert found.usd_per_useful_hour(0.5) == pytest.approx(0.5 * (1 + 0.1 * (0.1 + 0.05 * 2.5 / 6)))


def test_what_is_counted() -> None:
    rows = [
        row(A, 2, PREEMPTED),
        row(A, 3, LOST),
        row(A, 5),
        row(A, 0, REFUSED, ago_h=1),
        row(A, 1, ago_h=2),
        row(A, 0, REFUSED, ago_h=48),  # capacity of the day before yesterday
        row(A, 100, PREEMPTED, ago_h=24 * 40),  # too long ago
        row(B, 1, PREEMPTED),
        row(OTHER, 1, PREEMPTED),
        {**row(A, 1), "market": "on-demand"},
    ]
    assert record_of(A, rows, NOW) == PoolRecord(
        lived_h=11.0, taken=2, granted=1, refused=1, at_s=NOW
    )
    region = replace(A, zone="us-east-1")
    assert record_of(region, rows, NOW).taken == 3
    still = {**row(A, 1), "ended_s": None, "launched_s": NOW - 7200}
    assert record_of(A, [still], NOW).lived_h == pytest.approx(2.0)


def test_order() -> None:
    assert in_order([A, B, C], [], NOW) == (A, B, C)
    assert in_order([A, B], [row(A, 0.2, PREEMPTED) for _ in range(20)], NOW) == (B, A)
    assert in_order([A, B], [row(A, 0, REFUSED, ago_h=1) for _ in range(8)], NOW) == (B, A)
    assert in_order([replace(A, usd_per_hour=0.4), B], [], NOW)[0] == B
    cheap, history = replace(A, usd_per_hour=0.1), [row(A, 0.5, PREEMPTED) for _ in range(20)]
    # A third of the price is worth some preemptions
    assert in_order([cheap, B], history, NOW)[0] == cheap


def world(*pools: Pool) -> JobState:
    return JobState(JobLimits(1, 1, cool_s=30.0), 0.0, pools=pools)


def test_a_pool_that_refused_is_left_alone_longer_each_time() -> None:
    once = refused(world(A, B), A)
    assert free_pools(once) == [B] and free_pools(replace(once, now_s=30.0)) == [A, B]
    twice = refused(replace(once, now_s=30.0), A)
    assert free_pools(replace(twice, now_s=89.0)) == [B] and free_pools(
        replace(twice, now_s=90.0)
    ) == [A, B]
    assert free_pools(refused(once, B)) == []


def test_refusals_of_one_round_count_once() -> None:
    now, acts = react(replace(world(A), terms=JobLimits(8, 8, cool_s=30.0)), d.Tick(), 0.0)
    assert len(acts) == 8
    for number in range(1, 9):
        now, _ = react(now, d.Refused(f"m{number}", "no capacity"), 0.5 + number / 10)
    _, acts = react(now, d.Tick(), 29.0)
    assert not acts
    _, acts = react(now, d.Tick(), 31.0)
    assert len(acts) == 8


@pytest.mark.parametrize("place", ["anchor", "steady"])
def test_each_pool_that_refused_is_left_alone(place: str) -> None:
    other = replace(OTHER, market="on-demand")
    terms = JobLimits(
        2, 2, cool_s=30.0, **{place: (other,), "anchors" if place == "anchor" else "steadies": 1}
    )
    now, acts = react(replace(world(A), terms=terms), d.Tick(), 0.0)
    refused_id = next(act.id for act in acts if now.machines[act.id].pool == other)
    now, acts = react(now, d.Refused(refused_id, "no capacity"), 1.0)
    assert not acts, "asked for again without a pause"
    now, acts = react(now, d.Tick(), 30.0)
    assert not acts
    now, acts = react(now, d.Tick(), 31.0)
    assert [now.machines[act.id].pool for act in acts] == [other]


def test_a_pool_rests_after_a_notice_where_there_is_another() -> None:
    after = rested(world(A, B), replace(A, usd_per_hour=0.31))
    assert free_pools(after) == [B] and free_pools(replace(after, now_s=300.0)) == [A, B]
    assert free_pools(refused(after, B)) == [A]  # better than none
    assert free_pools(rested(world(A), A)) == [A]
    assert free_pools(rested(world(A, OTHER), A)) == [A, OTHER]  # another type is no equal of it
    assert free_pools(refused(refused(after, A), B)) == []


def test_the_replacement_comes_from_elsewhere_with_or_without_a_notice() -> None:
    for event, at_s in [
        (d.Noticed("m1", 122.0), 3.0),
        (d.InstancesListed({}, {"m1": (1.0, 3.0)}, taken=frozenset(["m1"])), 3.0),
        (d.InstancesListed({}, {"m1": (1.0, 3.0)}), 3.0),
        (d.InstancesListed({}), 70.0),  # the cloud does not list it any more
        (d.Tick(), 60.0),  # its agent has been silent for too long
    ]:
        now, first = react(world(A, B), d.Tick(), 1.0)
        assert [now.machines[r.id].pool for r in first if isinstance(r, d.Request)] == [A]
        now, _ = react(now, [d.Launched("m1", 1.0), d.Heartbeat("m1", warm=True)], 2.0)
        if isinstance(event, d.Tick):
            now, _ = react(now, d.Silent("m1"), 17.0)
        now, acts = react(now, event, at_s)
        assert [now.machines[r.id].pool for r in acts if isinstance(r, d.Request)] == [B]
        assert free_pools(now) == [B] and A in free_pools(replace(now, now_s=at_s + 300.0))


def test_a_pool_rests_again_after_each_loss() -> None:
    once = rested(world(A, B), A)
    again = rested(replace(once, now_s=1000.0), A)
    assert free_pools(replace(again, now_s=1299.0)) == [B] and free_pools(
        replace(again, now_s=1300.0)
    ) == [A, B]


def test_what_the_cloud_has_chosen_is_written_down() -> None:
    region = replace(A, zone="us-east-1")
    now, _ = react(world(region), d.Tick(), 1.0)
    after, _ = react(now, d.Launched("m1", 1.5, "us-east-1c", 0.25), 2.0)
    pool = after.machines["m1"].pool
    assert (pool.zone, pool.usd_per_hour) == ("us-east-1c", 0.25)
    # The reply was lost
    listed, _ = react(now, d.InstancesListed({"m1": 1.5}, zones={"m1": "us-east-1b"}), 2.0)
    assert (
        listed.machines["m1"].pool.zone == "us-east-1b"
        and listed.machines["m1"].pool.usd_per_hour == 0.3
    )


def test_a_steady_machine_counts_in_whichever_zone() -> None:
    steady = Pool("g4dn.xlarge", "us-east-1", "on-demand", 0.5)
    started = JobState(JobLimits(1, 2, steady=(steady,), steadies=1), 0.0, pools=(A,))
    now, acts = react(started, d.Tick(), 1.0)
    assert len(acts) == 2
    now, _ = react(now, [d.Launched("m1", 1.0, "us-east-1c"), d.Launched("m2", 1.0)], 2.0)
    now, acts = react(now, d.Tick(), 3.0)
    assert not acts


# --- while the job runs ---------------------------------------------------------------------------

OFTEN = Pool("g4dn.xlarge", "us-east-1a", "spot", 0.30)
SELDOM = Pool("g4dn.xlarge", "us-east-1b", "spot", 0.31)


def lived(number: int, pool: Pool, hours: float, reason: str, ago_h: float = 3.0) -> MachineRecord:
    """A machine of the job, as :func:`row` has those of others."""
    found = {k: v for k, v in row(pool, hours, reason, ago_h).items() if k in _TIMES}
    state = Machine.FAILED if reason == REFUSED else Machine.ENDED
    return MachineRecord(f"m{number}", pool, state=state, **found)


_TIMES = ("requested_s", "launched_s", "ended_s", "end_reason")


def seen(*machines: MachineRecord, **more: Any) -> JobState:
    return JobState(
        JobLimits(1, 1), NOW, machines={m.id: m for m in machines}, pools=(OFTEN, SELDOM), **more
    )


def test_a_zone_that_takes_machines_back_or_refuses_is_asked_later() -> None:
    for reason in [PREEMPTED, LOST, REFUSED]:
        many = [lived(n, OFTEN, 0.1, reason) for n in range(1, 30)]
        assert free_pools(seen()) == [OFTEN, SELDOM] and free_pools(seen(*many)) == [SELDOM, OFTEN]
        dearer = replace(seen(*many), pools=(OFTEN, replace(SELDOM, usd_per_hour=0.6)))
        assert free_pools(dearer)[0] == OFTEN  # half the price is worth some preemptions
        old = [replace(m, requested_s=m.requested_s - 40 * 86_400) for m in many]
        assert free_pools(seen(*old)) == [OFTEN, SELDOM]


def test_a_notice_counts_before_its_machine_has_ended() -> None:
    known = [
        replace(lived(n, OFTEN, 0.1, RELEASED, ago_h=0.1), end_reason="", noticed_s=NOW)
        for n in range(30)
    ]
    assert free_pools(seen(*known))[0] == SELDOM


def test_what_the_history_knew_still_counts() -> None:
    before = PoolRecord(lived_h=20.0, taken=40, granted=40, at_s=NOW - 3600)
    assert free_pools(seen(priors={OFTEN: before})) == [SELDOM, OFTEN]
    good = [lived(n, OFTEN, 24.0, RELEASED, ago_h=30) for n in range(1, 30)]
    assert free_pools(seen(*good, priors={OFTEN: before})) == [OFTEN, SELDOM], (
        "29 days without a preemption"
    )
    full = PoolRecord(refused=30, at_s=NOW - 3600)
    assert free_pools(seen(priors={OFTEN: full})) == [SELDOM, OFTEN]
    assert free_pools(seen(priors={OFTEN: replace(full, at_s=NOW - 2 * 86_400)})) == [OFTEN, SELDOM]


def test_types_keep_their_rank() -> None:
    """How fast others train is the plan's to say: a type comes later only while it refuses."""
    bad = [lived(n, OFTEN, 0.0, REFUSED) for n in range(1, 50)]
    cheap = replace(OTHER, usd_per_hour=0.1)
    assert free_pools(replace(seen(*bad), pools=(OFTEN, cheap))) == [OFTEN, cheap]
    assert free_pools(replace(seen(*bad), pools=(OFTEN, SELDOM, cheap))) == [SELDOM, OFTEN, cheap]


ENDS = st.sampled_from([PREEMPTED, LOST, REFUSED, RELEASED])
LIVES = st.lists(
    st.tuples(st.sampled_from([A, B]), st.floats(0, 50), ENDS, st.floats(0, 24.0 * 40)), max_size=30
)


@given(LIVES, LIVES)
def test_it_is_as_if_the_history_had_the_jobs_own_machines(before: Any, since: Any) -> None:
    rows = [row(pool, *life) for pool, *life in before]
    own = [lived(n, pool, *life) for n, (pool, *life) in enumerate(since)]
    world = replace(seen(*own), pools=(A, B), priors={p: record_of(p, rows, NOW) for p in (A, B)})
    costs = usd_per_useful_hour(world, (A, B))
    for pool in (A, B):
        whole = record_of(pool, [*rows, *map(to_row, own)], NOW)
        assert costs[pool] == pytest.approx(whole.usd_per_useful_hour(pool.usd_per_hour))
    assert free_pools(world) == sorted((A, B), key=lambda p: costs[p])
    assert from_document(json.loads(json.dumps(to_document(world))), world.machines) == world


class Zones(Simulation):
    """A zone of the same price that comes first, and where there is no capacity, or machines live
    for seconds.
    """

    def __init__(self, seed: int, life_s: float) -> None:
        super().__init__(random.Random(seed), JobLimits(2, 2, cool_s=3.0), Faults(), steps=600)
        self.life_s = life_s
        self.first = self.world = replace(self.world, pools=(A, B))
        self.refused = lambda pool: pool == A and not life_s

    def do(self, act: Any) -> None:
        super().do(act)
        machine = self.machines.get(act.id)
        if (
            isinstance(act, d.Request)
            and machine
            and self.world.machines[act.id].pool.zone == A.zone
        ):
            self.at(self.life_s, lambda: self.end(machine))


def test_a_job_leaves_a_zone_that_is_no_good() -> None:
    for life_s in [0.0, 20.0]:
        for seed in range(3):
            world = finished(Zones(seed, life_s))
            assert world.job is Job.DONE
            asked = [m.pool.zone for m in world.machines.values()]
            assert asked[:2] == [A.zone] * 2 and asked.count(A.zone) <= 3 and asked[-1] == B.zone


# --- next-ranked types ----------------------------------------------------------------------------

FIRST, SECOND = (
    Pool("g4dn.xlarge", "us-east-1", "on-demand", 0.5),
    Pool("g5.xlarge", "us-east-1", "on-demand", 1.0),
)
SMALL, LARGE = (
    Pool("m7g.large", "us-east-1", "on-demand", 0.1),
    Pool("m6g.large", "us-east-1", "on-demand", 0.2),
)


def asked(world: JobState, now_s: float, *refuse: Pool) -> tuple[JobState, list[Pool]]:
    """Which pools are asked in the end where those of ``refuse`` have no capacity."""
    found, acts = list[Pool](), react(world, d.Tick(), now_s)
    while acts[1]:
        world, new = (
            acts[0],
            [acts[0].machines[act.id] for act in acts[1] if isinstance(act, d.Request)],
        )
        now_s += 1.0
        refusals = [d.Refused(m.id, "no capacity") for m in new if m.pool in refuse]
        found += [m.pool for m in new if m.pool not in refuse]
        acts = react(world, refusals, now_s)
    return acts[0], found


def test_the_next_ranked_type_is_bought_where_the_first_is_not_to_be_had() -> None:
    """If the budget by the hour buys as many of it as are needed.

    A part of them would be paid for nothing.
    """
    for terms, pools, too_dear in [
        ({}, (FIRST, SECOND), []),
        ({"steady": (FIRST, SECOND), "steadies": 2}, (A,), []),
        (
            {"bought": (FIRST, SECOND), "deadline_policy": "greedy", "end_s": 1e6, "steps": 10},
            (A,),
            [A, A],
        ),
    ]:
        for usd_per_hour, found in ((None, [SECOND] * 2), (2.0, [SECOND] * 2), (1.9, too_dear)):
            started = JobState(
                JobLimits(2, 2, usd_per_hour=usd_per_hour, **terms),
                0.0,
                pools=pools,
                on_demand="bought" in terms,
            )
            started = within_budget(started, usd_per_hour)
            assert asked(started, 0.0)[1] == [FIRST] * 2
            world, instead = asked(started, 0.0, FIRST)
            assert instead == found, usd_per_hour
            assert found or asked(world, 100.0)[1] == [FIRST] * 2


def test_spot_trains_where_no_type_is_to_be_had_on_demand() -> None:
    terms = JobLimits(1, 1, bought=(FIRST, SECOND), deadline_policy="greedy", end_s=1e6, steps=10)
    assert asked(JobState(terms, 0.0, pools=(A,), on_demand=True), 0.0, FIRST, SECOND)[1] == [A]


def test_versions_are_kept_on_the_next_ranked_anchor() -> None:
    terms = JobLimits(1, 3, anchor=(SMALL, LARGE), anchors=2)
    assert asked(JobState(terms, 0.0, pools=(FIRST,)), 0.0, SMALL)[1] == [FIRST] * 3 + [LARGE] * 2
    tight = within_budget(JobState(replace(terms, usd_per_hour=0.8), 0.0, pools=(FIRST,)), 0.8)
    assert tight.terms.anchor == (SMALL,)
    loose = within_budget(JobState(replace(terms, usd_per_hour=1.5), 0.0, pools=(FIRST,)), 1.5)
    # Money for the dearest anchors is kept back while none is there.
    assert asked(loose, 0.0, SMALL)[1] == [FIRST] * 2 + [LARGE] * 2
    assert asked(loose, 0.0)[1] == [SMALL] * 2 + [FIRST] * 2


def test_an_anchor_that_is_replaced_keeps_to_the_budget() -> None:
    """The last trainer has what the first anchors cost less than the dearest."""
    terms = JobLimits(1, 3, anchor=(SMALL, LARGE), anchors=2, usd_per_hour=1.7)
    world, found = asked(within_budget(JobState(terms, 0.0, pools=(FIRST,)), 1.7), 0.0)
    assert found == [SMALL] * 2 + [FIRST] * 2
    world, acts = react(world, [d.Launched(m, 1.0) for m in world.machines], 2.0)
    assert [world.machines[act.id].pool for act in acts] == [FIRST]
    world, acts = react(
        world,
        d.InstancesListed({"m2": 1.0, "m3": 1.0, "m4": 1.0, "m5": 2.0}, {"m1": (1.0, 3.0)}),
        3.0,
    )
    assert [world.machines[act.id].pool for act in acts] == [SMALL]
    assert not react(world, d.Refused(acts[0].id, "no capacity"), 4.0)[1]
    richer = replace(world, terms=replace(world.terms, usd_per_hour=1.8))
    _, acts = react(richer, d.Refused(acts[0].id, "no capacity"), 4.0)
    assert [act.id for act in acts] == ["m7"]


def test_types_that_are_too_dear_beside_the_dearest_anchor_are_none() -> None:
    cheap = replace(FIRST, instance_type="cheap", usd_per_hour=0.1)
    terms = JobLimits(1, 1, anchor=(SMALL, LARGE), anchors=1, usd_per_hour=0.65)
    found = within_budget(JobState(terms, 0.0, pools=(cheap, FIRST)), 0.65)
    assert found.pools == (cheap,) and found.terms.anchor == (SMALL, LARGE)


@st.composite
def markets_of_a_job(draw: st.DrawFn) -> JobState:
    def pools(market: str, least: int = 0) -> tuple[Pool, ...]:
        usd = draw(st.lists(st.sampled_from([0.1, 0.3, 0.5, 1.0, 3.0]), min_size=least, max_size=3))
        return tuple(Pool(f"{market}{n}", "z", market, x) for n, x in enumerate(usd))

    least = draw(st.integers(1, 3))
    steady, anchor, bought = pools("on-demand"), pools("on-demand"), pools("on-demand")
    steadies = draw(st.integers(1, least)) if steady else 0
    terms = JobLimits(
        least,
        draw(st.integers(least, 5)),
        usd_per_hour=draw(st.sampled_from([0.5, 1.0, 2.0, 4.0, 9.0])),
    )
    terms = replace(
        terms, steady=steady, steadies=steadies, anchor=anchor, anchors=draw(st.integers(1, 2))
    )
    terms = replace(terms, anchors=terms.anchors if anchor else 0, bought=bought)
    terms = replace(terms, end_s=1e6 if bought else None, steps=10, deadline_policy="greedy")
    return JobState(terms, 0.0, pools=pools("spot", 1))


@given(markets_of_a_job(), st.data())
def test_a_refusal_buys_the_fewest_within_the_budget(
    started: JobState, data: st.DataObject
) -> None:
    on_demand = [replace(started, on_demand=True)] if started.terms.bought else []
    assume(
        all(least_usd_per_hour(w) <= (w.terms.usd_per_hour or 0.0) for w in (started, *on_demand))
    )
    world = within_budget(
        data.draw(st.sampled_from([started, *on_demand])), started.terms.usd_per_hour
    )
    terms = world.terms
    assert (
        world.pools
        and bool(terms.anchor) == bool(started.terms.anchor)
        and terms.bought[:1]
        or not started.terms.bought
    )
    groups = [g for g in (world.pools, terms.steady, terms.anchor, terms.bought) if g]
    # The only one of its group with capacity
    left = [data.draw(st.sampled_from(group)) for group in groups]
    refuse = {p for group in groups for p in group} - set(left)
    world, _ = asked(world, 0.0, *refuse)
    live = [m for m in world.machines.values() if not m.state.over]
    assert sum(m.role is Role.TRAINER for m in live) >= terms.least
    assert sum(m.role is Role.ANCHOR for m in live) == terms.anchors
    assert sum(m.pool.usd_per_hour for m in live) <= (terms.usd_per_hour or 0.0) + 1e-9


def test_what_an_older_deepvm_wrote_of_its_one_pool() -> None:
    for name in ["anchor", "steady", "bought"]:
        for older in [None, asdict(FIRST)]:
            written = to_document(JobState(JobLimits(1, 1), 0.0, pools=(A,)))
            written["terms"][name] = older
            del written["priors"]
            found = from_document(json.loads(json.dumps(written)), {})
            assert (
                getattr(found.terms, name) == (() if older is None else (FIRST,))
                and not found.priors
            )
