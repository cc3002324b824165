"""User data of EC2 instances, run with parameters in a server that answers like AWS, and facts of a
fake IMDS.

deepvm and torchrun are stand-ins here that say what they were told; :mod:`test_survival` runs the
real ones.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from support.jobs.metadata_services import Imds
from support.moto_server import moto_server
from support.plans import PLANS, gpu_vms, memory_vms, single_anchor, spot_only, tiering
from support.processes import until

from deepvm.core.cluster.plan import Plan
from deepvm.errors import RequestError
from deepvm.exporters.aws import LARGEST, Ec2Fleet
from deepvm.exporters.options import ExportOptions

pytestmark = pytest.mark.slow  # scripts against a simulated AWS

COMMAND = ExportOptions(command="train.py --name 'two words'")
TRAINED = ["train.py", "--name", "two words"]
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
TOOLS = {
    # A node that listens until it is stopped.
    "deepvm": (
        f"""#!/bin/bash
{{ printf '%s ' "$@"; echo; env | grep -E '^(DEEPVM|TORCH)_'; echo "in $PWD"; }} >> "$DEEPVM_ROOT/ran"
if [ "$1" = memory-node ]; then
  exec {shlex.quote(sys.executable)} -c '
import os, socket, time
listener = socket.create_server(("127.0.0.1", int(os.environ["MEMORY_PORT"])))
time.sleep(60)'
fi
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
    ),
    "torchrun": (
        """#!/bin/bash
printf '%s\\n' "$@" > "$DEEPVM_ROOT/arguments"
exit "$(cat "$DEEPVM_ROOT/exits" 2> /dev/null || echo 0)"
"""
    ),
    "python3": (
        f"""#!/bin/sh
[ "$2" = "import signal" ] || exec {shlex.quote(sys.executable)} "$@"
"""
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server() as url:
        yield url


def client(server: str, service: str = "ssm") -> Any:
    return boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=server,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def script(plan: Plan, role: str, options: ExportOptions = COMMAND) -> str:
    (group,) = (g for g in plan.groups if g.role == role)
    return Ec2Fleet(plan, options).user_data(group)


class Vm:
    """An instance whose folder is ``folder``; ``address`` is what its metadata service says."""

    def __init__(self, server: str, folder: Path, address: str, port: int) -> None:
        self.folder, self._imds = folder, Imds()
        self._imds.facts |= {
            "local-ipv4": address,
            "instance-id": f"i-{folder.name}",
            "placement/region": "us-east-1",
        }
        self._imds.facts |= {
            "iam/security-credentials/": "role",
            "iam/security-credentials/role": json.dumps(
                {"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "c"}
            ),
        }
        tools = folder / "tools"
        tools.mkdir(parents=True)
        for name, text in TOOLS.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self.environment = {
            **KEYS,
            **{
                "PATH": f"{tools}:/usr/bin:/bin",
                "HOME": str(folder),
                "DEEPVM_ROOT": str(folder / "root"),
            },
            **{"AWS_ENDPOINT_URL": server, "AWS_ENDPOINT_URL_S3": server, "MEMORY_PORT": str(port)},
            **{
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": self._imds.url,
                "PYTHONPATH": os.environ["PYTHONPATH"],
            },
            **{"WAIT_S": "20"},
        }

    def boot(self, text: str, **variables: str) -> subprocess.Popen[str]:
        part = self.folder / "part-001"
        part.write_text(text)
        part.chmod(0o700)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([part], env={**self.environment, **variables}, cwd="/", **pipes)

    def run(self, text: str, **variables: str) -> tuple[int, str]:
        process = self.boot(text, **variables)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, out + err

    def read(self, name: str) -> str:
        path = self.folder / "root" / name
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        self._imds.close()


@pytest.fixture
def vm(server: str, tmp_path: Path, unused_port: int) -> Iterator[Any]:
    made: list[Vm] = []

    def make(name: str, address: str = "127.0.0.1") -> Vm:
        made.append(Vm(server, tmp_path / name, address, unused_port))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize(
    "options", [ExportOptions(), COMMAND, ExportOptions(code="s3://bucket/code.tgz")], ids=repr
)
def test_bash_reads_it_and_ec2_takes_it(plan: Plan, options: ExportOptions) -> None:
    for group in plan.groups:
        text = script(plan, group.role, options)
        out = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert out.returncode == 0 and not out.stderr and len(text.encode()) <= LARGEST


def test_one_that_is_too_long_for_ec2_is_refused() -> None:
    with pytest.raises(RequestError, match="at most 16384 bytes"):
        script(tiering(), "training", ExportOptions(command="train.py " + "x" * LARGEST))


def test_a_memory_node_makes_the_token_and_trainers_find_it(server: str, vm: Any) -> None:
    plan, options = tiering(), ExportOptions(command="train.py --name 'two words'", job="found")
    node, trainer = vm("node"), vm("trainer", "127.0.0.9")
    serving = node.boot(script(plan, "memory", options))
    try:
        code, said = trainer.run(script(plan, "training", options))
        assert code == 0, said
        assert serving.poll() is None
    finally:
        serving.terminate()
        serving.communicate(timeout=20)
    token = client(server).get_parameter(Name="/deepvm/found/token", WithDecryption=True)[
        "Parameter"
    ]
    assert token["Type"] == "SecureString" and len(token["Value"]) == 64
    for one in (node, trainer):
        file = one.folder / "root" / "token"
        assert file.read_text() == token["Value"] and file.stat().st_mode & 0o777 == 0o600
        assert token["Value"] not in one.read("ran") + one.read("run.sh") + said
    assert "memory-node serve --listen 0.0.0.0:" in node.read("ran")
    arguments = trainer.read("arguments").splitlines()
    assert arguments[-3:] == TRAINED and "127.0.0.1:29500" in arguments and "17:17" in arguments
    port = trainer.environment["MEMORY_PORT"]
    ran = trainer.read("ran")
    assert (
        ran.startswith("agent --metadata auto -- torchrun ")
        and f"DEEPVM_TIERS=tcp://127.0.0.1:{port}\n" in ran
    )
    assert "DEEPVM_JOB=found\n" in ran and f"DEEPVM_TOKEN_FILE={trainer.folder}/root/token\n" in ran


def test_a_second_node_takes_the_token_that_there_is(server: str, vm: Any) -> None:
    """And trainers wait until both answer: one alone would hold half of each version."""
    plan, options = tiering(memory=memory_vms(2)), ExportOptions(command="train.py", job="pair")
    client(server).put_parameter(Name="/deepvm/pair/token", Value="7" * 64, Type="SecureString")
    client(server).put_parameter(Name="/deepvm/pair/nodes/i-old", Value="127.0.0.77", Type="String")
    node, trainer = vm("node"), vm("trainer")
    serving = node.boot(script(plan, "memory", options))
    try:
        assert until(lambda: "memory-node" in node.read("ran"), 30)
        assert node.read("token") == "7" * 64
        code, said = trainer.run(script(plan, "training", options), WAIT_S="4")
    finally:
        serving.terminate()
        serving.communicate(timeout=20)
    assert code == 1 and "agent" not in trainer.read("ran")
    assert "after 4 s: 2 keepers of checkpoints must answer on TCP port" in said
    assert "/deepvm/pair/nodes names 127.0.0.1, 127.0.0.77" in said and "security group" in said


def test_an_anchor_trains_beside_its_node_and_hosts_the_rendezvous(vm: Any) -> None:
    plan, options = single_anchor(), ExportOptions(command="train.py", job="anchored")
    anchor = vm("anchor")
    code, said = anchor.run(script(plan, "anchor", options))
    assert code == 0, said
    assert "memory-node serve" in anchor.read("ran")
    assert anchor.read("arguments").splitlines()[-2:] == [
        "join_timeout=3600,is_host=true",
        "train.py",
    ]


def test_without_a_command_all_is_prepared(vm: Any) -> None:
    plan, options = single_anchor(), ExportOptions(job="later")
    spot, anchor = vm("spot", "127.0.0.2"), vm("anchor")
    code, said = spot.run(script(plan, "training", options))
    assert (
        code == 0
        and "sudo /opt/deepvm/run.sh train.py ARGUMENTS" in said
        and not spot.read("arguments")
    )
    serving = anchor.boot(script(plan, "anchor", options))
    try:
        assert until(lambda: "memory-node" in anchor.read("ran"), 30)
        by_hand = subprocess.run(
            [spot.folder / "root" / "run.sh", "train.py", "a b"],
            env=spot.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert by_hand.returncode == 0, by_hand.stderr
        assert spot.read("arguments").splitlines()[-3:] == [
            "join_timeout=3600,is_host=false",
            "train.py",
            "a b",
        ]
        # The anchor's node runs already, and is not started a second time.
        run = [anchor.folder / "root" / "run.sh", "train.py"]
        by_hand = subprocess.run(
            run, env=anchor.environment, capture_output=True, text=True, timeout=60
        )
        assert by_hand.returncode == 0, by_hand.stderr
        assert anchor.read("ran").count("memory-node serve") == 1
        assert serving.poll() is None
    finally:
        serving.terminate()
        serving.communicate(timeout=20)


def test_all_spot_vms_agree_on_one_and_on_another_when_it_is_gone(server: str, vm: Any) -> None:
    plan, options = (
        spot_only(),
        ExportOptions(command="train.py", job="spots", persist="s3://bucket/run"),
    )
    first = vm("first")
    assert first.run(script(plan, "training", options))[0] == 0
    assert "join_timeout=3600,is_host=true" in first.read("arguments")
    assert "DEEPVM_TIERS=s3://bucket/run\n" in first.read("ran")
    found = client(server).get_parameter(Name="/deepvm/spots/hosts/000001")["Parameter"]
    assert found["Value"] == "127.0.0.1"
    # Its torchrun fails, as when the store is gone: the next term.
    (first.folder / "root" / "exits").write_text("1")
    code, said = first.run(script(plan, "training", options), ATTEMPTS="2")
    assert code == 1 and "attempt 1 ended with 1" in said and "attempt 2 ended with 1" in said
    # A signal is no reason to try again.
    (first.folder / "root" / "exits").write_text("143")
    code, said = first.run(script(plan, "training", options))
    assert code == 143 and "attempt" not in said


def archive() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        member = tarfile.TarInfo("train.py")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"1"))
    return data.getvalue()


def test_the_code_is_fetched(server: str, vm: Any, tmp_path: Path) -> None:
    storage = client(server, "s3")
    storage.create_bucket(Bucket="codes")
    storage.put_object(Bucket="codes", Key="a/code.tar.gz", Body=archive())
    options = ExportOptions(
        command="train.py", job="code", code="s3://codes/a/code.tar.gz", persist="s3://b/run"
    )
    trainer = vm("trainer")
    code, said = trainer.run(script(spot_only(), "training", options))
    assert code == 0, said
    assert trainer.read(
        "code/train.py"
    ) == "1" and f"in {trainer.folder}/root/code\n" in trainer.read("ran")


def test_code_from_git(tmp_path: Path) -> None:
    """The lines that fetch it, with a repository on this machine instead of the URL."""
    home = tmp_path / "origin.git"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", home], check=True)
    for number in ("1", "2"):
        (home / "train.py").write_text(number)
        subprocess.run(["git", "add", "."], cwd=home, check=True)
        subprocess.run([*git, "commit", "-qm", number], cwd=home, check=True)
        subprocess.run(["git", "tag", f"v{number}"], cwd=home, check=True)
    text = script(tiering(), "training", ExportOptions(code="https://host/a.git@v1"))
    lines = text[text.index('mkdir -p "$root/code"') : text.index('"${meeting[@]}" join')]
    for _ in range(2):  # started again
        subprocess.run(
            ["bash", "-euc", lines.replace("https://host/a.git", str(home))],
            env={**os.environ, "root": str(tmp_path)},
            check=True,
        )
        assert (tmp_path / "code" / "train.py").read_text() == "1"


@pytest.mark.parametrize(
    "code", ["s3://bucket/code.zip", "git@host:a.git", "/home/me/code", "http://host/a.tar.gz"]
)
def test_code_from_elsewhere_is_refused(code: str) -> None:
    with pytest.raises(RequestError) as caught:
        script(tiering(), "training", ExportOptions(code=code))
    assert caught.value.option == "code" and "s3://BUCKET/NAME.tar.gz" in str(caught.value)


@pytest.mark.parametrize("job", ["a/b", "a=b", "x" * 51])
def test_names_that_aws_does_not_take_are_refused(job: str) -> None:
    with pytest.raises(RequestError) as caught:
        script(tiering(), "training", ExportOptions(job=job))
    assert caught.value.option == "job"


def test_the_role_may_do_what_is_needed_and_no_more() -> None:
    def allowed(options: ExportOptions) -> set[tuple[str, str]]:
        statements = json.loads(Ec2Fleet(tiering(), options).policy)["Statement"]
        actions = [(s["Action"], s["Resource"]) for s in statements]
        return {(a, r) for many, r in actions for a in ([many] if isinstance(many, str) else many)}

    options = ExportOptions(job="j", code="s3://codes/a.tar.gz", persist="s3://bucket/run")
    granted = allowed(options)
    meet = "arn:aws:ssm:*:*:parameter/deepvm/j/*"
    assert {r for a, r in granted if a.startswith("ssm:")} == {meet}
    assert ("s3:GetObject", "arn:aws:s3:::codes/a.tar.gz") in granted
    assert ("s3:PutObject", "arn:aws:s3:::bucket/run/*") in granted
    assert ("s3:ListBucket", "arn:aws:s3:::bucket") in granted
    assert not any("*" in action for action, _ in granted)
    assert not any(a.startswith("s3:") for a, _ in allowed(COMMAND))


def test_on_demand_vms_that_train_beside_memory_nodes_keep_nothing(vm: Any) -> None:
    plan = tiering(training=gpu_vms(2, 1))
    text = script(plan, "anchor")
    assert "memory-node serve" not in text and "is_host=false" in text and "keep token" not in text
