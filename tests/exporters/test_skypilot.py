"""SkyPilot tasks: the keys and types that SkyPilot takes, and scripts that really run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from support.plans import PLANS, SOURCE, gpu_vms, memory_vms, single_anchor, spot_only, tiering
from support.processes import until

from deepvm.core.cluster.instances import ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedVms
from deepvm.errors import RequestError
from deepvm.exporters.base import write_export
from deepvm.exporters.options import ExportOptions
from deepvm.exporters.registry import render
from deepvm.io.own_package import OwnPackage

# What SkyPilot 0.14.1 takes (sky/utils/schemas.py, get_task_schema and get_resources_schema): names
# of the keys, and the types of those that are used here. Both objects are closed: any other key is
# an error.
TASK_KEYS = """name workdir event_callback num_nodes resources file_mounts service pool setup run envs secrets
managed_secrets inputs outputs file_mounts_mapping config volumes volume_mounts api_server_access"""
RESOURCE_KEYS = """cloud region zone infra cpus memory accelerators instance_type use_spot job_recovery volumes
disk_size disk_tier network_tier local_disk max_hourly_cost ports labels accelerator_args image_id autostop priority
priority_class"""
TASK_TYPES = {
    **{
        "file_mounts": dict,
        "name": str,
        "num_nodes": int,
        "resources": dict,
        "envs": dict,
        "secrets": dict,
        "setup": str,
        "run": str,
    },
    "workdir": (str, dict),
}
RESOURCE_TYPES = {
    "infra": str,
    "instance_type": str,
    "use_spot": bool,
    "accelerators": dict,
    "image_id": str,
}
INFRA = re.compile(r"aws(/[^/]+(/[^/]+)?)?")
VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
NAME = re.compile(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*")

COMMAND = ExportOptions(command="train.py --epochs 3 --name 'two words'")
TRAINED = ["train.py", "--epochs", "3", "--name", "two words"]


def tasks(plan: Plan, options: ExportOptions = COMMAND) -> dict[str, dict[str, Any]]:
    files = render(plan, "skypilot", options).files
    return {f.name: yaml.safe_load(f.text) for f in files if f.name.endswith(".yaml")}


def assert_valid(task: dict[str, Any]) -> None:
    assert set(task) <= set(TASK_KEYS.split())
    for key, value in task.items():
        assert isinstance(value, TASK_TYPES[key]), key
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
    if isinstance(task.get("workdir"), dict):
        assert "url" in task["workdir"] and set(task["workdir"]) <= {"url", "ref"}
    for name, value in {**task.get("envs", {}), **task.get("secrets", {})}.items():
        assert VARIABLE.fullmatch(name) and (value is None or type(value) is str)


def test_skypilots_schema_takes_them() -> None:
    for plan in PLANS.values():
        for options in [ExportOptions(), COMMAND, ExportOptions(image="ami-1")]:
            for task in tasks(plan, options).values():
                assert_valid(task)


SECRET = "5" * 64
# As far as the scripts see them: an agent that runs its command and says what it was told, a node
# that stays a while.
DEEPVM = """#!/bin/bash
{ printf '%s ' "$@"; echo; env | grep ^DEEPVM_; } >> "$HOME/deepvm-ran"
[ "$1" = agent ] || exec sleep 0.2
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


def run(task: dict[str, Any], tmp_path: Path, **variables: str) -> tuple[list[str], str]:
    """Run a task's script with a torchrun that writes down its arguments.

    Those and what was printed.
    """
    stub = tmp_path / "torchrun"
    stub.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$ARGUMENTS"\n')
    stub.chmod(0o755)
    (tmp_path / "deepvm").write_text(DEEPVM)
    (tmp_path / "deepvm").chmod(0o755)
    record = tmp_path / "arguments"
    record.unlink(missing_ok=True)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ARGUMENTS": str(record),
        "HOME": str(tmp_path),
        **dict.fromkeys(task.get("secrets", ()), SECRET),
        "SKYPILOT_NUM_NODES": "17",
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        "CHECKPOINT_BUCKET": "mine",
        **variables,
    }
    out = subprocess.run(
        ["bash"], input=task["run"], env=environment, capture_output=True, text=True, check=True
    )
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
    # SkyPilot refuses to start it until the variable is given
    assert task["envs"] == {"TRAINING_COMMAND": None, "CHECKPOINT_BUCKET": None}
    command = "train.py --name 'two words'"
    arguments, _ = run(task, tmp_path, TRAINING_COMMAND=command)
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
    both = [
        "--nnodes",
        "9",
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "deepvm",
        "--rdzv-endpoint",
        "10.0.0.1:29500",
    ]
    arguments, printed = run(anchor, tmp_path)
    assert arguments[: len(both)] == both and arguments[-len(TRAINED) :] == TRAINED
    assert "join_timeout=3600,is_host=true" in arguments
    assert printed == "ANCHOR_ADDRESSES=10.0.0.1,10.0.0.2\n"
    assert "join_timeout=3600,is_host=false" in run(anchor, tmp_path, SKYPILOT_NODE_RANK="1")[0]
    assert spot["envs"] == {"ANCHOR_ADDRESSES": None}
    arguments, _ = run(
        spot, tmp_path, ANCHOR_ADDRESSES="10.0.0.1,10.0.0.2", SKYPILOT_NODE_IPS="10.1.0.1"
    )
    assert arguments[: len(both)] == both and "join_timeout=3600,is_host=false" in arguments


def test_zones_without_names_mean_the_region() -> None:
    zones = (*gpu_vms().zones, ZonePrice("use1-az2", gpu_vms().zones[0].usd_per_hour))
    file, *_ = render(tiering(training=gpu_vms(zones=zones)), "skypilot").files
    assert [e["infra"] for e in yaml.safe_load(file.text)["resources"]["any_of"]] == [
        "aws/us-east-1"
    ]
    assert "no names of use1-az2" in " ".join(file.text.split())
    assert [e["infra"] for e in tasks(spot_only())["training.yaml"]["resources"]["any_of"]] == [
        "aws"
    ]


@pytest.mark.parametrize(
    ("vms", "accelerators"),
    [
        (gpu_vms(gpu_name="A10G", gpus_per_vm=4), {"A10G": 4}),
        # SkyPilot has another name for it; the type alone says it
        (gpu_vms(gpu_name="A100-40"), None),
        (gpu_vms(gpu_name="", gpus_per_vm=None), None),
    ],
)
def test_accelerators_only_under_skypilots_names(
    vms: PlannedVms, accelerators: dict[str, int] | None
) -> None:
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


SKY = """#!/bin/bash
[ -e start.sh ] || exit 1  # where relative paths of the files count from
printf '%s|' "$@" >> "$HOME/sky-ran"; echo "$DEEPVM_TOKEN" >> "$HOME/sky-ran"
if [ "$1" = logs ]; then
  echo x >> "$HOME/looked"
  # The first log has nothing yet; then a line as SkyPilot prints it.
  [ "$(wc -l < "$HOME/looked")" -lt 2 ] || echo "(deepvm, pid=1) ${ROLE}_ADDRESSES=10.0.0.1,10.0.0.2"
  exit 100
fi
"""


def start(
    plan: Plan, folder: Path, *words: str, options: ExportOptions = COMMAND, **given: str
) -> subprocess.CompletedProcess[str]:
    """Run start.sh with a sky that writes down what it was told."""
    write_export(render(plan, "skypilot", options), folder / "files")
    (folder / "sky").write_text(SKY)
    (folder / "sky").chmod(0o755)
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "LOOK_S": "0"}
    variables |= {"ROLE": "MEMORY" if plan.memory else "ANCHOR", **given}
    command = [str(folder / "files" / "start.sh"), *words]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30)


def test_one_script_starts_what_stays_and_tells_the_rest_its_addresses(tmp_path: Path) -> None:
    assert start(tiering(), tmp_path).returncode == 0
    token = (tmp_path / "files" / "token").read_text()
    assert len(token) == 64 and (tmp_path / "files" / "token").stat().st_mode & 0o777 == 0o600
    files = f"{tmp_path}/files"
    logs = "logs|--no-follow|deepvm-memory|"
    assert (tmp_path / "sky-ran").read_text().splitlines() == [
        f"launch|-y|-c|deepvm-memory|--detach-run|--secret|DEEPVM_TOKEN|{files}/memory.yaml|{token}",
        *[logs + token] * 2,
        (
            "jobs|launch|-y|-n|deepvm-training|--detach-run|--secret|DEEPVM_TOKEN|--env|"
            f"MEMORY_ADDRESSES=10.0.0.1,10.0.0.2|{files}/training.yaml|{token}"
        ),
    ]


def test_the_script_takes_the_command_and_stops_all(tmp_path: Path) -> None:
    out = start(single_anchor(), tmp_path, options=ExportOptions(job="resnet_7"))
    assert out.returncode == 2 and "usage: " in out.stderr
    command = [str(tmp_path / "files" / "start.sh"), "train.py --name 'a b'"]
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LOOK_S": "0",
        "ROLE": "ANCHOR",
    }
    subprocess.run(command, env=variables, check=True, timeout=30)
    subprocess.run([command[0], "stop"], env=variables, check=True, timeout=30)
    first, *_, last, cancel, down = (tmp_path / "sky-ran").read_text().splitlines()
    assert (
        "launch|-y|-c|resnet-7-anchor|" in first
        and "--env|TRAINING_COMMAND=train.py --name 'a b'|" in first
    )
    assert (
        "--env|TRAINING_COMMAND=train.py --name 'a b'|--env|ANCHOR_ADDRESSES=10.0.0.1,10.0.0.2|"
        in last
    )
    assert (cancel, down) == ("jobs|cancel|-y|-n|resnet-7-training|", "down|-y|resnet-7-anchor|")


def test_all_spot_needs_a_bucket_and_no_token(tmp_path: Path) -> None:
    refused = start(spot_only(), tmp_path)
    assert refused.returncode == 2 and not (tmp_path / "sky-ran").exists()
    assert "CHECKPOINT_BUCKET is not set" in refused.stderr
    assert f"try: CHECKPOINT_BUCKET=NAME {tmp_path}/files/start.sh\n" in refused.stderr
    shutil.rmtree(tmp_path / "files")
    assert start(spot_only(), tmp_path, CHECKPOINT_BUCKET="mine").returncode == 0
    assert not (tmp_path / "files" / "token").exists()
    assert "secrets" not in tasks(spot_only())["training.yaml"]
    (line,) = (tmp_path / "sky-ran").read_text().splitlines()
    assert line == (
        "jobs|launch|-y|-n|deepvm-training|--detach-run|--env|CHECKPOINT_BUCKET=mine|"
        f"{tmp_path}/files/training.yaml|"
    )


@pytest.mark.parametrize(
    ("catalog", "url", "mount"),
    [
        ("aws", "s3://mine/resnet-7", "s3://${CHECKPOINT_BUCKET}"),
        ("gcp", "gs://mine/resnet-7", "gs://${CHECKPOINT_BUCKET}"),
        ("nebius", "s3://mine/resnet-7", "s3://${CHECKPOINT_BUCKET}"),
        ("azure", "az://mine/resnet-7", None),
    ],
)
def test_an_all_spot_plan_keeps_its_checkpoints(
    tmp_path: Path, catalog: str, url: str, mount: str | None
) -> None:
    plan = spot_only(source=replace(SOURCE, catalog=catalog))
    options = ExportOptions(command="train.py", job="resnet-7")
    task = tasks(plan, options)["training.yaml"]
    # SkyPilot refuses a task with a variable that has no value
    assert task["envs"] == {"CHECKPOINT_BUCKET": None}
    mounts = task.get("file_mounts", {})
    assert mounts.get("/checkpoints", {}).get("source") == mount
    run(task, tmp_path)
    assert f"DEEPVM_TIERS={url}\n" in (tmp_path / "deepvm-ran").read_text()
    notes = "\n".join(render(plan, "skypilot", options).notes)
    assert "start: CHECKPOINT_BUCKET=NAME ./start.sh\n" in notes
    assert "set CHECKPOINT_BUCKET to a bucket that exists" in notes
    given = replace(options, persist="s3://other/run")
    assert set(tasks(plan, given)["training.yaml"]) & {"envs", "file_mounts"} == set()


def test_on_demand_vms_need_no_bucket() -> None:
    stays = spot_only(training=gpu_vms(0, 4, zones=()))
    assert "envs" not in tasks(stays)["training.yaml"]


@pytest.mark.parametrize(
    ("catalog", "vm", "image", "asked", "note"),
    [
        ("aws", "p5.48xlarge", "", True, "all with aws.use_internal_ips"),
        ("aws", "p5.48xlarge", "docker:me/train", True, "all with aws.use_internal_ips"),
        ("aws", "p5.48xlarge", "ami-1", False, "with an image that is not docker:NAME"),
        ("aws", "p3dn.24xlarge", "", False, "EFA between them, which no file here asks for"),
        ("aws", "g4dn.xlarge", "", False, ""),
        ("gcp", "a3-highgpu-8g", "", True, "in its own container for this network"),
        ("gcp", "a3-ultragpu-8g", "", False, "which no file here asks for"),
        ("nebius", "gpu-h200-sxm_8gpu-128vcpu-1600gb", "docker:me/train", True, ""),
        ("azure", "Standard_ND96isr_H200_v5", "", False, "which no file here asks for"),
    ],
)
def test_the_network_that_speeds_count_on_where_skypilot_gives_it(
    catalog: str, vm: str, image: str, asked: bool, note: str
) -> None:
    plan = tiering(
        training=gpu_vms(instance_type=vm, zones=()), source=replace(SOURCE, catalog=catalog)
    )
    options = ExportOptions(command="train.py", image=image)
    found = tasks(plan, options)
    (entry,) = found["training.yaml"]["resources"]["any_of"]
    assert entry.get("network_tier") == ("best" if asked else None)
    assert "network_tier" not in found["memory.yaml"]["resources"]["any_of"][0]
    notes = "\n".join(render(plan, "skypilot", options).notes)
    assert note in notes and ("which no file here asks for" in notes) <= (not asked)
    one = replace(plan, training=replace(plan.training, spot_count=1))
    assert "network_tier" not in tasks(one, options)["training.yaml"]["resources"]["any_of"][0]


def test_trainers_know_their_tiers_and_no_process_inherits_the_token(tmp_path: Path) -> None:
    found = tasks(tiering(), ExportOptions(command="train.py", job="resnet-7"))
    run(found["training.yaml"], tmp_path, MEMORY_ADDRESSES="10.0.0.8,10.0.0.9")
    ran = (tmp_path / "deepvm-ran").read_text()
    assert ran.startswith("agent --metadata auto -- torchrun ")
    assert (
        "DEEPVM_TIERS=tcp://10.0.0.8:7070,10.0.0.9:7070\n" in ran and "DEEPVM_JOB=resnet-7\n" in ran
    )
    assert f"DEEPVM_TOKEN_FILE={tmp_path}/.deepvm-token\n" in ran and SECRET not in ran
    file = tmp_path / ".deepvm-token"
    assert file.read_text() == SECRET and file.stat().st_mode & 0o777 == 0o600
    (tmp_path / "deepvm-ran").unlink()
    run(found["memory.yaml"], tmp_path)
    ran = (tmp_path / "deepvm-ran").read_text()
    assert ran.startswith(
        f"memory-node serve --listen 0.0.0.0:7070 --token-file {tmp_path}/.deepvm-token --memory "
    )
    assert SECRET not in ran


def test_an_anchor_keeps_versions_beside_its_training(tmp_path: Path) -> None:
    run(tasks(single_anchor())["anchor.yaml"], tmp_path, SKYPILOT_NODE_IPS="10.0.0.1")
    # The node is started in the background, and writes when it gets a processor.
    assert until(lambda: "memory-node serve" in (tmp_path / "deepvm-ran").read_text(), 10.0)
    ran = (tmp_path / "deepvm-ran").read_text()
    assert "DEEPVM_TIERS=tcp://10.0.0.1:7070\n" in ran


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_buckets_of_other_clouds_bring_their_library(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://bucket/run"
    options = ExportOptions(persist=url, own=OwnPackage("", "/here", "deepvm.whl", b"wheel"))
    made = render(tiering(), "skypilot", options)
    assert any(f"an identity that may write {url}" in note for note in made.notes)
    found = {name: task["setup"] for name, task in tasks(tiering(), options).items()}
    assert (
        f"deepvm.whl[{scheme}]" in found["memory.yaml"]
        and f"deepvm.whl[train,{scheme}]" in found["training.yaml"]
    )
    run(tasks(spot_only(), ExportOptions(command="x", persist=url))["training.yaml"], tmp_path)
    assert f"DEEPVM_TIERS={url}\n" in (tmp_path / "deepvm-ran").read_text()


def test_where_the_code_comes_from(tmp_path: Path) -> None:
    def workdir(code: str) -> list[Any]:
        options = ExportOptions(code=code, folder=str(tmp_path / "files"))
        return [t.get("workdir") for t in tasks(tiering(), options).values()]

    assert workdir(str(tmp_path)) == ["..", None]
    (tmp_path / "src").mkdir()
    assert workdir(str(tmp_path / "src")) == ["../src", None]
    with pytest.raises(RequestError, match="a folder that is here, or"):
        workdir(str(tmp_path / "code"))
    assert workdir("https://host/a.git@v1.0") == [
        {"url": "https://host/a.git", "ref": "v1.0"},
        None,
    ]
    assert workdir("https://host/a.git") == [{"url": "https://host/a.git"}, None]
    with pytest.raises(RequestError, match="a folder that is here, or"):
        workdir("s3://bucket/code.tar.gz")


def test_setup_installs_deepvm(tmp_path: Path) -> None:
    """With a pip that writes down what it was told.

    There is no deepvm yet, and nothing is installed a second time.
    """
    (tmp_path / "python3").write_text('#!/bin/bash\necho "$@" >> "$HOME/asked"\n')
    (tmp_path / "python3").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    for task in tasks(tiering()).values():
        subprocess.run(["bash"], input=task["setup"], env=variables, text=True, check=True)
    (tmp_path / "deepvm").write_text("#!/bin/bash\n")
    (tmp_path / "deepvm").chmod(0o755)
    subprocess.run(["bash"], input=task["setup"], env=variables, text=True, check=True)
    assert (tmp_path / "asked").read_text().splitlines() == [
        "-m pip install --quiet deepvm[train]==0.1.0",
        "-m pip install --quiet deepvm==0.1.0",
    ]


def test_the_wheel_is_where_setup_looks_for_it(tmp_path: Path) -> None:
    own = OwnPackage("", "/home/me", "deepvm-0.1.0-py3-none-any.whl", b"a wheel")
    (tmp_path / "python3").write_text(
        '#!/bin/bash\n[ -s "${!#%%"[train]"}" ] && echo "${!#}" >> "$HOME/asked"\n'
    )
    (tmp_path / "python3").chmod(0o755)
    options = ExportOptions(command="train.py", own=own)
    write_export(render(tiering(), "skypilot", options), tmp_path / "files")
    for task in tasks(tiering(), options).values():
        assert_valid(task)
        # As SkyPilot does, called by start.sh in its folder
        for there, here in task["file_mounts"].items():
            shutil.copy(tmp_path / "files" / here, there.replace("~", str(tmp_path)))
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
        subprocess.run(["bash"], input=task["setup"], env=variables, text=True, check=True)
    wheel = f"{tmp_path}/{own.wheel_name}"
    assert (tmp_path / "asked").read_text().splitlines() == [f"{wheel}[train]", wheel]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(TEXT, TEXT)
@example(image="\x85", memory="\u2028\n ")
@example(image=" # not a comment", memory="yes")
@example(image="0", memory="0\n")
@example(image="null", memory="- [a: b]\n\t")
@example(image="1e3", memory="2026-08-10")
def test_any_image_comes_back(image: str, memory: str) -> None:
    found = tasks(tiering(), ExportOptions(image=image, memory_image=memory))
    assert found["training.yaml"]["resources"]["any_of"][0]["image_id"] == image
    assert found["memory.yaml"]["resources"]["any_of"][0]["image_id"] == memory


@given(
    st.lists(TEXT, min_size=1, max_size=4).filter(
        lambda w: w[0] not in ("python", "python3", "torchrun", "bash", "sh")
    )
)
@example([" ", "\n", "'", '"$(x)"'])
@example(["train.py", "\x85", "a\r\nb", "#"])
def test_any_command_comes_back(words: list[str]) -> None:
    script = tasks(spot_only(), ExportOptions(command=shlex.join(words)))["training.yaml"]["run"]
    assert (
        shlex.split(script.replace("\\\n", " ", 6).split('"$SKYPILOT_NUM_GPUS_PER_NODE"')[1])
        == words
    )


@pytest.mark.parametrize(
    "words", [["a b", "$HOME", "`id`", "'", '"', "\\", "*", "\n", "é\u2028x", "-m"]]
)
def test_a_shell_reads_the_words(words: list[str], tmp_path: Path) -> None:
    options = ExportOptions(command=shlex.join(words))
    assert run(tasks(spot_only(), options)["training.yaml"], tmp_path)[0] == INSIDE + words
