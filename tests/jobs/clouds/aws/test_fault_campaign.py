"""Seeded campaigns of faults: the real decisions on the real cloud code, over moto and what goes
wrong in front of it.

Whatever happens, between looks at the list there is never a machine too many for longer than one
look, none is left after the job, and what was paid is the sum of the lives of all machines, each
once.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.fake_ec2 import FakeEc2, running

from deepvm.catalog.clouds.aws.client import Aws
from deepvm.jobs.cloud import RefusedError, Start, UnknownError
from deepvm.jobs.clouds.aws.ec2_cloud import Ec2Cloud
from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.hangs import adopted
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.jobs.history.history import PLACE, History
from deepvm.jobs.wire import new_secret, secret_of

pytestmark = pytest.mark.slow  # whole jobs

TYPES = ("g4dn.xlarge", "g5.xlarge")
POOLS = tuple(Pool(kind, f"us-east-1{zone}", "spot", 3600.0) for kind in TYPES for zone in "ab")
CODES = (
    "InsufficientInstanceCapacity",
    "MaxSpotInstanceCountExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
)
MOST, LATE_S = 3, 0.4
SECRET = new_secret()


class _Impatient(Aws):
    attempts = 2


@pytest.fixture(scope="module")
def ec2() -> Iterator[FakeEc2]:
    with running() as found:
        yield found


class _Killed(Exception):
    """kill -9."""


class Job:
    """A controller without its wires: what it knows is on the disk, and it may die between any two
    calls.
    """

    def __init__(self, ec2: FakeEc2, folder: Path, seed: int) -> None:
        self.ec2, self.rng, self.folder = ec2, random.Random(seed), folder
        self.name = f"job{seed}"
        terms = JobLimits(MOST, MOST, absent_s=3 * LATE_S, cool_s=0.05, start_s=30.0)
        self.history = self._opened()
        now_s = time.time()
        self.history.add_job(
            self.name, now_s, folder, {"cloud": "aws"}, JobState(terms, now_s, pools=POOLS)
        )
        self.kills = 0
        self.begin()

    def _opened(self) -> History:
        return History.open({PLACE: str(self.folder / "history.db")})

    def begin(self) -> None:
        """A new process: it knows what the history says, and nothing of what was under way."""
        self.history.close()
        self.history = self._opened()
        self.stored = self.history.world(self.name)
        self.world = adopted(self.stored, time.time())
        settings = Ec2Settings(
            "us-east-1",
            bucket="jobs",
            ami="ami-12c6146b",
            anchor_ami="ami-12c6146b",
            controller_host="127.0.0.1",
        )
        self.cloud = Ec2Cloud(self.folder, settings, _Impatient("", "us-east-1", total_s=20.0))
        # A dollar a second, as the pools say: moto has prices of its own.
        self.cloud._account.spot_prices = lambda kind: {
            pool.zone: pool.usd_per_hour for pool in POOLS
        }  # type: ignore[method-assign]

        with contextlib.suppress(UnknownError):  # what S3 had is still right
            self.cloud.announce(self.name, "http://127.0.0.1:9")

    def feed(self, *events: d.Event) -> None:
        try:
            self.heed(*events)
        except _Killed:
            self.kills += 1
            self.begin()

    def point(self) -> None:
        """Where kill -9 may end the process."""
        if self.rng.random() < 0.08:
            raise _Killed

    def heed(self, *events: d.Event) -> None:
        world, acts = react(self.world, list(events), time.time())
        self.point()  # nothing is written down yet
        self.history.commit(self.name, self.stored, world, [])
        self.world = self.stored = world
        for act in acts:
            self.point()  # between intent and call
            self.do(act)

    def do(self, act: d.Act) -> None:
        try:
            if isinstance(act, d.Release):
                self.cloud.release(self.name, act.id)
                return
            start = Start(self.name, act.id, secret_of(SECRET, act.id), "http://127.0.0.1:9")
            launch = self.cloud.request(self.world.machines[act.id], start)
        except RefusedError as error:
            self.heed(d.Refused(act.id, str(error)))
        except UnknownError:
            return
        else:
            self.point()  # between the call and what is written down of it
            self.heed(d.Launched(act.id, launch.launched_s, launch.zone, launch.usd_per_hour))

    def look(self) -> None:
        try:
            found = self.cloud.listing(self.name)
        except UnknownError:
            return
        self.feed(
            d.InstancesListed(dict(found.alive), dict(found.ended), dict(found.zones), found.taken)
        )

    def wanted(self) -> set[str]:
        over = (Machine.RELEASING, Machine.LOST, Machine.ENDED, Machine.FAILED)
        return {m.id for m in self.world.machines.values() if m.state not in over}


def trouble(ec2: FakeEc2, rng: random.Random) -> None:
    ec2.full = {(p.instance_type, p.zone): rng.choice(CODES) for p in POOLS if rng.random() < 0.3}
    ec2.lose = rng.choice([0, 0, 1, 3])
    ec2.twice = rng.choice([0, 0, 1, 2])
    ec2.late_s = rng.choice([0.0, LATE_S])
    ec2.fail = {
        action: rng.choices(["RequestLimitExceeded", "InternalError"], k=rng.randrange(3))
        for action in ("CreateFleet", "DescribeInstances", "TerminateInstances")
        if rng.random() < 0.3
    }


def calm(ec2: FakeEc2) -> None:
    ec2.full, ec2.lose, ec2.twice, ec2.late_s, ec2.fail = {}, 0, 0, 0.0, {}


def lose_one(ec2: FakeEc2, rng: random.Random) -> None:
    """AWS takes a machine without a word."""
    alive = [i for i in ec2.instances() if i._state.name == "running"]
    if alive and rng.random() < 0.4:
        rng.choice(alive).terminate()


def reconciled(job: Job, ec2: FakeEc2) -> None:
    """After one look in calm weather nothing lives that is not wanted, and nothing twice."""
    calm(ec2)
    while True:
        job.kills = 0
        job.look()
        if set(ec2.alive()) <= job.wanted() and len(ec2.alive()) == len(set(ec2.alive())):
            return
        # A call of this look that was killed is made at the next
        assert job.kills, (ec2.alive(), job.world.machines)


@pytest.mark.parametrize("seed", range(20))
def test_never_a_machine_too_many(ec2: FakeEc2, tmp_path: Path, seed: int) -> None:
    ec2.begin()
    before = {i.id for i in ec2.instances()}
    job, rng = Job(ec2, tmp_path, seed), random.Random(seed)
    for _ in range(5):
        trouble(ec2, rng)
        for _ in range(2):
            job.feed(d.Tick())
            job.look()
            lose_one(ec2, rng)
            time.sleep(0.02)
        reconciled(job, ec2)
        assert len(set(ec2.alive())) <= MOST
    # A stop that a controller had not written down when it was killed is said again
    while not job.world.ending:
        job.feed(d.Stop("enough"))
    deadline = time.monotonic() + 60
    while not all(m.state.over for m in job.world.machines.values()):
        assert time.monotonic() < deadline, job.world.machines
        job.look()
        job.feed(d.Tick())
        time.sleep(0.05)
    job.cloud.finish(job.name)
    assert ec2.alive() == []
    job.look()
    made = sum(i.id not in before for i in ec2.instances())
    _paid_once(job, made - ec2.doubled)


def _paid_once(job: Job, made: int) -> None:
    """By EC2's own times, of all machines; those of one name that were there twice count once."""
    found = job.cloud.listing(job.name)
    by_name = {name: ended_s - began_s for name, (began_s, ended_s) in found.ended.items()}
    assert made == len(by_name), (
        "a machine of no name, or two of one that no fleet has brought at once"
    )
    assert job.world.usd == pytest.approx(sum(by_name.values()), abs=1e-6)


def test_without_tokens_it_fails(ec2: FakeEc2, tmp_path: Path) -> None:
    """A mutation: were tokens ignored, lost replies would make machines that nobody counts."""
    ec2.begin()
    ec2.forget_tokens, ec2.lose, ec2.late_s = True, 1, 60.0
    before = {i.id for i in ec2.instances()}
    job = Job(ec2, tmp_path, 1)
    job.rng = random.Random(3)
    job.feed(d.Tick())
    made = [i for i in ec2.instances() if i.id not in before]
    assert len(made) > len(
        {m.id for m in job.world.machines.values() if m.state is Machine.BOOTING}
    )
