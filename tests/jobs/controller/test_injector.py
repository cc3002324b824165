"""Which machines are taken back on purpose, by one controller and by those after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from deepvm.jobs.controller import injector as injector_module
from deepvm.jobs.controller.injector import INJECTED, STRUCK, InjectedFault, Injector
from deepvm.jobs.decisions.injection import Injection, planned_preemption
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.history import EventRow

POOL = Pool("g4dn.xlarge", "here", "spot", 0.3)
ALWAYS = Injection(mttp_s=1e-9, seed=3, grace_s=5.0)


def machine(number: int, **more: Any) -> MachineRecord:
    return MachineRecord(
        f"m{number}", POOL, 0.0, **{"state": Machine.MEMBER, "trained_s": 10.0, **more}
    )


def world(*machines: MachineRecord, **more: Any) -> JobState:
    return JobState(
        JobLimits(1, 9), 100.0, machines={m.id: m for m in machines}, **{"job": Job.RUNNING, **more}
    )


def struck(*strikes: InjectedFault) -> list[EventRow]:
    return [
        EventRow(50.0, STRUCK, "running", {"id": s.id, "blow": s.blow.value, "grace_s": s.grace_s})
        for s in strikes
    ]


def due(injector: Injector, found: JobState, now_s: float = 100.0) -> list[InjectedFault]:
    return list(injector.due(found, now_s))


def after(events: Sequence[EventRow], injection: Injection | None = ALWAYS) -> Injector:
    """That of a controller which goes on after these events."""
    return Injector(injection, events)


def test_each_machine_is_struck_once_after_its_life() -> None:
    injection, found = Injection(30.0, seed=1, grace_s=5.0), world(machine(1), machine(2))
    injector = after([], injection)
    ends = {
        f"m{n}": 10.0 + fate.life_s for n in (1, 2) if (fate := planned_preemption(injection, n))
    }
    first, last = sorted(ends.values())
    assert due(injector, found, first - 1e-3) == []
    assert [ends[s.id] for s in due(injector, found, first + 1e-3)] == [first]
    assert [ends[s.id] for s in due(injector, found, last + 1e-3)] == [last]
    assert due(injector, found, 1e9) == []


def test_who_does_not_train_is_not_struck() -> None:
    for one in [
        machine(1, state=Machine.NOTICED),
        machine(1, state=Machine.RELEASING),
        machine(1, trained_s=None),
    ]:
        assert due(after([]), world(one)) == []


def test_nothing_is_struck_of_a_job_that_is_over_or_on_demand() -> None:
    assert due(after([]), world(machine(1), job=Job.DONE)) == []
    assert due(after([]), replace(world(machine(1)), terms=JobLimits(1, 1, bought=(POOL,)))) == []


def test_no_more_than_the_count_are_struck_whoever_controls() -> None:
    two = replace(ALWAYS, count=2)
    all_of_them = world(*map(machine, (1, 2, 3)))
    strikes = due(after([], two), all_of_them)
    assert [s.id for s in strikes] == ["m1", "m2"]
    # The next controller does not know whether the cloud has heard of them: it says so again, and
    # strikes no other.
    again = after(struck(*strikes), two)
    assert due(again, all_of_them) == [replace(s, new=False) for s in strikes]
    assert due(again, all_of_them) == []
    # One was noticed and is gone, of the other nothing has come yet.
    gone = world(
        machine(1, state=Machine.ENDED, noticed_s=60.0, end_reason="preempted"),
        machine(2),
        machine(3),
    )
    assert due(after(struck(*strikes), two), gone) == [replace(strikes[1], new=False)]
    # One was taken back, one was released before it could be: another is struck in its place.
    released = world(
        machine(1, state=Machine.ENDED, end_reason="lost"),
        machine(2, state=Machine.ENDED, end_reason="released"),
        machine(3),
    )
    assert [(s.id, s.new) for s in due(after(struck(*strikes), two), released)] == [("m3", True)]


def test_what_was_ordered_while_the_job_ran_is_known_after_a_resume() -> None:
    ordered = Injection.of({"mttp": 1e-9, "seed": 3, "count": 1, "grace": 7.0}, done=2)
    assert ordered.count == 3
    row = EventRow(
        90.0, INJECTED, "running", {**asdict(ordered), "generation": 1, "steps": 5, "usd": 0.1}
    )
    earlier = [machine(n, state=Machine.ENDED, end_reason="lost", ended_s=80.0) for n in (1, 2)]
    found = world(*earlier, machine(3), machine(4))
    assert due(after([], None), found) == []
    assert due(after([row], None), found) == [InjectedFault("m3", grace_s=7.0)]
    # It counts instead of the job file's
    assert due(after([row], ALWAYS), found) == [InjectedFault("m3", grace_s=7.0)]
    assert due(after([row], ALWAYS), found, 90.0) == []  # lives begin with the order


def test_a_strike_that_could_not_be_made_comes_again() -> None:
    injector = after([], replace(ALWAYS, count=1))
    (strike,) = due(injector, world(machine(1)))
    injector.put_off(strike)
    assert due(injector, world(machine(1))) == [strike]
    later = after(struck(strike), replace(ALWAYS, count=1))
    (again,) = due(later, world(machine(1)))
    later.put_off(again)
    assert due(later, world(machine(1))) == [again] == [replace(strike, new=False)]


def test_machines_that_the_cloud_refused_have_no_lives() -> None:
    """Listed lives are those of machines that there were."""
    listed = Injection(lives_s=(10.0, 1e9), grace_s=5.0)
    refused = [machine(n, state=Machine.FAILED, trained_s=None, ended_s=None) for n in (1, 2)]
    (strike,) = due(after([], listed), world(*refused, machine(3, launched_s=1.0)))
    assert strike.id == "m3"
    # It has had the first one
    lost = machine(1, state=Machine.ENDED, launched_s=1.0, ended_s=50.0, end_reason="lost")
    assert due(after([], listed), world(lost, machine(3, launched_s=1.0))) == []


@pytest.mark.parametrize("state", [Machine.INTENT, Machine.RELEASING])
def test_lives_do_not_change_where_the_cloud_refuses_late(state: Machine) -> None:
    """Or where nobody knows for a while whether it has made a machine: those behind it wait for
    their lives.
    """
    listed = Injection(lives_s=(1e9, 1e9, 20.0), grace_s=5.0)
    injector, second = after([], listed), machine(2, state=state, trained_s=None)
    first, third, fourth = (machine(n, launched_s=1.0) for n in (1, 3, 4))
    assert due(injector, world(first, second, third, fourth)) == []
    refused = replace(second, state=Machine.FAILED if state is Machine.INTENT else Machine.ENDED)
    assert [s.id for s in due(injector, world(first, refused, third, fourth))] == ["m4"]
    made = replace(second, state=Machine.BOOTING, launched_s=90.0)
    assert [s.id for s in due(after([], listed), world(first, made, third, fourth))] == ["m3"]


def test_of_many_machines_each_is_looked_at_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a thousand of which most were struck took as long as two heartbeats."""
    looks = list[str]()
    pending = injector_module._is_pending

    def counted(found: JobState, one: str) -> bool:
        looks.append(one)
        return pending(found, one)

    monkeypatch.setattr(injector_module, "_is_pending", counted)
    machines = [machine(n, launched_s=1.0) for n in range(1, 101)]
    injector = after([], replace(ALWAYS, count=90))
    assert len(due(injector, world(*machines))) == 90
    assert len(due(injector, world(*machines))) == 0
    assert len(looks) <= 2 * len(machines)
