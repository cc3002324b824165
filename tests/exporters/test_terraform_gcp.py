"""Terraform for Google Cloud: arguments that the provider has, references that resolve, and
Terraform's own reader.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.plans import gpu_vms, memory_vms, tiering
from support.terraform import apply, expressions, leaves, terraform

from deepvm.core.cluster.instances import ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedDisk, PlanSource
from deepvm.exporters.options import ExportOptions
from deepvm.exporters.registry import render

# Arguments and blocks of the google provider, as far as they are used here:
# hashicorp/terraform-provider-google, website/docs/r/compute_instance.html.markdown at 022e24ae,
# compute_instance_template at 00b984c6, and the schema in
# google/services/compute/resource_compute_instance_group_manager.go at 03534e70.
_SCHEDULING = "scheduling.automatic_restart scheduling.on_host_maintenance"
_NETWORK = "network_interface.network network_interface.subnetwork network_interface.access_config"
ARGUMENTS = {
    "google_compute_instance_template": (
        f"""name_prefix machine_type disk.boot disk.auto_delete disk.disk_type
        disk.source_image {_NETWORK} {_SCHEDULING} scheduling.provisioning_model scheduling.preemptible
        scheduling.instance_termination_action labels.made-by labels.role lifecycle.create_before_destroy"""
    ),
    "google_compute_instance_group_manager": (
        "name base_instance_name zone target_size version.instance_template"
    ),
    "google_compute_instance": (
        f"""count name machine_type zone boot_disk.initialize_params.image
        boot_disk.initialize_params.type {_NETWORK} {_SCHEDULING} labels.made-by labels.role"""
    ),
}
ATTRIBUTES = {
    "google_compute_instance_template": {"self_link_unique"},
    "google_compute_instance_group_manager": {"instance_group"},
    "google_compute_instance": {"network_interface"},
}
ZONES = (
    ZonePrice("us-central1-a", Decimal("1.8"), "us-central1-a"),
    ZonePrice("us-central1-b", Decimal("1.9")),
)


def plan(spot: int = 4, on_demand: int = 0, name: str = "a2-highgpu-1g", **changes: Any) -> Plan:
    vms = gpu_vms(
        spot,
        on_demand,
        instance_type=name,
        gpu_name="A100",
        spot_usd_per_hour=Decimal("1.8"),
        on_demand_usd_per_hour=Decimal("3.67339"),
        zones=ZONES,
        offered_in=("us-central1-a", "us-central1-b", "us-central1-f"),
    )
    node = memory_vms(instance_type="n2-standard-8", offered_in=("us-central1-b", "us-central1-a"))
    return tiering(
        **{
            "training": vms,
            "memory": None if on_demand else node,
            "region": "us-central1",
            "zone": "us-central1-b",
            "usd_per_hour": Decimal("7.58847"),
            "source": PlanSource("gcp-us-central1", "live", None, "skypilot-catalog"),
            **changes,
        }
    )


FULL = ExportOptions(image="projects/p/global/images/family/gpu", subnet=("inner",))
CASES = [(p, o) for p in (plan(), plan(3, 1), plan(0, 2)) for o in (ExportOptions(), FULL)]


def configuration(of: Plan, options: ExportOptions = ExportOptions()) -> dict[str, Any]:  # noqa: B008  frozen
    (file,) = render(of, "terraform", options).files
    assert file.name == "main.tf.json"
    found: dict[str, Any] = json.loads(file.text)
    return found


@pytest.mark.parametrize(("of", "options"), CASES)
def test_arguments_and_references(of: Plan, options: ExportOptions) -> None:
    found = configuration(of, options)
    for kind, named in found["resource"].items():
        for body in named.values():
            assert {path for path, _ in leaves(body)} <= set(ARGUMENTS[kind].split())
    read = [
        text for part in ("provider", "resource", "output") for text in expressions(found[part])
    ]
    for text in read:
        kind, name, *attribute = re.sub(r"\[(\*|\d+)\]", "", text).split(".")
        if kind == "var":
            assert name.split()[0] in found["variable"]
        elif kind != "count":
            assert name in found["resource"][kind] and attribute[0] in ATTRIBUTES[kind]
    used = {t.removeprefix("var.").split()[0] for t in read if t.startswith("var.")}
    assert used == set(found["variable"]), "nothing is asked for in vain"
    assert found["terraform"]["required_providers"]["google"] == {
        "source": "hashicorp/google",
        "version": ">= 5.0",
    }


def test_spot_vms_are_a_group_that_starts_others_and_the_rest_have_addresses() -> None:
    found = configuration(plan())["resource"]
    template = found["google_compute_instance_template"]["training"]
    assert (
        template["machine_type"] == "a2-highgpu-1g"
        and template["scheduling"][0]["provisioning_model"] == "SPOT"
    )
    assert found["google_compute_instance_group_manager"]["training"]["target_size"] == 4
    node = found["google_compute_instance"]["memory"]
    assert (node["count"], node["machine_type"]) == (1, "n2-standard-8")
    assert "provisioning_model" not in node["scheduling"][0]
    (anchor,) = configuration(plan(3, 1))["resource"]["google_compute_instance"].values()
    assert anchor["count"] == 1 and anchor["scheduling"][0]["on_host_maintenance"] == "TERMINATE", (
        "it has GPUs"
    )
    assert "google_compute_instance_template" not in configuration(plan(0, 2))["resource"]


def test_it_starts_where_the_plan_says_and_never_where_memory_nodes_are_not_offered() -> None:
    assert configuration(plan())["variable"]["zone"]["default"] == "us-central1-b"
    node = memory_vms(instance_type="n2-standard-8", offered_in=("us-central1-a",))
    assert configuration(plan(memory=node))["variable"]["zone"]["default"] == "us-central1-a"
    anywhere = plan(
        zone="", training=replace(plan().training, zones=(), offered_in=()), memory=None
    )
    assert "default" not in configuration(anywhere)["variable"]["zone"], "Terraform asks"


def test_what_is_unknown_is_asked_for() -> None:
    def asked(**options: Any) -> set[str]:
        return {
            n
            for n, v in configuration(plan(), ExportOptions(**options))["variable"].items()
            if "default" not in v
        }

    assert asked() == {"project", "image", "memory_image"}
    assert asked(image="a") == {"project"} and asked(image="a", memory_image="b") == {"project"}
    said = "\n".join(render(plan(), "terraform").notes)
    assert "Terraform asks for project, image and memory_image" in said
    assert (
        "no price limit is set: Google Cloud takes no maximum price" in said
        and "--to torchrun" in said
    )


@pytest.mark.parametrize(
    ("name", "disk"),
    [
        ("a2-highgpu-1g", "pd-balanced"),
        ("a3-highgpu-8g", "pd-balanced"),
        ("g2-standard-4", "pd-balanced"),
        ("a3-ultragpu-8g", "hyperdisk-balanced"),
        ("a4-highgpu-8g", "hyperdisk-balanced"),
        ("g4-standard-48", "hyperdisk-balanced"),
        ("n4a-standard-8", "hyperdisk-balanced"),
        ("n2-standard-8", "pd-balanced"),
    ],
)
def test_disks_are_of_a_kind_that_the_type_takes(name: str, disk: str) -> None:
    found = configuration(plan(name=name))["resource"]["google_compute_instance_template"][
        "training"
    ]
    assert found["disk"][0]["disk_type"] == disk


@pytest.mark.parametrize(
    ("name", "counted", "asked"),
    [
        ("g2-standard-4", "pd-ssd", "pd-ssd"),
        ("a4-highgpu-8g", "pd-ssd", "hyperdisk-balanced"),
        ("a4-highgpu-8g", "hyperdisk-extreme", "hyperdisk-extreme"),
    ],
)
def test_a_kind_that_the_plan_counts_is_taken_where_the_type_boots_from_it(
    name: str, counted: str, asked: str
) -> None:
    of = plan(name=name, disk=PlannedDisk(200, counted))
    (disk,) = configuration(of)["resource"]["google_compute_instance_template"]["training"]["disk"]
    assert (disk["disk_type"], disk["disk_size_gb"]) == (asked, 200)
    told = any("boots from no pd-ssd" in note for note in render(of, "terraform").notes)
    assert told == (asked != counted)


def built_in(found: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with Terraform's own resource in the place of the provider's, which
    needs a network.
    """
    instead: dict[str, Any] = {}
    for kind, named in found["resource"].items():
        for name, body in named.items():
            outside = {k: v for k, v in body.items() if k == "count"}
            arguments = {k: v for k, v in body.items() if k not in ("count", "lifecycle")}
            instead[f"{kind}_{name}"] = {**outside, "input": arguments}
    kept = {k: v for k, v in found.items() if k not in ("provider", "resource")}
    text = json.dumps({**kept, "terraform": {}, "resource": {"terraform_data": instead}})
    swap = r"(?<=\$\{)(google_\w+?)\.(training|anchor|memory)(\[\*\])?\.[\w.\[\]]+"
    swapped: dict[str, Any] = json.loads(re.sub(swap, r"terraform_data.\1_\2\3.id", text))
    return swapped


@terraform
@pytest.mark.parametrize(("of", "options"), CASES[:4])
def test_terraform_reads_it(of: Plan, options: ExportOptions, tmp_path: Path) -> None:
    found = built_in(configuration(of, options))
    given = {n: "given" for n, body in found["variable"].items() if "default" not in body}
    done = apply(found, tmp_path, **given)
    template = done["terraform_data.google_compute_instance_template_training"]
    assert template["disk"][0]["source_image"] == (options.image or "given")
    interface = template["network_interface"][0]
    wanted = (None, "inner") if options.subnet else ("default", None)
    assert (interface["network"], interface["subnetwork"]) == wanted
    role = "memory" if of.memory else "anchor"
    vm = done[f"terraform_data.google_compute_instance_{role}[0]"]
    assert (vm["name"], vm["zone"]) == (f"deepvm-{role}-1", "us-central1-b")
