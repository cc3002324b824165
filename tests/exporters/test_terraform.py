"""Terraform: references that resolve, block types that exist, and Terraform's own reader where it
is installed.
"""

from __future__ import annotations

import base64
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import PLANS, SOURCE, any_plan, gpu_vms, memory_vms, spot_only, tiering
from support.terraform import apply, expressions, leaves, terraform

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import Plan
from deepvm.errors import RequestError
from deepvm.exporters.base import hcl
from deepvm.exporters.options import ExportOptions
from deepvm.exporters.registry import render
from deepvm.exporters.terraform import TerraformAws

# Arguments and blocks of the AWS provider (its documentation of 5.x), as far as they are used here.
ARGUMENTS = {
    "aws_launch_template": (
        """name_prefix image_id instance_type key_name vpc_security_group_ids
        tag_specifications.resource_type tag_specifications.tags user_data iam_instance_profile.name
        metadata_options.http_tokens"""
    ),
    "aws_ec2_fleet": (
        """type terminate_instances excess_capacity_termination_policy tags
        spot_options.allocation_strategy
        launch_template_config.launch_template_specification.launch_template_id
        launch_template_config.launch_template_specification.version launch_template_config.override.instance_type
        launch_template_config.override.availability_zone launch_template_config.override.subnet_id
        launch_template_config.override.max_price
        target_capacity_specification.default_target_capacity_type target_capacity_specification.total_target_capacity
        target_capacity_specification.spot_target_capacity target_capacity_specification.on_demand_target_capacity"""
    ),
    "aws_instance": (
        """count ami instance_type key_name vpc_security_group_ids subnet_id availability_zone tags
        user_data iam_instance_profile lifecycle.ignore_changes metadata_options.http_tokens"""
    ),
    "aws_iam_role": "name assume_role_policy",
    "aws_iam_role_policy": "name role policy",
    "aws_iam_instance_profile": "name role",
    "aws_availability_zone": "zone_id",
}
ATTRIBUTES = {
    "aws_launch_template": {"id", "latest_version"},
    "aws_ec2_fleet": {"id"},
    "aws_instance": {"private_ip"},
    "aws_iam_role": {"name"},
    "aws_iam_instance_profile": {"name"},
    "aws_availability_zone": {"name"},
}
FULL = ExportOptions(
    image="ami-1", key_name="key", subnet=("use1-az4=subnet-1",), security_group=("sg-1", "sg-2")
)


def configuration(plan: Plan, options: ExportOptions = ExportOptions()) -> dict[str, Any]:  # noqa: B008  frozen
    (file,) = render(plan, "terraform", options).files
    assert file.name == "main.tf.json"
    found: dict[str, Any] = json.loads(file.text)
    return found


CASES = [
    (p, o)
    for p in PLANS.values()
    for o in (ExportOptions(), FULL)
    if p.training.zones or not o.subnet
]


@pytest.mark.parametrize(("plan", "options"), CASES)
def test_arguments_and_references(plan: Plan, options: ExportOptions) -> None:
    found = configuration(plan, options)
    assert set(found) <= {
        "//",
        "terraform",
        "provider",
        "variable",
        "locals",
        "data",
        "resource",
        "output",
    }
    blocks = {**found["resource"], **found.get("data", {})}
    for kind, named in blocks.items():
        for body in named.values():
            assert {path for path, _ in leaves(body)} <= set(ARGUMENTS[kind].split())
    read = [
        text for part in ("provider", "resource", "output") for text in expressions(found[part])
    ]
    assert read
    for text in read:
        parts = re.sub(r"\[(\*|\d+)\]", "", text).removeprefix("data.").split(".")
        if parts[0] == "var":
            assert parts[1] in found["variable"]
        elif "local" in parts[0]:  # local.x, or base64encode(local.x)
            assert parts[1].rstrip(")") in found["locals"]
        else:
            kind, name, attribute = parts
            assert name in blocks[kind] and attribute in ATTRIBUTES[kind]
    used = {t.split(".")[1].split("[")[0] for t in read if t.startswith("var.")}
    assert used == set(found["variable"])  # nothing is asked for in vain
    for body in found["variable"].values():
        assert set(body) <= {"type", "description", "default"}


def test_what_is_unknown_is_asked_for() -> None:
    def asked(plan: Plan, **options: Any) -> set[str]:
        return {
            n
            for n, v in configuration(plan, ExportOptions(**options))["variable"].items()
            if "default" not in v
        }

    assert asked(spot_only()) == {"region", "image_id"}
    assert asked(tiering()) == {"image_id", "memory_image_id"}
    assert asked(tiering(), image="ami-1") == set()
    arm = tiering(memory=memory_vms(cpu_architecture="arm64"))
    assert asked(arm, image="ami-1") == {"memory_image_id"}
    assert asked(arm, image="ami-1", memory_image="ami-2") == set()
    assert "Terraform asks for region and image_id, unless terraform.tfvars sets them" in "\n".join(
        render(spot_only(), "terraform").notes
    )


def test_promises() -> None:
    """Metadata needs a token, else whatever fetches a URL on a VM can read the keys of its role.
    VMs end with the fleet. Newer prices, in a comment of user data, do not restart what holds
    checkpoints. No token is in Terraform's state.
    """
    resources = configuration(tiering())["resource"]
    (fleet,) = resources["aws_ec2_fleet"].values()
    (node,) = resources["aws_instance"].values()
    (template,) = resources["aws_launch_template"].values()
    assert node["metadata_options"] == template["metadata_options"] == [{"http_tokens": "required"}]
    assert fleet["terminate_instances"] is True
    assert node["lifecycle"] == {"ignore_changes": ["user_data"]}
    assert not any("ssm" in kind or "secret" in kind or "random" in kind for kind in resources)


def test_limits_are_where_the_provider_sends_them() -> None:
    """The provider (5.x) sends an override's max_price.

    It knows no max_total_price of spot_options.
    """
    found = configuration(tiering())
    fleet = found["resource"]["aws_ec2_fleet"]["training"]
    (config,) = fleet["launch_template_config"]
    assert {o["max_price"] for o in config["override"]} == {"0.18936"}
    assert set(fleet["spot_options"][0]) == {"allocation_strategy"}
    assert "max" not in json.dumps(found["resource"]["aws_instance"])
    assert "Limit: $3.42312/h for all VMs" in " ".join(
        found["//"]
    ) and "most-usd" not in json.dumps(found)
    only = tiering(training=gpu_vms(0, 3, zones=()), usd_per_hour=Decimal("1.748"))
    notes = "\n".join(render(only, "terraform").notes)
    assert "Terraform has no limit for them" in notes and "limit: " not in notes
    with pytest.raises(
        RequestError, match=r"max_price does not fit .* no spot VMs.*try: --to ec2-fleet"
    ) as caught:
        render(only, "terraform", ExportOptions(max_price=Decimal(9)))
    assert caught.value.exit_code == 2


@given(any_plan(), st.none() | st.decimals(1, 5, places=9))
def test_spot_limits_and_fixed_prices_together_are_within_the_limit(
    plan: Plan, factor: Decimal | None
) -> None:
    most = None if factor is None or not plan.training.spot_count else plan.usd_per_hour * factor
    fixed = sum(
        (g.count * (g.usd_per_hour or 0) for g in plan.groups if g.market is Market.ON_DEMAND),
        Decimal(0),
    )
    found = configuration(plan, ExportOptions(max_price=most))
    for fleet in found["resource"].get("aws_ec2_fleet", {}).values():
        (config,) = fleet["launch_template_config"]
        (each,) = {Decimal(o["max_price"]) for o in config["override"]}
        assert each >= (plan.training.spot_usd_per_hour or 0)
        fixed += each * plan.training.spot_count
    assert fixed <= (plan.usd_per_hour * Decimal("1.2") if most is None else most)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
SUBNET = st.text(st.characters(codec="utf-8", exclude_characters="\0="), min_size=1)


@given(TEXT, TEXT, TEXT, SUBNET, TEXT)
def test_any_text_comes_back(image: str, memory: str, key: str, subnet: str, group: str) -> None:
    options = ExportOptions(
        image=image, memory_image=memory, key_name=key, subnet=(subnet,), security_group=(group,)
    )
    found = {
        name: body.get("default")
        for name, body in configuration(tiering(), options)["variable"].items()
    }
    # Terraform takes defaults of variables as they are: no templates, so nothing to escape.
    assert found == {
        "region": "us-east-1",
        "image_id": image,
        "memory_image_id": memory,
        "key_name": key,
        "subnet_ids": [subnet],
        "security_group_ids": [group],
    }


def built_in(found: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with Terraform's own resource in the place of the provider's, which
    needs a network.
    """
    blocks = {**found["resource"], **found.get("data", {})}
    instead: dict[str, Any] = {}
    for kind, named in blocks.items():
        for name, body in named.items():
            outside = {k: v for k, v in body.items() if k == "count"}
            instead[f"{kind}_{name}"] = {
                **outside,
                "input": {k: v for k, v in body.items() if k not in ("count", "lifecycle")},
            }
    kept = {k: v for k, v in found.items() if k not in ("provider", "data", "resource")}
    text = json.dumps({**kept, "terraform": {}, "resource": {"terraform_data": instead}})
    text = re.sub(
        r"(?<=\$\{)data\.aws_availability_zone\.(\w+)\.name",
        r"terraform_data.aws_availability_zone_\1.output.zone_id",
        text,
    )
    text = re.sub(
        r"(?<=\$\{)aws_iam_(\w+)\.vms\.name", r"terraform_data.aws_iam_\1_vms.output.name", text
    )
    text = re.sub(
        r"(?<=\$\{)(aws_\w+?)\.(training|anchor|memory)(\[\*\])?\.\w+",
        r"terraform_data.\1_\2\3.id",
        text,
    )
    swapped: dict[str, Any] = json.loads(text)
    return swapped


@terraform
@pytest.mark.parametrize(("plan", "options"), CASES)
def test_terraform_reads_it(plan: Plan, options: ExportOptions, tmp_path: Path) -> None:
    found = built_in(configuration(plan, options))
    given_now = {n: "given" for n, body in found["variable"].items() if "default" not in body}
    done = apply(found, tmp_path, **given_now)
    fleet = done["terraform_data.aws_ec2_fleet_training"]
    assert (
        fleet["target_capacity_specification"][0]["total_target_capacity"]
        == plan.training.spot_count
    )
    places = [
        o.get("subnet_id") or o.get("availability_zone")
        for o in fleet["launch_template_config"][0]["override"]
    ]
    assert places == (
        ["subnet-1"] if options.subnet else [z.zone for z in plan.training.zones] or [None]
    )
    images = {
        i
        for a, v in done.items()
        for i in [(v or {}).get("ami"), (v or {}).get("image_id")]
        if i and a != "outputs"
    }
    assert images == {options.image or "given"}


@terraform
def test_terraform_hands_user_data_over_as_it_is(tmp_path: Path) -> None:
    """Scripts are full of what Terraform would take for templates."""
    options = ExportOptions(
        image="ami-1", command="train.py '${HOME}' %{x}", code="s3://bucket/code.tar.gz"
    )
    plan = tiering()
    done = apply(built_in(configuration(plan, options)), tmp_path)
    exporter = TerraformAws(plan, options)
    wanted = {group.role: exporter.user_data(group) for group in exporter.plan.groups}
    assert done["terraform_data.aws_instance_memory[0]"]["user_data"] == wanted["memory"]
    encoded = done["terraform_data.aws_launch_template_training"]["user_data"]
    assert base64.b64decode(encoded).decode() == wanted["training"]
    assert (
        done["terraform_data.aws_instance_memory[0]"]["iam_instance_profile"] == "deepvm-training"
    )
    policy = json.loads(done["terraform_data.aws_iam_role_policy_vms"]["policy"])
    assert policy == json.loads(exporter.policy)


def test_scripts_are_files_where_there_is_a_folder() -> None:
    main, *scripts = render(tiering(), "terraform", ExportOptions(folder="job")).files
    exporter = TerraformAws(tiering(), ExportOptions())
    names = {"training": "training-user-data.sh", "memory": "memory-user-data.sh"}
    found = json.loads(main.text)
    for group, file in zip(exporter.plan.groups, scripts, strict=True):
        assert (file.name, file.text) == (names[group.role], exporter.user_data(group))
        inside = found["locals"].pop(f"{group.role}_user_data")
        assert inside == '${file("${path.module}/' + file.name + '")}'
    assert not found["locals"] and "set -euo pipefail" not in main.text
    whole = configuration(tiering())
    assert {**found, "locals": whole["locals"]} == whole


@terraform
def test_terraform_reads_odd_text_as_it_is(tmp_path: Path) -> None:
    odd = '${var.region} $${x} %{ if true } %%{y} "quoted" \\ \n é {{'
    plan = tiering(memory=memory_vms(instance_type=odd), source=SOURCE)
    options = ExportOptions(image=odd, key_name=odd, subnet=(odd,))
    done = apply(built_in(configuration(plan, options)), tmp_path)
    node = done["terraform_data.aws_instance_memory[0]"]
    assert [node[k] for k in ("ami", "key_name", "subnet_id", "instance_type")] == [odd] * 4


@given(st.text(alphabet='${%}ab\\"'))
def test_literals_hold_no_templates(text: str) -> None:
    written = json.loads(hcl(text))
    assert not re.search(r"(?<!\$)(\$\$)*\$\{", re.sub(r"\$\$\{", " ", written))
    assert written.replace("$${", "${").replace("%%{", "%{") == text
