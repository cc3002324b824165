"""What an EC2 instance of a plan runs when it boots, so that its training survives: the same script for all of a group.

Token and addresses are parameters of AWS Systems Manager (:mod:`deepvm.jobs.clouds.aws.meeting`),
which the VMs' role may read and write: no secret is in user data, a launch template, or the state
of a tool.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from deepvm.core.cluster.plan import MEMORY, Plan, PlannedGroup
from deepvm.errors import RequestError
from deepvm.reports.exports import survival
from deepvm.reports.exports.base import RENDEZVOUS_PORT, ExportOptions, comment, header

OPTIONS = frozenset({"command", "code", *survival.OPTIONS})
LARGEST = 16 * 1024
"""Bytes that EC2 takes, before they are encoded."""
FOLDER = "/opt/deepvm"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        },
    ],
}
"""Who may have the role of the VMs: EC2."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")
_S3 = re.compile(r"s3://([a-z0-9.-]+)/(.+)")
_GIT = re.compile(r"(\S+\.git)(?:@([\w./-]+))?")


def job(options: ExportOptions) -> str:
    """The name of the training.

    Raises RequestError for one that parameters and roles cannot have.
    """
    name = options.job or survival.JOB
    if not _NAME.fullmatch(name):
        raise RequestError(
            "job",
            name,
            "up to 50 letters, digits and ._-, for names of parameters and roles of AWS",
        )
    return name


def role(options: ExportOptions) -> str:
    """Name of the VMs' role and of its instance profile."""
    return f"deepvm-{job(options)}"


def policy(options: ExportOptions) -> dict[str, Any]:
    """What the VMs may: meet, and read and write the buckets that the options name."""
    parameters = f"parameter/deepvm/{job(options)}"
    meet = ["ssm:GetParameter", "ssm:GetParametersByPath", "ssm:PutParameter"]
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": meet, "Resource": f"arn:aws:ssm:*:*:{parameters}/*"},
    ]
    if found := _S3.fullmatch(options.code):
        statements.append(
            {
                "Effect": "Allow",
                "Action": "s3:GetObject",
                "Resource": f"arn:aws:s3:::{found[1]}/{found[2]}",
            }
        )
    if options.persist.startswith("s3://"):
        bucket, _, prefix = options.persist.removeprefix("s3://").strip("/").partition("/")
        objects = f"arn:aws:s3:::{bucket}/{prefix}/*" if prefix else f"arn:aws:s3:::{bucket}/*"
        keep = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        look = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
        statements += [
            {"Effect": "Allow", "Action": keep, "Resource": objects},
            {"Effect": "Allow", "Action": look, "Resource": f"arn:aws:s3:::{bucket}"},
        ]
    return {"Version": "2012-10-17", "Statement": statements}


def user_data(plan: Plan, group: PlannedGroup, options: ExportOptions, limit: str) -> str:
    """The script of a group's VMs; ``limit`` as in :func:`deepvm.reports.exports.base.header`.

    Raises:
        RequestError: it is too long for EC2, or an option cannot be used here.
    """
    keepers, given = survival.keepers(plan), shlex.join(options.words)
    meeting = f"python3 -m deepvm.jobs.clouds.aws.meeting --job {job(options)} --wait"
    keeps = group == keepers
    text = "#!/bin/bash\n" + comment([*header(plan, limit), f"This is what {group} run.", *_USAGE])
    text += _TOP.format(folder=FOLDER, port=RENDEZVOUS_PORT, meeting=meeting)
    if group.role == MEMORY:
        text += _CPU_TORCH
    text += _PIP + survival.install(options) + "\n"
    if keeps:
        text += '"${meeting[@]}" keep token address\n' + survival.serving(
            plan, options, "$root/token"
        )
    if group.role == MEMORY:
        return _checked("user data", text + "serve\n" + survival.STORE + "wait -n\nexit 1\n")
    ready = f'echo "ready; on each VM that trains: sudo {FOLDER}/run.sh train.py ARGUMENTS"'
    if keeps:
        text += _BESIDE + (
            "" if given else f"if [ $# -eq 0 ]; then\n  {ready}\n  wait -n\n  exit 1\nfi\n"
        )
    elif not given:
        text += f"if [ $# -eq 0 ]; then\n  {ready}\n  exit 0\nfi\n"
    text += (f"if [ $# -eq 0 ]; then\n  set -- {given}\nfi\n" if given else "") + _code(
        options.code
    )
    if keepers is None:
        text += survival.environment(plan, options, "", "")
        return _checked(
            "command",
            text + _LEAD + survival.torchrun(plan).replace("\n", "\n  ").rstrip() + _AGAIN,
        )
    text += _JOIN.format(count=keepers.count)
    text += survival.environment(plan, options, "$root/token", 'cat "$root/nodes"')
    text += _IS_HOST if keeps else "where=,is_host=false\n"
    return _checked("command", text + survival.torchrun(plan) + survival.RUN)


def notes(plan: Plan, options: ExportOptions) -> Iterator[str]:
    """What is to be known of VMs that start by themselves."""
    name = job(options)
    if not options.command:
        yield (
            "all is prepared, but nothing trains: --command 'train.py ARGUMENTS' does, or sudo"
            f" {FOLDER}/run.sh train.py ARGUMENTS on each VM that trains"
        )
    if not options.code:
        yield (
            f"the training script must be in the image, below {FOLDER} or with its full path: "
            "--code s3://BUCKET/code.tar.gz, https://....tar.gz or https://....git@REF fetches it"
        )
    yield (
        f"/deepvm/{name}/ in AWS Systems Manager keeps the token, which the VMs make, and their"
        " addresses; logs: /var/log/cloud-init-output.log on each VM; the security group must let"
        " the VMs reach each other"
    )
    yield "VMs go on running, and costing, when the training has ended, until you stop them"
    yield from survival.notes(plan, options)


def _code(url: str) -> str:
    """Lines that fetch the training's code into a folder, and go there."""
    if not url:
        return ""
    text = 'mkdir -p "$root/code"\ncd "$root/code"\n'
    if _S3.fullmatch(url) and url.endswith((".tar.gz", ".tgz")):
        return (
            text + f'"${{meeting[@]}}" fetch {shlex.quote(url)} "$root/code.tar.gz"\ntar -xzf'
            ' "$root/code.tar.gz"\n'
        )
    if url.startswith("https://") and url.endswith((".tar.gz", ".tgz")):
        return text + f"curl -fsSL --retry 5 {shlex.quote(url)} | tar -xz\n"
    if url.startswith("https://") and (found := _GIT.fullmatch(url)):
        text += f"[ -d .git ] || git clone --quiet {shlex.quote(found[1])} .\n"
        return text + (f"git checkout --quiet {shlex.quote(found[2])}\n" if found[2] else "")
    raise RequestError(
        "code",
        url,
        "s3://BUCKET/NAME.tar.gz, https://HOST/NAME.tar.gz or https://HOST/NAME.git@REF",
    )


def _checked(option: str, text: str) -> str:
    if (size := len(text.encode())) > LARGEST:
        raise RequestError(
            option,
            f"{size} bytes",
            f"user data of at most {LARGEST} bytes, which is what EC2 takes",
        )
    return text


_USAGE = (
    (
        "EC2 runs it as root when a VM boots; log: /var/log/cloud-init-output.log. It stays as"
        f" {FOLDER}/run.sh, which goes on where the training was, or trains something else: run.sh"
        " train.py ARGUMENTS."
    ),
    (
        "Variables: WAIT_S, how long to wait for other VMs; RENDEZVOUS_PORT, MIN_NODES,"
        " JOIN_TIMEOUT_S, MAX_RESTARTS, DEEPVM_PACKAGE, DEEPVM_JOB, DEEPVM_TIERS, MEMORY_PORT,"
        " MEMORY_SIZE."
    ),
)

_TOP = """set -euo pipefail

root="${{DEEPVM_ROOT:-{folder}}}"
port="${{RENDEZVOUS_PORT:-{port}}}"
umask 077
mkdir -p "$root"
[ "$0" -ef "$root/run.sh" ] || cp "$0" "$root/run.sh"
chmod 700 "$root/run.sh"
cd "$root"
export HOME="${{HOME:-/root}}"
# Images for deep learning have their PyTorch here.
[ ! -d /opt/pytorch/bin ] || export PATH="/opt/pytorch/bin:$PATH"
meeting=({meeting} "${{WAIT_S:-1800}}")

"""

# The builds for GPUs take 5 GB, more than the disk of a plain image.
_CPU_TORCH = (
    'export PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL:-https://download.pytorch.org/whl/cpu}"\n'
)

# Ubuntu's image has no pip, and its Python would refuse packages besides its own.
_PIP = """export PIP_BREAK_SYSTEM_PACKAGES=1
if ! command -v deepvm > /dev/null && ! python3 -m pip --version > /dev/null 2>&1; then
  (apt-get -qq update && apt-get -qq install -y python3-pip) || dnf -q -y install python3-pip
fi
"""

# Started a second time by hand, the script finds its memory node at work.
_BESIDE = f"""if ! (: < "/dev/tcp/127.0.0.1/${{MEMORY_PORT:-{survival.NODE_PORT}}}") 2> /dev/null; then
  serve
fi
"""

_JOIN = f"""
"${{{{meeting[@]}}}}" join "$root/token" {{count}} "${{{{MEMORY_PORT:-{survival.NODE_PORT}}}}}" "$root/nodes"
host="$(head -n 1 "$root/nodes")"
"""

_IS_HOST = """where=,is_host=false
[ "$host" != "$(cat "$root/address")" ] || where=,is_host=true
"""

_LEAD = """
# No VM is sure to stay: when the one where all meet is gone, those that are left agree on another.
term=0
for _ in $(seq "${ATTEMPTS:-20}"); do
  "${meeting[@]}" lead "$term" "$port" "$root/leader"
  read -r term host is_host < "$root/leader"
  where=",is_host=$is_host\""""

_AGAIN = """
  code=0
  "${command[@]}" || code=$?
  # 0: trained; above 128: a signal, such as that of a shutdown.
  if [ "$code" -eq 0 ] || [ "$code" -gt 128 ]; then
    exit "$code"
  fi
  echo "attempt $term ended with $code" >&2
done
exit "$code"
"""
