"""Where a job's time and money went: fixed jobs, to the cent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import support.jobs.worlds as worlds

from deepvm.core.preemption.savepolicy import SaveFacts, parse_policy
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import (
    LOST,
    PREEMPTED,
    RELEASED,
    JobLimits,
    JobState,
    MachineRecord,
    Pool,
    Reason,
    Role,
)
from deepvm.jobs.history.forecast import observed, validation
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.history.job_report import final_document, spent
from deepvm.jobs.standing import ALIVE, GONE
from deepvm.reports.jobs.run_page import RunPage
from deepvm.reports.text import print_text

SPOT, ANCHOR = (
    Pool("g4dn.xlarge", "here", "spot", 3.6),
    Pool("m7g.large", "here", "on-demand", 0.36),
)


def machine(
    name: str, asked_s: float, launched_s: float, ended_s: float, why: str, **more: float
) -> MachineRecord:
    return MachineRecord(
        name,
        SPOT,
        asked_s,
        Machine.ENDED,
        launched_s,
        ready_s=launched_s + 5,
        trained_s=launched_s + 10,
        ended_s=ended_s,
        end_reason=why,
        **more,  # type: ignore[arg-type]
    )


def event(at_s: float, kind: str, state: str, **facts: object) -> EventRow:
    return EventRow(at_s, kind, state, facts)


def job() -> tuple[JobState, list[EventRow]]:
    """100 steps of a second: m1 is lost without a notice after 47, m2 noticed after 77, m3 trains
    to the end.

    Versions at 20, 40, 60 and, in the emergency, 77; each stalls for 0.5 s, the emergency takes 2
    s.
    """
    machines = [
        machine("m1", 0.0, 10.0, 68.0, LOST),
        machine("m2", 69.0, 80.0, 130.5, PREEMPTED, noticed_s=127.0, taken_s=140.0),
        machine("m3", 127.5, 138.0, 174.0, RELEASED),
        replace(
            machine("a1", 0.0, 5.0, 174.0, RELEASED), pool=ANCHOR, role=Role.ANCHOR, trained_s=None
        ),
    ]
    events = [
        event(20.0, "started", "running", id="m1", generation=1, version=0),
        event(
            41.0,
            "safe",
            "running",
            generation=1,
            version=20,
            reason="insurance",
            stall_s=0.5,
            took_s=1.0,
        ),
        event(
            61.5,
            "safe",
            "running",
            generation=1,
            version=40,
            reason="insurance",
            stall_s=0.5,
            took_s=1.0,
        ),
        event(68.5, "machine", "forming", id="m1", why=LOST, generation=1),
        event(90.0, "started", "running", id="m2", generation=2, version=40),
        event(
            111.0,
            "safe",
            "running",
            generation=2,
            version=60,
            reason="insurance",
            stall_s=0.5,
            took_s=1.0,
        ),
        event(127.0, "noticed", "saving", id="m2", taken_s=140.0, generation=2),
        event(
            129.5,
            "safe",
            "forming",
            generation=2,
            version=77,
            reason="emergency",
            stall_s=2.0,
            took_s=2.0,
        ),
        event(148.0, "started", "running", id="m3", generation=3, version=77),
        event(171.0, "ended", "done", id="m3", generation=3, code=0, step=100),
    ]
    saves = {Reason.INSURANCE: 3, Reason.EMERGENCY: 1}
    world = JobState(
        JobLimits(1, 1, mttp_s=60.0),
        174.0,
        Job.DONE,
        {m.id: m for m in machines},
        generation=3,
        members=("m3",),
        version=77,
        reached=100,
        facts=SaveFacts(step_s=1.0),
        saving_s=3.5,
        lost_steps=7,
        saves=saves,
        pools=(SPOT,),
    )
    return world, events


def test_time_and_money_by_cause() -> None:
    world, events = job()
    found = spent(0.0, world, events)
    assert {k: round(v, 6) for k, v in found.seconds.items()} == {
        # Until m1 lives; from what was heard of its end until m2 does, and from the emergency until
        # m3 does.
        "allocation": pytest.approx(10.0 + (80.0 - 68.5) + (138.0 - 130.5)),
        "preparation": pytest.approx(10.0 + 10.0 + 1.0 + 10.0 + 3.0),
        "compute": pytest.approx((111.0 - 3.5) * 100 / 107, rel=1e-6),
        "recompute": pytest.approx((111.0 - 3.5) * 7 / 107, rel=1e-6),
        "save": 3.5,
        "hang": 0.0,
    }
    assert sum(found.seconds.values()) == pytest.approx(174.0)
    assert sum(found.usd.values()) == pytest.approx(world.usd)
    # M1 is gone half a second before anybody knows
    trained_usd = (48.0 + 39.5 + 23.0) * 0.001 + 111.0 * 0.0001
    assert found.usd["compute"] + found.usd["recompute"] + found.usd["save"] == pytest.approx(
        trained_usd
    )
    assert found.usd["release"] == pytest.approx(3.0 * 0.0011)


def test_the_final_document_compares_with_on_demand() -> None:
    world, events = job()
    found = final_document("one", 0.0, world, events, {"g4dn.xlarge": 7.2})
    lived_s = 58.0 + 50.5 + 36.0
    assert found["cost_usd"] == pytest.approx(lived_s * 0.001 + 169 * 0.0001)
    # The anchor is anyway
    assert found["on_demand_cost_usd"] == pytest.approx(lived_s * 0.002 + 169 * 0.0001)
    compute_s = (48.0 + 39.5 + 23.0) * (111.0 - 3.5) / 111.0 * 100 / 107
    assert found["same_work_on_demand_usd"] == pytest.approx((compute_s + 10) * 0.002)
    assert sum(found["spent_usd"].values()) == pytest.approx(found["cost_usd"], abs=1e-6)
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["total_s"]) == 174.0


def test_each_machine_is_compared_with_its_own_type(capsys: pytest.CaptureFixture[str]) -> None:
    """A job that took the next-ranked type for one machine.

    Of a type without a price nothing is guessed.
    """
    world, events = job()
    other = Pool("g6.xlarge", "z", "spot", 3.6)
    world = replace(
        world, machines={**world.machines, "m2": replace(world.machines["m2"], pool=other)}
    )
    found = final_document("one", 0.0, world, events, {"g4dn.xlarge": 7.2, "g6.xlarge": 36.0})
    assert found["on_demand_cost_usd"] == pytest.approx(
        (58.0 + 36.0) * 0.002 + 50.5 * 0.01 + 169 * 0.0001
    )
    once = (111.0 - 3.5) / 111.0 * 100 / 107
    steps_usd = ((48.0 + 23.0) * 0.002 + 39.5 * 0.01) * once
    assert found["same_work_on_demand_usd"] == pytest.approx(steps_usd + 10 * 0.002)
    assert found["unpriced_types"] == []

    unknown = final_document("one", 0.0, world, events, {"g4dn.xlarge": 7.2})
    assert unknown["on_demand_cost_usd"] is unknown["same_work_on_demand_usd"] is None
    assert unknown["unpriced_types"] == ["g6.xlarge"]
    print_text("job", document=unknown, events=())
    out = capsys.readouterr().out
    assert (
        "nothing is compared with on-demand machines: the on-demand price of g6.xlarge is not known"
        in out
    )
    assert "was saved" not in out


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    world, events = job()
    document = final_document("one", 0.0, world, events, {"g4dn.xlarge": 7.2})
    seen = observed(0.0, world, events)
    assert seen is not None
    document["validation"] = validation(seen, world.terms, world.terms.policy, 3.6)
    print_text("job", document=document, events=())
    out = capsys.readouterr().out
    for said in (
        "the same steps on demand, without preemptions: $0.22, 27 % was saved",
        "done again",
        "no machine yet",
    ):
        assert said in out
    dear = document | {"cost_usd": 17.2 * document["same_work_on_demand_usd"]}
    print_text("job", document=dear, events=())
    assert "17.2 times as much was paid" in capsys.readouterr().out
    assert (
        "deepvm simulate, given the lifetimes and latencies that it had:" in out
        and "total time" in out
    )
    print_text("job", document={**document, "state": "failed"}, events=())
    out = capsys.readouterr().out
    assert "on demand" not in out and "was saved" not in out  # nothing came of it
    for steps, compared in ((9, False), (10, True)):
        print_text("job", document={**document, "state": "stopped", "steps": steps}, events=())
        assert ("was saved" in capsys.readouterr().out) == compared
    print_text("job", document={**document, "same_work_on_demand_usd": None}, events=())
    out = capsys.readouterr().out
    assert "the same machines on demand: $0.31, 47 % was saved" in out


def test_money_of_simulated_machines_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    world, events = job()
    document = final_document("one", 0.0, world, events, {"g4dn.xlarge": 7.2})
    real = replace(worlds.one_machine(), world=world, document=document)
    for cloud, simulated in (("local", True), ("netns", True), ("aws", False), ("old", False)):
        row = replace(real.row, spec={**real.row.spec, "cloud": cloud})
        status = replace(real, row=row)
        assert status.simulated is simulated
        print_text("job", document=document, events=(), status=status)
        out = capsys.readouterr().out
        page = RunPage(status).render()
        for text in (out, page):
            assert ("% would be saved" in text, "% was saved" in text) == (simulated, not simulated)
        assert ("simulated cost: $0.16; nothing was paid" in out) is simulated
        assert ("$0.16 paid" in out, "<dt>Paid" in page) == (not simulated, not simulated)
        assert ("<dt>Simulated cost" in page) is simulated


def test_a_job_without_a_controller_is_shown_with_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = worlds.one_machine(over=False)
    world = replace(found.world, job=Job.RUNNING)
    running = replace(found, world=world, document={**found.document, "state": "running"})
    for controller in (ALIVE, GONE):
        status = replace(running, controller=controller)
        print_text("job", document=status.document, events=(), status=status)
        line = capsys.readouterr().out.splitlines()[0]
        name = status.document["name"]
        expected = f"{name}: running"
        if controller == GONE:
            expected += f", no controller, no machine: deepvm jobs resume {name} continues it"
        assert line == expected


def test_what_the_simulator_is_given() -> None:
    world, events = job()
    seen = observed(0.0, world, events)
    assert seen is not None
    # 40 steps until 60.5 s less a stall; 37 from 90 s to 127.5 s less another; 23 from 148 s to 171
    # s
    assert seen.step_s == pytest.approx((40.5 - 0.5 + 37.5 - 0.5 + 23.0) / 100)
    assert seen.lost_steps == 7 and seen.preemptions == 2 and seen.total_s == 171.0
    assert seen.allocation_s == pytest.approx((10.0 + 12.0 + 11.0) / 3)  # detection included
    assert seen.preparation_s == pytest.approx((10.0 + 10.0 + 10.0) / 3)
    assert seen.lives_s == (68.0, 72.0, float("inf")) and seen.graces_s == (0.0, 13.0, 0.0)
    assert seen.cost_usd == pytest.approx((58.0 + 50.5 + 33.0) * 0.001)
    assert sum(seen.parts_s.values()) == pytest.approx(seen.total_s)


def test_the_simulator_says_what_happened() -> None:
    """With a policy of whole steps, which ignores notices: m2 goes after 77 steps, and 17 are done
    again.
    """
    world, events = job()
    m2 = replace(world.machines["m2"], noticed_s=None, taken_s=None, ended_s=128.0, end_reason=LOST)
    m3 = replace(world.machines["m3"], requested_s=128.5, launched_s=139.0, ended_s=194.0)
    world = replace(world, machines={**world.machines, "m2": m2, "m3": m3}, lost_steps=24)
    events = [
        *(e for e in events[:6]),
        event(149.0, "started", "running", id="m3", generation=3, version=60),
        event(
            170.0,
            "safe",
            "running",
            generation=3,
            version=80,
            reason="insurance",
            stall_s=0.5,
            took_s=1.0,
        ),
        event(190.0, "ended", "done", id="m3", generation=3, code=0, step=100),
    ]
    seen = observed(0.0, world, events)
    assert seen is not None and seen.lost_steps == 7 + 17
    found = validation(seen, world.terms, parse_policy("static:20"), 3.6)
    assert (
        abs(found["deviation"]["total_s"]) < 0.01 and abs(found["deviation"]["cost_usd"]) < 0.01
    ), found
    assert found["forecast"]["preemptions"] == 2 and abs(found["forecast"]["lost_steps"] - 24) <= 1
    other = validation(
        replace(seen, lives_s=(68.0, float("inf"))), world.terms, parse_policy("static:20"), 3.6
    )
    assert other["deviation"]["total_s"] < -0.1  # lives that were not those


def test_nothing_is_compared_without_an_end() -> None:
    world, events = job()
    assert observed(0.0, world, events[:-1]) is None


def test_a_noticed_machine_goes_with_one_that_is_lost() -> None:
    """As in a job of two machines: both are noticed, and when the first is gone the replacements of
    both take over.
    """
    machines = [
        machine("m1", 0.0, 10.0, 60.0, PREEMPTED, noticed_s=30.0, taken_s=60.0),
        machine("m2", 0.0, 10.0, 61.0, PREEMPTED, noticed_s=40.0, taken_s=75.0),
        machine("m3", 30.0, 40.0, 130.0, RELEASED),
        machine("m4", 40.0, 50.0, 130.0, RELEASED),
    ]
    events = [
        event(20.0, "started", "running", id="m1", generation=1, version=0),
        event(20.0, "started", "running", id="m2", generation=1),
        event(
            51.0,
            "safe",
            "running",
            generation=1,
            version=30,
            reason="insurance",
            stall_s=0.5,
            took_s=1.0,
        ),
        event(60.5, "machine", "forming", id="m1", why=PREEMPTED, generation=1),
        event(65.0, "started", "running", id="m3", generation=2, version=30),
        event(65.0, "started", "running", id="m4", generation=2),
        event(125.0, "ended", "done", id="m3", generation=2, code=0, step=90),
    ]
    world = replace(
        job()[0],
        terms=JobLimits(2, 2, mttp_s=60.0),
        machines={m.id: m for m in machines},
        generation=2,
    )
    seen = observed(0.0, replace(world, reached=90), events)
    assert seen is not None and seen.preemptions == 2
    assert seen.lives_s[:2] == (60.0, 75.0) and seen.graces_s[:2] == (30.0, 35.0)
    found = validation(seen, world.terms, parse_policy("static:30"), 3.6)
    assert abs(found["deviation"]["total_s"]) < 0.07, found
