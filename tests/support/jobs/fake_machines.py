"""EC2 instances that really run: their user data, in a process tree each, with a metadata service
of their own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.jobs.fake_ec2 import FakeEc2

from deepvm.jobs.clouds.aws.ec2_settings import FOLDER, THIS_BOOT, UNIT
from deepvm.jobs.clouds.local import jail
from deepvm.jobs.clouds.local_machine import FakeMetadata

SHUTDOWN = """#!/bin/sh
echo "$*" >>"$STUB/shutdowns"
case "$*" in *now*) touch "$STUB/down";; esac
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$STUB/systemctl"
"""
TRAIN = "python own.py {steps} 0.05;"
"""A job that such machines train."""
HEADS: dict[str, str] = {}
"""What a test adds to the environment of heads: points at which they are killed."""
_ROLE = {
    "Code": "Success",
    "AccessKeyId": "ASIAROLE",
    "SecretAccessKey": "role",
    "Token": "role-token",
}


class Machine:
    """One instance; ``place``: what would be its disk."""

    def __init__(self, ec2: FakeEc2, instance: Any, place: Path) -> None:
        self.instance, self.place = instance, place
        place.mkdir(parents=True)
        tags = {t["key"]: t["value"] for t in instance.get_tags()}
        self.name = tags["deepvm:machine"]
        facts = {f"tags/instance/{key}": value for key, value in tags.items()} | {
            "local-ipv4": "127.0.0.1",
            "iam/security-credentials/": "deepvm-job",
            "iam/security-credentials/deepvm-job": json.dumps(
                {**_ROLE, "Expiration": "2099-01-01T00:00:00Z"}
            ),
            "placement/availability-zone": "us-east-1a",
        }
        self.metadata = FakeMetadata(facts)
        stub = place / "bin"
        stub.mkdir()
        for name, text in (("shutdown", SHUTDOWN), ("systemctl", SYSTEMCTL)):
            (stub / name).write_text(text)
            (stub / name).chmod(0o755)
        template = _template_of(ec2, self.name)
        script = base64.b64decode(template["LaunchTemplateData.UserData"]).decode()
        (place / "user-data").write_text(placed(script, place))
        environ = {
            k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "DEEPVM_", "PYTHON"))
        }
        path = [
            p for p in environ["PATH"].split(os.pathsep) if Path(p) != Path(sys.executable).parent
        ]
        environ |= {
            "PATH": os.pathsep.join([str(stub), *path]),  # an image's Python is in none of these
            "STUB": str(place),
            "HOME": str(place),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.url,
            "AWS_ENDPOINT_URL_S3": ec2.url,
        }
        if tags.get("deepvm:role") == "head":
            environ |= {"AWS_ENDPOINT_URL": ec2.url, **HEADS}
        with (place / "console").open("wb") as console:
            self.process = subprocess.Popen(
                [*jail(), "bash", str(place / "user-data")],
                cwd=place,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.instance._state.name in ("pending", "running")

    def cut_off(self) -> None:
        """The end of an instance: of all its processes at once."""
        with contextlib.suppress(OSError):
            children = (
                Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
                .read_text()
                .split()
            )
            for child in children:  # the first of its own kind of numbers: with it all others end
                os.kill(int(child), signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def placed(script: str, place: Path) -> str:
    """User data that writes nowhere else."""
    for path, name in ((FOLDER, "disk"), (UNIT, "unit"), (THIS_BOOT, "this-boot")):
        script = script.replace(path, str(place / name))
    return script


def _template_of(ec2: FakeEc2, machine: str) -> dict[str, str]:
    """The launch template with which a machine was asked for."""
    fleet = next(
        g for _, a, g in reversed(ec2.calls) if a == "CreateFleet" and machine in g.values()
    )
    name = fleet["LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName"]
    made = (
        g
        for _, a, g in reversed(ec2.calls)
        if a == "CreateLaunchTemplate" and g["LaunchTemplateName"] == name
    )
    return next(made)


class Machines:
    """Starts what EC2 has launched, and ends what it has terminated, or what shuts itself down."""

    def __init__(self, ec2: FakeEc2, folder: Path) -> None:
        self.ec2, self.folder, self.all = ec2, folder, dict[str, Machine]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            for instance in self.ec2.instances():
                known = self.all.get(instance.id)
                if known is None and instance._state.name == "running":
                    self.all[instance.id] = Machine(self.ec2, instance, self.folder / instance.id)
                elif known is not None and not known.alive and known.process.poll() is None:
                    known.cut_off()
                elif known is not None and known.alive and (known.place / "down").exists():
                    instance.terminate()  # InstanceInitiatedShutdownBehavior, which moto forgets

    def interrupt(self, machine: Machine, grace_s: float) -> None:
        """As EC2 takes a spot instance back."""
        machine.metadata.notice(time.time() + grace_s)

        def take() -> None:
            if machine.alive:
                machine.instance.terminate()
                machine.instance._reason = "Server.SpotInstanceTermination"

        timer = threading.Timer(grace_s, take)
        timer.daemon = True
        timer.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        for machine in self.all.values():
            machine.cut_off()


def step_of(home_result: Path) -> int:
    """How often the trainers have started, by what they write."""
    return (
        len(re.findall(r"\d+", (home_result / "starts-0").read_text()))
        if (home_result / "starts-0").exists()
        else 0
    )
