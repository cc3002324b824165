"""A version that is asked for and does not come: what waits for it goes on, and nothing counts as
saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.jobs.controllers import Peer, running
from support.jobs.runs import Home, until

from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.jobs.controller.changes import rows_of
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.apply_events import why_not_saved
from deepvm.jobs.decisions.reconcile import orders_of, react, with_generation_broken
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import FailedSaves, JobLimits, JobState, Pool, Reason, Role
from deepvm.jobs.decisions.world_document import from_document, to_document
from deepvm.jobs.history.job_report import final_document
from deepvm.jobs.wire import USER
from deepvm.reports.jobs.live import closing_lines, event_line, live_lines, words

SPOT, ANCHOR = Pool("a", "z", "spot", 3.6), Pool("m", "z", "on-demand", 1.0)


def after(world: JobState, events: Sequence[d.Event], now_s: float) -> JobState:
    return react(world, events, now_s)[0]


def trains(terms: JobLimits, steps: int = 500) -> JobState:
    """One machine has done so many steps by the second 600, without a version."""
    world = after(JobState(terms, 0.0, pools=(SPOT,)), [d.Tick()], 0.0)
    world = after(world, [d.Launched("m1", 1.0), d.Heartbeat("m1", warm=True)], 5.0)
    world = after(world, [d.Heartbeat("m1", warm=True)], 16.0)
    world = after(world, [d.Started("m1", 1, 0)], 17.0)
    return after(world, [d.Heartbeat("m1", 1, steps, warm=True, step_s=1.0)], 600.0)


def wish(world: JobState) -> Reason | None:
    """Why the first machine is ordered to save."""
    save = orders_of(world, "m1").save
    return None if save is None else save.reason


def unsaved(reason: Reason) -> d.Unsaved:
    return d.Unsaved(1, "the bucket is full", reason)


def grows() -> JobState:
    """A second machine has come, and the first saves before it may join."""
    world = after(
        trains(JobLimits(1, 2)), [d.Launched("m2", 590.0), d.Heartbeat("m2", warm=True)], 601.0
    )
    assert wish(world) is Reason.RESIZE and world.job is Job.SAVING
    return world


def test_where_a_rank_has_trained_to_the_end_nobody_waits_for_its_part() -> None:
    """Nor for that of one that joins: ranks without a common step may be far from each other."""
    world = after(JobState(JobLimits(2, 3), 0.0, pools=(SPOT,)), [d.Tick()], 0.0)
    for name in ("m1", "m2"):
        world = after(world, [d.Launched(name, 1.0), d.Heartbeat(name, warm=True)], 5.0)
    both = [d.Heartbeat(name, warm=True) for name in ("m1", "m2")]
    world = after(world, both, 100.0)  # the third does not come for long
    world = after(world, [d.Started("m1", 1, 0), d.Started("m2", 1), *both], 101.0)
    assert world.members == ("m1", "m2")
    beats = [d.Heartbeat("m1", 1, 500, warm=True, step_s=1.0), d.Heartbeat("m2", 1, 900, warm=True)]
    world = after(world, [*beats, d.Launched("m3", 590.0), d.Heartbeat("m3", warm=True)], 601.0)
    assert wish(world) is Reason.RESIZE
    world = after(world, [d.Ended("m2", 1, 0, 900)], 602.0)
    assert world.save is None and (world.job, world.generation) == (Job.RUNNING, 1)
    assert (
        wish(
            after(
                world, [d.Heartbeat("m1", 1, 600, warm=True), d.Heartbeat("m3", warm=True)], 700.0
            )
        )
        is None
    )
    assert after(world, [d.Ended("m1", 1, 0, 900)], 700.0).job is Job.DONE


def test_where_a_rank_has_trained_to_the_end_the_others_go_on_at_a_notice() -> None:
    """They would hold until the machine goes, behind a version that lacks a part.

    They may be done before.
    """
    world = after(JobState(JobLimits(2, 2), 0.0, pools=(SPOT,)), [d.Tick()], 0.0)
    world = after(
        world,
        [e for m in ("m1", "m2") for e in (d.Launched(m, 1.0), d.Heartbeat(m, warm=True))],
        5.0,
    )
    both = [d.Heartbeat(m, 1, 40, warm=True) for m in ("m1", "m2")]
    world = after(world, [d.Heartbeat("m1", warm=True), d.Heartbeat("m2", warm=True)], 16.0)
    world = after(world, [d.Started("m1", 1, 0), d.Started("m2", 1), *both], 17.0)
    held = after(world, [d.Noticed("m1", 137.0)], 18.0)
    assert wish(held) is Reason.EMERGENCY
    assert wish(after(held, [d.Ended("m2", 1, 0, 41)], 19.0)) is Reason.EMERGENCY, (
        "it may have saved its part first"
    )
    world = after(world, [d.Ended("m2", 1, 0, 40), d.Noticed("m1", 137.0)], 18.0)
    assert wish(world) is None and world.formed
    world = after(
        world, [d.Heartbeat("m1", 1, 90, warm=True), d.Heartbeat("m2", 1, 40, warm=True)], 30.0
    )
    assert wish(world) is None and after(world, [d.Ended("m1", 1, 0, 91)], 31.0).job is Job.DONE


def test_where_a_rank_has_trained_to_the_end_nobody_is_rented_who_could_not_join() -> None:
    terms = JobLimits(2, 3, anchor=(ANCHOR,), anchors=1)
    world = after(JobState(terms, 0.0, pools=(SPOT,)), [d.Tick()], 0.0)
    (keeper,) = (m.id for m in world.of(Role.ANCHOR, *Machine))
    first, second, _ = (m.id for m in world.of(Role.TRAINER, *Machine))
    world = after(
        world,
        [
            e
            for m in (first, second, keeper)
            for e in (d.Launched(m, 1.0), d.Heartbeat(m, warm=True))
        ],
        5.0,
    )
    world = after(world, [d.Heartbeat(m, warm=True) for m in (first, second, keeper)], 16.0)
    assert world.members == (first, second) and world.anchors == (keeper,)
    world = after(
        world, [d.Started(first, 1, 0), d.Started(second, 1), d.Ended(second, 1, 0, 900)], 17.0
    )
    world, acts = react(
        world, d.InstancesListed({first: 1.0, second: 1.0}, {keeper: (1.0, 20.0)}), 20.0
    )
    asked = [act for act in acts if isinstance(act, d.Request)]
    now_s = 20.0
    while now_s < 9000.0:
        now_s += 10.0
        world, acts = react(
            world, [d.Heartbeat(m, 1, int(now_s), warm=True) for m in (first, second)], now_s
        )
        asked += [act for act in acts if isinstance(act, d.Request)]
    assert not asked and world.generation == 1 and world.job is Job.RUNNING
    world, acts = react(
        world,
        [d.Heartbeat(second), d.InstancesListed({second: 1.0}, {first: (1.0, 9001.0)})],
        9001.0,
    )
    assert sum(isinstance(act, d.Request) for act in acts) == 3, (
        "the generation is broken: all are of use"
    )


def test_without_a_version_nobody_joins_and_training_goes_on() -> None:
    world = after(grows(), [unsaved(Reason.RESIZE)], 602.0)
    assert world.generation == 1 and world.version == 0 and world.job is Job.RUNNING
    assert orders_of(world, "m1").generation == 1 and wish(world) is None
    beats = [d.Heartbeat("m1", 1, 560, warm=True), d.Heartbeat("m2", warm=True)]
    assert wish(after(world, beats, 655.0)) is None, (
        "a bucket that is full is not asked at each step"
    )
    world = after(world, beats, 670.0)
    assert wish(world) is Reason.RESIZE and world.generation == 1
    world = after(world, [d.Safe(1, 571, Reason.RESIZE)], 671.0)
    assert world.generation == 2 and world.members == ("m1", "m2") and world.version == 571


def test_a_version_that_never_comes_is_one_that_fails() -> None:
    world, second = grows(), 601.0
    while second < 1400.0:
        second += 5.0
        world = after(
            world, [d.Heartbeat("m1", 1, 500, warm=True), d.Heartbeat("m2", warm=True)], second
        )
        assert world.generation == 1
    assert world.job is Job.RUNNING and world.machines["m2"].state is Machine.RELEASING, (
        "it has waited long enough"
    )


def test_training_goes_on_where_the_newcomer_is_gone_before_the_version_is_safe() -> None:
    world = after(grows(), [d.InstancesListed({"m1": 1.0}, {"m2": (590.0, 602.0)})], 602.0)
    world = after(world, [d.Safe(1, 501, Reason.RESIZE)], 603.0)
    assert world.generation == 1 and world.job is Job.RUNNING
    third = max(world.machines)
    world = after(
        world, [d.Heartbeat("m1", 1, 510, warm=True), d.Heartbeat(third, warm=True)], 612.0
    )
    assert wish(world) is Reason.RESIZE, "the next newcomer joins"


def test_an_emergency_save_is_asked_for_again_while_it_fits() -> None:
    world = after(trains(JobLimits(1, 1)), [d.Noticed("m1", 720.0)], 600.0)
    world, acts = react(world, unsaved(Reason.EMERGENCY), 603.0)
    assert d.Release("m1") not in acts and world.machines["m1"].state is Machine.NOTICED
    # Trainers go on: they save after a step
    assert wish(world) is None and orders_of(world, "m1").generation == 1
    world = after(world, [d.Tick()], 606.0)
    assert wish(world) is Reason.EMERGENCY
    world, acts = react(world, d.Safe(1, 504, Reason.EMERGENCY), 608.0)
    assert d.Release("m1") in acts and world.version == 504


def test_no_emergency_save_is_asked_for_that_does_not_fit() -> None:
    world = after(trains(JobLimits(1, 1)), [d.Noticed("m1", 720.0)], 600.0)
    world = after(world, [unsaved(Reason.EMERGENCY)], 719.5)
    world, acts = react(world, d.Tick(), 719.9)
    assert wish(world) is None and not acts


def test_the_last_version_is_asked_for_again() -> None:
    world = after(trains(JobLimits(1, 1)), [d.Stop("the user")], 600.0)
    world = after(world, [unsaved(Reason.STOP)], 601.0)
    assert world.job is Job.RUNNING and wish(world) is None
    world = after(world, [d.Tick()], 604.0)
    assert wish(world) is Reason.STOP
    world = after(world, [d.Safe(1, 504, Reason.STOP)], 605.0)
    assert world.job is Job.STOPPED and world.version == 504


def test_the_last_version_is_not_waited_for_without_end() -> None:
    world, second = after(trains(JobLimits(1, 1)), [d.Stop("the user")], 600.0), 600.0
    while not world.job.over:
        second += 1.0
        known = unsaved(Reason.STOP) if wish(world) is not None else d.Tick()
        world = after(world, [known, d.Heartbeat("m1", 1, 500, warm=True)], second)
    assert world.job is Job.STOPPED and second == 1200.0  # save_s


@pytest.mark.parametrize("version", [0, 40])
def test_a_stop_while_a_generation_loads_waits_no_longer_than_it_has_loaded(version: int) -> None:
    """Nothing is in the version that it could save.

    A script that reports no steps may have one all the same.
    """
    world = after(JobState(JobLimits(1, 1), 0.0, pools=(SPOT,)), [d.Tick()], 0.0)
    world = after(world, [d.Launched("m1", 1.0), d.Heartbeat("m1", warm=True)], 5.0)
    world = replace(world, version=version, lasts=version)
    world = after(
        world, [d.Started("m1", 1, version), d.Heartbeat("m1", 1, warm=True, idle_s=5.0)], 10.0
    )
    world = after(world, [d.Stop("the user"), d.Heartbeat("m1", 1, warm=True, idle_s=10.0)], 15.0)
    assert wish(world) is Reason.STOP
    stepped = after(
        world, [d.Heartbeat("m1", 1, version + 1, warm=True, idle_s=0.0, longest_s=13.0)], 18.0
    )
    assert wish(after(stepped, [d.Tick()], 30.0)) is Reason.STOP, (
        "a step that comes meanwhile is not lost"
    )
    unsafe = replace(world, version=version + 1)  # the bucket has not what the anchor has
    assert not after(unsafe, [d.Heartbeat("m1", 1, warm=True, idle_s=20.0)], 25.0).job.over
    assert after(world, [d.Heartbeat("m1", 1, warm=True, idle_s=19.9)], 24.9).job is Job.SAVING
    assert after(world, [d.Heartbeat("m1", 1, warm=True, idle_s=20.0)], 25.0).job is Job.STOPPED


def test_a_script_that_reports_nothing_is_not_waited_for_as_long_as_it_has_run() -> None:
    """It saves nothing through deepvm, as far as is known, and its machines are paid for."""
    world = after(JobState(JobLimits(1, 1), 0.0, pools=(SPOT,)), [d.Tick()], 0.0)
    world = after(world, [d.Launched("m1", 1.0), d.Heartbeat("m1", warm=True)], 5.0)
    world = after(world, [d.Started("m1", 1, None), d.Heartbeat("m1", 1, warm=True)], 10.0)
    world = after(world, [d.Stop("the user"), d.Heartbeat("m1", 1, warm=True)], 500.0)
    assert after(world, [d.Heartbeat("m1", 1, warm=True)], 519.9).job is Job.SAVING
    assert after(world, [d.Heartbeat("m1", 1, warm=True)], 520.0).job is Job.STOPPED


def test_another_save_that_fails_is_not_the_one_that_is_waited_for() -> None:
    for reason in [r for r in Reason if r is not Reason.RESIZE]:
        world = after(grows(), [unsaved(reason)], 602.0)
        assert wish(world) is Reason.RESIZE and world.job is Job.SAVING


def test_a_save_of_the_user_that_fails_makes_room_for_the_next() -> None:
    world = after(trains(JobLimits(1, 1)), [d.SaveNow()], 601.0)
    world = after(world, [unsaved(Reason.PERIODIC)], 602.0)
    assert wish(world) is None
    assert wish(after(world, [d.SaveNow()], 603.0)) is Reason.PERIODIC


# --- what ends the job while a machine is taken back ----------------------------------------------


@pytest.mark.parametrize(("policy", "left_s"), [("static:1000", 100.0), ("adaptive", 0.9)])
def test_a_job_that_stops_while_a_machine_is_taken_back_saves(policy: str, left_s: float) -> None:
    world = after(
        trains(JobLimits(1, 1, policy=parse_policy(policy))),
        [d.Noticed("m1", 600.0 + left_s)],
        600.0,
    )
    assert wish(world) is None, "the policy does not act on it, or a save does not fit"
    world = after(world, [d.Stop("the user")], 600.1)
    assert (
        wish(world) is Reason.STOP
        and world.save is not None
        and world.save.limit_s <= 600.0 + left_s
    )
    world = after(world, [d.Safe(1, 501, Reason.STOP)], 600.5)
    assert world.job is Job.STOPPED and world.version == 501


# --- the last moment at which a version still fits ------------------------------------------------


def stops_at(world: JobState, *, most_s: float) -> tuple[float, JobState]:
    """From when on it is to stop, while training goes on."""
    second = 600.0
    while not world.ending and second < most_s:
        second += 1.0
        world = after(
            world, [d.Heartbeat("m1", 1, int(second) - 100, warm=True, step_s=1.0)], second
        )
    return second, world


def test_it_stops_while_a_version_still_fits() -> None:
    for saved in [False, True]:
        for limit in [{"end_s": 1000.0}, {"total_usd": 0.999}]:
            world = trains(JobLimits(1, 1, version_s=40.0, **limit))  # type: ignore[arg-type]
            if saved:
                world = after(world, [d.Safe(1, 500, Reason.INSURANCE, 0.1, 20.0)], 600.0)
            second, world = stops_at(world, most_s=1000.0)
            took_s = 20.0 if saved else 40.0  # as measured, else as is expected
            assert 1000.0 - 2 * took_s <= second <= 1000.0 - took_s - 1.0
            assert wish(world) is Reason.STOP and world.save is not None
            assert second + took_s + 1.0 <= world.save.limit_s <= 1001.0
            late = after(world, [d.Heartbeat("m1", 1, 900, warm=True)], 1001.0)
            assert late.job is Job.STOPPED, "what is left is the limit"


@pytest.mark.parametrize("resumed", [False, True])
def test_a_deadline_without_time_to_start_a_machine_is_not_said_to_have_come(resumed: bool) -> None:
    terms, start_s = JobLimits(1, 1, end_s=1.0), 0.0
    world = JobState(terms, 0.0, pools=(SPOT,))
    if resumed:
        world, start_s = trains(JobLimits(1, 1)), 700.0
        world = after(world, [d.InstancesListed({}, {"m1": (1.0, 650.0)})], 650.0)
        earlier = {"m1": world.machines["m1"]}
        world = replace(
            world, terms=replace(terms, begun_s=start_s, end_s=start_s + 1.0), machines=earlier
        )
    world, acts = react(world, d.Tick(), start_s)
    assert (
        world.ending == "the deadline leaves no time to start a machine (none was rented)"
        and not acts
    )
    document = {**final_document("job", 0.0, world, [], {}), "state": "stopped"}
    (advice,) = closing_lines(document, world.terms, [], Path("/x"), "job-2")
    assert "deepvm jobs resume job --deadline 7min continues" in advice
    late = stops_at(trains(JobLimits(1, 1, end_s=1000.0)), most_s=1000.0)[1]
    assert late.ending == "the deadline has come"


def test_a_job_that_is_over_its_budget_still_may_save() -> None:
    """As when its controller was gone for a while."""
    world = trains(JobLimits(1, 1, total_usd=0.5, version_s=40.0))
    assert world.usd > 0.5 and wish(world) is Reason.STOP
    world = after(world, [d.Heartbeat("m1", 1, 500, warm=True)], 630.0)
    assert not world.job.over
    world = after(world, [d.Safe(1, 501, Reason.STOP)], 631.0)
    assert world.job is Job.STOPPED and world.version == 501


# --- what is not safe must not look so ------------------------------------------------------------


def test_saves_that_fail_are_counted_until_one_is_safe() -> None:
    world = trains(JobLimits(1, 1))
    for number in range(1, 4):
        world = after(world, [unsaved(Reason.INSURANCE)], 600.0 + number)
        assert world.failed_saves == FailedSaves(number, number, "the bucket is full")
    world = after(world, [d.Unsaved(7, "of another generation", Reason.INSURANCE)], 604.0)
    world = after(world, [d.Safe(1, 520, Reason.INSURANCE)], 605.0)
    assert world.failed_saves == FailedSaves(3, 0, "")


@pytest.mark.parametrize("wanted", [d.SaveNow(), d.Rebalanced("m1")])
def test_a_save_of_which_nothing_is_heard_has_failed(wanted: d.Event) -> None:
    before, second = after(trains(JobLimits(1, 1)), [wanted], 601.0), 601.0
    world = before
    while world.save is not None:
        second += 5.0
        before, world = world, after(world, [d.Heartbeat("m1", 1, int(second), warm=True)], second)
    assert second == 1201.0 and world.failed_saves == FailedSaves(1, 1, silent("10 min"))
    (row,) = rows_of(before, world, [])
    assert row.facts["reason"] == before.save.reason.value  # the lab asks which save it was
    assert (
        row.kind == "unsaved" and event_line(row) == f"no checkpoint was saved: {silent('10 min')}"
    )


def silent(took: str) -> str:
    """Why there is no version where none of the job has ever come."""
    return (
        f"the script did not answer the request to save in {took}; one that uses neither"
        " Checkpointer nor dt.check_save saves nothing, and restarts at its beginning"
    )


def test_a_script_that_has_saved_before_is_not_suspected_of_using_no_checkpointer() -> None:
    world = after(trains(JobLimits(1, 1)), [d.Safe(1, 100, Reason.INSURANCE), d.SaveNow()], 601.0)
    world = after(world, [d.Heartbeat("m1", 1, 700, warm=True)], 1201.0)
    assert world.failed_saves.why == "the script did not answer the request to save in 10 min"


def reported(
    before: JobState, events: Sequence[d.Event], now_s: float
) -> tuple[JobState, list[str]]:
    """With some events, and what is reported of versions that did not come."""
    world = after(before, events, now_s)
    rows = rows_of(before, world, [e for e in events if isinstance(e, d.Unsaved)])
    return world, [event_line(row) for row in rows if row.kind == "unsaved"]


def test_outputs_that_are_not_kept_are_reported_once_for_each_reason() -> None:
    """While the job runs: in its report it may be too late to make room."""
    world = trains(JobLimits(1, 1))
    lines = []
    for why in ("", "a.pt: no space left", "a.pt: no space left", "", "b.pt: no space left"):
        before = world
        looked = d.OutputsLooked("m1", 1, len(lines), (), (), why)
        world = after(world, [looked], world.now_s + 1)
        lines += [event_line(row) for row in rows_of(before, world, [looked])]
    assert [line for line in lines if line] == [
        "m1: outputs are not kept: a.pt: no space left",
        "m1: outputs are not kept: b.pt: no space left",
    ]


def noticed() -> JobState:
    """The only machine is preempted at second 720, and was ordered to save before that."""
    world = after(trains(JobLimits(1, 1)), [d.Noticed("m1", 720.0)], 600.0)
    assert wish(world) is Reason.EMERGENCY
    return world


def test_an_emergency_version_that_never_comes_is_counted_and_told() -> None:
    world, said = reported(noticed(), [d.Heartbeat("m1", 1, 600, warm=True)], 719.0)
    assert world.failed_saves.total == 0 and not said
    world, said = reported(world, [d.Heartbeat("m1", 1, 601, warm=True)], 720.0)
    assert world.failed_saves == FailedSaves(1, 1, silent("2 min"))
    assert said == [f"no checkpoint was saved: {silent('2 min')}"]
    world, said = reported(world, [d.Tick()], 721.0)
    assert world.failed_saves.total == 1 and not said


def test_a_machine_that_goes_before_its_limit_takes_its_version_along() -> None:
    """The cloud may end it a moment before the time of its notice."""
    world, said = reported(noticed(), [d.InstancesListed({}, {"m1": (1.0, 719.0)})], 719.5)
    assert world.failed_saves == FailedSaves(1, 1, "trainers ended before it was safe")
    assert said == ["no checkpoint was saved: trainers ended before it was safe"]


def test_the_last_version_that_never_comes_is_counted_and_told() -> None:
    world = after(
        trains(JobLimits(1, 1, end_s=1000.0, version_s=40.0)), [d.Stop("the user")], 600.0
    )
    world, said = reported(world, [d.Heartbeat("m1", 1, 600, warm=True)], 999.0)
    assert world.failed_saves.total == 0 and not said
    world, said = reported(world, [d.Heartbeat("m1", 1, 900, warm=True)], 1001.0)
    assert world.job is Job.STOPPED and world.failed_saves.total == 1 and len(said) == 1


def test_a_version_that_comes_or_is_not_needed_any_more_has_not_failed() -> None:
    for reason in [Reason.EMERGENCY, Reason.STOP, Reason.RESIZE]:
        asked = {Reason.EMERGENCY: noticed, Reason.RESIZE: grows}.get(reason)
        world = (
            after(trains(JobLimits(1, 1)), [d.Stop("the user")], 601.0)
            if asked is None
            else asked()
        )
        safe = after(world, [d.Safe(1, 520, reason)], 602.0)
        assert after(safe, [d.Tick()], 5000.0).failed_saves.total == 0
        trained = after(world, [d.Ended("m1", 1, 0, 520)], 602.0)
        assert trained.job is Job.DONE and trained.failed_saves.total == 0


def test_a_save_that_was_given_up_is_not_counted_again() -> None:
    for wanted in [d.SaveNow(), d.Rebalanced("m1"), d.Tick()]:
        world, second = (
            after(grows() if wanted == d.Tick() else trains(JobLimits(1, 1)), [wanted], 601.0),
            601.0,
        )
        assert world.save is not None
        reason = world.save.reason
        while world.save is not None:
            second += 5.0
            world = after(
                world,
                [d.Heartbeat("m1", 1, int(second), warm=True), d.Heartbeat("m2", warm=True)],
                second,
            )
        assert second == 1201.0 and world.failed_saves.total == 1
        world, said = reported(world, [unsaved(reason)], 1202.0)
        assert world.failed_saves == FailedSaves(1, 1, "the bucket is full"), (
            "why, now that it is known"
        )
        assert said == ["no checkpoint was saved: the bucket is full"]
        world, said = reported(world, [unsaved(Reason.INSURANCE)], 1203.0)
        assert world.failed_saves.total == 2, "one that was not requested"


def test_one_that_was_given_up_is_forgotten_when_it_comes_late_or_with_its_generation() -> None:
    world = after(trains(JobLimits(1, 1)), [d.SaveNow()], 601.0)
    world = after(world, [d.Heartbeat("m1", 1, 700, warm=True)], 1201.0)
    assert (
        world.failed_saves.total == 1 and from_document(to_document(world), world.machines) == world
    )
    late = after(world, [d.Safe(1, 600, Reason.PERIODIC)], 1202.0)
    assert after(late, [unsaved(Reason.PERIODIC)], 1203.0).failed_saves == FailedSaves(
        2, 1, "the bucket is full"
    )
    again = after(with_generation_broken(world), [d.Tick()], 1202.0)
    assert again.generation == 2
    again = after(again, [d.Unsaved(2, "the bucket is full", Reason.PERIODIC)], 1203.0)
    assert again.failed_saves.total == 2


def test_what_people_see_of_it() -> None:
    world = after(trains(JobLimits(1, 1)), [d.Safe(1, 100, Reason.INSURANCE)], 600.0)
    assert words().versions(final_document("job", 0.0, world, [], {})) == (
        "checkpoints saved: 1 by the save policy; the newest has 100 steps"
    )
    world = after(world, [unsaved(Reason.INSURANCE), unsaved(Reason.INSURANCE)], 601.0)
    document = final_document("job", 0.0, world, [], {})
    assert (
        words().failed_saves(document)
        == "2 saves failed, 2 since the newest checkpoint: the bucket is full"
    )
    assert "checkpoint of step 100 is safe, 1 save, 2 saves failed since" in " ".join(
        live_lines("job", world, [], 200)
    )
    stopped = {**document, "state": "stopped", "why": "stopped by the user"}
    (line,) = closing_lines(stopped, world.terms, [], Path("/x"), "job-2")
    assert "after 500 steps, 100 of them safe; " in line
    world = after(world, [d.Safe(1, 500, Reason.INSURANCE)], 602.0)
    document = final_document("job", 0.0, world, [], {})
    assert words().versions(document) == "checkpoints saved: 2 by the save policy"
    assert words().failed_saves(document) == "2 saves failed"
    older = {k: v for k, v in document.items() if k not in ("failed_saves", "version")}
    assert words().versions(older) == "checkpoints saved: 2 by the save policy"
    assert words().failed_saves(older) == ""


@pytest.mark.slow
def test_a_job_whose_saves_fail_says_so(tmp_path: Path) -> None:
    home = Home(tmp_path)
    try:
        tier = tmp_path / "tier"
        job = home.job(
            "full",
            "exec python own.py 2000 0.03;",
            tiers=[tier.as_uri()],
            save_policy="static:10",
            anchor="none",
        )
        process = home.start("run", str(job))
        until(lambda: home.run("jobs", "show", "full").returncode == 0, 60)
        until(lambda: home.document("jobs", "show", "full")["version"] >= 10, 60)
        tier.rename(tmp_path / "away")
        tier.write_text("")
        until(lambda: home.document("jobs", "show", "full")["failed_saves"]["in_a_row"] >= 2, 60)
        assert "running, saves failed" in home.run("jobs", "ls").stdout
        shown = home.run("jobs", "show", "full").stdout
        assert (
            " saves failed, " in shown
            and "no checkpoint was saved: [Errno 20] Not a directory" in shown
        )
        tier.unlink()
        (tmp_path / "away").rename(tier)
        until(lambda: home.document("jobs", "show", "full")["failed_saves"]["in_a_row"] == 0, 60)
        assert "saves failed" not in home.run("jobs", "ls").stdout
        home.run("jobs", "stop", "full")
        process.communicate(timeout=60)
        assert process.returncode == 3
    finally:
        home.end()


# --- what the user asks for -----------------------------------------------------------------------


def test_a_save_that_is_not_asked_for_is_refused_with_a_reason() -> None:
    world = JobState(JobLimits(1, 1), 0.0, pools=(SPOT,))
    assert why_not_saved(world) == "nothing is being trained now"
    world = trains(JobLimits(1, 1))
    assert why_not_saved(world) == ""
    assert (
        why_not_saved(after(world, [d.SaveNow()], 601.0)) == "a checkpoint is being saved already"
    )
    stops = after(world, [d.Stop("the user")], 601.0)
    assert (
        why_not_saved(stops)
        == why_not_saved(after(stops, [d.Safe(1, 501, Reason.STOP)], 602.0))
        == "the job is ending"
    )


def test_the_controller_answers_why_it_does_not_save(tmp_path: Path) -> None:
    with running(tmp_path) as found:
        user = Peer(found, USER)
        assert user.ask("/command", {"command": "save"}) == {}
        answer = user.ask("/command", {"command": "save"})
        assert answer == {
            "error": "no checkpoint is asked for: a checkpoint is being saved already"
        }


# --- a machine that is not taken back after all ---------------------------------------------------


def test_one_that_is_noticed_and_stays_gives_way_to_its_replacement() -> None:
    """The policy does not act on notices, and the cloud does not do what it has said."""
    world = after(
        trains(JobLimits(1, 1, policy=parse_policy("static:1000"))), [d.Noticed("m1", 720.0)], 600.0
    )
    second = 600.0
    while second < 760.0:
        second += 10.0
        world = after(
            world,
            [d.Heartbeat("m1", 1, int(second), warm=True), d.Heartbeat("m2", warm=True)],
            second,
        )
        assert wish(world) is None and world.members == ("m1",)
    world = after(
        world, [d.Heartbeat("m1", 1, 770, warm=True), d.Heartbeat("m2", warm=True)], 770.0
    )
    assert wish(world) is Reason.RESIZE
    world, acts = react(world, d.Safe(1, 771, Reason.RESIZE), 772.0)
    assert d.Release("m1") in acts and world.members == ("m2",) and world.version == 771


def test_an_anchor_that_is_noticed_and_stays_is_released_by_the_next() -> None:
    anchor = Pool("m", "z", "on-demand", 1.0)
    world = after(
        JobState(JobLimits(1, 1, anchor=(anchor,), anchors=1), 0.0, pools=(SPOT,)), [d.Tick()], 0.0
    )
    world = after(world, [d.Heartbeat("m1", warm=True), d.Heartbeat("m2", warm=True)], 5.0)
    world = after(world, [d.Started(m, 1, 0) for m in world.members], 6.0)
    first, trainer = world.anchors[0], world.members[0]
    world = after(world, [d.Noticed(first, 130.0)], 10.0)
    world, acts = react(
        world, [d.Heartbeat("m3", warm=True), d.Heartbeat(trainer, 1, 5, warm=True)], 15.0
    )
    assert world.machines[first].state is Machine.NOTICED and not acts, "it keeps the versions"
    world, acts = react(world, d.Safe(1, 6, Reason.RESIZE), 16.0)
    assert world.anchors == ("m3",) and acts == (d.Release(first),)
