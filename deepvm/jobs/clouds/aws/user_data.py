"""What a machine runs when it boots: the same for all machines of a job, and without a secret."""

from __future__ import annotations

import shlex
from importlib import resources

from deepvm.jobs.cloud import RefusedError

LARGEST = 16 * 1024
"""Bytes that EC2 takes, before they are encoded."""
FOLDER = "/var/lib/deepvm"
BOOT_MIN = 20
"""After so many minutes a machine that hangs while it boots ends itself."""

_SCRIPT = """#!/bin/bash
# A machine of the job {job} of deepvm. When this script ends, however that comes about, the machine does.
trap 'shutdown -h now' EXIT
shutdown -h +{boot_min} || exit  # if anything below hangs
umask 077
mkdir -p {folder} && cd {folder} || exit
export HOME="${{HOME:-/root}}"
for python in {pythons}; do command -v "$python" > python && break; done
python=$(cat python)
{install}
"$python" -m deepvm.jobs.clouds.aws.ec2_machine {region} {bucket} {prefix}
"""
_FETCH = """cat > s3_read.py <<'END'
{s3_read}
END
"$python" s3_read.py {region} {bucket} {prefix}/package.tar.gz package.tar.gz || exit
mkdir -p package && tar -xzf package.tar.gz -C package || exit
export PYTHONPATH={folder}/package"""
_PIP = """"$python" -m pip install {requirement} || exit"""


def user_data(job: str, region: str, bucket: str, prefix: str, *, python: str = "", install: str = "") -> str:
    """The script. ``prefix``: of the job's objects in the bucket. Raises RefusedError: it is too long for EC2."""
    pythons = [shlex.quote(python)] if python else ["/opt/pytorch/bin/python", "python3"]
    words = {"region": shlex.quote(region), "bucket": shlex.quote(bucket), "prefix": shlex.quote(prefix)}
    if install:
        begin = _PIP.format(requirement=shlex.quote(install))
    else:
        source = (resources.files("deepvm.jobs.clouds.aws") / "s3_read.py").read_text(encoding="utf-8").strip()
        begin = _FETCH.format(s3_read=source, folder=FOLDER, **words)
    text = _SCRIPT.format(job=job, boot_min=BOOT_MIN, folder=FOLDER, pythons=" ".join(pythons), install=begin, **words)
    if len(text.encode()) > LARGEST:
        raise RefusedError(f"the user data of {job} has {len(text.encode())} bytes, and EC2 takes {LARGEST}")
    return text
