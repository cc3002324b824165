"""Machines that wait are paid for: each wait has an end, and none is counted that nobody could have
ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.hangs import adopted, forgiven, waited_s
from deepvm.jobs.decisions.reconcile import orders_of, react
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool, Reason, Role

SPOT, ANCHOR = Pool("a", "z", "spot", 3.6), Pool("m", "z", "on-demand", 1.0)
EACH_S = 10.0


class Cloud:
    """Grants what it likes.

    Its machines train as they are told, and save if the bucket has room.
    """

    def __init__(
        self, terms: JobLimits, grants: Callable[[JobState, str], bool], *, has_room: bool = True
    ) -> None:
        self.world, self.now_s = JobState(terms, 0.0, pools=(SPOT,)), 0.0
        self.grants, self.has_room = grants, has_room
        self.acts: Sequence[d.Act] = ()
        self.alive: dict[str, float] = {}
        self.events: list[d.Event] = []
        self.trained_s = self.paid_s = 0.0

    def run(
        self, until_s: float, events: Callable[[Cloud], Sequence[d.Event]] = lambda cloud: ()
    ) -> JobState:
        while self.now_s < until_s and not self.world.job.over:
            for act in self.acts:
                if isinstance(act, d.Release):
                    self.alive.pop(act.id, None)
                elif self.grants(self.world, act.id):
                    self.alive[act.id] = self.now_s
                else:
                    self.events.append(d.Refused(act.id, "no capacity"))
            self.now_s += EACH_S
            self.events += events(self)
            gone = {m.id for m in self.world.machines.values() if m.state.costs} - self.alive.keys()
            self.events.append(
                d.InstancesListed(dict(self.alive), {m: (0.0, self.now_s) for m in gone})
            )
            for machine in self.alive:
                self.events += self.said(machine)
            self.world, self.acts = react(self.world, self.events, self.now_s)
            self.events = []
            self.paid_s += EACH_S * len(self.alive)
        return self.world

    def said(self, machine: str) -> Sequence[d.Event]:
        order, world = orders_of(self.world, machine), self.world
        if not order.generation:
            return [d.Heartbeat(machine, warm=True)]
        self.trained_s += EACH_S
        step = int(self.now_s)
        said: list[d.Event] = [d.Heartbeat(machine, order.generation, step, warm=True, step_s=1.0)]
        if machine not in world.started:
            said.append(d.Started(machine, order.generation, world.version))
        if order.save is not None and machine == order.members[0]:
            reason = order.save.reason
            said.append(
                d.Safe(order.generation, step, reason)
                if self.has_room
                else d.Unsaved(order.generation, "the bucket is full", reason)
            )
        return said


def living(world: JobState) -> int:
    return sum(
        m.state in (Machine.BOOTING, Machine.WARMING, Machine.MEMBER)
        for m in world.machines.values()
    )


# --- a cluster that never becomes whole -----------------------------------------------------------


def test_a_cluster_that_is_never_whole_is_not_paid_for_without_end() -> None:
    cloud = Cloud(JobLimits(4, 4), lambda world, machine: living(world) < 3)
    cloud.grants = lambda world, machine: len(cloud.alive) < 3
    cloud.run(590.0)
    assert len(cloud.alive) == 3, "the fourth may come"
    cloud.run(700.0)
    assert not cloud.alive
    world = cloud.run(20_000.0)
    assert world.job is Job.STOPPED and world.ending == "no machine is available"
    assert cloud.now_s < 2 * 3600 and cloud.paid_s < 3 * 3600
    assert len(world.machines) < 50


def test_a_cluster_that_is_whole_late_trains() -> None:
    cloud = Cloud(JobLimits(4, 4), lambda world, machine: True)
    cloud.grants = lambda world, machine: cloud.now_s > 2000.0 or len(cloud.alive) < 3
    world = cloud.run(4000.0)
    assert world.formed and world.job is Job.RUNNING and waited_s(world) == 0.0


def test_an_anchor_that_is_not_to_be_had() -> None:
    cloud = Cloud(
        JobLimits(2, 2, anchor=(ANCHOR,), anchors=1),
        lambda world, machine: world.machines[machine].role is Role.TRAINER,
    )
    world = cloud.run(20_000.0)
    assert world.job is Job.STOPPED and world.ending == "no machine is available"
    assert cloud.now_s < 2 * 3600 and cloud.paid_s < 2 * 3600


def test_a_pool_that_always_refuses() -> None:
    cloud = Cloud(JobLimits(1, 1), lambda world, machine: False)
    world = cloud.run(20_000.0)
    assert world.job is Job.STOPPED and 3600 <= cloud.now_s < 3700 and not cloud.paid_s


def test_after_a_loss_the_others_wait_as_long() -> None:
    cloud = Cloud(JobLimits(2, 2), lambda world, machine: True)
    cloud.run(1000.0)
    assert cloud.world.job is Job.RUNNING
    cloud.alive.pop("m1")
    cloud.grants = lambda world, machine: False
    world = cloud.run(1590.0)
    assert not world.formed and set(cloud.alive) == {"m2"}
    cloud.run(1700.0)
    assert not cloud.alive
    assert cloud.run(9000.0).job is Job.STOPPED and 4600 <= cloud.now_s < 4700


def test_machines_that_prepare_for_hours_are_waited_for() -> None:
    """One fetches data for three hours; then it is lost, and its replacement does the same."""
    cloud = Cloud(JobLimits(2, 2), lambda world, machine: True)

    def prepares(cloud: Cloud) -> Sequence[d.Event]:
        late = [m for m in cloud.alive if m != "m1"]
        return [d.Heartbeat(m, preparing=f"fetches data: {cloud.now_s:.0f} MB") for m in late]

    said = cloud.said
    cloud.said = lambda machine: said(machine) if machine == "m1" else ()  # type: ignore[method-assign]
    cloud.run(3 * 3600.0, prepares)
    cloud.alive.pop("m2")
    world = cloud.run(6 * 3600.0, prepares)
    assert (
        not world.job.over
        and world.machines["m1"].state is Machine.MEMBER
        and set(cloud.alive) == {"m1", "m3"}
    )
    cloud.said = said  # type: ignore[method-assign]
    assert cloud.run(6 * 3600 + 60.0).job is Job.RUNNING


@pytest.mark.slow
def test_machines_that_are_taken_back_while_they_prepare_again_and_again() -> None:
    cloud = Cloud(JobLimits(2, 2), lambda world, machine: True)

    def prepares(cloud: Cloud) -> Sequence[d.Event]:
        late = [m for m in cloud.alive if m != "m1"]
        for m in late:
            if cloud.now_s - cloud.alive[m] >= 120.0:
                cloud.alive.pop(m)
                return [d.Noticed(m, cloud.now_s)]
        return [d.Heartbeat(m, preparing=f"fetches data: {cloud.now_s:.0f} MB") for m in late]

    said = cloud.said
    cloud.said = lambda machine: said(machine) if machine == "m1" else ()  # type: ignore[method-assign]
    assert cloud.run(40 * 3600.0, prepares).job is Job.STOPPED


# --- newcomers that cannot join -------------------------------------------------------------------


def test_a_newcomer_that_cannot_join_is_let_go() -> None:
    cloud = Cloud(JobLimits(1, 2), lambda world, machine: machine == "m1", has_room=False)
    cloud.run(100.0)
    assert cloud.world.members == ("m1",)
    cloud.grants = lambda world, machine: True
    world = cloud.run(10 * 3600.0)
    assert world.generation == 1 and world.job is Job.RUNNING and world.version == 0
    assert cloud.paid_s - 10 * 3600.0 < 10 * 700.0, "ten minutes an hour at most"
    cloud.has_room = True
    world = cloud.run(12 * 3600.0)
    assert len(world.members) == 2 and world.version > 0


# --- nobody was there -----------------------------------------------------------------------------


def booting() -> JobState:
    """A machine boots when the controller is killed, at 100 s."""
    world, _ = react(JobState(JobLimits(1, 1), 0.0, pools=(SPOT,)), d.Tick(), 0.0)
    return react(world, d.Launched("m1", 1.0), 100.0)[0]


def test_machines_that_come_are_adopted_by_the_next_controller() -> None:
    world = adopted(booting(), 5000.0)
    world, acts = react(world, d.InstancesListed({"m1": 1.0}), 5000.0)
    assert not acts and world.machines["m1"].state is Machine.BOOTING
    world, acts = react(world, d.Tick(), 5899.0)
    assert not acts
    _, acts = react(world, d.Tick(), 5900.0)
    assert acts[0] == d.Release("m1"), "from then on it has its time"


def test_the_next_controller_waits_anew() -> None:
    world, _ = react(JobState(JobLimits(1, 1), 0.0, pools=(SPOT,)), d.Tick(), 0.0)
    world, _ = react(world, d.Refused("m1", "no capacity"), 1.0)
    assert waited_s(react(world, d.Tick(), 20.0)[0]) == 20.0
    world, acts = react(adopted(world, 50_000.0), d.Tick(), 50_000.0)
    assert not world.ending and acts == (d.Request("m2"),)


def test_a_stall_counts_for_nothing() -> None:
    world = forgiven(booting(), 4000.0)
    world, acts = react(world, d.Tick(), 4100.0)
    assert not acts and not world.ending and waited_s(world) == 100.0


@pytest.mark.parametrize("warm", [False, True])
def test_a_machine_that_is_heard_again_has_its_time(warm: bool) -> None:
    """After hours of training it was silent, and its next trainers still load."""
    cloud = Cloud(JobLimits(1, 1), lambda world, machine: True)
    world = cloud.run(5000.0)
    world, _ = react(world, d.Silent("m1"), 5001.0)
    assert world.machines["m1"].state is Machine.SUSPECT
    world, acts = react(world, d.Heartbeat("m1", warm=warm), 5010.0)
    assert not acts and world.machines["m1"].state is (Machine.MEMBER if warm else Machine.WARMING)


def test_a_newcomer_waits_for_one_version_only() -> None:
    cloud = Cloud(JobLimits(1, 2), lambda world, machine: True)
    assert len(cloud.run(300.0).members) == 2
    assert cloud.world.saves.get(Reason.RESIZE, 0) <= 1
