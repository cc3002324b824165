"""Boot scripts, without secrets: one for all machines of a job, one for remote controllers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import resources

from deepvm.jobs.cloud import RefusedError

LARGEST = 16 * 1024
"""Bytes that EC2 takes, before they are encoded."""
FOLDER = "/var/lib/deepvm"
UNIT, THIS_BOOT = "/etc/systemd/system/deepvm-end.service", "/run/deepvm"
"""Files that end a machine on its second boot; the second file is gone after a reboot."""
BOOT_MIN = 20
"""After so many minutes a machine that hangs while it boots ends itself."""

_SCRIPT = """#!/bin/bash
# {what} of the job {job} of deepvm. When this script ends, however that comes about, the machine does.
trap 'shutdown -h now' EXIT
shutdown -h +{boot_min} || exit  # if anything below hangs
touch {this_boot} && cat > {unit} <<'END' && systemctl enable {unit_name} || exit  # if it boots again
[Unit]
ConditionPathExists=!{this_boot}
[Service]
ExecStart=/sbin/shutdown -h now
[Install]
WantedBy=multi-user.target
END
umask 077
mkdir -p {folder} && cd {folder} || exit
export HOME="${{HOME:-/root}}"
for python in {pythons}; do command -v "$python" > python && break; done
python=$(cat python)
{install}
"$python" -m deepvm.jobs.{module} {region} {bucket} {prefix}
"""  # noqa: E501
_FETCH = """cat > s3_read.py <<'END'
{s3_read}
END
"$python" s3_read.py {region} {bucket} {prefix}/package.tar.gz package.tar.gz || exit
mkdir -p package && tar -xzf package.tar.gz -C package || exit
export PYTHONPATH={folder}/package"""
_PIP = """"$python" -m pip install {requirement} || exit"""
_NEEDED = """import deepvm, boto3, numpy, pydantic, rich, sqlalchemy, starlette, typer, uvicorn, yaml
put = boto3.client("s3", "us-east-1").meta.service_model.operation_model("PutObject")
assert "IfMatch" in put.input_shape.members, "boto3 is too old"
"""  # noqa: E501
_ENVIRONMENT = """if ! "$python" -c '{needed}'; then  # the image has not what a controller needs
  "$python" -m venv venv || {{ apt-get -q update && \\
    apt-get -qy -o DPkg::Lock::Timeout=300 install python3-venv && "$python" -m venv venv; }} || exit
  python=$PWD/venv/bin/python
  "$python" -m pip install -q {requirements} || exit
fi"""  # noqa: E501


def user_data(
    job: str,
    region: str,
    bucket: str,
    prefix: str,
    *,
    python: str = "",
    install: str = "",
    requirements: Sequence[str] | None = None,
) -> str:
    """The script of a machine, or of a remote controller: it has ``requirements``, for pip.

    ``prefix``: of the job's objects in the bucket. Raises RefusedError: it is too long for EC2.
    """
    is_head = requirements is not None
    places = {"region": region, "bucket": bucket, "prefix": prefix}
    places = {name: shlex.quote(place) for name, place in places.items()}
    steps = []
    if not install:
        source = resources.files("deepvm.jobs.clouds.aws") / "s3_read.py"
        text = source.read_text(encoding="utf-8").strip()
        steps.append(_FETCH.format(s3_read=text, folder=FOLDER, **places))
    elif not is_head:
        steps.append(_PIP.format(requirement=shlex.quote(install)))
    if requirements is not None:
        wanted = " ".join(shlex.quote(one) for one in (install, *requirements) if one)
        steps.append(_ENVIRONMENT.format(needed=_NEEDED, requirements=wanted))
    text = _SCRIPT.format(
        what="The head" if is_head else "A machine",
        job=job,
        module="head.ec2_head_machine" if is_head else "clouds.aws.ec2_machine",
        boot_min=BOOT_MIN,
        folder=FOLDER,
        unit=UNIT,
        unit_name=UNIT.rpartition("/")[2],
        this_boot=THIS_BOOT,
        pythons=shlex.quote(python) if python else "/opt/pytorch/bin/python python3",
        install="\n".join(steps),
        **places,
    )
    size = len(text.encode())
    if size > LARGEST:
        raise RefusedError(f"the user data of {job} has {size} bytes, and EC2 takes {LARGEST}")
    return text
