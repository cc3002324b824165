"""What an anchor keeps in its memory ends with the job, or with the anchor: only versions elsewhere
outlive it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.checkpoint.object_store import BUCKET, CREDENTIALS, running
from support.jobs.runs import Home, until

from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.reconcile import orders_of, react
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool, Reason, Role
from deepvm.jobs.history.job_report import final_document
from deepvm.reports.jobs.live import closing_lines, words

ANCHOR, SPOT = Pool("m", "z", "on-demand", 1.0), Pool("a", "z", "spot", 3.6)


def after(world: JobState, events: Sequence[d.Event], now_s: float) -> JobState:
    return react(world, events, now_s)[0]


def trains(**limits: float) -> JobState:
    """A job with an anchor, m1, at step 500 of its only trainer, m2.

    Version 400 is in a bucket, too.
    """
    world = JobState(JobLimits(1, 1, anchor=(ANCHOR,), anchors=1, **limits), 0.0, pools=(SPOT,))  # type: ignore[arg-type]
    world = after(world, [d.Tick()], 0.0)
    world = after(world, [d.InstancesListed({m: 0.0 for m in world.machines})], 1.0)
    world = after(world, [d.Heartbeat(m, warm=True) for m in world.machines], 5.0)
    (trainer,) = world.members
    assert len(world.anchors) == 1
    beats = [
        d.Heartbeat(trainer, 1, 500, warm=True, step_s=1.0),
        d.Heartbeat(world.anchors[0], warm=True),
    ]
    world = after(world, [d.Started(trainer, 1, 0), *beats], 600.0)
    return after(world, [d.Safe(1, 400, Reason.INSURANCE, took_s=1.0)], 600.0)


def wish(world: JobState) -> Reason | None:
    save = orders_of(world, world.members[0]).save
    return None if save is None else save.reason


def test_a_version_before_a_preemption_is_no_version_before_the_end() -> None:
    world = trains()
    world = after(world, [d.Noticed(world.members[0], 720.0)], 601.0)
    assert wish(world) is Reason.EMERGENCY
    world = after(world, [d.Stop("the user")], 602.0)
    world = after(world, [d.Safe(1, 501, Reason.EMERGENCY, lasts=False)], 603.0)
    assert world.job is not Job.STOPPED and wish(world) is Reason.STOP
    world = after(world, [d.Safe(1, 502, Reason.STOP)], 609.0)
    assert world.job is Job.STOPPED and (world.version, world.lasts) == (502, 502)


def test_it_is_where_it_lasts() -> None:
    world = trains()
    world = after(world, [d.Noticed(world.members[0], 720.0)], 601.0)
    world = after(world, [d.Stop("the user")], 602.0)
    world = after(world, [d.Safe(1, 501, Reason.EMERGENCY)], 603.0)
    assert world.job is Job.STOPPED and world.version == 501


def test_what_the_anchor_has_alone_when_the_job_ends_is_not_called_safe() -> None:
    world = after(trains(), [d.Safe(1, 450, Reason.INSURANCE, lasts=False)], 601.0)
    assert world.version == 450
    world = after(world, [d.Stop("the user")], 602.0)
    world = after(
        world, [d.InstancesListed({world.anchors[0]: 0.0}, {world.members[0]: (0.0, 603.0)})], 603.0
    )
    assert world.job is Job.STOPPED and world.version == 400


def test_a_stop_leaves_the_time_that_it_takes_until_a_version_lasts() -> None:
    def ends_at(world: JobState) -> float:
        second = 610.0
        while not world.ending:
            second += 1.0
            assert second < 1000.0
            beat = d.Heartbeat(world.members[0], 1, 510, warm=True, step_s=1.0)
            world = after(world, [beat, d.Heartbeat(world.anchors[0], warm=True)], second)
        return second

    known = after(
        trains(end_s=1000.0), [d.Safe(1, 450, Reason.INSURANCE, took_s=1.0, lasts=False)], 601.0
    )
    assert ends_at(known) > 900.0  # version 400 was in the bucket after a second
    known = after(known, [d.CheckpointDurable(1, 450, 100.0)], 605.0)
    assert ends_at(known) == pytest.approx(1000 - 150 - 1 - 2, abs=1)


def test_with_an_anchor_that_is_lost_the_next_version_comes_at_once() -> None:
    world = after(trains(), [d.Safe(1, 450, Reason.INSURANCE, lasts=False)], 601.0)
    gone = d.InstancesListed({world.members[0]: 0.0}, {world.anchors[0]: (0.0, 602.0)})
    world = after(world, [gone], 602.0)
    assert world.version == 400 and wish(world) is Reason.INSURANCE and world.formed
    assert (
        after(world, [d.CheckpointDurable(1, 450, 3.0)], 604.0).version == 450
    )  # its upload was under way
    untouched = after(trains(), [gone], 602.0)
    assert untouched.version == 400 and wish(untouched) is None


def test_an_anchor_that_is_replaced_keeps_until_its_versions_are_elsewhere() -> None:
    world = trains()
    (first,) = world.anchors
    world = after(world, [d.Noticed(first, 800.0)], 601.0)
    second = max(world.machines)
    assert world.machines[second].role is Role.ANCHOR
    world = after(world, [d.Launched(second, 602.0), d.Heartbeat(second, warm=True)], 605.0)
    assert wish(world) is Reason.RESIZE
    world = after(world, [d.Safe(1, 503, Reason.RESIZE, lasts=False)], 606.0)
    assert world.generation == 1 and world.machines[first].state is Machine.NOTICED
    world = after(world, [d.CheckpointDurable(1, 503, 6.0)], 612.0)
    assert (world.generation, world.anchors, world.version) == (2, (second,), 503)


def test_a_noticed_machine_that_is_gone_early_may_have_left_its_part() -> None:
    world = trains()
    (trainer,), (anchor,) = world.members, world.anchors
    world = after(world, [d.Noticed(trainer, 720.0)], 601.0)
    gone = d.InstancesListed({anchor: 0.0}, {trainer: (0.0, 602.0)})
    world = after(world, [gone], 602.5)
    assert world.formed and world.save is not None and world.save.reason is Reason.EMERGENCY
    safe = after(world, [d.Safe(1, 501, Reason.EMERGENCY, lasts=False)], 604.0)
    assert not safe.formed and safe.version == 501
    beat = d.Heartbeat(anchor, warm=True)
    assert after(world, [beat], 616.0).formed and not after(world, [beat], 617.5).formed  # silent_s


def noticed(*, pending: bool) -> JobState:
    """The version before a preemption is in the anchor, and nothing is there to go on with."""
    world = trains()
    world = after(world, [d.Noticed(world.members[0], 720.0)], 601.0)
    return after(world, [d.Safe(1, 501, Reason.EMERGENCY, lasts=False, pending=pending)], 603.0)


def test_a_machine_that_goes_finishes_its_upload_while_no_other_is_there() -> None:
    world = noticed(pending=True)
    (trainer,) = world.members
    assert world.formed and world.machines[trainer].state is Machine.NOTICED
    done = after(world, [d.CheckpointDurable(1, 501, 9.0)], 612.0)
    assert (done.formed, done.lasts, done.machines[trainer].state) == (
        False,
        501,
        Machine.RELEASING,
    )
    failed = after(world, [d.CheckpointOnAnchorOnly(1, 501, "no bucket")], 612.0)
    assert (failed.formed, failed.alone, failed.version) == (False, "no bucket", 501)
    beats = [d.Heartbeat(m, 1, 501, warm=True) for m in (trainer, *world.anchors)]
    # It goes then
    assert after(world, beats, 719.0).formed and not after(world, beats, 720.0).formed
    other = next(
        m.id for m in world.machines.values() if m.role is Role.TRAINER and m.id != trainer
    )
    joined = after(world, [d.Launched(other, 605.0), d.Heartbeat(other, warm=True), *beats], 610.0)
    assert (joined.generation, joined.members, joined.version) == (2, (other,), 501)
    assert not noticed(pending=False).formed


def test_what_a_generation_goes_on_from_is_what_there_is() -> None:
    """Versions may have been on a machine's own disk.

    Or nobody was left to say that one was complete.
    """
    for restored, lasts in ((501, 400), (400, 400), (300, 300), (502, 400)):
        world = noticed(pending=False)
        other = next(m.id for m in world.machines.values() if m.state is Machine.INTENT)
        beats = [d.Heartbeat(m, warm=True) for m in world.anchors]
        world = after(
            world, [d.Launched(other, 605.0), d.Heartbeat(other, warm=True), *beats], 610.0
        )
        world = after(world, [d.Started(other, 2, restored)], 612.0)
        assert (world.version, world.lasts, world.steps) == (restored, lasts, restored)


def test_a_noticed_machine_that_is_lost_while_the_job_ends() -> None:
    """Only the anchor had its last version, which goes with it: that is said, and what is left."""
    for lasts in [400, 0]:
        for limits in [{}, {"end_s": 704.0}, {"total_usd": 0.9}]:
            world = replace(trains(**limits), version=lasts, lasts=lasts)
            (trainer,), (anchor,) = world.members, world.anchors
            world = after(world, [d.Noticed(trainer, 820.0)], 601.0)
            beats = [
                d.Heartbeat(trainer, 1, 500, warm=True, step_s=1.0),
                d.Heartbeat(anchor, warm=True),
            ]
            world = after(
                world, beats if limits else [*beats, d.Stop("stopped by the user")], 700.0
            )
            assert world.ending and wish(world) is Reason.EMERGENCY
            world = after(world, [d.Safe(1, 501, Reason.EMERGENCY, lasts=False)], 700.5)
            assert world.version == 501 and wish(world) is Reason.STOP
            world = after(world, [d.InstancesListed({anchor: 0.0}, {trainer: (0.0, 701.0)})], 701.0)
            assert world.job is Job.STOPPED and world.machines[anchor].state is Machine.RELEASING
            document = final_document("job", 0.0, world, [], {})
            assert (document["steps"], document["version"], document["lost_steps"]) == (
                501,
                lasts,
                0,
            )
            (said,) = closing_lines(document, world.terms, [], Path("/x"), "job-2")
            assert f"after 501 steps, {lasts or 'none'} of them safe; " in said
            saved, failed = words().versions(document), words().failed_saves(document)
            assert saved.endswith(
                "; the newest has 400 steps" if lasts else "; none is safe any more"
            )
            assert (
                failed
                == "1 save failed, 1 since the newest checkpoint: trainers ended before it was safe"
            )


# --- whole jobs -----------------------------------------------------------------------------------

TRAIN = """
import os, sys, time
from pathlib import Path
import torch
from deepvm.checkpoint import Checkpointer
from deepvm.checkpoint.tiers.file import FileTier

here = Path(os.environ["RESULT"])


class Distant(FileTier):
    "A folder as far away as a bucket behind a slow network."

    away = True

    def put(self, shard, acknowledged):
        time.sleep(float(sys.argv[1]))
        super().put(shard, acknowledged)


torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
anchor = next(url for url in os.environ["DEEPVM_TIERS"].split() if url.startswith("tcp"))
checkpointer = Checkpointer(model=model, optimizer=optimizer, tiers=[anchor, Distant(here / "bucket")])
first = checkpointer.restore_latest()
with open(here / "starts", "a") as starts:
    starts.write(f"{first} ")
for step in range(first, int(sys.argv[2])):
    optimizer.zero_grad()
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    (here / "reached").write_text(str(step + 1))
    time.sleep(0 if (here / "hurry").exists() else 0.05)
checkpointer.close()
"""  # noqa: E501


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    pytest.importorskip("torch")
    found = Home(tmp_path)
    (found.code / "train.py").write_text(TRAIN)
    yield found
    found.end()


def anchored(home: Home, far_s: float, steps: int = 800, **more: object) -> Path:
    train = f"exec python train.py {far_s} {steps};"
    return home.job(
        "last", train, anchor={"type": "m7g.large"}, save_policy="static:100000", **more
    )


def reached(home: Home) -> int:
    """The last step that was done; 0 also while that is being written."""
    place = home.result / "reached"
    return int(place.read_text() or 0) if place.exists() else 0


def goes_on(home: Home, *options: str) -> None:
    """Resumed, it begins at the last step that was done."""
    done = reached(home)
    home.hurry()
    found = home.document("jobs", "resume", "last", *options)
    assert found["state"] == "done"
    _, again = map(int, (home.result / "starts").read_text().split())
    assert done - 1 <= again <= done and again > 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["user", "interrupt"])
def test_a_job_that_is_stopped_waits_for_the_bucket(home: Home, how: str) -> None:
    process = home.start("run", str(anchored(home, 3.0)))
    until(lambda: reached(home) > 20)
    if how == "user":
        assert home.run("jobs", "stop", "last").returncode == 0
    else:
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    found = home.document("jobs", "show", "last")
    assert found["state"] == "stopped" and found["version"] > 0, said
    goes_on(home)


@pytest.mark.slow
def test_a_job_whose_deadline_comes_waits_for_the_bucket(home: Home) -> None:
    began_s = time.monotonic()
    done = home.run("run", str(anchored(home, 1.0, budget={"deadline": "25s"})))
    assert done.returncode == 3 and time.monotonic() - began_s < 40, done
    goes_on(home, "--deadline", "5min")


@pytest.mark.slow
def test_an_orphan_waits_for_the_bucket(home: Home) -> None:
    process = home.start("run", str(anchored(home, 5.0, orphan_after="3s")))
    until(lambda: reached(home))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not home.processes(), 60)
    goes_on(home)


VANISHES = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from deepvm.checkpoint import Checkpointer
from deepvm.checkpoint.tiers.tcp import TcpTier

here = Path(os.environ["RESULT"])
put = TcpTier.put


def put_or_vanish(self, shard, acknowledged, barrier=None):
    "Rank 1's machine is gone as soon as its part is there, and that of rank 0 comes later."
    if shard.rank == 0:
        time.sleep(2)
    put(self, shard, acknowledged, barrier)
    if shard.rank == 1 and os.environ["DEEPVM_EPOCH"] == "1":
        (here / "vanished").write_text(str(shard.version))
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


TcpTier.put = put_or_vanish
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
anchor = next(url for url in os.environ["DEEPVM_TIERS"].split() if url.startswith("tcp"))
checkpointer = Checkpointer(model=model, optimizer=optimizer, tiers=[anchor])
first = checkpointer.restore_latest()
if dist.get_rank() == 0:
    with open(here / "starts", "a") as starts:
        starts.write(f"{first} ")
for step in range(first, 150):
    optimizer.zero_grad()
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
checkpointer.close()
"""


@pytest.mark.slow
def test_a_machine_that_vanishes_behind_its_part_of_an_emergency_save(home: Home) -> None:
    """What is left completes the version, and the controller hears of it: no step is lost."""
    (home.code / "train.py").write_text(VANISHES)
    inject = {"lives": ["1h", "2s"], "grace": "20s", "count": 1}
    job = home.job(
        *("last", "exec python train.py;", 2),
        anchor={"type": "m7g.large"},
        save_policy="adaptive",
        inject=inject,
    )
    found = home.document("run", str(job))
    version = int((home.result / "vanished").read_text())
    assert (found["state"], found["notices"], found["saves"]["emergency"]) == ("done", 1, 1)
    assert (home.result / "starts").read_text() == f"0 {version} " and found["lost_steps"] == 0


TWO = """
import os, time
from pathlib import Path
import torch
import torch.distributed as dist
from deepvm.checkpoint import Checkpointer

here = Path(os.environ["RESULT"])
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters())
checkpointer = Checkpointer(model=model, optimizer=optimizer)
first = checkpointer.restore_latest()
if dist.get_rank() == 0:
    with open(here / "starts", "a") as starts:
        starts.write(f"{first} ")
for step in range(first, 150):
    optimizer.zero_grad()
    model(torch.full((1, 64), float(step + dist.get_rank()))).sum().backward()
    optimizer.step()
    time.sleep(0.05)
checkpointer.close()
if dist.get_rank() == 0:
    total = sum(float(p.double().sum()) for p in model.parameters())
    (here / "final").write_text(total.hex())
"""


@pytest.mark.slow
def test_two_machines_whose_versions_are_in_a_bucket_alone(home: Home) -> None:
    """As jobs on AWS have it without an anchor; the bucket joins what the ranks send."""
    finals = set()
    with running() as store:
        env = {
            "RESULT": str(home.result),
            "OMP_NUM_THREADS": "1",
            "AWS_ENDPOINT_URL_S3": store.url,
            **CREDENTIALS,
        }
        for name, inject in (
            ("whole", None),
            ("cut", {"lives": ["1h", "2s"], "grace": "60s", "count": 1}),
        ):
            (home.code / "train.py").write_text(TWO)
            more = {} if inject is None else {"inject": inject}
            job = home.job(
                name, "exec python train.py;", 2, env=env, tiers=[f"s3://{BUCKET}/{name}"], **more
            )
            found = home.document("run", str(job))
            said = home.run("jobs", "logs", name).stdout[-4000:]
            assert (found["state"], found["lost_steps"], found["notices"]) == (
                "done",
                0,
                inject is not None,
            ), said
            finals.add((home.result / "final").read_text())
    starts = (home.result / "starts").read_text().split()
    assert len(starts) == 3 and int(starts[2]) > 0
    assert len(finals) == 1
