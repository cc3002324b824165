"""EC2 as a cloud of jobs, on moto behind a proxy with faults: one machine for each name, whatever
happens.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.environment import in_environment
from support.jobs.fake_ec2 import BUCKET, FakeEc2
from support.jobs.runs import Home

from deepvm.errors import RequestError
from deepvm.jobs.cloud import Cloud, Launch, RefusedError, RemoteCloud, Start, UnknownError
from deepvm.jobs.clouds.aws import ec2_machine
from deepvm.jobs.clouds.aws.ec2_cloud import MACHINE_TAG, Ec2Cloud
from deepvm.jobs.clouds.aws.ec2_requests import ended_of, instance_of_row, kept
from deepvm.jobs.clouds.aws.ec2_settings import LARGEST, Ec2Settings, user_data
from deepvm.jobs.clouds.registry import clouds_of_owner
from deepvm.jobs.decisions.world import MachineRecord, Pool
from deepvm.jobs.wire import new_secret, secret_of

TYPE = "g4dn.xlarge"
ZONE = Pool(TYPE, "us-east-1b", "spot", 0.3)
REGION = Pool(TYPE, "us-east-1", "spot", 0.3)
SECRET = new_secret()


@pytest.fixture
def cloud(ec2: FakeEc2, tmp_path: Path) -> Ec2Cloud:
    return ec2.cloud(tmp_path)


def ask(cloud: Ec2Cloud, name: str = "m1", pool: Pool = ZONE) -> Launch:
    start = Start("job", name, secret_of(SECRET, name), "http://127.0.0.1:9")
    return cloud.request(MachineRecord(name, pool, time.time()), start)


def fleets(ec2: FakeEc2) -> list[dict[str, str]]:
    return [given for _, action, given in ec2.calls if action == "CreateFleet"]


@pytest.mark.parametrize(
    ("pool", "options"),
    [(ZONE, "SpotOptions"), (replace(ZONE, market="on-demand"), "OnDemandOptions")],
)
def test_a_machine_is_asked_for_at_no_more_than_it_may_cost(
    cloud: Ec2Cloud, ec2: FakeEc2, pool: Pool, options: str
) -> None:
    start = Start(
        "job", "m1", secret_of(SECRET, "m1"), "http://127.0.0.1:9", most_usd_per_hour=0.3600005
    )
    cloud.request(MachineRecord("m1", pool, time.time()), start)
    (asked,) = fleets(ec2)
    assert asked[f"{options}.MaxTotalPrice"] == "0.36"  # never above it
    prices = [value for key, value in asked.items() if key.endswith(".MaxPrice")]
    assert prices == (["0.36"] if pool.market == "spot" else [])


@pytest.mark.parametrize("limit", [None, 0.001])
def test_where_nothing_limits_a_machine_nothing_is_said(
    cloud: Ec2Cloud, ec2: FakeEc2, limit: float | None
) -> None:
    start = Start(
        "job", "m1", secret_of(SECRET, "m1"), "http://127.0.0.1:9", most_usd_per_hour=limit
    )
    cloud.request(MachineRecord("m1", ZONE, time.time()), start)
    assert not [key for key in fleets(ec2)[0] if "Price" in key]


def test_with_another_limit_it_is_another_request(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    """AWS refuses other terms under the same token, as after 'jobs resume --max-price'."""
    start = Start("job", "m1", secret_of(SECRET, "m1"), "http://127.0.0.1:9")
    for limit in (None, 0.36, 0.36, 0.4):
        ec2.full[TYPE, "*"] = "InsufficientInstanceCapacity"
        with pytest.raises(RefusedError):
            cloud.request(
                MachineRecord("m1", ZONE, time.time()), replace(start, most_usd_per_hour=limit)
            )
    tokens = [given["ClientToken"] for given in fleets(ec2)]
    assert tokens[1] == tokens[2] and len(set(tokens)) == 3


def test_an_on_demand_machine_that_aws_does_not_start_names_the_limit(
    cloud: Ec2Cloud, ec2: FakeEc2
) -> None:
    start = Start("job", "m1", secret_of(SECRET, "m1"), "http://127.0.0.1:9", most_usd_per_hour=0.5)
    ec2.full[TYPE, "*"] = ""
    with pytest.raises(RefusedError, match=r"budget.max_price.*\$0.5/h"):
        cloud.request(MachineRecord("m1", replace(ZONE, market="on-demand"), time.time()), start)


def test_a_price_above_the_limit_is_a_refusal_that_says_so(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    ec2.full[TYPE, "*"] = "SpotMaxPriceTooLow"
    with pytest.raises(RefusedError, match="above the limit of the job"):
        ask(cloud)


def test_life_of_a_machine(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    assert not cloud.listing("job").alive
    launch = ask(cloud)
    assert launch.zone == "us-east-1b" and abs(launch.launched_s - time.time()) < 5
    found = cloud.listing("job")
    assert list(found.alive) == ["m1"] and found.zones == {"m1": "us-east-1b"}
    assert not cloud.listing("other").alive
    cloud.release("job", "m1")
    found = cloud.listing("job")
    began_s, ended_s = found.ended["m1"]
    assert not found.alive and 0 <= ended_s - began_s < 10
    cloud.release("job", "m1")  # once more, and one that never was
    cloud.release("job", "m9")
    cloud.finish("job")
    assert ec2.alive() == [] and not [k for k in ec2.objects() if "versions" not in k]
    assert not ec2.client("ec2").describe_launch_templates()["LaunchTemplates"]


def test_it_is_a_cloud(cloud: Ec2Cloud) -> None:
    as_cloud: Cloud = cloud
    assert isinstance(as_cloud, RemoteCloud)
    assert cloud.whole() == "us-east-1" and cloud.tier("job").startswith(f"s3://{BUCKET}/deepvm/")


def test_asked_twice_for_one_name_it_is_one_machine(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    first, again = ask(cloud), ask(cloud)
    assert abs(first.launched_s - again.launched_s) < 2 and again.zone == first.zone
    assert ec2.alive() == ["m1"] and ec2.asked().count("CreateFleet") == 1


def test_a_name_that_has_ended_is_not_made_again(
    cloud: Ec2Cloud, ec2: FakeEc2, tmp_path: Path
) -> None:
    ask(cloud)
    cloud.release("job", "m1")
    ask(ec2.cloud(tmp_path))
    assert ec2.alive() == []


def test_many_at_once(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    threads = [threading.Thread(target=ask, args=(cloud, f"m{n}")) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ec2.alive() == sorted(cloud.listing("job").alive) == ["m1", "m2", "m3", "m4"]


@pytest.mark.slow
def test_a_lost_reply_makes_no_second_machine(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    """boto3 sends the call again, with the same token."""
    ec2.lose = 1
    assert ask(cloud).zone == "us-east-1b"
    assert ec2.asked().count("CreateFleet") == 2 and ec2.alive() == ["m1"]


@pytest.mark.slow
def test_without_any_reply_nobody_knows_and_the_list_does(
    cloud: Ec2Cloud, ec2: FakeEc2, tmp_path: Path
) -> None:
    ec2.lose = 99
    with pytest.raises(UnknownError, match="CreateFleet"):
        ask(cloud)
    ec2.lose = 0
    assert ec2.alive() == ["m1"]
    again = ec2.cloud(tmp_path)  # another process, after kill -9
    assert list(again.listing("job").alive) == ["m1"] and list(ask(again).__dict__)
    assert ec2.alive() == ["m1"]


@pytest.mark.slow
def test_asked_again_before_ec2_lists_it(cloud: Ec2Cloud, ec2: FakeEc2, tmp_path: Path) -> None:
    """Late consistency and a new process: only the token is left to tell."""
    ec2.late_s = 60
    ask(cloud)
    again = ec2.cloud(tmp_path)
    assert not again.listing("job").alive  # it really is hidden
    ask(again)
    assert ec2.alive() == ["m1"]


@pytest.mark.slow
def test_a_machine_that_ec2_does_not_list_yet_is_listed_and_released(
    cloud: Ec2Cloud, ec2: FakeEc2
) -> None:
    ec2.late_s = 60
    ask(cloud)
    assert list(cloud.listing("job").alive) == ["m1"]
    cloud.release("job", "m1")
    assert ec2.alive() == [] and not cloud.listing("job").alive


@pytest.mark.slow
@pytest.mark.parametrize("unheard", [0, 100], ids=["ended at once", "ended at the next look"])
def test_a_fleet_that_brings_two_machines_for_one(
    cloud: Ec2Cloud, ec2: FakeEc2, unheard: int
) -> None:
    """Only one of them is known by what the request returns."""
    ec2.twice, ec2.fail = 1, {"TerminateInstances": ["InternalError"] * unheard}
    ask(cloud)
    assert ec2.alive() == ["m1"] * (2 if unheard else 1)
    ec2.fail = {}
    for _ in range(2):
        assert list(cloud.listing("job").alive) == ["m1"] == ec2.alive()
    assert ec2.asked().count("CreateFleet") == 1
    cloud.release("job", "m1")
    assert ec2.alive() == []


@pytest.mark.slow
def test_machines_are_found_although_the_history_is_lost(
    home: Home, ec2: FakeEc2, tmp_path: Path
) -> None:
    """Those of this owner, heads included.

    They end once their job is named, as another history may have it.
    """
    cloud, theirs = ec2.cloud(home.jobs), ec2.cloud(tmp_path / "theirs")
    assert not clouds_of_owner(home.jobs)
    ask(cloud)
    cloud.start_head("job", 1)
    ask(theirs)
    assert clouds_of_owner(home.jobs) == ("aws",)
    rows = home.document("jobs", "orphans")["orphans"]
    assert [(row["job"], row["machine"], row["known"]) for row in rows] == [
        ("job", n, False) for n in ("head-1", "m1")
    ]
    done = home.run("jobs", "orphans", "--release")
    assert done.returncode == 0 and "deepvm jobs orphans --release job" in " ".join(
        done.stderr.split()
    )
    home.run("jobs", "orphans", "--release", "other")
    assert sorted(ec2.alive()) == ["head-1", "m1", "m1"]
    done = home.run("jobs", "orphans", "--release", "job")
    assert done.returncode == 0 and "released" in done.stderr, done.stderr
    assert ec2.alive() == ["m1"] and list(theirs.listing("job").alive) == ["m1"]
    assert not home.document("jobs", "orphans")["orphans"]


@pytest.mark.slow
def test_two_machines_of_one_name_are_one_after_a_look(
    cloud: Ec2Cloud, ec2: FakeEc2, tmp_path: Path
) -> None:
    """Without client tokens, as a mutation: the look at the list puts it right."""
    ec2.late_s, ec2.forget_tokens = 60, True
    ask(cloud)
    ask(ec2.cloud(tmp_path))
    assert ec2.alive() == ["m1", "m1"]
    ec2.late_s = 0
    assert list(ec2.cloud(tmp_path).listing("job").alive) == ["m1"]
    assert ec2.alive() == ["m1", "m1"]  # 'deepvm jobs orphans' only looks
    resumed = ec2.cloud(tmp_path)
    resumed.announce("job", "http://127.0.0.1:9")
    assert list(resumed.listing("job").alive) == ["m1"]
    assert ec2.alive() == ["m1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("InsufficientInstanceCapacity", "no capacity now"),
        ("MaxSpotInstanceCountExceeded", "quota of spot vCPUs"),
        ("SpotMaxPriceTooLow", "the spot price"),
        ("VcpuLimitExceeded", "Service Quotas"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_refusals_of_a_pool(cloud: Ec2Cloud, ec2: FakeEc2, code: str, said: str) -> None:
    ec2.full[TYPE, "us-east-1b"] = code
    with pytest.raises(RefusedError, match=said) as caught:
        ask(cloud)
    assert (
        TYPE in str(caught.value)
        and "us-east-1b" in str(caught.value)
        and "\n" not in str(caught.value)
    )
    assert ec2.alive() == []


@pytest.mark.slow
def test_a_refused_call_is_a_refusal(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    ec2.fail["CreateFleet"] = ["UnauthorizedOperation"]
    with pytest.raises(RefusedError, match="--iam --for run"):
        ask(cloud)


@pytest.mark.slow
def test_where_one_zone_is_full_another_will_do(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    offered = [*cloud.zones(TYPE, "spot")]
    ec2.full = {(TYPE, zone): "InsufficientInstanceCapacity" for zone in offered[:-1]}
    launch = ask(cloud, pool=REGION)
    assert launch.zone == offered[-1] and launch.usd_per_hour is not None
    assert cloud.listing("job").zones == {"m1": offered[-1]}
    fleets = [given for _, action, given in ec2.calls if action == "CreateFleet"]
    assert fleets[0]["SpotOptions.AllocationStrategy"] == "price-capacity-optimized"


@pytest.mark.parametrize("pool", [ZONE, REGION])
def test_a_spot_machine_costs_what_its_zone_costs_at_its_launch(
    cloud: Ec2Cloud, ec2: FakeEc2, pool: Pool
) -> None:
    """Not what it did when the job was submitted.

    Also where the machine is found that a lost reply was about.
    """
    for _ in range(2):
        launch = ask(cloud, pool=pool)
        assert launch.usd_per_hour == cloud.zones(TYPE, "spot")[launch.zone] != pool.usd_per_hour
    assert ask(cloud, "m2", Pool(TYPE, "us-east-1b", "on-demand", 0.5)).usd_per_hour is None


@pytest.mark.slow
def test_without_a_price_now_the_known_one_counts(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    ec2.fail["DescribeSpotPriceHistory"] = ["UnauthorizedOperation"]
    assert ask(cloud).usd_per_hour is None and ec2.alive() == ["m1"]


def test_on_demand_machines_come_to_where_the_others_are(cloud: Ec2Cloud) -> None:
    ask(cloud, "m1", Pool(TYPE, "us-east-1c", "spot", 0.3))
    assert ask(cloud, "m2", Pool("m7g.large", "us-east-1", "on-demand", 0.08)).zone == "us-east-1c"


@pytest.mark.slow
@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_passing_trouble_is_waited_for(cloud: Ec2Cloud, ec2: FakeEc2, code: str) -> None:
    ec2.fail["CreateFleet"] = [code]
    ask(cloud)
    assert ec2.alive() == ["m1"]


@pytest.mark.slow
def test_trouble_that_stays_leaves_it_unknown(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    ec2.fail = {
        name: ["InternalError"] * 30 for name in ("DescribeInstances", "TerminateInstances")
    }
    with pytest.raises(UnknownError):
        cloud.listing("job")
    with pytest.raises(UnknownError):
        cloud.release("job", "m1")


@pytest.mark.slow
def test_trouble_before_the_request_is_a_refusal_as_nothing_was_made(
    cloud: Ec2Cloud, ec2: FakeEc2
) -> None:
    ec2.fail["CreateLaunchTemplate"] = ["InternalError"] * 30
    with pytest.raises(RefusedError):
        ask(cloud)
    assert "CreateFleet" not in ec2.asked()


def test_two_users_of_one_account_do_not_meet(ec2: FakeEc2, tmp_path: Path) -> None:
    one, other = ec2.cloud(tmp_path / "one"), ec2.cloud(tmp_path / "other")
    ask(one)
    assert not other.listing("job").alive
    other.release("job", "m1")
    other.finish("job")
    assert ec2.alive() == ["m1"] and list(one.listing("job").alive) == ["m1"]


def test_the_launch_template(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    ask(cloud)
    ask(cloud, "m2")
    (template,) = ec2.client("ec2").describe_launch_templates()["LaunchTemplates"]
    assert {t["Key"] for t in template["Tags"]} == {"deepvm:owner", "deepvm:job"}
    asked = {
        k.partition("LaunchTemplateData.")[2]: v
        for k, v in _only(ec2, "CreateLaunchTemplate").items()
    }
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert asked["MaintenanceOptions.AutoRecovery"] == "disabled"
    assert asked["MetadataOptions.HttpTokens"] == "required"
    assert asked["MetadataOptions.HttpPutResponseHopLimit"] == "2"
    assert asked["MetadataOptions.InstanceMetadataTags"] == "enabled"
    assert asked["IamInstanceProfile.Name"] == "deepvm-job"
    script = base64.b64decode(asked["UserData"]).decode()
    assert script.startswith("#!/bin/bash") and len(script.encode()) <= LARGEST
    assert (
        script.index("trap 'shutdown -h now' EXIT")
        < script.index("shutdown -h +20")
        < script.index("python")
    )


def _only(ec2: FakeEc2, action: str) -> dict[str, str]:
    (found,) = [given for _, name, given in ec2.calls if name == action]
    return found


@pytest.mark.slow
def test_no_secret_but_in_the_bucket(
    cloud: Ec2Cloud, ec2: FakeEc2, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine's secret, the job's, and the user's own keys: planted, and looked for in all that
    is sent.
    """
    caplog.set_level(logging.DEBUG, logger="deepvm")
    ec2.full[TYPE, "us-east-1a"] = "InsufficientInstanceCapacity"
    with pytest.raises(RefusedError) as refused:
        ask(cloud, "m9", Pool(TYPE, "us-east-1a", "spot", 0.3))
    ask(cloud)
    mine = secret_of(SECRET, "m1").hex()
    planted = [mine, SECRET, "AKIAPLANTEDSECRET0000", "planted-secret-key"]
    sent = [
        json.dumps({k: str(v) for k, v in given.items()})
        for service, _, given in ec2.calls
        if service == "ec2"
    ]
    sent += [
        base64.b64decode(_only(ec2, "CreateLaunchTemplate")["LaunchTemplateData.UserData"]).decode()
    ]
    sent += [caplog.text, str(refused.value)]
    assert not [secret for secret in planted for text in sent if secret in text]
    carried = [
        given["path"]
        for _, action, given in ec2.calls
        if action == "PutObject" and mine.encode() in given["body"]
    ]
    assert len(carried) == 1 and carried[0].endswith("/job/machines/m1.json")


def test_secrets_leave_the_bucket_with_their_machine(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    ask(cloud)
    assert [k for k in ec2.objects() if k.endswith("machines/m1.json")]
    cloud.release("job", "m1")
    assert not [k for k in ec2.objects() if k.endswith("machines/m1.json")]


def test_the_secret_of_a_machine_that_was_gone_first_leaves_too(
    cloud: Ec2Cloud, ec2: FakeEc2
) -> None:
    ask(cloud)
    client = ec2.client("ec2")
    (row,) = client.describe_instances()["Reservations"][0]["Instances"]
    client.terminate_instances(InstanceIds=[row["InstanceId"]])
    cloud.release("job", "m1")
    assert not [k for k in ec2.objects() if k.endswith("machines/m1.json")]


def test_the_secrets_of_very_many_machines_leave_with_the_job(
    cloud: Ec2Cloud, ec2: FakeEc2
) -> None:
    """S3 lists a thousand at a time."""
    from moto.s3.models import s3_backends

    ask(cloud)
    (place,) = (k for k in ec2.objects() if k.endswith("machines/m1.json"))
    for number in range(2, 1005):
        s3_backends["123456789012"]["aws"].put_object(
            BUCKET, place.replace("m1.", f"m{number}."), b"{}"
        )
    cloud.finish("job")
    assert not [k for k in ec2.objects() if "/machines/" in k]


def test_user_data_that_is_too_long() -> None:
    with pytest.raises(RefusedError, match="16384"):
        user_data("job", Ec2Settings("us-east-1", "bucket"), "x" * LARGEST)


def test_user_data_installs_what_the_user_names() -> None:
    settings = Ec2Settings("us-east-1", "bucket", install="deepvm[train]==0.2; rm -rf /")
    text = user_data("job", settings, "p")
    assert "pip install 'deepvm[train]==0.2; rm -rf /'" in text and "package.tar.gz" not in text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"bucket": ""}, "DEEPVM_AWS_BUCKET is not set.*aws s3 mb"),
        (
            {"bucket": "no-such-bucket-there"},
            "there is no bucket no-such-bucket-there; make it: aws s3 mb",
        ),
        ({"instance_profile": "other"}, "no instance profile other.*; make it, or"),
        ({"subnets": ("subnet-12345678",)}, "DescribeSubnets"),
    ],
)
def test_what_is_missing_is_said(
    ec2: FakeEc2, tmp_path: Path, more: dict[str, object], said: str
) -> None:
    with pytest.raises((RefusedError, UnknownError), match=said):
        ec2.cloud(tmp_path, **more).zones(TYPE, "spot")


def test_an_image_that_is_not_there(ec2: FakeEc2, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"DEEPVM_AWS_AMI: us-east-1 has no image /my/own"):
        ask(ec2.cloud(tmp_path, ami="/my/own"))


def test_a_type_that_is_not_there(cloud: Ec2Cloud) -> None:
    with pytest.raises(RefusedError, match="is not offered in us-east-1a"):
        cloud.zones("x99.huge", "spot")


def test_the_controller_needs_an_address(ec2: FakeEc2, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="DEEPVM_CONTROLLER_HOST"):
        ec2.cloud(tmp_path, controller_host="").host("job")
    here = ec2.cloud(tmp_path, controller_host="gate.example", controller_port=7000)
    assert here.host("job") == "gate.example" and here.listen() == ("0.0.0.0", 7000)


def test_settings() -> None:
    environ = {
        "AWS_REGION": "eu-west-1",
        "DEEPVM_AWS_BUCKET": "s3://b/",
        "DEEPVM_AWS_SUBNETS": "subnet-1, subnet-2",
    }
    found = in_environment(environ, Ec2Settings.of)
    assert (found.region, found.bucket, found.subnets) == (
        "eu-west-1",
        "b",
        ("subnet-1", "subnet-2"),
    )
    assert found.instance_profile == "deepvm-job"
    with pytest.raises(RequestError, match="DEEPVM_CONTROLLER_PORT"):
        in_environment({"DEEPVM_CONTROLLER_PORT": "http"}, Ec2Settings.of)


def test_times_of_the_bill() -> None:
    assert ended_of("User initiated (2026-11-21 09:00:00 GMT)") == 1795251600.0
    assert ended_of("Server.SpotInstanceTermination") is None
    row = {
        "InstanceId": "i-1",
        "LaunchTime": datetime(2026, 11, 21, 8, tzinfo=timezone.utc),
        "State": {"Name": "shutting-down"},
        "StateTransitionReason": "User initiated (2026-11-21 09:00:00 GMT)",
        "Tags": [{"Key": MACHINE_TAG, "Value": "m1"}],
    }
    found = instance_of_row(row)
    assert (found.machine, found.alive, found.ended_s, found.launched_s) == (
        "m1",
        False,
        1795251600.0,
        1795248000.0,
    )
    for code, taken in (
        ("Server.SpotInstanceTermination", True),
        ("Client.InstanceInitiatedShutdown", False),
    ):
        assert instance_of_row({**row, "StateReason": {"Code": code}}).taken is taken
    stopped = instance_of_row({**row, "State": {"Name": "stopped"}, "InstanceId": "i-2"})
    assert stopped.alive and kept([found, stopped]) == {"m1": stopped}


def test_a_machine_whose_end_has_no_time_ended_when_it_was_first_seen(
    cloud: Ec2Cloud, ec2: FakeEc2
) -> None:
    ask(cloud)
    (instance,) = [i for i in ec2.instances() if i._state.name == "running"]
    instance._state.name, instance._reason = "terminated", "Server.SpotInstanceTermination"
    first = cloud.listing("job").ended["m1"]
    time.sleep(0.05)
    assert cloud.listing("job").ended["m1"] == first and abs(first[1] - time.time()) < 5
    assert cloud.listing("job").taken == {"m1"}


def test_the_end_of_a_console(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    ask(cloud)
    assert cloud.last_lines("job", "m1") and not cloud.last_lines("job", "m2")
    assert [action for _, action, _ in ec2.calls].count("GetConsoleOutput") == 1


def test_tags_are_one_name() -> None:
    assert ec2_machine.MACHINE_TAG == MACHINE_TAG
