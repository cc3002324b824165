"""The IAM policies of jobs: of who runs ``deepvm run``, and of the machines' roles."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from string import Template

from deepvm.core.json_types import JsonDict
from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings, named_bucket


def _policy(file: str, settings: Ec2Settings) -> JsonDict:
    text = (resources.files(__package__) / "policies" / file).read_text(encoding="utf-8")
    policy: JsonDict = json.loads(
        Template(text).substitute(
            bucket=named_bucket(settings),
            profile=settings.instance_profile,
            head_profile=settings.head_profile,
        )
    )
    for statement in policy["Statement"]:
        if isinstance(statement["Resource"], list):
            statement["Resource"] = list(dict.fromkeys(statement["Resource"]))
    return policy


def controller_policy(settings: Ec2Settings) -> JsonDict:
    """Permissions for ``deepvm run``: create machines tagged with a job, and end only those."""
    return _policy("controller.json", settings)


def head_policy(settings: Ec2Settings) -> JsonDict:
    """Permissions of a remote controller: the same, but it cannot start another one."""
    return controller_policy(replace(settings, head_profile=settings.instance_profile))


def machine_policy(settings: Ec2Settings) -> JsonDict:
    """Permissions of machines: read their settings and write checkpoints, but no job secrets."""
    return _policy("machine.json", settings)


POLICIES = {"run": controller_policy, "head": head_policy, "machine": machine_policy}
"""By what they are for, as ``deepvm doctor --iam --for`` names it."""


def policy_text(purpose: str, settings: Ec2Settings) -> str:
    """A policy as JSON; ``purpose``: of :data:`POLICIES`. Raises RefusedError: no bucket is set."""
    return json.dumps(POLICIES[purpose](settings), indent=2) + "\n"
