"""SkyPilot tasks: the keys and types that SkyPilot takes, and scripts that really run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from support.plans import PLANS, gpu_vms, memory_vms, single_anchor, spot_only, tiering

from deepvm.core.cluster.instances import Market, ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedVms
from deepvm.errors import RequestError
from deepvm.reports.exports.base import ExportOptions
from deepvm.reports.exports.registry import render

# What SkyPilot 0.14.1 takes (sky/utils/schemas.py, get_task_schema and get_resources_schema): names of the keys, and
# the types of those that are used here. Both objects are closed: any other key is an error.
TASK_KEYS = """name workdir event_callback num_nodes resources file_mounts service pool setup run envs secrets
managed_secrets inputs outputs file_mounts_mapping config volumes volume_mounts api_server_access"""
RESOURCE_KEYS = """cloud region zone infra cpus memory accelerators instance_type use_spot job_recovery volumes
disk_size disk_tier network_tier local_disk max_hourly_cost ports labels accelerator_args image_id autostop priority
priority_class"""
TASK_TYPES = {"name": str, "num_nodes": int, "resources": dict, "envs": dict, "run": str}
RESOURCE_TYPES = {"infra": str, "instance_type": str, "use_spot": bool, "accelerators": dict, "image_id": str}
INFRA = re.compile(r"aws(/[^/]+(/[^/]+)?)?")
VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
NAME = re.compile(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*")

COMMAND = ExportOptions(command="train.py --epochs 3 --name 'two words'")
TRAINED = ["train.py", "--epochs", "3", "--name", "two words"]


def tasks(plan: Plan, options: ExportOptions = COMMAND) -> dict[str, dict[str, Any]]:
    return {f.name: yaml.safe_load(f.text) for f in render(plan, "skypilot", options).files}


def assert_valid(task: dict[str, Any]) -> None:
    assert set(task) <= set(TASK_KEYS.split())
    for key, value in task.items():
        assert type(value) is TASK_TYPES[key], key
    assert NAME.fullmatch(task["name"]) and task["num_nodes"] >= 1
    assert set(task["resources"]) <= {"any_of", *RESOURCE_KEYS.split()}
    assert task["resources"]["any_of"]
    for entry in task["resources"]["any_of"]:
        assert set(entry) <= set(RESOURCE_KEYS.split())
        for key, value in entry.items():
            assert type(value) is RESOURCE_TYPES[key], key
        assert INFRA.fullmatch(entry["infra"])
        accelerators = entry.get("accelerators", {})
        assert len(accelerators) <= 1 and all(type(n) is int for n in accelerators.values())
    for name, value in task.get("envs", {}).items():
        assert VARIABLE.fullmatch(name) and (value is None or type(value) is str)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("options", [ExportOptions(), COMMAND, ExportOptions(image="ami-1")], ids=repr)
def test_skypilots_schema_takes_them(plan: Plan, options: ExportOptions) -> None:
    for task in tasks(plan, options).values():
        assert_valid(task)


def run(task: dict[str, Any], tmp_path: Path, **variables: str) -> tuple[list[str], str]:
    """Run a task's script with a torchrun that writes down its arguments; those and what was printed."""
    stub = tmp_path / "torchrun"
    stub.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$ARGUMENTS"\n')
    stub.chmod(0o755)
    record = tmp_path / "arguments"
    record.unlink(missing_ok=True)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ARGUMENTS": str(record),
        "SKYPILOT_NUM_NODES": "17",
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        **variables,
    }
    out = subprocess.run(["bash"], input=task["run"], env=environment, capture_output=True, text=True, check=True)
    arguments = record.read_bytes().decode().split("\0")[:-1] if record.exists() else []
    return arguments, out.stdout


INSIDE = [
    *["--nnodes", "17", "--node-rank", "0", "--master-addr", "10.0.0.1", "--master-port", "29500"],
    *["--nproc-per-node", "1"],
]


def test_one_cluster_meets_at_its_first_node(tmp_path: Path) -> None:
    arguments, _ = run(tasks(tiering())["training.yaml"], tmp_path)
    assert arguments == INSIDE + TRAINED
    arguments, _ = run(tasks(tiering())["training.yaml"], tmp_path, SKYPILOT_NODE_RANK="16")
    assert arguments[3] == "16"


def test_a_command_given_at_the_start(tmp_path: Path) -> None:
    task = tasks(spot_only(), ExportOptions())["training.yaml"]
    assert task["envs"] == {"TRAINING_COMMAND": None}  # SkyPilot refuses to start it until the variable is given
    arguments, _ = run(task, tmp_path, TRAINING_COMMAND="train.py --name 'two words'")
    assert arguments == [*INSIDE, "train.py", "--name", "two words"]
    with pytest.raises(subprocess.CalledProcessError):
        run(task, tmp_path)


def test_memory_nodes_announce_their_addresses(tmp_path: Path) -> None:
    found = tasks(tiering())
    assert found["memory.yaml"]["num_nodes"] == 1 and "envs" not in found["memory.yaml"]
    _, printed = run(found["memory.yaml"], tmp_path)
    assert printed == "MEMORY_ADDRESSES=10.0.0.1,10.0.0.2\n"
    assert found["training.yaml"]["envs"] == {"MEMORY_ADDRESSES": None}


def test_two_clusters_meet_at_the_anchor(tmp_path: Path) -> None:
    found = tasks(single_anchor())
    anchor, spot = found["anchor.yaml"], found["training.yaml"]
    assert (anchor["num_nodes"], spot["num_nodes"]) == (1, 8)
    both = ["--nnodes", "9", "--rdzv-backend", "c10d", "--rdzv-id", "deepvm", "--rdzv-endpoint", "10.0.0.1:29500"]
    arguments, printed = run(anchor, tmp_path)
    assert arguments[: len(both)] == both and arguments[-len(TRAINED) :] == TRAINED
    assert "join_timeout=3600,is_host=true" in arguments
    assert printed == "ANCHOR_ADDRESSES=10.0.0.1,10.0.0.2\n"
    assert "join_timeout=3600,is_host=false" in run(anchor, tmp_path, SKYPILOT_NODE_RANK="1")[0]
    assert spot["envs"] == {"ANCHOR_ADDRESSES": None}
    arguments, _ = run(spot, tmp_path, ANCHOR_ADDRESSES="10.0.0.1,10.0.0.2", SKYPILOT_NODE_IPS="10.1.0.1")
    assert arguments[: len(both)] == both and "join_timeout=3600,is_host=false" in arguments


def test_on_demand_alone_is_one_cluster(tmp_path: Path) -> None:
    found = tasks(spot_only(training=gpu_vms(0, 17)))
    assert list(found) == ["training.yaml"]
    assert found["training.yaml"]["resources"]["any_of"][0]["use_spot"] is False
    assert run(found["training.yaml"], tmp_path)[0] == INSIDE + TRAINED


def test_resources_of_each_zone() -> None:
    entry = {"instance_type": "g4dn.xlarge", "use_spot": True, "accelerators": {"T4": 1}}
    assert tasks(tiering())["training.yaml"]["resources"]["any_of"] == [
        {"infra": "aws/us-east-1/us-east-1a", **entry},
        {"infra": "aws/us-east-1/us-east-1b", **entry},
    ]


def test_no_anchors_for_readers() -> None:
    assert not any("&id" in f.text for f in render(tiering(), "skypilot").files)


def test_zones_without_names_mean_the_region() -> None:
    zones = (*gpu_vms().zones, ZonePrice("use1-az2", gpu_vms().zones[0].usd_per_hour))
    file, *_ = render(tiering(training=gpu_vms(zones=zones)), "skypilot").files
    assert [e["infra"] for e in yaml.safe_load(file.text)["resources"]["any_of"]] == ["aws/us-east-1"]
    assert "no names of use1-az2" in " ".join(file.text.split())
    assert [e["infra"] for e in tasks(spot_only())["training.yaml"]["resources"]["any_of"]] == ["aws"]


@pytest.mark.parametrize(
    ("vms", "accelerators"),
    [
        (gpu_vms(gpu_name="A10G", gpus_per_vm=4), {"A10G": 4}),
        (gpu_vms(gpu_name="A100-40"), None),  # SkyPilot has another name for it; the type alone says it
        (gpu_vms(gpu_name="", gpus_per_vm=None), None),
    ],
)
def test_accelerators_only_under_skypilots_names(vms: PlannedVms, accelerators: dict[str, int] | None) -> None:
    for entry in tasks(tiering(training=vms))["training.yaml"]["resources"]["any_of"]:
        assert entry.get("accelerators") == accelerators


def test_images() -> None:
    def image(plan: Plan, **given: str) -> list[Any]:
        found = tasks(plan, ExportOptions(**given)).values()
        return [t["resources"]["any_of"][0].get("image_id") for t in found]

    arm = tiering(memory=memory_vms(instance_type="c7g.xlarge", cpu_architecture="arm64"))
    assert image(tiering(), image="ami-1") == ["ami-1", "ami-1"]
    assert image(tiering(), image="ami-1", memory_image="ami-2") == ["ami-1", "ami-2"]
    assert image(arm, image="ami-1") == ["ami-1", None]
    assert image(arm) == [None, None]


def test_the_limit_is_said() -> None:
    for file in render(tiering(), "skypilot").files:
        text = " ".join(line.removeprefix("#").strip() for line in file.text.splitlines() if line.startswith("#"))
        assert "A SkyPilot cluster has nodes of one kind only" in text
        (other,) = {"training.yaml", "memory.yaml"} - {file.name}
        assert f"{other} starts" in text and f"{file.name} starts" not in text


def test_notes_start_what_stays_first() -> None:
    notes = render(single_anchor(), "skypilot").notes
    assert notes[0].startswith("start: sky launch -c deepvm-anchor")
    assert notes[1] == "start: sky jobs launch training.yaml --env TRAINING_COMMAND=... --env ANCHOR_ADDRESSES=..."


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(TEXT, TEXT)
@example(image="\x85", memory="\u2028\n ")
@example(image=" # not a comment", memory="yes")
@example(image="null", memory="- [a: b]\n\t")
@example(image="1e3", memory="2026-08-10")
def test_any_image_comes_back(image: str, memory: str) -> None:
    found = tasks(tiering(), ExportOptions(image=image, memory_image=memory))
    assert found["training.yaml"]["resources"]["any_of"][0]["image_id"] == image
    assert found["memory.yaml"]["resources"]["any_of"][0]["image_id"] == memory


@given(
    st.lists(TEXT, min_size=1, max_size=4).filter(lambda w: w[0] not in ("python", "python3", "torchrun", "bash", "sh"))
)
@example([" ", "\n", "'", '"$(x)"'])
@example(["train.py", "\x85", "a\r\nb", "#"])
def test_any_command_comes_back(words: list[str]) -> None:
    script = tasks(spot_only(), ExportOptions(command=shlex.join(words)))["training.yaml"]["run"]
    assert shlex.split(script.replace("\\\n", " ", 6).split('"$SKYPILOT_NUM_GPUS_PER_NODE"')[1]) == words


@pytest.mark.parametrize("words", [["a b", "$HOME", "`id`", "'", '"', "\\", "*", "\n", "é\u2028x", "-m"]])
def test_a_shell_reads_the_words(words: list[str], tmp_path: Path) -> None:
    options = ExportOptions(command=shlex.join(words))
    assert run(tasks(spot_only(), options)["training.yaml"], tmp_path)[0] == INSIDE + words


def test_markets_are_told_apart() -> None:
    for plan in PLANS.values():
        for group, task in zip(plan.groups, tasks(plan).values(), strict=True):
            assert {e["use_spot"] for e in task["resources"]["any_of"]} == {group.market is Market.SPOT}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_no_limit_is_pretended(plan: Plan) -> None:
    """SkyPilot's max_hourly_cost filters what its optimizer considers; it holds no VM to a price."""
    export = render(plan, "skypilot", COMMAND)
    for file in export.files:
        assert "max_hourly_cost" not in repr(yaml.safe_load(file.text))
        assert "SkyPilot holds no VM to a price" in " ".join(file.text.replace("\n#", " ").split())
    assert "SkyPilot enforces no price limit; --to ec2-fleet and --to terraform write one" in export.notes
    with pytest.raises(RequestError) as caught:
        render(plan, "skypilot", ExportOptions(max_price=Decimal(3)))
    assert caught.value.option == "max_price" and caught.value.exit_code == 2
