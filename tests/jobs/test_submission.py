"""What a job file asks for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepvm.errors import RequestError
from deepvm.jobs import submission
from deepvm.jobs.cloud import RefusedError
from deepvm.jobs.clouds.aws.ec2_cloud import Ec2Cloud
from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings
from deepvm.jobs.clouds.registry import CLOUDS, find_cloud, open_cloud
from deepvm.jobs.decisions.reconcile import BUDGET, DEADLINE
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import PREEMPTED, JobState, KeptOutputs, Pool, Reason
from deepvm.jobs.history.history import History, JobRow
from deepvm.jobs.jobfile import JobFile
from deepvm.jobs.wire import FAR_BEAT_S, NEAR_BEAT_S

TYPE = {"type": "g4dn.xlarge"}
NOW = 1_000_000_000.0
ZONES = {"us-east-1a": 0.2, "us-east-1b": 0.2}


class Zones(Ec2Cloud):
    """EC2 as far as a job asks it before anything is rented."""

    lacks: Collection[str] = ()

    def zones(self, instance_type: str, market: str) -> dict[str, float | None]:
        if instance_type in self.lacks:
            raise RefusedError(f"{instance_type} is not offered")
        return dict(ZONES)


def taken(cloud: str) -> dict[str, Any]:
    """A machine of us-east-1a that lived for half a minute."""
    pool = {"instance_type": "g4dn.xlarge", "zone": "us-east-1a", "market": "spot", "cloud": cloud}
    times = {"requested_s": NOW - 1000, "launched_s": NOW - 1000, "ended_s": NOW - 970}
    return {**pool, **times, "end_reason": PREEMPTED}


@pytest.mark.parametrize(
    ("cloud", "first"), [("aws", "us-east-1b"), ("local", "us-east-1a"), ("netns", "us-east-1a")]
)
def test_zones_are_in_the_order_of_what_their_market_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: str, first: str
) -> None:
    """And not of a rehearsal with injected preemptions in a local zone of the same name."""
    ec2 = Zones(tmp_path, Ec2Settings("us-east-1"))
    monkeypatch.setattr(submission, "cloud_of", lambda name: ec2)
    job = JobFile.model_validate(
        {
            "name": "job",
            "train": "true",
            "machines": {"type": "g4dn.xlarge", "count": 2},
            "cloud": "aws",
        }
    )
    world = submission.world_of(job, tmp_path, NOW, [taken(cloud)] * 20)
    assert world.pools[0].zone == first


def test_a_spot_price_that_cannot_be_true_counts_as_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The catalog's counts in its place: at $0.0001/h the zone would come first whatever it really
    costs.
    """
    ec2 = Zones(tmp_path, Ec2Settings("us-east-1"))
    monkeypatch.setattr(submission, "cloud_of", lambda name: ec2)
    prices = {"us-east-1a": 0.0001, "us-east-1b": 0.2, "us-east-1c": 700.0}
    monkeypatch.setattr(ec2, "zones", lambda kind, market: prices)
    machines = {"type": "g4dn.xlarge", "count": 2}
    job = JobFile.model_validate(
        {"name": "job", "train": "true", "machines": machines, "cloud": "aws"}
    )
    usd = {p.zone: p.usd_per_hour for p in submission.world_of(job, tmp_path, NOW).pools}
    known = float(submission.instance_of("g4dn.xlarge").spot_usd_per_hour or 0)
    assert usd == {"us-east-1a": known, "us-east-1b": 0.2, "us-east-1c": known}
    assert "g4dn.xlarge in us-east-1a is left out" in caplog.text and "us-east-1c" in caplog.text


def test_a_plan_of_reserved_machines_is_refused(tmp_path: Path, aws: Zones) -> None:
    """Jobs rent theirs, and would pay for others."""
    job = plan(tmp_path, 3.0, (G4, 0, 2, ""))
    document = json.loads((tmp_path / "plan.json").read_text())
    document["configurations"][0]["gpu"]["reserved"] = {"pool": "block-1", "count": 2}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(RequestError, match="without reserved VMs"):
        submission.world_of(job, tmp_path, NOW)


def plan(
    folder: Path, usd_per_hour: float, *clusters: tuple[str, int, int, str], **more: Any
) -> JobFile:
    """A job on a plan for so many $/h, with clusters by rank: type, spot machines, those on demand,
    anchor.
    """
    configurations = []
    for rank, (kind, spots, steadies, anchor) in enumerate(clusters, start=1):
        gpu = {
            "instance_type": kind,
            "count": spots + steadies,
            "spot_count": spots,
            "on_demand_count": steadies,
        }
        memory = (
            {"instance_type": anchor, "count": 1, "on_demand_usd_per_hour": 0.1} if anchor else None
        )
        found = {
            "rank": rank,
            "architecture": "tiering",
            "usd_per_hour": 1.0,
            "gpu": gpu,
            "memory": memory,
        }
        configurations.append(found)
    document: dict[str, Any] = {
        "schema_version": "deepvm.recommend/1",
        "source": {"catalog": "aws"},
    }
    document |= {"request": {"pw_usd_per_hour": usd_per_hour}, "configurations": configurations}
    (folder / "plan.json").write_text(json.dumps(document))
    return JobFile.model_validate(
        {"name": "job", "train": "true", "machines": {"plan": "plan.json"}, "cloud": "aws", **more}
    )


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Zones:
    ec2 = Zones(tmp_path, Ec2Settings("us-east-1"))
    monkeypatch.setattr(submission, "cloud_of", lambda name: ec2)
    return ec2


def types(pools: Iterable[Pool]) -> list[str]:
    return list(dict.fromkeys(pool.instance_type for pool in pools))


G4, G5, G6 = ("g4dn.xlarge", "g5.xlarge", "g6.xlarge")  # 0.526, 1.006 and $0.8048/h on demand


def test_on_demand_machines_come_from_the_next_ranked_plan_too(tmp_path: Path, aws: Zones) -> None:
    """As far as the budget buys as many: the job's, or the one of the plan."""
    clusters = [(G4, 0, 2, ""), (G5, 0, 1, ""), ("p5.48xlarge", 0, 1, ""), (G6, 0, 3, "")]
    world = submission.world_of(plan(tmp_path, 3.0, *clusters), tmp_path, NOW)
    assert types(world.pools) == [G4, G5, G6]  # of eight GPUs each is none of them
    assert {p.market for p in world.pools} == {"on-demand"} and {p.zone for p in world.pools} == {
        "us-east-1"
    }
    assert types(submission.world_of(plan(tmp_path, 1.7, *clusters), tmp_path, NOW).pools) == [
        G4,
        G6,
    ]
    assert types(submission.world_of(plan(tmp_path, 0.1, *clusters), tmp_path, NOW).pools) == [G4]
    more = plan(tmp_path, 0.1, *clusters, budget={"usd_per_hour": 2.1})
    assert types(submission.world_of(more, tmp_path, NOW).pools) == [G4, G5, G6]


def test_machines_that_must_be_on_demand_and_those_of_a_deadline_too(
    tmp_path: Path, aws: Zones
) -> None:
    budget = {"deadline": "9h"}
    job = plan(
        tmp_path, 9.0, (G4, 1, 1, ""), (G5, 2, 1, ""), (G6, 2, 0, ""), budget=budget, steps=100
    )
    terms = submission.world_of(job, tmp_path, NOW).terms
    assert types(terms.steady) == types(terms.bought) == [G4, G5, G6]


def test_anchors_too_if_they_have_as_much_memory(tmp_path: Path, aws: Zones) -> None:
    clusters = [
        (G4, 2, 0, "m7g.large"),
        (G5, 2, 0, "c5n.large"),
        (G6, 2, 0, "m7g.xlarge"),
        (G6, 2, 0, ""),
    ]
    world = submission.world_of(plan(tmp_path, 9.0, *clusters), tmp_path, NOW)
    assert types(world.terms.anchor) == ["m7g.large", "m7g.xlarge"]
    own = plan(tmp_path, 9.0, *clusters, anchor={"type": "m8g.large"})
    assert types(submission.world_of(own, tmp_path, NOW).terms.anchor) == ["m8g.large"]
    none = plan(tmp_path, 9.0, *clusters, anchor="none")
    assert submission.world_of(none, tmp_path, NOW).terms.anchor == ()


@pytest.mark.parametrize("spots", [0, 2])
def test_a_next_ranked_type_that_is_not_offered_is_none(
    tmp_path: Path, aws: Zones, spots: int
) -> None:
    aws.lacks = {G5}
    job = plan(tmp_path, 9.0, *((kind, spots, 2 - spots, "") for kind in (G4, G5, G6)))
    assert types(submission.world_of(job, tmp_path, NOW).pools) == [G4, G6]
    aws.lacks = {G4}
    with pytest.raises(RefusedError, match=f"{G4} is not offered"):
        submission.world_of(job, tmp_path, NOW)


def test_what_the_history_knows_of_zones_goes_with_the_job(tmp_path: Path, aws: Zones) -> None:
    job = plan(tmp_path, 9.0, (G4, 2, 0, ""))
    world = submission.world_of(job, tmp_path, NOW, [taken("aws")] * 20)
    assert {pool.zone: record.taken for pool, record in world.priors.items()} == {
        "us-east-1a": 20,
        "us-east-1b": 0,
    }


@pytest.mark.parametrize("cloud", CLOUDS)
def test_who_misses_three_heartbeats_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: str
) -> None:
    """Later than three a loss costs time for nothing, sooner a message that was late is one."""
    ec2 = Zones(tmp_path, Ec2Settings("us-east-1"))
    monkeypatch.setattr(
        submission, "cloud_of", lambda name: ec2 if name == "aws" else open_cloud(name, tmp_path)
    )
    (tmp_path / "hosts").write_text("one\n")
    machines = {"hosts": "hosts"} if cloud == "ssh" else TYPE
    where: dict[str, Any] = {"tiers": ["s3://bucket/run"], "cloud": cloud, "machines": machines}
    job = JobFile.model_validate({"name": "job", "train": "true", **where})
    beat_s = NEAR_BEAT_S if find_cloud(cloud).near else FAR_BEAT_S
    assert 3 * beat_s <= submission.world_of(job, tmp_path, NOW).terms.silent_s <= 4 * beat_s


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("DEEPVM_HISTORY", raising=False)
    with History.open() as found:
        yield found


def submitted(history: History, name: str, **budget: Any) -> JobState:
    job = JobFile.model_validate(
        {"name": name, "train": "true", "machines": TYPE, "budget": budget}
    )
    return submission.submit(job, Path("job.yaml"), history)[1]


def ended(history: History, name: str, before: JobState, **changes: Any) -> JobRow:
    """A job that has stopped or failed."""
    history.commit(name, before, replace(before, **{"job": Job.STOPPED, **changes}), [])
    history.finish(name, {"state": "stopped"})
    row = history.job(name)
    assert row is not None
    return row


def refusal(history: History, row: JobRow) -> str:
    with pytest.raises(RequestError) as caught:
        submission.resumed(row, history)
    return caught.value.about("--" + caught.value.option.replace("_", "-"))


def test_a_name_that_exists_is_answered_with_what_people_mean(history: History) -> None:
    world = submitted(history, "one")
    submitted(history, "one-2")
    for state, said in (
        ("stopped", "'deepvm jobs resume one' continues it, with the code that was submitted, "),
        ("done", ""),
    ):
        ended(history, "one", world)
        history.finish("one", {"state": state})
        with pytest.raises(RequestError) as caught:
            submitted(history, "one")
        assert (
            caught.value.allowed
            == f"a name that no job has had; {said}'--replace' starts over in its place,"
            " '--name one-3' starts a new job"
        )


@pytest.mark.parametrize(
    ("changes", "trained_s", "over"),
    [
        ({}, 60.0, True),
        ({"job": Job.FAILED}, 60.0, True),
        ({"job": Job.DONE}, 60.0, False),
        ({"job": Job.FAILED}, 3600.0, False),  # what it has printed may be worth something
        ({"reached": 1}, 60.0, False),
        ({"version": 1}, 60.0, False),
        ({"saves": {Reason.STOP: 1}}, 60.0, False),
        ({"outputs": {"m1": KeptOutputs(files=1, bytes=1)}}, 60.0, False),
    ],
)
def test_only_a_job_that_kept_nothing_gives_its_name_away(
    history: History, changes: dict[str, Any], trained_s: float, *, over: bool
) -> None:
    world = submitted(history, "one")
    row = history.job("one")
    assert row is not None and not submission.starts_over(row, history)  # it may run
    assert "--replace" not in submission.name_is_taken(row, history).allowed
    ended(history, "one", world, **changes)
    history.finish("one", {"state": "failed", "breakdown_s": {"compute": trained_s}})
    row = history.job("one")
    assert row is not None and submission.starts_over(row, history) == over


def test_a_budget_that_is_used_up_is_not_used_again(history: History) -> None:
    row = ended(
        history,
        "poor",
        submitted(history, "poor", total_usd=50),
        ending=f"{BUDGET} of $50 is used up",
    )
    said = (
        "--total-usd: not given (expected more than the budget of $50, at which poor has stopped,"
        " such as --total-usd 100)"
    )
    assert refusal(history, row) == said
    assert submission.resumed(row, history, total_usd=60.0)[1].terms.total_usd == 60


def test_a_deadline_that_has_come_does_not_come_again(history: History) -> None:
    row = ended(
        history, "late", submitted(history, "late", deadline="90min"), ending=f"{DEADLINE} has come"
    )
    said = (
        "--deadline: not given (expected a time from now, as the deadline of late has passed, such"
        " as --deadline 1.5h)"
    )
    assert refusal(history, row) == said
    assert submission.resumed(row, history, deadline_s=60.0)[1].job is Job.PENDING


def test_a_deadline_that_has_come_since_is_not_met_any_more(history: History) -> None:
    world = submitted(history, "old", deadline="20s")
    row = ended(
        history,
        "old",
        replace(world, terms=replace(world.terms, end_s=NOW)),
        ending="stopped by the user",
    )
    assert "--deadline 1min" in refusal(history, row)


@pytest.mark.parametrize("total", [None, 50])
def test_a_job_that_was_stopped_goes_on_with_what_it_has(
    history: History, total: float | None
) -> None:
    row = ended(
        history,
        "stopped",
        submitted(history, "stopped", total_usd=total),
        ending="stopped by the user",
    )
    assert submission.resumed(row, history)[1].terms.total_usd == total
