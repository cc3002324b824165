"""Trainings that do not begin, or make no step any more: they begin anew, twice at most, and then
the job fails.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.jobs.kills import SYNCED
from support.jobs.runs import Home, until

from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.hangs import adopted, forgiven
from deepvm.jobs.decisions.reconcile import orders_of, react, with_generation_broken
from deepvm.jobs.decisions.states import Job, JobEvent, Machine, job_after
from deepvm.jobs.decisions.world import GenerationProgress, JobLimits, JobState, Pool, Reason
from deepvm.jobs.history.history import PLACE, History
from deepvm.jobs.history.job_report import final_document
from deepvm.reports.jobs.live import closing_lines, failure_lines

SPOT = Pool("a", "z", "spot", 3.6)
BOTH = ("m1", "m2")


def after(world: JobState, events: Sequence[d.Event], now_s: float) -> JobState:
    return react(world, events, now_s)[0]


def formed(**terms: float | None) -> JobState:
    """Two machines were told to train at second 100; their agents say that they run it."""
    world = after(JobState(JobLimits(2, 2, **terms), 0.0, pools=(SPOT,)), [d.Tick()], 0.0)  # type: ignore[arg-type]
    world = after(world, [d.Heartbeat(m, warm=True) for m in BOTH], 100.0)
    assert world.members == BOTH and world.job is Job.FORMING
    return world


def beats(
    world: JobState, step: int = 0, idle_s: float = 0.0, longest_s: float | None = None
) -> list[d.Event]:
    """Heartbeats of both machines."""
    found = [
        d.Heartbeat(m, world.generation, step, True, idle_s=idle_s, longest_s=longest_s)
        for m in BOTH
    ]
    return [*found]


def trains(longest_s: float = 0.5, **terms: float | None) -> JobState:
    """They have done 40 steps by second 200, and saved none."""
    world = formed(**terms)
    world = after(world, [d.Started("m1", 1, 0), d.Started("m2", 1)], 101.0)
    assert world.job is Job.RUNNING
    return after(world, beats(world, 40, 0.0, longest_s), 200.0)


def heard_until(
    world: JobState, now_s: float, until_s: float, step: int = 0, longest_s: float | None = None
) -> JobState:
    """Nothing moves on, and heartbeats say so, until a generation begins anew or the job ends."""
    first, generation = now_s, world.generation
    while now_s < until_s and world.generation == generation and not world.job.over:
        now_s += 5.0
        world = after(world, beats(world, step, now_s - first, longest_s), now_s)
    return world


# --- a generation that does not begin -------------------------------------------------------------


def test_trainers_that_do_not_begin_are_started_anew() -> None:
    world = formed()
    world = after(world, [d.Started("m1", 1), d.Started("m2", 1)], 101.0)  # the processes are there
    assert heard_until(world, 101.0, 1895.0).generation == 1
    world = heard_until(world, 101.0, 1901.0)
    assert (world.generation, world.members, world.job) == (2, BOTH, Job.FORMING)
    assert (
        world.pulse.why
        == "the training does not start on m1 and m2: no step and no line in 30 min, "
        "since 1970-01-01 00:01:41 UTC (start_timeout)"
    )


def test_an_agent_that_never_starts_them_is_seen() -> None:
    """It is heard, but runs an older generation, or none."""
    world, now_s = formed(), 100.0
    while world.generation == 1 and now_s < 3000.0:
        now_s += 5.0
        world = after(world, [d.Heartbeat(m, 0, warm=True, idle_s=0.0) for m in BOTH], now_s)
    assert (world.generation, now_s) == (2, 1900.0)


def test_lines_and_a_restored_version_are_signs_of_life_before_the_first_step() -> None:
    world = heard_until(formed(), 100.0, 1700.0)
    line = d.Heartbeat("m2", 1, 0, True, idle_s=1600.0, printed_s=10.0)
    printed = after(world, [line], 1700.0)
    assert heard_until(printed, 1690.0, 3480.0).generation == 1
    assert heard_until(printed, 1690.0, 3500.0).generation == 2
    restored = after(world, [d.Started("m1", 1, 0)], 1700.0)
    assert heard_until(restored, 1700.0, 3490.0).generation == 1
    world = heard_until(restored, 1700.0, 3490.0)
    # What waits in its first step may print.
    world = after(world, [*beats(world, 0, 1800.0)[:1], replace(line, idle_s=1800.0)], 3500.0)
    assert world.generation == 2 and "m2: no step in 30 min, since" in world.pulse.why


# --- the last phase, without steps ----------------------------------------------------------------


def prints(world: JobState, step: int, until_s: float) -> JobState:
    """The first machine makes no step from now on, and prints a line every ten minutes."""
    first, generation, now_s = world.now_s, world.generation, world.now_s
    while now_s < until_s and world.generation == generation and not world.job.over:
        now_s += 5.0
        beat = d.Heartbeat(
            "m1",
            generation,
            step,
            True,
            idle_s=now_s - first,
            printed_s=now_s % 600.0,
            longest_s=0.5,
        )
        world = after(world, [beat, *beats(world, step, now_s - first, 0.5)[1:]], now_s)
    return world


@pytest.mark.parametrize("steps", [40, None])
def test_a_test_after_the_last_step_is_no_hang_while_it_prints(steps: int | None) -> None:
    world = trains(steps=steps)
    if steps is None:
        world = after(world, [d.Safe(1, 40, Reason.INSURANCE)], 201.0)
    assert prints(world, 40, 6_000.0).generation == 1


@pytest.mark.parametrize("steps", [40, None])
def test_after_a_resume_the_last_phase_is_no_hang_while_it_prints(steps: int | None) -> None:
    world = after(trains(steps=steps), [d.Safe(1, 40, Reason.INSURANCE)], 201.0)
    world = after(with_generation_broken(world), [d.Tick()], 202.0)
    world = after(world, [d.Started("m1", 2, 40), d.Started("m2", 2)], 203.0)
    assert (world.generation, world.job, world.reached) == (2, Job.RUNNING, 40)
    assert prints(world, 40, 6_000.0).generation == 2


def test_lines_excuse_nothing_while_steps_are_left() -> None:
    for steps, version in [(41, 0), (None, 39), (41, 40)]:
        world = after(trains(steps=steps), [d.Safe(1, version, Reason.INSURANCE)], 200.0)
        assert prints(world, 40, 6_000.0).pulse.hung_s == 2000.0


def test_the_closing_line_names_the_option_that_helps() -> None:
    """Who has no step left hangs before the first one of its generation: the limit between steps is
    not asked for.
    """
    world = after(trains(), [d.Safe(1, 40, Reason.INSURANCE)], 200.0)
    for again in (2, 3, 4):
        world = heard_until(world, world.now_s, world.now_s + 4000.0, 40)
        world = after(world, [d.Started("m1", again, 40), d.Started("m2", again)], world.now_s)
    assert world.job is Job.FAILED
    document = final_document("job", 0.0, world, [], {})
    *_, said = closing_lines(document, world.terms, [], Path("/x"), "job-2")
    assert said.endswith(
        "; if it only takes longer, deepvm jobs resume job --start-timeout none continues it"
    )
    between = {
        **document,
        "why": "the training hangs on m1: no step in 30 min, since step 4 at 9 (step_timeout)",
    }
    *_, said = closing_lines(between, world.terms, [], Path("/x"), "job-2")
    assert said.endswith(
        "; if it only takes longer, deepvm jobs resume job --step-timeout none continues it"
    )


def test_a_reason_that_was_printed_is_said_once() -> None:
    document = {
        "name": "job",
        "state": "failed",
        "why": "OSError: no space",
        "steps": 0,
        "version": 0,
    }
    last = ["Traceback", "OSError: no space"]
    closing = closing_lines(document, JobLimits(1, 1), last, Path("/x"), "job-2")
    lines = [*failure_lines(document, last), *closing]
    assert lines[0] == "Traceback"
    assert ["no space" in line for line in lines] == [False, True, False]


@pytest.mark.parametrize("state", ["done", "failed", "stopped"])
def test_the_last_lines_name_outputs_that_are_missing(state: str) -> None:
    """Also of a job that is done: its exit code is that of the script."""
    outputs = {"problem": "model.pt: no space"}
    document = {"name": "job", "state": state, "why": "", "steps": 0, "version": 0}
    lines = [*closing_lines(document | {"outputs": outputs}, JobLimits(1, 1), [], Path("/x"), "")]
    missing = f"job is {state}, but its newest outputs are missing from its storage: model.pt: no"
    assert lines[0] == f"{missing} space"
    assert closing_lines(document, JobLimits(1, 1), [], Path("/x"), "") == lines[1:]


# --- one that stops stepping ----------------------------------------------------------------------


@pytest.mark.parametrize(("longest_s", "limit_s"), [(0.5, 1800.0), (300.0, 3000.0)])
def test_no_step_for_long_is_a_hang(longest_s: float, limit_s: float) -> None:
    world = trains(longest_s)
    assert heard_until(world, 200.0, 200.0 + limit_s - 5, 40, longest_s).generation == 1
    world, acts = heard_until(world, 200.0, 200.0 + limit_s - 5, 40, longest_s), ()
    world, acts = react(world, beats(world, 40, limit_s, longest_s), 200.0 + limit_s)
    assert (world.generation, world.members, world.job, acts) == (2, BOTH, Job.FORMING, ())
    assert (
        "no step in" in world.pulse.why
        and "since step 40 at 1970-01-01 00:03:20 UTC" in world.pulse.why
    )
    assert orders_of(world, "m1").generation == 2


def test_one_machine_that_goes_on_is_enough() -> None:
    """Ranks without a collective may be done with their steps at different times."""
    world, now_s = trains(), 200.0
    while now_s < 9000.0:
        now_s += 50.0
        slow, quick = beats(world, int(now_s), 0.5, 0.5)[0], beats(world, 40, now_s - 200.0, 0.5)[1]
        world = after(world, [slow, quick], now_s)
    assert world.generation == 1 and world.job is Job.RUNNING


def test_the_third_hang_without_a_newer_version_fails_the_job_and_lets_machines_go() -> None:
    world, now_s = trains(), 200.0
    for again in (2, 3):
        world = heard_until(world, now_s, now_s + 4000.0)
        now_s = world.now_s
        assert (world.generation, world.job) == (again, Job.FORMING)
    world, acts = heard_until(world, now_s, now_s + 1795.0), ()
    world, acts = react(world, d.Tick(), now_s + 1800.0)
    assert world.job is Job.FAILED and world.failure.startswith(
        "the training does not start on m1 and m2: no step"
    )
    assert set(acts) == {d.Release("m1"), d.Release("m2")}
    assert {m.state for m in world.machines.values()} == {Machine.RELEASING}


def test_a_newer_version_gives_it_two_tries_more() -> None:
    world, now_s = trains(), 200.0
    for version in range(1, 6):
        world = heard_until(world, now_s, now_s + 4000.0)
        assert world.pulse.hangs == 1 and not world.job.over
        now_s = world.now_s + 5.0
        world = after(world, [d.Safe(world.generation, version, Reason.INSURANCE)], now_s)
    assert world.generation == 6


def test_a_heartbeat_of_an_older_agent_counts_by_its_steps() -> None:
    world, now_s = trains(), 200.0
    while now_s < 9000.0:
        now_s += 50.0
        world = after(world, [d.Heartbeat(m, 1, int(now_s), True) for m in BOTH], now_s)
    assert world.generation == 1
    assert after(world, [d.Tick()], now_s + 20.0).generation == 1


# --- what does not excuse it, and what does -------------------------------------------------------


def test_a_save_that_hangs_excuses_nothing() -> None:
    for wanted in [[], [d.SaveNow()], [d.Rebalanced("m1")], [d.Noticed("m1", 9000.0)]]:
        world = after(trains(), wanted, 201.0)
        assert bool(wanted) == (world.save is not None)
        world = heard_until(world, 200.0, 2000.0, 40, 0.5)
        assert world.pulse.hung_s == 2000.0 and world.save is None and world.job is Job.FORMING
        # One that is preempted is of no generation that begins: another must come first.
        assert world.generation == 2 or world.machines["m1"].state is not Machine.MEMBER


def test_a_job_that_ends_waits_for_its_last_version_as_long_as_ever() -> None:
    world = after(trains(step_timeout_s=60.0), [d.Stop("the user")], 201.0)
    world = heard_until(world, 200.0, 1000.0, 40, 0.5)
    assert world.job is Job.STOPPED and world.now_s == 805.0 and world.pulse.hung_s is None


def test_trainers_that_have_failed_are_judged_by_that() -> None:
    world = heard_until(trains(), 200.0, 1995.0, 40, 0.5)
    world = after(world, [d.Ended("m1", 1, 1, 40)], 1999.0)
    world = after(world, beats(world, 40, 1801.0, 0.5), 2001.0)
    assert world.pulse.hung_s is None and world.crashes == 1 and world.generation == 2


@pytest.mark.parametrize("terms", [{"start_timeout_s": None}, {"step_timeout_s": None}])
def test_none_is_no_limit(terms: dict[str, float | None]) -> None:
    world = formed(**terms) if "start_timeout_s" in terms else trains(**terms)
    step, longest_s = (0, None) if "start_timeout_s" in terms else (40, 0.5)
    assert heard_until(world, 200.0, 6_000.0, step, longest_s).generation == 1


def test_time_in_which_no_controller_heard_anybody_counts_for_nothing() -> None:
    world = adopted(trains(), 5000.0)
    world = after(world, beats(world, 40, 4000.0, 0.5), 5001.0)
    assert world.generation == 1
    world = forgiven(trains(), 1000.0)
    assert after(world, beats(world, 40, 2700.0, 0.5), 2900.0).generation == 1


def in_state(job: Job) -> JobState:
    """A world in this state, whose trainers, if any, have given no sign of life for a day."""
    world = trains()
    if job is Job.PENDING:
        world = JobState(JobLimits(2, 2), 0.0, pools=(SPOT,))
    elif job is Job.FORMING:
        world = formed()
    elif job is Job.SAVING:
        world = after(world, [d.Noticed("m1", 1e6)], 200.0)
    elif job.over:
        world = replace(with_generation_broken(world), job=job)
    assert world.job is job
    return world


def test_the_timer_is_decided_in_every_state() -> None:
    """It begins anew what runs or is to run, as the tables say, and nothing else."""
    for job in Job:
        world = in_state(job)
        heard = [d.Heartbeat(m, world.generation, 40, True, idle_s=86_000.0) for m in world.members]
        found = after(replace(world, pulse=replace(world.pulse, since_s=100.0)), heard, 86_400.0)
        runs = job in (Job.FORMING, Job.RUNNING, Job.SAVING)
        assert (found.pulse.hung_s is not None) == runs
        assert found.job is (job_after(job, JobEvent.BROKEN) if runs else job)
        # The machine for which a version was to be saved is preempted, and is of no generation that
        # begins.
        assert found.generation == world.generation + (runs and job is not Job.SAVING)
        last = replace(world, pulse=GenerationProgress(100.0, hangs=2, version=99))
        found = after(last, heard, 86_400.0)
        assert found.job is (job_after(job, JobEvent.CRASHED) if runs else job)


# --- whole jobs -----------------------------------------------------------------------------------

WHOLE = pytest.mark.slow  # whole jobs
SLEEPS = """
import os, sys, time
import deepvm.training as dt

here, times = os.environ["RESULT"], int(sys.argv[1])
latest = dt.latest()
step = int(latest.read_text()) if latest else 0
open(f"{here}/starts", "a").write(f"{step} ")
while step < 100:
    with dt.step_context():
        time.sleep(0.02)
        if step == 60 and not os.path.exists(f"{here}/mend") and int(os.environ["DEEPVM_EPOCH"]) <= times:
            print("hangs now", flush=True)
            while True:
                time.sleep(1)
                print("still here", flush=True)
    step += 1
    if dt.check_save():
        mine = f"{here}/mine-{os.environ['DEEPVM_EPOCH']}-{step}"
        open(mine, "w").write(str(step))
        dt.backup(mine)
"""  # noqa: E501
MEETS = """
import os, sys, time
import deepvm.training as dt

here = os.environ["RESULT"]
if os.environ["RANK"] == "1" and os.environ["DEEPVM_EPOCH"] == "1":
    time.sleep(3600)  # its peer waits in vain
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(20):
    with dt.step_context():
        dist.barrier()
        time.sleep(0.02)
"""
DEADLOCK = SYNCED.replace(
    "        dist.all_reduce(torch.ones(1))\n",
    "        if step == 40 and os.environ['DEEPVM_EPOCH'] == '1' and dist.get_rank():\n"
    "            dist.barrier()\n"
    "            time.sleep(3600)\n"
    "        dist.all_reduce(torch.ones(1))\n"
    "        if step == 40 and os.environ['DEEPVM_EPOCH'] == '1':\n"
    "            dist.all_reduce(torch.ones(1))\n",
)
SHORT = {"step_timeout": "4s", "start_timeout": "10s", "save_policy": "static:10"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    for name, text in (
        ("sleeps", SLEEPS),
        ("meets", MEETS),
        ("synced", SYNCED),
        ("deadlock", DEADLOCK),
    ):
        (found.code / f"{name}.py").write_text(text)
    yield found
    found.end()


@WHOLE
def test_a_step_that_never_ends_is_done_again_from_the_last_version(home: Home) -> None:
    found = home.document(
        "run", str(home.job("sleeps", "exec python sleeps.py 1;", steps=100, **SHORT))
    )
    assert (found["state"], found["steps"], found["generations"], found["preemptions"]) == (
        "done",
        100,
        2,
        0,
    )
    first, again = map(int, (home.result / "starts").read_text().split())
    assert (first, found["lost_steps"]) == (0, 60 - again) and 40 <= again <= 60
    shown = home.run("jobs", "show", "sleeps").stdout
    assert "the training hangs on m1: no step in" in shown and "since step 60 at 20" in shown
    assert f"its trainers are restarted after step {again}" in shown
    assert found["restarts"]["causes"]["hang"] == 1
    assert found["breakdown_s"]["hang"] == pytest.approx(4.0, abs=1.5), "the limit is 4 s"
    assert found["breakdown_s"]["compute"] < 1.5 * (100 + found["lost_steps"]) * 0.02 + 1.0


@WHOLE
def test_a_training_that_hangs_again_and_again_fails_and_costs_nothing_more(home: Home) -> None:
    done = home.run("run", str(home.job("always", "exec python sleeps.py 9;", steps=100, **SHORT)))
    assert done.returncode == 1
    assert (
        "the training hangs on m1: no step in" in done.stderr
        and "since step 60 at 20" in done.stderr
    )
    assert "always: the training does not start on m1: no step in" in done.stderr, (
        "it goes on from step 60"
    )
    assert "deepvm jobs resume always --start-timeout none continues it" in done.stderr
    found = home.document("jobs", "show", "always")
    assert (found["state"], found["generations"]) == ("failed", 3)
    assert found["why"].startswith("the training does not start on m1") and all(
        m["end"] for m in found["machines"]
    )
    assert until(lambda: not home.processes(), 10)
    wrong = home.run("jobs", "resume", "always", "--step-timeout", "5")
    assert wrong.returncode == 2 and "--step-timeout" in wrong.stderr
    (home.result / "mend").touch()
    found = home.document(
        "jobs", "resume", "always", "--start-timeout", "none", "--step-timeout", "1h"
    )
    assert (found["state"], found["steps"], found["why"]) == ("done", 100, "")
    with History.open({PLACE: str(home.jobs.parent / "history.db")}) as history:
        terms = history.world("always").terms
    assert (terms.start_timeout_s, terms.step_timeout_s) == (None, 3600.0)


@WHOLE
def test_ranks_that_never_meet_begin_anew(home: Home) -> None:
    pytest.importorskip("torch")
    job = home.job("meets", "exec python meets.py;", count=2, **SHORT)
    found = home.document("run", str(job))
    assert (found["state"], found["steps"], found["generations"]) == ("done", 20, 2)
    assert (
        "the training does not start on m1 and m2: no step and no line in"
        in home.run("jobs", "show", "meets").stdout
    )


@WHOLE
def test_a_deadlock_in_a_collective_is_a_hang(home: Home) -> None:
    pytest.importorskip("torch")
    found = home.document(
        "run", str(home.job("lock", "exec python deadlock.py 80;", count=2, **SHORT))
    )
    assert (found["state"], found["steps"], found["generations"]) == ("done", 80, 2)
    assert found["lost_steps"] <= 25


@WHOLE
def test_a_rank_that_is_stopped_is_replaced_with_all_others(home: Home) -> None:
    pytest.importorskip("torch")
    job = home.job("stopped", "exec python synced.py 200;", count=2, **SHORT)
    process = home.start("run", str(job))
    until(lambda: list(home.result.glob("mine-1-1-*")), 90)
    pid = next(p for p in home.processes() if _is_rank(p, 1))
    os.kill(pid, signal.SIGSTOP)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said[-2000:]
    found = home.document("jobs", "show", "stopped")
    assert (found["state"], found["steps"], found["generations"], found["preemptions"]) == (
        "done",
        200,
        2,
        0,
    )
    assert not Path(f"/proc/{pid}").exists()


def _is_rank(pid: int, rank: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b"synced.py" in words and f"RANK={rank}".encode() in Path(
            f"/proc/{pid}/environ"
        ).read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.parametrize("version", [0, 3])
def test_a_script_that_reports_no_steps_is_not_said_to_continue(version: int) -> None:
    unknown = "this script reports no steps"
    document = {"name": "job", "state": "stopped", "why": "interrupted", "steps": None}
    document |= {"progress_unknown": unknown, "version": version}
    lines = [*closing_lines(document, JobLimits(1, 1), [], Path("/x"), "")]
    restarts = "starts it again at its beginning, if it saves nothing through deepvm"
    does = "continues" if version else restarts
    assert lines == [
        f"job: interrupted; progress unknown: {unknown}; deepvm jobs resume job {does}"
    ]
