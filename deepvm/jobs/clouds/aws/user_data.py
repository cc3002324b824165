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
    job: str, region: str, bucket: str, prefix: str, *, python: str = "", install: str = ""
) -> str:
    """The script. ``prefix``: of the job's objects in the bucket.

    Raises RefusedError: it is too long for EC2.
    """
    places = region, bucket, prefix
    begin = _PIP.format(requirement=shlex.quote(install)) if install else _fetched(places)
    return _text("A machine", "clouds.aws.ec2_machine", job, places, python, begin)


def head_data(
    job: str,
    region: str,
    bucket: str,
    prefix: str,
    requirements: Sequence[str],
    *,
    python: str = "",
    install: str = "",
) -> str:
    """The script of a remote controller; ``requirements``: for pip if the image lacks it."""
    wanted = [*([install] if install else ()), *requirements]
    needed = _ENVIRONMENT.format(needed=_NEEDED, requirements=" ".join(map(shlex.quote, wanted)))
    places = region, bucket, prefix
    begin = needed if install else f"{_fetched(places)}\n{needed}"
    return _text("The head", "head.ec2_head_machine", job, places, python, begin)


def _words(places: tuple[str, str, str]) -> dict[str, str]:
    return {
        name: shlex.quote(place)
        for name, place in zip(("region", "bucket", "prefix"), places, strict=True)
    }


def _fetched(places: tuple[str, str, str]) -> str:
    source = (
        (resources.files("deepvm.jobs.clouds.aws") / "s3_read.py")
        .read_text(encoding="utf-8")
        .strip()
    )
    return _FETCH.format(s3_read=source, folder=FOLDER, **_words(places))


def _text(
    what: str, module: str, job: str, places: tuple[str, str, str], python: str, begin: str
) -> str:
    text = _SCRIPT.format(
        what=what,
        job=job,
        module=module,
        boot_min=BOOT_MIN,
        folder=FOLDER,
        unit=UNIT,
        unit_name=UNIT.rpartition("/")[2],
        this_boot=THIS_BOOT,
        pythons=" ".join(
            [shlex.quote(python)] if python else ["/opt/pytorch/bin/python", "python3"]
        ),
        install=begin,
        **_words(places),
    )
    if len(text.encode()) > LARGEST:
        raise RefusedError(
            f"the user data of {job} has {len(text.encode())} bytes, and EC2 takes {LARGEST}"
        )
    return text
