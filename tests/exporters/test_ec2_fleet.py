"""CreateFleet requests: judged by the real service model, and sent to a server that answers like
AWS.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.stub import Stubber
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st
from support.effort import sampled
from support.moto_server import moto_server
from support.plans import PLANS, any_plan, gpu_vms, memory_vms, spot_only, tiering

from deepvm.core.cluster.plan import Plan
from deepvm.errors import RequestError
from deepvm.exporters.aws import Ec2Fleet
from deepvm.exporters.base import write_export
from deepvm.exporters.options import ExportOptions
from deepvm.exporters.registry import render

TEMPLATE = ExportOptions(launch_template="my-template")


def client(url: str | None = None, service: str = "ec2") -> Any:
    return boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(retries={"total_max_attempts": 1}),
    )


def requests(plan: Plan, options: ExportOptions = TEMPLATE) -> dict[str, dict[str, Any]]:
    files = render(plan, "ec2-fleet", options).files
    return {f.name: json.loads(f.text) for f in files if f.name.endswith("-fleet.json")}


def templates(plan: Plan, options: ExportOptions) -> dict[str, dict[str, Any]]:
    files = render(plan, "ec2-fleet", options).files
    return {f.name: json.loads(f.text) for f in files if f.name.endswith("-template.json")}


def overrides(request: dict[str, Any]) -> list[dict[str, Any]]:
    (config,) = request["LaunchTemplateConfigs"]
    found: list[dict[str, Any]] = config["Overrides"]
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_service_model_takes_them(plan: Plan) -> None:
    model = client().meta.service_model.operation_model("CreateFleet")
    with Stubber(client()) as stub:
        for request in requests(plan).values():
            report = ParamValidator().validate(request, model.input_shape)
            assert not report.has_errors(), report.generate_report()
            _assert_enums(request, model.input_shape)
            # The same request through a client, which is what the AWS command line is.
            stub.add_response("create_fleet", {"FleetId": "fleet-1"}, request)
            assert stub.client.create_fleet(**request)["FleetId"] == "fleet-1"


def _assert_enums(value: Any, shape: Any) -> None:
    """The validator checks types only; values of enumerations are checked here."""
    if shape.type_name == "structure":
        for name, part in value.items():
            _assert_enums(part, shape.members[name])
    elif shape.type_name == "list":
        for part in value:
            _assert_enums(part, shape.member)
    elif getattr(shape, "enum", None):
        assert value in shape.enum


@pytest.mark.parametrize("plan", sampled(PLANS.values()), ids=PLANS)
def test_a_server_starts_the_vms(plan: Plan, server: str) -> None:
    ec2 = client(server)
    name = f"template-{plan.architecture}"
    image = ec2.describe_images(Owners=["amazon"], MaxResults=5)["Images"][0]["ImageId"]
    ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData={"ImageId": image})
    for request in requests(plan, ExportOptions(launch_template=name)).values():
        fleet = ec2.create_fleet(**request)["FleetId"]
        running = ec2.describe_fleet_instances(FleetId=fleet)["ActiveInstances"]
        (wanted,) = {o["InstanceType"] for o in overrides(request)}
        assert [i["InstanceType"] for i in running] == [wanted] * request[
            "TargetCapacitySpecification"
        ]["TotalTargetCapacity"]
        (described,) = ec2.describe_fleets(FleetIds=[fleet])["Fleets"]
        assert described["Type"] == request["Type"]
        ec2.delete_fleets(FleetIds=[fleet], TerminateInstances=True)


OURS = ExportOptions(
    image="ami-0123456789abcdef0", key_name="key", security_group=("sg-1",), command="train.py"
)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_templates_hold_what_starts_the_training(plan: Plan) -> None:
    model = client().meta.service_model.operation_model("CreateLaunchTemplate")
    found = templates(plan, OURS)
    assert [name.removesuffix("-template.json") for name in found] == [g.role for g in plan.groups]
    for (role, request), fleet in zip(found.items(), requests(plan, OURS).values(), strict=True):
        report = ParamValidator().validate(request, model.input_shape)
        assert not report.has_errors(), report.generate_report()
        _assert_enums(request, model.input_shape)
        (config,) = fleet["LaunchTemplateConfigs"]
        assert (
            config["LaunchTemplateSpecification"]["LaunchTemplateName"]
            == request["LaunchTemplateName"]
        )
        assert (
            request["LaunchTemplateName"]
            == f"deepvm-training-{role.removesuffix('-template.json')}"
        )
        data = request["LaunchTemplateData"]
        assert data["IamInstanceProfile"] == {"Name": "deepvm-training"}
        assert (data["ImageId"], data["KeyName"], data["SecurityGroupIds"]) == (
            OURS.image,
            "key",
            ["sg-1"],
        )
        script = base64.b64decode(data["UserData"])
        assert script.startswith(b"#!/bin/bash\n") and len(script) < 16384
        subprocess.run(["bash", "-n"], input=script, check=True)


def test_the_placeholder_is_refused(tmp_path: Path) -> None:
    """By the script, and by AWS: it is no id of an image."""
    write_export(render(tiering(), "ec2-fleet"), tmp_path)
    out = subprocess.run(
        [tmp_path / "start.sh"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert out.returncode == 2 and "fill in what stands between" in out.stderr
    assert out.stdout.split() == ["./memory-template.json", "./training-template.json"]
    assert not re.fullmatch(r"ami-[0-9a-f]+", Ec2Fleet.PLACEHOLDER)
    assert "--image" in "\n".join(render(tiering(), "ec2-fleet").notes)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("aws") is None, reason="the AWS command line is not installed")
@pytest.mark.parametrize("name", ["single-anchor", "tiering"])
def test_one_script_starts_and_stops_all(name: str, server: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    ec2, iam = client(server), client(server, "iam")
    image = ec2.describe_images(Owners=["amazon"], MaxResults=5)["Images"][0]["ImageId"]
    options = ExportOptions(
        image=image, command="train.py", job=f"job-{plan.architecture}", persist="s3://bucket/run"
    )
    write_export(render(plan, "ec2-fleet", options), tmp_path)
    client(server, "ssm").put_parameter(
        Name=f"/deepvm/{options.job}/token", Value="x", Type="SecureString"
    )
    variables = {
        **{k: v for k, v in os.environ.items() if not k.startswith("AWS_")},
        **{
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_ENDPOINT_URL": server,
        },
        **{"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "PROFILE_S": "0"},
    }

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "start.sh", *words],
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
        )

    out = call()
    assert out.returncode == 0, out.stdout + out.stderr
    role = f"deepvm-{options.job}"
    profile = iam.get_instance_profile(InstanceProfileName=role)["InstanceProfile"]
    assert [r["RoleName"] for r in profile["Roles"]] == [role]
    allowed = iam.get_role_policy(RoleName=role, PolicyName="deepvm")["PolicyDocument"]["Statement"]
    assert any(f"parameter/deepvm/{options.job}/*" in s["Resource"] for s in allowed)
    fleets = (tmp_path / "fleets").read_text().split()
    assert len(fleets) == len(plan.groups)
    running = [len(ec2.describe_fleet_instances(FleetId=f)["ActiveInstances"]) for f in fleets]
    assert sorted(running) == sorted(g.count for g in plan.groups)
    again = call()
    assert again.returncode == 2 and "these run already" in again.stderr
    assert call("stop").returncode == 0 and not (tmp_path / "fleets").exists()
    left = {t["LaunchTemplateName"] for t in ec2.describe_launch_templates()["LaunchTemplates"]}
    assert not any(template.startswith(role) for template in left)
    assert not client(server, "ssm").get_parameters_by_path(
        Path=f"/deepvm/{options.job}", Recursive=True
    )["Parameters"]
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.get_role(RoleName=role)


AWS = """#!/bin/bash
echo "$*" >> calls
case "$2" in
  describe-fleets) echo i-0a1;;
  describe-fleet-instances) if [ "$4" = fleet-2 ]; then exit 254; else echo "i-0b1	i-0b2"; fi;;
  delete-fleets) [ -e refuses ] && printf 'fleet-2\\tunexpectedError\\n';;
  describe-instances) echo >> looks; [ "$(wc -l < looks)" -lt 3 ] && echo i-0b2;;
esac
exit 0
"""
"""What the command line answers: two fleets, VMs that end at the third look, and a fleet that is
not deleted.
"""


def test_stop_forgets_no_fleet_and_leaves_vms_their_role_while_they_save(tmp_path: Path) -> None:
    write_export(render(PLANS["tiering"], "ec2-fleet", OURS), tmp_path)
    (tmp_path / "aws").write_text(AWS)
    (tmp_path / "aws").chmod(0o755)
    (tmp_path / "fleets").write_text("fleet-1\nfleet-2\n")
    (tmp_path / "refuses").touch()

    def stop() -> tuple[int, str, list[str]]:
        (tmp_path / "calls").write_text("")
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOOK_S": "0"}
        done = subprocess.run(
            [tmp_path / "start.sh", "stop"], env=variables, capture_output=True, text=True
        )
        return done.returncode, done.stderr, (tmp_path / "calls").read_text().splitlines()

    code, said, calls = stop()
    assert (
        code == 5
        and "fleet-2\tunexpectedError" in said
        and (tmp_path / "fleets").read_text() == "fleet-2\n"
    )
    assert not any(call.startswith("iam") for call in calls)
    (tmp_path / "refuses").unlink()
    code, said, calls = stop()
    assert code == 0 and not (tmp_path / "fleets").exists() and not (tmp_path / "vms").exists(), (
        said
    )
    assert any("delete-fleets" in call and "--fleet-ids fleet-2 --query" in call for call in calls)
    looks = [n for n, call in enumerate(calls) if "describe-instances" in call]
    first = next(n for n, call in enumerate(calls) if call.startswith("iam"))
    assert len(looks) == 3 and looks[-1] < first and "Values=i-0a1,i-0b1,i-0b2" in calls[looks[0]]


def test_limits_are_where_aws_enforces_them() -> None:
    """Tiering costs 17 x 0.1578 + 0.17 = $2.8526/h: 3.42312 with 20 %, for both markets alike."""
    found = requests(tiering())
    spot, nodes = found["training-fleet.json"], found["memory-fleet.json"]
    assert spot["SpotOptions"]["MaxTotalPrice"] == "3.21912"
    assert {o["MaxPrice"] for o in overrides(spot)} == {"0.18936"}
    assert nodes["OnDemandOptions"]["MaxTotalPrice"] == "0.204"
    # MaxPrice is for spot VMs alone, and a fleet has no options of a market that it does not buy
    # in.
    assert "MaxPrice" not in json.dumps(overrides(nodes))
    assert "OnDemandOptions" not in spot and "SpotOptions" not in nodes
    asked = requests(tiering(), ExportOptions(launch_template="x", max_price=Decimal("5")))
    assert asked["training-fleet.json"]["SpotOptions"]["MaxTotalPrice"] == "4.702026"
    assert asked["memory-fleet.json"]["OnDemandOptions"]["MaxTotalPrice"] == "0.297973"


@given(any_plan(), st.none() | st.decimals(1, 5, places=9))
def test_all_limits_together_hold_the_cluster_to_its_price(
    plan: Plan, factor: Decimal | None
) -> None:
    most = None if factor is None else plan.usd_per_hour * factor
    enforced = Decimal(0)
    zones = {z.zone: z.usd_per_hour for z in plan.training.zones}
    for request in requests(plan, ExportOptions(launch_template="x", max_price=most)).values():
        count = request["TargetCapacitySpecification"]["TotalTargetCapacity"]
        options = request.get("SpotOptions") or request["OnDemandOptions"]
        total = Decimal(options["MaxTotalPrice"])
        enforced += total
        (group,) = [
            g
            for g in plan.groups
            if f'{{"Key": "Name", "Value": "deepvm-{g.role}"}}' in json.dumps(request)
        ]
        assert group.usd_per_hour is not None and group.usd_per_hour * count <= total
        if "SpotOptions" in request:
            for override in overrides(request):
                each = Decimal(override["MaxPrice"])
                assert each * count <= total and re.fullmatch(
                    r"\d+(\.\d{1,6})?", override["MaxPrice"]
                )
                assert zones.get(override.get("AvailabilityZoneId"), group.usd_per_hour) <= each
    assert enforced <= (plan.usd_per_hour * Decimal("1.2") if most is None else most)


def test_the_zone_to_start_in_comes_first_even_when_it_is_not_the_cheapest() -> None:
    first, *_ = overrides(requests(tiering(zone="use1-az1"))["memory-fleet.json"])
    assert first["AvailabilityZoneId"] == "use1-az1"


def test_subnets_stand_for_zones() -> None:
    options = ExportOptions(subnet=("us-east-1b=subnet-b", "use1-az4=subnet-a"))
    found = overrides(requests(tiering(), options)["training-fleet.json"])
    assert [(o["SubnetId"], "AvailabilityZoneId" in o) for o in found] == [
        ("subnet-a", False),
        ("subnet-b", False),
    ]
    found = overrides(
        requests(spot_only(), ExportOptions(subnet=("subnet-x",)))["training-fleet.json"]
    )
    assert [o["SubnetId"] for o in found] == ["subnet-x"]


@pytest.mark.parametrize(
    ("plan", "allowed"), [(tiering(), "use1-az4 (us-east-1a)"), (spot_only(), "leave the zone out")]
)
def test_a_subnet_in_an_unknown_zone(plan: Plan, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(plan, "ec2-fleet", ExportOptions(subnet=("us-east-1c=subnet-c",)))
    assert caught.value.option == "subnet" and allowed in str(caught.value)


def test_memory_nodes_of_another_cpu_need_a_template_of_their_own() -> None:
    plan = tiering(memory=memory_vms(instance_type="c7g.xlarge", cpu_architecture="arm64"))
    with pytest.raises(RequestError, match="c7g.xlarge needs another image"):
        render(plan, "ec2-fleet", TEMPLATE)
    found = templates(plan, OURS)
    assert found["training-template.json"]["LaunchTemplateData"]["ImageId"] == OURS.image
    assert found["memory-template.json"]["LaunchTemplateData"]["ImageId"] == Ec2Fleet.PLACEHOLDER
    options = ExportOptions(launch_template="gpu", memory_launch_template="arm")
    names = {
        n: r["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]
        for n, r in requests(plan, options).items()
    }
    assert names["training-fleet.json"]["LaunchTemplateName"] == "gpu"
    assert names["memory-fleet.json"]["LaunchTemplateName"] == "arm"


def test_on_demand_limits_are_in_the_notes() -> None:
    both = tiering(training=gpu_vms(0, 3), usd_per_hour=Decimal("1.748"))
    assert "at most $1.8936/h for 3 x g4dn.xlarge, $0.2040/h for 1 x c5.xlarge" in "\n".join(
        render(both, "ec2-fleet").notes
    )


def test_a_launch_template_of_the_user_needs_the_script() -> None:
    export = render(tiering(), "ec2-fleet", TEMPLATE)
    names = [f.name for f in export.files]
    assert "training-user-data.sh" in names and not any("template" in n for n in names)
    assert "needs training-user-data.sh as its user data" in "\n".join(export.notes)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
SUBNET = st.text(st.characters(codec="utf-8", exclude_characters="\0="), min_size=1)


@given(TEXT, TEXT, SUBNET)
def test_any_text_comes_back(template: str, memory: str, subnet: str) -> None:
    options = ExportOptions(
        launch_template=template, memory_launch_template=memory, subnet=(subnet,)
    )
    training, nodes = requests(tiering(), options).values()
    assert (
        training["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["LaunchTemplateName"]
        == template
    )
    assert (
        nodes["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["LaunchTemplateName"]
        == memory
    )
    assert overrides(training)[0]["SubnetId"] == subnet


def test_a_savings_plan_does_not_lower_the_limit_below_what_aws_compares_it_with() -> None:
    """AWS holds on-demand VMs to their list price: $0.2/h less 30 % is 0.14, and 20 % more would
    start none.
    """
    plan = tiering()
    assert plan.memory is not None
    list_usd = plan.memory.on_demand_usd_per_hour
    assert list_usd is not None
    paid = (list_usd * Decimal("0.7")).quantize(Decimal("0.000001"))
    saved = replace(plan.memory, on_demand_usd_per_hour=paid, on_demand_discount=Decimal("0.3"))
    cheaper = replace(
        plan,
        memory=saved,
        usd_per_hour=plan.usd_per_hour - (list_usd - paid) * saved.on_demand_count,
    )
    most = Decimal(requests(cheaper)["memory-fleet.json"]["OnDemandOptions"]["MaxTotalPrice"])
    assert most >= list_usd * saved.on_demand_count * Decimal("1.19")
    before = requests(plan)["training-fleet.json"], requests(cheaper)["training-fleet.json"]
    assert [o["MaxPrice"] for o in overrides(before[0])] == [
        o["MaxPrice"] for o in overrides(before[1])
    ]
