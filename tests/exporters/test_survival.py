"""Exported files start a training that really survives: the real torchrun, agent and memory node,
on this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest
from support.jobs.metadata_services import Imds
from support.moto_server import moto_server
from support.places import ROOT
from support.plans import gpu_vms, spot_only, tiering
from support.processes import descendants, until

from deepvm.exporters.aws import Ec2Fleet
from deepvm.exporters.base import write_export
from deepvm.exporters.options import ExportOptions
from deepvm.exporters.registry import render
from deepvm.io.own_package import OwnPackage, own_package

pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # whole trainings

TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
import deepvm
from deepvm.checkpoint import Checkpointer

print(deepvm.__file__)
log = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Checkpointer(model=model, optimizer=optimizer) as checkpointer:
    first = checkpointer.restore_latest()
    for step in range(first, 60):
        inputs = torch.rand(8, 4, generator=torch.Generator().manual_seed(step * world + rank))
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        with open(log, "a") as file:
            file.write(f"{rank} {first} {step}\\n")
        time.sleep(0.1)
"""
STEPS = 60


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Host:
    """A process with all that it has started, which a preemption ends at once."""

    def __init__(self, command: list[str], log: Path, **variables: str) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def vanish(self) -> None:
        for pid in (self.process.pid, *descendants(self.process.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        self._log.close()


@contextmanager
def ended() -> Iterator[list[Host]]:
    hosts: list[Host] = []
    try:
        yield hosts
    finally:
        for host in hosts:
            host.vanish()


def tools(folder: Path) -> str:
    """A path on which deepvm, torchrun and python3 are those of this environment."""
    folder.mkdir()
    modules = {"deepvm": "-m deepvm", "torchrun": "-m torch.distributed.run", "python3": ""}
    for name, module in modules.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def trained(log: Path) -> list[tuple[int, int, int]]:
    """(rank, step that it began with, step) of each step done."""
    if not log.exists():
        return []
    rows = [line.split() for line in log.read_text().splitlines()]
    return [(int(a), int(b), int(c)) for a, b, c in (r for r in rows if len(r) == 3)]


def until_step(log: Path, step: int, limit_s: float = 120.0) -> None:
    end_s = time.monotonic() + limit_s
    while not any(done >= step for _, _, done in trained(log)):
        assert time.monotonic() < end_s, "no step"
        time.sleep(0.1)


def assert_survived(log: Path, killed_at: int, apart: int = STEPS) -> None:
    """Both ranks went on from a version, and nothing after it was done more than twice.

    ``apart``: of the versions.

    By default the first step is saved, to see what versions cost; these trainings are too short for
    a second one.
    """
    rows = trained(log)
    assert {(r, s) for r, _, s in rows} == {(r, s) for r in (0, 1) for s in range(STEPS)}
    begins = sorted({first for _, first, _ in rows})
    assert begins[0] == 0 and len(begins) == 2
    assert max(1, killed_at - 3 * apart) <= begins[1] <= killed_at + 5


def wheel() -> OwnPackage:
    """This deepvm as it goes with an export, however it was installed."""
    told = json.dumps({"url": f"file://{ROOT}", "dir_info": {"editable": True}})
    real = metadata.PathDistribution.read_text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            metadata.PathDistribution,
            "read_text",
            lambda self, name: told if name == "direct_url.json" else real(self, name),
        )
        return own_package()


def bare(folder: Path) -> dict[str, str]:
    """Variables of a VM that has PyTorch, but no deepvm.

    Its pip has no index, and so no other packages.
    """
    tools, site = folder / "tools", folder / "site"
    tools.mkdir()
    pip = f'exec "{sys.executable}" -m pip install --no-deps --no-index --target "{site}" "${{!#}}"'
    texts = {
        "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
        "python3": f'[ "$2" != pip ] || {pip}\nexec "{sys.executable}" "$@"',
    }
    for name, text in texts.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{site}/bin:/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join([str(site), os.environ["PYTHONPATH"]]),
    }


@pytest.fixture
def aws_url() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.mark.parametrize("victim", [1, 2])
def test_a_torchrun_export_goes_on_where_it_was(victim: int, tmp_path: Path) -> None:
    """Two VMs and a memory node.

    One VM vanishes, another takes its place, with nothing but the exported files.

    deepvm is among them, as it was not installed from where VMs could get it.
    """
    plan = tiering(training=gpu_vms(2))
    folder, log = tmp_path / "export", tmp_path / "steps"
    write_export(render(plan, "torchrun", ExportOptions(job="survivor", own=wheel())), folder)
    (tmp_path / "train.py").write_text(TRAIN)
    names = {"memory-1": "127.0.0.1", "training-1": "127.0.0.1", "training-2": "127.0.0.2"}
    for file in ("hostfile", "memory-hosts"):
        text = (folder / file).read_text()
        for name, address in names.items():
            text = text.replace(f"<{name}>", address)
        (folder / file).write_text(text)
    variables = {
        **{"OMP_NUM_THREADS": "1", "DEEPVM_SAVE_POLICY": "static:5"},
        **{
            "RENDEZVOUS_PORT": str(free_port()),
            "MEMORY_PORT": str(free_port()),
            "MEMORY_SIZE": "64MiB",
        },
    }
    subprocess.run([folder / "launch.sh", "token"], env={**os.environ, **variables}, check=True)
    copies = [tmp_path / f"vm-{i}" for i in range(3)]
    for copy in copies:
        shutil.copytree(folder, copy)
    own = {copy: {**variables, **bare(copy)} for copy in copies}
    train = [str(tmp_path / "train.py"), str(log)]
    with ended() as hosts:
        hosts.append(
            Host(
                [str(copies[0] / "launch.sh"), "rendezvous"],
                tmp_path / "memory.log",
                **own[copies[0]],
            )
        )
        for copy in copies[1:]:
            hosts.append(Host([str(copy / "launch.sh"), *train], copy / "log", **own[copy]))
        until_step(log, 20)
        hosts.pop(victim).vanish()
        killed_at = max(step for _, _, step in trained(log))
        there = copies[victim]
        hosts.append(Host([str(there / "launch.sh"), *train], there / "log", **own[there]))
        for host in hosts[1:]:
            assert host.process.wait(180) == 0, "".join(
                c.joinpath("log").read_text()[-3000:] for c in copies[1:]
            )
        assert hosts[0].process.poll() is None
    assert_survived(log, killed_at, apart=5)
    for copy in copies[1:]:
        assert f"{copy}/site/deepvm/__init__.py" in (copy / "log").read_text()


def test_all_spot_vms_survive_the_loss_of_the_one_where_they_meet(
    aws_url: str, tmp_path: Path
) -> None:
    """The survivor's torchrun ends with its store.

    It and the newcomer agree on another, and read the bucket.
    """
    plan, log = spot_only(training=gpu_vms(2, zones=())), tmp_path / "steps"
    (tmp_path / "train.py").write_text(TRAIN)
    options = ExportOptions(
        command=f"{tmp_path}/train.py {log}", job="survivor", persist=f"file://{tmp_path}/versions"
    )
    script = tmp_path / "user-data.sh"
    script.write_text(Ec2Fleet(plan, options).user_data(plan.groups[0]))
    script.chmod(0o700)
    port = str(free_port())
    services: list[Imds] = []
    path = tools(tmp_path / "tools")

    def boot(number: int) -> Host:
        services.append(Imds())
        services[-1].facts |= {"local-ipv4": f"127.0.0.{number}", "placement/region": "us-east-1"}
        variables = {
            **{"PATH": path, "OMP_NUM_THREADS": "1", "RENDEZVOUS_PORT": port},
            **{"AWS_ENDPOINT_URL": aws_url, "DEEPVM_ROOT": str(tmp_path / f"vm-{number}")},
            **{"AWS_EC2_METADATA_SERVICE_ENDPOINT": services[-1].url, "MAX_RESTARTS": "3"},
            **{"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"},
        }
        return Host([str(script)], tmp_path / f"{number}.log", **variables)

    try:
        with ended() as hosts:
            hosts.append(boot(1))
            leader = tmp_path / "vm-1" / "leader"
            assert until(lambda: leader.exists() and "true" in leader.read_text(), 60)
            hosts.append(boot(2))
            until_step(log, 20)
            hosts.pop(0).vanish()
            killed_at = max(step for _, _, step in trained(log))
            hosts.append(boot(3))
            for host in hosts:
                assert host.process.wait(240) == 0, (tmp_path / "2.log").read_text()[-3000:]
        assert_survived(log, killed_at)
        assert (tmp_path / "vm-2" / "leader").read_text().startswith("2 ")
    finally:
        for service in services:
            service.close()


def test_user_data_goes_on_where_it_was(aws_url: str, tmp_path: Path) -> None:
    """As EC2 Fleet and Terraform start it: three VMs boot, one is taken, and what takes its place
    boots the same.
    """
    plan, log = tiering(training=gpu_vms(2)), tmp_path / "steps"
    (tmp_path / "train.py").write_text(TRAIN)
    options = ExportOptions(command=f"{tmp_path}/train.py {log}", job="survivor")
    scripts = {}
    for group in plan.groups:
        scripts[group.role] = tmp_path / f"{group.role}.sh"
        scripts[group.role].write_text(Ec2Fleet(plan, options).user_data(group))
        scripts[group.role].chmod(0o700)
    imds = Imds()
    imds.facts |= {"local-ipv4": "127.0.0.1", "instance-id": "i-1", "placement/region": "us-east-1"}
    variables = {
        **{"PATH": tools(tmp_path / "tools"), "OMP_NUM_THREADS": "1"},
        **{
            "RENDEZVOUS_PORT": str(free_port()),
            "MEMORY_PORT": str(free_port()),
            "MEMORY_SIZE": "64MiB",
        },
        **{"AWS_ENDPOINT_URL": aws_url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url},
        **{"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"},
    }

    def boot(role: str, name: str) -> Host:
        return Host(
            [str(scripts[role])],
            tmp_path / f"{name}.log",
            DEEPVM_ROOT=str(tmp_path / name),
            **variables,
        )

    try:
        with ended() as hosts:
            hosts += [boot("memory", "node"), boot("training", "first"), boot("training", "second")]
            until_step(log, 20)
            hosts.pop(1).vanish()
            killed_at = max(step for _, _, step in trained(log))
            hosts.append(boot("training", "third"))
            for host in hosts[1:]:
                assert host.process.wait(180) == 0, (tmp_path / "second.log").read_text()[-3000:]
            assert hosts[0].process.poll() is None
        assert_survived(log, killed_at)
    finally:
        imds.close()
