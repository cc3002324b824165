"""What happens to machines that are taken back on purpose: when, how, and what orders say of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.cluster.instances import Market
from deepvm.errors import DataError, RequestError
from deepvm.jobs.controller.injector import FaultKind, Injector
from deepvm.jobs.decisions.injection import Injection, PlannedPreemption, planned_preemption
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import LOST, JobLimits, JobState, MachineRecord, Pool, Role
from deepvm.jobs.jobfile import checked_injection, read_job_file

SPOT = Pool("g4dn.xlarge", "here", "spot", 0.3)
BOUGHT = replace(SPOT, market=Market.ON_DEMAND.value)
SHARE = st.sampled_from([0.0, 0.2, 1.0])


def world(*machines: MachineRecord, **terms: object) -> JobState:
    return JobState(
        JobLimits(1, 4, **terms), 0.0, Job.RUNNING, {m.id: m for m in machines}, pools=(SPOT,)
    )  # type: ignore[arg-type]


def due(
    injector: Injector, found: JobState, now_s: float
) -> list[tuple[str, FaultKind, float | None]]:
    return [(s.id, s.blow, s.grace_s) for s in injector.due(found, now_s)]


def member(number: int, trained_s: float = 0.0, **more: object) -> MachineRecord:
    found = MachineRecord(f"m{number}", SPOT, 0.0, Machine.MEMBER, trained_s=trained_s)
    return replace(found, **more)  # type: ignore[arg-type]


def test_drawn_lives_have_their_mean_and_shares() -> None:
    injection = Injection(
        30.0, seed=3, grace_s=20.0, missed=0.2, late=0.3, silent=0.1, rebalance=0.5
    )
    fates = [planned_preemption(injection, number) for number in range(1, 1001)]
    assert all(fates) and fmean(s.life_s for s in fates if s) == pytest.approx(30.0, rel=0.1)
    silent = [s for s in fates if s and s.silent]
    unheard = [s for s in fates if s and s.grace_s is None and not s.silent]
    late = [s.grace_s for s in fates if s and s.grace_s is not None and s.grace_s < 20.0]
    assert [len(silent), len(unheard), len(late)] == pytest.approx([100, 200, 300], abs=40)
    assert 0 < min(late) < 1 and 19 < max(late) < 20 and all(s.grace_s is None for s in silent)
    told = [s for s in fates if s and s.recommended_s < s.life_s]
    assert len(told) == pytest.approx(500, abs=50)
    assert all(s.recommended_s == s.life_s - 20.0 for s in told)


@given(st.integers(0, 99), st.integers(1, 20), SHARE, SHARE)
def test_what_else_happens_changes_no_life(
    seed: int, number: int, missed: float, rebalance: float
) -> None:
    one = planned_preemption(Injection(30.0, seed=seed), number)
    other = planned_preemption(
        Injection(60.0, seed=seed, missed=missed, rebalance=rebalance), number
    )
    assert one and other and other.life_s == pytest.approx(2 * one.life_s)
    assert one == planned_preemption(Injection(30.0, seed=seed), number)


def test_listed_lives_are_those_of_the_machines_in_turn() -> None:
    injection = Injection(lives_s=(30.0, 5.0), grace_s=4.0)
    fates = [planned_preemption(injection, number) for number in (1, 2, 3)]
    assert (
        fates == [PlannedPreemption(30.0, 4.0), PlannedPreemption(5.0, 4.0), None]
        and injection.mean_s == 17.5
    )
    injector = Injector(injection, ())
    there = world(member(1), member(2), member(3))
    assert due(injector, there, 4.9) == []
    assert due(injector, there, 5.0) == [("m2", FaultKind.PREEMPT, 4.0)]
    assert due(injector, there, 29.0) == []
    assert due(injector, there, 99.0) == [("m1", FaultKind.PREEMPT, 4.0)]


def test_a_rebalance_is_recommended_once_a_grace_period_before() -> None:
    injector = Injector(Injection(lives_s=(30.0,), grace_s=10.0, rebalance=1.0), ())
    told = [
        (now_s, blow)
        for now_s in range(50)
        for _, blow, _ in due(injector, world(member(1)), now_s)
    ]
    assert told == [(20, FaultKind.RECOMMEND), (30, FaultKind.PREEMPT)]


def test_a_silent_machine_loses_its_link() -> None:
    injector = Injector(Injection(lives_s=(30.0,), silent=1.0), ())
    assert due(injector, world(member(1)), 30.0) == [("m1", FaultKind.CUT, None)]


def test_machines_that_cannot_be_taken_back_are_no_candidates() -> None:
    anchor, bought, steady = (
        member(1, role=Role.ANCHOR),
        member(2, pool=BOUGHT),
        member(3, pool=replace(BOUGHT, zone="there")),
    )
    there = world(anchor, bought, steady, member(4), bought=(BOUGHT,), steady=(steady.pool,))
    assert due(Injector(Injection(lives_s=(1.0,)), ()), there, 9.0) == [
        ("m4", FaultKind.PREEMPT, 120.0)
    ]


def test_lives_of_a_command_begin_with_it() -> None:
    """Those of machines that are there, the first life is of the first of them."""
    gone = member(1, state=Machine.ENDED, ended_s=90.0, end_reason=LOST)
    injector = Injector(None, ())
    injector.order(Injection(lives_s=(30.0,)), 100.0)
    there = world(gone, member(2, trained_s=50.0))
    assert due(injector, there, 129.0) == []
    assert [name for name, *_ in due(injector, there, 130.0)] == ["m2"]


def test_a_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(
        json.dumps({"metadata": {"gap_seconds": 600}, "data": [0, 1, 1, 0, 1, 0, 1]})
    )
    text = (
        "name: x\ntrain: python t.py\nmachines: {type: a}\ninject: {lives: trace.json, scale:"
        " 0.01}\n"
    )
    (tmp_path / "job.yaml").write_text(text)
    found = read_job_file(tmp_path / "job.yaml").inject
    # The last run never ended: the first life goes on
    assert found is not None and found.lives == [1800.0, 600.0]
    assert Injection.of(found.model_dump()).lives_s == (18.0, 6.0)
    (tmp_path / "trace.json").write_text(
        json.dumps({"metadata": {"gap_seconds": 600}, "data": [0, 1, 1]})
    )
    with pytest.raises(DataError, match="no machine is preempted there"):
        read_job_file(tmp_path / "job.yaml")
    (tmp_path / "trace.json").unlink()
    with pytest.raises(DataError, match="trace.json.*does not exist"):
        read_job_file(tmp_path / "job.yaml")


COMMAND = {"mttp": None, "lives": None, "scale": 1.0, "seed": 0, "grace": "5s", "count": None}


def test_what_the_command_line_says(tmp_path: Path) -> None:
    # Too long for the name of a file
    many = checked_injection({**COMMAND, "lives": ",".join(["30s"] * 100)}, "local")
    assert many["lives"] == [30] * 100
    found = checked_injection({**COMMAND, "lives": "30s, 2min"}, "local")
    assert Injection.of(found, done=1) == Injection(lives_s=(30.0, 120.0), grace_s=5.0)
    (tmp_path / "trace.json").write_text(
        json.dumps({"metadata": {"gap_seconds": 600}, "data": [0, 1, 0]})
    )
    found = checked_injection({**COMMAND, "lives": str(tmp_path / "trace.json"), "count": 2}, "ssh")
    assert Injection.of(found, done=1) == Injection(lives_s=(600.0,), grace_s=5.0, count=3)


def test_commands_that_cannot_be() -> None:
    for more, cloud, said in [
        ({}, "local", "mttp: None (expected either mttp or lives"),
        ({"mttp": "30"}, "local", "mttp: '30' (expected a time with a unit"),
        ({"lives": "30s,x"}, "local", "lives: '30s,x' (expected a list of times such as"),
        (
            {"mttp": "30s", "missed": 2.0},
            "local",
            "missed: 2.0 (expected the share without a notice",
        ),
        (
            {"mttp": "30s", "late": 0.7, "silent": 0.7},
            "netns",
            "missed, late and silent: at most 1 together",
        ),
        (
            {"mttp": "30s", "silent": 0.7},
            "ssh",
            "silent: 0.7 (expected only with netns; the cloud ssh",
        ),
        (
            {"mttp": "30s"},
            "aws",
            "expected only with local, netns and ssh; the cloud aws preempts machines itself",
        ),
        ({"mttp": "30s", "count": -1}, "local", "count: -1"),
    ]:
        with pytest.raises(RequestError) as error:
            checked_injection({**COMMAND, **more}, cloud)
        assert said in str(error.value)
