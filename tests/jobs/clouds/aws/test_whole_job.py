"""A whole job on AWS, but for AWS: real controller, real user data, real agents and trainers, a
spot interruption.
"""

from __future__ import annotations

import fnmatch
import sys
from pathlib import Path

import pytest
from support.jobs.fake_ec2 import BUCKET, CREDENTIALS, IMAGE, FakeEc2
from support.jobs.fake_machines import TRAIN, Machines, step_of
from support.jobs.kills import TORCH, undisturbed
from support.jobs.runs import Home, until

pytestmark = pytest.mark.slow  # whole jobs


@pytest.fixture(autouse=True)
def reached(home: Home) -> None:
    """Machines reach a controller that runs here."""
    home.env["DEEPVM_CONTROLLER_HOST"] = "127.0.0.1"


def test_a_job_outlives_its_spot_machine(
    home: Home, ec2: FakeEc2, machines: Machines, tmp_path: Path
) -> None:
    """Its Python, in a folder that no ``PATH`` of the image names, is that of the setup and of the
    training.
    """
    setup = f"""python -c 'import sys; assert sys.prefix == "{sys.prefix}"'"""
    job = home.job(
        "one",
        TRAIN.format(steps=300),
        cloud="aws",
        setup=setup,
        tiers=[(tmp_path / "versions").as_uri()],
    )
    process = home.start("run", str(job), "-o", "json")
    until(lambda: step_of(home.result) == 1 or process.poll() is not None, 90)
    assert process.poll() is None, process.communicate()
    (first,) = machines.all.values()
    # It runs what came by the bucket
    assert (first.place / "disk" / "package" / "deepvm" / "jobs").is_dir()
    machines.interrupt(first, 20.0)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, (said, (first.place / "console").read_text())
    found = home.document("jobs", "show", "one")
    assert (found["state"], found["notices"], found["lost_steps"]) == ("done", 1, 0)
    assert [m["end_reason"] for m in found["machines"]] == ["preempted", "released"]
    assert all(
        m["zone"].startswith("us-east-1") and len(m["zone"]) == 10 for m in found["machines"]
    )
    assert 0 < found["cost_usd"] < 0.1
    assert ec2.alive() == [] and (home.result / "done-0").read_text() == "300 "
    assert not [key for key in ec2.objects() if "versions" not in key]
    secrets = [p for p in home.folder.rglob("secret") if p.is_file()]
    planted = [secrets[0].read_text().strip(), CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
    history = (tmp_path / "data" / "deepvm" / "history.db").read_bytes()
    assert not [text for text in planted if text.encode() in history]


def test_two_ranks_and_an_anchor_outlive_a_notice(
    home: Home, ec2: FakeEc2, machines: Machines, tmp_path: Path
) -> None:
    """Real DDP on two instances.

    A third keeps checkpoints in its memory, from which the next generation goes on.
    """
    pytest.importorskip("torch")
    (home.code / "train.py").write_text(TORCH)
    env = {"RESULT": str(home.result), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    tiers = [(tmp_path / "versions").as_uri()]
    job = home.job(
        *("two", "python train.py 600 0.05;", 2),
        cloud="aws",
        anchor={"type": "m7g.large"},
        tiers=tiers,
        env=env,
    )
    process, restored = home.start("run", str(job), "-o", "json"), home.result / "restored-0"
    until(lambda: restored.exists() or process.poll() is not None, 200)
    assert process.poll() is None, process.communicate()
    names = {m["id"]: m["type"] for m in home.document("jobs", "show", "two")["machines"]}
    assert sorted(names.values()) == ["g4dn.xlarge", "g4dn.xlarge", "m7g.large"]
    trainers = [m for m in machines.all.values() if names[m.name] == "g4dn.xlarge"]
    machines.interrupt(trainers[-1], 30.0)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, (said, [(m.place / "console").read_text() for m in trainers])
    found = home.document("jobs", "show", "two")
    assert (found["state"], found["notices"], found["lost_steps"], found["generations"]) == (
        "done",
        1,
        0,
        2,
    )
    _, again = restored.read_text().splitlines()
    generation, version, saved_by = map(int, again.split())
    assert (generation, saved_by) == (2, 1) and version > 0
    lines = [
        line
        for line in home.run("jobs", "logs", "two").stdout.splitlines()
        if "resumed from" in line
    ]
    assert len(lines) == 1 and f"resumed from version {version} of tcp://127.0.0.1" in lines[0], (
        lines
    )
    assert ec2.alive() == []
    made = sorted(m.name for m in machines.all.values())
    assert (
        made == ["m1", "m2", "m3", "m4"] == sorted(m["id"] for m in found["machines"] if m["usd"])
    )
    ends = {"m7g.large": ["released"], "g4dn.xlarge": ["preempted", "released", "released"]}
    assert {
        t: sorted(m["end_reason"] for m in found["machines"] if m["type"] == t) for t in ends
    } == ends
    assert found["cost_usd"] == pytest.approx(sum(m["usd"] for m in found["machines"]), abs=1e-7)
    (calm := Home(tmp_path / "calm")).code.joinpath("train.py").write_text(TORCH)
    try:
        assert {(home.result / f"final-{rank}").read_text() for rank in range(2)} == {
            undisturbed(calm, 600)
        }
    finally:
        calm.end()


def test_a_machine_that_cannot_begin_ends_itself(
    home: Home, ec2: FakeEc2, machines: Machines
) -> None:
    """Its package is gone from the bucket: the trap of its user data ends it, and the job goes on
    asking.
    """
    home.env["DEEPVM_AWS_PYTHON"] = "no-such-python"
    process = home.start(
        "run", str(home.job("bad", TRAIN.format(steps=5), cloud="aws")), "-o", "json"
    )
    until(lambda: any(not m.alive for m in machines.all.values()) or process.poll() is not None, 60)
    assert process.poll() is None
    *_, machine = [m for m in machines.all.values() if not m.alive]
    assert (machine.place / "shutdowns").read_text().splitlines() == ["-h +20", "-h now"]
    stopped = home.run("jobs", "stop", "bad")
    assert stopped.returncode == 0, stopped.stderr
    process.communicate(timeout=60)
    assert process.returncode == 3 and ec2.alive() == []


def test_what_is_missing_is_said_before_anything_is_written_down(home: Home, ec2: FakeEc2) -> None:
    del home.env["DEEPVM_AWS_BUCKET"]
    done = home.run("run", str(home.job("one", TRAIN.format(steps=5), cloud="aws")))
    assert (
        done.returncode == 5
        and "DEEPVM_AWS_BUCKET is not set" in done.stderr
        and "aws s3 mb" in done.stderr
    )
    assert "one" not in home.run("jobs", "ls").stdout
    home.env["DEEPVM_AWS_BUCKET"] = BUCKET
    del home.env["DEEPVM_CONTROLLER_HOST"]
    done = home.run("run", str(home.job("one", TRAIN.format(steps=5), cloud="aws")))
    assert (
        done.returncode == 5
        and "DEEPVM_CONTROLLER_HOST" in done.stderr
        and "--detach" in done.stderr
    )
    assert "CreateFleet" not in ec2.asked() and "one" not in home.run("jobs", "ls").stdout


def test_a_dry_run_shows_what_would_be_rented_and_asks_only_what_is_free(
    home: Home, ec2: FakeEc2
) -> None:
    del home.env["DEEPVM_CONTROLLER_HOST"]
    home.env |= {"AWS_EC2_METADATA_DISABLED": "true", "DEEPVM_AWS_ANCHOR_AMI": IMAGE}  # a laptop
    job = str(home.job("two", TRAIN.format(steps=5), count=2, cloud="aws", budget={"total_usd": 3}))
    alone = home.run("run", job, "--dry-run")
    assert alone.returncode == 5 and "--detach" in alone.stderr
    found = home.document("run", job, "--detach", "--dry-run")
    assert [(m["role"], m["type"], m["most"]) for m in found["machines"]] == [
        ("trainer", "g4dn.xlarge", 2),
        ("head", "t3.small", 1),
    ]
    zones = [pool["zone"] for pool in found["pools"]]
    assert len(zones) > 1 and all(
        zone.startswith("us-east-1") and len(zone) == 10 for zone in zones
    )
    dearest = max(pool["usd_per_hour"] for pool in found["pools"])
    assert found["usd_per_hour"] == pytest.approx(2 * dearest + 0.0208)
    shown = home.run("run", job, "--detach", "--dry-run").stdout
    assert "2 x g4dn.xlarge spot, 1 x t3.small for the controller" in shown and "$3 in all" in shown
    assert f"asked for in this order: g4dn.xlarge in {zones[0]}" in shown
    assert (
        all(action.startswith(("Describe", "Get")) for action in ec2.asked())
        and ec2.objects() == []
    )
    assert "two" not in home.run("jobs", "ls").stdout


def test_what_a_job_makes_has_the_names_that_the_dry_run_shows(
    home: Home, ec2: FakeEc2, machines: Machines
) -> None:
    job = str(home.job("one", TRAIN.format(steps=10**6), cloud="aws"))
    names = {row["what"]: row["name"] for row in home.document("run", job, "--dry-run")["names"]}
    process = home.start("run", job)
    until(lambda: bool(ec2.alive()), 60)
    (instance,) = [i for i in ec2.instances() if i._state.name == "running"]
    tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
    for key in ("deepvm:owner", "deepvm:job"):
        assert f"{key}={tags[key]}" in names["instances"]
    assert names["instances"].startswith(tags["Name"])
    (template,) = ec2.client("ec2").describe_launch_templates()["LaunchTemplates"]
    assert fnmatch.fnmatch(template["LaunchTemplateName"], names["launch templates"])
    assert all(f"s3://{BUCKET}/{key}".startswith(names["objects"]) for key in ec2.objects())
    assert home.run("jobs", "stop", "one").returncode == 0
    process.communicate(timeout=60)
    assert ec2.alive() == []


def test_a_replaced_job_gets_machines_and_checkpoints_of_its_own(
    home: Home, ec2: FakeEc2, machines: Machines
) -> None:
    """EC2 would answer a second request for m1 with the first m1, which has ended."""
    tiers = [(home.folder / "versions").as_uri()]
    job = str(home.job("one", TRAIN.format(steps=5), cloud="aws", tiers=tiers))
    assert home.run("run", job).returncode == 0
    done = home.run("run", job, "--replace")
    assert done.returncode == 0, done.stderr
    assert (home.result / "starts-0").read_text() == "0 0 "
    (machine,) = home.document("jobs", "show", "one")["machines"]
    assert machine["id"] == "m2" and len(machines.all) == 2 and ec2.alive() == []
